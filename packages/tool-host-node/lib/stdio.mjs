// Takes stdin and stdout away from the plugin, and gives it /dev/null and stderr instead.

import { closeSync, createReadStream, fstatSync, openSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import { inspect } from "node:util";

const moment = new Int32Array(new SharedArrayBuffer(4));

/** The stream of requests, and how to write a line: once it returns, the line is out. */
export function claim() {
  // For whatever asks Node for stdout; below, for what writes to descriptor 1 or inherits it.
  Object.defineProperty(process, "stdout", { get: () => process.stderr, configurable: true });
  const output = moved(1, "a", "/proc/self/fd/2");
  const descriptor = moved(0, "r", "/dev/null");
  return { input: inputOf(descriptor), write: (bytes) => write(output, bytes) };
}

// A pipe is opened anew under another number, its old number then means something else. Where
// that cannot be (a socket, no /proc), the descriptor is used as it is.
function moved(descriptor, flags, instead) {
  let copy = descriptor;
  try {
    if (!fstatSync(descriptor).isFIFO()) return descriptor;
    copy = openSync(`/proc/self/fd/${descriptor}`, flags);
    closeSync(descriptor);
    openSync(instead, flags); // takes the lowest free number: the one just closed
  } catch {}
  return copy;
}

function inputOf(fd) {
  const kind = fstatSync(fd);
  if (!kind.isFIFO() && !kind.isSocket()) return createReadStream(null, { fd });
  return new Socket({ fd, readable: true, writable: false });
}

// Waits until the runtime has taken enough: a plugin that emits faster than that is slowed down,
// and nothing piles up in memory.
function write(fd, bytes) {
  for (let done = 0; done < bytes.length; ) {
    try {
      done += writeSync(fd, bytes, done);
    } catch (error) {
      if (error.code !== "EAGAIN") process.exit(0); // nobody reads any more
      Atomics.wait(moment, 0, 0, 1);
    }
  }
}

/** One entry in the log. */
export function note(said) {
  const text = typeof said === "string" ? said : inspect(said);
  try {
    writeSync(2, `callgate-tool-host: ${text}\n`);
  } catch {} // then there is no log
}
