// The known calls, by id and in order. Rows come from the audit log and from events, in any order and
// repeatedly.

const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const ENDS = {
	__proto__: null,
	permission_denied: "denied", user_denied: "denied", confirmation_timeout: "denied",
	cancelled: "cancelled", shutting_down: "cancelled", validation_error: "invalid",
};
const OVER = new Set(["ok", "failed", "denied", "cancelled", "invalid"]);

export const endOf = (error) => ENDS[error] ?? "failed";

export const isOver = (row) => OVER.has(row.state);

export function makeCalls() {
	return { byId: new Map(), order: [], effects: new Set(), clients: new Set(), sessions: new Set(), version: 0 };
}

export const clientOf = (row) => row.client ?? row.caller ?? "";

/** When a call started, in seconds: its id is a ULID. */
export function madeAt(id) {
	let number = 0;
	for (const letter of id.replace(/^tu_/, "").slice(0, 10)) {
		number = number * 32 + Math.max(0, ALPHABET.indexOf(letter));
	}
	return number / 1000;
}

export function put(calls, row) {
	const known = calls.byId.get(row.id);
	calls.version += 1;
	if (row.side_effects) calls.effects.add(row.side_effects);
	if (row.client || row.caller) calls.clients.add(clientOf(row));
	if (row.session_id) calls.sessions.add(row.session_id);
	if (known === undefined) {
		calls.byId.set(row.id, { summary: "", ...row });
		insert(calls.order, row.id);
		return;
	}
	// A page that was requested before the call ended must not reopen it.
	const state = isOver(known) ? known.state : row.state;
	calls.byId.set(row.id, { ...known, ...row, state });
}

function insert(order, id) {
	let at = order.length;
	if (at && order[at - 1] > id) {
		let low = 0;
		while (low < at) {
			const middle = (low + at) >> 1;
			if (order[middle] < id) low = middle + 1;
			else at = middle;
		}
	}
	order.splice(at, 0, id);
}

/** The change of a row by an event, or null. */
export function told(event) {
	const { payload, type } = event;
	if (!payload.call_id || !type.startsWith("tool.")) return null;
	const row = { id: payload.call_id, session_id: event.session_id, turn_id: event.turn_id };
	if (payload.tool_name) row.tool = payload.tool_name;
	if (payload.side_effects) row.side_effects = payload.side_effects;
	switch (type) {
		case "tool.confirmation_requested":
			return { ...row, state: "asked", summary: payload.input_summary };
		case "tool.confirmation_resolved":
		case "tool.called":
			return { ...row, state: "running" };
		case "tool.completed":
			return { ...row, state: payload.success ? "ok" : "failed", duration_ms: payload.latency_ms };
		case "tool.input_invalid":
			return { ...row, state: "invalid" };
		case "tool.failed":
			return { ...row, state: endOf(errorOf(payload)), duration_ms: payload.latency_ms,
							 error_class: errorOf(payload) };
		default:
			return null;
	}
}

export const errorOf = (payload) => payload.class ?? payload.error_class;

export function matching(calls, { state, effect, client, session, since = 0, text }) {
	const wanted = text ? text.toLowerCase() : "";
	const found = [];
	for (let at = calls.order.length - 1; at >= 0; at -= 1) {
		if (since && madeAt(calls.order[at]) < since) break;
		const row = calls.byId.get(calls.order[at]);
		if (client && clientOf(row) !== client) continue;
		if (session && row.session_id !== session) continue;
		if (state && row.state !== state) continue;
		if (effect && row.side_effects !== effect) continue;
		if (wanted && !haystack(row).includes(wanted)) continue;
		found.push(row);
	}
	return found;
}

// A row is replaced when it changes.
const haystacks = new WeakMap();

function haystack(row) {
	let text = haystacks.get(row);
	if (text === undefined) {
		const { tool, summary, caller, client = "", session_id: session, id, error_class: error = "" } = row;
		text = `${tool} ${summary} ${caller} ${client} ${session} ${id} ${error}`.toLowerCase();
		haystacks.set(row, text);
	}
	return text;
}
