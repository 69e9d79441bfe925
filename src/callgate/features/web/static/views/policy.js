// The rules in force, a back-test of more lines, and the decision about a call.

import { post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { useRuleSaving } from "../lib/saving.js";
import { readJson } from "../lib/schema.js";
import { SPANS, WORDS as WORDS_OF } from "../lib/spans.js";
import { useRead, useStore } from "../lib/store.js";
import { brief, count } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { decidedBy } from "../lib/words.js";
import { Copy, Trouble, asLine, asText } from "../parts/basics.js";
import { Questions } from "../parts/question.js";
import { Table } from "../parts/table.js";

const TONES = { allow: "ok", ask: "asked", deny: "denied" };
const WORDS = { auto: "allow", prompt: "ask", prompt_once: "ask once a session", deny: "deny" };
const AMOUNTS = { bytes_out: "bytes sent out" };
const MODES = ["none", "read", "ask", "guarded", "write"];

export function Policy({ query }) {
	const [saved, setSaved] = useState(0);
	return html`<section><header class="bar"><h1>Policy</h1>
		<a href=${href("suggestions")}>Suggested rules</a></header>
	<div class="scroll"><${InForce} saved=${saved} /><div class="columns"><${BackTest} onSaved=${() => setSaved(saved + 1)} /><${Explain} query=${query} /></div></div>
		</section>`;
}

const placeOf = (origin) => `${origin.file}${origin.line ? `:${origin.line}` : ""}`;

function InForce({ saved }) {
	const [found, problem] = useRead("/v1/policy", saved);
	const words = [...(found?.tools ?? []), ...(found?.classes ?? [])];
	return html`<article class="card"><h2>Rules in force</h2><${Trouble} problem=${problem} />
		${found?.rules.length === 0 && html`<p class="quiet">No rules. The defaults below decide.</p>`}
		${found?.rules.length > 0 && html`<${Table} label="Rules in force" heads=${["Decision", "For", ["Defined in", "path"]]}
			rows=${found.rules.map((each) => ({ key: placeOf(each.origin), title: placeOf(each.origin), cells: [
				{ shown: each.decision, tone: TONES[each.decision] }, asLine(each.says),
				html`${asLine(placeOf(each.origin))}${each.workspace && " (only narrows)"}`] }))} />`}
		${found?.budgets?.length > 0 && html`<${Table} label="Budgets" heads=${["Approval needed beyond", "Per", "Of", ["Defined in", "path"]]}
			rows=${found.budgets.map((each) => ({ key: placeOf(each.origin), cells: [
				`${each.limit} ${AMOUNTS[each.amount] ?? each.amount}`, each.per,
				each.tool ? asLine(each.tool) : "all tools", asLine(placeOf(each.origin))] }))} />`}
		${found && html`<details><summary>Defaults by tool and effect</summary>
			<${Table} label="Defaults by tool and effect" heads=${["For", "Decision", ["Defined in", "path"]]}
				rows=${words.map((each) => ({ key: each.name, cells: [asLine(each.name),
					WORDS[each.word] ?? each.word, asLine(placeOf(each.origin))] }))} /></details>
			${found.trusted_workspaces.length > 0 && html`<p class="quiet">Writes need no approval in ${asText(found.trusted_workspaces.join(", "))}.</p>`}`}</article>`;
}

function Explain({ query }) {
	const [all] = useRead("/v1/tools");
	const [tool, setTool] = useState(query.tool ?? "shell");
	const [given, setGiven] = useState(query.arguments ?? '{"command": "git status"}');
	const [mode, setMode] = useState("");
	const [found, setFound] = useState(null);
	const [problem, setProblem] = useState(null);
	useEffect(() => {
		if (query.tool) explain();
	}, []);

	async function explain(event) {
		event?.preventDefault();
		setProblem(null);
		try {
			const body = { tool, arguments: readJson(given, "Arguments"), ...(mode ? { mode } : {}) };
			setFound(await post("/v1/policy/explain", body));
		} catch (failure) {
			setFound(null);
			setProblem(failure);
		}
	}

	return html`<article class="card"><h2>Explain a call</h2>
		<p class="quiet">Nothing runs, and no approval is requested.</p>
		<form class="try" onSubmit=${explain}>
			<label><span>Tool</span><input list="tool-names" value=${tool} required
				onInput=${(event) => setTool(event.target.value)} /></label>
			<datalist id="tool-names">${all?.tools.map((each) => html`<option value=${each.name} />`)}</datalist>
			<label><span>Arguments</span><textarea rows="4" spellcheck=${false} value=${given}
				onInput=${(event) => setGiven(event.target.value)}></textarea></label>
			<label><span>Mode</span><select value=${mode} onChange=${(event) => setMode(event.target.value)}>
				<option value="">current mode</option>${MODES.map((each) => html`<option>${each}</option>`)}</select>
					</label>
			<button class="main">Explain</button></form>
		<${Trouble} problem=${problem} />${found && html`<${Verdict} found=${found} />`}</article>`;
}

function Verdict({ found }) {
	if (found.ends_before) {
		return html`<div class="verdict deny" role="status"><b>refused before</b>
			<p>${asText(found.ends_before.message)}</p></div>`;
	}
	const place = found.origin && placeOf(found.origin);
	return html`<div class=${`verdict ${found.outcome}`} role="status"><b>${found.outcome}</b>
		<p>${asText(found.sentence)}</p>
		<dl class="facts"><dt>By</dt><dd>${asText(decidedBy(found.reason))}</dd>
			${place && html`<dt>Defined in</dt><dd>${asText(place)}</dd>`}
			${found.sandbox && html`<dt>Runs in</dt><dd>${asText(found.sandbox)}</dd>`}
			${found.budgets?.length > 0 && html`<dt>Used</dt><dd>${asText(found.budgets.join(", "))}</dd>`}
			${found.paths?.length > 0 && html`<dt>Touches</dt><dd>${asText(found.paths.join(", "))}</dd>`}
		</dl></div>`;
}

/** A rule as lines of TOML, in which a JSON string is a string. */
function ruleLines({ decision, tool, kind, pattern }) {
	const toml = (value) => JSON.stringify(value).replaceAll("\x7f", "\\u007f");
	return ["[[policy.rules]]", `decision = ${toml(decision)}`, ...(tool ? [`tool = ${toml(tool)}`] : []),
		...(pattern ? [`${kind} = ${toml(pattern)}`] : [])].join("\n");
}

function Compose({ onAdd, onSaved }) {
	const [rule, setRule] = useState({ decision: "allow", tool: "shell", kind: "command", pattern: "git status *" });
	const { save, asked, told, problem } = useRuleSaving(onSaved);
	const { decision, tool, kind, pattern } = rule;
	const saved = { decision, ...(tool ? { tool } : {}), ...(pattern ? { [kind]: pattern } : {}) };
	const field = (name) => ({ value: rule[name], onInput: (event) => setRule({ ...rule, [name]: event.target.value }) });
	return html`<div class="compose" role="group" aria-label="A rule">
		<select aria-label="Decision" ...${field("decision")}>${["allow", "ask", "deny"].map((each) => html`<option>${each}</option>`)}</select>
		<input aria-label="Rule for" placeholder="any tool" ...${field("tool")} />
		<select aria-label="Pattern of" ...${field("kind")}>${["command", "path"].map((each) => html`<option>${each}</option>`)}</select>
		<input aria-label="Pattern" placeholder="any" ...${field("pattern")} />
		<button type="button" onClick=${() => onAdd(ruleLines(rule))}>Add to the lines</button>
		<button type="button" onClick=${() => save(saved)}>Save rule…</button></div>
		<${Trouble} problem=${problem} /><${Questions} of=${asked} />
		${told && html`<p class="told" role="status">${asText(told)}</p>`}`;
}

function BackTest({ onSaved }) {
	const { instance } = useStore();
	const [settings, setSettings] = useState("");
	const [span, setSpan] = useState("7 d");
	const [found, setFound] = useState(null);
	const [problem, setProblem] = useState(null);
	const [busy, setBusy] = useState(false);

	async function test(event) {
		event.preventDefault();
		setBusy(true);
		setProblem(null);
		try {
			setFound(await post("/v1/policy/test", { settings, added: true, since: Date.now() / 1000 - SPANS[span] }));
		} catch (failure) {
			setFound(null);
			setProblem(failure);
		}
		setBusy(false);
	}

	return html`<article class="card"><h2>Test a change</h2>
		<p class="quiet">Write rules, see which recorded calls they would decide differently, and paste them at the end of
			${" "}<code>${asText(`${instance?.home ?? "~/.callgate"}/settings.toml`)}</code>. Nothing runs.
			Saving a rule here needs your approval and writes <code>rules.toml</code> next to it.</p>
		<form class="try" onSubmit=${test}>
			<${Compose} onSaved=${onSaved} onAdd=${(lines) => setSettings(`${settings.trimEnd()}\n\n${lines}\n`.trimStart())} />
			<label><span>Lines to add to settings.toml</span><textarea class="tall" rows="10" spellcheck=${false} value=${settings}
				onInput=${(event) => setSettings(event.target.value)}></textarea></label>
			<label><span>Recorded calls</span><select value=${span}
				onChange=${(event) => setSpan(event.target.value)}>
				${Object.keys(SPANS).map((each) => html`<option value=${each}>${WORDS_OF[each]}</option>`)}</select></label>
			<p class="buttons"><button class="main" disabled=${busy}>${busy ? "Testing…" : "Test"}</button>
				<${Copy} text=${settings} label="Copy the lines" /></p></form>
		<${Trouble} problem=${problem} />${found && html`<${Changes} found=${found} />`}</article>`;
}

function Changes({ found }) {
	const many = found.changed.reduce((sum, each) => sum + each.count, 0);
	const unknown = found.undecidable?.count ?? 0;
	return html`<p role="status"><b>${many}</b> of ${count(found.judged, "decision")} would change,
			${" "}<b class=${found.loosened ? "warn" : ""}>${found.loosened ? "some" : "none"} to a looser one</b>.
			${unknown > 0 && ` ${count(unknown, "decision")} cannot be determined.`}</p>
		${many > 0 && html`<${Table} label="Changed decisions" heads=${["Tool", ["Arguments", "path"], "Was", "Would be", ["Calls", "number"]]}
			rows=${found.changed.slice(0, 500).map((each) => ({ key: each.call, title: each.new.sentence, cells: [
				html`<a href=${href("live", "", { call: each.call })}>${each.tool}</a>`,
				asLine(brief(each.arguments)), each.old.outcome,
				html`<b class=${each.loosened ? "warn" : ""}>${each.new.outcome}</b>`, each.count] }))} />`}`;
}
