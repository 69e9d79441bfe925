// Drives an agent with the official TypeScript SDK, and prints what it saw as JSON.
//
//     node drive.mjs SDK WORKSPACE COMMAND...
//
// The SDK checks what it receives against its own schema; what it does not understand is an error.

import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const [sdk, workspace, command, ...args] = process.argv.slice(2);
const acp = await import(sdk);

const saw = { updates: {}, asked: [], written: {}, complaints: [] };
for (const name of ["error", "warn"]) console[name] = (...said) => saw.complaints.push(said.map(String).join(" "));

const terminals = new Map();
let begun;
const running = new Promise((resolve) => (begun = resolve));

const client = acp
  .client({ name: "drive" })
  .onNotification(acp.methods.client.session.update, ({ params }) => {
    (saw.updates[params.sessionId] ??= []).push(params.update);
  })
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
    saw.asked.push(params.toolCall.title);
    const option = params.options.find((each) => each.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: option.optionId } };
  })
  .onRequest(acp.methods.client.fs.readTextFile, ({ params }) => {
    if (!(params.path in saw.written)) throw new acp.RequestError(-32002, "Resource not found");
    return { content: saw.written[params.path] };
  })
  .onRequest(acp.methods.client.fs.writeTextFile, ({ params }) => {
    saw.written[params.path] = params.content;
    return {};
  })
  .onRequest(acp.methods.client.terminal.create, ({ params }) => {
    const child = spawn(params.command, params.args ?? [], { cwd: params.cwd });
    const terminal = { child, output: "" };
    terminal.exit = new Promise((resolve) =>
      child.on("close", (exitCode, signal) => resolve((terminal.status = { exitCode, signal }))));
    child.stdout.on("data", (data) => {
      terminal.output += data;
      if (terminal.output.includes("begun")) begun();
    });
    terminals.set(`t${terminals.size}`, terminal);
    return { terminalId: `t${terminals.size - 1}` };
  })
  .onRequest(acp.methods.client.terminal.waitForExit, ({ params }) => terminals.get(params.terminalId).exit)
  .onRequest(acp.methods.client.terminal.output, ({ params }) => {
    const { output, status } = terminals.get(params.terminalId);
    return { output, truncated: false, ...(status ? { exitStatus: status } : {}) };
  })
  .onRequest(acp.methods.client.terminal.kill, ({ params }) => {
    terminals.get(params.terminalId).child.kill("SIGKILL");
    return {};
  })
  .onRequest(acp.methods.client.terminal.release, ({ params }) => {
    const terminal = terminals.get(params.terminalId);
    terminal.child.kill("SIGKILL");
    terminal.released = true;
    return {};
  });

const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => agent.on("exit", resolve));
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));

await client.connectWith(stream, async (agent) => {
  const { agent: methods } = acp.methods;
  const session = methods.session;
  const clientCapabilities = { fs: { readTextFile: true, writeTextFile: true }, terminal: true };
  saw.initialized = await agent.request(methods.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities });
  const made = await agent.request(session.new, { cwd: workspace, mcpServers: [] });
  const sessionId = made.sessionId;
  saw.modes = made.modes.availableModes.map((each) => each.id);
  const prompt = (text) => agent.request(session.prompt, { sessionId, prompt: [{ type: "text", text }] });

  saw.prompted = await prompt("Write it down.");
  saw.mode = await agent.request(session.setMode, { sessionId, modeId: "write" });
  saw.ran = await prompt('/tool shell {"command": "echo in the terminal"}');
  const cancelled = prompt('/tool shell {"command": "echo begun; exec sleep 1000"}');
  await running;
  await agent.notify(session.cancel, { sessionId });
  saw.cancelled = await cancelled;
  saw.unknown = await agent.request(session.prompt, { sessionId: "nobody", prompt: [] }).catch((error) => error.code);

  saw.live = saw.updates[sessionId];
  await agent.request(session.close, { sessionId });
  saw.updates[sessionId] = [];
  await agent.request(session.load, { sessionId, cwd: workspace, mcpServers: [] });
  saw.replayed = saw.updates[sessionId].slice();
  await agent.request(session.close, { sessionId });
  saw.updates[sessionId] = [];
  await agent.request(session.resume, { sessionId, cwd: workspace, mcpServers: [] });
  saw.resumed = saw.updates[sessionId].slice();
  saw.listed = (await agent.request(session.list, { cwd: workspace })).sessions.map((each) => each.sessionId === sessionId);
});
agent.stdin.end();
saw.exit = await ended;
saw.released = [...terminals.values()].map((each) => Boolean(each.released));
delete saw.updates;
process.stdout.write(JSON.stringify(saw));
