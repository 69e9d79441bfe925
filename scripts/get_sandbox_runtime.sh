#!/bin/sh
# Download Anthropic's sandbox runtime and its dependencies to .build/sandbox_runtime/.
#
#     sh scripts/get_sandbox_runtime.sh
#
# Installs the package of safety/shell/sandbox_runtime/, with a Node that runs it. socat and ripgrep
# are packages of the system, unpacked without installation if the system has none. An error is
# reported in one line and is no failure: `make safety` then lists the runtime as missing.

cd "$(dirname "$0")/.." || exit 0
what="sandbox runtime" wanted=$PWD/safety/shell/sandbox_runtime into=$PWD/.build/sandbox_runtime
. scripts/npm_tools.sh

is_there && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || without "its Node is packed for Linux on x86-64 only"
need
get_packages
if ! command -v socat >/dev/null || ! command -v rg >/dev/null; then
  for needed in apt-get dpkg; do
    command -v "$needed" >/dev/null || without "no socat or rg here, and no $needed to get it with"
  done
  (cd "$made" && timeout 60 apt-get -qq download socat ripgrep libwrap0 \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=0) >"$made/said" 2>&1 ||
    without "$(tail -n 1 "$made/said" | grep . || echo 'apt-get did not answer')"
  for package in "$made"/*.deb; do
    dpkg -x "$package" "$made" 2>"$made/said" || without "$(tail -n 1 "$made/said")"
    rm "$package"
  done
fi
put_in_place
