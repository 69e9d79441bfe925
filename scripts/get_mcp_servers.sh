#!/bin/sh
# Download third-party MCP servers to .tools/mcp_servers/, for the tests that sandbox them.
#
#     sh scripts/get_mcp_servers.sh [PYTHON]
#
# Installs the packages of tests/features/mcp/published/, from npm and PyPI: about 90 MB, once.

cd "$(dirname "$0")/.." || exit 0
what="MCP servers of others" wanted=$PWD/tests/features/mcp/published into=$PWD/.tools/mcp_servers
python=${1:-.venv/bin/python}
. scripts/npm_tools.sh

is_there && cmp -s "$wanted/requirements.txt" "$into/requirements.txt" && exit 0
need git "$python"
get_packages
# Only wheels, because a build runs foreign code. callgate has their other dependencies.
timeout 300 "$python" -m pip install --quiet --no-deps --only-binary :all: --require-hashes \
  --target "$made/python" --requirement "$wanted/requirements.txt" >"$made/said" 2>&1 ||
  without "$(grep '^ERROR' "$made/said" | tail -n 1 | grep . || echo 'pip did not answer')"
cp "$wanted/requirements.txt" "$made" || without "$made cannot be written"
put_in_place
