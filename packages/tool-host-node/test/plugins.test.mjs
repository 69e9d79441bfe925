// A plugin in every shape and place, in a real process.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const HOST = fileURLToPath(new URL("../host.mjs", import.meta.url));

// A directory with these files, and a host in it whose stdin ends when all is answered.
async function run(t, files, plugin, requests = [["get_tool_schemas"], call("one")]) {
  const home = mkdtempSync(join(tmpdir(), "host-"));
  t.after(() => rmSync(home, { recursive: true }));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(home, name)), { recursive: true });
    writeFileSync(join(home, name), text);
  }
  const host = spawn(process.execPath, [HOST, ...[plugin].flat()], { cwd: home });
  let [out, err] = ["", ""];
  host.stdout.on("data", (data) => {
    out += data;
    if (out.split("\n").length > requests.length) host.stdin.end();
  });
  host.stderr.on("data", (data) => { err += data; });
  host.stdin.on("error", () => {}); // it may be gone already
  const line = ([method, params], n) => `${JSON.stringify({ v: 1, id: `${n}`, method, params })}\n`;
  host.stdin.write(requests.map(line).join(""));
  const code = await new Promise((resolve) => host.on("close", resolve));
  const answers = out.split("\n").slice(0, -1).map((each) => JSON.parse(each));
  const byId = Object.fromEntries(answers.filter(({ ok }) => ok !== undefined).map((each) => [each.id, each]));
  return { code, err, answers: requests.map((_, n) => byId[n]) };
}

const call = (name, args = {}) => ["execute_tool", { tool_name: name, arguments: args }];
const tool = (name) => `{name: "${name}", description: "D", inputSchema: {type: "object"}, run: () => "${name} ran"}`;
const methods = `get_tool_schemas() { return [{name: "one", description: "D", input_schema: {type: "object"}}]; }
  execute_tool({tool_name}) { return {success: true, result: this.said(tool_name)}; }`;
const camel = methods.replace("get_tool_schemas", "getToolSchemas").replace("execute_tool", "executeTool");

const SHAPES = {
  "a tool": `export default ${tool("one")};`,
  "a list of tools": `export default [${tool("one")}];`,
  "tools in an object": `export default {tools: [${tool("one")}]};`,
  "tools by name": `export const a = ${tool("one")};`,
  "classes of tools": `export default [class { name = "one"; description = "D"; inputSchema = {type: "object"}; #r = "one ran"; run() { return this.#r; } }];`,
  "an object of methods": `export default {said: (name) => name + " ran", ${methods.replace("}\n", "},\n")}};`,
  "a class of methods": `export default class { #ran = " ran"; said(name) { return name + this.#ran; } ${methods} }`,
  "methods in camelCase": `export default class { said(name) { return name + " ran"; } ${camel} }`,
  "methods by name": `const said = () => "one ran"; export const get_tool_schemas = () => [{name: "one", description: "D", input_schema: {type: "object"}}];
    export const execute_tool = ({tool_name}) => ({success: true, result: said()});`,
  "a function that gives tools": `export default async () => ({tools: [${tool("one")}]});`,
  "a tool after a top-level await": `await new Promise(setImmediate); export default ${tool("one")};`,
};
const LISTED = [{ name: "one", description: "D", input_schema: { type: "object" } }];

async function works(t, files, plugin) {
  const { code, err, answers } = await run(t, files, plugin);
  assert.equal(code, 0, err);
  assert.deepEqual(answers[0]?.result?.value, LISTED);
  assert.deepEqual(answers[1]?.result?.value, { success: true, result: "one ran" });
}

for (const [name, text] of Object.entries(SHAPES)) {
  test(`a plugin is ${name}`, { concurrency: 2 }, (t) => works(t, { "p.mjs": text }, "p.mjs"));
}

const esm = `export default ${tool("one")};`;
const cjs = `module.exports = ${tool("one")};`;
const compiled = `Object.defineProperty(exports, "__esModule", {value: true}); exports.default = ${tool("one")};`;
const PLACES = {
  "a CommonJS file": [{ "p.cjs": cjs }, "p.cjs"],
  "a file compiled to CommonJS": [{ "p.cjs": compiled }, "./p.cjs"],
  "a directory with dist": [{ "p/dist/index.js": cjs }, "p"],
  "a package with main": [{ "p/package.json": '{"main": "lib/m", "type": "module"}', "p/lib/m.js": esm }, "./p"],
  "a package with exports": [
    { "p/package.json": '{"main": "no.js", "exports": {".": {"types": "./t.d.ts", "import": "./e.mjs"}}}', "p/e.mjs": esm }, "p",
  ],
  "an installed package": [{ "node_modules/tool-p/package.json": '{"exports": "./e.mjs"}', "node_modules/tool-p/e.mjs": esm }, "tool-p"],
  "a file of a scoped package": [{ "node_modules/@a/b/e.mjs": esm }, "@a/b/e.mjs"],
};

for (const [name, [files, plugin]] of Object.entries(PLACES)) {
  test(`a plugin is in ${name}`, (t) => works(t, files, plugin));
}

const UNUSABLE = {
  "it is nowhere": [{}, "no-such-plugin"],
  "it does not parse": [{ "p.mjs": "export default {" }, "p.mjs"],
  "it throws": [{ "p.mjs": "throw new Error('not today')" }, "p.mjs"],
  "it exports nothing": [{ "p.mjs": "export const a = 1;" }, "p.mjs"],
  "it has two tools of one name": [{ "p.mjs": `export default [${tool("one")}, ${tool("one")}];` }, "p.mjs"],
  "a tool has no name": [{ "p.mjs": "export default [{run() {}}];" }, "p.mjs"],
  "a tool is no tool": [{ "p.mjs": "export default {tools: [7]};" }, "p.mjs"],
  "a directory is empty": [{ "p/x": "" }, "p"],
  "nobody can run the file": [{ "p.coffee": "x" }, "p.coffee"],
};

for (const [name, [files, plugin]] of Object.entries(UNUSABLE)) {
  test(`a host exits with 1 and says why: ${name}`, async (t) => {
    const { code, err, answers } = await run(t, files, plugin);
    assert.deepEqual([code, answers], [1, [undefined, undefined]]);
    assert.match(err, /^callgate-tool-host: cannot use /);
  });
}

test("TypeScript runs, or is refused in words", async (t) => {
  const { code, err } = await run(t, { "p.ts": `const a: number = 1; export default ${tool("one")};` }, "p.ts");
  if (process.features.typescript) assert.equal(code, 0);
  else assert.match(err, /compile it to JavaScript first/);
});

test("a host called wrongly exits with 2", async (t) => {
  assert.equal((await run(t, {}, [])).code, 2);
  assert.equal((await run(t, {}, ["a", "b"])).code, 2);
});

test("a tool's preview is the plugin's", async (t) => {
  const text = `export default [{name: "one", preview: ({a}) => "one " + a, run() {}}, {name: "two", run() {}}];`;
  const preview = (name) => ["format_tool_call_preview", { tool_name: name, arguments: { a: 1 } }];
  const { answers } = await run(t, { "p.mjs": text }, "p.mjs", [preview("one"), preview("two")]);
  assert.deepEqual(answers.map(({ result }) => result.value), ["one 1", null]);
});

const STRAY = {
  "a timer": "setTimeout(() => { throw new Error('stray') })",
  "a promise that nobody awaits": "Promise.reject(new Error('stray'))",
  "an event that nobody handles": "setImmediate(() => new EventEmitter().emit('error', new Error('stray')))",
};

for (const [name, code] of Object.entries(STRAY)) {
  test(`what ${name} throws fails its call alone, and the host goes on`, async (t) => {
    const text = `import {EventEmitter} from "node:events";
      let done; const other = new Promise((resolve) => { done = resolve; });
      export default [
        {name: "stray", run(_, {signal}) { signal.addEventListener("abort", () => done("aborted")); ${code}; return new Promise(() => {}); }},
        {name: "other", run: () => other},
      ];`;
    const { code: exit, err, answers } = await run(t, { "p.mjs": text }, "p.mjs", [call("other"), call("stray")]);
    assert.equal(exit, 0);
    assert.match(err, /stray/);
    assert.deepEqual(answers[0].result?.value, { success: true, result: "aborted" });
    assert.equal(answers[1].error?.detail, "stray");
  });
}

test("what is thrown outside of any call fails those under way", async (t) => {
  const text = `let go; const gone = new Promise((resolve) => { go = resolve; });
    gone.then(() => setImmediate(() => { throw new Error("stray"); }));
    export default {name: "one", run() { go(); return new Promise(() => {}); }};`;
  const { answers } = await run(t, { "p.mjs": text }, "p.mjs", [call("one"), call("one")]);
  assert.deepEqual(answers.map(({ error }) => error?.detail), ["stray", "stray"]);
});

test("whatever is thrown is told", async (t) => {
  const thrown = ["null", "undefined", "'text'", "7", "{a: 1}", "Object.create(null)",
    "{get message() { throw 1 }}", "{message: 'm'}", "Object.assign(new Error('\\ud800'), {name: 5})"];
  const text = `export default [${thrown.map((each, n) => `{name: "t${n}", run() { throw ${each}; }}`)}];`;
  const { answers } = await run(t, { "p.mjs": text }, "p.mjs", thrown.map((_, n) => call(`t${n}`)));
  const details = answers.map(({ error }) => error.detail);
  assert.deepEqual(details, ["null", "undefined", "text", "7", "{ a: 1 }", "[Object: null prototype] {}",
    "What was thrown cannot be shown.", "m", "\ufffd"]);
  assert.deepEqual(new Set(answers.map(({ error }) => error.type)), new Set(["Error"]));
});
