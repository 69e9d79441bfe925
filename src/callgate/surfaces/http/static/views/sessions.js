// The sessions, last used first.

import { get, post } from "../lib/api.js";
import { go, href } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { moment } from "../lib/text.js";
import { html, useEffect, useState } from "../lib/ui.js";
import { Empty, Line, Search, Trouble } from "../parts/basics.js";

export function Sessions({ query }) {
  const { epoch, link } = useStore();
  const [sessions, setSessions] = useState(null);
  const [before, setBefore] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    let here = true;
    get("/v1/sessions", { search: query.q, limit: 100 }).then((page) => {
      if (!here) return;
      setSessions(page.sessions);
      setBefore(page.before);
    }, setProblem);
    return () => { here = false; };
  }, [query.q, epoch, link]);

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
    ${sessions?.length > 0 && html`<table class="wide"><thead><tr><th>Session</th><th>Workspace</th>
      <th>Mode</th>
      <th class="number">Messages</th><th class="number">Events</th><th>Last used</th></tr></thead>
      <tbody>${sessions.map((each) => html`<tr key=${each.id}>
        <td><a href=${href("session", each.id)}><${Line} value=${each.title || each.id} /></a> <code
          class="quiet">${each.id.slice(-6)}</code>
          ${each.turn_id && html` <span class="state running"><i></i>at work</span>`}</td>
        <td class="path" title=${each.workspace}><${Line} value=${each.workspace} /></td><td>${each.mode}</td>
        <td class="number">${each.messages}</td><td class="number">${each.last_seq}</td>
        <td class="nowrap">${moment(each.updated_at)}</td></tr>`)}</tbody></table>`}
    ${before && html`<p><button onClick=${more}>Older</button></p>`}</div></section>`;
}

/** A new session to talk in. */
export async function startChat() {
  const made = await post("/v1/sessions", {});
  go("chat", made.id);
}
