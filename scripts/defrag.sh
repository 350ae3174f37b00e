#!/bin/bash
# Defragmentation at size, the run of the paper's §4.4: pages of files are created, appended to,
# overwritten and deleted at several stitching thresholds; then the store is read cold, defragmented
# while a client goes on, and read cold again. Writes docs/bench/defrag.md.
#
#   scripts/defrag.sh [threshold…]    bytes, `default` or `max` (no stitching);
#                                     without any: default 65536 max
#
# MIB: about what is alive in the end; twice as much is written, and three times as much disk is
# needed (2048). FILE: the store, on the file system to be measured; it is deleted. OUT: where the
# results go. KEEP=1: added to what is there.
set -euo pipefail
cd "$(dirname "$0")/.."

MIB=${MIB:-2048} FILE=${FILE:-defrag-scratch.kvfs} OUT=${OUT:-docs/bench}
THRESHOLDS=("$@")
[ ${#THRESHOLDS[@]} -gt 0 ] || THRESHOLDS=(default 65536 max)

free=$(($(df --output=avail -B1M "$(dirname "$FILE")" | tail -1)))
if [ "$free" -lt $((3 * MIB + 1024)) ]; then
    echo "$((3 * MIB + 1024)) MiB of disk are needed, $free are free:" \
        "set MIB, or FILE to somewhere else" >&2
    exit 1
fi
cargo build --release --quiet --package measure --bin kvdb_defragment
target=$(cargo metadata --format-version 1 --no-deps |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
program=$target/release/kvdb_defragment
trap 'rm -f "$FILE"' EXIT

mkdir -p "$OUT"
lines=$OUT/defrag.jsonl
[ -n "${KEEP:-}" ] || rm -f "$lines"
for threshold in "${THRESHOLDS[@]}"; do
    "$program" "$FILE" "$MIB" "$threshold" | tee -a "$lines"
    rm -f "$FILE"
done

python3 scripts/defrag_report.py "$lines" >"$OUT/defrag.md"
echo "$OUT/defrag.md"
