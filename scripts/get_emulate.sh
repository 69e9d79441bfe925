#!/bin/sh
# Puts the Google emulator of the long tests into .tools/emulate/.
#
#     sh scripts/get_emulate.sh
#
# It is the package of tests/google_emulator/, at the version and with the hashes of its lock file;
# no install script is run. Whatever goes wrong is said in one line and is no failure: the tests
# that need it are then skipped, and named at the end.

cd "$(dirname "$0")/.." || exit 0
wanted=$PWD/tests/google_emulator
tools=$PWD/.tools

without() {
  echo "No Google emulator for the tests: $1." >&2
  exit 0
}

cmp -s "$wanted/package-lock.json" "$tools/emulate/package-lock.json" && exit 0
for needed in node npm timeout mktemp; do
  command -v "$needed" >/dev/null || without "no $needed here to get it with"
done

mkdir -p "$tools" && made=$(mktemp -d "$tools/emulate.XXXXXX") || without "$tools cannot be written"
trap 'rm -rf "$made"' EXIT
cp "$wanted/package.json" "$wanted/package-lock.json" "$made" || without "$tools cannot be written"
(cd "$made" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel=error \
  --fetch-retries=1) >"$made/said" 2>&1 ||
  without "$(grep 'npm error' "$made/said" | tail -n 2 | head -n 1 | grep . || echo 'npm did not answer')"
chmod 755 "$made" && rm -rf "$tools/emulate" && mv "$made" "$tools/emulate" ||
  without "$tools cannot be written"
