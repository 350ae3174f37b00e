#!/bin/bash
# Defragmentation at size, the run of the paper's §4.4: pages of files are created, appended to, overwritten and deleted at several stitching
# thresholds; then the store is read cold, defragmented while a client goes on, and read cold again. Writes docs/bench/defrag.md.
#
#   scripts/defrag.sh [threshold…]    bytes, `default` or `max` (no stitching); without any: default 65536 max
#
# MIB: about what is alive in the end; twice as much is written, and three times as much disk is needed (2048). FILE: the store, on the file
# system to be measured; it is deleted. OUT: where the results go. KEEP=1: added to what is there.
set -euo pipefail
cd "$(dirname "$0")/.."

MIB=${MIB:-2048} FILE=${FILE:-defrag-scratch.kvfs} OUT=${OUT:-docs/bench}
THRESHOLDS=("$@")
[ ${#THRESHOLDS[@]} -gt 0 ] || THRESHOLDS=(default 65536 max)

free=$(($(df --output=avail -B1M "$(dirname "$FILE")" | tail -1)))
if [ "$free" -lt $((3 * MIB + 1024)) ]; then
    echo "$((3 * MIB + 1024)) MiB of disk are needed, $free are free: set MIB, or FILE to somewhere else" >&2
    exit 1
fi
cargo build --release --quiet --package measure --bin kvdb_defragment
program=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/kvdb_defragment
trap 'rm -f "$FILE"' EXIT

mkdir -p "$OUT"
lines=$OUT/defrag.jsonl
[ -n "${KEEP:-}" ] || rm -f "$lines"
for threshold in "${THRESHOLDS[@]}"; do
    "$program" "$FILE" "$MIB" "$threshold" | tee -a "$lines"
    rm -f "$FILE"
done

python3 - "$lines" >"$OUT/defrag.md" <<'PYTHON'
import json, os, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
print(f"""# Defragmentation at size

`make bench-defrag` (`scripts/defrag.sh`, `bench/measure/src/bin/kvdb_defragment.rs`) · {os.cpu_count()} cores ({model}), Linux {os.uname().release}

The run of VT-tree §4.4: a file server that only writes, as tuples of 4 KiB. Files are created (32 pages), appended to (1 to 8 pages), overwritten at random
places and deleted, with nothing defragmented until then. Then the store is compacted, for what is dead is known once what hides it has been merged with
it (values stay where they are); everything is read in the order of its keys with nothing cached (median of three), the
store is defragmented as fast as it goes, `fullest_percent` 99, while a client reads and overwrites pages 2,000 times a second, and everything is read
again. "Reclaimed" is of what was reclaimable when it began or became so since. Spans are the seeks of a scan that reads value after value.

| threshold | written, of which alive | load | zones held → after | reclaimable → after | reclaimed | in | moved | value spans | cold scan MB/s | client's worst put · get | p99.9 |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|""")
for r in rows:
    faster = r["scan_after_mb_per_s"] / r["scan_before_mb_per_s"] - 1
    print(
        f"| {r['threshold']} | {r['written_mib']} MiB, {r['live_mib']} | {r['load_mb_per_s']} MB/s, {r['write_amp']:.2f} written "
        f"| {r['zones_held']} → {r['zones_held_after']} | {r['zones_reclaimable']} → {r['zones_reclaimable_after']} "
        f"| {r['reclaimed']} of {r['found']}: **{r['reclaimed_percent']:.1f}%** | {r['defrag_s']} s | {r['moved_mib']} MiB "
        f"| {r['spans_before']} → {r['spans_after']} | {r['scan_before_mb_per_s']} → **{r['scan_after_mb_per_s']}** ({faster:+.0%}) "
        f"| {r['worst_put_ms']} · {r['worst_get_ms']} ms | {r['p999_put_ms']} · {r['p999_get_ms']} ms |"
    )
print("""
Where hardly anything is moved, both scans read the same bytes: how far they are apart there is what the machine's moods amount to.

The paper's: 38 GB written at 64 KiB, 9,477 zones held, 4,483 reclaimable, all of them reclaimed in 96 s by moving 4.8 GB, with no client at work;
the scan 29% faster afterwards.""")
PYTHON
echo "$OUT/defrag.md"
