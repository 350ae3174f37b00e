#!/usr/bin/env python3
"""The tables of docs/bench/range_deletes.md from the JSON lines of `kvbench ranges`."""

import json
import os
import sys
import textwrap

rows = [json.loads(line) for line in open(sys.argv[1])]
engines = list(dict.fromkeys(row["engine"] for row in rows))
model = next(
    (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
    "?",
)
most = max(row["deletes"] for row in rows)
COLUMNS = [
    ("a delete", "delete_ns"),
    ("get", "get_ns"),
    ("get of a dead one", "dead_ns"),
    ("seek and ten", "ten_ns"),
    ("delete, then get", "delete_and_get_ns"),
    ("scan, a tuple", "scan_ns"),
]


def shown(ns):
    if ns == 0:
        return "–"
    return (
        f"{ns:.0f} ns" if ns < 1e4 else f"{ns / 1e3:.0f} µs" if ns < 1e7 else f"{ns / 1e6:.0f} ms"
    )


def stage(row):
    if row["deletes"] == 0:
        return "none"
    return f"{row['deletes']:,}" + (", flushed and quiet" if row["settled"] else "")


print("# Range deletes compared with RocksDB's\n")
for paragraph in (
    f"`scripts/bench_kv.sh ranges` (`kvbench ranges`) · {os.cpu_count()} cores ({model}), Linux "
    f"{os.uname().release} · each engine alone in its process, 256 MiB of memory, 64 MiB of them a "
    "write buffer, an unsynced journal, no compression",
    f"{2 * most:,} tuples (16 B keys, 64 B values) in order, flushed. Every second one is deleted "
    "by a range of its own, in scattered order; each delete is a commit. The reads ask for live "
    "tuples at random, each of which lies next to one that is dead in the end. "
    '"Delete, then get" deletes a range that is deleted already and gets a live tuple: what a '
    "client pays that does both. Everything is in memory or in the page cache; processor time is "
    "what counts.",
):
    print(textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False) + "\n")
for engine in engines:
    mine = [row for row in rows if row["engine"] == engine]
    print(f"## {engine}\n")
    print("| ranges deleted | " + " | ".join(name for name, _ in COLUMNS) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    for row in mine:
        print(f"| {stage(row)} | " + " | ".join(shown(row[field]) for _, field in COLUMNS) + " |")
    print()
if len(engines) == 2:
    ours, theirs = ([row for row in rows if row["engine"] == engine] for engine in engines)
    print(f"## {engines[1]} ÷ {engines[0]}\n\nAbove 1: {engines[0]} takes less time.\n")
    print("| ranges deleted | " + " | ".join(name for name, _ in COLUMNS) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    for a, b in zip(ours, theirs):
        ratio = lambda field: f"{b[field] / a[field]:.2f}" if a[field] else "–"
        print(f"| {stage(a)} | " + " | ".join(ratio(field) for _, field in COLUMNS) + " |")
