// What tools ask of the runtime, no more of it at once than the runtime answers.

import { Refusal } from "./refusals.mjs";

const MOST_WAITING = 64;

export class Asks {
  #wire;
  #write;
  #last = 0;
  #waiting = new Map(); // by id: who waits
  #queue = [];
  #over = false;

  constructor(wire, write) {
    this.#wire = wire;
    this.#write = write;
  }

  /** The value of the runtime's answer. Rejects with a `Refusal`. */
  ask(method, params) {
    return new Promise((resolve, reject) => {
      if (this.#over) throw gone();
      if (!this.#wire.agreed.has(method)) {
        throw new Refusal("NotOffered", `The runtime does not offer ${method}.`);
      }
      this.#queue.push({ method, params, resolve, reject });
      this.#send();
    });
  }

  #send() {
    while (this.#queue.length && this.#waiting.size < MOST_WAITING) {
      const asked = this.#queue.shift();
      const { method, params } = asked;
      const id = `h${++this.#last}`;
      try {
        this.#write(this.#wire.encode({ v: 1, id, method, params }));
        this.#waiting.set(id, asked);
      } catch (error) {
        asked.reject(error);
      }
    }
  }

  /** Takes an answer that the wire let through. */
  answered({ id, ok, result, error }) {
    const asked = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (ok) asked.resolve(result.value);
    else asked.reject(new Refusal(error.type, error.detail, error.reason));
    this.#send();
  }

  /** Nobody answers any more. */
  end() {
    this.#over = true;
    for (const { reject } of [...this.#waiting.values(), ...this.#queue.splice(0)]) reject(gone());
  }
}

const gone = () => new Refusal("Cancelled", "The runtime is gone.");
