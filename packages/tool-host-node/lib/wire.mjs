// The host's side of its process, without the process: bytes to requests, frames to bytes.
//
// A request's id is in flight from its arrival to its one final answer; events go out under ids
// in flight and under no others. The runtime is asked for what it offered in `init` and this
// host announced in its answer, and only for a call that is being executed.

import { fit, isId, isObject, OF_HOST, OF_RUNTIME } from "./frames.mjs";
import { Framer, line, LONGEST, Unsendable } from "./lines.mjs";
import { read, StrictError } from "./strict.mjs";

export class Wire {
  #framer = new Framer();
  #inFlight = new Map(); // by id: the method that the runtime asked for
  #waiting = new Map(); // the same for what this host asked
  offered = [];
  agreed = new Set();

  /** For each line one of `{frame}`, `{fault, line}` (to be sent), `{passed}`. */
  *receive(bytes) {
    for (const each of this.#framer.feed(bytes)) {
      const item = this.#take(each);
      if (item) yield item;
    }
  }

  #take(bytes) {
    if (bytes === null) return fault("size", `A line has at most ${LONGEST} bytes.`);
    let value;
    try {
      value = read(bytes);
    } catch (error) {
      if (!(error instanceof StrictError)) throw error;
      return fault("json", `Not accepted JSON: ${error.message}`);
    }
    if (value === undefined) return null;
    if (!isObject(value)) return fault("object", "A line is a JSON object.");
    if (has(value, "ok") && !has(value, "method")) return this.#answered(value);
    return this.#asked(value);
  }

  #asked({ v, id, method, params = {} }) {
    if (!isId(id)) return fault("id", "An id has 1 to 128 printable ASCII characters.");
    if (this.#inFlight.has(id)) return fault("id", "That id is in flight.");
    if (v !== 1) return fault("version", "Only version 1 is spoken here.", id);
    if (typeof method !== "string") return fault("kind", "A line names a method.", id);
    const fields = OF_HOST.get(method);
    if (!fields) return fault("method", noMethod(method), id, "MethodNotFound");
    try {
      params = fit(params, fields);
    } catch (error) {
      return fault("params", `Not the params of ${method}: ${error.message}.`, id);
    }
    this.#inFlight.set(id, method);
    if (method === "init" && params.runtime) this.offered = params.runtime.answers;
    return { frame: { v, id, method, params } };
  }

  #answered(value) {
    const method = this.#waiting.get(value.id);
    if (!method) return { passed: "unknown_id" };
    this.#waiting.delete(value.id);
    return { frame: answerTo(method, value) };
  }

  /** The frame's line. Throws for what was not asked, not agreed, or is over.

      An answer that cannot be sent becomes a failure; anything else throws `Unsendable`. */
  encode(frame) {
    const { id } = frame;
    if (has(frame, "method")) return this.#request(frame);
    const method = this.#inFlight.get(id);
    if (!method) throw new Error("no request waits for this");
    if (has(frame, "event")) return line(frame);
    const [bytes, sent] = sendable(frame);
    this.#inFlight.delete(id);
    if (method === "init" && sent && frame.ok && frame.result.host) {
      const asks = (frame.result.host.asks ?? []).filter((each) => OF_RUNTIME.has(each));
      this.agreed = new Set(asks.filter((each) => this.offered.includes(each)));
    }
    return bytes;
  }

  #request(frame) {
    const { id, method, params } = frame;
    if (!isId(id) || this.#waiting.has(id)) throw new Error("no id, or one in flight");
    if (!this.agreed.has(method)) throw new Error(`it was not agreed to ask for ${method}`);
    fit(params, OF_RUNTIME.get(method).fields);
    if (this.#inFlight.get(params.call) !== "execute_tool") throw new Error("no such call runs");
    const bytes = line(frame);
    this.#waiting.set(id, method);
    return bytes;
  }
}

export const noMethod = (method) => `There is no method ${method.slice(0, 128)}.`;

const has = (value, key) => Object.hasOwn(value, key);

function fault(kind, detail, id = null, type = "ProtocolError") {
  const frame = { v: 1, id, ok: false, error: { type, detail: wellFormed(detail) } };
  return { fault: { kind, id, type }, line: line(frame) };
}

/** The text without lone surrogates, which no line may have. */
export const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");

function sendable(frame) {
  try {
    return [line(frame), true];
  } catch (error) {
    if (!(error instanceof Unsendable)) throw error;
    const detail = `The answer cannot be sent: ${wellFormed(error.message.slice(0, 1_000))}`;
    return [line({ v: 1, id: frame.id, ok: false, error: { type: "Unsendable", detail } }), false];
  }
}

// What the runtime answered, or the failure that it is where it breaks the rules.
function answerTo(method, { v, id, ok, result, error }) {
  const broken = (detail) => ({ v: 1, id, ok: false, error: { type: "ProtocolError", detail } });
  if (v !== 1) return broken("version");
  if (ok === true && isObject(result) && error == null) {
    const { value = null } = result;
    return OF_RUNTIME.get(method).value(value) ? { v, id, ok, result: { value } } : broken("value");
  }
  if (ok !== false || result != null) return broken("shape");
  const { type = "Error", detail = "" } = isObject(error) ? error : {};
  const more = isObject(error) && typeof error.reason === "string" ? { reason: error.reason } : {};
  return { v, id, ok, error: { type: String(type), detail: String(detail), ...more } };
}
