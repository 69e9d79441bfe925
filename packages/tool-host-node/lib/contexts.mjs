// What a tool has at hand while it runs. The context is itself the `emit` of the protocol's text.

import { isObject } from "./frames.mjs";

const CALL = Symbol("call");

export function contextOf(call) {
  const context = (event) => call.emit(event);
  context[CALL] = call;
  return Object.setPrototypeOf(context, Context);
}

const part = (payload) => ({ type: "part", payload });
const given = (fields) =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value != null));

// Getters give functions that need no `this`, so that `({ emit, files }) => ...` works.
const Context = {
  get emit() { return (event) => this[CALL].emit(event); },
  get progress() {
    return (message, fraction) => this[CALL].emit(part({ progress: given({ message, fraction }) }));
  },
  get log() {
    return (message, level = "info") => this[CALL].emit(part({ log: { level, message } }));
  },
  get output() { return (text, stream = "text") => this[CALL].emit(part({ text, stream })); },
  get signal() { return this[CALL].signal; },
  get state() { return this[CALL].state; },
  set state(state) {
    if (!isObject(state)) throw new TypeError("the state is an object");
    this[CALL].state = state;
  },
  get callId() { return this[CALL].id; },
  get sessionId() { return this[CALL].about.session_id; },
  get turnId() { return this[CALL].about.turn_id ?? undefined; },
  get toolUseId() { return this[CALL].about.tool_use_id; },
  get workspacePath() { return this[CALL].about.workspace_path; },
  get scope() { return this[CALL].about.scope ?? {}; },
  get files() { return filesOf(this[CALL]); },
  get offers() { return (method) => this[CALL].offers(method); },
  get keepArtifact() { return (name) => this[CALL].ask("keep_artifact", { name }); },
  get isCancelled() {
    return async () => {
      const call = this[CALL];
      if (call.signal.aborted || !call.offers("is_cancelled")) return call.signal.aborted;
      return call.ask("is_cancelled", {});
    };
  },
};

function filesOf(call) {
  const done = async (method, params) => void (await call.ask(method, params));
  return {
    read: (path) => call.ask("read_file", { path }),
    readBytes: async (path) =>
      Buffer.from(await call.ask("read_file", { path, encoding: "base64" }), "base64"),
    write: (path, content) => done("write_file", { path, ...coded(content) }),
    append: (path, content) => done("append_file", { path, content }),
    patch: (path, old, text) => done("patch_file", { path, old, new: text }),
    delete: (path) => done("delete_file", { path }),
    exists: (path) => call.ask("file_exists", { path }),
    list: (path = ".") => call.ask("list_files", { path }),
  };
}

function coded(content) {
  if (!(content instanceof Uint8Array)) return { content };
  return { content: Buffer.from(content).toString("base64"), encoding: "base64" };
}
