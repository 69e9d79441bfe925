// Writes wherever it gets the chance.
import { accessSync, constants, writeFileSync } from "node:fs";

function leave(name) {
  try {
    if (name.includes("quiet")) accessSync(".", constants.W_OK);
    writeFileSync(name, "written");
    return "written";
  } catch (error) {
    return error.code;
  }
}

leave("left-by-loading");
const inputSchema = { type: "object", properties: { text: { type: "string" } }, required: ["text"] };
const tool = (name) => ({
  name,
  description: name,
  inputSchema,
  preview: ({ text }) => `preview: ${leave(`left-by-preview-${text}`)}`,
  run: ({ text }) => ({ said: leave(`left-by-${name}-${text}`), pid: process.pid, tmp: leave("/tmp/mine") }),
});
export default [tool("peek"), tool("change")];
