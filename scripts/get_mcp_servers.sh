#!/bin/sh
# Puts MCP servers that others wrote into .tools/mcp_servers/, for the tests that stand before them.
#
#     sh scripts/get_mcp_servers.sh [PYTHON]
#
# They are the packages of tests/mcp_servers/, from npm and PyPI. About 40 MB are fetched, once.

cd "$(dirname "$0")/.." || exit 0
what="MCP servers of others" wanted=$PWD/tests/mcp_servers into=$PWD/.tools/mcp_servers
python=${1:-.venv/bin/python}
. scripts/npm_tools.sh

is_there && cmp -s "$wanted/requirements.txt" "$into/requirements.txt" && exit 0
need git "$python"
get_packages
# Only wheels: to build something is to run it. What else they need, callgate has.
timeout 300 "$python" -m pip install --quiet --no-deps --only-binary :all: --require-hashes \
  --target "$made/python" --requirement "$wanted/requirements.txt" >"$made/said" 2>&1 ||
  without "$(grep '^ERROR' "$made/said" | tail -n 1 | grep . || echo 'pip did not answer')"
cp "$wanted/requirements.txt" "$made" || without "$made cannot be written"
put_in_place
