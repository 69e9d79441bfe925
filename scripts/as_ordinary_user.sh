#!/bin/sh
# Run a command as an ordinary user, in a clone of this checkout, with a separate home.
#
#     sh scripts/as_ordinary_user.sh make test
#
# Requires root. The user is `nobody`, the Python the system's. The clone has the committed files, and
# copies of downloaded test tools. It is in /home, like the checkout of an ordinary user, and is
# removed afterwards.

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
