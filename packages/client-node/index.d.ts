/** Calls the tools of a running callgate over its local socket. */

export interface ConnectOptions {
  /** Where the instance listens. Beats `instance`. */
  socket?: string;
  /** Its pid or its label. Without, the newest. */
  instance?: string | number;
  /** callgate's own directory; by default `CALLGATE_HOME`, else `~/.callgate`. */
  home?: string;
  /** The directory to work in, which the instance must serve; null means its own. */
  cwd?: string | null;
  caller?: "cli" | "plugin";
}

/** Rejects with NO_INSTANCE where nobody listens. */
export function connect(options?: ConnectOptions): Promise<Gate>;

/** One connection, with a session of its own in the instance. Made by `connect`. */
export interface Gate {
  /**
   * Run one tool. Refusals and failures come back in the result; a request that the instance does
   * not take, or of more than 8 MiB, with the code PROTOCOL_ERROR.
   */
  call(tool: string, args?: Record<string, unknown>, options?: CallOptions): Promise<ToolResult>;
  /** The tools of this directory; none where the instance does not serve it. */
  tools(): Promise<ToolDescriptor[]>;
  /**
   * What happens in this session from now on. One at a time: the next subscription ends the last.
   * Ends after `close`; throws INSTANCE_GONE if the instance goes away.
   */
  subscribe(options?: SubscribeOptions): AsyncGenerator<GateEvent | Missed, void, void>;
  /** The questions about our calls that wait for an answer. */
  confirmations(): Promise<Question[]>;
  /** The first answer wins. Given the question itself, it is for the arguments that this shows. Only a no is taken. */
  answer(question: Question | string, said: Answer): Promise<Receipt>;
  /** Hang up: the instance ends the calls that are under way. Twice equals once. */
  close(): void;
}

export interface CallOptions {
  /** From 1 to 86 400 000; by default the tool's own limit. */
  timeoutMs?: number;
  /** Stops the call, which then resolves with the code CANCELLED. */
  signal?: AbortSignal;
  /** What the tool says while it works. If this throws, the call is stopped and rejects with it. */
  onEvent?: (event: ToolEvent) => void;
}

export interface ToolResult {
  ok: boolean;
  content?: unknown;
  meta?: Record<string, unknown>;
  diagnostics?: { level: string; message: string }[];
  error?: { code: ErrorCode | (string & {}); message: string; details?: unknown };
}

export type ErrorCode =
  | "UNKNOWN_TOOL"
  | "VALIDATION_ERROR"
  | "PERMISSION_DENIED"
  | "TIMEOUT"
  | "TOOL_FAILED"
  | "RUNTIME_SHUTTING_DOWN"
  | "CANCELLED"
  | "PROTOCOL_ERROR";

export type ToolEvent =
  | { kind: "progress"; message?: string; fraction?: number }
  | { kind: "log"; level: string; message: string }
  | { kind: "partial_text"; text: string; stream?: string }
  | { kind: "artifact"; mimeType: string; name?: string; dataBase64?: string; path?: string }
  | { kind: "part"; part: unknown };

export interface ToolDescriptor {
  name: string;
  description: string;
  inputSchema: Record<string, unknown>;
  capabilities: string[];
  sideEffects?: string;
  timeoutMs?: number;
  tags?: string[];
  annotations?: Record<string, boolean>;
}

export interface SubscribeOptions {
  /** Only these events; by default all. */
  types?: string[];
  /** A person answers elsewhere, so calls that need an answer wait for it. */
  confirmer?: boolean;
}

export interface GateEvent {
  id: string;
  timestamp: number;
  sessionId: string;
  turnId?: string;
  parentEventId?: string;
  type: string;
  actor: string;
  payload: Record<string, unknown>;
  sensitivity?: string;
}

/** So many events were dropped here because they were not read in time. */
export interface Missed {
  type: "missed";
  missed: number;
}

/** Its texts are not trusted: show them escaped. */
export interface Question {
  id: string;
  callId: string;
  toolUseId: string;
  sessionId: string;
  turnId?: string;
  tool: string;
  sideEffects: string;
  destructive: boolean;
  arguments: Record<string, unknown>;
  argumentsSha256: string;
  workspace: string;
  why: string;
  inputSummary: string;
  preview?: string;
  projectedModifications?: string[];
  commandSummary?: string;
  sandbox?: string;
  caller?: string;
  /** Who asks, as the instance found it; only `name` is the client's own word. */
  client?: { process?: number; program?: string; directory?: string; address?: string; name?: string };
  /** Without it, `preview` is the tool's own word for what it will do. */
  previewIsOurs?: boolean;
  /** Only an answer to this very question counts. */
  alwaysAsk?: boolean;
  expiresAt: number;
}

export interface Answer {
  decision: "allow" | "deny" | "always-allow-this-tool";
  scope?: "once" | "run" | "destination" | "session" | "always";
  /** With scope `always`: the rule to save. */
  pattern?: string;
  reason?: string;
  /** To run in place of those asked about; they go through every check again. */
  arguments?: Record<string, unknown>;
}

/** `applied: false`: someone else was first, and the rest is theirs. */
export interface Receipt {
  applied: boolean;
  decision?: string;
  scope?: string;
  by?: string;
}

export class CallgateError extends Error {
  code: "NO_INSTANCE" | "INSTANCE_GONE" | "REQUEST_REFUSED";
  /** Of INSTANCE_GONE: closed (by us), lost, unreadable, or what the instance said. */
  reason?: string;
  /** Of INSTANCE_GONE: whether this call was sent. */
  mayHaveRun?: boolean;
}
