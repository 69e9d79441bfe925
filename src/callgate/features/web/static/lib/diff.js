// Parses a unified diff into lines with their kind and numbers.

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;

export const isDiff = (text) => /^--- .*\n\+\+\+ /m.test(text);

/** Hunks declare their number of lines: a removed line may look like the head of a file. */
export function readDiff(text) {
	let after = 0, left = 0, right = 0;
	return text.replace(/\n$/, "").split("\n").map((line) => {
		const hunk = HUNK.exec(line);
		if (hunk && left <= 0 && right <= 0) {
			left = Number(hunk[2] ?? 1);
			[after, right] = [Number(hunk[3]), Number(hunk[4] ?? 1)];
			return { kind: "hunk", text: line };
		}
		const inHunk = left > 0 || right > 0;
		const rest = line.slice(1);
		if (inHunk && line[0] === "+") {
			right -= 1;
			return { kind: "added", after: after++, text: rest };
		}
		if (inHunk && line[0] === "-") {
			left -= 1;
			return { kind: "removed", at: after, text: rest };
		}
		if (inHunk && (line[0] === " " || line === "")) {
			left -= 1;
			right -= 1;
			return { kind: "same", after: after++, text: rest };
		}
		return { kind: "file", text: line };
	});
}

const MOST_LINES = 2_000;

/** The changes of a diff in `content`, a file after the change: its added lines, and the lines
 *  removed before each line. Null if the diff does not fit. */
export function changesOf(text, content) {
	const [lines, after] = [readDiff(text), content.split("\n")];
	const [added, removed] = [new Set(), new Map()];
	let missing = 0; // lines that hunks declare
	if (after.length > MOST_LINES || lines.length > MOST_LINES) return null;
	for (const [index, { kind, at, after: number, text: line }] of lines.entries()) {
		if (kind === "file" && index > 1 && line[0] !== "\\") return null;
		if (kind === "hunk") missing += HUNK.exec(line).filter((_, place) => place % 2 === 0 && place > 0)
			.reduce((sum, count = 1) => sum + Number(count), 0);
		else if (kind !== "file") missing -= kind === "same" ? 2 : 1;
		if (kind === "removed") removed.set(at, [...(removed.get(at) ?? []), line]);
		if (kind === "added") added.add(number);
		if (number !== undefined && after[number - 1] !== line) return null;
	}
	return missing === 0 ? { added, removed } : null;
}
