// The questions that wait for a person, and those that were just answered.

import { useKeys } from "../lib/keys.js";
import { setQuery } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { brief } from "../lib/text.js";
import { html, useRef } from "../lib/ui.js";
import { Empty, Line, Text } from "../parts/basics.js";
import { Question, outcome } from "../parts/question.js";

export function Inbox({ query }) {
  const { questions, settled, link } = useStore();
  const waiting = [...questions.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  const chosen = waiting.find((each) => each.id === query.question) ?? waiting[0];
  const commands = useRef({});

  function move(step) {
    const at = waiting.indexOf(chosen) + step;
    if (!waiting[at]) return;
    setQuery({ question: waiting[at].id });
    const card = document.querySelector(`[data-question="${CSS.escape(waiting[at].id)}"]`);
    card?.scrollIntoView({ block: "nearest" });
  }
  const act = (key) => (event) => !event.repeat && commands.current[key]?.();
  useKeys({
    a: act("a"), s: act("s"), d: act("d"), e: act("e"), w: act("w"),
    j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
  });

  return html`<section class="inbox">
    <header class="bar"><h1>Inbox</h1>
      <span class="quiet total" role="status">${waiting.length ? `${waiting.length} waiting` : ""}</span>
        </header>
    <div class="scroll">
    ${waiting.map((each) => html`<${Question} key=${each.id} question=${each} chosen=${each === chosen}
      commands=${each === chosen ? commands : null}
        onChoose=${() => each !== chosen && setQuery({ question: each.id })} />`)}
    ${!waiting.length && link === "live" && html`<${Empty} title="Nothing waits for you."
      command="callgate call --wait write_file path=hello.txt content=hello">
      While this page is open, calls that need a yes are asked here. Make one:</${Empty}>`}
    ${settled.length > 0 && html`<h2 class="section">Answered</h2>
      <ul class="settled">${settled.map(({ question, how }) => html`<li key=${question.id}
        class=${how.decision}><b><${Line} value=${question.tool} /></b>
        <span class="summary"><${Line} value=${brief(question.input_summary)} /></span>
        <span class="how">${describe(how)}</span></li>`)}</ul>`}
    </div></section>`;
}

function describe(how) {
  const scope = how.scope && how.scope !== "once" ? ` (${how.scope})` : "";
  if (how.late) return html`${outcome(how.decision)}${scope} by someone else, who was first`;
  if (how.mine) return `${outcome(how.decision)}${scope}`;
  return html`${outcome(how.decision)}${scope}${how.by && html` by <${Text} value=${how.by} />`}`;
}
