// A tool's preview of its work: a diff line by line, or a text.

import { isDiff, readDiff } from "../lib/diff.js";
import { count } from "../lib/text.js";
import { html, useState } from "../lib/ui.js";
import { Block, asText } from "./basics.js";

const MOST = 2_000;

export const Preview = ({ text }) => (isDiff(text) ? html`<${Diff} text=${text} />`
	: html`<${Block} label="Preview" value=${text} />`);

function Diff({ text }) {
	const lines = readDiff(text);
	const [most, setMost] = useState(MOST);
	return html`<pre class="block" aria-label="Changes" tabindex="0">${lines.slice(0, most).map(({ kind, text: line }) =>
		html`<${kind === "removed" ? "del" : "span"} class=${`line ${kind}`}>${asText(`${line}\n`)}<//>`)}</pre>
		${lines.length > most && html`<button class="link" type="button"
			onClick=${() => setMost(most + MOST)}>… ${count(lines.length - most, "more line")}</button>`}`;
}
