// Whether an element has been still long enough for a click to count.

import { STILL_MS } from "./choosing.js";
import { useEffect, useRef, useState } from "./ui.js";

const LOOK_MS = 100;

/** Its position, without scrolling. */
function placeOf(node) {
	const { left, top, width } = node.getBoundingClientRect();
	const scroller = node.closest(".scroll, .panel");
	return [left, top + (scroller?.scrollTop ?? 0), width].map(Math.round).join(" ");
}

/** A function that returns whether `node.current` did not appear, move or come to the front just now,
 *  or just before the event `at`. Redraws when this, or the result of `also`, changes. */
export function useStill(node, also) {
	const since = useRef(performance.now());
	const place = useRef(null);
	const [, draw] = useState("");
	function isStill(at = performance.now()) {
		const now = node.current === null ? null : placeOf(node.current);
		if (now !== place.current) since.current = performance.now();
		place.current = now;
		return at - since.current >= STILL_MS;
	}
	const latest = useRef(null);
	latest.current = () => `${isStill()} ${also?.()}`;
	useEffect(() => {
		const timer = setInterval(() => draw(latest.current()), LOOK_MS);
		const come = () => { since.current = performance.now(); };
		addEventListener("focus", come);
		return () => {
			clearInterval(timer);
			removeEventListener("focus", come);
		};
	}, []);
	return isStill;
}
