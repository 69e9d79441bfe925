// Follows one session: stored events, then new ones, each once.

import { at, get } from "./api.js";
import { listen, useStore } from "./store.js";
import { useEffect, useState } from "./ui.js";

const PAGE = 1000;
const MOST = 20_000; // the last events of a longer session
const LOOK_AGAIN_MS = 60;
const TELLS_OF_MESSAGES = new Set([
	"turn.started", "turn.completed", "turn.cancelled", "tool.called", "tool.completed",
	"tool.failed", "tool.confirmation_requested", "mode.changed",
]);
const NOTHING = { session: null, events: [], messages: [], writing: "", cut: false };

/** A session; `writing` is the unfinished reply of the model. */
export function useSession(id) {
	const { epoch } = useStore();
	const [shown, setShown] = useState(NOTHING);
	useEffect(() => {
		setShown(NOTHING);
		return follow(id, (more) => setShown((before) => ({ ...before, ...more })));
	}, [id, epoch]);
	return shown;
}

function follow(id, tell) {
	const bySeq = new Map();
	let [here, writing, looking, drawing] = [true, "", null, null];

	function draw() {
		drawing ??= setTimeout(() => {
			drawing = null;
			if (!here) return;
			const events = [...bySeq].sort(([a], [b]) => a - b).map(([, event]) => event);
			tell({ events, writing });
		}, 16);
	}
	async function look() {
		const [session, { messages }] = await Promise.all([
			get(at("sessions", id)), get(at("sessions", id, "messages")),
		]);
		if (here) tell({ session, messages });
		return session;
	}
	// Listen before reading, so that no event is missed.
	const unlisten = listen((event, seq) => {
		if (event.session_id !== id) return;
		if (event.type === "output.chat_delta") writing += event.payload.text ?? "";
		else if (/^(output|turn)\./.test(event.type)) writing = "";
		if (seq != null) bySeq.set(seq, event);
		draw();
		if (TELLS_OF_MESSAGES.has(event.type)) {
			looking ??= setTimeout(() => {
				looking = null;
				look().catch(() => {});
			}, LOOK_AGAIN_MS);
		}
	});
	async function load() {
		const { last_seq: last } = await look();
		let after = Math.max(0, last - MOST);
		tell({ cut: after > 0 });
		while (here) {
			const page = await get(at("sessions", id, "events"), { after, limit: PAGE });
			for (const [seq, event] of page.events) bySeq.set(seq, event);
			if (!page.events.length) break;
			after = page.events.at(-1)[0];
			if (after >= page.last) break;
		}
		draw();
		tell({ loaded: true });
	}
	load().catch((problem) => here && tell({ problem }));
	return () => {
		here = false;
		clearTimeout(looking);
		unlisten();
	};
}
