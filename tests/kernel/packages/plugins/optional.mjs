// Has every optional method.

export default {
  init: () => ({}),
  get_tool_schemas: () => [
    { type: "function", function: { name: "one", description: "One.", parameters: { type: "object" } } },
    { type: "function", name: "two", description: "Two.", parameters: { type: "object" } },
    { name: "three", description: "Three.", input_schema: { type: "object" } },
    { name: "four", description: "Four.", inputSchema: { type: "object" } },
  ],
  execute_tool: ({ tool_name: name }) => ({ success: true, result: name }),
  get_config_schema: () => ({ type: "object", properties: { root: { type: "string" } } }),
  get_ui_elements: () => [{ kind: "button", label: "Go" }],
  get_tags: ({ config, models }) => [...Object.keys(config), ...models.map(({ id }) => id)],
  required_tags: () => ["vision"],
  format_tool_result: ({ result }) => `The result is ${result.result}.`,
  format_tool_call_preview: ({ tool_name: name, arguments: args }) => `${name} of ${args.path}`,
  to_display_format() {
    throw new Error("nothing to display");
  },
};
