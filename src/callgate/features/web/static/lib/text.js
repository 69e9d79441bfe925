// Untrusted texts made safe to show, and numbers made short.

// Characters that are invisible, look like a space, or change the look of others: controls,
// bidirectional marks, joiners, fillers, tags, variation selectors, and piles of accents.
const UNSEEN = /[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800](?<![\n\t ]|\p{Extended_Pictographic}\ufe0f)|(?<=\p{M}{3})\p{M}/gu;
const BLANK_END = /(?<![ \t])[ \t]+(?=\n)|(?<![ \t\n])[ \t\n]+$/g; // from a run's start: linear

const SPACE = /\p{Zs}/u;

/** A text in parts: strings, and `{shown, name, length}` for each unseen character. */
export function parts(text, prose = false) {
	const found = [];
	let at = 0;
	for (const match of text.matchAll(UNSEEN)) {
		if (prose && SPACE.test(match[0])) continue;
		if (match.index > at) found.push(text.slice(at, match.index));
		found.push({ ...mark(match[0].codePointAt(0)), length: match[0].length });
		at = match.index + match[0].length;
	}
	if (at < text.length) found.push(text.slice(at));
	return found;
}

/** The same for a text that will run, with marks for trailing blanks. */
export function exactParts(text) {
	if (text === "") return [{ shown: "empty", name: "nothing", length: 0 }];
	const found = [];
	let at = 0;
	for (const match of text.matchAll(BLANK_END)) {
		found.push(...parts(text.slice(at, match.index)));
		for (const [run] of match[0].matchAll(/(.)\1*/gs)) {
			const { shown, name } = mark(run.codePointAt(0));
			const times = run.length > 1 ? ` ×${run.length}` : "";
			found.push({ shown: shown + times, name: name + times, length: run.length });
		}
		at = match.index + match[0].length;
	}
	return [...found, ...parts(text.slice(at))];
}

/** The parts of a text, grouped by `ranges` (`{from, upto, kind}`, in order and disjoint):
 *  `{kind, parts}`, without a kind between ranges. */
export function within(found, ranges) {
	const groups = [];
	let [at, place] = [0, 0];
	for (const part of found) {
		for (let rest = part; rest !== "";) {
			while (place < ranges.length && ranges[place].upto <= at) place += 1;
			const range = ranges[place];
			const isInside = range !== undefined && range.from <= at;
			const edge = range === undefined ? Infinity : isInside ? range.upto : range.from;
			const cut = typeof rest === "string" ? rest.slice(0, edge - at) : rest;
			const key = isInside ? place : -1 - place;
			if (groups.at(-1)?.key !== key) groups.push({ key, kind: isInside ? range.kind : undefined, parts: [] });
			groups.at(-1).parts.push(cut);
			at += cut.length;
			rest = typeof rest === "string" ? rest.slice(cut.length) : "";
		}
	}
	return groups;
}

/** An untrusted text as a plain string, for a label or an option. */
export const visible = (text, most = 80) => parts(String(text ?? "").slice(0, most))
	.map((part) => (typeof part === "string" ? part : `[${part.shown}]`)).join("");

/** "1 call", "2,000 calls". */
export const count = (number, noun, nouns = `${noun}s`) =>
	`${number.toLocaleString("en")} ${number === 1 ? noun : nouns}`;

export const shortId = (id) => id.slice(-6);

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

/** Arguments in one line, the main one first. */
export function brief(given) {
	let values = given;
	try {
		if (typeof given === "string") values = JSON.parse(given);
	} catch {
		return given; // a truncated summary
	}
	if (values === null || typeof values !== "object") return String(given ?? "");
	const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
	const main = MAIN.find((each) => values[each] !== undefined);
	const others = Object.keys(values).filter((each) => each !== main)
		.map((each) => `${each}=${text(values[each])}`);
	return [...(main ? [text(values[main])] : []), ...others].join(" · ");
}

/** JSON to be edited, with escapes for unseen characters. */
export const editable = (value) => JSON.stringify(value, null, 2).replace(UNSEEN, (found) =>
	[...Array(found.length).keys()].map((at) =>
		`\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));

/** Whether a text has no unseen character or wildcard. */
export const isPlain = (text) => !/[*?[\]{}!\\\n\t]/.test(text) && text.search(UNSEEN) < 0;

export function quoted(word) {
	return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
