// What the protocol's own vectors say of a client holds for this one.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { pair } from "./server.mjs";

const OWN = {
  "an id in flight cannot be used again": "ids are made here: see the test of ids",
  "events and the end of a connection": "needs a subscription: see the test of one",
  "a line too long": "ends this client: its answer may have been in there",
};

function vectors(name) {
  const url = new URL(`../../../protocols/socket_v1/vectors/${name}.json`, import.meta.url);
  return JSON.parse(readFileSync(url, "utf-8")).cases;
}

function holds(actual, expected) {
  if (typeof expected !== "object" || expected === null) return assert.equal(actual, expected);
  for (const key of Object.keys(expected)) holds(actual[key], expected[key]); // others are ignored
}

for (const { name, steps } of vectors("client")) {
  test(name, { skip: OWN[name] }, async (t) => {
    const { gate, peer } = await pair(t);
    const heard = [];
    let called, id;
    for (const { send, receive, expect } of steps) {
      if (send) {
        called = gate.call(send.toolName, {}, { onEvent: (event) => heard.push(event) });
        id = (await peer.frame()).requestId;
        continue;
      }
      heard.length = 0;
      peer.raw(receive.text.replaceAll(/"requestId": ?"a"/g, `"requestId":"${id}"`));
      await peer.settle(gate);
      const frames = expect.filter(({ frame }) => frame).map(({ frame }) => frame);
      const of = (type) => frames.filter((frame) => frame.type === type);
      assert.deepEqual(heard, of("tool_event").map(({ event }) => event));
      for (const { result } of of("tool_result")) holds(await called, result);
      for (const { code, message } of of("error")) holds(await called, { ok: false, error: { code, message } });
    }
  });
}

const ASKING = {
  list_confirmations: (gate) => gate.confirmations().catch(() => {}),
  answer_confirmation: (gate, { confirmationId, ...said }) => gate.answer(confirmationId, said).catch(() => {}),
  subscribe: (gate, { types, confirmer }) => gate.subscribe({ types, confirmer }),
};
const asked = vectors("encodings").filter(({ frame }) => ASKING[frame.type] && !frame.session);

for (const { frame: { type, protocol, requestId, ...rest }, line } of asked) {
  test(`a request is written in the canonical spelling: ${line.trim()}`, async (t) => {
    const { gate, peer } = await pair(t);
    ASKING[type](gate, rest);
    assert.equal((await peer.line()) + "\n", line);
  });
}

test("the vectors have requests that this client makes", () => {
  assert.deepEqual(new Set(asked.map(({ frame }) => frame.type)), new Set(Object.keys(ASKING)));
});
