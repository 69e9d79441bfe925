// The methods of a plugin, out of the shapes in which plugins are written.
//
//     an object or class with the protocol's methods (execute_tool or executeTool, and so on)
//     {name, description, inputSchema, run(arguments, context)}     one tool
//     {tools: [...]}, a list of tools, or a module that exports tools
//
// Required methods that a plugin lacks are made from its tools. Optional ones are its own.

import { isObject, OF_HOST } from "./frames.mjs";
import { Refusal } from "./refusals.mjs";

const isFunction = (value) => typeof value === "function";
const isTool = (value) =>
  isObject(value) && isFunction(value.run) && !ownName(value, "execute_tool");

/** By name: each method that the plugin has, as a function of (params, context). */
export async function methodsOf(exported) {
  const { plugin, tools } = await pluginOf(exported);
  const methods = new Map();
  if (tools) derive(toolsOf(tools), methods);
  for (const name of OF_HOST.keys()) {
    const own = ownName(plugin, name);
    if (own) methods.set(name, (params, context) => plugin[own](params, context));
  }
  const lacking = ["execute_tool", "get_tool_schemas"].filter((name) => !methods.has(name));
  if (lacking.length) throw new Error(`it has no tools, and no ${lacking.join(" and no ")}`);
  if (!methods.has("init")) methods.set("init", () => ({}));
  return methods;
}

async function pluginOf(exported) {
  const inner = exported.default?.__esModule ? exported.default : exported; // compiled to CommonJS
  const found = await made(inner.default);
  if (isTool(found)) return { plugin: found, tools: [found] };
  const plugin = isObject(found) ? found : inner;
  const list = Array.isArray(found) ? found : plugin.tools;
  if (Array.isArray(list)) return { plugin, tools: await Promise.all(list.map(made)) };
  const named = Object.values(inner).filter(isTool);
  return { plugin, tools: plugin === inner && named.length ? named : undefined };
}

// A class is instantiated, any other function called.
async function made(value) {
  if (!isFunction(value)) return value;
  return value.prototype ? new value() : await value();
}

function toolsOf(list) {
  const tools = new Map();
  for (const tool of list) {
    const name = tool?.name;
    if (!isTool(tool)) throw new Error("a tool has a name and a function run");
    if (typeof name !== "string" || !name) throw new Error("a tool has no name");
    if (tools.has(name)) throw new Error(`two tools have the name ${name}`);
    tools.set(name, tool);
  }
  return tools;
}

function derive(tools, methods) {
  methods.set("get_tool_schemas", () => [...tools.values()].map(schemaOf));
  methods.set("execute_tool", async (params, context) => {
    const tool = toolOf(tools, params);
    const result = (await tool.run(params.arguments, context)) ?? null;
    return typeof result?.success === "boolean" ? result : { success: true, result };
  });
  if (![...tools.values()].some(({ preview }) => isFunction(preview))) return;
  methods.set("format_tool_call_preview", (params, context) =>
    toolOf(tools, params).preview?.(params.arguments, context));
}

function toolOf(tools, { tool_name: name }) {
  const tool = tools.get(name);
  if (tool) return tool;
  throw new Refusal("UnknownTool", `There is no tool ${name}.`);
}

function schemaOf(tool) {
  const { name, description = "", "x-capabilities": capabilities } = tool;
  const input = tool.inputSchema ?? tool.input_schema ?? tool.parameters ?? { type: "object" };
  return { name, description, input_schema: input, "x-capabilities": capabilities };
}

function ownName(plugin, name) {
  return [name, camelCase(name)].find((each) => isFunction(plugin[each]));
}

const camelCase = (name) => name.replace(/_./g, ([, letter]) => letter.toUpperCase());
