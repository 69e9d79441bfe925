// The question that the keys answer. Pure.
//
//     nothing --(j, k, Tab, a click)--> chosen --(questions changed, window left)--> nothing
//
// A question that has been the only one for a while needs no choice. One of several is never chosen
// automatically, so that a key cannot answer the wrong one.

export const STILL_MS = 500;
const ALONE_MS = 1500;

export const choose = (id, changes, at) => ({ id, changes, at });

/** The question that keys answer without a choice: the only one since `since`, if no other is
 *  focused. Questions are `{id, isOpen, isMine}`; those that were answered here do not count. */
export function chooseOnly(questions, focused, changes, since) {
	const left = questions.filter((each) => !each.isMine);
	if (left.length !== 1 || !left[0].isOpen) return null;
	const isElsewhere = focused !== null && focused !== left[0].id
		&& !questions.some((each) => each.id === focused && each.isMine);
	return isElsewhere ? null : choose(left[0].id, changes, since + ALONE_MS - STILL_MS);
}

/** Why a key does not count; null if it does. `pauseMs`: the time since the last key. */
export function refusal(chosen, { id, changes, at, pauseMs }) {
	if (id === null) return "Several questions are open. Press j to select one.";
	if (chosen?.id !== id) return "Keys are off until you select this question: press j, or click it.";
	if (chosen.changes !== changes) return "The questions have changed. Select again: press j, or click one.";
	if (at - chosen.at < STILL_MS || pauseMs < STILL_MS) return "Too soon after another key, click or question. Press it again.";
	return null;
}

/** The next question for `j` (1) and `k` (-1); a focused one that is not chosen comes first. */
export function nextOf(questions, focused, isChosen, step) {
	const at = questions.findIndex((each) => each.id === focused);
	if (at >= 0 && questions[at].isOpen && !isChosen) return focused;
	const from = at >= 0 ? at + step : step > 0 ? 0 : questions.length - 1;
	for (let n = from; n >= 0 && n < questions.length; n += step) {
		if (questions[n].isOpen) return questions[n].id;
	}
	return null;
}
