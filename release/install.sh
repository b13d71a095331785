#!/bin/sh
# Verifies the checksums of a release, installs its wheel and its sdist with the packages of requirements/control.lock, each in an
# environment of its own, and runs the first commands: install.sh FOLDER
set -eu
dist=$(realpath "$1")
cd "$(dirname "$0")/.."
locks=$PWD/requirements
folder=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$folder"' EXIT
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
python=${PYTHON:-python3}
for archive in "$dist"/ratchet-*.whl "$dist"/ratchet-*.tar.gz; do
  name=$(basename "$archive")
  echo "installing $name with $($python --version)"
  "$python" -m venv "$folder/$name"
  bin=$folder/$name/bin
  "$bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$locks/uv.lock"
  "$bin/uv" pip install -q --python "$bin/python" --require-hashes -r "$locks/control.lock"
  "$bin/uv" pip install -q --python "$bin/python" --no-deps "$archive"
  mkdir "$folder/$name-home"
  cd "$folder/$name-home"
  export RATCHET_HOME="$folder/$name-home/.ratchet"
  "$bin/ratchet" --version
  "$bin/ratchet" init loop.toml --line support >/dev/null
  "$bin/ratchet" check loop.toml >/dev/null
  "$bin/ratchet" doctor >/dev/null
  "$bin/ratchet" ingest loop.toml
  "$bin/python" -c 'import ratchet.extend, ratchet.flows.engine.advance'
  cd - >/dev/null
done
echo "the archives work"
