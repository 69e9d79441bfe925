#!/bin/sh
# Download PgBouncer and its libraries to .tools/pgbouncer/ if the system has none, so that its tests run.
#
#     sh scripts/get_pgbouncer.sh
#
# The packages come from the system's apt, which checks them against its signed lists, and are unpacked
# without installation: no root, no change to the system. An error is reported in one line and is no
# failure: the tests that need PgBouncer are then skipped and listed at the end.

cd "$(dirname "$0")/.." || exit 0
into=$PWD/.tools/pgbouncer

without() {
  echo "No PgBouncer for the tests: $1." >&2
  exit 0
}

PATH=$PATH:/usr/sbin:/sbin
command -v pgbouncer >/dev/null && exit 0
[ -x "$into/pgbouncer" ] && exit 0
[ "$(uname -s)" = Linux ] || exit 0
for needed in apt-get apt-cache dpkg dpkg-query timeout mktemp; do
  command -v "$needed" >/dev/null || without "none here, and no $needed to get it with"
done

fetched=$(mktemp -d) || without "no temporary directory"
trap 'rm -rf "$fetched"' EXIT
packages=pgbouncer
for library in $(apt-cache depends pgbouncer 2>/dev/null | sed -n 's/^ *Depends: \(lib[^<]*\)$/\1/p'); do
  dpkg-query -W -f '${Status}' "$library" 2>/dev/null | grep -q 'ok installed' || packages="$packages $library"
done
# The sandbox of apt runs as another user, which cannot write to this directory.
(cd "$fetched" && timeout 60 apt-get -qq download $packages \
  -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=0) >"$fetched/said" 2>&1 ||
  without "$(tail -n 1 "$fetched/said" | grep . || echo 'apt-get did not answer')"
mkdir "$fetched/made" "$fetched/unpacked"
for package in "$fetched"/*.deb; do
  dpkg -x "$package" "$fetched/unpacked" 2>"$fetched/said" || without "$(tail -n 1 "$fetched/said")"
done
# One directory: the program, its libraries, and a script that starts it with them.
find "$fetched/unpacked/usr/lib" -name 'lib*.so.*' -exec cp -P {} "$fetched/made" \;
cp "$fetched/unpacked/usr/sbin/pgbouncer" "$fetched/made/program" 2>"$fetched/said" ||
  without "$(tail -n 1 "$fetched/said")"
cat >"$fetched/made/pgbouncer" <<'START'
#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$here exec "$here/program" "$@"
START
chmod 755 "$fetched/made" "$fetched/made/pgbouncer" "$fetched/made/program"
"$fetched/made/pgbouncer" --version >/dev/null 2>"$fetched/said" || without "$(tail -n 1 "$fetched/said")"
mkdir -p "${into%/*}" && rm -rf "$into" && cp -R "$fetched/made" "$into" || without "$into cannot be written"
