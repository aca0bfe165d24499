/** A request that is answered with a structured error: `code` for programs, the message for people and models. */
export class Refusal extends Error {
  constructor(
    readonly code:
      | "NOT_FOUND"
      | "PATH_REFUSED"
      | "PATCH_REFUSED"
      | "BAD_PARAMS"
      | "UNKNOWN_TOOL"
      | "COMMAND_REFUSED"
      | "CANCELLED"
      | "TIMEOUT",
    message: string,
  ) {
    super(message);
  }
}
