// What would be decided about a call, and what other settings would have decided.

import { get, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { readJson } from "../lib/schema.js";
import { brief } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { decidedBy } from "../lib/words.js";
import { Line, Text, Trouble } from "../parts/basics.js";

const MODES = ["none", "read", "ask", "write"];
const SPANS = { "1 hour": 3600, "1 day": 86_400, "7 days": 604_800, "30 days": 2_592_000 };

export const Policy = ({ query }) => html`<section><header class="bar"><h1>Policy</h1></header>
  <div class="scroll"><div class="columns"><${Explain} query=${query} /><${BackTest} /></div></div>
    </section>`;

function Explain({ query }) {
  const [tools, setTools] = useState([]);
  const [tool, setTool] = useState(query.tool ?? "shell");
  const [given, setGiven] = useState(query.arguments ?? '{"command": "git status"}');
  const [mode, setMode] = useState("");
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    get("/v1/tools").then(({ tools: all }) => setTools(all), () => {});
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
    <p class="quiet">Nothing runs, nobody is asked.</p>
    <form class="try" onSubmit=${explain}>
      <label><span>Tool</span><input list="tool-names" value=${tool} required
        onInput=${(event) => setTool(event.target.value)} /></label>
      <datalist id="tool-names">${tools.map((each) => html`<option value=${each.name} />`)}</datalist>
      <label><span>Arguments</span><textarea rows="4" spellcheck=${false} value=${given}
        onInput=${(event) => setGiven(event.target.value)}></textarea></label>
      <label><span>Mode</span><select value=${mode} onChange=${(event) => setMode(event.target.value)}>
        <option value="">as it is</option>${MODES.map((each) => html`<option>${each}</option>`)}</select>
          </label>
      <button class="main">Explain</button></form>
    <${Trouble} problem=${problem} />${found && html`<${Verdict} found=${found} />`}</article>`;
}

function Verdict({ found }) {
  if (found.ends_before) {
    return html`<div class="verdict deny" role="status"><b>ends before</b>
      <p><${Text} value=${found.ends_before.message} /></p></div>`;
  }
  const place = found.origin && `${found.origin.file}${found.origin.line ? `:${found.origin.line}` : ""}`;
  return html`<div class=${`verdict ${found.outcome}`} role="status"><b>${found.outcome}</b>
    <p><${Text} value=${found.sentence} /></p>
    <dl class="facts"><dt>By</dt><dd><${Text} value=${decidedBy(found.reason)} /></dd>
      ${place && html`<dt>Stands in</dt><dd><${Text} value=${place} /></dd>`}
      ${found.sandbox && html`<dt>Runs in</dt><dd><${Text} value=${found.sandbox} /></dd>`}
      ${found.paths?.length > 0 && html`<dt>Touches</dt><dd><${Text} value=${found.paths.join(", ")} /></dd>`}
    </dl></div>`;
}

const EXAMPLE = `[policy.default]
read = "auto"
write = "prompt"

[[policy.rules]]
decision = "allow"
tool = "shell"
command = "git status *"
`;

function BackTest() {
  const [settings, setSettings] = useState(EXAMPLE);
  const [span, setSpan] = useState("7 days");
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);

  async function test(event) {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      setFound(await post("/v1/policy/test", { settings, since: Date.now() / 1000 - SPANS[span] }));
    } catch (failure) {
      setFound(null);
      setProblem(failure);
    }
    setBusy(false);
  }

  return html`<article class="card"><h2>Test other settings</h2>
    <p class="quiet">Recorded calls are judged again; nothing runs, nothing is saved.</p>
    <form class="try" onSubmit=${test}>
      <label><span>settings.toml</span><textarea class="tall" rows="10" spellcheck=${false} value=${settings}
        onInput=${(event) => setSettings(event.target.value)}></textarea></label>
      <label><span>Calls of the last</span><select value=${span}
        onChange=${(event) => setSpan(event.target.value)}>
        ${Object.keys(SPANS).map((each) => html`<option>${each}</option>`)}</select></label>
      <button class="main" disabled=${busy}>${busy ? "Judging…" : "Test"}</button></form>
    <${Trouble} problem=${problem} />${found && html`<${Changes} found=${found} />`}</article>`;
}

function Changes({ found }) {
  const many = found.changed.reduce((sum, each) => sum + each.count, 0);
  const unknown = found.undecidable?.count ?? 0;
  return html`<p role="status"><b>${many}</b> of ${found.judged} decisions would change,
      ${" "}<b class=${found.loosened ? "warn" : ""}>${found.loosened ? "some" : "none"} to something looser</b>.
      ${unknown > 0 && ` Of ${unknown} it cannot be said.`}</p>
    ${many > 0 && html`<table class="wide"><thead><tr><th>Tool</th><th>Arguments</th><th>Was</th>
      <th>Would be</th>
      <th class="number">Calls</th></tr></thead><tbody>${found.changed.slice(0, 500).map((each) => html`<tr
        title=${each.new.sentence}><td><a href=${href("live", "", { call: each.call })}>${each.tool}</a></td>
        <td class="path"><${Line} value=${brief(each.arguments)} /></td><td>${each.old.outcome}</td>
        <td><b class=${each.loosened ? "warn" : ""}>${each.new.outcome}</b></td>
        <td class="number">${each.count}</td></tr>`)}</tbody></table>`}`;
}
