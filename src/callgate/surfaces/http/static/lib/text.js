// Texts from tools and models, made safe to look at, and numbers made short.

// Characters that are not seen, that look like a space and are none, or that change how others are
// seen: controls, bidirectional marks, joiners, fillers, tags and variation selectors, and accents
// piled up so high that they cover other lines. A line's end, a tab and a space are what they look
// like; a picture may say that it is one.
const UNSEEN = /[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800](?<![\n\t ]|\p{Extended_Pictographic}\ufe0f)|(?<=\p{M}{3})\p{M}/gu;
const BLANK_END = /(?<![ \t])[ \t]+(?=\n)|(?<![ \t\n])[ \t\n]+$/g; // from a run's start: linear

const SPACE = /\p{Zs}/u;

/** A text in parts: strings, and `{shown, name}` for each character that would not be seen.
 *  In prose, which nobody runs, every space is one. */
export function parts(text, prose = false) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (prose && SPACE.test(match[0])) continue;
    if (match.index > at) found.push(text.slice(at, match.index));
    found.push(mark(match[0].codePointAt(0)));
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push(text.slice(at));
  return found;
}

/** The same for a text whose every character counts: blanks at the end of a line are marks too. */
export function exactParts(text) {
  if (text === "") return [{ shown: "empty", name: "nothing" }];
  const found = [];
  let at = 0;
  for (const match of text.matchAll(BLANK_END)) {
    found.push(...parts(text.slice(at, match.index)));
    // Equal characters side by side are one mark, which says how many they are.
    for (const [run] of match[0].matchAll(/(.)\1*/gs)) {
      const { shown, name } = mark(run.codePointAt(0));
      const times = run.length > 1 ? ` ×${run.length}` : "";
      found.push({ shown: shown + times, name: name + times });
    }
    at = match.index + match[0].length;
  }
  return [...found, ...parts(text.slice(at))];
}

const ASCII = ("NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB "
  + "CAN EM SUB ESC FS GS RS US").split(" ");

function mark(code) {
  const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  const shown = { 0x20: "SP", 0x7f: "DEL" }[code] ?? ASCII[code] ?? name;
  return { shown, name };
}

const two = (number) => String(number).padStart(2, "0");

export function clock(seconds) {
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function moment(seconds) {
  const today = day(seconds) === day(Date.now() / 1000);
  return today ? clock(seconds) : `${day(seconds)} ${clock(seconds).slice(0, 5)}`;
}

export function duration(ms) {
  if (ms == null) return "";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${ms < 10_000 ? (ms / 1000).toFixed(1) : seconds} s`;
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

const MAIN = ["command", "pattern", "query", "url", "path", "name"];

/** Arguments in one line: what matters most first, without its name. */
export function brief(given) {
  let values = given;
  try {
    if (typeof given === "string") values = JSON.parse(given);
  } catch {
    return given; // a summary that was cut
  }
  if (values === null || typeof values !== "object") return String(given ?? "");
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const main = MAIN.find((each) => values[each] !== undefined);
  const others = Object.keys(values).filter((each) => each !== main)
    .map((each) => `${each}=${text(values[each])}`);
  return [...(main ? [text(values[main])] : []), ...others].join(" · ");
}

/** JSON to be edited: what would not be seen is written as an escape. */
export const editable = (value) => JSON.stringify(value, null, 2).replace(UNSEEN, (found) =>
  [...Array(found.length).keys()].map((at) =>
    `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));

/** Whether a text says exactly what it looks like, and is no pattern for anything else. */
export const isPlain = (text) => !/[*?[\]{}!\\\n\t]/.test(text) && text.search(UNSEEN) < 0;

/** As a word for a POSIX shell. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
