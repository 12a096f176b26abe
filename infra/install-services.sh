#!/bin/sh
# Installs what the tests run for real and this machine lacks: PostgreSQL with PostGIS, Chromium,
# nginx, Redis.
set -eu

missing=""
ls /usr/share/postgresql/*/extension/postgis.control >/dev/null 2>&1 ||
  missing="postgresql postgresql-postgis"
command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1 ||
  missing="$missing chromium chromium-driver"
command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || missing="$missing nginx-light"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  as_root="sudo -n"
else
  as_root="none"
fi
if [ "$as_root" = none ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "the tests need: $missing (install them, or run \`make test-embedded\` for what needs no service)" >&2
  exit 1
fi

echo "installing $missing"
log=$(mktemp)
{ $as_root apt-get update && \
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
  >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
rm -f "$log"
