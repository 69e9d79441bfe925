// The arguments of a question, to the last character: what is not shown stands behind a mark.

import { html, useMemo } from "../lib/ui.js";
import { Exact } from "./basics.js";
import { Folded } from "./folded.js";

// More than a screen takes: what is cut for this is behind the mark anyway.
const MOST_CHARACTERS = 8_000;
const MOST_ENTRIES = 60;

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** What a value is, where its text could be taken for something else. */
function kindOf(value) {
  if (typeof value === "string") return null;
  if (value === null) return "null";
  if (Array.isArray(value)) return "list";
  return typeof value === "object" && !JSON.isRawJSON?.(value) ? "object"
    : typeof value === "boolean" ? "boolean" : "number";
}

/** Names and texts, a command first: it says most. */
const entriesOf = (values) => Object.entries(values)
  .map(([name, value]) => ({ name, text: asText(value), kind: kindOf(value) }))
  .sort((a, b) => isCommand(b) - isCommand(a));

const isCommand = ({ name, kind }) => name === "command" && kind === null;
const isLong = ({ name, text }) => name.length + text.length > MOST_CHARACTERS;

/** Whether more would have to be drawn than is drawn unasked. */
export const isCut = (values) => {
  const entries = entriesOf(values);
  return entries.length > MOST_ENTRIES || entries.some(isLong);
};

export function Arguments({ values, cut, box, opened, onOpen, onMeasure, keys }) {
  const entries = useMemo(() => entriesOf(values), [values]);
  const drawn = opened ? entries : entries.slice(0, MOST_ENTRIES).map((each) => (isLong(each)
    ? { ...each, name: each.name.slice(0, MOST_CHARACTERS), text: each.text.slice(0, MOST_CHARACTERS) } : each));
  const [lines, length] = [count(entries, (text) => text.split("\n").length), count(entries, (text) => text.length)];
  const mark = html`Not all is shown: ${lines} lines, ${length} characters. <b>Show all</b>${keys && html` <kbd
    aria-hidden="true">o</kbd>`}`;
  return html`<section class="arguments" aria-label="Arguments"><h3>Arguments</h3>
    <${Folded} box=${box} isCut=${cut} opened=${opened} onOpen=${onOpen} onMeasure=${onMeasure} mark=${mark}>
      ${entries.length ? html`<dl class="values">${drawn.map(Entry)}</dl>`
        : html`<p class="quiet">No arguments.</p>`}</${Folded}></section>`;
}

const count = (entries, measure) => entries.reduce((sum, { text }) => sum + measure(text), 0);

const Entry = (entry) => {
  const { name, text, kind } = entry;
  return html`<dt><${Exact} value=${name} />${kind && html` <i>${kind}</i>`}</dt>
    <dd><pre class=${`block exact ${isCommand(entry) ? "shell" : ""}`}
      aria-label=${`Argument ${name}`}><${Exact} value=${text} /></pre></dd>`;
};
