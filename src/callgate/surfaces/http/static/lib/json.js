// JSON without loss: what a person is shown and allows must be what runs, to the last digit.
//
// A whole number that JavaScript would round keeps its digits everywhere. Inside `arguments` every
// number keeps its spelling (1.0 is not 1); elsewhere numbers are there to be reckoned with.

const isWide = (value, source) => !Number.isSafeInteger(value) && /^-?\d+$/.test(source);

/** `text` as a value. */
export function parse(text) {
  const spelled = new Map(); // a number that would be written otherwise -> its value
  function keep(_, value, context) {
    if (typeof value !== "number" || !context || !JSON.rawJSON || String(value) === context.source) {
      return value;
    }
    const raw = JSON.rawJSON(context.source);
    if (!isWide(value, context.source)) spelled.set(raw, value);
    return raw;
  }
  const read = JSON.parse(text, keep);
  return spelled.size ? reckonable(read, spelled) : read;
}

function reckonable(value, spelled) {
  if (value === null || typeof value !== "object") return value;
  if (JSON.isRawJSON(value)) return spelled.get(value) ?? value;
  for (const name of Object.keys(value)) {
    if (name !== "arguments") value[name] = reckonable(value[name], spelled);
  }
  return value;
}
