// The WebSocket: one subscription to everything, kept up without losing or doubling an event.
//
//     connecting --> live --(it breaks)--> reconnecting --> live, from the last cursor on
//                                               |
//                                               '--> locked: the cookie counts no longer
//
// The server replays what came after `since`. Where that is too much, it says so, and we begin
// anew with a snapshot (`onReset`): whoever holds events then has to read them again.

import { parse } from "./json.js";

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 2000;
const ID = "all";

export function openStream({ onState, onEvent, onSnapshot, onReset }) {
  let cursor = null;
  let wait = FIRST_WAIT_MS;
  let timer = null;
  let socket = null;

  function connect() {
    clearTimeout(timer);
    timer = null;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}/v1/stream`);
    socket.onopen = subscribe;
    socket.onmessage = (message) => take(parse(message.data));
    socket.onclose = () => broken();
  }

  function say(frame) {
    socket.send(JSON.stringify(frame));
  }

  function subscribe() {
    const since = cursor === null ? {} : { since: cursor };
    say({ type: "subscribe", id: ID, session: null, preset: "full", snapshot: true,
          confirmer: true, ...since });
  }

  function take(frame) {
    switch (frame.type) {
      case "subscribe_ack":
        wait = FIRST_WAIT_MS;
        // Without this, a break before the first event would lose what came in between.
        if (cursor === null) cursor = frame.last;
        onState("live");
        break;
      case "snapshot":
        onSnapshot(frame);
        break;
      case "event":
        if (frame.cursor != null) cursor = frame.cursor;
        onEvent(frame.event, frame.seq);
        break;
      case "ping":
        say({ type: "pong" });
        break;
      case "error":
        if (frame.id === ID) startOver();
        break;
    }
  }

  function startOver() {
    const hadPlace = cursor !== null;
    cursor = null;
    if (!hadPlace) return socket.close(); // refused without a place to begin at: try later
    onReset();
    subscribe();
  }

  async function broken() {
    onState(await isLocked() ? "locked" : "reconnecting");
    timer = setTimeout(connect, wait * (0.75 + Math.random() / 2));
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }

  // A browser does not tell why a WebSocket was refused; a plain request does.
  async function isLocked() {
    try {
      return (await fetch("/v1/instance")).status === 401;
    } catch {
      return false;
    }
  }

  function hurry() {
    if (timer !== null && !document.hidden) connect();
  }

  addEventListener("online", hurry);
  document.addEventListener("visibilitychange", hurry);
  connect();
}
