// Follows one session: what is stored of it, then what happens, each event once.

import { at, get } from "./api.js";
import { listen, useStore } from "./store.js";
import { useEffect, useRef, useState } from "./ui.js";

const PAGE = 1000;
const MOST = 20_000;
const TELLS_OF_MESSAGES = new Set([
  "turn.started", "turn.completed", "turn.cancelled", "tool.called", "tool.completed",
  "tool.failed", "tool.confirmation_requested", "mode.changed",
]);

/** `{session, events, messages, writing, problem}`; `writing` is what the model is just saying. */
export function useSession(id) {
  const { epoch } = useStore();
  const [shown, setShown] = useState({ events: [], messages: [], writing: "" });
  const bySeq = useRef(new Map());

  useEffect(() => {
    let here = true;
    let writing = "";
    let timer = null;
    bySeq.current = new Map();
    setShown({ events: [], messages: [], writing: "" });

    function draw(more = {}) {
      if (!here) return;
      const events = [...bySeq.current].sort(([a], [b]) => a - b).map(([, event]) => event);
      setShown((before) => ({ ...before, events, writing, ...more }));
    }
    async function look() {
      const [session, { messages }] = await Promise.all([
        get(at("sessions", id)),
        get(at("sessions", id, "messages")),
      ]);
      draw({ session, messages });
    }
    // Heard before it is read, so that nothing falls in between; a number counts once.
    const unlisten = listen((event, seq) => {
      if (event.session_id !== id) return;
      if (event.type === "output.chat_delta") writing += event.payload.text ?? "";
      else if (event.type.startsWith("output.") || event.type.startsWith("turn.")) writing = "";
      if (seq != null) bySeq.current.set(seq, event);
      draw();
      if (TELLS_OF_MESSAGES.has(event.type) && timer === null) {
        timer = setTimeout(() => {
          timer = null;
          look().catch(() => {});
        }, 60);
      }
    });
    async function load() {
      await look();
      for (let after = 0; here && after < MOST;) {
        const page = await get(at("sessions", id, "events"), { after, limit: PAGE });
        for (const [seq, event] of page.events) bySeq.current.set(seq, event);
        if (!page.events.length) break;
        after = page.events.at(-1)[0];
        if (after >= page.last) break;
      }
      draw({ loaded: true });
    }
    load().catch((problem) => draw({ problem }));
    return () => {
      here = false;
      clearTimeout(timer);
      unlisten();
    };
  }, [id, epoch]);

  return shown;
}
