// What is typed to answer a question: a reason, a pattern, other arguments.
//
// Where `closed`, all of it stays to be read and the focus stays in it, but nothing is sent: the
// keys that are still being typed must not reach anything else.

import { isComposing } from "../lib/keys.js";
import { readJson } from "../lib/schema.js";
import { useStill } from "../lib/still.js";
import { editable } from "../lib/text.js";
import { html, useLayoutEffect, useRef, useState } from "../lib/ui.js";
import { Trouble } from "./basics.js";

/** A key that is held down, or that belongs to an input method, sends nothing. */
const isMeant = (event) => !event.repeat && !isComposing(event);

/** The button of a form, for a pointer only once it has stood still. */
function Send({ label, danger, closed }) {
  const button = useRef(null);
  const isStill = useStill(button);
  const click = (event) => event.detail > 0 && !isStill() && event.preventDefault();
  return html`<button ref=${button} class=${danger ? "danger" : "main"} onClick=${click}
    aria-disabled=${closed || !isStill()}>${label}</button>`;
}

/** One line to type, with a button; Enter sends, Escape goes back. */
export function Ask({ label, usual = "", act, danger, closed, onDone, onBack }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  function send(event) {
    event.preventDefault();
    if (!closed) onDone(field.current.value.trim());
  }
  function press(event) {
    if (event.key === "Enter" && !isMeant(event)) event.preventDefault();
    if (event.key === "Escape" && isMeant(event)) onBack();
  }
  return html`<form class="typed" onSubmit=${send} onKeyDown=${press}>
    <label><span>${label}</span><input ref=${field} defaultValue=${usual} autocomplete="off"
      readonly=${closed} spellcheck=${false} /></label>
    <${Send} label=${act} danger=${danger} closed=${closed} /></form>`;
}

export function Edit({ question, closed, onDone, onBack }) {
  const field = useRef(null);
  const [problem, setProblem] = useState(null);
  useLayoutEffect(() => {
    field.current.focus();
    grow();
  }, []);
  /** As tall as its text: all that will run is in sight. */
  function grow() {
    field.current.style.height = "0";
    field.current.style.height = `${field.current.scrollHeight + 4}px`;
  }
  function send(event) {
    event.preventDefault();
    if (closed) return;
    try {
      const read = readJson(field.current.value);
      if (read === null || typeof read !== "object" || Array.isArray(read)) {
        throw new Error("Arguments are an object.");
      }
      onDone(read);
    } catch (failure) {
      setProblem(failure);
    }
  }
  function press(event) {
    if (!isMeant(event)) return;
    if (event.key === "Escape") onBack();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
  }
  return html`<form class="edit" onSubmit=${send} onKeyDown=${press}>
    <label><span>Arguments to run instead; they go through every check again</span>
      <textarea ref=${field} spellcheck=${false} readonly=${closed} onInput=${grow}
        defaultValue=${editable(question.arguments)}></textarea></label>
    <${Trouble} problem=${problem} />
    <${Send} label="Allow with these" closed=${closed} /> <span class="quiet">Ctrl+Enter</span></form>`;
}
