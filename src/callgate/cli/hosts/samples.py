"""The files that `callgate host new` writes: a tool that works, and a test of it.

`@NAME@` stands for the name of the host, `@TOOL@` for the name of the tool.
"""

from __future__ import annotations

PYTHON = '''\
"""The tools of @NAME@: every function with `@tool`. The docstring is what a model reads of it."""

from callgate import tool


@tool(side_effects="none")
def @TOOL@(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
'''

PYTHON_TEST = '''\
"""The tools of @NAME@, called as an agent would call them."""

import asyncio

from callgate import Gate

from @MODULE@ import @TOOL@


def test_words_are_counted(tmp_path):
    async def call():
        async with Gate(tmp_path, [@TOOL@], home=tmp_path / "home") as gate:
            return await gate.call("@TOOL@", {"text": "one two three"})

    result = asyncio.run(call())
    assert (result.ok, result.text) == (True, "3")
'''

NODE = r"""// The tools of @NAME@. A description is what a model reads of a tool.

export default [
  {
    name: "@TOOL@",
    description: "Count the words of a text.",
    inputSchema: {
      type: "object",
      properties: { text: { type: "string" } },
      required: ["text"],
      additionalProperties: false,
    },
    // Shown to the person who is asked whether it may run.
    preview: ({ text }) => `count the words of ${text.length} characters`,
    run: ({ text }) => text.split(/\s+/).filter(Boolean).length,
  },
];
"""

NODE_TEST = """\
// node --test

import assert from "node:assert/strict";
import { test } from "node:test";

import tools from "./@NAME@.mjs";

const [count] = tools;

test("words are counted", async () => {
  assert.equal(await count.run({ text: "one two three" }), 3);
});
"""

BASH = r"""#!/usr/bin/env bash
# The tool of @NAME@. It is run with one of these on its command line:
#
#   schema         says what it is
#   preview NAME   says in a line what `run` would do, to the person who is asked
#   run NAME       does it
#
# The last two get the arguments as JSON on stdin. What `run` prints is the result; an exit code
# other than 0 is a failure, which the last lines of stderr explain.
set -euo pipefail

argument() { # NAME: a text out of the JSON on stdin
  python3 -I -c 'import json, sys; sys.stdout.write(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

case "${1-}" in
  schema) cat <<'END'
{
  "name": "@TOOL@",
  "description": "Count the words of a text.",
  "input_schema": {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": false
  }
}
END
    ;;
  preview) echo "count the words of $(argument text | wc -c) bytes" ;;
  run) argument text | wc -w ;;
  *) echo "usage: $0 schema | preview NAME | run NAME" >&2; exit 2 ;;
esac
"""

BASH_TEST = """\
#!/usr/bin/env bash
# The tool of @NAME@, run as callgate would run it.
set -euo pipefail
cd "$(dirname "$0")"

./@NAME@.sh schema | python3 -I -m json.tool > /dev/null
counted=$(echo '{"text": "one two three"}' | ./@NAME@.sh run @TOOL@)
if [ "$counted" -ne 3 ]; then
  echo "FAILED: counted $counted words, not 3" >&2
  exit 1
fi
echo ok
"""
