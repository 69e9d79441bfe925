// A server in the test's hands: it reads requests and sends whatever bytes the test likes.

import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { connect } from "../callgate.mjs";

// A gate and the other end of its connection; both are gone when the test ends.
export async function pair(t, options = {}) {
  const directory = mkdtempSync(join(tmpdir(), "cg"));
  const path = join(directory, "s.sock");
  const server = createServer().listen(path);
  await once(server, "listening");
  const came = once(server, "connection");
  const gate = await connect({ socket: path, ...options });
  const [socket] = await came;
  t.after(() => {
    gate.close();
    socket.destroy();
    server.close();
    rmSync(directory, { recursive: true });
  });
  return { gate, peer: new Peer(socket) };
}

class Peer {
  constructor(socket) {
    this.socket = socket.on("error", () => {}); // a client that hung up
    this.lines = createInterface({ input: socket, crlfDelay: Infinity })[Symbol.asyncIterator]();
  }

  async line() {
    return (await this.lines.next()).value;
  }

  async frame() {
    return JSON.parse(await this.line());
  }

  raw(bytes) {
    this.socket.write(bytes);
  }

  send(frame) {
    this.raw(JSON.stringify({ protocol: 1, ...frame }) + "\n");
  }

  result(requestId, content) {
    this.send({ type: "tool_result", requestId, result: { ok: true, content } });
  }

  // Whatever was sent before has been read once this is answered.
  async settle(gate) {
    const listed = gate.tools();
    let frame;
    do frame = await this.frame();
    while (frame.type !== "list_tools");
    this.send({ type: "tools_list", requestId: frame.requestId, tools: [] });
    await listed;
  }
}
