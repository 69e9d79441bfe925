// The WebSocket: one subscription to all events, each exactly once across reconnects.
//
//     connecting --> live --(it breaks)--> reconnecting --> live, from the last cursor on
//                                               |
//                                               '--> locked: the cookie is not valid
//
// The server replays events after `since`, or refuses if there are too many; the page then starts
// again from a snapshot (`onReset`).

import { parse } from "./json.js";

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 2000;
const ID = "all";

export function openStream({ onState, onEvent, onSnapshot, onReset }) {
	let cursor = null;
	let wait = FIRST_WAIT_MS;
	let timer = null;
	let socket = null;

	function connect() {
		clearTimeout(timer);
		timer = null;
		const scheme = location.protocol === "https:" ? "wss:" : "ws:";
		socket = new WebSocket(`${scheme}//${location.host}/v1/stream`);
		socket.onopen = subscribe;
		socket.onmessage = (message) => take(parse(message.data));
		socket.onclose = () => broken();
	}

	function say(frame) {
		socket.send(JSON.stringify(frame));
	}

	function subscribe() {
		const since = cursor === null ? {} : { since: cursor };
		say({ type: "subscribe", id: ID, session: null, preset: "full", snapshot: true,
					confirmer: true, ...since });
	}

	function take(frame) {
		switch (frame.type) {
			case "subscribe_ack":
				wait = FIRST_WAIT_MS;
				if (cursor === null) cursor = frame.last;
				onState("live");
				break;
			case "snapshot":
				onSnapshot(frame);
				break;
			case "event":
				if (frame.cursor != null) cursor = frame.cursor;
				onEvent(frame.event, frame.seq);
				break;
			case "ping":
				say({ type: "pong" });
				break;
			case "error":
				if (frame.id === ID) startOver();
				break;
		}
	}

	function startOver() {
		const hadPlace = cursor !== null;
		cursor = null;
		if (!hadPlace) return socket.close(); // refused without a cursor: try later
		onReset();
		subscribe();
	}

	async function broken() {
		onState(await isLocked() ? "locked" : "reconnecting");
		timer = setTimeout(connect, wait * (0.75 + Math.random() / 2));
		wait = Math.min(wait * 2, LONGEST_WAIT_MS);
	}

	// Only a plain request shows why a WebSocket was refused.
	async function isLocked() {
		try {
			return (await fetch("/v1/instance")).status === 401;
		} catch {
			return false;
		}
	}

	function hurry() {
		if (timer !== null && !document.hidden) connect();
	}

	addEventListener("online", hurry);
	document.addEventListener("visibilitychange", hurry);
	connect();
}
