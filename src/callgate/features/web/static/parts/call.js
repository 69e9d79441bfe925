// One call in full.

import { at, get, remove } from "../lib/api.js";
import { isOver, madeAt } from "../lib/calls.js";
import { go, href } from "../lib/router.js";
import { useQuestions } from "../lib/questions.js";
import { useStore } from "../lib/store.js";
import { count, duration, moment, shortId } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { decidedBy, endedBecause } from "../lib/words.js";
import { Block, Effect, Empty, State, Trouble, Values, asLine, asText } from "./basics.js";
import { Changes } from "./changes.js";
import { Questions, outcome } from "./question.js";

export function CallPanel({ id, onClose }) {
	const { calls } = useStore();
	const row = calls.byId.get(id);
	const [detail, setDetail] = useState(null);
	const [record, setRecord] = useState(null);
	const [problem, setProblem] = useState(null);
	useEffect(() => {
		let here = true;
		const show = (set) => (value) => here && set(value);
		get(at("calls", id)).then(show(setDetail), show(setProblem));
		get("/v1/audit", { text: id, limit: 1 }).then(show(({ records }) => setRecord(records[0])), () => {});
		return () => { here = false; };
	}, [id, row?.state]);
	const asked = useQuestions((each) => each.call_id === id, { ownGo: true });
	const open = asked[0].length > 0;
	const known = { ...row, ...detail, ...(row ? { state: row.state } : {}) };

	return html`<aside class="panel" aria-label="Call">
		<header><h2>${asLine(known.tool ?? "Call")}</h2>${known.state && html`<${State} state=${known.state} />`}
			<button class="small close" onClick=${onClose} aria-label="Close">✕</button></header>
		${!known.tool && problem && html`<${Trouble} problem=${problem} />`}
		${!known.tool && !problem && html`<${Empty} title="Loading…" />`}
		<${Questions} of=${asked} />
		<${Facts} call=${known} record=${record} />
		<${Actions} call=${known} record=${record} />
		${record?.reason && html`<p class="trouble">${asText(endedBecause(record.reason))}</p>`}
		${!open && html`<${Given} call=${known} record=${record} />`}
		${record?.result && html`<h3>Result</h3><${Block} label="Result" value=${record.result} />`}
		${record?.changed > 0 && html`<h3>${count(record.changed, "changed file")}</h3>
			<${Changes} path=${at("calls", id, "diff")} />`}
		<${Display} events=${detail?.events ?? []} />
		<${Answer} call=${known} />
		<${Events} events=${detail?.events ?? []} />
	</aside>`;
}

function Facts({ call, record }) {
	const facts = [
		["Effect", call.side_effects && html`<${Effect} effect=${call.side_effects} />`],
		["Decided by", (call.policy ?? record?.policy) && asText(decidedBy(call.policy ?? record.policy))],
		["Answered by", record?.answered_by && asText(record.answered_by)],
		["Error", call.error_class],
		["Ran in", record?.sandbox && asText(record.sandbox)],
		["Started", call.id && moment(madeAt(call.id))],
		["Took", duration(call.duration_ms)],
		["Waited", call.waited_ms > 0 && `${duration(call.waited_ms)} for approval`],
		["Client", call.client && asText(call.client)],
		["Caller", call.caller],
		["Source", record?.source],
		["Session", call.session_id && html`<a href=${href("session", call.session_id)}
				title=${call.session_id}>${shortId(call.session_id)}</a>
			${" "}<a href=${href("live", "", { session: call.session_id })}>its calls</a>`],
		["Call", call.id],
	];
	return html`<dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) =>
		html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

function Actions({ call, record }) {
	if (!call.tool) return null;
	const given = argumentsOf(call, record);
	const rerun = () => go("tools", call.tool, { arguments: JSON.stringify(given ?? {}) });
	return html`<p class="buttons">
		${!isOver(call) && html`<button class="danger"
			onClick=${() => remove(at("calls", call.id)).catch(() => {})}>Cancel</button>`}
		${isOver(call) && html`<button onClick=${rerun}>Run again…</button>`}
		${given && html`<button onClick=${() => go("policy", "", { tool: call.tool,
			arguments: JSON.stringify(given) })}>Explain</button>`}</p>`;
}

/** The question has all arguments; the audit log has a summary. */
function argumentsOf(call, record) {
	if (call.confirmation) return call.confirmation.arguments;
	try {
		const read = JSON.parse(record?.args ?? call.summary ?? "");
		return read !== null && typeof read === "object" ? read : null;
	} catch {
		return null;
	}
}

function Given({ call, record }) {
	const given = argumentsOf(call, record);
	const summary = record?.args ?? call.summary;
	if (given) return html`<h3>Arguments</h3><${Values} values=${given} />`;
	return summary ? html`<h3>Arguments</h3><${Block} label="Arguments" value=${summary} />` : null;
}

/** The result for a screen: names and texts, never markup. */
function Display({ events }) {
	const shown = events.find((event) => event.type === "tool.completed")?.payload.display;
	return shown ? html`<h3>Display</h3><${Values} values=${shown} />` : null;
}

function Answer({ call }) {
	if (!call.confirmation) return null;
	const { answer } = call;
	return html`<h3>Question</h3><p>${asText(call.confirmation.why)}</p>
		${answer && html`<p class="quiet">${outcome(answer.decision)} (${answer.scope}) by ${asText(answer.by)}
			${answer.reason && html`: ${asText(answer.reason)}`}</p>`}`;
}

const Events = ({ events }) => events.length > 0 && html`<details><summary>${count(events.length, "event")}</summary>
	<ol class="events">${events.map((event) => html`<li><span class="at">${moment(event.timestamp)}</span>
		<b>${event.type}</b> <span class="quiet">${asLine(JSON.stringify(event.payload), 400)}
			</span></li>`)}
	</ol></details>`;
