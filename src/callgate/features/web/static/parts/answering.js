// Forms to answer a question: a reason, a pattern, other arguments. A `closed` form keeps its text and
// the focus, but sends nothing: keys must not reach another question.

import { isComposing } from "../lib/keys.js";
import { readJson } from "../lib/schema.js";
import { useStill } from "../lib/still.js";
import { editable } from "../lib/text.js";
import { html, useLayoutEffect, useRef, useState } from "../lib/ui.js";
import { Trouble, asLine } from "./basics.js";

const isMeant = (event) => !event.repeat && !isComposing(event);

/** The button of a form, for a pointer only once it is still. */
function Send({ label, danger, closed }) {
	const button = useRef(null);
	const isStill = useStill(button);
	const click = (event) => event.detail > 0 && !isStill(event.timeStamp) && event.preventDefault();
	return html`<button ref=${button} class=${danger ? "danger" : "main"} onClick=${click}
		aria-disabled=${closed || !isStill()}>${label}</button>`;
}

/** One line to type, with a button; Enter sends, Escape goes back. */
export function Ask({ label, usual = "", offers = [], act, danger, closed, onDone, onBack }) {
	const field = useRef(null);
	useLayoutEffect(() => field.current.focus(), []);
	function send(event) {
		event.preventDefault();
		if (!closed) onDone(field.current.value.trim());
	}
	function press(event) {
		if (event.key === "Enter" && !isMeant(event)) event.preventDefault();
		if (event.key === "Escape" && isMeant(event)) onBack();
	}
	return html`<form class="typed" onSubmit=${send} onKeyDown=${press}>
		<label><span>${label}</span><input ref=${field} defaultValue=${usual} autocomplete="off"
			readonly=${closed} spellcheck=${false} /></label>
		<${Send} label=${act} danger=${danger} closed=${closed} /></form>
		${offers.map((each) => html`<button onClick=${() => { field.current.value = each.pattern; }}>
			${asLine(each.covers)}</button>`)}`;
}

export function Edit({ question, closed, onDone, onBack }) {
	const field = useRef(null);
	const [problem, setProblem] = useState(null);
	useLayoutEffect(() => {
		field.current.focus();
		grow();
	}, []);
	function grow() {
		field.current.style.height = "0";
		field.current.style.height = `${field.current.scrollHeight + 4}px`;
	}
	function send(event) {
		event.preventDefault();
		if (closed) return;
		try {
			const read = readJson(field.current.value);
			if (read === null || typeof read !== "object" || Array.isArray(read)) {
				throw new Error("Arguments must be an object.");
			}
			onDone(read);
		} catch (failure) {
			setProblem(failure);
		}
	}
	function press(event) {
		if (!isMeant(event)) return;
		if (event.key === "Escape") onBack();
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
	}
	return html`<form class="edit" onSubmit=${send} onKeyDown=${press}>
		<label><span>Arguments to run instead. They are checked again.</span>
			<textarea ref=${field} spellcheck=${false} readonly=${closed} onInput=${grow}
				defaultValue=${editable(question.arguments)}></textarea></label>
		<${Trouble} problem=${problem} />
		<${Send} label="Allow with these" closed=${closed} /> <span class="quiet">Ctrl+Enter</span></form>`;
}
