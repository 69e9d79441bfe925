// The calls of a session on a time line; waiting for approval has its own colour.

import { duration, visible } from "../lib/text.js";
import { html } from "../lib/ui.js";
import { State } from "./basics.js";

const MOST = 200;

export function Waterfall({ calls, from, upto, now, onPick }) {
	const span = Math.max(upto - from, 0.001);
	const place = (begin, end) => ({
		left: `${(100 * (begin - from)) / span}%`,
		width: `max(3px, ${(100 * Math.max(0, end - begin)) / span}%)`,
	});
	return html`<div class="waterfall" role="list" aria-label="Calls over time">
		<div class="axis" role="presentation"><span>0</span><span>${duration((span / 2) * 1000)}</span>
			<span>${duration(span * 1000)}</span></div>
		${calls.length > MOST && html`<p class="quiet">The last ${MOST} of ${calls.length} calls</p>`}
		${calls.slice(-MOST).map((call) => html`<div class="lane" role="listitem" key=${call.id}>
			<button class="name" onClick=${() => onPick(call)}>
				<${State} state=${call.state} /> <span>${visible(call.tool)}</span></button>
			<div class="bars" role="img" aria-label=${describe(call, now)}>
				${call.askedAt && html`<i class="waited"
					style=${place(call.askedAt, call.answeredAt ?? call.endedAt ?? now)}
					title="waited for approval"></i>`}
				${call.calledAt && html`<i class=${call.state} style=${place(call.calledAt, call.endedAt ?? now)}>
					</i>`}
				${!call.calledAt && call.endedAt && !call.askedAt && html`<i class=${call.state}
					style=${place(call.at, call.endedAt)}></i>`}
			</div></div>`)}
		<p class="legend"><span class="asked">waited for a person</span><span class="ok">ran</span>
			<span class="failed">failed</span><span class="denied">denied</span></p></div>`;
}

function describe(call, now) {
	const answered = call.answeredAt ?? call.endedAt ?? now;
	const waited = call.askedAt && `waited ${duration((answered - call.askedAt) * 1000)}`;
	const ran = call.calledAt && `ran ${duration(((call.endedAt ?? now) - call.calledAt) * 1000)}`;
	return [waited, ran].filter(Boolean).join(", ") || call.state;
}
