// The processes that run tools, hosts and MCP servers: how each is, its log, a new start, an approval,
// and the messages of a server; and the remote workers that are connected.

import { at, get, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { clock, duration, quoted } from "../lib/text.js";
import { useStore } from "../lib/store.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Block, Copy, Effect, Empty, Line, Text, Trouble, Values } from "../parts/basics.js";
import { Table } from "../parts/table.js";

export function Hosts() {
  const { link } = useStore();
  const [hosts, setHosts] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = () => get("/v1/hosts").then(({ hosts: found }) => setHosts(found), setProblem);
  useEffect(() => { load(); }, [link]);

  async function restart(name) {
    setProblem(null);
    await post(at("hosts", name, "restart")).catch(setProblem);
    load();
  }

  return html`<section><header class="bar"><h1>Hosts</h1>
      <button onClick=${load}>Look again</button></header>
    <div class="scroll"><${Trouble} problem=${problem} />
    ${hosts?.length === 0 && html`<${Empty} title="No hosts." command="callgate host new hello">
      Tools of your own run in processes of their own. Write one:</${Empty}>`}
    <div class="cards">${hosts?.map((host) => html`<article class="card" key=${host.name}>
      <header><h2>${host.name}</h2><span class=${`health ${host.health}`}>${host.health}</span>
        <button class="small" onClick=${() => restart(host.name)}>Restart</button></header>
      ${host.problem && html`<p class="trouble"><${Text} value=${host.problem} /></p>`}
      <p class="quiet"><code><${Text} value=${host.command.map(quoted).join(" ")} /></code></p>
      <ul class="plain">${host.tools.map((tool) => html`<li><a
        href=${href("tools", tool.name)}>${tool.name}</a>
        ${" "}<${Effect} effect=${tool.effect} />
        ${tool.changed && html` <b class="warn">changed since it was accepted</b>`}</li>`)}</ul>
      ${host.ui_elements.length > 0 && html`<details><summary>Shows ${host.ui_elements.length}</summary>
        ${host.ui_elements.map((element) => html`<${Values} values=${element} />`)}</details>`}
      ${!isServer(host) && host.tools.some((tool) => tool.changed) && html`<p class="command">
        <code>callgate hosts reload ${host.name}</code></p>`}
      ${isServer(host) && html`<${Approval} host=${host} onDone=${load} />`}
      <${Log} host=${host} />
      ${isServer(host) && html`<${Messages} host=${host} />`}
    </article>`)}<${AddServer} /></div><${Workers} link=${link} /></div></section>`;
}

/** Remote workers, of this server and of others that share its store; nothing where there are none. */
function Workers({ link }) {
  const [workers, setWorkers] = useState([]);
  const [problem, setProblem] = useState(null);
  useEffect(() => { get("/v1/workers").then((found) => setWorkers(found.workers), setProblem); }, [link]);
  return html`<${Trouble} problem=${problem} />${workers.length > 0 && html`<h2>Remote workers</h2>
    <${Table} label="Remote workers" heads=${["Worker", "Workspaces", "Calls", "Heard of", "Version", "Sandbox", "Server"]}
      rows=${workers.map((each) => ({ key: `${each.pool}/${each.name}@${each.server}`, title: each.platform, cells: [
        html`<b><${Line} value=${`${each.pool}/${each.name}`} /></b> <span class="quiet">generation ${each.generation}</span>`,
        html`<${Line} value=${each.workspaces.join(", ")} />`, each.here ? `${each.calls} of ${each.slots}` : "?",
        each.here ? `${each.silent_s} s ago` : "?", html`<${Line} value=${each.version} />`, html`<${Line} value=${each.sandbox} />`,
        each.here ? "this one" : html`<${Line} value=${each.server} />`] }))} />`}`;
}

const isServer = (host) => host.name.startsWith("mcp.");

/** What a server wants to have approved: what matters first, schemas folded. */
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
      ${busy ? "Starting it…" : host.health === "new" ? "Look at it, to approve" : "Look for changes"}</button></p>
    <${Trouble} problem=${problem} />
    ${found && html`<section class="proposal" aria-label=${`What ${host.name} says`}>
      ${found.doubt && html`<p class="warn"><${Text} value=${found.doubt} /></p>`}
      ${found.about.map((each) => html`<p class="warn"><${Text} value=${difference(each)} /></p>`)}
      ${found.removed.length > 0 && html`<p class="warn">No longer there: <${Text} value=${found.removed.join(", ")} /></p>`}
      <${Table} label=${`Tools of ${host.name}`} heads=${["Tool", "Effect", "What is new", ["Description, in its words", "said-of"]]}
        rows=${found.tools.map((tool) => ({ key: tool.name, cells: [html`<b><${Line} value=${tool.name} /></b>`,
          html`<${Effect} effect=${tool.effect} />`, { shown: tool.news, tone: tool.news === "as approved" ? "" : "denied" },
          html`<div><${Text} value=${tool.description} />${tool.differences.map((each) => html`<p class="warn"><${Text}
            value=${difference(each)} /></p>`)}<details><summary>Schema</summary><${Block} label=${`Schema of ${tool.name}`}
            value=${JSON.stringify(tool.schema, null, 2)} /></details></div>`] }))} />
      ${hasNews ? html`<button class="main" disabled=${busy} onClick=${approve}>Approve ${found.tools.length} tools</button>`
        : html`<p class="quiet" role="status">All is as it was approved.</p>`}</section>`}`;
}

const difference = ({ path, before, after }) =>
  `${path}: ${before === undefined ? "not there" : JSON.stringify(before)} → ${after === undefined ? "gone" : JSON.stringify(after)}`;

/** The end of what it wrote and what we noted, read when it is opened. */
function Log({ host }) {
  const [log, setLog] = useState(null);
  const [problem, setProblem] = useState(null);
  const open = (event) => event.target.open && get(at("hosts", host.name, "log")).then(setLog, setProblem);
  return html`<details onToggle=${open}><summary>Log</summary><${Trouble} problem=${problem} />
    ${log && (log.text ? html`${log.cut && html`<p class="quiet">Only its end.</p>`}<${Block} label=${`Log of ${host.name}`} value=${log.text} />`
      : html`<p class="quiet">Nothing yet.</p>`)}</details>`;
}

/** The last requests and answers, as they went over the wire, read when it is opened. */
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
    ${messages && html`<p class="buttons"><button class="small" onClick=${load}>Look again</button></p>
      ${messages.length === 0 && html`<p class="quiet">Nothing yet: it is started by its first call.</p>`}
      <ol class="plain wire" aria-label=${`Messages of ${host.name}`}>${messages.map((each) =>
        html`<${Message} key=${each.number} message=${each} isOneOfMany=${manyConnections} />`)}</ol>`}</details>`;
}

/** Its JSON is drawn once it is opened: there may be a megabyte of it. */
function Message({ message, isOneOfMany }) {
  const [open, setOpen] = useState(false);
  const { at: time, connection, direction, kind, method, duration_ms: ms, size, text } = message;
  const way = direction === "sent" ? "→ to server" : "← from server";
  return html`<li><details onToggle=${(event) => setOpen(event.target.open)}><summary><time>${clock(time)}</time>
    ${" "}<span class=${direction}>${way}</span> <b><${Line} value=${method ?? "unknown"} /></b>
    ${" "}<span class=${kind === "error" ? "warn" : "quiet"}>${kind}</span>
    <span class="quiet">${ms !== null && ` in ${duration(ms)}`}${` · ${size} bytes`}${isOneOfMany
      && ` · connection ${connection}`}</span></summary>
    ${open && (text === null ? html`<p class="quiet">Too large to be kept.</p>`
      : html`<${Block} label=${`${kind} ${method ?? ""}`} value=${text} />`)}</details></li>`;
}

/** A page that started commands would make its token a way to run them: it only writes the command. */
function AddServer() {
  const [name, setName] = useState("");
  const [target, setTarget] = useState("");
  const words = /^https?:/.test(target) ? quoted(target.trim()) : `-- ${target.trim()}`;
  const command = `callgate mcp add ${quoted(name || "NAME")} ${target.trim() ? words : "-- COMMAND"}`;
  return html`<article class="card"><h2>Add an MCP server</h2>
    <div class="try"><label><span>Name</span><input value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <label><span>Its command, or its address</span><input value=${target} placeholder="npx -y some-server"
      onInput=${(event) => setTarget(event.target.value)} /></label></div>
    <p class="quiet">Run this in a terminal; it shows the server's tools and asks before anything of it is used.</p>
    <p class="command"><code><${Text} value=${command} /></code><${Copy} text=${command} /></p></article>`;
}
