#!/bin/sh
# Build sdist and wheel into dist/, install the wheel into an empty environment and run its demo,
# like `uvx callgate demo` or `pipx run callgate demo`.
#
#     sh scripts/dist.sh        (or `make dist`)
#
# The wheel is built from the sdist, which reveals missing files. Dependencies come only
# from constraints.txt, each checked against its hash.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python dist=$PWD/dist needs=$PWD/.build/dist/needs.txt
quiet="-m pip install -qq --disable-pip-version-check --no-input"

rm -rf dist .build/dist
mkdir -p dist .build/dist
"$python" -m hatchling build -t sdist -d "$dist" >/dev/null
mkdir .build/dist/source
tar -xzf dist/callgate-*.tar.gz -C .build/dist/source --strip-components 1
(cd .build/dist/source && "$python" -m hatchling build -t wheel -d "$dist" >/dev/null)

sed '/^# for development/,$d' constraints.txt >"$needs"
"${PYTHON:-python3}" -m venv .build/dist/empty
fresh=$PWD/.build/dist/empty/bin
# shellcheck disable=SC2086 # several words
"$fresh/python" $quiet --require-hashes -r "$needs"
# shellcheck disable=SC2086
"$fresh/python" $quiet --no-deps --no-index dist/callgate-*.whl
cd .build/dist # nothing of the checkout is found from here
"$fresh/callgate" --version
test -f empty/share/man/man1/callgate.1
test -f empty/share/systemd/user/callgate.service
"$fresh/callgate" demo --yes </dev/null
echo "dist/ holds $(ls "$dist" | tr '\n' ' ')"
