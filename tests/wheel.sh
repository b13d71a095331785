#!/bin/sh
# Builds the wheel, installs it as a command in the two ways of docs/howto/install.md, and runs the first commands in an empty folder:
# with uv and the extra `train`, where a tiny model is adopted, and with pipx without torch, where `adopt` says what is missing.
# All files are in a temporary folder. The dependencies are downloaded, several gigabytes with torch.
set -eu
cd "$(dirname "$0")/.."
python=$(readlink -f .venv/bin/python)
uv=$PWD/.venv/bin/uv
folder=$(mktemp -d -p "${TMPDIR:-/var/tmp}")  # on disk: torch takes gigabytes, and /tmp may be in memory
trap 'rm -rf "$folder"' EXIT
rm -rf build
.venv/bin/python -m pip wheel -q --no-deps --wheel-dir "$folder/dist" .
wheel=$(ls "$folder"/dist/ratchet-*.whl)
unset PYTHONPATH RATCHET_HOME
path=$PATH

first() {
  mkdir "$folder/$1-home"
  cd "$folder/$1-home"
  PATH=$folder/$1-bin:$path
  ratchet --version
  ratchet --help >/dev/null
  ratchet doctor
  ratchet init loop.toml --line support
  ratchet check loop.toml
  ratchet status
  ratchet ingest loop.toml
}

echo "installing $(basename "$wheel")[train] with uv"
UV_TOOL_DIR=$folder/uv UV_TOOL_BIN_DIR=$folder/uv-bin "$uv" tool install -q --python "$python" "$wheel[train]"
first uv
echo '{"prompt": "list all pods", "answer": "kubectl get pods"}' >pairs.jsonl
"$folder/uv/ratchet/bin/python" -m ratchet.trainers.job.tiny_model pairs.jsonl pairs.jsonl "$folder/model" --steps 1 --batch 1
ratchet adopt loop.toml "$folder/model" --by ada
ratchet status
ratchet serve loop.toml --stop

echo "installing $(basename "$wheel") with pipx"
PIPX_HOME=$folder/pipx PIPX_BIN_DIR=$folder/pipx-bin "$uv" tool run -q pipx install --quiet --python "$python" "$wheel"
first pipx
if ratchet adopt loop.toml "$folder/model" --by ada 2>error.txt; then echo "adopt must fail without torch" >&2; exit 1; fi
cat error.txt
grep -q "install ratchet\[train\]" error.txt
echo "the wheel works"
