#!/bin/sh
# Puts MCP's conformance suite into .tools/mcp/, and with the ACP clients a Node that runs it.
#
#     sh scripts/get_mcp_suite.sh
#
# It is the package of tests/mcp_conformance/suite/, at the versions and with the hashes of its lock
# file; no install script is run. Whatever goes wrong is said in one line and is no failure: the
# tests that need it are then skipped, and named at the end.

cd "$(dirname "$0")/.." || exit 0
sh scripts/get_acp_clients.sh
wanted=$PWD/tests/mcp_conformance/suite
tools=$PWD/.tools

without() {
  echo "No MCP conformance suite for the tests: $1." >&2
  exit 0
}

cmp -s "$wanted/package-lock.json" "$tools/mcp/package-lock.json" && exit 0
for needed in node npm timeout mktemp; do
  command -v "$needed" >/dev/null || without "no $needed here to get it with"
done

mkdir -p "$tools" && made=$(mktemp -d "$tools/mcp.XXXXXX") || without "$tools cannot be written"
trap 'rm -rf "$made"' EXIT
cp "$wanted/package.json" "$wanted/package-lock.json" "$made" || without "$tools cannot be written"
(cd "$made" && timeout 300 npm install --ignore-scripts --no-save --no-audit --no-fund \
  --loglevel=error --fetch-retries=1) >"$made/said" 2>&1 ||
  without "$(grep 'npm error' "$made/said" | tail -n 2 | head -n 1 | grep . || echo 'npm did not answer')"
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
cp "$wanted/package-lock.json" "$made" && chmod 755 "$made" &&
  rm -rf "$tools/mcp" && mv "$made" "$tools/mcp" || without "$tools cannot be written"
