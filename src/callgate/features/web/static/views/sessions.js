// The sessions, last used first; those of single calls are folded.

import { get, post } from "../lib/api.js";
import { go, href } from "../lib/router.js";
import { listen, useStore } from "../lib/store.js";
import { count, moment, shortId, visible } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { titleOf } from "../lib/words.js";
import { Empty, Search, Trouble, asLine } from "../parts/basics.js";
import { Table } from "../parts/table.js";

export function Sessions({ query }) {
	const { epoch, link } = useStore();
	const [sessions, setSessions] = useState(null);
	const [before, setBefore] = useState(null);
	const [problem, setProblem] = useState(null);
	const [opened, setOpened] = useState(new Set());
	const [news, setNews] = useState(0);
	const toggle = (id) => setOpened(new Set(opened.has(id) ? [...opened].filter((each) => each !== id) : [...opened, id]));
	useEffect(() => listen((event) => {
		if (sessions && !sessions.some((each) => each.id === event.session_id)) setNews((n) => n + 1);
	}), [sessions]);
	useEffect(() => {
		let here = true;
		get("/v1/sessions", { search: query.q, limit: 100 }).then((page) => {
			if (!here) return;
			setSessions(page.sessions);
			setBefore(page.before);
		}, setProblem);
		return () => { here = false; };
	}, [query.q, epoch, link, news]);

	async function more() {
		const page = await get("/v1/sessions", { search: query.q, limit: 100, before });
		setSessions([...sessions, ...page.sessions]);
		setBefore(page.before);
	}

	return html`<section><header class="bar"><h1>Sessions</h1>
			<${Search} what="sessions" query=${query} />
			<button onClick=${() => startChat().catch(setProblem)}>New chat</button></header>
		<div class="scroll"><${Trouble} problem=${problem} />
		${sessions?.length === 0 && html`<${Empty} title=${query.q ? "No session matches." : "No sessions yet."}
			command=${query.q ? null : "callgate chat"} />`}
		${sessions?.length > 0 && html`<${Table} label="Sessions" heads=${["Session", "Client", ["Directory", "directory"],
				"Mode", ["Messages", "number"], ["Events", "number"], "Last used"]}
			rows=${folded(sessions).flatMap((each) => (each.length === 1 ? [row(each[0])]
				: [groupRow(each, opened.has(each[0].id), () => toggle(each[0].id)),
					...(opened.has(each[0].id) ? each.map(row) : [])]))} />`}
		${before && html`<p><button onClick=${more}>Older</button></p>`}</div></section>`;
}

/** A session of one call. */
const isOneShot = (session) => !session.title && !session.messages && !session.turn_id;

/** Last used first; neighbouring single calls are one group. */
export function folded(sessions) {
	const groups = [];
	for (const each of [...sessions].sort((a, b) => b.updated_at - a.updated_at)) {
		const last = groups.at(-1);
		if (last && isOneShot(each) && isOneShot(last[0])) last.push(each);
		else groups.push([each]);
	}
	return groups;
}

const directory = (path) => html`<span title=${visible(path, 400)}>${asLine(path.split("/").pop() || path)}</span>`;

const row = (each) => ({ key: each.id, cells: [
	html`<a href=${href("session", each.id)}>${asLine(titleOf(each), 100)}</a>
		${" "}<code class="quiet" title=${each.id}>${shortId(each.id)}</code>
		${each.turn_id && html` <span class="state running"><i></i>running</span>`}`,
	{ shown: asLine(each.client ?? "–", 40), tone: "nowrap" }, directory(each.workspace), each.mode, each.messages, each.last_seq,
	{ shown: moment(each.updated_at), tone: "nowrap" }] });

function groupRow(group, isOpen, onToggle) {
	const unique = (name) => [...new Set(group.map((each) => each[name]).filter(Boolean))];
	const some = (names) => names.slice(0, 3).join(", ") + (names.length > 3 ? " …" : "");
	return { key: `group ${group[0].id}`, cells: [
		html`<button class="link" aria-expanded=${isOpen} onClick=${onToggle}>${isOpen ? "▾" : "▸"}
			${` ${count(group.length, "single call")}`}</button> <span class="quiet">${asLine(some(unique("first_tool")))}</span>`,
		{ shown: asLine(some(unique("client")) || "–", 40), tone: "nowrap" }, some(unique("workspace").map((each) => each.split("/").pop())),
		some(unique("mode")), 0, group.reduce((sum, each) => sum + each.last_seq, 0), { shown: moment(group[0].updated_at), tone: "nowrap" }] };
}

export async function startChat() {
	const made = await post("/v1/sessions", {});
	go("chat", made.id);
}
