// One session: the conversation, its calls on a time line, a replay, and undo.

import { at as path, patch, post } from "../lib/api.js";
import { readConversation, turnsBefore } from "../lib/conversation.js";
import { href, setQuery } from "../lib/router.js";
import { useSession } from "../lib/session.js";
import { useQuestions } from "../lib/questions.js";
import { clock, count, moment, shortId } from "../lib/text.js";
import { spent, usageOf } from "../lib/usage.js";
import { html, useMemo, useState } from "../lib/ui.js";
import { titleOf } from "../lib/words.js";
import { Copy, Empty, Trouble, asLine, asText } from "../parts/basics.js";
import { ChangedCalls } from "../parts/changes.js";
import { Conversation } from "../parts/conversation.js";
import { Questions } from "../parts/question.js";
import { Waterfall } from "../parts/waterfall.js";

export function Session({ id, query }) {
	const { session, events, messages, writing, problem, loaded, cut } = useSession(id);
	const at = query.at && Number(query.at) < events.length ? Math.max(1, Number(query.at)) : events.length;
	const replaying = at < events.length;
	const shown = useMemo(() => readConversation(events.slice(0, at), messages,
		cut ? turnsBefore(events, messages) : 0), [events, messages, at]);
	const usage = useMemo(() => usageOf(events), [events]);
	const [told, setTold] = useState(null);
	// An undo is a call and may need approval.
	const undoing = useQuestions((each) => shown.calls.has(each.arguments.call_id), { ownGo: true });

	async function undo(call) {
		setTold("Asking…");
		try {
			const body = call ? { call: call.id } : {};
			setTold(describe(await post(path("sessions", id, "undo"), body)));
		} catch (failure) {
			setTold(failure.message);
		}
	}

	if (problem) {
		return html`<section><header class="bar"><h1>Session</h1></header>
			<div class="scroll"><${Trouble} problem=${problem} /><${Empty} title="This session cannot be shown."
				command="callgate sessions list" /></div></section>`;
	}
	const calls = [...shown.calls.values()];
	const end = replaying || !isAtWork(calls) ? events.at(-1)?.timestamp : Date.now() / 1000;
	const changed = calls.some((call) => call.files?.length);
	return html`<section class="session"><header class="bar">
			<h1>${asLine(session ? titleOf({ title: session.title, first_tool: calls[0]?.tool }) : "Session")}</h1>
			<a class="button" href=${href("live", "", { session: id })}>Calls</a>
			<a class="button" href=${href("chat", id)}>Chat</a>
			${changed && html`<button onClick=${() => undo(null)}>Undo last change</button>`}</header>
		<div class="scroll">
		${session && html`<p class="quiet facts-line">${asText(session.workspace)}
			${` · mode ${session.mode} · ${count(events.length, "event")} · ${moment(session.created_at)} · `}
			${usage.model !== null && html`${asLine(usage.model, 40)}${`: ${spent(usage)} · `}`}
			${session.server && !session.live && html`${asText(`on server ${session.server}`)}${" · "}`}
			id <code title=${id}>${shortId(id)}</code> <${Copy} text=${id} label="Copy id" /></p>`}
		<${Labels} session=${session} id=${id} onTold=${setTold} />
		<${Questions} of=${undoing} />
		${told && html`<p class="told" role="status">${asText(told)}</p>`}
		${events.length > 0 && html`<${Scrubber} events=${events} at=${at} replaying=${replaying} />`}
		${calls.length > 0 && html`<article class="card"><h2>Calls over time</h2><${Waterfall} calls=${calls}
			from=${events[0].timestamp} upto=${end} now=${replaying ? events[at - 1].timestamp : end}
			onPick=${showCall} /></article>`}
		${!replaying && calls.length > 0 && html`<${ChangedCalls} session=${id} onTold=${setTold}
			version=${calls.filter((call) => call.endedAt).length} />`}
		<${Conversation} items=${shown.items} writing=${replaying ? "" : writing} live=${!replaying}
			onUndo=${replaying ? null : undo} />
		${loaded && !events.length && html`<${Empty} title="No events in this session yet."
			command="callgate chat" />`}
		</div></section>`;
}

/** Labels of content that the session has read, for the guard. */
function Labels({ session, id, onTold }) {
	const [cleared, setCleared] = useState([]);
	const labels = Object.entries(session?.labels ?? {}).filter(([label]) => !cleared.includes(label));
	async function clear(label) {
		try {
			await patch(path("sessions", id), { clear_labels: [label] });
			setCleared([...cleared, label]);
		} catch (failure) {
			onTold(failure.message);
		}
	}
	return labels.map(([label, by]) => html`<p class="quiet facts-line">Has read <b>${label}</b> content
		(${asText(by)}). <button class="small" onClick=${() => clear(label)}>Clear this label</button></p>`);
}

const isAtWork = (calls) => calls.some((call) => !call.endedAt);

function showCall(call) {
	const card = document.getElementById(`item-${call.id}`);
	card?.scrollIntoView({ block: "center" });
	card?.querySelector("details")?.setAttribute("open", "");
}

function Scrubber({ events, at, replaying }) {
	const event = events[at - 1];
	const set = (number) => setQuery({ at: number >= events.length ? "" : String(Math.max(1, number)) });
	return html`<div class="scrubber" role="group" aria-label="Replay">
		<button class="small" onClick=${() => set(at - 1)} disabled=${at <= 1}
			aria-label="One event back">◀</button>
		<input type="range" min="1" max=${events.length} value=${at} aria-label="Replay up to this event"
			aria-valuetext=${`${event.type}, ${at} of ${events.length}`}
				onInput=${(change) => set(Number(change.target.value))} />
		<button class="small" onClick=${() => set(at + 1)} disabled=${!replaying}
			aria-label="One event forward">▶</button>
		<span class="where"><b>${at}/${events.length}</b> ${clock(event.timestamp)} ${event.type}</span>
		${replaying && html`<button class="small"
			onClick=${() => set(Infinity)}>Now</button>`}</div>`;
}

function describe(answer) {
	return (answer.content ?? []).map((block) => block.text ?? JSON.stringify(block.value)).join("\n")
		|| (answer.ok ? "Undone." : answer.error?.message ?? "It was not undone.");
}
