// Lines out of chunks of bytes, however they were cut, and a frame as its line.

import { Refusal } from "./refusals.mjs";
import { check, couldBreak, StrictError } from "./strict.mjs";

export const LONGEST = 8_388_608; // bytes of a line, without its newline
const NEWLINE = 10;

/** Why a frame has no line. */
export class Unsendable extends Refusal {
  constructor(detail) {
    super("Unsendable", detail);
  }
}

export class Framer {
  #held = []; // pieces of a line that has not ended
  #length = 0; // of that line, also when it is too long and its pieces are let go

  /** The lines that end in a chunk, as bytes; null for one too long, as soon as it is. */
  feed(chunk) {
    const lines = [];
    let start = 0;
    for (let end; (end = chunk.indexOf(NEWLINE, start)) !== -1; start = end + 1) {
      this.#hold(chunk.subarray(start, end), lines);
      if (this.#length <= LONGEST) lines.push(this.#joined());
      this.#held = [];
      this.#length = 0;
    }
    if (start < chunk.length) this.#hold(chunk.subarray(start), lines);
    return lines;
  }

  #hold(piece, lines) {
    const before = this.#length;
    this.#length += piece.length;
    if (this.#length <= LONGEST) this.#held.push(piece);
    else if (before <= LONGEST) lines.push(null);
    if (this.#length > LONGEST) this.#held = [];
  }

  #joined() {
    return this.#held.length === 1 ? this.#held[0] : Buffer.concat(this.#held);
  }
}

/** The frame's line, newline included. Throws `Unsendable`. */
export function line(frame) {
  const text = written(frame).replace(/[\u0085\u2028\u2029]/g, escaped);
  const bytes = Buffer.from(text + "\n");
  if (bytes.length > LONGEST + 1) {
    throw new Unsendable(`${bytes.length - 1} bytes; at most ${LONGEST} fit into one line`);
  }
  return bytes;
}

// JSON that the runtime takes: JavaScript writes NaN as null and lets lone surrogates through.
function written(frame) {
  try {
    const text = JSON.stringify(frame);
    if (text.includes("null")) JSON.stringify(frame, finite);
    if (couldBreak(text)) check(text);
    return text;
  } catch (error) {
    if (error instanceof StrictError) throw new Unsendable(error.message);
    throw new Unsendable(`not JSON: ${firstLine(error)}`);
  }
}

function finite(_, value) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new StrictError(`${value}`);
  return value;
}

const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;

function firstLine(error) {
  try {
    return error.message.split("\n", 1)[0];
  } catch {
    return "it cannot be written";
  }
}
