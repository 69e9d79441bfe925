// Small pieces that every view is put together from.

import { useKeys } from "../lib/keys.js";
import { setQuery } from "../lib/router.js";
import { exactParts, parts } from "../lib/text.js";
import { html, useEffect, useRef, useState } from "../lib/ui.js";

const LONG = 20_000;

/** A text of a tool or a model: what would not be seen is shown as a mark. */
export function Text({ value, limit = LONG, prose = false }) {
  const [whole, setWhole] = useState(false);
  const text = String(value ?? "");
  const cut = !whole && text.length > limit;
  return html`${drawn(parts(cut ? text.slice(0, limit) : text, prose))}
    ${cut && html`<button class="link" type="button" onClick=${() => setWhole(true)}>
      … ${text.length - limit} more characters</button>`}`;
}

const drawn = (found) => found.map((part) => (typeof part === "string" ? part
  : html`<span class="unseen" title=${`Unseen character ${part.name}`}>${part.shown}</span>`));

/** All of a text of which every character counts. */
export const Exact = ({ value }) => drawn(exactParts(value));

/** One line of such a text, cut short. */
export const Line = ({ value, most = 240 }) =>
  html`<${Text} value=${String(value ?? "").slice(0, most).replaceAll("\n", " ")} />`;

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

/** Arguments as a table: texts as they are, other values as JSON. */
export function Values({ values }) {
  const entries = Object.entries(values ?? {});
  if (!entries.length) return html`<p class="quiet">No arguments.</p>`;
  return html`<dl class="values">${entries.map(([name, value]) => html`
    <dt><${Line} value=${name} /></dt>
    <dd><${Block} label=${`Argument ${name}`}
      value=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} /></dd>`)}</dl>`;
}

/** Nothing here yet, and the command that changes it. */
export const Empty = ({ title, command, children }) => html`<div class="empty">
  <p class="empty-title">${title}</p>
  ${children && html`<p>${children}</p>`}
  ${command && html`<p class="command"><code>${command}</code><${Copy} text=${command} /></p>`}
</div>`;

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  async function copy() {
    // Only there on this machine, or with TLS.
    await navigator.clipboard?.writeText(text).catch(() => {});
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  }
  return html`<button class="small" type="button" onClick=${copy}>${done ? "Copied" : label}</button>`;
}

/** The search field of a view, kept in its link; `/` leads to it. */
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

/** What a tool gave back: texts, JSON, pictures. */
export const Content = ({ blocks = [] }) => blocks.map((block) => {
  if (block.type === "text") return html`<${Block} label="Text" value=${block.text} />`;
  if (block.type === "image") return html`<${Picture} block=${block} />`;
  return html`<${Block} label="JSON" value=${JSON.stringify(block.value, null, 2)} />`;
});

/** Drawn on a canvas: the page may load pictures from nowhere but the instance. */
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
