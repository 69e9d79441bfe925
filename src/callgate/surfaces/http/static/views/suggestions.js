// Rules that the calls on record suggest: how often each was agreed to, and what it would have answered.

import { get } from "../lib/api.js";
import { href } from "../lib/router.js";
import { useRuleSaving } from "../lib/saving.js";
import { day } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Copy, Text, Trouble } from "../parts/basics.js";
import { Questions } from "../parts/questions.js";

const SPANS = { "1 day": 86_400, "7 days": 604_800, "30 days": 2_592_000, "1 year": 31_536_000 };
const LEAST = ["1", "2", "3", "5", "10"];
const LEFT_OUT = {
  destructive: "destructive, or not known not to be",
  interpreter: "interpreters, wrappers (env, sudo, xargs) and programs of a directory",
  compound_command: "several commands in a line, redirections, or a line not fully understood",
  arguments_cut: "arguments that a rule would need are cut or redacted on record",
  tool_unknown: "the tool is not registered here",
  always_asked: "no rule answers for them",
  protected_path: "a path that is protected or outside",
  rule_asks: "a rule asks, or the settings of the workspace: an allow does not change that",
  undecidable: "whether they are asked about cannot be told from the record",
  workspace_settings: "the settings of the workspace cannot be used",
};
const DROPPED = {
  would_allow_denied: "It would have allowed a call that was denied.",
  denial_unclear: "Whether it would have allowed a call that was denied cannot be told.",
};

const many = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export function SuggestedRules() {
  const [span, setSpan] = useState("30 days");
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
      ${choice("Agreed to at least", least, setLeast, LEAST)}</header>
    <div class="scroll"><p class="quiet">Narrow rules for what was allowed again and again, tried on the record.
        Saving one is asked about. What holds now stands under <a href=${href("policy")}>Policy</a>.</p>
      <${Trouble} problem=${problem} /><${Trouble} problem=${saving.problem} />
      <${Questions} of=${saving.asked} />
      ${saving.told && html`<p class="told" role="status"><${Text} value=${saving.told} /></p>`}
      ${found && found.suggestions.length === 0 && html`<p role="status">No rule is suggested
        by ${found.looked_at} calls.</p>`}
      ${found?.suggestions.map((each) => html`<${Suggestion} key=${each.toml} of=${each} onSave=${saving.save} />`)}
      ${found?.dropped.map((each) => html`<${Suggestion} key=${each.toml} of=${each} />`)}
      ${leftOut.length > 0 && html`<article class="card"><h2>Agreed to, and no rule is suggested for</h2>
        <ul>${leftOut.map(([why, count]) => html`<li>${many(count, "call")}: ${LEFT_OUT[why] ?? why}</li>`)}</ul>
      </article>`}
      ${found?.rare > 0 && html`<p class="quiet">${found.rare} more: not agreed to often enough.</p>`}
    </div></section>`;
}

function Suggestion({ of, onSave }) {
  const dates = day(of.first) === day(of.last) ? `on ${day(of.last)}` : `from ${day(of.first)} to ${day(of.last)}`;
  const steps = Object.entries(of.steps).map(([step, count]) => `${count} ${step.replace("->", " → ")}`);
  return html`<article class="card" aria-label=${`${of.dropped ? "Not suggested" : "Suggested"}: ${of.rule.tool}`}>
    <h2><${Text} value=${of.rule.tool} />${of.dropped && html` <b class="warn">not suggested</b>`}</h2>
    ${of.dropped && html`<p>${DROPPED[of.dropped] ?? of.dropped}${" "}
      <a href=${href("live", "", { call: of.denied_call })}>The denied call</a></p>`}
    <dl class="facts"><dt>Agreed to</dt><dd>${many(of.count, "time")}, ${of.answered} by a person,
        in ${many(of.sessions, "session")}, ${dates}</dd>
      <dt>Would have answered</dt><dd>${steps.join(", ") || "nothing otherwise"}; ${of.same} the same
        ${of.undecidable > 0 && `; of ${of.undecidable} it cannot be said`}</dd>
      ${of.rule.arguments_sha256 && html`<dt>Exactly</dt><dd><${Text} value=${of.example} /></dd>`}</dl>
    <pre class="block"><${Text} value=${of.toml} /></pre>
    ${onSave && html`<p class="buttons"><button class="main" onClick=${() => onSave(of.rule)}>Save this rule…</button>
      <${Copy} text=${of.toml} label="Copy the lines" /></p>`}</article>`;
}
