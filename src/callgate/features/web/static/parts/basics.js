// Small components of every view.

import { useKeys } from "../lib/keys.js";
import { setQuery } from "../lib/router.js";
import { count, exactParts, parts, within } from "../lib/text.js";
import { html, useEffect, useRef, useState } from "../lib/ui.js";

const LONG = 20_000;

/** An untrusted text, with marks for unseen characters. */
export function Text({ value, limit = LONG, prose = false }) {
	const [whole, setWhole] = useState(false);
	const text = String(value ?? "");
	const cut = !whole && text.length > limit;
	return html`${drawn(parts(cut ? text.slice(0, limit) : text, prose))}
		${cut && html`<button class="link" type="button" onClick=${() => setWhole(true)}>
			… ${count(text.length - limit, "more character")}</button>`}`;
}

const drawn = (found) => found.map((part) => (typeof part === "string" ? part
	: html`<span class="unseen" title=${`Unseen character ${part.name}`}>${part.shown}</span>`));

/** All of a text that will run, with marked `ranges`. */
export const Exact = ({ value, ranges = [] }) => (ranges.length === 0 ? drawn(exactParts(value))
	: within(exactParts(value), ranges).map(({ kind, parts: some }) => (kind === undefined ? drawn(some)
		: html`<mark class=${kind}>${drawn(some)}</mark>`)));

/** The same line by line, with added and removed lines. */
export function ExactLines({ value, changes: { added, removed } }) {
	let at = 0;
	const ranges = value.split("\n").map((line, index) => {
		const from = at;
		at += line.length + 1;
		return { from, upto: at, kind: index + 1 };
	});
	const kept = new Map(within(exactParts(value), ranges).map((each) => [each.kind, each.parts]));
	return [...ranges, {}].map((_, index) => html`${removed.get(index + 1)?.map((line) => html`<del
			class="line">${drawn(parts(`${line}\n`))}</del>`)}${kept.has(index + 1) && html`<span
			class=${`line ${added.has(index + 1) ? "added" : ""}`}>${drawn(kept.get(index + 1))}</span>`}`);
}

export const asText = (value) => html`<${Text} value=${value} />`;

/** The beginning of an untrusted text, in one line. */
export function asLine(value, most = 240) {
	const text = String(value ?? "");
	return asText((text.length > most ? `${text.slice(0, most - 1)}…` : text).replaceAll("\n", " "));
}

export const Block = ({ value, label }) =>
	html`<pre class="block" tabindex="0" aria-label=${label}><${Text} value=${value} /></pre>`;

const STATES = {
	asked: "waiting", running: "running", ok: "ok", failed: "failed", denied: "denied",
	cancelled: "cancelled", invalid: "invalid",
};

export const State = ({ state }) =>
	html`<span class=${`state ${state}`}><i aria-hidden="true"></i>${STATES[state] ?? state}</span>`;

export const Effect = ({ effect }) => effect
	? html`<span class=${`effect ${effect}`}>${effect}</span>` : null;

export function Values({ values }) {
	const entries = Object.entries(values ?? {});
	if (!entries.length) return html`<p class="quiet">No arguments.</p>`;
	return html`<dl class="values">${entries.map(([name, value]) => html`
		<dt>${asLine(name)}</dt>
		<dd><${Block} label=${`Argument ${name}`}
			value=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} /></dd>`)}</dl>`;
}

export const Empty = ({ title, command, children }) => html`<div class="empty">
	<p class="empty-title">${title}</p>
	${children && html`<p>${children}</p>`}
	${command && html`<p class="command"><code>${command}</code><${Copy} text=${command} /></p>`}
</div>`;

export function Copy({ text, label = "Copy" }) {
	const [done, setDone] = useState(false);
	async function copy() {
		// Needs this machine, or TLS.
		await navigator.clipboard?.writeText(text).catch(() => {});
		setDone(true);
		setTimeout(() => setDone(false), 1200);
	}
	return html`<button class="small" type="button" onClick=${copy}>${done ? "Copied" : label}</button>`;
}

/** The search field of a view, part of its link; `/` focuses it. */
export function Search({ what, query, onType = setQuery }) {
	const field = useRef(null);
	useKeys({ "/": () => field.current.focus() });
	return html`<label class="search"><span class="unseen-label">Search ${what}</span>
		<input ref=${field} type="search" placeholder="Search   /" value=${query.q ?? ""}
			onInput=${(event) => onType({ q: event.target.value })}
			onKeyDown=${(event) => event.key === "Escape" && event.target.blur()} /></label>`;
}

export const Trouble = ({ problem }) => problem
	? html`<p class="trouble" role="alert"><${Text} value=${problem.message ?? problem} /></p>` : null;

export const Content = ({ blocks = [] }) => blocks.map((block) => {
	if (block.type === "text") return html`<${Block} label="Text" value=${block.text} />`;
	if (block.type === "image") return html`<${Picture} block=${block} />`;
	return html`<${Block} label="JSON" value=${JSON.stringify(block.value, null, 2)} />`;
});

/** Drawn on a canvas: the page may load pictures only from the instance. */
function Picture({ block }) {
	const canvas = useRef(null);
	useEffect(() => {
		if (block.source?.kind !== "base64") return;
		const bytes = Uint8Array.from(atob(block.source.data), (letter) => letter.charCodeAt(0));
		createImageBitmap(new Blob([bytes], { type: block.media_type })).then((picture) => {
			if (!canvas.current) return;
			[canvas.current.width, canvas.current.height] = [picture.width, picture.height];
			canvas.current.getContext("2d").drawImage(picture, 0, 0);
		}, () => {});
	}, [block]);
	return html`<canvas class="picture" ref=${canvas} role="img" aria-label="Picture from a tool"></canvas>`;
}
