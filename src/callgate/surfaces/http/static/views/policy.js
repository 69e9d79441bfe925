// The rules in force, what more lines would have decided, and what is decided about a call.

import { get, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { useQuestions } from "../lib/questions.js";
import { readJson } from "../lib/schema.js";
import { useStore } from "../lib/store.js";
import { brief } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { decidedBy } from "../lib/words.js";
import { Copy, Line, Text, Trouble } from "../parts/basics.js";
import { Questions } from "../parts/questions.js";
import { Table } from "../parts/table.js";

const TONES = { allow: "ok", ask: "asked", deny: "denied" };
const WORDS = { auto: "allow", prompt: "ask", prompt_once: "ask once a session", deny: "deny" };
const MODES = ["none", "read", "ask", "guarded", "write"];
const SPANS = { "1 hour": 3600, "1 day": 86_400, "7 days": 604_800, "30 days": 2_592_000 };

export function Policy({ query }) {
  const [saved, setSaved] = useState(0);
  return html`<section><header class="bar"><h1>Policy</h1></header>
  <div class="scroll"><${InForce} saved=${saved} /><div class="columns"><${BackTest} onSaved=${() => setSaved(saved + 1)} /><${Explain} query=${query} /></div></div>
    </section>`;
}

const placeOf = (origin) => `${origin.file}${origin.line ? `:${origin.line}` : ""}`;

/** What holds, and where each of it stands. */
function InForce({ saved }) {
  const { link } = useStore();
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => { get("/v1/policy").then(setFound, setProblem); }, [link, saved]);
  const words = [...(found?.tools ?? []), ...(found?.classes ?? [])];
  return html`<article class="card"><h2>Rules in force</h2><${Trouble} problem=${problem} />
    ${found?.rules.length === 0 && html`<p class="quiet">No rules: what follows decides.</p>`}
    ${found?.rules.length > 0 && html`<${Table} label="Rules in force" heads=${["Decision", "For", ["Stands in", "path"]]}
      rows=${found.rules.map((each) => ({ key: placeOf(each.origin), title: placeOf(each.origin), cells: [
        { shown: each.decision, tone: TONES[each.decision] }, html`<${Line} value=${each.says} />`,
        html`<${Line} value=${placeOf(each.origin)} />${each.workspace && " (only narrows)"}`] }))} />`}
    ${found && html`<details><summary>Where no rule speaks: tools and effects</summary>
      <${Table} label="Where no rule speaks" heads=${["For", "Decision", ["Stands in", "path"]]}
        rows=${words.map((each) => ({ key: each.name, cells: [html`<${Line} value=${each.name} />`,
          WORDS[each.word] ?? each.word, html`<${Line} value=${placeOf(each.origin)} />`] }))} /></details>
      ${found.trusted_workspaces.length > 0 && html`<p class="quiet">Writes need no question in <${Text}
        value=${found.trusted_workspaces.join(", ")} />.</p>`}`}</article>`;
}

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
  const place = found.origin && placeOf(found.origin);
  return html`<div class=${`verdict ${found.outcome}`} role="status"><b>${found.outcome}</b>
    <p><${Text} value=${found.sentence} /></p>
    <dl class="facts"><dt>By</dt><dd><${Text} value=${decidedBy(found.reason)} /></dd>
      ${place && html`<dt>Stands in</dt><dd><${Text} value=${place} /></dd>`}
      ${found.sandbox && html`<dt>Runs in</dt><dd><${Text} value=${found.sandbox} /></dd>`}
      ${found.paths?.length > 0 && html`<dt>Touches</dt><dd><${Text} value=${found.paths.join(", ")} /></dd>`}
    </dl></div>`;
}

/** A rule as lines of TOML, in which a JSON string is a string. */
export function ruleLines({ decision, tool, kind, pattern }) {
  const text = (value) => JSON.stringify(value).replaceAll("\x7f", "\\u007f");
  return ["[[policy.rules]]", `decision = ${text(decision)}`, ...(tool ? [`tool = ${text(tool)}`] : []),
    ...(pattern ? [`${kind} = ${text(pattern)}`] : [])].join("\n");
}

/** Writes the lines of one more rule. */
function Compose({ onAdd, onSaved }) {
  const [rule, setRule] = useState({ decision: "allow", tool: "shell", kind: "command", pattern: "git status *" });
  const asked = useQuestions((each) => each.tool === "save_rule", { ownGo: true });
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  // A call like any other: it is asked about, here and in the inbox, and recorded.
  async function save() {
    setProblem(null);
    setTold("Asking…");
    const { decision, tool, kind, pattern } = rule;
    try {
      const result = await post("/v1/policy/rules", { decision, ...(tool ? { tool } : {}), ...(pattern ? { [kind]: pattern } : {}) });
      setTold(result.content.map((block) => block.text ?? "").join("\n"));
      onSaved();
    } catch (failure) {
      setTold(null);
      setProblem(failure);
    }
  }
  const field = (name) => ({ value: rule[name], onInput: (event) => setRule({ ...rule, [name]: event.target.value }) });
  return html`<div class="compose" role="group" aria-label="A rule">
    <select aria-label="Decision" ...${field("decision")}>${["allow", "ask", "deny"].map((each) => html`<option>${each}</option>`)}</select>
    <input aria-label="Rule for" placeholder="any tool" ...${field("tool")} />
    <select aria-label="Pattern of" ...${field("kind")}>${["command", "path"].map((each) => html`<option>${each}</option>`)}</select>
    <input aria-label="Pattern" placeholder="any" ...${field("pattern")} />
    <button type="button" onClick=${() => onAdd(ruleLines(rule))}>Add its lines</button>
    <button type="button" onClick=${save}>Save it…</button></div>
    <${Trouble} problem=${problem} /><${Questions} of=${asked} />
    ${told && html`<p class="told" role="status"><${Text} value=${told} /></p>`}`;
}

function BackTest({ onSaved }) {
  const { instance } = useStore();
  const [settings, setSettings] = useState("");
  const [span, setSpan] = useState("7 days");
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
    <p class="quiet">Write lines, see which recorded calls they would decide otherwise, and paste them at the end of
      ${" "}<code><${Text} value=${`${instance?.home ?? "~/.callgate"}/settings.toml`} /></code>. Nothing runs.
      A rule can be saved from here too, after a yes, into <code>rules.toml</code> beside it.</p>
    <form class="try" onSubmit=${test}>
      <${Compose} onSaved=${onSaved} onAdd=${(lines) => setSettings(`${settings.trimEnd()}\n\n${lines}\n`.trimStart())} />
      <label><span>Lines to add to settings.toml</span><textarea class="tall" rows="10" spellcheck=${false} value=${settings}
        onInput=${(event) => setSettings(event.target.value)}></textarea></label>
      <label><span>Calls of the last</span><select value=${span}
        onChange=${(event) => setSpan(event.target.value)}>
        ${Object.keys(SPANS).map((each) => html`<option>${each}</option>`)}</select></label>
      <p class="buttons"><button class="main" disabled=${busy}>${busy ? "Judging…" : "Test"}</button>
        <${Copy} text=${settings} label="Copy the lines" /></p></form>
    <${Trouble} problem=${problem} />${found && html`<${Changes} found=${found} />`}</article>`;
}

function Changes({ found }) {
  const many = found.changed.reduce((sum, each) => sum + each.count, 0);
  const unknown = found.undecidable?.count ?? 0;
  return html`<p role="status"><b>${many}</b> of ${found.judged} decisions would change,
      ${" "}<b class=${found.loosened ? "warn" : ""}>${found.loosened ? "some" : "none"} to something looser</b>.
      ${unknown > 0 && ` Of ${unknown} it cannot be said.`}</p>
    ${many > 0 && html`<${Table} label="Changed decisions" heads=${["Tool", ["Arguments", "path"], "Was", "Would be", ["Calls", "number"]]}
      rows=${found.changed.slice(0, 500).map((each) => ({ key: each.call, title: each.new.sentence, cells: [
        html`<a href=${href("live", "", { call: each.call })}>${each.tool}</a>`,
        html`<${Line} value=${brief(each.arguments)} />`, each.old.outcome,
        html`<b class=${each.loosened ? "warn" : ""}>${each.new.outcome}</b>`, each.count] }))} />`}`;
}
