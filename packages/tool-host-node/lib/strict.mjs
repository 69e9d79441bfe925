// JSON that can be read in one way only; everything else is refused.
//
// `JSON.parse` knows the grammar. What it lets through (duplicate keys, lone surrogates, numbers
// out of range, any depth) is looked for in the text, and only where the text is not exactly
// what JavaScript itself would write.

const DEEPEST = 64;
const MOST_DIGITS = 400;
const MOST_KEYS = 10_000; // in one object
const LONE_SURROGATE = /\p{Surrogate}/u;
const NUMBER = /-?\d[\d.eE+-]*/y;
const [QUOTE, COLON, BACKSLASH, MINUS, ZERO, NINE] = [...'":\\-09'].map(codeOf);
const [BRACKET, BRACE, BRACKET_END, BRACE_END] = [..."[{]}"].map(codeOf);
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The text is not JSON that is taken. */
export class StrictError extends Error {}

/** The value of one line of bytes, undefined where it is blank. Throws `StrictError`. */
export function read(bytes) {
  let text, value;
  try {
    text = utf8.decode(bytes);
  } catch {
    throw new StrictError("not UTF-8");
  }
  if (/^[ \t\r]*$/.test(text)) return undefined;
  try {
    value = JSON.parse(text);
  } catch {
    throw new StrictError("not JSON");
  }
  if (couldBreak(text) || JSON.stringify(value) !== text) check(text);
  return value;
}

/** Whether a text that JavaScript wrote might still be refused. */
export function couldBreak(text) {
  if (text.includes("\\ud")) return true;
  if (text.length <= 2 * DEEPEST) return false;
  let opened = 0;
  let keys = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === BRACKET || code === BRACE) opened++;
    else if (code === COLON) keys++;
    if (opened > DEEPEST || keys > MOST_KEYS) return true;
  }
  return false;
}

/** Throws `StrictError` for valid JSON that is refused all the same. */
export function check(text) {
  const open = []; // of each container around: the keys of an object, null of an array
  for (let at = 0; at < text.length; ) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) {
      const end = endOfString(text, at);
      checkString(text, at, end, open.at(-1));
      at = end;
    } else if (code === MINUS || (code >= ZERO && code <= NINE)) {
      at = checkNumber(text, at);
    } else {
      if (code === BRACE || code === BRACKET) open.push(code === BRACE ? new Set() : null);
      else if (code === BRACE_END || code === BRACKET_END) open.pop();
      if (open.length > DEEPEST) throw new StrictError(`nested deeper than ${DEEPEST}`);
      at++;
    }
  }
}

function checkString(text, at, end, keys) {
  const raw = text.slice(at, end);
  const escapes = raw.includes("\\");
  if (escapes && LONE_SURROGATE.test(JSON.parse(raw))) throw new StrictError("a lone surrogate");
  if (!keys || !isKey(text, end)) return;
  const key = escapes ? JSON.parse(raw) : raw.slice(1, -1);
  if (keys.has(key)) throw new StrictError("a key stands twice");
  keys.add(key);
  if (keys.size > MOST_KEYS) throw new StrictError(`an object has more than ${MOST_KEYS} keys`);
}

function checkNumber(text, at) {
  NUMBER.lastIndex = at;
  const [number] = NUMBER.exec(text);
  const digits = number.length > MOST_DIGITS ? number.replace(/\D/g, "").length : 0;
  if (digits > MOST_DIGITS) throw new StrictError(`a number has more than ${MOST_DIGITS} digits`);
  if (!Number.isFinite(Number(number))) throw new StrictError("a number is out of range");
  return at + number.length;
}

function endOfString(text, at) {
  for (let end = text.indexOf('"', at + 1); ; end = text.indexOf('"', end + 1)) {
    let escapes = 0;
    while (text.charCodeAt(end - 1 - escapes) === BACKSLASH) escapes++;
    if (escapes % 2 === 0) return end + 1;
  }
}

// Between a key and its colon there may be blanks; after any other string there is no colon.
function isKey(text, at) {
  while (" \t\r\n".includes(text[at])) at++;
  return text.charCodeAt(at) === COLON;
}

function codeOf(character) {
  return character.charCodeAt(0);
}
