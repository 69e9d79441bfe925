// A part that is cut if it is too tall, with a button that opens it. It has no scroll bar:
// a reader could miss its end.

import { html, useLayoutEffect, useRef, useState } from "../lib/ui.js";

/** Whether the box shows its whole content now. */
export const isShownWhole = (box) => box.clientHeight > 0 && box.scrollHeight <= box.clientHeight + 1;

/** `isCut`: not all of it was drawn. `onMeasure` gets whether all is shown. */
export function Folded({ box, isCut = false, opened, onOpen, onMeasure, mark, children }) {
	const own = useRef(null);
	const outer = box ?? own;
	const inner = useRef(null);
	const [fits, setFits] = useState(false);
	useLayoutEffect(() => {
		function measure() {
			if (outer.current === null) return;
			setFits(isShownWhole(outer.current));
			onMeasure?.(isShownWhole(outer.current));
		}
		measure();
		const observer = new ResizeObserver(measure);
		observer.observe(outer.current);
		observer.observe(inner.current);
		return () => observer.disconnect();
	}, []);
	const whole = opened || (fits && !isCut);
	return html`<div class=${`folded ${opened ? "opened" : ""}`} ref=${outer}><div ref=${inner}>${children}</div></div>
		${!whole && html`<button class="more" type="button" onClick=${onOpen}>${mark}</button>`}`;
}
