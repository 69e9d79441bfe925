// Calls as they happen, newest first: filtered, searched, paused.

import { clientOf, madeAt, matching } from "../lib/calls.js";
import { useKeys } from "../lib/keys.js";
import { href, setQuery } from "../lib/router.js";
import { SPANS } from "../lib/spans.js";
import { loadOlder, useStore } from "../lib/store.js";
import { brief, count, duration, moment, shortId, visible } from "../lib/text.js";
import { html, useEffect, useMemo, useState } from "../lib/ui.js";
import { whyOf } from "../lib/words.js";
import { Copy, Effect, Empty, Search, State, asLine } from "../parts/basics.js";
import { CallPanel } from "../parts/call.js";
import { LongList } from "../parts/list.js";

const STATES = ["asked", "running", "ok", "failed", "denied", "cancelled", "invalid"];
const SHOWN = { asked: "waiting" };
const EFFECTS = ["none", "read", "write", "network", "execute"];
const MOST_SESSIONS = 50;
const ENOUGH = 100; // rows that are searched automatically
const MOST_LOOKED_AT = 20_000; // calls that this search reads
const NARROW = matchMedia("(max-width: 720px)");

export function Live({ query }) {
	const { calls, loaded, older } = useStore();
	const [held, setHeld] = useState(null);
	const { state, effect, client, session, span, q: text, call } = query;
	const since = Object.hasOwn(SPANS, span ?? "") ? Date.now() / 1000 - SPANS[span] : 0;
	const filters = [state, effect, client, session, span, text];
	const found = useMemo(() => matching(calls, { state, effect, client, session, since, text }),
		[calls.version, ...filters]);
	const isRead = older === null || (since > 0 && madeAt(calls.order[0] ?? "") < since);
	// A filter matches few of the calls on the first pages: read on.
	useEffect(() => {
		if (loaded && !isRead && found.length < ENOUGH && calls.order.length < MOST_LOOKED_AT) loadOlder();
	}, [calls.version, loaded, ...filters]);
	const rows = held ?? found;
	const missed = held ? found.length - held.length : 0;
	const pause = () => setHeld(held ? null : found);
	const filter = (changes) => {
		setHeld(null);
		setQuery(changes);
	};
	useKeys({ p: pause, Escape: () => call && setQuery({ call: "" }) });
	if (loaded && !calls.order.length && !call) return html`<${FirstRun} />`;

	return html`<section class=${`live ${call ? "split" : ""}`}>
		<header class="bar"><h1>Live</h1>
			<${Search} what="calls" query=${query} onType=${filter} />
			<button aria-pressed=${held !== null} onClick=${pause}>
				${held ? html`Resume${missed > 0 && html` <b class="count">${missed}</b>`}` : "Pause"}</button>
			<span class="quiet total" aria-live="off">${isRead ? count(found.length, "call")
				: `${found.length.toLocaleString("en")}+ calls`}</span>
		</header>
		<div class="chips" role="group" aria-label="Filters">
			${STATES.map((each) => html`<${Chip} name=${SHOWN[each] ?? each} on=${state === each} tone=${each}
				onPick=${() => filter({ state: state === each ? "" : each })} />`)}
			<span class="gap"></span>
			<${Pick} label="Effect" value=${effect} of=${EFFECTS.filter((each) => calls.effects.has(each))}
				onPick=${(each) => filter({ effect: each })} />
			<${Pick} label="Client" value=${client} of=${[...calls.clients].sort()} onPick=${(each) => filter({ client: each })} />
			<${Pick} label="Session" value=${session} of=${[...calls.sessions].slice(-MOST_SESSIONS).reverse()}
				shown=${shortId} onPick=${(each) => filter({ session: each })} />
			<${Pick} label="Time" value=${span} of=${Object.keys(SPANS)} shown=${(each) => `last ${each}`}
				onPick=${(each) => filter({ span: each })} />
		</div>
		<div class="row heads" aria-hidden="true"><span class="at">Started</span><span class="state">State</span>
			<span class="tool">Tool</span><span class="effect">Effect</span><span class="summary">Reason and arguments</span>
			<span class="caller">Client</span><span class="took">Took</span></div>
		${rows.length ? html`<${LongList} rows=${rows} height=${NARROW.matches ? 54 : 32} draw=${drawRow}
				label="Calls" active=${call} onOpen=${(id) => setQuery({ call: id })} onEnd=${loadOlder} />`
			: html`<div class="long-list-none">${nothing(loaded, isRead, calls.order.length)}</div>`}
		${call && html`<${CallPanel} key=${call} id=${call} onClose=${() => setQuery({ call: "" })} />`}
	</section>`;
}

const Chip = ({ name, on, tone, onPick }) => html`<button class=${`chip ${tone ?? ""}`}
	aria-pressed=${on} onClick=${onPick}>${tone && html`<i aria-hidden="true"></i>`}${name}</button>`;

/** A choice, with the link's value even if no call has it. */
const Pick = ({ label, value = "", of: names, shown = (name) => name, onPick }) => html`<select class="chip"
	aria-label=${label} value=${value} onChange=${(event) => onPick(event.target.value)}>
	<option value="">any ${label.toLowerCase()}</option>
	${[...new Set([...names, ...(value ? [value] : [])])].map((name) => html`<option
		value=${name}>${visible(shown(name), 40)}</option>`)}
	</select>`;

function nothing(loaded, isRead, known) {
	if (!loaded) return html`<${Empty} title="Loading calls…" />`;
	if (isRead) return html`<${Empty} title="No call matches." />`;
	return html`<${Empty} title=${`No match in the newest ${count(known, "call")}.`}>
		<button onClick=${loadOlder}>Search older calls</button></${Empty}>`;
}

const FIRST = [
	["callgate protect claude", "Protect your agent", "Claude Code asks callgate before each tool call."],
	["callgate call list_dir", "Call a tool", "The call appears on this page."],
	["callgate chat", "Talk to an agent", "It needs a model, and lists the options."],
];

/** Before the first call: what to run next. */
const FirstRun = () => html`<section><header class="bar"><h1>Live</h1></header><div class="scroll first-run">
	<h2>No calls yet</h2><p class="quiet">Every tool call of every client appears here. Run one of these commands in a terminal:</p>
	<ol class="steps">${FIRST.map(([command, title, more]) => html`<li class="card"><h3>${title}</h3>
		<p class="command"><code>${command}</code><${Copy} text=${command} /></p><p class="quiet">${more}</p></li>`)}</ol>
	<p class="quiet">Or <a href=${href("tools", "list_dir")}>try a tool in this page</a>. Calls that need your approval
		wait in the <a href=${href("inbox")}>Inbox</a>.</p></div></section>`;

function drawRow(row) {
	const why = whyOf(row);
	return html`
	<span class="at">${moment(madeAt(row.id))}</span>
	<${State} state=${row.state} />
	<span class="tool">${asLine(row.tool ?? "…", 60)}</span>
	${row.side_effects ? html`<${Effect} effect=${row.side_effects} />` : html`<span></span>`}
	<span class="summary">${why && html`<b class=${row.state}>${asLine(why, 90)}</b> `}${asLine(brief(row.summary))}</span>
	<span class="caller">${asLine(clientOf(row), 40)}</span>
	<span class="took">${row.state === "asked" ? "" : duration(row.duration_ms)}</span>`;
}
