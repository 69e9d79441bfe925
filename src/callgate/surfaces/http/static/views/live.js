// Calls as they happen, newest first: filtered, searched, held still.

import { clientOf, madeAt, matching } from "../lib/calls.js";
import { useKeys } from "../lib/keys.js";
import { setQuery } from "../lib/router.js";
import { loadOlder, useStore } from "../lib/store.js";
import { brief, duration, moment } from "../lib/text.js";
import { html, useMemo, useState } from "../lib/ui.js";
import { Effect, Empty, Line, Search, State } from "../parts/basics.js";
import { CallPanel } from "../parts/call.js";
import { LongList } from "../parts/list.js";

const STATES = ["asked", "running", "ok", "failed", "denied", "cancelled", "invalid"];
const SHOWN = { asked: "waiting" };
const EFFECTS = ["none", "read", "write", "network", "execute"];
const SPANS = { "1 h": 3600, "24 h": 86_400, "7 d": 604_800 };
const MOST_SESSIONS = 50;
const NARROW = matchMedia("(max-width: 720px)");

export function Live({ query }) {
  const { calls, loaded } = useStore();
  const [held, setHeld] = useState(null);
  const { state, effect, client, session, span, q: text, call } = query;
  const found = useMemo(() => {
    const since = SPANS[span] ? Date.now() / 1000 - SPANS[span] : 0;
    return matching(calls, { state, effect, client, session, since, text });
  }, [calls.version, state, effect, client, session, span, text]);
  const rows = held ?? found;
  const missed = held ? found.length - held.length : 0;
  const effects = EFFECTS.filter((each) => calls.effects.has(each));
  const pause = () => setHeld(held ? null : found);
  const filter = (changes) => {
    setHeld(null);
    setQuery(changes);
  };
  useKeys({ p: pause, Escape: () => call && setQuery({ call: "" }) });

  return html`<section class=${`live ${call ? "split" : ""}`}>
    <header class="bar"><h1>Live</h1>
      <${Search} what="calls" query=${query} onType=${filter} />
      <button aria-pressed=${held !== null} onClick=${pause}>
        ${held ? html`Go on${missed > 0 && html` <b class="count">${missed}</b>`}` : "Pause"}</button>
      <span class="quiet total" aria-live="off">${found.length} calls</span>
    </header>
    <div class="chips" role="group" aria-label="Filters">
      ${STATES.map((each) => html`<${Chip} name=${SHOWN[each] ?? each} on=${state === each} tone=${each}
        onPick=${() => filter({ state: state === each ? "" : each })} />`)}
      ${effects.length > 1 && html`<span class="gap"></span>`}
      ${effects.length > 1 && effects.map((each) => html`<${Chip} name=${each} on=${effect === each}
        onPick=${() => filter({ effect: effect === each ? "" : each })} />`)}
      <span class="gap"></span>
      <${Pick} label="Client" value=${client} of=${[...calls.clients].sort()} onPick=${(each) => filter({ client: each })} />
      <${Pick} label="Session" value=${session} of=${[...calls.sessions].slice(-MOST_SESSIONS).reverse()}
        shown=${(each) => `…${each.slice(-6)}`} onPick=${(each) => filter({ session: each })} />
      <${Pick} label="Time" value=${span} of=${Object.keys(SPANS)} shown=${(each) => `last ${each}`}
        onPick=${(each) => filter({ span: each })} />
    </div>
    <div class="row heads" aria-hidden="true"><span class="at">Ended</span><span class="state">State</span>
      <span class="tool">Tool</span><span class="effect">Effect</span><span class="summary">Arguments</span>
      <span class="caller">Client</span><span class="took">Took</span></div>
    ${rows.length ? html`<${LongList} rows=${rows} height=${NARROW.matches ? 54 : 32} draw=${drawRow}
        label="Calls" active=${call} onOpen=${(id) => setQuery({ call: id })} onEnd=${loadOlder} />`
      : html`<div class="long-list-none">${nothing(loaded, calls.order.length)}</div>`}
    ${call && html`<${CallPanel} key=${call} id=${call} onClose=${() => setQuery({ call: "" })} />`}
  </section>`;
}

const Chip = ({ name, on, tone, onPick }) => html`<button class=${`chip ${tone ?? ""}`}
  aria-pressed=${on} onClick=${onPick}>${tone && html`<i aria-hidden="true"></i>`}${name}</button>`;

/** A choice, with the one that the link names even where no call shows it. */
const Pick = ({ label, value = "", of: names, shown = (name) => name, onPick }) => html`<select class="chip"
  aria-label=${label} value=${value} onChange=${(event) => onPick(event.target.value)}>
  <option value="">any ${label.toLowerCase()}</option>
  ${[...new Set([...names, ...(value ? [value] : [])])].map((name) => html`<option value=${name}>${shown(name)}</option>`)}
  </select>`;

function nothing(loaded, known) {
  if (!loaded) return html`<${Empty} title="Reading the record…" />`;
  if (known) return html`<${Empty} title="No call matches." />`;
  return html`<${Empty} title="No calls yet." command="callgate call list_dir">
    Every call of every client shows up here as it happens. Make one:</${Empty}>`;
}

const drawRow = (row) => html`
  <span class="at">${moment(row.at ?? madeAt(row.id))}</span>
  <${State} state=${row.state} />
  <span class="tool">${row.tool ?? "…"}</span>
  <${Effect} effect=${row.side_effects} />
  <span class="summary">${row.error_class && html`<b class=${row.state}>${row.error_class}</b> `}<${Line}
    value=${brief(row.summary)} /></span>
  <span class="caller"><${Line} value=${clientOf(row)} most=${40} /></span>
  <span class="took">${row.state === "asked" ? "" : duration(row.duration_ms)}</span>`;
