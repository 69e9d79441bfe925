// A table; on a phone each row is a block of values with their names.

import { html } from "../lib/ui.js";

/** `heads`: column names or `[name, class]`; `rows`: `{key, cells, title}`; a cell: a value or
 *  `{shown, tone}`. Explicit roles survive the layout on a phone. */
export function Table({ heads, rows, label }) {
	const columns = heads.map((each) => [each].flat());
	return html`<table class="wide" role="table" aria-label=${label}><thead role="rowgroup"><tr role="row">
		${columns.map(([name, kind]) => html`<th role="columnheader" class=${kind}>${name}</th>`)}</tr></thead>
		<tbody role="rowgroup">${rows.map(({ key, cells, title }) => html`<tr role="row" key=${key} title=${title}>
			${cells.map((cell, at) => {
				const { shown = cell, tone = "" } = cell ?? {};
				const [name, kind = ""] = columns[at] ?? [];
				return html`<td role="cell" data-name=${name} class=${`${kind} ${tone}`}>${shown}</td>`;
			})}</tr>`)}</tbody></table>`;
}
