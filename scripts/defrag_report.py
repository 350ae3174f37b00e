#!/usr/bin/env python3
"""The page docs/bench/defrag.md from the JSON lines of `kvdb_defragment`, which scripts/defrag.sh
runs."""

import json
import os
import sys
import textwrap


def paragraph(text):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


rows = [json.loads(line) for line in open(sys.argv[1])]
model = next(
    (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
    "?",
)
COLUMNS = {
    "threshold": "---",
    "written, of which alive": "---",
    "load": "---:",
    "zones held → after": "---:",
    "reclaimable → after": "---:",
    "reclaimed": "---:",
    "in": "---:",
    "moved": "---:",
    "value spans": "---:",
    "cold scan MB/s": "---:",
    "client's worst put · get": "---:",
    "p99.9": "---:",
}

print("# Defragmentation at size\n")
for text in (
    "`make bench-defrag` (`scripts/defrag.sh`, `bench/measure/src/bin/kvdb_defragment.rs`) · "
    f"{os.cpu_count()} cores ({model}), Linux {os.uname().release}",
    "The run of VT-tree §4.4: a file server that only writes, as tuples of 4 KiB. Files are "
    "created (32 pages), appended to (1 to 8 pages), overwritten at random places and deleted, "
    "with nothing defragmented until then. Then the store is compacted, for what is dead is known "
    "once what hides it has been merged with it (values stay where they are); everything is read "
    "in the order of its keys with nothing cached (median of three), the store is defragmented as "
    "fast as it goes, `fullest_percent` 99, while a client reads and overwrites pages 2,000 times "
    'a second, and everything is read again. "Reclaimed" is of what was reclaimable when it began '
    "or became so since. Spans are the seeks of a scan that reads value after value.",
):
    print(paragraph(text) + "\n")
print("| " + " | ".join(COLUMNS) + " |")
print("|" + "|".join(COLUMNS.values()) + "|")
for r in rows:
    faster = r["scan_after_mb_per_s"] / r["scan_before_mb_per_s"] - 1
    print(
        f"| {r['threshold']} | {r['written_mib']} MiB, {r['live_mib']} "
        f"| {r['load_mb_per_s']} MB/s, {r['write_amp']:.2f} written "
        f"| {r['zones_held']} → {r['zones_held_after']} "
        f"| {r['zones_reclaimable']} → {r['zones_reclaimable_after']} "
        f"| {r['reclaimed']} of {r['found']}: **{r['reclaimed_percent']:.1f}%** "
        f"| {r['defrag_s']} s | {r['moved_mib']} MiB "
        f"| {r['spans_before']} → {r['spans_after']} "
        f"| {r['scan_before_mb_per_s']} → **{r['scan_after_mb_per_s']}** ({faster:+.0%}) "
        f"| {r['worst_put_ms']} · {r['worst_get_ms']} ms "
        f"| {r['p999_put_ms']} · {r['p999_get_ms']} ms |"
    )
for text in (
    "Where hardly anything is moved, both scans read the same bytes: how far they are apart there "
    "is what the machine's moods amount to.",
    "The paper's: 38 GB written at 64 KiB, 9,477 zones held, 4,483 reclaimable, all of them "
    "reclaimed in 96 s by moving 4.8 GB, with no client at work; the scan 29% faster afterwards.",
):
    print("\n" + paragraph(text))
