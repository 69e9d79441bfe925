// Single keys as commands, except during typing.

import { useEffect, useRef } from "./ui.js";

const TYPING = new Set(["INPUT", "TEXTAREA", "SELECT"]);
const MODIFIERS = new Set(["Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock"]);

let lastAt = -Infinity;
let before = Infinity;
addEventListener("keydown", ({ key, timeStamp }) => {
	if (MODIFIERS.has(key)) return;
	before = timeStamp - lastAt; // times of the keys, whose events may be late
	lastAt = timeStamp;
}, true);

/** Time since the last key, and before it. Quick keys are text, not commands. */
export const quiet = () => ({ now: performance.now() - lastAt, before });

/** Whether a key belongs to an input method. */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

export function useKeys(keys) {
	const current = useRef(keys);
	current.current = keys;
	useEffect(() => {
		function press(event) {
			if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
			if (event.getModifierState("AltGraph") || isComposing(event)) return;
			if (TYPING.has(event.target.tagName) || event.target.isContentEditable) return;
			if (document.querySelector("dialog[open]")) return; // it has its own keys
			const act = current.current[event.key];
			if (!act) return;
			event.preventDefault();
			act(event);
		}
		addEventListener("keydown", press);
		return () => removeEventListener("keydown", press);
	}, []);
}
