// A form from a tool's schema, for an ordinary call.

import { call } from "../lib/api.js";
import { endOf, errorOf } from "../lib/calls.js";
import { href } from "../lib/router.js";
import { fieldsOf, readFields, readJson, typedOf } from "../lib/schema.js";
import { useQuestions } from "../lib/questions.js";
import { useStore } from "../lib/store.js";
import { duration, quoted } from "../lib/text.js";
import { html, useMemo, useState } from "../lib/ui.js";
import { Block, Content, Copy, State, Trouble, asText } from "./basics.js";
import { Questions } from "./question.js";

export function TryIt({ tool, given }) {
	const { instance } = useStore();
	const fields = useMemo(() => fieldsOf(tool.input_schema), [tool]);
	const [typed, setTyped] = useState(() => begin(fields, given));
	const [workspace, setWorkspace] = useState("");
	const [runs, setRuns] = useState([]);
	const [problem, setProblem] = useState(null);
	const busy = runs[0] && !runs[0].result;

	function read() {
		try {
			setProblem(null);
			return readFields(fields, typed);
		} catch (failure) {
			setProblem(failure);
			return null;
		}
	}

	async function run(event) {
		event.preventDefault();
		const args = read();
		if (args === null || busy) return;
		const made = { args, id: null, output: "", result: null };
		const others = (runs) => runs.filter((each) => each.args !== args);
		const show = () => setRuns((before) => [{ ...made }, ...others(before)].slice(0, 10));
		show();
		const body = { tool: tool.name, arguments: args, ...(workspace ? { workspace } : {}) };
		try {
			made.result = await call(body, ({ type, payload }) => {
				made.id = payload.call_id;
				if (type === "tool.output_delta") made.output += payload.text ?? "";
				show();
			});
		} catch (failure) {
			setProblem(failure);
			setRuns(others);
			return;
		}
		show();
	}

	return html`<h3>Try it</h3><form class="try" onSubmit=${run} aria-label=${`Try ${tool.name}`}>
		${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${typed[field.name] ?? ""}
			onType=${(text) => setTyped({ ...typed, [field.name]: text })} />`)}
		${!fields.length && html`<p class="quiet">No arguments.</p>`}
		${instance?.workspaces.length > 1 && html`<label><span>workspace</span>
			<select value=${workspace} onChange=${(event) => setWorkspace(event.target.value)}>
				<option value="">default workspace</option>
				${instance.workspaces.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}
		<${Trouble} problem=${problem} />
		<p class="buttons"><button class="main" disabled=${busy}>${busy ? "Running…" : "Run"}</button>
			<${CopyAs} tool=${tool} fields=${fields} typed=${typed} /></p></form>
		${runs.map((each) => html`<${Run} run=${each}
			onAgain=${() => setTyped(typedOf(fields, each.args))} />`)}`;
}

function begin(fields, given) {
	try {
		return given ? typedOf(fields, readJson(given)) : {};
	} catch {
		return {};
	}
}

function Field({ field, value, onType }) {
	const { name, kind, choices, required, hint, usual } = field;
	const type = (event) => onType(event.target.value);
	const id = `field-${name}`;
	const shown = usual === undefined ? "" : `default ${JSON.stringify(usual)}`;
	let control;
	if (kind === "boolean" || choices) {
		control = html`<select id=${id} value=${value} onChange=${type}><option value="">${shown || "–"}</option>
			${(choices ?? ["true", "false"]).map((each) => html`<option value=${each}>${each}</option>`)}</select>`;
	} else if (kind === "integer" || kind === "number") {
		control = html`<input id=${id} inputmode="decimal" value=${value} onInput=${type} placeholder=${shown}
			required=${required} autocomplete="off" />`;
	} else {
		const rows = Math.min(12, Math.max(kind === "json" ? 2 : 1, value.split("\n").length));
		control = html`<textarea id=${id} rows=${rows} value=${value} onInput=${type} spellcheck=${false}
			placeholder=${kind === "json" ? shown || "JSON" : shown} required=${required && kind === "json"}>
				</textarea>`;
	}
	return html`<div class="field"><label for=${id}>${name}${required && html` <b
		class="required">required</b>`}
		<span class="quiet"> ${kind === "json" ? "JSON" : kind}</span></label>${control}
		${hint && html`<p class="hint">${asText(hint)}</p>`}</div>`;
}

function CopyAs({ tool, fields, typed }) {
	const { instance } = useStore();
	let args;
	try {
		args = readFields(fields, typed);
	} catch {
		return null;
	}
	const json = JSON.stringify(args);
	const body = JSON.stringify({ tool: tool.name, arguments: args });
	const cli = `callgate call ${quoted(tool.name)} --args ${quoted(json)}`;
	const token = quoted(`${instance?.home ?? "~/.callgate"}/run/${instance?.pid ?? "*"}.token`);
	const curl = `curl -H "Authorization: Bearer $(cat ${token})" -H 'Content-Type: application/json'`
		+ ` --data ${quoted(body)} ${location.origin}/v1/calls`;
	return html`<${Copy} text=${cli} label="Copy as command" /><${Copy} text=${curl} label="Copy as curl" />`;
}

function Run({ run, onAgain }) {
	const asked = useQuestions((each) => each.call_id === run.id, { ownGo: true });
	const open = asked[0].some(({ how }) => how === null);
	const { result } = run;
	return html`<article class="run" aria-label="Run">
		<header><${State} state=${stateOf(result, open)} />
			${result && html`<span class="quiet">${duration(result.duration_ms)}</span>
				<a href=${href("live", "", { call: result.call_id })}>details</a>`}
			<button class="small" type="button" onClick=${onAgain}>Use these arguments</button></header>
		<${Questions} of=${asked} />
		${!result && run.output && html`<${Block} label="Output so far" value=${run.output} />`}
		${result && html`<${Content} blocks=${result.content} />`}</article>`;
}

function stateOf(result, open) {
	if (!result) return open ? "asked" : "running";
	return result.ok ? "ok" : endOf(errorOf(result.error));
}
