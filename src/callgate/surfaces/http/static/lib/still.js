// Whether something has stood where it stands for long enough to be meant by a click.

import { STILL_MS } from "./choosing.js";
import { useEffect, useRef, useState } from "./ui.js";

const LOOK_MS = 100;

/** Where it is drawn. Scrolling does not count: whoever scrolls looks. */
function placeOf(node) {
  const { left, top, width } = node.getBoundingClientRect();
  const scroller = node.closest(".scroll, .panel");
  return [left, top + (scroller?.scrollTop ?? 0), width].map(Math.round).join(" ");
}

/** Returns a function that says whether `node.current` came, moved, or had its window come to the
 *  front just now: a click was then meant for what stood there before. Draws when that changes, or
 *  what `also` says. */
export function useStill(node, also) {
  const since = useRef(performance.now());
  const place = useRef(null);
  const [, draw] = useState("");
  function isStill() {
    const now = node.current === null ? null : placeOf(node.current);
    if (now !== place.current) since.current = performance.now();
    place.current = now;
    return performance.now() - since.current >= STILL_MS;
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
