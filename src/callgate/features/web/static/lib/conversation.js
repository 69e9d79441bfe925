// A session as a conversation: a fold over its events, so a replay folds the first few of them.
// The messages have the arguments and the result of a call, by its id.

import { endOf, errorOf } from "./calls.js";

const LONGEST_OUTPUT = 20_000;

/** `before`: the number of turns before these events. */
export function readConversation(events, messages, before = 0) {
	const told = { items: [], calls: new Map(), turn: null, turns: before };
	const said = readMessages(messages);
	for (const event of events) FOLD[event.type]?.(told, event, said);
	return told;
}

/** The number of turns before the first event that is shown. */
export function turnsBefore(events, messages) {
	const taken = events.filter((event) => event.type === "turn.started" || isComplaint(event));
	return Math.max(0, readMessages(messages).prompts.length - taken.length);
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

const onCall = (read) => (told, event, said) => {
	const call = callOf(told, event, said);
	Object.assign(call, read(event, call));
};

// A user message from callgate: it tells the model what was wrong with its reply.
const isComplaint = ({ type, payload }) => type === "reply.diagnosed" && payload.errors?.length > 0;

const FOLD = {
	__proto__: null,
	"turn.started"(told, event, said) {
		told.turn = event.turn_id;
		add(told, event, { kind: "prompt", text: said.prompts[told.turns] ?? "" });
		told.turns += 1;
	},
	"reply.diagnosed"(told, event) {
		if (isComplaint(event)) told.turns += 1;
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
	"tool.confirmation_requested": onCall(({ timestamp, payload }) => ({
		state: "asked", askedAt: timestamp, summary: payload.input_summary,
		question: payload.confirmation_request_id,
	})),
	"tool.confirmation_resolved": onCall(({ timestamp }) => ({ state: "running", answeredAt: timestamp })),
	"tool.called": onCall(({ timestamp }) => ({ state: "running", calledAt: timestamp })),
	"tool.output_delta": onCall(({ payload }, { output }) => (
		output.length < LONGEST_OUTPUT && { output: output + (payload.text ?? "") })),
	"tool.completed": onCall(({ timestamp, payload }) => ({
		state: payload.success ? "ok" : "failed", endedAt: timestamp, files: payload.files_modified,
	})),
	"tool.failed": onCall(({ timestamp, payload }) => ({
		state: endOf(errorOf(payload)), endedAt: timestamp, message: payload.message,
	})),
	"tool.input_invalid": onCall(({ timestamp, payload }) => ({
		state: "invalid", endedAt: timestamp, message: (payload.validation_errors ?? []).join("\n"),
	})),
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
