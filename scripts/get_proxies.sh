#!/bin/sh
# Install an MCP proxy with its own SDK in .build/proxies, for benchmarks/mcp_server.py.
#
#     sh scripts/get_proxies.sh [PYTHON]
#
# The packages come from benchmarks/proxies.txt, each checked against its hash.

set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python} into=.build/proxies
"$python" -m venv --clear "$into"
"$into/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
  --require-hashes --requirement benchmarks/proxies.txt
