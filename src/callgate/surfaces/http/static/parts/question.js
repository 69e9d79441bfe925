// One question to a person: what would run, to the last character, why it is asked, and the answers.
//
// Nothing is allowed before all of its arguments were shown. A question that is closed stays as it
// was and takes no input.

import { at, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { settle } from "../lib/store.js";
import { useStill } from "../lib/still.js";
import { duration, isPlain } from "../lib/text.js";
import { decidedBy } from "../lib/words.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/ui.js";
import { Ask, Edit } from "./answering.js";
import { Arguments, isCut } from "./arguments.js";
import { Effect, Line, Text, Trouble } from "./basics.js";
import { Preview } from "./diff.js";
import { Folded, isShownWhole } from "./folded.js";

const SAID = { allow: "allowed", deny: "denied", timeout: "ran out of time", cancelled: "withdrawn" };
export const outcome = (decision) => SAID[decision] ?? "closed";
const OPEN_FIRST = "Not all of the arguments are shown. Open them first.";

/** Sends an answer to exactly these arguments; says so where someone else was first. */
async function answer(question, said) {
  try {
    const done = await post(at("confirmations", question.id),
      { ...said, arguments_sha256: question.arguments_sha256 });
    settle(question.id, { ...done, mine: true });
  } catch (problem) {
    if (problem.status !== 409 || problem.body?.applied !== false) throw problem;
    settle(question.id, { ...problem.body, late: said.decision });
  }
}

/**
 * `how` it was closed, if it is. `keys`, where keys lead here: `isChosen` says whether they do now,
 * `commands` gets what they do, `onChoose` hears that a person chose this question.
 */
export function Question({ question, how = null, keys = null, onDismiss }) {
  const [open, setOpen] = useState(null); // "deny", "edit" or "always"
  const [opened, setOpened] = useState(false);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const card = useRef(null);
  const box = useRef(null);
  const buttons = useRef(null);
  const pressed = useRef(null);
  const closed = how !== null;
  const isStill = useStill(buttons, keys?.isReady);
  const cut = useMemo(() => isCut(question.arguments), [question.arguments]);
  const isWhole = () => opened || (!cut && box.current !== null && isShownWhole(box.current));
  const [, draw] = useState(false); // as the arguments are measured

  async function send(said) {
    if (busy || closed) return;
    if (said.decision === "allow" && !isWhole()) return setProblem(OPEN_FIRST);
    setBusy(true);
    setProblem(null);
    try {
      await answer(question, said);
      card.current?.focus({ preventScroll: true });
    } catch (failure) {
      setProblem(failure);
      setBusy(false);
    }
  }
  const once = () => send({ decision: "allow", scope: "once" });
  const there = () => send({ decision: "allow", scope: "destination" });
  const session = () => send({ decision: "allow", scope: "session" });
  const toggle = (name) => () => {
    if (closed) return card.current.focus({ preventScroll: true });
    if (name === "edit" && open !== "edit" && !isWhole()) return setProblem(OPEN_FIRST);
    setOpen(open === name ? null : name);
    if (open === name) card.current.focus({ preventScroll: true }); // not to the page, or another
  };
  const showAll = () => {
    setOpened(true);
    setProblem(null);
  };
  /** For a key, which also works where the arguments are out of sight: brings them there first. */
  const inSight = (act) => () => {
    if (opened || isInSight(box.current)) return act();
    box.current.scrollIntoView({ block: "center" });
    setProblem("Here are the arguments. Press the key again.");
  };
  keys?.commands.set(question.id, { a: inSight(once), t: inSight(question.destinations?.length ? there : () => {}),
    s: inSight(session), d: toggle("deny"),
    e: toggle("edit"), w: toggle("always"), o: showAll });

  /** A click counts where the pointer went down on the same button of the same question, which had
   *  stood there for a while; one without a pointer has no such doubt. */
  const picks = (act) => (event) => {
    const meant = event.detail === 0 || pressed.current === event.currentTarget;
    if (meant && isStill() && !closed) act();
  };
  function press(event) {
    pressed.current = isStill() ? event.target.closest("button") : null;
    if (!closed) keys?.onChoose();
  }
  const chosen = Boolean(keys?.isChosen) && !closed;
  // Their place is kept while they are not shown: a button must not move under a click.
  const keyed = (key) => (keys ? key : null);
  const off = closed || busy || !isStill();
  const offUntilShown = off || !isWhole();
  const choice = (key, label, act, more) => html`<${Choice} keys=${keyed(key)} label=${label}
    onPick=${picks(act)} off=${off} ...${more} />`;

  return html`<article ref=${card} class=${`question ${chosen ? "chosen" : ""} ${closed ? "closed" : ""}`}
      tabindex=${keys ? 0 : -1} aria-label=${closed ? `${outcome(how.decision)}: ${question.tool}`
        : `Question about ${question.tool}`} data-question=${question.id} onPointerDown=${press}
      onKeyUp=${(event) => event.key === "Tab" && !closed && keys?.onChoose()}
      data-armed=${chosen && keys.isReady() && isStill()}>
    <header>
      <h2><${Line} value=${question.tool} /></h2><${Effect} effect=${question.side_effects} />
      ${question.destructive && html`<span class="effect destructive">destructive</span>`}
      <span class="asker">asked by <b><${Line} value=${askerOf(question)} most=${80} /></b></span>
      ${closed ? html`<b class="left" role="status">${outcome(how.decision)}</b>`
        : html`<${Left} until=${question.expires_at} />`}
    </header>
    <p class="why"><${Text} value=${question.why} /> <${Rule} question=${question} /></p>
    <${Provenance} question=${question} />
    <${Facts} question=${question} />
    <${Words} question=${question} />
    <${Arguments} values=${question.arguments} cut=${cut} box=${box} opened=${opened} onOpen=${showAll}
      onMeasure=${draw} keys=${keys} />
    <${Trouble} problem=${problem} />
    <div class="answers" role="group" aria-label="Answers" ref=${buttons}>
      ${choice("a", "Allow once", once, { main: true, off: offUntilShown })}
      ${question.destinations?.length > 0
        && choice("t", "This tool there, this session", there, { off: offUntilShown })}
      ${choice("s", "For this session", session, { off: offUntilShown })}
      ${choice("w", "Always…", toggle("always"), { open: open === "always" })}
      ${choice("e", "Edit…", toggle("edit"), { open: open === "edit" })}
      ${choice("d", "Deny…", toggle("deny"), { open: open === "deny", danger: true })}
    </div>
    ${open === "deny" && html`<${Ask} label="Reason, told to the agent (may stay empty)" act="Deny" danger
      closed=${closed} onBack=${toggle("deny")}
      onDone=${(reason) => send({ decision: "deny", ...(reason ? { reason } : {}) })} />`}
    ${open === "always" && html`<${Ask} label=${`Save a rule for ${patternKind(question)}`}
      usual=${patternOf(question)} act="Always allow" closed=${closed} onBack=${toggle("always")}
      onDone=${(pattern) => send({ decision: "allow", scope: "always", ...(pattern ? { pattern } : {}) })} />`}
    ${open === "edit" && html`<${Edit} question=${question} closed=${closed} onBack=${toggle("edit")}
      onDone=${(changed) => send({ decision: "allow", scope: "once", arguments: changed })} />`}
    ${closed && html`<p class="over">This question is over (${outcome(how.decision)}): what is typed here
      goes nowhere. <button class="small" type="button" onClick=${() => onDismiss?.(question.id)}>Put away</button></p>`}
  </article>`;
}

const Choice = ({ keys, label, main, danger, open, onPick, off }) => html`<button type="button"
    class=${main ? "main" : danger ? "danger" : ""} aria-keyshortcuts=${keys}
    aria-expanded=${open} aria-disabled=${off} onClick=${onPick}>${label}${keys && html` <kbd
      aria-hidden="true">${keys}</kbd>`}</button>`;

/** Whether all of it is on the screen. */
function isInSight(node) {
  const { top, bottom } = node.getBoundingClientRect();
  const scroller = node.closest(".scroll, .panel").getBoundingClientRect();
  return top >= scroller.top - 1 && bottom <= scroller.bottom + 1;
}

/** What the tool says that it will do. It stands beside the arguments, never in their place. */
function Words({ question }) {
  const [opened, setOpened] = useState(false);
  const { preview, arguments: { command } } = question;
  // A preview that ends in the command itself says where it runs; the command is shown anyway.
  const repeats = typeof command === "string" && command !== "" && preview?.endsWith(command);
  const text = repeats ? preview.slice(0, -command.length).trim() : preview;
  if (!text) return null;
  return html`<section class="words" aria-label="Preview"><h3>Preview${!question.preview_is_ours
      && ", in the tool's own words: what runs are the arguments below"}</h3>
    <${Folded} opened=${opened} onOpen=${() => setOpened(true)} mark=${html`<b>Show all</b> of the preview`}>
      <${Preview} text=${text} /></${Folded}></section>`;
}

const CALLERS = { cli: "a command", mcp: "an MCP client", acp: "an editor", library: "a program" };

/** In a word or two: who wants this. */
export function askerOf({ client, caller }) {
  // A name is the client's own word, and is marked as that: anyone can call itself anything.
  const program = client?.name ? `what calls itself “${client.name}”` : client?.program?.split("/").pop();
  if (caller === "llm" || caller === "agent") return program ? `the agent, for ${program}` : "the agent";
  return program ?? client?.address ?? CALLERS[caller] ?? caller ?? "somebody";
}

/** Where the values that matter come from: those that nobody vouched for first. */
function Provenance({ question }) {
  const lines = question.provenance_lines ?? [];
  if (!lines.length) return null;
  return html`<ul class="provenance" aria-label="Where values come from">${lines.map((line) => html`<li>
    <${Text} value=${line} /></li>`)}</ul>`;
}

function Facts({ question }) {
  const { sandbox, projected_modifications: files, client } = question;
  const asker = [client?.name && `calls itself ${client.name}`, client?.program,
    client?.process && `process ${client.process}`, client?.directory && `in ${client.directory}`,
    client?.address].filter(Boolean);
  return html`<dl class="facts">
    ${asker.length > 0 && html`<dt>Asked by</dt><dd><${Text} value=${asker.join(" · ")} /></dd>`}
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
  return html`<span class="rule"><${Text} value=${decidedBy(rule.reason) + place} /></span>`;
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
