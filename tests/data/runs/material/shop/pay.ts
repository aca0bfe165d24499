const ATTEMPTS = 3;

export async function pay(order: number): Promise<void> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    if (await gateway(order)) {
      return;
    }
  }
  throw new Error(`gave up after ${ATTEMPTS} attempts`);
}
