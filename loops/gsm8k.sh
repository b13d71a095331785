#!/bin/sh
# Runs one cycle of loops/gsm8k.toml: builds and adopts the tiny base model, runs the cycle, explains it, and writes the report.
set -eu
BIN=${BIN:-.venv/bin}
export RATCHET_HOME="${RATCHET_HOME:-.ratchet-gsm8k}"
base="$RATCHET_HOME/base"
[ -d "$base" ] || "$BIN/python" -m flows.demo.gsm8k "${RATCHET_SHARED:-../shared}/data/gsm8k_traces" "$base"
"$BIN/ratchet" adopt loops/gsm8k.toml "$base" --by "${USER:-somebody}"
"$BIN/ratchet" run loops/gsm8k.toml
"$BIN/ratchet" explain gsm8k
"$BIN/ratchet" report gsm8k
"$BIN/ratchet" serve loops/gsm8k.toml --stop
