#!/bin/sh
# Download MCP's conformance suite to .tools/mcp/, and with the ACP clients a Node that runs it.
#
#     sh scripts/get_mcp_suite.sh
#
# Installs the package of tests/features/mcp/conformance/suite/.

cd "$(dirname "$0")/.." || exit 0
sh scripts/get_acp_clients.sh
what="MCP conformance suite" wanted=$PWD/tests/features/mcp/conformance/suite into=$PWD/.tools/mcp
. scripts/npm_tools.sh

is_there && exit 0
need
get_packages
put_in_place
