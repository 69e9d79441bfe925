// One question: the complete arguments, the reason, and the answers. It cannot be allowed before all
// arguments were shown. A closed question takes no input.

import { at, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { settle } from "../lib/store.js";
import { useStill } from "../lib/still.js";
import { duration, isPlain, shortId, visible } from "../lib/text.js";
import { mattersOf } from "../lib/matters.js";
import { decidedBy, sandboxOf } from "../lib/words.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/ui.js";
import { Ask, Edit } from "./answering.js";
import { Arguments, decorationsOf, isCut } from "./arguments.js";
import { Effect, Trouble, asLine, asText } from "./basics.js";
import { Preview } from "./diff.js";
import { Folded, isShownWhole } from "./folded.js";

const SAID = { allow: "allowed", deny: "denied", timeout: "expired", cancelled: "withdrawn" };
export const outcome = (decision) => SAID[decision] ?? "closed";
const OPEN_FIRST = "Not all arguments are shown. Open them first.";

/** Answer for exactly these arguments; another answer may be first. */
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

/** `how`: how it was closed, or null. `keys`: `isChosen`: whether keys answer it; `commands` gets
 *  their functions; `onChoose` is called when a person selects it. */
export function Question({ question, how = null, keys = null, onDismiss }) {
	const [form, setOpen] = useState(null); // "deny", "edit" or "always"
	const open = how?.mine ? null : form;
	const [opened, setOpened] = useState(false);
	const [problem, setProblem] = useState(null);
	const [busy, setBusy] = useState(false);
	const card = useRef(null);
	const box = useRef(null);
	const buttons = useRef(null);
	const pressed = useRef(null);
	const closed = how !== null;
	const isHost = question.tool === "connect_host"; // a running command contacts it
	const isStill = useStill(buttons, keys?.isReady);
	const cut = useMemo(() => isCut(question.arguments), [question.arguments]);
	const decorations = useMemo(() => (cut ? null : decorationsOf(question)), [question]);
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
	const run = () => send({ decision: "allow", scope: "run" });
	const there = () => send({ decision: "allow", scope: "destination" });
	const session = () => send({ decision: "allow", scope: "session" });
	const toggle = (name) => () => {
		if (closed) return card.current.focus({ preventScroll: true });
		if (name === "edit" && isHost) return;
		if (name === "edit" && open !== "edit" && !isWhole()) return setProblem(OPEN_FIRST);
		setOpen(open === name ? null : name);
		if (open === name) card.current.focus({ preventScroll: true }); // not the page or another
	};
	const showAll = () => {
		setOpened(true);
		setProblem(null);
	};
	/** For a key: scroll arguments into view first. */
	const inSight = (act) => () => {
		if (opened || isInSight(box.current)) return act();
		box.current.scrollIntoView({ block: "center" });
		setProblem("Check the arguments. Then press the key again.");
	};
	keys?.commands.set(question.id, { a: inSight(once), t: inSight(question.destinations?.length ? there : () => {}),
		s: inSight(isHost ? () => {} : session), r: inSight(isHost ? run : () => {}), d: toggle("deny"),
		e: toggle("edit"), w: toggle("always"), o: showAll });

	/** A click counts if the pointer went down on the same button, which had not moved. */
	const picks = (act) => (event) => {
		const meant = event.detail === 0 || pressed.current === event.currentTarget;
		if (meant && isStill(event.timeStamp) && !closed) act();
	};
	function press(event) {
		pressed.current = isStill(event.timeStamp) ? event.target.closest("button") : null;
		if (!closed) keys?.onChoose();
	}
	const chosen = Boolean(keys?.isChosen) && !closed;
	const keyed = (key) => (keys ? key : null);
	const off = closed || busy || !isStill();
	const offUntilShown = off || !isWhole();
	const choice = (key, label, act, more) => html`<${Choice} keys=${keyed(key)} label=${label}
		onPick=${picks(act)} off=${off} ...${more} />`;

	return html`<article ref=${card} class=${`question ${chosen ? "chosen" : ""} ${closed ? "closed" : ""}`}
			tabindex=${keys ? 0 : -1} aria-label=${closed ? `${outcome(how.decision)}: ${visible(question.tool)}`
				: `Question about ${visible(question.tool)}`} data-question=${question.id} onPointerDown=${press}
			onKeyUp=${(event) => event.key === "Tab" && !closed && keys?.onChoose()}
			data-armed=${chosen && keys.isReady() && isStill()}>
		<header>
			<h2>${asLine(question.tool)}</h2><${Effect} effect=${question.side_effects} />
			${question.destructive && html`<span class="effect destructive">destructive</span>`}
			<span class="asker">asked by <b>${asLine(askerOf(question), 80)}</b></span>
			${closed ? html`<b class="left" role="status">${outcome(how.decision)}</b>`
				: html`<${Left} until=${question.expires_at} />`}
		</header>
		<p class="why">${asText(question.why)} <${Rule} question=${question} /></p>
		<${Matters} question=${question} />
		<${Provenance} question=${question} />
		${!decorations && html`<${Words} question=${question} />`}
		<${Arguments} values=${question.arguments} decorations=${decorations} cut=${cut} box=${box} opened=${opened} onOpen=${showAll}
			onMeasure=${draw} keys=${keys} />
		<${Facts} question=${question} />
		<${Trouble} problem=${problem} />
		<div class="answers" role="group" aria-label="Answers" ref=${buttons}>
			${choice("a", "Allow once", once, { main: true, off: offUntilShown })}
			${isHost && choice("r", "This run", run, { off: offUntilShown })}
			${question.destinations?.length > 0
				&& choice("t", "This destination, this session", there, { off: offUntilShown })}
			${!isHost && choice("s", "For this session", session, { off: offUntilShown })}
			${choice("w", "Always…", toggle("always"), { open: open === "always" })}
			${!isHost && choice("e", "Edit…", toggle("edit"), { open: open === "edit" })}
			${choice("d", "Deny…", toggle("deny"), { open: open === "deny", danger: true })}
		</div>
		${open === "deny" && html`<${Ask} label="Reason for the agent (optional)" act="Deny" danger
			closed=${closed} onBack=${toggle("deny")}
			onDone=${(reason) => send({ decision: "deny", ...(reason ? { reason } : {}) })} />`}
		${open === "always" && html`<${Ask} label=${`Save a rule for ${patternKind(question)}`}
			usual=${patternOf(question)} offers=${question.proposals} act="Always allow" closed=${closed} onBack=${toggle("always")}
			onDone=${(pattern) => send({ decision: "allow", scope: "always", ...(pattern ? { pattern } : {}) })} />`}
		${open === "edit" && html`<${Edit} question=${question} closed=${closed} onBack=${toggle("edit")}
			onDone=${(changed) => send({ decision: "allow", scope: "once", arguments: changed })} />`}
		${closed && html`<p class="over">${how.mine ? "Your answer was sent" : "This question is closed"}
			${` (${outcome(how.decision)}). ${how.mine ? "" : "Nothing typed here is sent. "}`}<button class="small" type="button"
				onClick=${() => onDismiss?.(question.id)}>Dismiss</button></p>`}
	</article>`;
}

/** The questions of a view, from `useQuestions`. */
export const Questions = ({ of: [shown, dismiss] }) => shown.map(({ question, how }) =>
	html`<${Question} key=${question.id} question=${question} how=${how} onDismiss=${dismiss} />`);

const Choice = ({ keys, label, main, danger, open, onPick, off }) => html`<button type="button"
		class=${main ? "main" : danger ? "danger" : ""} aria-keyshortcuts=${keys}
		aria-expanded=${open} aria-disabled=${off} onClick=${onPick}>${label}${keys && html` <kbd
			aria-hidden="true">${keys}</kbd>`}</button>`;

function isInSight(node) {
	const { top, bottom } = node.getBoundingClientRect();
	const scroller = node.closest(".scroll, .panel").getBoundingClientRect();
	return top >= scroller.top - 1 && bottom <= scroller.bottom + 1;
}

/** The tool's preview, in addition to the arguments. */
function Words({ question }) {
	const [opened, setOpened] = useState(false);
	const { preview, arguments: { command } } = question;
	// The arguments show the command.
	const repeats = typeof command === "string" && command !== "" && preview?.endsWith(command);
	const text = repeats ? preview.slice(0, -command.length).trim() : preview;
	if (!text) return null;
	return html`<section class="words" aria-label="Preview"><h3>Preview${!question.preview_is_ours
			&& ", in the tool's own words. The arguments below are what runs."}</h3>
		<${Folded} opened=${opened} onOpen=${() => setOpened(true)} mark=${html`<b>Show all</b> of the preview`}>
			<${Preview} text=${text} /></${Folded}></section>`;
}

const CALLERS = { cli: "a command", mcp: "an MCP client", acp: "an editor", library: "a program" };

export function askerOf({ client, caller }) {
	// A client can call itself anything.
	const program = client?.name ? `a client that calls itself “${client.name}”` : client?.program?.split("/").pop();
	if (caller === "llm" || caller === "agent") return program ? `the agent, for ${program}` : "the agent";
	return program ?? client?.address ?? CALLERS[caller] ?? caller ?? "an unknown client";
}

/** The origin of values, unvouched ones first. */
function Provenance({ question }) {
	const lines = question.provenance_lines ?? [];
	if (!lines.length) return null;
	return html`<ul class="provenance" aria-label="Where values come from">${lines.map((line) => html`<li>
		${asText(line)}</li>`)}</ul>`;
}

/** The critical facts, each in a word, and the sandbox in one line. */
function Matters({ question }) {
	const found = mattersOf(question);
	const around = question.sandbox ? sandboxOf(question.sandbox) : null;
	return html`${found.length > 0 && html`<ul class="matters" aria-label="Warnings">${found.map(({ kind, words }) =>
			html`<li class=${kind}>${words}</li>`)}</ul>`}
		${around && html`<p class=${around.isOff ? "warn" : ""}>${asText(around.line)}</p>`}`;
}

/** The other facts in one line, without a file that an argument names. */
function Facts({ question }) {
	const { projected_modifications: files = [], client } = question;
	const others = files.filter((file) => file !== question.arguments.path);
	const facts = [others.length > 0 && `Changes ${others.join(", ")}`, client?.program,
		client?.process && `process ${client.process}`, client?.address, client?.directory ?? question.workspace];
	return html`<p class="quiet facts-line">${asText(facts.filter(Boolean).join(" · "))}
		${" · "}<a href=${href("session", question.session_id)}>session ${shortId(question.session_id)}</a></p>`;
}

/** The rule that needs approval, and its location. */
function Rule({ question }) {
	const [rule, setRule] = useState(null);
	useEffect(() => {
		const { tool, arguments: given, session_id: session } = question;
		post("/v1/policy/explain", { tool, arguments: given, session }).then(setRule, () => {});
	}, [question.id]);
	if (!rule?.reason) return null;
	const place = rule.origin ? ` · ${rule.origin.file}${rule.origin.line ? `:${rule.origin.line}` : ""}` : "";
	return html`<span class="rule">${asText(decidedBy(rule.reason) + place)}</span>`;
}

function Left({ until }) {
	const [now, setNow] = useState(Date.now());
	useEffect(() => {
		const timer = setInterval(() => setNow(Date.now()), 1000);
		return () => clearInterval(timer);
	}, []);
	const left = Math.max(0, until * 1000 - now);
	return html`<span class=${`left ${left < 30_000 ? "soon" : ""}`} title="The call is refused at the end">${
		left ? `${duration(left)} left` : "time is up"}</span>`;
}

function patternKind(question) {
	if (question.command_summary) return "commands like this";
	if (question.tool === "connect_host") return "this host";
	return question.projected_modifications?.length ? "these files" : "exactly these arguments";
}

/** A pattern to begin with; the instance chooses one if it is empty. */
function patternOf(question) {
	const files = question.projected_modifications ?? [];
	if (question.tool === "connect_host") return question.arguments.host;
	const usual = question.command_summary ? question.arguments.command : files.length === 1 && files[0];
	return typeof usual === "string" && isPlain(usual) ? usual : "";
}
