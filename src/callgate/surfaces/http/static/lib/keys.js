// Single keys as commands, unless someone is typing.

import { useEffect, useRef } from "./ui.js";

const TYPING = new Set(["INPUT", "TEXTAREA", "SELECT"]);

/** `keys` maps a key to what it does, while the component is shown. */
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    function press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (TYPING.has(event.target.tagName) || event.target.isContentEditable) return;
      if (document.querySelector("dialog[open]")) return; // it has keys of its own
      const act = current.current[event.key];
      if (!act) return;
      event.preventDefault();
      act(event);
    }
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
