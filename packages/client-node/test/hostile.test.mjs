// A server that does not keep the protocol: nothing hangs, nothing grows, nothing is mistaken.

import assert from "node:assert/strict";
import { test } from "node:test";
import { pair } from "./server.mjs";

async function calling(t, onEvent) {
  const { gate, peer } = await pair(t);
  const called = gate.call("echo", {}, { onEvent });
  const { requestId } = await peer.frame();
  return { gate, peer, called, requestId };
}

const GARBAGE = [
  "nonsense", "", "\r", "null", "1", '"x"', "[]", "[1]", "{}", '{"type":1}', '{"type":null,"requestId":null}',
  '{"type":"__proto__","requestId":"r1"}', '{"type":"tool_event","requestId":"r1"}',
  '{"type":"tool_event","requestId":"r1","event":null}', '{"type":"event"}', '{"type":"event","event":7}',
  '{"type":"news","requestId":"r1"}', '{"type":"tools_list","requestId":"r1","tools":[]}',
  '{"type":"tool_result","requestId":"toString","result":{"ok":true}}', '{"type":"tool_result","requestId":{}}',
  '\ufeff{"type":"tool_result","requestId":"r1","result":{"ok":false}}', "[".repeat(100_000),
];

test("lines that are no frames, and frames that nobody waits for, are passed over", async (t) => {
  const { gate, peer, called, requestId } = await calling(t, assert.fail);
  for (const line of GARBAGE) peer.raw(line + "\n");
  peer.raw(Buffer.from([0xff, 0xc3, 0x28, 10]));
  peer.raw(Buffer.from('{"type":"tool_result","requestId":"r1","result":{"ok":"\xff"}}\n', "latin1"));
  await peer.settle(gate);
  peer.result(requestId, "真");
  assert.deepEqual(await called, { ok: true, content: "真" });
});

test("bytes cut anywhere, within a character too, give the same frame", async (t) => {
  const { peer, called, requestId } = await calling(t);
  const result = { ok: true, content: "ä真😀\u2028\u0085\r" };
  const bytes = Buffer.from(JSON.stringify({ type: "tool_result", requestId, result }) + "\r\n");
  peer.socket.setNoDelay();
  for (const byte of bytes) await new Promise((sent) => peer.socket.write(Buffer.of(byte), sent));
  assert.deepEqual(await called, result);
});

test("a result of exactly the longest line is read", async (t) => {
  const { peer, called, requestId } = await calling(t);
  const frame = (content) => JSON.stringify({ type: "tool_result", requestId, result: { ok: true, content } });
  const content = "x".repeat(8_388_608 - frame("").length);
  peer.raw(frame(content) + "\n");
  assert.equal((await called).content.length, content.length);
});

for (const ended of [true, false]) {
  test(`a line that is too long ends the connection, ${ended ? "ended" : "without an end"}`, async (t) => {
    const { gate, peer, called } = await calling(t);
    peer.raw("x".repeat(8_388_609) + (ended ? "\n" : ""));
    await assert.rejects(called, { code: "INSTANCE_GONE", reason: "unreadable", mayHaveRun: true });
    await assert.rejects(gate.tools(), { code: "INSTANCE_GONE" });
  });
}

test("an answer without a result is a failed call", async (t) => {
  const { peer, called, requestId } = await calling(t);
  peer.send({ type: "tool_result", requestId });
  assert.equal((await called).error.code, "PROTOCOL_ERROR");
});

test("what follows the end of a connection in the same bytes is not read", async (t) => {
  const { gate, peer, called, requestId } = await calling(t);
  const events = gate.subscribe();
  const subscribed = { type: "subscribed", requestId: (await peer.frame()).requestId, subscriptionId: "s" };
  const event = { type: "event", subscriptionId: "s", event: { type: "x" } };
  const answer = { type: "tool_result", requestId, result: { ok: true } };
  peer.raw([subscribed, event, { type: "error" }, event, answer].map((frame) => JSON.stringify(frame) + "\n").join(""));
  await assert.rejects(called, { code: "INSTANCE_GONE", reason: "unreadable" });
  assert.deepEqual((await events.next()).value, { type: "x" });
  await assert.rejects(events.next(), { code: "INSTANCE_GONE", reason: "unreadable" });
});

test("an error that names no request ends the connection only while one waits", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe();
  peer.send({ type: "subscribed", requestId: (await peer.frame()).requestId, subscriptionId: "s" });
  peer.send({ type: "error", code: "PROTOCOL_ERROR", message: "?" });
  peer.send({ type: "event", subscriptionId: "s", event: { type: "still here" } });
  assert.deepEqual((await events.next()).value, { type: "still here" });
  const called = gate.call("echo");
  await peer.frame();
  peer.send({ type: "error", code: "PROTOCOL_ERROR", message: "?" });
  await assert.rejects(called, { code: "INSTANCE_GONE", reason: "unreadable" });
});

test("a connection that ends within a frame rejects all that wait, and that half is no frame", async (t) => {
  const { gate, peer, called, requestId } = await calling(t);
  const listed = gate.tools();
  const events = gate.subscribe().next();
  peer.socket.end(`{"type":"tool_result","requestId":"${requestId}","result":{"ok":true}}`); // no newline
  await assert.rejects(called, { code: "INSTANCE_GONE", reason: "lost", mayHaveRun: true });
  await assert.rejects(listed, { code: "INSTANCE_GONE", mayHaveRun: false });
  await assert.rejects(events, { code: "INSTANCE_GONE" });
  await assert.rejects(gate.call("again"), { code: "INSTANCE_GONE", mayHaveRun: false });
});

test("why an instance hung up is told, after the events that it sent before", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe();
  const { requestId } = await peer.frame();
  peer.send({ type: "subscribed", requestId, subscriptionId: "s" });
  peer.send({ type: "event", subscriptionId: "s", event: { type: "last" } });
  peer.send({ type: "closing", reason: "shutting_down" });
  peer.socket.end();
  assert.deepEqual((await events.next()).value, { type: "last" });
  await assert.rejects(events.next(), { code: "INSTANCE_GONE", reason: "shutting_down" });
});

test("a final frame that comes twice is the answer once", async (t) => {
  const { gate, peer, called, requestId } = await calling(t);
  peer.result(requestId, 1);
  peer.result(requestId, 2);
  peer.send({ type: "error", requestId, code: "PROTOCOL_ERROR", message: "late" });
  await peer.settle(gate);
  assert.deepEqual(await called, { ok: true, content: 1 });
});

test("an abort after the connection ended does nothing", async (t) => {
  const { peer, gate } = await pair(t);
  const stop = new AbortController();
  const called = gate.call("echo", {}, { signal: stop.signal });
  await peer.frame();
  gate.close();
  stop.abort();
  await assert.rejects(called, { code: "INSTANCE_GONE" });
});
