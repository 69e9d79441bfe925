/** Types for the authors of plugins: `export default { ... } satisfies Tool`. */

export type JsonObject = Record<string, unknown>;

/** What a module exports by default; a class of one of these, or a function that gives one. */
export type Plugin = Tool | Tool[] | ToolSet | ProtocolPlugin;

/** One tool. */
export interface Tool<Arguments = any> {
  name: string;
  description?: string;
  /** JSON Schema of the arguments, which fit it when `run` gets them. */
  inputSchema?: JsonObject;
  /**
   * Anything that can be written as JSON, or `{success: false, error: "..."}` for a failure that
   * the tool saw itself. What is thrown fails this call: its message is shown to whoever called.
   */
  run(args: Arguments, context: Context): unknown;
  /** One line for the person who is asked whether the call may run. */
  preview?(args: Arguments, context: Context): string | null | Promise<string | null>;
}

/** Several tools, with whatever optional methods they share. */
export interface ToolSet extends OptionalMethods {
  tools: Tool[];
  /** Gives the first state of every session. */
  init?(params: InitParams, context: Context): unknown;
}

/** The methods of the protocol themselves. Each may also be written in camelCase. */
export interface ProtocolPlugin extends OptionalMethods {
  init?(params: InitParams, context: Context): unknown;
  get_tool_schemas(params: { state: JsonObject }, context: Context): unknown;
  /** Change `params.state`, or assign `context.state`, and the session gets it with its next call. */
  execute_tool(params: ExecuteParams, context: Context): unknown;
}

export interface OptionalMethods {
  get_config_schema?(params: {}, context: Context): unknown;
  get_ui_elements?(params: {}, context: Context): unknown;
  get_tags?(params: { config: JsonObject; models: JsonObject[] }, context: Context): unknown;
  required_tags?(params: {}, context: Context): unknown;
  format_tool_result?(params: { result: JsonObject; state: JsonObject }, context: Context): unknown;
  format_tool_call_preview?(
    params: { tool_name: string; arguments: JsonObject; state: JsonObject },
    context: Context,
  ): unknown;
  to_display_format?(
    params: { text: string; result: JsonObject; state: JsonObject },
    context: Context,
  ): unknown;
  /** Beside `context.signal`, which is aborted first. */
  cancel?(params: { id: string }, context: Context): unknown;
}

export interface InitParams {
  config: JsonObject;
  runtime?: { answers: string[] };
}

export interface ExecuteParams {
  tool_name: string;
  arguments: JsonObject;
  state: JsonObject;
}

/** What goes on while a call runs. `part` is passed on, anything else goes to the log. */
export interface Event {
  type: "part" | (string & {});
  payload?: unknown;
}

/** Everything in here can be taken out: `run(args, { signal, files })`. */
export interface Context {
  /** The same as `emit`, for `execute_tool(params, emit)`. */
  (event: Event): boolean;
  /** Whether it was sent: after the call's answer it is not. Throws what is no event or no JSON. */
  emit(event: Event): boolean;
  progress(message?: string | null, fraction?: number): boolean;
  log(message: string, level?: string): boolean;
  output(text: string, stream?: "stdout" | "stderr" | "text"): boolean;
  /** Aborted when the call is cancelled or the runtime is gone. */
  readonly signal: AbortSignal;
  /** What the session's last call left. Change it or assign it; a call that fails leaves it alone. */
  state: JsonObject;
  readonly callId: string;
  /** These five are undefined or empty with a runtime that answers no requests. */
  readonly sessionId?: string;
  readonly turnId?: string;
  readonly toolUseId?: string;
  readonly workspacePath?: string;
  readonly scope: Record<string, string>;
  /** The session's workspace, by the runtime's rules. */
  readonly files: Files;
  /** A path for output too large to show, or null. */
  keepArtifact(name: string): Promise<string | null>;
  isCancelled(): Promise<boolean>;
  /** Whether the runtime answers a method, as `read_file`. */
  offers(method: string): boolean;
}

/**
 * Each rejects with an Error whose `name` is the runtime's word (PermissionDenied, NotFound, ...),
 * or NotOffered where the runtime does not answer it.
 */
export interface Files {
  read(path: string): Promise<string>;
  readBytes(path: string): Promise<Uint8Array>;
  write(path: string, content: string | Uint8Array): Promise<void>;
  append(path: string, content: string): Promise<void>;
  patch(path: string, old: string, text: string): Promise<void>;
  delete(path: string): Promise<void>;
  exists(path: string): Promise<boolean>;
  list(path?: string): Promise<string[]>;
}
