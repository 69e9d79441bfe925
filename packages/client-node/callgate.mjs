// Calls the tools of a running callgate over its local socket: `const gate = await connect()`.
// A call that is refused or fails is a result with `ok: false`. Only what happens between this
// program and the instance is an error, with a code: NO_INSTANCE, INSTANCE_GONE, REQUEST_REFUSED.

import { readFileSync, readdirSync, statSync } from "node:fs";
import { createConnection } from "node:net";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { Readable } from "node:stream";

const LONGEST = 8_388_608; // bytes of a line, without its newline
const PATIENCE = 15_000; // milliseconds in which there may be room for one more
const MOST_UNREAD = 10_000; // events of a subscription: those beyond are dropped and counted
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const attempt = (what, or) => { try { return what(); } catch (error) { return or?.(error); } };
const parse = (bytes) => attempt(() => JSON.parse(utf8.decode(bytes()))) ?? {};
const escape = (split) => "\\u" + split.charCodeAt(0).toString(16).padStart(4, "0");
const failed = (code, message) => ({ ok: false, meta: {}, error: { code, message } });

export class CallgateError extends Error {
  name = "CallgateError";
  constructor(code, message, more) { Object.assign(super(message), { code, ...more }); }
}

export async function connect({ socket, instance, home, cwd = ".", caller = "plugin" } = {}) {
  home = resolve((home || process.env.CALLGATE_HOME || "~/.callgate").replace(/^~\B/, homedir));
  const clientInfo = { caller, cwd: cwd == null ? undefined : resolve(cwd) };
  for (const path of socket == null ? socketsOf(home, instance) : [socket]) {
    try {
      if (![process.getuid(), 0].includes(statSync(path).uid)) continue; // another user's
      return gateOver(await reach(path, Date.now() + PATIENCE), clientInfo);
    } catch {} // nobody listens there
  }
  throw new CallgateError("NO_INSTANCE", `No \`callgate serve\` at ${socket ?? instance ?? home}`);
}

// A queue that is full has room again in a moment.
async function reach(path, until, pause = 5) {
  const link = createConnection({ path });
  const failure = await new Promise((done) => link.once("connect", done).on("error", done));
  if (!failure) return link;
  if (failure.code !== "EAGAIN" || Date.now() > until) throw failure;
  await new Promise((done) => setTimeout(done, pause));
  return reach(path, until, Math.min(pause * 2, 200));
}

// The live instances, newest first, then the one in the config file, then the usual place.
function socketsOf(home, instance) {
  const read = (...path) => parse(() => readFileSync(join(home, ...path)));
  const live = attempt(() => readdirSync(join(home, "instances")), () => [])
    .map((name) => ({ ...read("instances", name), pid: name.replace(/\.json$/, "") }))
    .filter(({ pid }) => attempt(() => process.kill(pid, 0))) // the dead leave theirs behind
    .sort((one, other) => (Number(other.startedAt) || 0) - (Number(one.startedAt) || 0));
  const named = live.filter(({ pid, label }) => [pid, label].includes(String(instance)));
  const others = [read("config.json"), { socketPath: join(home, "run", "callgate.sock") }];
  return (instance == null ? [...live, ...others] : named).map(({ socketPath }) => socketPath);
}

// One connection. Frames that are unknown or that nobody waits for are passed over.
function gateOver(socket, clientInfo) {
  const asked = new Map(); // by request id: who waits
  let [last, half, watching, closing, gone] = [0, "", undefined, "lost"];
  const ended = (mayHaveRun = false) =>
    new CallgateError("INSTANCE_GONE", `Connection ended: ${gone}.`, { reason: gone, mayHaveRun });
  const list = async (what, rest) => (await ask(`list_${what}`, `${what}_list`, rest))[what];
  const [tools, confirmations] = [() => list("tools", { clientInfo }), () => list("confirmations")];
  socket.on("data", read).on("close", () => end(closing));
  return { call, tools, subscribe, confirmations, answer, close: () => end("closed") };

  async function call(toolName, args = {}, { timeoutMs, signal, onEvent } = {}) {
    if (signal?.aborted) return failed("CANCELLED", "Cancelled before it was sent.");
    const id = `r${++last}`;
    const cancel = () => write("cancel_tool_call", {}, id);
    signal?.addEventListener("abort", cancel);
    try {
      const request = { toolName, arguments: args, clientInfo, timeoutMs };
      const { result } = await ask("tool_call", "tool_result", request, { id, hear: onEvent });
      return result ?? failed("PROTOCOL_ERROR", "The answer has no result.");
    } catch (error) {
      if (error?.code === "REQUEST_REFUSED") return failed("PROTOCOL_ERROR", error.message);
      cancel(); // for a listener that threw
      throw error;
    } finally {
      signal?.removeEventListener("abort", cancel);
    }
  }

  function answer(question, said) { // given the question itself: for the arguments that it shows
    const { id, argumentsSha256 } = typeof question === "string" ? { id: question } : question;
    const rest = { confirmationId: id, ...said, argumentsSha256 };
    return ask("answer_confirmation", "confirmation_result", rest);
  }

  function subscribe({ types, confirmer } = {}) { // asked for at once: no later call is missed
    const feed = new Readable({ objectMode: true, read() {} });
    const took = ({ subscriptionId: id }) => {
      watching?.push(null); // the next one ends the last
      watching = Object.assign(feed, { id, missed: 0 });
    };
    ask("subscribe", "subscribed", { types, confirmer }, { took })
      .catch((error) => Object.assign(feed, { error }).push(null)); // told to whoever reads
    return (async function* () {
      try { yield* feed; } finally { feed.id && write("unsubscribe", { subscriptionId: feed.id }); }
      if (gone !== "closed" && (gone || feed.error)) throw feed.error ?? ended();
    })();
  }

  function ask(type, final, rest, { id = `r${++last}`, hear, took } = {}) {
    return new Promise((resolve, reject) => {
      if (gone) throw ended();
      write(type, rest, id);
      const done = (settle) => (value) => { asked.delete(id); settle(value); };
      asked.set(id, { final, hear, took, give: done(resolve), fail: done(reject) });
    });
  }

  function write(type, rest, requestId = `r${++last}`) {
    const frame = { type, protocol: 1, requestId, ...rest };
    const line = attempt(() => JSON.stringify(frame).replace(/[\u0085\u2028\u2029]/g, escape));
    if (line && Buffer.byteLength(line) <= LONGEST) socket.write(line + "\n");
    else throw new CallgateError("REQUEST_REFUSED", "It is no JSON or has more than 8 MiB.");
  }

  function read(chunk) { // one character a byte, until a line is whole
    const lines = chunk.toString("latin1").split("\n");
    lines[0] = half + lines[0];
    if (lines[0].length > LONGEST) return end("unreadable");
    half = lines.pop();
    for (const line of lines) if (!gone) take(parse(() => Buffer.from(line, "latin1")));
  }

  function take(frame) {
    const { type, requestId, event, message, reason } = frame;
    const { final, hear, took, give, fail } = asked.get(requestId) ?? {};
    if (type === "closing") closing = String(reason);
    else if (type === "event") show(frame);
    else if (type === "tool_event") attempt(() => event && hear?.(event), fail);
    else if (type === "error" && requestId == null && asked.size) end("unreadable"); // to which?
    else if (type === "error") fail?.(new CallgateError("REQUEST_REFUSED", String(message)));
    else if (type === final) { took?.(frame); give?.(frame); }
  }

  function show({ subscriptionId, event, missed = 0 }) {
    if (!watching || watching.id !== subscriptionId) return;
    watching.missed += missed;
    if (watching.readableLength >= MOST_UNREAD) return void (watching.missed += 1);
    if (watching.missed) watching.push({ type: "missed", missed: watching.missed });
    if (event) watching.push(event);
    watching.missed = 0;
  }

  function end(reason) {
    if (gone) return;
    gone = reason;
    socket.destroy();
    for (const { final, fail } of asked.values()) fail(ended(final === "tool_result"));
    watching?.push(null);
  }
}
