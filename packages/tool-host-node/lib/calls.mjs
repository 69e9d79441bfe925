// One request while it is under way: it has one answer, and nothing is said after it.

import { inspect } from "node:util";
import { isObject } from "./frames.mjs";
import { Refusal } from "./refusals.mjs";
import { wellFormed } from "./wire.mjs";

const LONGEST_TEXT = 65_536; // characters of a message or a stack

export class Call {
  #host;
  #abort; // made when somebody looks at the signal
  #reason;
  answered = false;

  constructor(host, { id, method, params }) {
    this.#host = host;
    this.id = id;
    this.method = method;
    this.state = params.state;
    this.about = params.context ?? {};
    this.ended = new Promise((resolve) => { this.end = resolve; });
  }

  get signal() {
    if (!this.#abort) {
      this.#abort = new AbortController();
      if (this.#reason) this.#abort.abort(this.#reason);
    }
    return this.#abort.signal;
  }

  abort(detail) {
    this.#reason ??= Object.assign(new Error(detail), { name: "AbortError" });
    this.#abort?.abort(this.#reason);
  }

  /** Whether the event was sent: after the answer, it is not. Throws where it is no event. */
  emit(event) {
    if (!isObject(event) || typeof event.type !== "string") {
      throw new TypeError('an event is {type: "part", payload}');
    }
    if (this.answered) return false;
    const { type, payload } = event;
    this.#host.send({ v: 1, id: this.id, event: { type, payload } });
    return true;
  }

  offers(method) {
    return this.#host.wire.agreed.has(method);
  }

  ask(method, params) {
    return this.#host.asks.ask(method, { call: this.id, ...params });
  }

  succeed(result) {
    this.#answer({ v: 1, id: this.id, ok: true, result });
  }

  fail(error) {
    const failure = failureOf(error);
    if (this.#reason && (error === this.#reason || failure.type === "AbortError")) {
      failure.type = "Cancelled";
    }
    this.#answer({ v: 1, id: this.id, ok: false, error: failure });
  }

  #answer(frame) {
    if (this.answered) return;
    this.answered = true;
    this.#host.answer(this, frame);
    this.end();
  }
}

/** Anything that was thrown, as the protocol tells it. */
function failureOf(error) {
  try {
    if (typeof error?.message !== "string") {
      return { type: "Error", detail: text(typeof error === "string" ? error : inspect(error)) };
    }
    const { name, message, stack } = error;
    const type = typeof name === "string" && name ? text(name) : "Error";
    const failure = { type, detail: text(message) };
    if (typeof stack !== "string" || error instanceof Refusal) return failure;
    return { ...failure, stack: text(stack) };
  } catch {
    return { type: "Error", detail: "What was thrown cannot be shown." };
  }
}

const text = (said) => wellFormed(said.slice(0, LONGEST_TEXT));
