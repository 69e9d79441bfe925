// The catalogue: every tool, where it comes from, why it is hidden, and a form to try it.

import { get } from "../lib/api.js";
import { href } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Block, Effect, Empty, Search, Text, Trouble } from "../parts/basics.js";
import { TryIt } from "../parts/tryit.js";

export function Tools({ id, query }) {
  const { link } = useStore();
  const [tools, setTools] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    get("/v1/tools").then(({ tools: found }) => setTools(found), setProblem);
  }, [link]);

  const text = (query.q ?? "").toLowerCase();
  const found = (tools ?? []).filter((each) =>
    `${each.name} ${each.description} ${each.source}`.toLowerCase().includes(text));
  const chosen = tools?.find((each) => each.name === id);

  return html`<section class=${`tools ${chosen ? "split" : ""}`}>
    <header class="bar"><h1>Tools</h1>
      <${Search} what="tools" query=${query} />
      <span class="quiet total">${tools ? `${found.length} tools` : ""}</span></header>
    <${Trouble} problem=${problem} />
    ${tools && !found.length && html`<${Empty} title="No tool matches." command="callgate tools" />`}
    <ul class="catalogue" aria-label="Tools">${found.map((each) => html`<li key=${each.name}>
      <a href=${href("tools", each.name, { q: query.q })} aria-current=${each.name === id ? "true" : null}
          class=${each.hidden ? "hidden" : ""}>
        <span class="tool">${each.name}</span><${Effect} effect=${each.side_effects} />
        <span class="source">${each.source}</span>
        <span class="summary"><${Text} value=${each.hidden ? `Hidden: ${each.hidden}` : each.description} />
          </span>
      </a></li>`)}</ul>
    ${chosen && html`<${Detail} key=${chosen.name + (query.arguments ?? "")} tool=${chosen}
      query=${query} />`}
    ${id && tools && !chosen && html`<${Empty} title=${`There is no tool ${id}.`}
      command="callgate tools" />`}
  </section>`;
}

const CAN = {
  "read-only": "only read", "writes-files": "change files", "controls-browser": "control a browser",
  "starts-process": "start programs", "accesses-network": "reach other machines", destructive: "destroy data",
};
const inWords = (capability) => CAN[capability] ?? capability;

function Detail({ tool, query }) {
  return html`<aside class="panel" aria-label=${`Tool ${tool.name}`}>
    <header><h2>${tool.name}</h2><${Effect} effect=${tool.side_effects} />
      ${tool.destructive && html`<span class="effect destructive">destructive</span>`}
      <a class="button small close" href=${href("tools", "", { q: query.q })} aria-label="Close">✕</a>
        </header>
    <p><${Text} value=${tool.description} /></p>
    ${tool.hidden && html`<p class="trouble">Not offered: <${Text} value=${tool.hidden} /></p>`}
    <dl class="facts"><dt>Source</dt><dd>${tool.source} (${tool.kind})</dd>
      <dt>What it can do</dt><dd>${tool.capabilities.map(inWords).join(", ") || "changes nothing outside itself"}</dd></dl>
    <${TryIt} tool=${tool} given=${query.arguments} />
    <details><summary>Schema</summary><${Block} label="Schema"
      value=${JSON.stringify(tool.input_schema, null, 2)} /></details>
  </aside>`;
}
