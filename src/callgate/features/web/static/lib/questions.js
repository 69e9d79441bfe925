// The questions of a view. A closed one stays in its place and takes no input, so that a late click
// or key does not reach another one.

import { useStore } from "./store.js";
import { useRef, useState } from "./ui.js";

/** `[{question, how}]` in the order of arrival, with `how` for closed ones; and `dismiss(id)`, without
 *  an id for all closed ones. `ownGo`: a question that was answered here disappears immediately. */
export function useQuestions(matches, { ownGo = false } = {}) {
	const { questions, settled } = useStore();
	const shown = useRef(new Map());
	const [, draw] = useState(0);
	const open = [...questions.values()].filter(matches).sort((a, b) => (a.id < b.id ? -1 : 1));
	for (const question of open) {
		if (!shown.current.has(question.id)) shown.current.set(question.id, { question, how: null });
	}
	for (const [id, entry] of shown.current) {
		if (questions.has(id)) continue;
		entry.how = settled.find((each) => each.question.id === id)?.how ?? entry.how ?? {};
		if (ownGo && entry.how.mine) shown.current.delete(id);
	}
	function dismiss(id) {
		for (const [each, { how }] of shown.current) {
			if (how !== null && (id === undefined || id === each)) shown.current.delete(each);
		}
		draw((n) => n + 1);
	}
	return [[...shown.current.values()].filter((each) => matches(each.question)), dismiss];
}
