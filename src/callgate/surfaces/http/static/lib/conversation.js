// A session as a conversation: what was said and which calls were made, from its events.
//
// It is a fold over the events, so a replay is the same fold over the first few of them.
// What a call was made with and what came back stands in the messages, by its id.

const LONGEST_OUTPUT = 20_000;

export function readConversation(events, messages) {
  const told = { items: [], calls: new Map(), turn: null };
  const said = readMessages(messages);
  for (const event of events) FOLD[event.type]?.(told, event, said);
  return told;
}

function readMessages(messages) {
  const said = { prompts: [], uses: new Map(), results: new Map() };
  for (const { role, content } of messages) {
    for (const block of content) {
      if (block.type === "tool_use") said.uses.set(block.id, block.input);
      if (block.type === "tool_result") said.results.set(block.tool_use_id, block.content);
    }
    const texts = content.filter((block) => block.type === "text").map((block) => block.text);
    if (role === "user" && texts.length) said.prompts.push(texts.join("\n"));
  }
  return said;
}

const FOLD = {
  "turn.started"(told, event, said) {
    const turns = told.items.filter((item) => item.kind === "prompt").length;
    told.turn = event.turn_id;
    add(told, event, { kind: "prompt", text: said.prompts[turns] ?? "" });
  },
  "turn.completed"(told, event) {
    told.turn = null;
    add(told, event, { kind: "end", text: "" });
  },
  "turn.cancelled"(told, event) {
    told.turn = null;
    add(told, event, { kind: "note", text: "The turn was cancelled." });
  },
  "turn.notice": (told, event) => add(told, event, { kind: "note", text: event.payload.message }),
  "output.chat": (told, event) => add(told, event, { kind: "said", text: event.payload.content }),
  "output.say": (told, event) => add(told, event, { kind: "said", text: event.payload.utterance ?? "" }),
  "output.open_url": (told, event) => add(told, event, { kind: "note", text: event.payload.url ?? "" }),
  "tool.confirmation_requested"(told, event, said) {
    Object.assign(callOf(told, event, said), {
      state: "asked", askedAt: event.timestamp, why: event.payload.why,
      summary: event.payload.input_summary, question: event.payload.confirmation_request_id,
    });
  },
  "tool.confirmation_resolved"(told, event, said) {
    const call = callOf(told, event, said);
    Object.assign(call, {
      state: "running", answeredAt: event.timestamp, decision: event.payload.decision,
    });
  },
  "tool.called"(told, event, said) {
    Object.assign(callOf(told, event, said), { state: "running", calledAt: event.timestamp });
  },
  "tool.output_delta"(told, event, said) {
    const call = callOf(told, event, said);
    if (call.output.length < LONGEST_OUTPUT) call.output += event.payload.text ?? "";
  },
  "tool.completed"(told, event, said) {
    const { success, files_modified: files } = event.payload;
    end(callOf(told, event, said), event, { state: success ? "ok" : "failed", files });
  },
  "tool.failed"(told, event, said) {
    const { payload } = event;
    const error = payload.class ?? payload.error_class;
    const state = STATES[error] ?? "failed";
    end(callOf(told, event, said), event, { state, error, message: payload.message });
  },
  "tool.input_invalid"(told, event, said) {
    const message = (event.payload.validation_errors ?? []).join("\n");
    end(callOf(told, event, said), event, { state: "invalid", message });
  },
};

const STATES = {
  permission_denied: "denied", user_denied: "denied", confirmation_timeout: "denied",
  cancelled: "cancelled", shutting_down: "cancelled",
};

function add(told, event, item) {
  told.items.push({ id: event.id, at: event.timestamp, turn: event.turn_id, ...item });
}

function callOf(told, event, said) {
  const { call_id: id, tool_use_id: use } = event.payload;
  let call = told.calls.get(id);
  if (call === undefined) {
    call = {
      kind: "call", id, turn: event.turn_id, tool: event.payload.tool_name ?? "?", state: "running",
      at: event.timestamp, input: said.uses.get(use), output: "", summary: "",
    };
    call.result = () => said.results.get(use);
    told.calls.set(id, call);
    told.items.push(call);
  }
  return call;
}

function end(call, event, more) {
  Object.assign(call, more, { endedAt: event.timestamp });
}
