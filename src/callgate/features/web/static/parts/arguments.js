// The complete arguments of a question; a button opens a cut part.

import { changesOf, isDiff, readDiff } from "../lib/diff.js";
import { findMatters } from "../lib/matters.js";
import { count, visible } from "../lib/text.js";
import { html, useMemo } from "../lib/ui.js";
import { Exact, ExactLines } from "./basics.js";
import { Folded } from "./folded.js";

const MOST_CHARACTERS = 8_000;
const MOST_ENTRIES = 60;

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** The type of a value that is not a string. */
function kindOf(value) {
	if (typeof value === "string") return null;
	if (value === null) return "null";
	if (Array.isArray(value)) return "list";
	return typeof value === "object" && !JSON.isRawJSON?.(value) ? "object"
		: typeof value === "boolean" ? "boolean" : "number";
}

const entriesOf = (values) => Object.entries(values)
	.map(([name, value]) => ({ name, text: asText(value), kind: kindOf(value) }))
	.sort((a, b) => rank(b) - rank(a));

const FIRST = ["old", "path", "command"];
const rank = ({ name, kind }) => (kind === null ? FIRST.indexOf(name) : -1);
const isCommand = ({ name, kind }) => name === "command" && kind === null;
const isLong = ({ name, text }) => name.length + text.length > MOST_CHARACTERS;

/** Whether a part is not drawn before it is opened. */
export const isCut = (values) => {
	const entries = entriesOf(values);
	return entries.length > MOST_ENTRIES || entries.some(isLong);
};

/** The diff of callgate's preview as decorations of arguments: changed lines of `content`, or colours
 *  of `old` and `new`. Null if the preview must also be shown. */
export function decorationsOf({ preview, preview_is_ours: isOurs, arguments: { content, old, new: next } }) {
	if (!isOurs || !preview || !isDiff(preview)) return null;
	if (typeof content === "string") {
		const changes = changesOf(preview, content);
		return changes && { content: { changes } };
	}
	const hunks = readDiff(preview).filter((line) => line.kind === "hunk").length;
	return typeof old === "string" && typeof next === "string" && hunks === 1
		? { old: { tone: "removed" }, new: { tone: "added" } } : null;
}

export function Arguments({ values, decorations, cut, box, opened, onOpen, onMeasure, keys }) {
	const entries = useMemo(() => entriesOf(values), [values]);
	const drawn = opened ? entries : entries.slice(0, MOST_ENTRIES).map((each) => (isLong(each)
		? { ...each, name: each.name.slice(0, MOST_CHARACTERS), text: each.text.slice(0, MOST_CHARACTERS) } : each));
	const [lines, length] = [sum(entries, (text) => text.split("\n").length), sum(entries, (text) => text.length)];
	const mark = html`Not all is shown: ${count(lines, "line")}, ${count(length, "character")}. <b>Show all</b>${keys && html` <kbd
		aria-hidden="true">o</kbd>`}`;
	return html`<section class="arguments" aria-label="Arguments"><h3>Arguments</h3>
		<${Folded} box=${box} isCut=${cut} opened=${opened} onOpen=${onOpen} onMeasure=${onMeasure} mark=${mark}>
			${entries.length ? html`<dl class="values">${drawn.map((each) => html`<${Entry} entry=${each}
				decoration=${Object.hasOwn(decorations ?? {}, each.name) ? decorations[each.name] : null} />`)}</dl>`
				: html`<p class="quiet">No arguments.</p>`}</${Folded}></section>`;
}

const sum = (entries, measure) => entries.reduce((total, { text }) => total + measure(text), 0);

function Entry({ entry, decoration }) {
	const { name, text, kind } = entry;
	const ranges = useMemo(() => (isCommand(entry) ? findMatters(text) : []), [text]);
	return html`<dt><${Exact} value=${name} />${kind && html` <i>${kind}</i>`}</dt>
		<dd><pre class=${`block exact ${isCommand(entry) ? "shell" : ""} ${decoration?.tone ?? ""}`}
			aria-label=${`Argument ${visible(name)}`}>${decoration?.changes
				? html`<${ExactLines} value=${text} changes=${decoration.changes} />`
				: html`<${Exact} value=${text} ranges=${ranges} />`}</pre></dd>`;
}
