// JSON without loss: a whole number that JavaScript would round keeps its digits.
//
// What a person is shown and allows must be what runs, to the last digit.

const keep = (_, value, context) =>
  typeof value === "number" && context && !Number.isSafeInteger(value) && /^-?\d+$/.test(context.source)
    && JSON.rawJSON ? JSON.rawJSON(context.source) : value;

export const parse = (text) => JSON.parse(text, keep);
