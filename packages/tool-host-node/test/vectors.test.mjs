// The protocol's vectors, from the host's side.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Wire } from "../lib/wire.mjs";

const home = new URL("../../../protocols/host_v1/vectors/", import.meta.url);
const vectors = (name) => JSON.parse(readFileSync(new URL(`${name}.json`, home), "utf8")).cases;
const shown = ({ frame, fault, passed }) => (frame ? { frame } : fault ? { fault } : { passed });
const receive = (wire, bytes) => [...wire.receive(bytes)].map(shown);

function bytesOf({ text, base64, repeat }) {
  if (repeat) return Buffer.from(repeat[0].repeat(repeat[1]));
  return base64 === undefined ? Buffer.from(text) : Buffer.from(base64, "base64");
}

for (const { name, chunks, expect } of vectors("requests")) {
  test(`a host reads: ${name}`, () => {
    const wire = new Wire();
    assert.deepEqual(chunks.flatMap((chunk) => receive(wire, bytesOf(chunk))), expect);
  });

  test(`a host reads, cut anywhere: ${name}`, () => {
    const bytes = Buffer.concat(chunks.map(bytesOf));
    for (const size of bytes.length > 100_000 ? [65_537] : [1, 7]) {
      const wire = new Wire();
      const items = [];
      for (let at = 0; at < bytes.length; at += size) {
        items.push(...receive(wire, bytes.subarray(at, at + size)));
      }
      assert.deepEqual(items, expect);
    }
  });
}

for (const { name, steps } of vectors("host_sequences")) {
  test(`a host's process: ${name}`, () => {
    const wire = new Wire();
    for (const { receive: chunk, expect, send, sent } of steps) {
      if (chunk) assert.deepEqual(receive(wire, bytesOf(chunk)), expect);
      else if (sent) assert.deepEqual(JSON.parse(wire.encode(send)), send);
      else assert.throws(() => wire.encode(send));
    }
  });
}

const answering = ({ ok, event, id }) => ok !== undefined || event !== undefined || id === null;
const written = vectors("encodings").filter(({ frame }) => answering(frame));

test("what a host sends is written in the canonical spelling", () => {
  assert.ok(written.length > 5);
  for (const { frame, line } of written.filter(({ frame }) => frame.id !== null)) {
    const wire = new Wire();
    const asked = { v: 1, id: frame.id, method: "execute_tool", params: { tool_name: "echo" } };
    receive(wire, Buffer.from(`${JSON.stringify(asked)}\n`));
    assert.equal(wire.encode(frame).toString(), line);
  }
});

test("every fault has one line, with its id and type", () => {
  const wire = new Wire();
  const [{ fault, line }] = wire.receive(Buffer.from('{"v":2,"id":"a","method":"init"}\n'));
  const { v, id, ok, error } = JSON.parse(line);
  assert.deepEqual({ v, id, ok, type: error.type }, { v: 1, id: "a", ok: false, type: fault.type });
});
