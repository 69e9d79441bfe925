// Every method of the protocol and its parameters: those of a host, and those of the runtime.

export const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const isBoolean = (value) => typeof value === "boolean";
const isNull = (value) => value === null;
const isAnything = () => true;
const listOf = (is) => (value) => Array.isArray(value) && value.every(is);
const either = (one, other) => (value) => one(value) || other(value);
const textUpTo = (most) => (value) =>
  isText(value) && value !== "" && (value.length <= most || [...value].length <= most);
const isName = textUpTo(128);
const isPath = textUpTo(4_096);
const isEncoding = (value) => value === "utf-8" || value === "base64";

/** 1 to 128 printable ASCII characters. */
export const isId = (value) => isText(value) && /^[ -~]{1,128}$/.test(value);

// A field is needed, or filled with what `fill` makes, or left out. `of` reads it further.
const needed = (is) => ({ is, needed: true });
const filled = (is, fill) => ({ is, fill });
const maybe = (is, of) => ({ is, of });
const object = filled(isObject, () => ({}));
const state = object;

const Offer = { answers: needed(listOf(isName)) };
const CallContext = {
  session_id: needed(isText),
  turn_id: maybe(either(isText, isNull)),
  tool_use_id: needed(isText),
  workspace_path: needed(isText),
  scope: maybe((value) => isObject(value) && Object.values(value).every(isText)),
};

/** What the runtime asks of a host, by method. */
export const OF_HOST = new Map(Object.entries({
  init: { config: object, runtime: maybe(isObject, Offer) },
  get_tool_schemas: { state },
  execute_tool: {
    tool_name: needed(isName), arguments: object, state, context: maybe(isObject, CallContext),
  },
  get_config_schema: {},
  get_ui_elements: {},
  get_tags: { config: object, models: filled(listOf(isObject), () => []) },
  required_tags: {},
  format_tool_result: { state, result: needed(isObject) },
  format_tool_call_preview: { state, tool_name: needed(isName), arguments: object },
  to_display_format: { state, text: needed(isText), result: needed(isObject) },
  cancel: { id: needed(isId) },
}));

const asking = (fields) => ({ call: needed(isId), ...fields });
const path = needed(isPath);
const content = needed(isText);
const encoding = maybe(isEncoding);

/** What a host asks of the runtime, by method: its fields, and what the value of its answer is. */
export const OF_RUNTIME = new Map(Object.entries({
  read_file: { fields: asking({ path, encoding }), value: isText },
  write_file: { fields: asking({ path, content, encoding }), value: isAnything },
  append_file: { fields: asking({ path, content }), value: isAnything },
  patch_file: { fields: asking({ path, old: content, new: content }), value: isAnything },
  delete_file: { fields: asking({ path }), value: isAnything },
  file_exists: { fields: asking({ path }), value: isBoolean },
  list_files: { fields: asking({ path }), value: listOf(isText) },
  keep_artifact: { fields: asking({ name: needed(isName) }), value: either(isText, isNull) },
  is_cancelled: { fields: asking({}), value: isBoolean },
}));

/** The object with the named fields alone. Throws where one is missing or wrong. */
export function fit(value, fields) {
  if (!isObject(value)) throw new TypeError("an object is needed");
  const fitting = {};
  for (const [name, field] of Object.entries(fields)) {
    if (!Object.hasOwn(value, name)) {
      if (field.needed) throw new TypeError(`${name} is missing`);
      if (field.fill) fitting[name] = field.fill();
    } else if (!field.is(value[name])) throw new TypeError(`${name} is wrong`);
    else fitting[name] = field.of ? fit(value[name], field.of) : value[name];
  }
  return fitting;
}
