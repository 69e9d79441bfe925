// Plots, drawn as SVG.

import { clock, count, moment } from "../lib/text.js";
import { html } from "../lib/ui.js";

const NARROW = matchMedia("(max-width: 720px)");
const HEIGHT = 160;
const BOTTOM = 18;

/** One bar for each span: ok, failed, denied. */
export function Bars({ times, since, span, step }) {
	const begin = since ?? Date.now() / 1000 - span;
	const width = step ?? span / 60;
	const most = nice(Math.max(...times.map((each) => each.calls), 1));
	const WIDTH = NARROW.matches ? 330 : 720;
	const LEFT = 10 + 6 * String(most).length;
	const x = (at) => LEFT + ((at - begin) / span) * (WIDTH - LEFT);
	const tall = (count) => (count / most) * (HEIGHT - BOTTOM - 6);
	const wide = Math.max(1.5, (width / span) * (WIDTH - LEFT) - 1.5);
	const floor = HEIGHT - BOTTOM;
	const label = (at) => (span > 86_400 ? moment(at) : clock(at).slice(0, 5));
	return html`<svg class="plot" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img"
			aria-label=${`Calls over time, at most ${most} in one bar`}>
		${[0, most / 2, most].map((count) => html`<g class="grid">
			<line x1=${LEFT} x2=${WIDTH} y1=${floor - tall(count)} y2=${floor - tall(count)} />
			<text x=${LEFT - 5} y=${floor - tall(count) + 3} text-anchor="end">${count}</text></g>`)}
		${times.map((each) => html`<${Bar} x=${x(each.at)} wide=${wide} floor=${floor} tall=${tall} span=${each}
			title=${`${moment(each.at)}: ${count(each.calls, "call")}, ${each.errors} failed, ${each.denials} denied`} />`)}
		${(NARROW.matches ? [0, 0.5] : [0, 0.25, 0.5, 0.75]).map((part) => html`<text class="tick"
			x=${LEFT + part * (WIDTH - LEFT)} y=${HEIGHT - 4}>
			${label(begin + part * span)}</text>`)}
		<text class="tick" x=${WIDTH} y=${HEIGHT - 4} text-anchor="end">now</text></svg>
		<p class="legend"><span class="ok">ok</span><span class="failed">failed</span><span
			class="denied">denied</span></p>`;
}

function Bar({ x, wide, floor, tall, span, title }) {
	const well = Math.max(0, span.calls - span.errors - span.denials);
	const stack = [["ok", well], ["failed", span.errors], ["denied", span.denials]];
	let y = floor;
	return html`<g><title>${title}</title>${stack.map(([kind, count]) => {
		y -= tall(count);
		return count > 0 && html`<rect class=${kind} x=${x} y=${y} width=${wide} height=${tall(count)} />`;
	})}</g>`;
}

function nice(number) {
	const power = 10 ** Math.floor(Math.log10(number));
	const step = [1, 2, 4, 5, 10].find((each) => each * power >= number);
	return Math.max(2, step * power);
}
