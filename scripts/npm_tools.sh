# Shared by the scripts that install npm packages in .tools/. They first set:
#
#     what="ACP clients" wanted=$PWD/tests/features/editor/acp/clients into=$PWD/.tools/acp
#     . scripts/npm_tools.sh
#
# An error is reported in one line and is no failure: the tests that need the packages are then
# skipped and listed at the end.
# shellcheck shell=sh disable=SC2154 # the sourcing script sets them

without() {
  echo "No $what for the tests: $1." >&2
  exit 0
}

is_there() {
  cmp -s "$wanted/package-lock.json" "$into/package-lock.json"
}

need() {
  for needed in "$@" npm node timeout mktemp; do
    command -v "$needed" >/dev/null || without "no $needed here to get it with"
  done
}

# Install into a new directory, $made, with the versions and hashes of the lock file and without
# install scripts. `npm ci` is unsuitable: it fails if a registry lacks packages for other systems.
get_packages() {
  mkdir -p "$(dirname "$into")" && made=$(mktemp -d "$into.XXXXXX") ||
    without "$into cannot be written"
  trap 'rm -rf "$made"' EXIT
  cp "$wanted/package.json" "$wanted/package-lock.json" "$made" || without "$made cannot be written"
  (cd "$made" && timeout 300 npm install --ignore-scripts --no-save --no-audit --no-fund \
    --loglevel=error --fetch-retries=1) >"$made/said" 2>&1 ||
    without "$(sed -n 's/^npm error //p' "$made/said" | grep -v '^A complete log' | tail -n 1 |
      grep . || echo 'npm did not answer')"
  # Compare the files with the lock file: npm checks only hashes that exist.
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
}

put_in_place() {
  cp "$wanted/package-lock.json" "$made" && chmod 755 "$made" && rm -rf "$into" &&
    mv "$made" "$into" || without "$into cannot be written"
}
