// A diff, line by line, with its numbers.

import { isDiff, readDiff } from "../lib/diff.js";
import { html, useState } from "../lib/ui.js";
import { Block, Text } from "./basics.js";

const SIGNS = { added: "+", removed: "-", same: " " };
const MOST = 2_000;

/** What a call will do, as its tool previews it: a diff where it is one. */
export function Preview({ text }) {
  return isDiff(text) ? html`<${Diff} text=${text} />` : html`<${Block} label="Preview" value=${text} />`;
}

function Diff({ text }) {
  const lines = readDiff(text);
  const [most, setMost] = useState(MOST);
  return html`<div class="diff" role="group" aria-label="Changes" tabindex="0"><table>
    <tbody>${lines.slice(0, most).map((line) => html`<tr class=${line.kind}>
      ${SIGNS[line.kind] ? html`<td class="number">${line.before ?? ""}</td>
        <td class="number">${line.after ?? ""}</td><td class="sign">${SIGNS[line.kind]}</td>
        <td class="code"><${Text} value=${line.text} /></td>`
      : html`<td class="code" colspan="4"><${Text} value=${line.text} /></td>`}</tr>`)}</tbody></table>
    ${lines.length > most && html`<p><button class="link" type="button"
      onClick=${() => setMost(most + MOST)}>… ${lines.length - most} more lines</button></p>`}</div>`;
}
