// Changed files: a diff, the calls of a session that changed files, and undo from one of them.

import { at, get, post } from "../lib/api.js";
import { clock, count } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Trouble, asLine, asText } from "./basics.js";
import { Preview } from "./diff.js";

const NAMED = 3;
const START = "";

/** The differences that an address returns. */
export function Changes({ path, query }) {
	const [{ found, problem }, setAnswer] = useState({});
	useEffect(() => {
		let here = true;
		setAnswer({});
		get(path, query).then((value) => here && setAnswer({ found: value }),
			(failure) => here && setAnswer({ problem: failure }));
		return () => { here = false; };
	}, [path, JSON.stringify(query)]);
	if (problem) return html`<${Trouble} problem=${problem} />`;
	if (!found) return html`<p class="quiet">Loading…</p>`;
	if (!found.count) return html`<p class="quiet">No difference.</p>`;
	return html`<div class="changes" aria-label="Changed files" role="group">
		${found.files.map((file) => html`<${File} key=${file.path} file=${file} />`)}
		${found.truncated && html`<p class="quiet">${count(found.count - found.files.length, "more file")} not shown</p>`}
	</div>`;
}

function File({ file }) {
	const facts = [
		file.type !== "file" && file.type,
		file.mode_before && file.mode_after && file.mode_before !== file.mode_after
			&& `mode ${file.mode_before} → ${file.mode_after}`,
		file.note,
	].filter(Boolean);
	const targets = [file.target_before, file.target_after].filter((each) => each != null);
	const head = html`<b>${file.kind === "mode" ? "changed" : file.kind}</b>
		${file.first && html` ${asLine(file.first)} →`} ${asLine(file.path)}
		${facts.length > 0 && html` <span class="quiet">${asLine(facts.join(", "))}</span>`}
		${targets.map((each) => html` <span class="quiet">→ ${asLine(each)}</span>`)}`;
	if (!file.diff) return html`<p class="change">${head}</p>`;
	return html`<details class="change" open><summary>${head}</summary><${Preview} text=${file.diff} /></details>`;
}

/** `version` changes when a call of the session ends. */
export function ChangedCalls({ session, version, onTold }) {
	const [calls, setCalls] = useState([]);
	const [open, setOpen] = useState(null); // a call and what to show of it
	const [range, setRange] = useState({ after: START, upto: null });
	const [looked, setLooked] = useState(0);
	useEffect(() => {
		let here = true;
		get(at("sessions", session, "changes")).then(({ calls: found }) => here && setCalls(found), () => {});
		return () => { here = false; };
	}, [session, version, looked]);
	if (!calls.length) return null;
	const names = calls.map((each, index) => `${index + 1}. ${each.tool}`);
	const upto = range.upto ?? calls.at(-1).call;
	const isOpen = (kind, each) => open?.kind === kind && open.call === each.call;
	const toggle = (kind, each) => setOpen(isOpen(kind, each) ? null : { kind, call: each.call });
	function done(text) {
		setOpen(null);
		setLooked(looked + 1);
		onTold(text);
	}
	return html`<article class="card"><h2>Changed files</h2>
		<ol class="changed-calls" aria-label="Calls that changed files">${calls.map((each, index) => html`
			<li key=${each.call}><span class="at">${clock(each.at)}</span>
				<b>${asLine(names[index])}</b> <span>${count(each.count, "file")}</span>
				<span class="named">${asLine(filesOf(each))}</span>
				<span class="buttons"><button class="small" aria-expanded=${isOpen("diff", each)}
					onClick=${() => toggle("diff", each)}>Diff</button>
				<button class="small" aria-expanded=${isOpen("undo", each)}
					onClick=${() => toggle("undo", each)}>Undo from here…</button></span>
				${isOpen("diff", each) && html`<div class="wide">
					<${Changes} path=${at("calls", each.call, "diff")} /></div>`}
				${isOpen("undo", each) && html`<div class="wide"><${UndoFrom} session=${session} call=${each.call}
					number=${calls.length - index} onDone=${done} onClose=${() => setOpen(null)} /></div>`}
			</li>`)}</ol>
		${calls.length > 1 && html`<div class="compare" role="group" aria-label="Compare two moments">
			<label><span>From</span> <select value=${range.after}
				onChange=${(event) => setRange({ ...range, after: event.target.value })}>
				<option value=${START}>the beginning</option>
				${calls.map((each, index) => html`<option value=${each.call}>after ${names[index]}</option>`)}
			</select></label>
			<label><span>to</span> <select value=${upto}
				onChange=${(event) => setRange({ ...range, upto: event.target.value })}>
				${calls.map((each, index) => html`<option value=${each.call}>after ${names[index]}</option>`)}
			</select></label>
			<button class="small" aria-expanded=${open?.kind === "compare"}
				onClick=${() => setOpen(open?.kind === "compare" ? null : { kind: "compare" })}>Compare</button></div>`}
		${open?.kind === "compare" && html`<${Changes} path=${at("sessions", session, "diff")}
			query=${{ after: range.after, upto }} />`}
	</article>`;
}

function filesOf({ count: number, files }) {
	const names = files.slice(0, NAMED).map((each) => each.path).join(", ");
	return number > NAMED ? `${names} and ${number - NAMED} more` : names;
}

/** What an undo would do, with the conflicts, before a person confirms it. */
function UndoFrom({ session, call, number, onDone, onClose }) {
	const [plan, setPlan] = useState(null);
	const [left, setLeft] = useState([]);
	const [busy, setBusy] = useState(false);
	const undo = (body) => post(at("sessions", session, "undo"), { from_call: call, ...body });

	function look(others) {
		setBusy(true);
		undo({ dry_run: true, others }).then(setPlan, (failure) => setPlan({ failure })).then(() => setBusy(false));
	}
	useEffect(() => look(false), [call]);
	async function carryOut() {
		setBusy(true);
		try {
			const result = await undo({ others: left.length > 0, confirmed: true });
			onDone(textOf(result) || result.error?.message || "Undone.");
		} catch (failure) {
			onDone(failure.message);
		}
	}
	if (!plan) return html`<p class="quiet">Looking at the files…</p>`;
	const conflicts = plan.ok === false ? plan.error?.details?.files ?? [] : [];
	function leave() {
		setLeft(conflicts);
		look(true);
	}
	return html`<div class="undo-plan" role="group" aria-label="Undo from here">
		<p>This undoes the file changes of ${count(number, "call")}.</p>
		${left.length > 0 && html`<p>Left as they are: ${asText(left.join(", "))}</p>`}
		${plan.failure && html`<${Trouble} problem=${plan.failure} />`}
		${plan.ok === false && html`<${Trouble} problem=${plan.error} />`}
		${conflicts.length > 0 && html`<ul class="conflicts" aria-label="Conflicts">
			${conflicts.map((each) => html`<li>${asLine(each)}</li>`)}</ul>`}
		${textOf(plan) && html`<${Preview} text=${textOf(plan)} />`}
		<p class="buttons">
			${plan.ok && html`<button class="danger" disabled=${busy} onClick=${carryOut}>Undo</button>`}
			${conflicts.length > 0 && html`<button disabled=${busy} onClick=${leave}>Leave these, undo the others…</button>`}
			<button onClick=${onClose}>Cancel</button></p></div>`;
}

/** The text of a result, without its error message. */
const textOf = (result) => (result.content ?? []).map((block) => block.text ?? "")
	.filter((text) => text !== result.error?.message).join("\n");
