// Suggested rules: the number of approvals, and a back-test of each.

import { get } from "../lib/api.js";
import { href } from "../lib/router.js";
import { useRuleSaving } from "../lib/saving.js";
import { SPANS as SHORT } from "../lib/spans.js";
import { count as many, day } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Copy, Trouble, asText } from "../parts/basics.js";
import { Questions } from "../parts/question.js";

const SPANS = { ...SHORT, "1 y": 31_536_000 };
const LEAST = ["1", "2", "3", "5", "10"];
const LEFT_OUT = {
	destructive: "destructive, or possibly destructive",
	interpreter: "interpreters, wrappers (env, sudo, xargs) and programs in a directory",
	compound_command: "several commands, redirections, or unclear lines",
	arguments_cut: "their recorded arguments are cut or redacted",
	tool_unknown: "the tool is not registered here",
	always_asked: "they always need approval",
	protected_path: "a path that is protected or outside the workspace",
	rule_asks: "a rule or the settings of the workspace need approval",
	undecidable: "the record does not show whether they need approval",
	workspace_settings: "the workspace settings are invalid",
};
const DROPPED = {
	would_allow_denied: "It would have allowed a denied call.",
	denial_unclear: "It may have allowed a denied call.",
};

export function SuggestedRules() {
	const [span, setSpan] = useState("30 d");
	const [least, setLeast] = useState("3");
	const [found, setFound] = useState(null);
	const [problem, setProblem] = useState(null);
	const [saved, setSaved] = useState(0);
	const saving = useRuleSaving(() => setSaved(saved + 1));
	useEffect(() => {
		let left = false;
		setProblem(null);
		const since = Date.now() / 1000 - SPANS[span];
		get(`/v1/policy/suggestions?${new URLSearchParams({ since, least })}`)
			.then((answer) => left || setFound(answer), (failure) => left || setProblem(failure));
		return () => { left = true; };
	}, [span, least, saved]);
	const choice = (label, value, set, values) => html`<label><span>${label}</span><select value=${value}
		onChange=${(event) => set(event.target.value)}>${values.map((each) => html`<option>${each}</option>`)}</select></label>`;
	const leftOut = Object.entries(found?.left_out ?? {});
	return html`<section><header class="bar"><h1>Suggested rules</h1>
			${choice("Calls of the last", span, setSpan, Object.keys(SPANS))}
			${choice("Approved at least", least, setLeast, LEAST)}</header>
		<div class="scroll"><p class="quiet">Narrow rules for calls that were often approved, tested on recorded
				calls. Saving one needs approval. <a href=${href("policy")}>Policy</a> shows the rules in force.</p>
			<${Trouble} problem=${problem} /><${Trouble} problem=${saving.problem} />
			<${Questions} of=${saving.asked} />
			${saving.told && html`<p class="told" role="status">${asText(saving.told)}</p>`}
			${found && found.suggestions.length === 0 && html`<p role="status">No rule is suggested
				by ${many(found.looked_at, "call")}.</p>`}
			${found?.suggestions.map((each) => html`<${Suggestion} key=${each.toml} of=${each} onSave=${saving.save} />`)}
			${found?.dropped.map((each) => html`<${Suggestion} key=${each.toml} of=${each} />`)}
			${leftOut.length > 0 && html`<article class="card"><h2>Approved calls without a suggested rule</h2>
				<ul>${leftOut.map(([why, count]) => html`<li>${many(count, "call")}: ${LEFT_OUT[why] ?? why}</li>`)}</ul>
			</article>`}
			${found?.rare > 0 && html`<p class="quiet">${many(found.rare, "more call")} not approved often enough.</p>`}
		</div></section>`;
}

function Suggestion({ of, onSave }) {
	const dates = day(of.first) === day(of.last) ? `on ${day(of.last)}` : `from ${day(of.first)} to ${day(of.last)}`;
	const steps = Object.entries(of.steps).map(([step, count]) => `${count} ${step.replace("->", " → ")}`);
	return html`<article class="card" aria-label=${`${of.dropped ? "Not suggested" : "Suggested"}: ${of.rule.tool}`}>
		<h2>${asText(of.rule.tool)}${of.dropped && html` <b class="warn">not suggested</b>`}</h2>
		${of.dropped && html`<p>${DROPPED[of.dropped] ?? of.dropped}${" "}
			<a href=${href("live", "", { call: of.denied_call })}>The denied call</a></p>`}
		<dl class="facts"><dt>Approved</dt><dd>${many(of.count, "time")}, ${of.answered} by a person,
				in ${many(of.sessions, "session")}, ${dates}</dd>
			<dt>Would have decided</dt><dd>${steps.join(", ") || "nothing differently"}; ${of.same} the same
				${of.undecidable > 0 && `; ${of.undecidable} unknown`}</dd>
			${of.rule.arguments_sha256 && html`<dt>Exactly</dt><dd>${asText(of.example)}</dd>`}</dl>
		<pre class="block">${asText(of.toml)}</pre>
		${onSave && html`<p class="buttons"><button class="main" onClick=${() => onSave(of.rule)}>Save this rule…</button>
			<${Copy} text=${of.toml} label="Copy the lines" /></p>`}</article>`;
}
