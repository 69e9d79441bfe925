#!/bin/sh
# Run the tests with each Python from 3.11 on that this machine has, in sequence.
#
#     sh scripts/test_pythons.sh [pytest's arguments]
#     PYTHONS="/usr/bin/python3 python3.13" sh scripts/test_pythons.sh tests/kernel
#
# Without PYTHONS, the script finds interpreters on PATH, in /usr/bin, /usr/local/bin and of pyenv and
# uv, one for each version. Each has a separate environment in .build/pythons, from constraints.txt.

set -u
cd "$(dirname "$0")/.." || exit 1
export PATH="$PATH:$PWD/.tools/usr/bin"

candidates() {
  for minor in 11 12 13 14; do command -v "python3.$minor"; done
  ls /usr/bin/python3 /usr/local/bin/python3 \
    "$HOME"/.pyenv/versions/*/bin/python3 "$HOME"/.local/share/uv/python/*/bin/python3
} 2>/dev/null

# "VERSION PROGRAM" of each CPython that is new enough; a shim without a version behind it is silent.
found() {
  { [ -n "${PYTHONS:-}" ] && printf '%s\n' $PYTHONS || candidates; } | while read -r program; do
    "$program" -c 'import sys, platform
if sys.version_info >= (3, 11): print(platform.python_version(), sys._base_executable)' 2>/dev/null
  done | sort -V -u -k 1,1
}

install="-m pip install -qq --disable-pip-version-check --no-input"
test_with() {
  venv=.build/pythons/$1
  if [ ! -e "$venv/.ready" ] || [ constraints.txt -nt "$venv/.ready" ] ||
    [ pyproject.toml -nt "$venv/.ready" ]; then
    "$2" -m venv "$venv" && "$venv/bin/python" $install --require-hashes -r constraints.txt &&
      "$venv/bin/python" $install --no-deps --no-build-isolation -e . && touch "$venv/.ready" ||
      return 1
  fi
  shift 2
  "$venv/bin/python" -m pytest -n 4 -m "not soak and not agents" "$@" </dev/null
}

list=$(found)
[ -n "$list" ] || { echo "There is no Python 3.11 or newer here." >&2; exit 1; }
summary=""
failed=0
while read -r version program; do
  echo "== Python $version ($program)"
  if test_with "$version" "$program" "$@"; then result=passed; else result=FAILED failed=1; fi
  summary="$summary
$version  $result"
done <<END
$list
END
echo "$summary"
exit $failed
