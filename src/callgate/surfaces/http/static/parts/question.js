// One question to a person: what would happen, why it is asked, and the answers.

import { at, post } from "../lib/api.js";
import { isDiff } from "../lib/diff.js";
import { href } from "../lib/router.js";
import { readJson } from "../lib/schema.js";
import { settle, state } from "../lib/store.js";
import { duration, editable, isPlain } from "../lib/text.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/ui.js";
import { Effect, Line, Text, Trouble, Values } from "./basics.js";
import { Preview } from "./diff.js";

const STILL_MS = 500;
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
  const isStill = useStill();
  const once = () => isStill() && send({ decision: "allow", scope: "once" });
  const session = () => isStill() && send({ decision: "allow", scope: "session" });
  const keyed = (key) => (commands ? key : null); // only there the keys lead here
  const toggle = (name) => () => setOpen(open === name ? null : name);
  if (commands) {
    commands.current = { a: once, s: session, d: toggle("deny"), e: toggle("edit"), w: toggle("always") };
  }

  return html`<article class=${`question ${chosen ? "chosen" : ""}`} onFocusIn=${onChoose}
      onClick=${onChoose} aria-label=${`Question about ${question.tool}`} data-question=${question.id}
      data-armed=${chosen && isStill()}>
    <header>
      <h2><${Line} value=${question.tool} /></h2><${Effect} effect=${question.side_effects} />
      ${question.destructive && html`<span class="effect destructive">destructive</span>`}
      <${Left} until=${question.expires_at} />
    </header>
    <p class="why"><${Text} value=${question.why} /> <${Rule} question=${question} /></p>
    <${Subject} question=${question} />
    <${Trouble} problem=${problem} />
    <div class="answers" role="group" aria-label="Answers">
      <${Choice} keys=${keyed("a")} label="Allow once" main onPick=${once} busy=${busy} off=${!isStill()} />
      <${Choice} keys=${keyed("s")} label="For this session" onPick=${session} busy=${busy}
        off=${!isStill()} />
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

const Choice = ({ keys, label, main, danger, busy, open, onPick, off }) => html`<button
    class=${main ? "main" : danger ? "danger" : ""} disabled=${busy} aria-keyshortcuts=${keys}
    aria-expanded=${open} aria-disabled=${off} onClick=${onPick}>${label}${keys && html` <kbd
      aria-hidden="true">${keys}</kbd>`}</button>`;

/** Not just after the card came, another went, or the window came to the front: a key or a click
 *  then was meant for what stood there before. Tells when asked, and draws when it changes. */
function useStill() {
  const since = useRef(performance.now());
  const [, draw] = useState(0);
  const isStill = () => performance.now() - Math.max(since.current, state.closedAt) >= STILL_MS;
  useEffect(() => {
    const timer = setInterval(() => draw(isStill()), 100);
    const come = () => { since.current = performance.now(); };
    addEventListener("focus", come);
    return () => {
      clearInterval(timer);
      removeEventListener("focus", come);
    };
  }, []);
  return isStill;
}

/** What the call is about. A command or a diff says more than the arguments it was made of. */
function Subject({ question }) {
  const { command_summary: summary, sandbox, projected_modifications: files } = question;
  // Whole, where it is known: a summary may leave out the middle.
  const command = summary && (question.arguments.command ?? summary);
  // A preview that ends in the command itself says where it runs; the command is shown anyway.
  const repeats = command && question.preview?.endsWith(command);
  const preview = repeats ? question.preview.slice(0, -command.length).trim() : question.preview;
  const details = html`<${Values} values=${question.arguments} />`;
  // What neither the command nor a diff tells is not to be looked for.
  const { command: _, ...others } = question.arguments;
  if (repeats) delete others.cwd;
  const isTold = command ? !Object.keys(others).length : isDiff(preview ?? "");
  return html`
    ${command && html`<pre class="block shell" tabindex="0" aria-label="Command"><span
      class="prompt" aria-hidden="true">$ </span><${Text} value=${command} /></pre>`}
    ${preview && (repeats ? html`<p class="quiet"><${Text} value=${preview} /></p>`
      : html`<${Preview} text=${preview} />`)}
    ${command || preview ? html`<details open=${!isTold}><summary>Arguments</summary>${details}</details>` : details}
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
  const files = question.projected_modifications ?? [];
  const usual = question.command_summary ? question.arguments.command : files.length === 1 && files[0];
  return typeof usual === "string" && isPlain(usual) ? usual : "";
}

/** One line to type, with a button; Enter sends, Escape goes back. */
function Ask({ label, usual = "", act, danger, onDone, onBack }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
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
  useLayoutEffect(() => field.current.focus(), []);
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
        defaultValue=${editable(question.arguments)}></textarea></label>
    <${Trouble} problem=${problem} />
    <button class="main">Allow with these</button> <span class="quiet">Ctrl+Enter</span></form>`;
}
