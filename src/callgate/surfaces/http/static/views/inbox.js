// The questions that wait for a person, and those that were just answered.

import { choose, nextOf, refusal } from "../lib/choosing.js";
import { quiet, useKeys } from "../lib/keys.js";
import { useQuestions } from "../lib/questions.js";
import { state, useStore } from "../lib/store.js";
import { brief } from "../lib/text.js";
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { Empty, Line, Text } from "../parts/basics.js";
import { Question, askerOf, outcome } from "../parts/question.js";

const every = () => true;

export function Inbox() {
  const { settled, link } = useStore();
  const [shown, dismiss] = useQuestions(every);
  const waiting = shown.filter(({ how }) => how === null);
  const chosen = useRef(null);
  const [hint, setHint] = useState("");
  const [, draw] = useState(null);
  const commands = useRef(new Map());
  useEffect(() => {
    const leave = () => set(null);
    addEventListener("blur", leave);
    return () => removeEventListener("blur", leave);
  }, []);

  function set(choice) {
    chosen.current = choice;
    draw(choice);
    setHint("");
  }
  const take = (id) => set(choose(id, state.changes, performance.now()));
  const refusalNow = (id, pauseMs) => refusal(chosen.current,
    { id, changes: state.changes, at: performance.now(), pauseMs });
  const isChosen = (id) => chosen.current?.id === id && chosen.current.changes === state.changes;

  /** Deliberate, so that it may also put away what is over. */
  function move(step) {
    const focused = questionOf(document.activeElement);
    const places = shown.map(({ question, how }) => ({ id: question.id, isOpen: how === null }));
    const next = nextOf(places, focused, isChosen(focused), step);
    if (next === null) return;
    dismiss();
    take(next);
    const card = document.querySelector(`[data-question="${CSS.escape(next)}"]`);
    card.focus({ preventScroll: true });
    requestAnimationFrame(() => card.scrollIntoView({ block: "nearest" }));
  }
  const act = (key) => (event) => {
    if (event.repeat || !waiting.length) return;
    const id = questionOf(event.target);
    const why = refusalNow(id, quiet().before);
    setHint(why ?? "");
    if (why === null) commands.current.get(id)?.[key]();
  };
  useKeys({
    ...Object.fromEntries([..."aswedo"].map((key) => [key, act(key)])),
    j: () => move(1), k: () => move(-1),
  });

  return html`<section class="inbox">
    <header class="bar"><h1>Inbox</h1><span class="key-hint" role="status">${hint}</span>
      <span class="quiet total" role="status">${waiting.length ? `${waiting.length} waiting` : ""}</span>
        </header>
    <div class="scroll">
    ${shown.map(({ question, how }) => html`<${Question} key=${question.id} question=${question} how=${how}
      onDismiss=${dismiss} keys=${{ isChosen: isChosen(question.id), commands: commands.current,
        isReady: () => refusalNow(question.id, quiet().now) === null
          && questionOf(document.activeElement) === question.id,
        onChoose: () => take(question.id) }} />`)}
    ${!shown.length && link === "live" && html`<${Empty} title="Nothing waits for you."
      command="callgate call --wait write_file path=hello.txt content=hello">
      While this page is open, calls that need a yes are asked here. Make one:</${Empty}>`}
    ${settled.length > 0 && html`<h2 class="section">Answered</h2>
      <ul class="settled">${settled.map(({ question, how }) => html`<li key=${question.id}
        class=${how.decision}><b><${Line} value=${question.tool} /></b>
        <span class="summary"><${Line} value=${brief(question.input_summary)} /></span>
        <span class="quiet"><${Line} value=${askerOf(question)} most=${40} /></span>
        <span class="how">${describe(how)}</span></li>`)}</ul>`}
    </div></section>`;
}

const questionOf = (node) => node?.closest("[data-question]")?.dataset.question ?? null;

function describe(how) {
  const scope = how.scope && how.scope !== "once" ? ` (${how.scope})` : "";
  if (how.late) return html`${outcome(how.decision)}${scope} by someone else, who was first`;
  if (how.mine) return `${outcome(how.decision)}${scope}`;
  return html`${outcome(how.decision)}${scope}${how.by && html` by <${Text} value=${how.by} />`}`;
}
