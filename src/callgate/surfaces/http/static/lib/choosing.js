// Which question the keys answer, decided without looking at the page.
//
//     nothing --(j, k, Tab, a click)--> chosen --(a question came or went, the window was left)--> nothing
//
// No question is ever chosen by itself: what a person meant for one would answer another.

export const STILL_MS = 500;

/** A person chose this question when `changes` questions had come and gone. */
export const choose = (id, changes, at) => ({ id, changes, at });

/** Why a key does not count; null if it does. `pauseMs`: without any key before it. */
export function refusal(chosen, { id, changes, at, pauseMs }) {
  if (id === null) return "Keys answer the question that you chose: j chooses the next one.";
  if (chosen?.id !== id) return "Keys are off until you choose this question: press j, or click it.";
  if (chosen.changes !== changes) return "The questions have changed. Choose again: press j, or click one.";
  if (at - chosen.at < STILL_MS || pauseMs < STILL_MS) return "Too quick after another key or click. Press it again.";
  return null;
}

/** Where `j` (1) and `k` (-1) lead among `questions`, `{id, isOpen}` in the order on the page.
 *  A question that has the focus and is not chosen is chosen first. */
export function nextOf(questions, focused, isChosen, step) {
  const at = questions.findIndex((each) => each.id === focused);
  if (at >= 0 && questions[at].isOpen && !isChosen) return focused;
  const from = at >= 0 ? at + step : step > 0 ? 0 : questions.length - 1;
  for (let n = from; n >= 0 && n < questions.length; n += step) {
    if (questions[n].isOpen) return questions[n].id;
  }
  return null;
}
