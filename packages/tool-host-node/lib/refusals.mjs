// What this host says itself, in the protocol's words. Its stack tells nobody anything.

export class Refusal extends Error {
  constructor(type, detail, reason) {
    super(detail);
    this.name = type;
    if (reason !== undefined) this.reason = reason;
  }
}
