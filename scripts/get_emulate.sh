#!/bin/sh
# Download the Google emulator of the long tests to .tools/emulate/.
#
#     sh scripts/get_emulate.sh
#
# Installs the package of tests/catalogue/google/emulator/.

cd "$(dirname "$0")/.." || exit 0
what="Google emulator" wanted=$PWD/tests/catalogue/google/emulator into=$PWD/.tools/emulate
. scripts/npm_tools.sh

is_there && exit 0
need
get_packages
put_in_place
