// Hosts and MCP servers: health, log, restart, approval, messages; and remote workers.

import { at, get, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { clock, count, duration, quoted, visible } from "../lib/text.js";
import { useRead } from "../lib/store.js";
import { html, useState } from "../lib/ui.js";
import { Block, Copy, Effect, Empty, Trouble, Values, asLine, asText } from "../parts/basics.js";
import { Table } from "../parts/table.js";

export function Hosts() {
	const [all, missing, load] = useRead("/v1/hosts");
	const [problem, setProblem] = useState(null);
	const hosts = all?.hosts;

	async function restart(name) {
		setProblem(null);
		await post(at("hosts", name, "restart")).catch(setProblem);
		load();
	}

	return html`<section><header class="bar"><h1>Hosts</h1>
			<button onClick=${load}>Refresh</button></header>
		<div class="scroll"><${Trouble} problem=${problem ?? missing} />
		${hosts?.length === 0 && html`<${Empty} title="No hosts." command="callgate host new hello">
			A host runs your own tools in a separate process. To write one, run:</${Empty}>`}
		<div class="cards">${hosts?.map((host) => html`<article class="card" key=${host.name}>
			<header><h2>${asLine(host.name)}</h2><span class=${`health ${host.health}`}>${host.health}</span>
				<button class="small" onClick=${() => restart(host.name)}>Restart</button></header>
			${host.problem && html`<p class="trouble">${asText(host.problem)}</p>`}
			<p class="quiet"><code>${asText(host.command.map(quoted).join(" "))}</code></p>
			<ul class="plain">${host.tools.map((tool) => html`<li><a
				href=${href("tools", tool.name)}>${asLine(tool.name)}</a>
				${" "}<${Effect} effect=${tool.effect} />
				${tool.changed && html` <b class="warn">changed since its approval</b>`}</li>`)}</ul>
			${host.ui_elements.length > 0 && html`<details><summary>${count(host.ui_elements.length, "display element")}</summary>
				${host.ui_elements.map((element) => html`<${Values} values=${element} />`)}</details>`}
			${!isServer(host) && host.tools.some((tool) => tool.changed) && html`<p class="command">
				<code>callgate hosts reload ${host.name}</code></p>`}
			${isServer(host) && html`<${Approval} host=${host} onDone=${load} />`}
			<${Log} host=${host} />
			${isServer(host) && html`<${Messages} host=${host} />`}
		</article>`)}<${AddServer} /></div><${Workers} /></div></section>`;
}

function Workers() {
	const [all, problem] = useRead("/v1/workers");
	const workers = all?.workers ?? [];
	return html`<${Trouble} problem=${problem} />${workers.length > 0 && html`<h2>Remote workers</h2>
		<${Table} label="Remote workers" heads=${["Worker", "Workspaces", "Calls", "Last message", "Version", "Sandbox", "Server"]}
			rows=${workers.map((each) => ({ key: `${each.pool}/${each.name}@${each.server}`, title: each.platform, cells: [
				html`<b>${asLine(`${each.pool}/${each.name}`)}</b> <span class="quiet">generation ${each.generation}</span>`,
				asLine(each.workspaces.join(", ")), each.here ? `${each.calls} of ${each.slots}` : "?",
				each.here ? `${each.silent_s} s ago` : "?", asLine(each.version), asLine(each.sandbox),
				each.here ? "this one" : asLine(each.server)] }))} />`}`;
}

const isServer = (host) => host.name.startsWith("mcp.");

/** The tool definitions of a server, to approve them. */
function Approval({ host, onDone }) {
	const [found, setFound] = useState(null);
	const [problem, setProblem] = useState(null);
	const [busy, setBusy] = useState(false);
	async function run(work) {
		setBusy(true);
		setProblem(null);
		await work().catch(setProblem);
		setBusy(false);
	}
	const look = () => run(async () => setFound(await post(at("hosts", host.name, "look"))));
	const approve = () => run(async () => {
		await post(at("hosts", host.name, "approve"), { sha256: found.sha256 });
		setFound(null);
		onDone();
	});
	const hasNews = found && (found.is_new || found.doubt || found.removed.length > 0 || found.about.length > 0
		|| found.tools.some((tool) => tool.news !== "as approved"));
	return html`<p class="buttons"><button class="small" disabled=${busy} onClick=${look}>
			${busy ? "Starting the server…" : host.health === "new" ? "Review its tools" : "Check for changes"}</button></p>
		<${Trouble} problem=${problem} />
		${found && html`<section class="proposal" aria-label=${`Tools that ${visible(host.name)} declares`}>
			${found.doubt && html`<p class="warn">${asText(found.doubt)}</p>`}
			${found.about.map((each) => html`<p class="warn">${asText(difference(each))}</p>`)}
			${found.removed.length > 0 && html`<p class="warn">Removed: ${asText(found.removed.join(", "))}</p>`}
			<${Table} label=${`Tools of ${host.name}`} heads=${["Tool", "Effect", "Change", ["Description by the server", "said-of"]]}
				rows=${found.tools.map((tool) => ({ key: tool.name, cells: [html`<b>${asLine(tool.name)}</b>`,
					html`<${Effect} effect=${tool.effect} />`, { shown: tool.news, tone: tool.news === "as approved" ? "" : "denied" },
					html`<div>${asText(tool.description)}${tool.differences.map((each) => html`<p class="warn">${asText(difference(each))}</p>`)}<details><summary>Schema</summary><${Block} label=${`Schema of ${tool.name}`}
						value=${JSON.stringify(tool.schema, null, 2)} /></details></div>`] }))} />
			${hasNews ? html`<button class="main" disabled=${busy} onClick=${approve}>Approve ${count(found.tools.length, "tool")}</button>`
				: html`<p class="quiet" role="status">Nothing has changed since the approval.</p>`}</section>`}`;
}

const difference = ({ path, before, after }) =>
	`${path}: ${before === undefined ? "missing" : JSON.stringify(before)} → ${after === undefined ? "removed" : JSON.stringify(after)}`;

function Log({ host }) {
	const [log, setLog] = useState(null);
	const [problem, setProblem] = useState(null);
	const open = (event) => event.target.open && get(at("hosts", host.name, "log")).then(setLog, setProblem);
	return html`<details onToggle=${open}><summary>Log</summary><${Trouble} problem=${problem} />
		${log && (log.text ? html`${log.cut && html`<p class="quiet">Only the end of the log is shown.</p>`}<${Block} label=${`Log of ${host.name}`} value=${log.text} />`
			: html`<p class="quiet">Nothing yet.</p>`)}</details>`;
}

/** The last messages on the wire. */
function Messages({ host }) {
	const [messages, setMessages] = useState(null);
	const [problem, setProblem] = useState(null);
	function load() {
		setProblem(null);
		return get(at("hosts", host.name, "messages")).then((found) => setMessages(found.messages), setProblem);
	}
	const manyConnections = new Set(messages?.map((each) => each.connection)).size > 1;
	return html`<details onToggle=${(event) => event.target.open && load()}><summary>Requests and answers</summary>
		<${Trouble} problem=${problem} />
		${messages && html`<p class="buttons"><button class="small" onClick=${load}>Refresh</button></p>
			${messages.length === 0 && html`<p class="quiet">No messages yet. The first call starts the server.</p>`}
			<ol class="plain wire" aria-label=${`Messages of ${host.name}`}>${messages.map((each) =>
				html`<${Message} key=${each.number} message=${each} isOneOfMany=${manyConnections} />`)}</ol>`}</details>`;
}

/** Drawn when opened: it may be a megabyte. */
function Message({ message, isOneOfMany }) {
	const [open, setOpen] = useState(false);
	const { at: time, connection, direction, kind, method, duration_ms: ms, size, text } = message;
	const way = direction === "sent" ? "→ to server" : "← from server";
	return html`<li><details onToggle=${(event) => setOpen(event.target.open)}><summary><time>${clock(time)}</time>
		${" "}<span class=${direction}>${way}</span> <b>${asLine(method ?? "unknown")}</b>
		${" "}<span class=${kind === "error" ? "warn" : "quiet"}>${kind}</span>
		<span class="quiet">${ms !== null && ` in ${duration(ms)}`}${` · ${count(size, "byte")}`}${isOneOfMany
			&& ` · connection ${connection}`}</span></summary>
		${open && (text === null ? html`<p class="quiet">Too large to be stored.</p>`
			: html`<${Block} label=${`${kind} ${method ?? ""}`} value=${text} />`)}</details></li>`;
}

/** Only shows the command: if a page ran commands, its token could be misused to run them. */
function AddServer() {
	const [name, setName] = useState("");
	const [target, setTarget] = useState("");
	const words = /^https?:/.test(target) ? quoted(target.trim()) : `-- ${target.trim()}`;
	const command = `callgate mcp add ${quoted(name || "NAME")} ${target.trim() ? words : "-- COMMAND"}`;
	return html`<article class="card"><h2>Add an MCP server</h2>
		<div class="try"><label><span>Name</span><input value=${name} onInput=${(event) => setName(event.target.value)} /></label>
		<label><span>Command or address</span><input value=${target} placeholder="npx -y some-server"
			onInput=${(event) => setTarget(event.target.value)} /></label></div>
		<p class="quiet">Run this in a terminal. It shows the server's tools, and asks for approval.</p>
		<p class="command"><code>${asText(command)}</code><${Copy} text=${command} /></p></article>`;
}
