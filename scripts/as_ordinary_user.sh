#!/bin/sh
# Runs a command as an ordinary user, in a clone of this checkout, with a home of its own.
#
#     sh scripts/as_ordinary_user.sh make test
#
# For root. The user is `nobody`, the Python is the system's own. What is committed is cloned; tools
# for the tests that were fetched already are copied. The clone lies in /home, where an ordinary
# user would have it, and is removed afterwards.

set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "as_ordinary_user.sh: only root can become another user" >&2; exit 1; }

home=$(mktemp -d /home/callgate-user.XXXXXX)
trap 'rm -rf "$home"' EXIT
trap 'exit 130' INT TERM
git clone --quiet . "$home/callgate"
[ ! -d .tools ] || cp -R .tools "$home/callgate/"
chown -R nobody: "$home"

cd "$home/callgate"
HOME=$home USER=nobody LOGNAME=nobody PYTHON=/usr/bin/python3 \
  setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups -- "$@"
