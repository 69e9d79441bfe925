// An agent made with the official TypeScript SDK, which does all that a client offers.
//
//     node sdk_agent.mjs SDK

import { Readable, Writable } from "node:stream";

const acp = await import(process.argv[2]);
const { agent: ours, client: theirs } = acp.methods;
let cwd;

acp
  .agent({ name: "sdk" })
  .onRequest(ours.initialize, ({ params }) => ({
    protocolVersion: params.protocolVersion,
    agentCapabilities: {},
    agentInfo: { name: "sdk", version: "1" },
  }))
  .onRequest(ours.session.new, ({ params }) => {
    cwd = params.cwd;
    return { sessionId: "sdk-1" };
  })
  .onRequest(ours.session.prompt, async ({ params: { sessionId }, client }) => {
    const path = `${cwd}/a.txt`;
    const update = (fields) => client.notify(theirs.session.update, { sessionId, update: fields });
    await update({ sessionUpdate: "tool_call", toolCallId: "c1", title: "Edit", kind: "edit", status: "pending" });
    const { outcome } = await client.request(theirs.session.requestPermission, {
      sessionId,
      toolCall: { toolCallId: "c1", rawInput: { path, content: "sdk\n" } },
      options: [
        { optionId: "y", name: "Yes", kind: "allow_once" },
        { optionId: "n", name: "No", kind: "reject_once" },
      ],
    });
    const said = [outcome.optionId ?? "cancelled"];
    await client.request(theirs.fs.writeTextFile, { sessionId, path, content: "sdk\n" });
    said.push((await client.request(theirs.fs.readTextFile, { sessionId, path })).content);
    const create = { sessionId, command: "cat", args: ["a.txt"], cwd };
    const { terminalId } = await client.request(theirs.terminal.create, create);
    said.push((await client.request(theirs.terminal.waitForExit, { sessionId, terminalId })).exitCode);
    said.push((await client.request(theirs.terminal.output, { sessionId, terminalId })).output);
    await client.request(theirs.terminal.release, { sessionId, terminalId });
    await update({ sessionUpdate: "tool_call_update", toolCallId: "c1", status: "completed" });
    await update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: said.join("|") } });
    return { stopReason: "end_turn" };
  })
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
