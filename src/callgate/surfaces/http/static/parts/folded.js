// A part of a page that is cut where it grows too tall, under a mark that opens it.
//
// There is no box with a scroll bar of its own: its end would be missed on a screen without one.

import { html, useLayoutEffect, useRef, useState } from "../lib/ui.js";

/** Whether the box shows all that is in it, as it is drawn at this moment. */
export const isShownWhole = (box) => box.clientHeight > 0 && box.scrollHeight <= box.clientHeight + 1;

/** `isCut`: not even all of it was drawn. `onMeasure` hears whether all is shown, whenever that changes. */
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
