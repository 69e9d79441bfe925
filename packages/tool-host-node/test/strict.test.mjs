// JSON that can be read in two ways is not read at all.

import assert from "node:assert/strict";
import { test } from "node:test";
import { line, Unsendable } from "../lib/lines.mjs";
import { read, StrictError } from "../lib/strict.mjs";

const bytes = (text) => Buffer.from(text, "utf8");
const keys = (count) => `{${[...Array(count).keys()].map((n) => `"k${n}":0`).join(",")}}`;

const REFUSED = {
  "a key twice": '{"a":1,"a":1}',
  "a key twice, spelled differently": '{"a":1,"\\u0061":1}',
  "a key twice, below": '[{"x":[{"b":{},"b":{}}]}]',
  "a key twice, with blanks": '{ "a" : 1 , "a"\t: 2 }',
  "a key twice, with an escaped quote": '{"\\"":1,"\\"":2}',
  "__proto__ twice": '{"__proto__":1,"__proto__":2}',
  "a lone surrogate": '"\\ud800"',
  "a lone surrogate in capitals": '"\\uDFFF x"',
  "a lone surrogate as a key": '{"\\udc00":1}',
  "surrogates in the wrong order": '"\\udc00\\ud800"',
  "too large a number": "[1e309]",
  "too small a number": "-1e400",
  "too many digits": "1".repeat(401),
  "too many digits behind the point": `0.${"1".repeat(401)}`,
  "too deep": "[".repeat(65) + "]".repeat(65),
  "too deep, mixed": '{"a":['.repeat(33) + "]}".repeat(33),
  "too many keys": keys(10_001),
  "a comment": "{} // x",
  "nothing that is JSON": "undefined",
};

for (const [name, text] of Object.entries(REFUSED)) {
  test(`refused: ${name}`, () => assert.throws(() => read(bytes(text)), StrictError));
}

const TAKEN = {
  "the same key in two objects": '[{"a":1},{"a":1},{"b":{"a":1}}]',
  "keys that look like the same": '{"a":"\\"a\\":1","\\"a\\"":"a","b":"\\\\"}',
  "a pair of surrogates": '{"\\ud83d\\ude00":"\\uD83D\\uDE00"}',
  "an escaped backslash before u": '"\\\\ud800"',
  "keys that are numbers": '{"b":1,"2":1,"1":1}',
  "400 digits in a text": `"${"1".repeat(500)}"`,
  "64 levels": "[".repeat(64) + "]".repeat(64),
  "brackets in a text": `"${"[{".repeat(500)}"`,
  "ten thousand keys": keys(10_000),
  "zeros": "[0,-0,0.0,0e1,1E+2]",
};

for (const [name, text] of Object.entries(TAKEN)) {
  test(`taken: ${name}`, () => assert.deepEqual(read(bytes(text)), JSON.parse(text)));
}

test("a long text with escapes is read in linear time", () => {
  const text = JSON.stringify({ a: "\\\"\u2028".repeat(1_000_000) }).replaceAll("\u2028", "\\u2028");
  assert.equal(read(bytes(text)).a.length, 3_000_000);
});

const hostile = { toJSON() { throw { get message() { throw new Error(); } }; } };
const UNSENDABLE = {
  NaN: { a: [NaN] }, infinity: -Infinity, "a BigInt": 1n, "a lone surrogate": "\udc00",
  "a lone surrogate as a key": { "\ud800": 1 }, "what cannot be written": hostile,
};

for (const [name, value] of Object.entries(UNSENDABLE)) {
  test(`not sent: ${name}`, () => assert.throws(() => line({ value }), Unsendable));
}

test("null, and a text that looks like it, are sent", () => {
  assert.equal(line({ a: [null, undefined, "null", "\\ud800"] }).toString(),
    '{"a":[null,null,"null","\\\\ud800"]}\n');
});
