// Statistics of calls, over time and by tool.

import { get } from "../lib/api.js";
import { href, setQuery } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { endOf } from "../lib/calls.js";
import { SPANS, WORDS } from "../lib/spans.js";
import { count, duration, moment, shortId, visible } from "../lib/text.js";
import { money } from "../lib/usage.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Empty, Trouble, asLine } from "../parts/basics.js";
import { Bars } from "../parts/plots.js";
import { Table } from "../parts/table.js";

export function Stats({ query }) {
	const { link } = useStore();
	const span = Object.hasOwn(SPANS, query.span ?? "") ? query.span : "24 h";
	const [latest, setStats] = useState(null);
	const stats = latest?.span === span ? latest : null;
	const [problem, setProblem] = useState(null);
	useEffect(() => {
		let here = true;
		const load = () => get("/v1/stats", { since: (Date.now() / 1000 - SPANS[span]).toFixed(3) })
			.then((found) => here && setStats({ ...found, span }), (failure) => here && setProblem(failure));
		load();
		const timer = setInterval(load, 10_000);
		return () => {
			here = false;
			clearInterval(timer);
		};
	}, [span, link]);

	const tools = [...(stats?.tools ?? [])].sort((a, b) => b.calls - a.calls);
	const sum = (name) => tools.reduce((total, each) => total + each[name], 0);
	return html`<section><header class="bar"><h1>Stats</h1>
			<div class="chips" role="group" aria-label="Time range">${Object.keys(SPANS).map((each) => html`<button
				class="chip" aria-pressed=${span === each} aria-label=${WORDS[each]}
				onClick=${() => setQuery({ span: each })}>${each}</button>`)}</div></header>
		<div class="scroll"><${Trouble} problem=${problem} />
		${!stats && !problem && html`<${Empty} title="Loading…" />`}
		${stats?.missing.length > 0 && html`<p class="quiet" role="status">The calls of
			${stats.missing.join(", ")} are missing: no answer.</p>`}
		${stats && !tools.length && html`<${Empty} title=${`No calls in the ${WORDS[span]}.`}
			command="callgate call list_dir" />`}
		${tools.length > 0 && html`
			<div class="tiles"><${Tile} name="calls" value=${sum("calls")} />
				<${Tile} name="failed" value=${sum("errors")} of=${sum("calls")} tone="failed" />
				<${Tile} name="denied" value=${sum("denials")} of=${sum("calls")} tone="denied" />
				<${Tile} name="needed approval" value=${sum("asked")} of=${sum("calls")} />
				${stats.answers.approved + stats.answers.denied > 0 && html`<${Answers} answers=${stats.answers} />`}
				${tokens(stats.models) > 0 && html`<${Tile} name=${`tokens · ${cost(stats.models)}`} value=${tokens(stats.models)} short />`}</div>
			<article class="card"><h2>Calls over time</h2><${Bars} times=${stats.times} since=${stats.since}
				span=${SPANS[span]} step=${stats.span_s} /></article>
			<article class="card"><h2>By tool</h2><p class="quiet">Time that calls ran, and
				time that they waited for approval.</p><${ByTool} tools=${tools} span=${span} /></article>`}
		${stats?.errors.length > 0 && html`<article class="card"><h2>What went wrong</h2>
			<${Errors} errors=${stats.errors} /></article>`}
		${stats?.models.length > 0 && html`<article class="card"><h2>Cost by model</h2>
				<${Models} models=${stats.models} /></article>
			<article class="card"><h2>Cost by session</h2><${Costs} sessions=${stats.sessions} /></article>`}</div></section>`;
}

/** Share of questions that were approved, and the median time to the answer. */
const Answers = ({ answers: { approved, denied, p50_ms: median } }) => html`<div class="tile">
		<b>${percent(approved / (approved + denied))}</b>
		<span>approved · ${count(approved + denied, "answer")}</span></div>
	<div class="tile"><b>${duration(median)}</b><span>median time to answer</span></div>`;

const Tile = ({ name, value, of, tone, short }) => html`<div class=${`tile ${tone ?? ""}`}>
	<b title=${value}>${value.toLocaleString("en", short ? { notation: "compact", maximumSignificantDigits: 3 } : {})}</b>
	<span>${name}${of > 0 && ` · ${percent(value / of)}`}</span></div>`;

const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)}\u00a0%`;

const between = (low, high) => (low === high ? duration(low) : `${duration(low)} · ${duration(high)}`);

function ByTool({ tools, span }) {
	const number = (name) => [name, "number"];
	return html`<${Table} label="By tool" heads=${["Tool", ...["Calls", "Failed", "Denied", "Ran p50", "Ran p95"].map(number),
			number("Approvals"), number("Waited p50 · p95")]}
		rows=${tools.map((each) => ({ key: each.tool, cells: [
			html`<a href=${href("live", "", { q: each.tool, span })}>${asLine(each.tool, 60)}</a>`, each.calls.toLocaleString("en"),
			{ shown: each.errors, tone: each.errors ? "failed" : "" }, { shown: each.denials, tone: each.denials ? "denied" : "" },
			each.p95_ms ? duration(each.p50_ms) : "–", each.p95_ms ? duration(each.p95_ms) : "–",
			each.asked.toLocaleString("en"), each.asked ? between(each.waited_p50_ms, each.waited_p95_ms) : "–"] }))} />`;
}

const Errors = ({ errors }) => html`<${Table} label="What went wrong" heads=${["Tool", "Error", ["Latest message", "path"],
		["Calls", "number"], "Last"]}
	rows=${errors.map((each) => ({ key: `${each.tool} ${each.error_class} ${each.reason}`, title: visible(each.message, 300), cells: [
		html`<a href=${href("live", "", { call: each.call })}>${asLine(each.tool, 60)}</a>`,
		{ shown: each.error_class.replaceAll("_", " "), tone: endOf(each.error_class) }, asLine(each.message), each.count.toLocaleString("en"),
		{ shown: moment(each.last_at), tone: "nowrap" }] }))} />`;

const tokens = (models) => models.reduce((total, each) => total + each.input_tokens + each.output_tokens, 0);

const cost = (models) => money(models.some((each) => each.cost_usd !== null)
	? models.reduce((total, each) => total + (each.cost_usd ?? 0), 0) : null);

const SPENT = ["Replies", "Tokens in", "Tokens out", "Cost"].map((name) => [name, "number"]);

const cellsOf = (each) => [...[each.replies, each.input_tokens, each.output_tokens].map((number) => number.toLocaleString("en")),
	money(each.cost_usd)];

const Models = ({ models }) => html`<${Table} label="Models" heads=${["Model", ...SPENT]}
	rows=${models.map((each) => ({ key: each.model, cells: [asLine(each.model, 60), ...cellsOf(each)] }))} />`;

const Costs = ({ sessions }) => html`<${Table} label="Sessions" heads=${["Session", ...SPENT]}
	rows=${sessions.map((each) => ({ key: each.session, cells: [html`<a href=${href("session", each.session)}>${asLine(each.title || "Session", 100)}</a> <code class="quiet">${shortId(each.session)}</code>`, ...cellsOf(each)] }))} />`;
