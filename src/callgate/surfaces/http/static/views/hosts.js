// The processes that run tools: how each is, and a new start.

import { at, get, post } from "../lib/api.js";
import { href } from "../lib/router.js";
import { quoted } from "../lib/text.js";
import { useStore } from "../lib/store.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Effect, Empty, Text, Trouble, Values } from "../parts/basics.js";

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
      ${host.tools.some((tool) => tool.changed) && html`<p class="command">
        <code>callgate hosts reload ${host.name}</code></p>`}
    </article>`)}</div></div></section>`;
}
