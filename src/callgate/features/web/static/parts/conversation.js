// A conversation: prompts, replies, and each call as a card.

import { href } from "../lib/router.js";
import { useQuestions } from "../lib/questions.js";
import { useStore } from "../lib/store.js";
import { brief, duration, visible } from "../lib/text.js";
import { html, useState } from "../lib/ui.js";
import { Block, Content, State, Text, Values, asLine, asText } from "./basics.js";
import { Questions } from "./question.js";

const MOST = 300;
const DRAW = {
	prompt: (item) => html`<div class="said user"><${Text} value=${item.text} prose /></div>`,
	said: (item) => html`<div class="said model"><${Text} value=${item.text} prose /></div>`,
	note: (item) => html`<p class="note">${asText(item.text)}</p>`,
	end: () => null,
	call: (item, more) => html`<${CallCard} call=${item} ...${more} />`,
};

/** `live`: show open questions at their calls. */
export function Conversation({ items, writing = "", live = false, onUndo }) {
	const [most, setMost] = useState(MOST);
	return html`<div class="conversation" role="log" aria-label="Conversation">
		${items.length > most && html`<p><button onClick=${() => setMost(most + MOST)}>
			Earlier</button> <span class="quiet">${items.length - most} more</span></p>`}
		${items.slice(-most).map((item) => html`<div key=${item.id} class="turn-item" id=${`item-${item.id}`}>
			${DRAW[item.kind](item, { live, onUndo })}</div>`)}
		${writing && html`<div class="said model writing"><${Text} value=${writing} prose /></div>`}
	</div>`;
}

function CallCard({ call, live, onUndo }) {
	const { calls } = useStore();
	const asked = useQuestions((each) => live && each.id === call.question, { ownGo: true });
	const [open] = asked[0];
	const result = call.result();
	const shown = call.endedAt ? result : null;
	const summary = call.summary || calls.byId.get(call.id)?.summary;
	const head = html`<${State} state=${call.state} /> <b>${asLine(call.tool)}</b>
		<span class="summary">${asLine(brief(call.input ?? summary), 120)}</span>
		<span class="took">${call.calledAt && call.endedAt
			&& duration((call.endedAt - call.calledAt) * 1000)}</span>`;
	return html`<article class=${`call-card ${call.state}`} aria-label=${`Call of ${visible(call.tool)}`}>
		${open ? html`<${Questions} of=${asked} />` : html`<details><summary>${head}</summary>
			${call.input ? html`<${Values} values=${call.input} />`
				: summary && html`<${Block} label="Arguments" value=${summary} />`}
			${shown ? html`<h3>Result</h3><${Content} blocks=${shown} />`
				: call.output && html`<${Block} label="Output" value=${call.output} />`}
			<p><a href=${href("live", "", { call: call.id })}>Details</a></p></details>`}
		${call.message && html`<p class="trouble">${asText(call.message)}</p>`}
		${call.files?.length > 0 && html`<p class="files">Changed ${asText(call.files.join(", "))}
			${onUndo && html` <button class="small"
				onClick=${() => onUndo(call)}>Undo</button>`}</p>`}
	</article>`;
}
