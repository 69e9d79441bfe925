// Reads a unified diff into lines that know their kind and their numbers.

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;

export const isDiff = (text) => /^--- .*\n\+\+\+ /m.test(text);

/** A hunk says how many lines it has: a removed line may itself look like the head of a file. */
export function readDiff(text) {
  let before = 0, after = 0, left = 0, right = 0;
  return text.replace(/\n$/, "").split("\n").map((line) => {
    const hunk = HUNK.exec(line);
    if (hunk && left <= 0 && right <= 0) {
      [before, left] = [Number(hunk[1]), Number(hunk[2] ?? 1)];
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
      return { kind: "removed", before: before++, text: rest };
    }
    if (inHunk && (line[0] === " " || line === "")) {
      left -= 1;
      right -= 1;
      return { kind: "same", before: before++, after: after++, text: rest };
    }
    return { kind: "file", text: line };
  });
}
