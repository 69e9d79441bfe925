#!/bin/sh
# Write the digests of the base images to .env, which `docker compose` reads.
#
#     sh scripts/pin_images.sh
#
# A tag may refer to another image tomorrow; a digest cannot. Dockerfile and compose.yaml accept only
# images with a digest. Needs docker with buildx and the registry; review the changes before use.

set -eu
cd "$(dirname "$0")/.."

pin() {
  digest=$(docker buildx imagetools inspect "$2" --format '{{.Manifest.Digest}}')
  if ! printf '%s\n' "$digest" | grep -Eqx 'sha256:[0-9a-f]{64}'; then
    echo "The registry gives no digest of $2: $digest" >&2
    exit 1
  fi
  echo "$1=$2@$digest"
}

umask 077
touch .env
{
  grep -v '^CALLGATE_[A-Z]*_IMAGE=' .env || true
  pin CALLGATE_PYTHON_IMAGE python:3.12-slim-bookworm
  pin CALLGATE_POSTGRES_IMAGE postgres:17
  pin CALLGATE_CADDY_IMAGE caddy:2
} > .env.new
mv .env.new .env
echo "The digests are in .env." >&2
