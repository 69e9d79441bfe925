// The one place where state lives: calls, open questions, and how we stand with the instance.
//
//     stream --> store --(once a frame)--> views
//     record -----^      --(each event)--> whoever follows one session (`listen`)

import { get } from "./api.js";
import { isOver, makeCalls, put, told } from "./calls.js";
import { openStream } from "./stream.js";
import { useEffect, useState } from "./ui.js";

const PAGE = 500;
const REFRESH_MS = 400;
const KEPT_ANSWERS = 20;

export const state = {
  link: "connecting",
  instance: null,
  calls: makeCalls(),
  older: null, // where the record goes on; null at its end
  loaded: false,
  questions: new Map(),
  settled: [], // questions that were just answered, newest first
  changes: 0, // how often a question came or went
  epoch: 0, // raised when events may have been missed and everything is to be read again
};

// Views.

const watchers = new Set();
let scheduled = false;

function changed() {
  if (scheduled) return;
  scheduled = true;
  let done = false;
  const run = () => {
    if (done) return;
    done = true;
    scheduled = false;
    for (const each of watchers) each();
  };
  requestAnimationFrame(run);
  setTimeout(run, 200); // a hidden tab draws no frames, but its title still counts
}

/** Draw again whenever anything in the store has changed. */
export function useStore() {
  const [, draw] = useState(0);
  useEffect(() => {
    const again = () => draw((n) => n + 1);
    watchers.add(again);
    return () => watchers.delete(again);
  }, []);
  return state;
}

const listeners = new Set();

/** Hear each event as it comes; returns what ends it. */
export function listen(hear) {
  listeners.add(hear);
  return () => listeners.delete(hear);
}

// The stream.

export function start() {
  openStream({
    onState(link) {
      const back = link === "live" && state.link !== "live";
      state.link = link;
      if (back) {
        loadInstance();
        refresh();
      }
      changed();
    },
    onSnapshot({ confirmations, calls }) {
      const open = new Map(confirmations.map((each) => [each.id, each]));
      for (const each of state.questions.values()) {
        if (!open.has(each.id)) settle(each.id, {});
      }
      if (confirmations.some((each) => !state.questions.has(each.id))) state.changes += 1;
      state.questions = open;
      for (const row of calls) put(state.calls, row);
      changed();
    },
    onReset() {
      state.epoch += 1;
      refresh();
    },
    onEvent: take,
  });
}

function take(event, seq) {
  const row = told(event);
  if (row !== null) put(state.calls, row);
  if (event.type === "tool.confirmation_requested") loadQuestions();
  if (event.type.startsWith("settings.")) loadInstance();
  if (event.type === "tool.confirmation_resolved") {
    settle(event.payload.confirmation_request_id, event.payload);
  }
  // Events say that a call ended; what it was called with stands in the record.
  if (row !== null && isOver(row)) refresh();
  for (const hear of listeners) hear(event, seq);
  changed();
}

/** A question is closed. Our own answer, the event and a snapshot may all say so, in any order. */
export function settle(id, how) {
  const known = state.settled.find((each) => each.question.id === id);
  const question = state.questions.get(id) ?? known?.question;
  if (question === undefined) return;
  if (state.questions.delete(id)) state.changes += 1;
  const others = state.settled.filter((each) => each !== known);
  state.settled = [{ question, how: { ...known?.how, ...how } }, ...others].slice(0, KEPT_ANSWERS);
  changed();
}

// What is asked for, because events do not say it.

async function loadInstance() {
  state.instance = await get("/v1/instance").catch(() => state.instance);
  changed();
}

const loadQuestions = spaced(async () => {
  const { confirmations } = await get("/v1/confirmations");
  const known = new Set(state.settled.map(({ question }) => question.id));
  for (const each of confirmations) {
    if (known.has(each.id) || state.questions.has(each.id)) continue;
    state.questions.set(each.id, each);
    state.changes += 1;
  }
}, 0);

const refresh = spaced(async () => {
  const page = await get("/v1/calls", { limit: PAGE });
  for (const row of page.calls) put(state.calls, row);
  if (!state.loaded) state.older = page.before;
  state.loaded = true;
}, REFRESH_MS);

export const loadOlder = spaced(async () => {
  if (state.older === null) return;
  const page = await get("/v1/calls", { limit: PAGE, before: state.older });
  for (const row of page.calls) put(state.calls, row);
  state.older = page.before;
}, 0);

/** At most one at a time, and not more often than this; a failure is met again with the next. */
function spaced(work, least) {
  let running = false;
  let again = false;
  return async function run() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      do {
        again = false;
        await work();
        changed();
        await new Promise((done) => setTimeout(done, least));
      } while (again);
    } catch {
      // The stream notices a lost instance by itself.
    } finally {
      running = false;
    }
  };
}
