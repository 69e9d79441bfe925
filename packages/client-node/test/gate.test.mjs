// What a program gets from a gate, against a server that keeps the protocol.

import assert from "node:assert/strict";
import { test } from "node:test";
import { CallgateError, connect } from "../callgate.mjs";
import { pair } from "./server.mjs";

test("a call is one frame in the canonical order, with who and where", async (t) => {
  const { gate, peer } = await pair(t, { cwd: "/tmp/x", caller: "cli" });
  const called = gate.call("shell", { command: "a\u2028b\u0085" }, { timeoutMs: 5 });
  assert.equal(
    await peer.line(),
    '{"type":"tool_call","protocol":1,"requestId":"r1","toolName":"shell",' +
      '"arguments":{"command":"a\\u2028b\\u0085"},"clientInfo":{"caller":"cli","cwd":"/tmp/x"},"timeoutMs":5}',
  );
  peer.result("r1", null);
  assert.deepEqual(await called, { ok: true, content: null });
});

test("many calls are in flight under ids of their own and each gets its own result", async (t) => {
  const { gate, peer } = await pair(t);
  const called = Array.from({ length: 50 }, (_, n) => gate.call("echo", { n }));
  const frames = [];
  for (const _ of called) frames.push(await peer.frame());
  assert.equal(new Set(frames.map((frame) => frame.requestId)).size, 50);
  for (const { requestId, arguments: args } of frames.reverse()) peer.result(requestId, args.n);
  assert.deepEqual((await Promise.all(called)).map((each) => each.content), [...called.keys()]);
});

test("an abort sends a cancel and the call gives its own end", async (t) => {
  const { gate, peer } = await pair(t);
  const stop = new AbortController();
  const called = gate.call("shell", {}, { signal: stop.signal });
  const { requestId } = await peer.frame();
  stop.abort();
  assert.deepEqual(await peer.frame(), { type: "cancel_tool_call", protocol: 1, requestId });
  const result = { ok: false, error: { code: "CANCELLED", message: "stopped" } };
  peer.send({ type: "tool_result", requestId, result });
  assert.deepEqual(await called, result);
});

test("an abort after the end of a call sends nothing", async (t) => {
  const { gate, peer } = await pair(t);
  const stop = new AbortController();
  const called = gate.call("shell", {}, { signal: stop.signal });
  peer.result((await peer.frame()).requestId, 1);
  await called;
  stop.abort();
  gate.tools().catch(() => {});
  assert.equal((await peer.frame()).type, "list_tools");
});

test("a call that was aborted before it began is never sent", async (t) => {
  const { gate, peer } = await pair(t);
  const result = await gate.call("shell", {}, { signal: AbortSignal.abort() });
  assert.deepEqual([result.ok, result.error.code], [false, "CANCELLED"]);
  const called = gate.call("next");
  const { toolName, requestId } = await peer.frame();
  assert.equal(toolName, "next");
  peer.result(requestId, 1);
  await called;
});

test("a listener that throws stops its call and no other", async (t) => {
  const { gate, peer } = await pair(t);
  const failure = new Error("mine");
  const called = gate.call("shell", {}, { onEvent: () => { throw failure; } });
  const other = gate.call("other");
  const [{ requestId }, { requestId: second }] = [await peer.frame(), await peer.frame()];
  peer.send({ type: "tool_event", requestId, event: { kind: "log", level: "info", message: "x" } });
  await assert.rejects(called, failure);
  assert.deepEqual(await peer.frame(), { type: "cancel_tool_call", protocol: 1, requestId });
  peer.result(requestId, 1);
  peer.result(second, 2);
  assert.deepEqual(await other, { ok: true, content: 2 });
});

const cyclic = {};
cyclic.self = cyclic;

for (const [what, args] of Object.entries({
  "a cycle": cyclic,
  "a bigint": { n: 1n },
  "more than a line holds": { text: "x".repeat(8_388_608) },
  "more than a line holds, in bytes": { text: "ä".repeat(4_194_304) },
})) {
  test(`what no line can hold is not sent: ${what}`, async (t) => {
    const { gate, peer } = await pair(t);
    const result = await gate.call("echo", args);
    assert.deepEqual([result.ok, result.error.code], [false, "PROTOCOL_ERROR"]);
    await assert.rejects(gate.answer("q", { arguments: args }), { code: "REQUEST_REFUSED" });
    const called = gate.call("next");
    const { toolName, requestId } = await peer.frame();
    assert.equal(toolName, "next");
    peer.result(requestId, 1);
    await called;
  });
}

test("a request of exactly the longest line is sent", async (t) => {
  const { gate, peer } = await pair(t, { cwd: null });
  const line = (text) =>
    '{"type":"tool_call","protocol":1,"requestId":"r1","toolName":"echo","arguments":' +
    `{"text":"${text}"},"clientInfo":{"caller":"plugin"}}`;
  const text = "x".repeat(8_388_608 - line("").length);
  const called = gate.call("echo", { text });
  assert.equal((await peer.line()).length, 8_388_608);
  peer.result("r1", 1);
  await called;
});

test("text of any kind is sent as it is", async (t) => {
  const { gate, peer } = await pair(t);
  for (const text of ["\\ud800", "\\\\ud800", "😀", "\u0000\ufeff\u2029"]) {
    const called = gate.call("echo", { text });
    const frame = await peer.frame();
    assert.equal(frame.arguments.text, text);
    peer.result(frame.requestId, text);
    assert.equal((await called).content, text);
  }
});

test("questions are listed and answered for the arguments that were shown", async (t) => {
  const { gate, peer } = await pair(t);
  const listed = gate.confirmations();
  const question = { id: "q", argumentsSha256: "5ha" };
  peer.send({ type: "confirmations_list", requestId: (await peer.frame()).requestId, confirmations: [question] });
  assert.deepEqual(await listed, [question]);
  const answered = gate.answer(question, { decision: "allow", scope: "session" });
  assert.equal(
    await peer.line(),
    '{"type":"answer_confirmation","protocol":1,"requestId":"r2","confirmationId":"q","decision":"allow",' +
      '"scope":"session","argumentsSha256":"5ha"}',
  );
  peer.send({ type: "confirmation_result", requestId: "r2", confirmationId: "q", applied: false, decision: "deny", by: "cli" });
  const { applied, decision, by } = await answered;
  assert.deepEqual({ applied, decision, by }, { applied: false, decision: "deny", by: "cli" });
  const refused = gate.answer("gone", { decision: "deny" });
  peer.send({ type: "error", requestId: (await peer.frame()).requestId, code: "PROTOCOL_ERROR", message: "no" });
  await assert.rejects(refused, { name: "CallgateError", code: "REQUEST_REFUSED", message: "no" });
});

async function subscribed(peer, subscriptionId) {
  const frame = await peer.frame();
  peer.send({ type: "subscribed", requestId: frame.requestId, subscriptionId });
  return frame;
}

test("a subscription is asked for at once, tells what was missed, and ends with its loop", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe({ types: ["tool.called"], confirmer: true });
  const frame = await subscribed(peer, "sub_1");
  assert.deepEqual([frame.type, frame.types, frame.confirmer], ["subscribe", ["tool.called"], true]);
  peer.send({ type: "event", subscriptionId: "sub_0", event: { type: "another's" } });
  peer.send({ type: "event", subscriptionId: "sub_1", missed: 3 });
  peer.send({ type: "event", subscriptionId: "sub_1", event: { type: "tool.called", payload: {} } });
  const seen = [];
  for await (const event of events) if (seen.push(event) === 2) break;
  assert.deepEqual(seen, [{ type: "missed", missed: 3 }, { type: "tool.called", payload: {} }]);
  const last = await peer.frame();
  assert.deepEqual([last.type, last.subscriptionId], ["unsubscribe", "sub_1"]);
});

test("the next subscription ends the last and is not ended by it", async (t) => {
  const { gate, peer } = await pair(t);
  const one = gate.subscribe();
  await subscribed(peer, "sub_1");
  const two = gate.subscribe();
  await subscribed(peer, "sub_2");
  assert.deepEqual(await one.next(), { value: undefined, done: true });
  peer.send({ type: "event", subscriptionId: "sub_2", event: { type: "x" } });
  assert.deepEqual((await two.next()).value, { type: "x" });
  await peer.settle(gate); // the next request is this one, not an unsubscribe
});

test("a subscription that is refused is told to whoever reads, and nothing else ends", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe({ confirmer: true });
  peer.send({ type: "error", requestId: (await peer.frame()).requestId, code: "PROTOCOL_ERROR", message: "no" });
  await peer.settle(gate);
  await assert.rejects(events.next(), { code: "REQUEST_REFUSED", message: "no" });
  const again = gate.subscribe();
  assert.equal((await subscribed(peer, "s")).type, "subscribe"); // and not an unsubscribe
  peer.send({ type: "event", subscriptionId: "s", event: { type: "x" } });
  assert.deepEqual((await again.next()).value, { type: "x" });
});

test("events after the loop was left are passed over", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe();
  await subscribed(peer, "s");
  peer.send({ type: "event", subscriptionId: "s", event: { type: "x" } });
  for await (const _ of events) break;
  const late = JSON.stringify({ type: "event", subscriptionId: "s", event: { type: "late" } }) + "\n";
  peer.raw(late.repeat(10_010));
  await peer.settle(gate);
  const again = gate.subscribe();
  await subscribed(peer, "s2");
  peer.send({ type: "event", subscriptionId: "s2", event: { type: "y" } });
  assert.deepEqual((await again.next()).value, { type: "y" });
});

test("a subscription on a connection that was closed has ended", async (t) => {
  const { gate } = await pair(t);
  gate.close();
  assert.deepEqual(await gate.subscribe().next(), { value: undefined, done: true });
});

test("events that nobody reads are dropped and counted", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe();
  await subscribed(peer, "s");
  const one = JSON.stringify({ type: "event", subscriptionId: "s", event: { type: "x" } }) + "\n";
  peer.raw(one.repeat(10_007));
  await peer.settle(gate);
  for (let n = 0; n < 10_000; n++) assert.equal((await events.next()).value.type, "x");
  peer.raw(one);
  assert.deepEqual((await events.next()).value, { type: "missed", missed: 7 });
});

test("closing ends everything, and twice equals once", async (t) => {
  const { gate, peer } = await pair(t);
  const events = gate.subscribe();
  await subscribed(peer, "s");
  const read = events.next();
  const called = gate.call("shell");
  await peer.frame();
  gate.close();
  gate.close();
  assert.deepEqual(await read, { value: undefined, done: true });
  await assert.rejects(called, { code: "INSTANCE_GONE", reason: "closed", mayHaveRun: true });
  await assert.rejects(gate.tools(), { code: "INSTANCE_GONE", reason: "closed", mayHaveRun: false });
});

test("where nobody listens, the error says how to start an instance", async () => {
  const isNoInstance = (error) =>
    error instanceof CallgateError && error.code === "NO_INSTANCE" && /callgate serve/.test(error.message);
  await assert.rejects(connect({ home: "/nonexistent" }), isNoInstance);
  await assert.rejects(connect({ home: "/nonexistent", instance: 1 }), isNoInstance);
  await assert.rejects(connect({ socket: "/nonexistent/s.sock" }), isNoInstance);
});
