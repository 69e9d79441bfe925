// The parts of a question that matter most: network, a pipe into a shell, deletions, no sandbox.
//
// Marks decide nothing. A command is read as text, so a missing mark proves nothing.

import { sandboxOf } from "./words.js";

const WORDS = {
	pipe: "pipes into an interpreter", delete: "deletes", network: "uses the network", outside: "runs outside the sandbox",
};
const SEARCHED = [
	["pipe", /\|&?\s{0,9}(?:sudo\s{1,9})?(?:\/[\w/.-]{0,80}\/)?(?:(?:ba|da|z|k|fi)?sh|python[\d.]{0,5}|perl|ruby|node)(?![\w-])/g],
	["delete", /(?<![\w./-])(?:\/[\w/.-]{0,80}\/)?(?:rm|rmdir|unlink|shred|truncate|git\s{1,9}clean|git\s{1,9}reset\s{1,9}--hard)(?![\w-])|(?<=\s)-delete(?![\w-])/g],
	["network", /(?<![\w./-])(?:curl|wget|ssh|scp|rsync|nc|git\s{1,9}(?:push|fetch|pull|clone))(?![\w-])|https?:\/\/[^\s'"|;&<>)]{1,200}/g],
];

/** Critical parts of a command, `{from, upto, kind}`, in order and disjoint. */
export function findMatters(command) {
	const found = SEARCHED.flatMap(([kind, pattern]) => [...command.matchAll(pattern)]
		.map((match) => ({ kind, from: match.index, upto: match.index + match[0].length })));
	found.sort((a, b) => a.from - b.from);
	return found.filter((each, at) => at === 0 || each.from >= found[at - 1].upto);
}

/** The critical facts of a question, each as `{kind, words}`. */
export function mattersOf({ tool, side_effects: effect, destructive, sandbox, arguments: given }) {
	const command = typeof given.command === "string" ? given.command : "";
	const kinds = new Set(findMatters(command).map((each) => each.kind));
	const around = sandbox ? sandboxOf(sandbox) : null;
	// The sandbox blocks the hosts that the command names.
	if (around && !around.hasNetwork) kinds.delete("network");
	if (around?.hasNetwork || effect === "network") kinds.add("network");
	if (destructive || /(^|_)delete(_|$)/.test(tool)) kinds.add("delete");
	if (around?.isOff) kinds.add("outside");
	return Object.keys(WORDS).filter((kind) => kinds.has(kind)).map((kind) => ({ kind, words: WORDS[kind] }));
}
