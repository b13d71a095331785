#!/bin/sh
# Runs one cycle of loops/02-gsm8k/loop.toml: builds and adopts the tiny base model, runs the cycle, explains it, and writes the report.
set -eu
BIN=${BIN:-.venv/bin}
export RATCHET_HOME="${RATCHET_HOME:-.ratchet-gsm8k}"
shared=$(cd "${RATCHET_SHARED:-../shared}" && pwd)
base="$RATCHET_HOME/base"
loop="$RATCHET_HOME/gsm8k.toml"
mkdir -p "$RATCHET_HOME"
sed "s#\"../../../shared/#\"$shared/#" loops/02-gsm8k/loop.toml > "$loop"  # the trace data may lie elsewhere
[ -d "$base" ] || "$BIN/python" -m ratchet.flows.demo.gsm8k "$shared/data/gsm8k_traces" "$base"
"$BIN/ratchet" adopt "$loop" "$base" --by "${USER:-somebody}"
"$BIN/ratchet" run "$loop"
"$BIN/ratchet" explain gsm8k
"$BIN/ratchet" report gsm8k
"$BIN/ratchet" serve "$loop" --stop
