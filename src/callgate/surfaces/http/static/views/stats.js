// How much, how well and how fast: over time and by tool.

import { get } from "../lib/api.js";
import { href, setQuery } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { endOf } from "../lib/calls.js";
import { duration, moment } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Empty, Line, Trouble } from "../parts/basics.js";
import { Bars, Spread } from "../parts/plots.js";
import { Table } from "../parts/table.js";

const SPANS = { "1 h": 3600, "24 h": 86_400, "7 d": 604_800, "30 d": 2_592_000 };

export function Stats({ query }) {
  const { link } = useStore();
  const span = SPANS[query.span] ? query.span : "24 h";
  const [stats, setStats] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    let here = true;
    const load = () => get("/v1/stats", { since: (Date.now() / 1000 - SPANS[span]).toFixed(3) })
      .then((found) => here && setStats(found), (failure) => here && setProblem(failure));
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
      <div class="chips" role="group" aria-label="Span">${Object.keys(SPANS).map((each) => html`<button
       
        class="chip" aria-pressed=${span === each}
          onClick=${() => setQuery({ span: each })}>${each}</button>`)}</div></header>
    <div class="scroll"><${Trouble} problem=${problem} />
    ${stats?.missing.length > 0 && html`<p class="quiet" role="status">Without the calls of
      ${stats.missing.join(", ")}: no answer.</p>`}
    ${stats && !tools.length && html`<${Empty} title="No calls in this time."
      command="callgate call list_dir" />`}
    ${tools.length > 0 && html`
      <div class="tiles"><${Tile} name="calls" value=${sum("calls")} />
        <${Tile} name="failed" value=${sum("errors")} of=${sum("calls")} tone="failed" />
        <${Tile} name="denied" value=${sum("denials")} of=${sum("calls")} tone="denied" />
        <${Tile} name="asked" value=${sum("asked")} of=${sum("calls")} />
        ${tokens(stats.models) > 0 && html`<${Tile} name=${`tokens · ${cost(stats.models)}`} value=${tokens(stats.models)} />`}</div>
      <article class="card"><h2>Calls over time</h2><${Bars} times=${stats.times} since=${stats.since}
        span=${SPANS[span]} step=${stats.span_s} /></article>
      <article class="card"><h2>By tool</h2><p class="quiet">How long calls ran, without the wait for people,
        and that wait.</p><${ByTool} tools=${tools} /></article>`}
    ${stats?.errors.length > 0 && html`<article class="card"><h2>What went wrong</h2>
      <${Errors} errors=${stats.errors} /></article>`}
    ${stats?.models.length > 0 && html`<article class="card"><h2>Models</h2>
      <${Models} models=${stats.models} /></article>`}</div></section>`;
}

const Tile = ({ name, value, of, tone }) => html`<div class=${`tile ${tone ?? ""}`}>
  <b>${value.toLocaleString()}</b>
  <span>${name}${of > 0 && ` · ${percent(value / of)}`}</span></div>`;

const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;

const between = (low, high) => (low === high ? duration(low) : `${duration(low)} · ${duration(high)}`);

function ByTool({ tools }) {
  const slowest = Math.max(...tools.map((each) => each.p95_ms), 1);
  const number = (name) => [name, "number"];
  return html`<${Table} label="By tool" heads=${["Tool", ...["Calls", "Failed", "Denied", "Ran p50", "Ran p95"].map(number),
      "p50 to p95", number("Asked"), number("Waited p50 · p95")]}
    rows=${tools.map((each) => ({ key: each.tool, cells: [
      html`<a href=${href("live", "", { q: each.tool })}>${each.tool}</a>`, each.calls,
      { shown: each.errors, tone: each.errors ? "failed" : "" }, { shown: each.denials, tone: each.denials ? "denied" : "" },
      each.p95_ms ? duration(each.p50_ms) : "–", each.p95_ms ? duration(each.p95_ms) : "–",
      html`<${Spread} low=${each.p50_ms} high=${each.p95_ms} most=${slowest} />`,
      each.asked, each.asked ? between(each.waited_p50_ms, each.waited_p95_ms) : "–"] }))} />`;
}

const Errors = ({ errors }) => html`<${Table} label="What went wrong" heads=${["Tool", "How", ["Message of the last one", "path"],
    ["Calls", "number"], "Last"]}
  rows=${errors.map((each) => ({ key: `${each.tool} ${each.error_class} ${each.reason}`, title: each.message, cells: [
    html`<a href=${href("live", "", { call: each.call })}>${each.tool}</a>`,
    { shown: each.error_class, tone: endOf(each.error_class) }, html`<${Line} value=${each.message} />`, each.count,
    { shown: moment(each.last_at), tone: "nowrap" }] }))} />`;

const tokens = (models) => models.reduce((total, each) => total + each.input_tokens + each.output_tokens, 0);

const cost = (models) => money(models.some((each) => each.cost_usd !== null)
  ? models.reduce((total, each) => total + (each.cost_usd ?? 0), 0) : null);

const money = (dollars) => (dollars === null ? "no price known"
  : `$${dollars.toFixed(dollars < 0.1 ? 4 : 2)}`);

const Models = ({ models }) => html`<${Table} label="Models" heads=${["Model", ...["Replies", "Tokens in", "Tokens out", "Cost"]
    .map((name) => [name, "number"])]}
  rows=${models.map((each) => ({ key: each.model, cells: [html`<${Line} value=${each.model} />`,
    ...[each.replies, each.input_tokens, each.output_tokens].map((count) => count.toLocaleString()),
    money(each.cost_usd)] }))} />`;
