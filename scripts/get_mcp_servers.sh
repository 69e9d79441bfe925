#!/bin/sh
# Puts MCP servers that others wrote into .tools/mcp_servers/, for the tests that stand before them.
#
#     sh scripts/get_mcp_servers.sh [PYTHON]
#
# They are the packages of tests/mcp_servers/, from npm and PyPI, at the versions and with the hashes
# that are written there; no install script is run. About 40 MB are fetched, once. Whatever goes
# wrong is said in one line and is no failure: the tests that need them are then skipped, and named
# at the end.

cd "$(dirname "$0")/.." || exit 0
wanted=$PWD/tests/mcp_servers
tools=$PWD/.tools
python=${1:-.venv/bin/python}

without() {
  echo "No MCP servers of others for the tests: $1." >&2
  exit 0
}

cmp -s "$wanted/package-lock.json" "$tools/mcp_servers/package-lock.json" &&
  cmp -s "$wanted/requirements.txt" "$tools/mcp_servers/requirements.txt" && exit 0
for needed in node npm git timeout mktemp "$python"; do
  command -v "$needed" >/dev/null || without "no $needed here"
done

mkdir -p "$tools" && made=$(mktemp -d "$tools/mcp_servers.XXXXXX") ||
  without "$tools cannot be written"
trap 'rm -rf "$made"' EXIT
cp "$wanted/package.json" "$wanted/package-lock.json" "$made" || without "$tools cannot be written"
(cd "$made" && timeout 300 npm install --ignore-scripts --no-save --no-audit --no-fund \
  --loglevel=error --fetch-retries=1) >"$made/said" 2>&1 ||
  without "$(sed -n 's/^npm error //p' "$made/said" | grep -v '^A complete log' | tail -n 1 |
    grep . || echo 'npm did not answer')"
# What is there must be what the lock file names: npm checks a hash only where there is one.
node - "$wanted/package-lock.json" "$made/node_modules/.package-lock.json" 2>"$made/said" <<'CHECK' ||
const [wanted, made] = process.argv.slice(2).map(
  (path) => JSON.parse(require("fs").readFileSync(path, "utf8")).packages);
for (const [name, { integrity }] of Object.entries(made))
  if (!integrity || integrity !== wanted[name]?.integrity) {
    console.error(`${name} is not what the lock file names`);
    process.exit(1);
  }
CHECK
  without "$(tail -n 1 "$made/said")"
# Only wheels: to build something is to run it. What else they need, callgate[mcp] has.
timeout 300 "$python" -m pip install --quiet --no-deps --only-binary :all: --require-hashes \
  --target "$made/python" --requirement "$wanted/requirements.txt" >"$made/said" 2>&1 ||
  without "$(grep '^ERROR' "$made/said" | tail -n 1 | grep . || echo 'pip did not answer')"
cp "$wanted/package-lock.json" "$wanted/requirements.txt" "$made" && chmod 755 "$made" &&
  rm -rf "$tools/mcp_servers" && mv "$made" "$tools/mcp_servers" || without "$tools cannot be written"
