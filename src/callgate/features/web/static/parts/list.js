// A long list that draws only its visible rows.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/ui.js";

const BEYOND = 5;

/** `rows` newest first, each with an id; `draw` draws one. The list is one Tab stop, with arrow keys
 *  inside. New rows above do not move the others. */
export function LongList({ rows, height, draw, active, onOpen, onEnd, label }) {
	const box = useRef(null);
	const [view, setView] = useState({ top: 0, size: 800 });
	const first = useRef(null);

	useEffect(() => {
		const observer = new ResizeObserver(() => box.current && look());
		observer.observe(box.current);
		return () => observer.disconnect();
	}, []);

	useLayoutEffect(() => {
		const element = box.current;
		const before = first.current;
		first.current = rows[0]?.id ?? null;
		if (before === null || before === first.current || element.scrollTop < height) return;
		const moved = rows.findIndex((row) => row.id === before);
		if (moved > 0) element.scrollTop += moved * height;
	}, [rows]);

	function look() {
		const { scrollTop: top, clientHeight: size } = box.current;
		setView({ top, size });
		if (top + size > (rows.length - 20) * height) onEnd?.();
	}

	function press(event) {
		const at = rows.findIndex((row) => row.id === active);
		const page = Math.max(1, Math.floor(view.size / height) - 1);
		const far = Infinity;
		const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -far, End: far };
		if (!(event.key in steps) || !rows.length) return;
		event.preventDefault();
		const next = Math.min(rows.length - 1, Math.max(0, (at < 0 ? -1 : at) + steps[event.key]));
		onOpen(rows[Number.isNaN(next) ? 0 : next].id);
		const element = box.current;
		if (next * height < element.scrollTop) element.scrollTop = next * height;
		if ((next + 1) * height > element.scrollTop + element.clientHeight) {
			element.scrollTop = (next + 1) * height - element.clientHeight;
		}
	}

	const from = Math.max(0, Math.floor(view.top / height) - BEYOND);
	const upto = Math.min(rows.length, Math.ceil((view.top + view.size) / height) + BEYOND);
	const slots = Math.ceil(view.size / height) + 2 * BEYOND + 2;
	return html`<div class="long-list" ref=${box} onScroll=${look} onKeyDown=${press} tabindex="0"
			role="listbox" aria-label=${label} aria-activedescendant=${active ? `row-${active}` : null}>
		<div class="long-list-all" role="presentation" style=${{ height: `${rows.length * height}px` }}>
			${rows.slice(from, upto).map((row, n) => html`<div key=${(from + n) % slots} id=${`row-${row.id}`}
					class=${`row ${row.id === active ? "active" : ""}`} role="option"
					aria-selected=${row.id === active} aria-setsize=${rows.length} aria-posinset=${from + n + 1}
					style=${{ transform: `translateY(${(from + n) * height}px)`, height: `${height}px` }}
					onClick=${() => onOpen(row.id)}>${draw(row)}</div>`)}
		</div></div>`;
}
