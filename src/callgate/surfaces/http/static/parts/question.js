// One question to a person: what would happen, why it is asked, and the answers.

import { at, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { readJson } from "../lib/schema.js";
import { settle } from "../lib/store.js";
import { duration } from "../lib/text.js";
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { Effect, Line, Text, Trouble, Values } from "./basics.js";
import { Preview } from "./diff.js";

const SAID = { allow: "allowed", deny: "denied", timeout: "ran out of time", cancelled: "withdrawn" };
export const outcome = (decision) => SAID[decision] ?? "closed";

/** Sends an answer; says so where someone else was first. */
async function answer(question, said) {
  try {
    const done = await post(at("confirmations", question.id), said);
    settle(question.id, { ...done, mine: true });
  } catch (problem) {
    if (problem.status !== 409 || problem.body?.applied !== false) throw problem;
    settle(question.id, { ...problem.body, late: said.decision });
  }
}

/** `commands.current` gets what the keys of the inbox do, where the card is the chosen one. */
export function Question({ question, chosen = false, commands, onChoose }) {
  const [open, setOpen] = useState(null); // "deny", "edit" or "always"
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);

  async function send(said) {
    if (busy) return;
    setBusy(true);
    setProblem(null);
    try {
      await answer(question, said);
    } catch (failure) {
      setProblem(failure);
      setBusy(false);
    }
  }
  const once = () => send({ decision: "allow", scope: "once" });
  const session = () => send({ decision: "allow", scope: "session" });
  const keyed = (key) => (commands ? key : null); // only there the keys lead here
  const toggle = (name) => () => setOpen(open === name ? null : name);
  if (commands) {
    commands.current = { a: once, s: session, d: toggle("deny"), e: toggle("edit"), w: toggle("always") };
  }

  return html`<article class=${`question ${chosen ? "chosen" : ""}`} onFocusIn=${onChoose}
      onClick=${onChoose} aria-label=${`Question about ${question.tool}`} data-question=${question.id}>
    <header>
      <h2><${Line} value=${question.tool} /></h2><${Effect} effect=${question.side_effects} />
      ${question.destructive && html`<span class="effect destructive">destructive</span>`}
      <${Left} until=${question.expires_at} />
    </header>
    <p class="why"><${Text} value=${question.why} /> <${Rule} question=${question} /></p>
    <${Subject} question=${question} />
    <${Trouble} problem=${problem} />
    <div class="answers" role="group" aria-label="Answers">
      <${Choice} keys=${keyed("a")} label="Allow once" main onPick=${once} busy=${busy} />
      <${Choice} keys=${keyed("s")} label="For this session" onPick=${session} busy=${busy} />
      <${Choice} keys=${keyed("w")} label="Always…" onPick=${toggle("always")} busy=${busy}
        open=${open === "always"} />
      <${Choice} keys=${keyed("e")} label="Edit…" onPick=${toggle("edit")} busy=${busy}
        open=${open === "edit"} />
      <${Choice} keys=${keyed("d")} label="Deny…" danger onPick=${toggle("deny")} busy=${busy}
        open=${open === "deny"} />
    </div>
    ${open === "deny" && html`<${Ask} label="Reason, told to the agent (may stay empty)" act="Deny" danger
      onDone=${(reason) => send({ decision: "deny", ...(reason ? { reason } : {}) })}
        onBack=${toggle("deny")} />`}
    ${open === "always" && html`<${Ask} label=${`Save a rule for ${patternKind(question)}`}
      usual=${patternOf(question)} act="Always allow" onBack=${toggle("always")}
      onDone=${(pattern) => send({ decision: "allow", scope: "always", ...(pattern ? { pattern } : {}) })} />`}
    ${open === "edit" && html`<${Edit} question=${question} onBack=${toggle("edit")}
      onDone=${(changed) => send({ decision: "allow", scope: "once", arguments: changed })} />`}
  </article>`;
}

const Choice = ({ keys, label, main, danger, busy, open, onPick }) => html`<button
    class=${main ? "main" : danger ? "danger" : ""} disabled=${busy} aria-keyshortcuts=${keys}
    aria-expanded=${open} onClick=${onPick}>${label}${keys && html` <kbd
      aria-hidden="true">${keys}</kbd>`}</button>`;

/** What the call is about. A command or a diff says more than the arguments it was made of. */
function Subject({ question }) {
  const { command_summary: summary, sandbox, projected_modifications: files } = question;
  // Whole, where it is known: a summary may leave out the middle.
  const command = summary && (question.arguments.command ?? summary);
  // A preview that ends in the command itself says where it runs; the command is shown anyway.
  const repeats = command && question.preview?.endsWith(command);
  const preview = repeats ? question.preview.slice(0, -command.length).trim() : question.preview;
  const details = html`<${Values} values=${question.arguments} />`;
  return html`
    ${command && html`<pre class="block shell" tabindex="0" aria-label="Command"><span
      class="prompt" aria-hidden="true">$ </span><${Text} value=${command} /></pre>`}
    ${preview && (repeats ? html`<p class="quiet"><${Text} value=${preview} /></p>`
      : html`<${Preview} text=${preview} />`)}
    ${command || preview ? html`<details><summary>Arguments</summary>${details}</details>` : details}
    <dl class="facts">
      ${sandbox && html`<dt>Runs in</dt><dd><${Text} value=${sandbox} /></dd>`}
      ${files?.length > 0 && html`<dt>Changes</dt><dd><${Text} value=${files.join(", ")} /></dd>`}
      <dt>Workspace</dt><dd><${Text} value=${question.workspace} /></dd>
      <dt>Session</dt><dd><a href=${href("session", question.session_id)}>${question.session_id}</a></dd>
    </dl>`;
}

/** Which rule asks, and where it stands: the policy explains the same call. */
function Rule({ question }) {
  const [rule, setRule] = useState(null);
  useEffect(() => {
    const { tool, arguments: given, session_id: session } = question;
    post("/v1/policy/explain", { tool, arguments: given, session }).then(setRule, () => {});
  }, [question.id]);
  if (!rule?.reason) return null;
  const place = rule.origin ? ` · ${rule.origin.file}${rule.origin.line ? `:${rule.origin.line}` : ""}` : "";
  return html`<span class="rule"><${Text} value=${rule.reason + place} /></span>`;
}

function Left({ until }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const left = Math.max(0, until * 1000 - now);
  return html`<span class=${`left ${left < 30_000 ? "soon" : ""}`} title="Then it is refused">${
    left ? `${duration(left)} left` : "time is up"}</span>`;
}

function patternKind(question) {
  if (question.command_summary) return "commands like this";
  return question.projected_modifications?.length ? "these files" : "exactly these arguments";
}

/** A pattern to begin with; empty leaves the choice to the instance, which is careful. */
function patternOf(question) {
  if (question.command_summary) return String(question.arguments.command ?? "");
  const files = question.projected_modifications ?? [];
  return files.length === 1 ? files[0] : "";
}

/** One line to type, with a button; Enter sends, Escape goes back. */
function Ask({ label, usual = "", act, danger, onDone, onBack }) {
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  function send(event) {
    event.preventDefault();
    onDone(field.current.value.trim());
  }
  return html`<form class="typed" onSubmit=${send} onKeyDown=${(event) => event.key === "Escape" && onBack()}>
    <label><span>${label}</span><input ref=${field} defaultValue=${usual} autocomplete="off"
      spellcheck=${false} /></label>
    <button class=${danger ? "danger" : "main"}>${act}</button></form>`;
}

function Edit({ question, onDone, onBack }) {
  const field = useRef(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => field.current.focus(), []);
  function send(event) {
    event.preventDefault();
    try {
      const read = readJson(field.current.value);
      if (read === null || typeof read !== "object" || Array.isArray(read)) {
        throw new Error("Arguments are an object.");
      }
      onDone(read);
    } catch (failure) {
      setProblem(failure);
    }
  }
  function press(event) {
    if (event.key === "Escape") onBack();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
  }
  return html`<form class="edit" onSubmit=${send} onKeyDown=${press}>
    <label><span>Arguments to run instead; they go through every check again</span>
      <textarea ref=${field} rows="8" spellcheck=${false}
        defaultValue=${JSON.stringify(question.arguments, null, 2)}></textarea></label>
    <${Trouble} problem=${problem} />
    <button class="main">Allow with these</button> <span class="quiet">Ctrl+Enter</span></form>`;
}
