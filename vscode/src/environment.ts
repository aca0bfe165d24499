/** What the runtime may see of the editor's environment: what a program needs to start, and what the user named. */
const NEEDED = new Set([
  "PATH",
  "HOME",
  "USER",
  "LOGNAME",
  "SHELL",
  "LANG",
  "LANGUAGE",
  "TZ",
  "TMPDIR",
  "TEMP",
  "TMP",
  "SYSTEMROOT",
  "VIRTUAL_ENV",
  "SSL_CERT_FILE",
  "SSL_CERT_DIR",
  "HTTP_PROXY",
  "HTTPS_PROXY",
  "NO_PROXY",
]);
const PREFIXES = ["LC_", "XDG_"];

export type Environment = Record<string, string>;

export function filteredEnvironment(
  all: Readonly<Record<string, string | undefined>>,
  passed: readonly string[],
  keys: Readonly<Environment>,
): Environment {
  const kept = Object.entries(all).filter(([name]) => {
    const upper = name.toUpperCase();
    return NEEDED.has(upper) || PREFIXES.some((prefix) => upper.startsWith(prefix)) || passed.includes(name);
  });
  const known = kept.filter((entry): entry is [string, string] => entry[1] !== undefined);
  return { ...Object.fromEntries(known), ...keys, PYTHONUNBUFFERED: "1" };
}
