// Single keys as commands, unless someone is typing.

import { useEffect, useRef } from "./ui.js";

const TYPING = new Set(["INPUT", "TEXTAREA", "SELECT"]);
const MODIFIERS = new Set(["Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock"]);

let lastAt = -Infinity;
let before = Infinity;
addEventListener("keydown", ({ key }) => {
  if (MODIFIERS.has(key)) return;
  before = performance.now() - lastAt;
  lastAt = performance.now();
}, true);

/** How long no key has been pressed, and how long none had been before the last one. Keys in quick
 *  succession are words, not commands. */
export const quiet = () => ({ now: performance.now() - lastAt, before });

/** Part of a word that an input method puts together; some browsers say so by the code alone. */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

/** `keys` maps a key to what it does, while the component is shown. */
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    function press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (event.getModifierState("AltGraph") || isComposing(event)) return;
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
