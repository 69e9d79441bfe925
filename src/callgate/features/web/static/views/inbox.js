// The open questions, and those that were just answered.

import { choose, chooseOnly, nextOf, refusal } from "../lib/choosing.js";
import { quiet, useKeys } from "../lib/keys.js";
import { useQuestions } from "../lib/questions.js";
import { state, useStore } from "../lib/store.js";
import { brief } from "../lib/text.js";
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { Empty, asLine, asText } from "../parts/basics.js";
import { Question, askerOf, outcome } from "../parts/question.js";

const every = () => true;

export function Inbox() {
	const { settled, link, changes } = useStore();
	const [shown, dismiss] = useQuestions(every);
	const waiting = shown.filter(({ how }) => how === null);
	const chosen = useRef(null);
	const [hint, setHint] = useState("");
	const [, draw] = useState(null);
	const commands = useRef(new Map());
	const since = useRef(performance.now()); // since when this view is visible; infinite if it is not
	const paintedAt = usePainted(changes);
	useEffect(() => {
		const leave = () => {
			since.current = Infinity;
			set(null);
		};
		const come = () => { since.current = performance.now(); };
		addEventListener("blur", leave);
		addEventListener("focus", come);
		return () => {
			removeEventListener("blur", leave);
			removeEventListener("focus", come);
		};
	}, []);

	function set(choice) {
		chosen.current = choice;
		draw(choice);
		setHint("");
	}
	const take = (id) => set(choose(id, state.changes, performance.now()));
	const listed = () => shown.map(({ question, how }) =>
		({ id: question.id, isOpen: how === null, isMine: Boolean(how?.mine) }));
	const choiceNow = () => (since.current === Infinity ? chosen.current : chosen.current
		?? chooseOnly(listed(), questionOf(document.activeElement), state.changes, Math.max(since.current, paintedAt())));
	const refusalNow = (choice, id, at, pauseMs) => refusal(choice && { ...choice, at: Math.max(choice.at, paintedAt()) },
		{ id, changes: state.changes, at, pauseMs });
	const isChosen = (id) => choiceNow()?.id === id && choiceNow().changes === state.changes;

	/** Deliberate, so it may also dismiss closed questions. */
	function move(step) {
		const focused = questionOf(document.activeElement);
		const next = nextOf(listed(), focused, chosen.current?.id === focused && isChosen(focused), step);
		if (next === null) return;
		dismiss();
		take(next);
		const card = document.querySelector(`[data-question="${CSS.escape(next)}"]`);
		card.focus({ preventScroll: true });
		requestAnimationFrame(() => card.scrollIntoView({ block: "nearest" }));
	}
	const act = (key) => (event) => {
		if (event.repeat || !waiting.length) return;
		const choice = choiceNow();
		const id = chosen.current === null && choice ? choice.id : questionOf(event.target);
		const why = refusalNow(choice, id, event.timeStamp, quiet().before);
		setHint(why ?? "");
		if (why === null) commands.current.get(id)?.[key]();
	};
	useKeys({
		...Object.fromEntries([..."astwedo"].map((key) => [key, act(key)])),
		j: () => move(1), k: () => move(-1),
	});

	return html`<section class="inbox">
		<header class="bar"><h1>Inbox</h1><span class="key-hint" role="status">${hint}</span>
			<span class="quiet total" role="status">${waiting.length ? `${waiting.length} waiting` : ""}</span>
				</header>
		<div class="scroll">
		${shown.map(({ question, how }) => html`<${Question} key=${question.id} question=${question} how=${how}
			onDismiss=${dismiss} keys=${{ isChosen: isChosen(question.id), commands: commands.current,
				isReady: () => refusalNow(choiceNow(), question.id, performance.now(), quiet().now) === null
					&& (chosen.current === null || questionOf(document.activeElement) === question.id),
				onChoose: () => take(question.id) }} />`)}
		${!shown.length && link === "live" && html`<${Empty} title="No approvals are waiting."
			command="callgate call --wait write_file path=hello.txt content=hello">
			Calls that need approval appear here while this page is open. To try it, run:</${Empty}>`}
		${settled.length > 0 && html`<h2 class="section">Answered</h2>
			<ul class="settled">${settled.map(({ question, how }) => html`<li key=${question.id}
				class=${how.decision}><b>${asLine(question.tool)}</b>
				<span class="summary">${asLine(brief(question.input_summary))}</span>
				<span class="quiet">${asLine(askerOf(question), 80)}</span>
				<span class="how">${describe(how)}</span></li>`)}</ul>`}
		</div></section>`;
}

/** A function that returns since when the store's questions are on the screen, or infinity. A busy page
 *  draws them late, and a key pressed before was meant for earlier questions. */
function usePainted(changes) {
	const painted = useRef({ changes: null, at: Infinity });
	useEffect(() => {
		let timer = null;
		const frame = requestAnimationFrame(() => {
			timer = setTimeout(() => { painted.current = { changes, at: performance.now() }; });
		});
		return () => {
			cancelAnimationFrame(frame);
			clearTimeout(timer);
		};
	}, [changes]);
	return () => (painted.current.changes === state.changes ? painted.current.at : Infinity);
}

const questionOf = (node) => node?.closest("[data-question]")?.dataset.question ?? null;

function describe(how) {
	const scope = how.scope && how.scope !== "once" ? ` (${how.scope})` : "";
	if (how.late) return html`${outcome(how.decision)}${scope} elsewhere first`;
	if (how.mine) return `${outcome(how.decision)}${scope}`;
	return html`${outcome(how.decision)}${scope}${how.by && html` by ${asText(how.by)}`}`;
}
