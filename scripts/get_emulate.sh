#!/bin/sh
# Puts the Google emulator of the long tests into .tools/emulate/.
#
#     sh scripts/get_emulate.sh
#
# It is the package of tests/google_emulator/.

cd "$(dirname "$0")/.." || exit 0
what="Google emulator" wanted=$PWD/tests/google_emulator into=$PWD/.tools/emulate
. scripts/npm_tools.sh

is_there && exit 0
need
get_packages
put_in_place
