// All state of the page: calls, open questions, and the connection.
//
//     stream --> store --(once a frame)--> views
//     record -----^      --(each event)--> followers of one session (`listen`)

import { get } from "./api.js";
import { isOver, makeCalls, put, told } from "./calls.js";
import { openStream } from "./stream.js";
import { useEffect, useState } from "./ui.js";

const PAGE = 500;
const REFRESH_MS = 400;
const KEPT_ANSWERS = 20;

export const state = {
	link: "connecting",
	instance: null,
	calls: makeCalls(),
	older: null, // cursor of the audit log; null at its end
	loaded: false,
	questions: new Map(),
	settled: [], // questions that were just answered, newest first
	changes: 0, // number of opened and closed questions
	epoch: 0, // increased after missed events, to reload everything
};

const watchers = new Set();
let scheduled = false;

function changed() {
	if (scheduled) return;
	scheduled = true;
	let done = false;
	const run = () => {
		if (done) return;
		done = true;
		scheduled = false;
		for (const each of watchers) each();
	};
	requestAnimationFrame(run);
	setTimeout(run, 200); // a hidden tab draws no frames, but its title still counts
}

/** Draw again after every change of the store. */
export function useStore() {
	const [, draw] = useState(0);
	useEffect(() => {
		const again = () => draw((n) => n + 1);
		watchers.add(again);
		return () => watchers.delete(again);
	}, []);
	return state;
}

/** `[value, problem, load]` of a path, read again after each reconnect and change of `also`. */
export function useRead(path, also) {
	const { link } = useStore();
	const [found, setFound] = useState(null);
	const [problem, setProblem] = useState(null);
	const load = () => get(path).then(setFound, setProblem);
	useEffect(() => { load(); }, [link, also]);
	return [found, problem, load];
}

const listeners = new Set();

/** Call `hear` for each event; returns a function to stop. */
export function listen(hear) {
	listeners.add(hear);
	return () => listeners.delete(hear);
}

export function start() {
	openStream({
		onState(link) {
			const back = link === "live" && state.link !== "live";
			state.link = link;
			if (back) {
				loadInstance();
				refresh();
			}
			changed();
		},
		onSnapshot({ confirmations, calls }) {
			const open = new Map(confirmations.map((each) => [each.id, each]));
			for (const each of state.questions.values()) {
				if (!open.has(each.id)) settle(each.id, {});
			}
			if (confirmations.some((each) => !state.questions.has(each.id))) questionsChanged();
			state.questions = open;
			for (const row of calls) put(state.calls, row);
			changed();
		},
		onReset() {
			state.epoch += 1;
			refresh();
		},
		onEvent: take,
	});
}

function take(event, seq) {
	const row = told(event);
	if (row !== null) put(state.calls, row);
	if (event.type === "tool.confirmation_requested") loadQuestions();
	if (event.type.startsWith("settings.")) loadInstance();
	if (event.type === "tool.confirmation_resolved") {
		settle(event.payload.confirmation_request_id, event.payload);
	}
	// Events lack the client and the arguments.
	if (row !== null && (isOver(row) || row.state === "asked")) refresh();
	for (const hear of listeners) hear(event, seq);
	changed();
}

function questionsChanged() {
	state.changes += 1;
}

const closed = new Set(); // questions that a late list must not reopen

/** Close a question, after an answer, an event or a snapshot, in any order. */
export function settle(id, how) {
	closed.add(id);
	const known = state.settled.find((each) => each.question.id === id);
	const question = state.questions.get(id) ?? known?.question;
	if (question === undefined) return;
	if (state.questions.delete(id)) questionsChanged();
	const others = state.settled.filter((each) => each !== known);
	state.settled = [{ question, how: { ...known?.how, ...how } }, ...others].slice(0, KEPT_ANSWERS);
	changed();
}

async function loadInstance() {
	state.instance = await get("/v1/instance").catch(() => state.instance);
	changed();
}

const loadQuestions = spaced(async () => {
	const { confirmations } = await get("/v1/confirmations");
	for (const each of confirmations) {
		if (closed.has(each.id) || state.questions.has(each.id)) continue;
		state.questions.set(each.id, each);
		questionsChanged();
	}
}, 0);

const refresh = spaced(async () => {
	const page = await get("/v1/calls", { limit: PAGE });
	for (const row of page.calls) put(state.calls, row);
	if (!state.loaded) state.older = page.before;
	state.loaded = true;
}, REFRESH_MS);

export const loadOlder = spaced(async () => {
	if (state.older === null) return;
	const page = await get("/v1/calls", { limit: PAGE, before: state.older });
	for (const row of page.calls) put(state.calls, row);
	state.older = page.before;
}, 0);

/** At most one run at a time, `least` milliseconds apart; failures are ignored. */
function spaced(work, least) {
	let running = false;
	let again = false;
	return async function run() {
		if (running) {
			again = true;
			return;
		}
		running = true;
		try {
			do {
				again = false;
				await work();
				changed();
				await new Promise((done) => setTimeout(done, least));
			} while (again);
		} catch {
			// The stream notices a lost instance.
		} finally {
			running = false;
		}
	};
}
