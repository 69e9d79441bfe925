// Prints by every means there is, also lines that look like the protocol's.

import { execSync } from "node:child_process";
import { writeFileSync, writeSync } from "node:fs";

const forged = (id) => JSON.stringify({ v: 1, id, ok: true, result: { value: "forged" } });

function shout(id) {
  console.log(forged(id));
  process.stdout.write(`${forged(id)}\n`);
  writeSync(1, `${forged(id)}\n`);
  writeFileSync("/dev/stdout", `${forged(id)}\n`);
  execSync(`echo '${forged(id)}'`, { stdio: "inherit" });
  console.error("to stderr");
}

shout("1");

export default class {
  init() {
    shout("1");
    return {};
  }

  get_tool_schemas() {
    shout("2");
    return [{ name: "shout", description: "Prints.", inputSchema: { type: "object" } }];
  }

  execute_tool(params, { callId }) {
    shout(callId);
    const heard = execSync("cat", { stdio: ["inherit", "pipe", "inherit"] }).toString();
    return { success: true, result: heard };
  }
}
