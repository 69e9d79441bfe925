// How much, how well and how fast: over time and by tool.

import { get } from "../lib/api.js";
import { href, setQuery } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { duration } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Empty, Trouble } from "../parts/basics.js";
import { Bars, Spread } from "../parts/plots.js";

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
    ${stats && !tools.length && html`<${Empty} title="No calls in this time."
      command="callgate call list_dir" />`}
    ${tools.length > 0 && html`
      <div class="tiles"><${Tile} name="calls" value=${sum("calls")} />
        <${Tile} name="failed" value=${sum("errors")} of=${sum("calls")} tone="failed" />
        <${Tile} name="denied" value=${sum("denials")} of=${sum("calls")} tone="denied" /></div>
      <article class="card"><h2>Calls over time</h2><${Bars} times=${stats.times} since=${stats.since}
        span=${SPANS[span]} step=${stats.span_s} /></article>
      <article class="card"><h2>By tool</h2><${ByTool} tools=${tools} /></article>`}</div></section>`;
}

const Tile = ({ name, value, of, tone }) => html`<div class=${`tile ${tone ?? ""}`}>
  <b>${value.toLocaleString()}</b>
  <span>${name}${of > 0 && ` · ${percent(value / of)}`}</span></div>`;

const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;

function ByTool({ tools }) {
  const slowest = Math.max(...tools.map((each) => each.p95_ms), 1);
  return html`<table class="wide"><thead><tr><th>Tool</th><th class="number">Calls</th><th
    class="number">Failed</th>
    <th class="number">Denied</th><th class="number">p50</th><th class="number">p95</th><th>p50 to p95</th>
      </tr></thead>
    <tbody>${tools.map((each) => html`<tr key=${each.tool}><td><a
      href=${href("live", "", { q: each.tool })}>${each.tool}</a></td>
      <td class="number">${each.calls}</td><td
        class=${`number ${each.errors ? "failed" : ""}`}>${each.errors}</td>
      <td class=${`number ${each.denials ? "denied" : ""}`}>${each.denials}</td>
      <td class="number">${duration(each.p50_ms)}</td><td class="number">${duration(each.p95_ms)}</td>
      <td><${Spread} low=${each.p50_ms} high=${each.p95_ms} most=${slowest} /></td></tr>`)}</tbody></table>`;
}
