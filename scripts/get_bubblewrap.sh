#!/bin/sh
# Download bubblewrap to .tools/ if the system has none, so that its tests run.
#
#     sh scripts/get_bubblewrap.sh
#
# The package comes from the system's apt, which checks it against its signed lists, and is unpacked
# without installation: no root, no change to the system. An error is reported in one line and is no
# failure: the tests that need bubblewrap are then skipped and listed at the end.

cd "$(dirname "$0")/.." || exit 0
tools=$PWD/.tools
bwrap=$tools/usr/bin/bwrap

without() {
  echo "No bubblewrap for the tests: $1." >&2
  exit 0
}

command -v bwrap >/dev/null && exit 0
[ -x "$bwrap" ] && exit 0
[ "$(uname -s)" = Linux ] || exit 0
for needed in apt-get dpkg timeout mktemp; do
  command -v "$needed" >/dev/null || without "no bwrap here, and no $needed to get it with"
done

fetched=$(mktemp -d) || without "no temporary directory"
trap 'rm -rf "$fetched"' EXIT
# The sandbox of apt runs as another user, which cannot write to this directory.
(cd "$fetched" && timeout 30 apt-get -qq download bubblewrap \
  -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=0) >"$fetched/said" 2>&1 ||
  without "$(tail -n 1 "$fetched/said" | grep . || echo 'apt-get did not answer')"
dpkg -x "$fetched"/bubblewrap_*.deb "$fetched/made" 2>"$fetched/said" ||
  without "$(tail -n 1 "$fetched/said")"
"$fetched/made/usr/bin/bwrap" --version >/dev/null 2>"$fetched/said" ||
  without "$(tail -n 1 "$fetched/said")"
chmod 755 "$fetched/made"
mkdir -p "$tools" && cp -R "$fetched/made/." "$tools" || without "$tools cannot be written"
