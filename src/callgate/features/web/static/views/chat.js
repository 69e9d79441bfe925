// A conversation with the agent: its live text, its calls, and its questions.

import { at, patch, post, remove } from "../lib/api.js";
import { readConversation, turnsBefore } from "../lib/conversation.js";
import { href } from "../lib/router.js";
import { useSession } from "../lib/session.js";
import { useStore } from "../lib/store.js";
import { spent, usageOf } from "../lib/usage.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/ui.js";
import { Empty, Trouble, asLine } from "../parts/basics.js";
import { Conversation } from "../parts/conversation.js";
import { startChat } from "./sessions.js";

export const Chat = ({ id }) => (id ? html`<${Room} id=${id} />` : html`<${Door} />`);

function Door() {
	const { instance } = useStore();
	const [problem, setProblem] = useState(null);
	return html`<section><header class="bar"><h1>Chat</h1></header><div class="scroll">
		<${Trouble} problem=${problem} />
		${instance && !instance.model && !instance.models.length
			? html`<${Empty} title="No model is set up." command="callgate keys set anthropic">
					Set the key of a provider, then restart the instance. <code>callgate chat</code> lists the other options.</${Empty}>`
			: html`<div class="empty"><p class="empty-title">Talk to the agent.</p>
					<p>It uses the tools of this instance, under the same policy as every other client.</p>
					<p><button class="main" type="button"
						onClick=${() => startChat().catch(setProblem)}>New chat</button>
					${" "}<a class="button" href=${href("sessions")}>Continue an earlier chat</a></p></div>`}
		</div></section>`;
}

function Room({ id }) {
	const { session, events, messages, writing, problem, cut } = useSession(id);
	const told = useMemo(() => readConversation(events, messages, cut ? turnsBefore(events, messages) : 0),
		[events, messages]);
	const [trouble, setTrouble] = useState(null);
	const turn = told.turn;
	const asked = [...told.calls.values()].some((call) => call.state === "asked");
	const end = useEnd([told, writing]);
	const { instance } = useStore();
	const usage = useMemo(() => usageOf(events), [events]);

	async function say(prompt, model) {
		setTrouble(null);
		try {
			await post(at("sessions", id, "turns"), { prompt, ...(model ? { model } : {}) });
			return true;
		} catch (failure) {
			setTrouble(failure);
			return false;
		}
	}
	const stop = () => remove(at("sessions", id, "turns", turn)).catch(setTrouble);

	return html`<section class="chat"><header class="bar"><h1>${asLine(session?.title || "Chat")}</h1>
			<p class="quiet usage" aria-label="Model, tokens and cost"><b>${asLine(usage.model ?? instance?.model ?? "", 40)}</b>
				${usage.model !== null && ` · ${spent(usage)}`}</p>
			${session && html`<${Mode} session=${session} onTrouble=${setTrouble} />`}
			<a class="button" href=${href("session", id)}>Timeline</a></header>
		<div class="scroll" ref=${end}>
			<${Trouble} problem=${problem} />
			${!told.items.length && !problem && html`<p class="quiet hello">Describe the task in the field below.</p>`}
			<${Conversation} items=${told.items} writing=${writing} live />
			${turn && !writing && html`<p class="working" role="status"><i aria-hidden="true">
				</i>${asked ? "Waiting for your approval" : "Working…"}</p>`}
			<${Trouble} problem=${trouble} /></div>
		<${Composer} busy=${Boolean(turn)} onSay=${say} onStop=${stop} /></section>`;
}

/** Scroll along, except for a reader who scrolled up and while a question is open. */
function useEnd(grows) {
	const box = useRef(null);
	const away = useRef(false);
	const asked = useRef(false);
	useEffect(() => {
		const element = box.current;
		const look = () => {
			away.current = element.scrollHeight - element.scrollTop - element.clientHeight > 80;
		};
		element.addEventListener("scroll", look);
		return () => element.removeEventListener("scroll", look);
	}, []);
	useLayoutEffect(() => {
		if (!away.current && !asked.current) box.current.scrollTop = box.current.scrollHeight;
		asked.current = box.current.querySelector(".question:not(.closed)") !== null;
	}, grows);
	return box;
}

function Mode({ session, onTrouble }) {
	const change = (event) => patch(at("sessions", session.id), { mode: event.target.value })
		.catch(onTrouble);
	return html`<label class="inline"><span>mode</span><select value=${session.mode} onChange=${change}>
		${["none", "read", "ask", "guarded", "write"].map((each) => html`<option>${each}</option>`)}</select></label>`;
}

function Composer({ busy, onSay, onStop }) {
	const { instance } = useStore();
	const [text, setText] = useState("");
	const [model, setModel] = useState("");
	const field = useRef(null);
	useEffect(() => field.current.focus(), []);

	async function send(event) {
		event.preventDefault();
		if (!text.trim() || busy) return;
		if (await onSay(text, model)) setText("");
	}
	function press(event) {
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
	}
	return html`<form class="composer" onSubmit=${send}>
		<textarea ref=${field} rows=${Math.min(8, text.split("\n").length)} aria-label="Message" value=${text}
			placeholder="Message the agent" title="Enter sends, Shift+Enter starts a new line"
			onInput=${(event) => setText(event.target.value)} onKeyDown=${press}></textarea>
		${instance?.models.length > 1 && html`<select aria-label="Model" value=${model}
			onChange=${(event) => setModel(event.target.value)}><option
				value="">${instance.model ?? "default model"}</option>
			${instance.models.filter((each) => each !== instance.model)
				.map((each) => html`<option>${each}</option>`)}</select>`}
		${busy ? html`<button type="button" class="danger" onClick=${onStop}>Stop</button>`
			: html`<button class="main" disabled=${!text.trim()}>Send</button>`}</form>`;
}
