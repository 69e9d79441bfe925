#!/bin/sh
# Download Chromium to .tools/ if the system has none, so that the dashboard's tests run.
#
#     sh scripts/get_chromium.sh
#
# The packages come from the system's apt, which checks them against its signed lists, and are
# unpacked without installation: no root, no change to the system. About 115 MB, once. An error is
# reported in one line and is no failure: the tests that need Chromium are then skipped and listed
# at the end.

cd "$(dirname "$0")/.." || exit 0
tools=$PWD/.tools

without() {
  echo "No Chromium for the tests: $1." >&2
  exit 0
}

command -v chromium >/dev/null && exit 0
[ -x "$tools/usr/bin/chromium" ] && exit 0
[ "$(uname -s)" = Linux ] || exit 0
for needed in apt-get dpkg timeout mktemp; do
  command -v "$needed" >/dev/null || without "no chromium here, and no $needed to get it with"
done

mkdir -p "$tools/usr/bin" || without "$tools cannot be written"
fetched=$(mktemp -d "$tools/chromium.XXXXXX") || without "$tools cannot be written"
trap 'rm -rf "$fetched"' EXIT
# The missing packages are those that an installation would add.
packages=$(apt-get install -s --no-install-recommends chromium 2>"$fetched/said" |
  sed -n 's/^Inst \([^ ]*\) .*/\1/p')
[ -n "$packages" ] || without "$(tail -n 1 "$fetched/said" | grep . || echo 'apt has none')"
# The sandbox of apt runs as another user, which cannot write to this directory.
# shellcheck disable=SC2086 # one word a package
(cd "$fetched" && timeout 300 apt-get -qq download $packages \
  -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=0) >"$fetched/said" 2>&1 ||
  without "$(tail -n 1 "$fetched/said" | grep . || echo 'apt-get did not answer')"
for package in "$fetched"/*.deb; do
  dpkg -x "$package" "$fetched/made" 2>"$fetched/said" || without "$(tail -n 1 "$fetched/said")"
done
chmod 755 "$fetched/made"
rm -rf "$tools/chromium" && mv "$fetched/made" "$tools/chromium" ||
  without "$tools cannot be written"

# Its libraries are in the same tree, some of them one directory deeper.
cat >"$fetched/start" <<'START'
#!/bin/sh
here=$(cd "$(dirname "$0")/../../chromium/usr/lib" && pwd) || exit 1
for directory in "$here"/*-linux-gnu "$here"/*-linux-gnu/pulseaudio; do
  LD_LIBRARY_PATH=$directory${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
exec "$here/chromium/chromium" "$@"
START
chmod 755 "$fetched/start"
mv "$fetched/start" "$tools/usr/bin/chromium" || without "$tools cannot be written"
"$tools/usr/bin/chromium" --version >/dev/null 2>"$fetched/said" || {
  rm -f "$tools/usr/bin/chromium"
  without "$(tail -n 1 "$fetched/said")"
}
