#!/usr/bin/env python3
"""KVFS against ext4 on a loop device whose file lies beside the store: the same operations by the same program, interleaved in one
run, as ratios of medians; and the requests per operation that the daemon saw. Writes a Markdown table. Needs root."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# (case, start with nothing cached, what it is)
CASES = [
    ("create", False, "create empty files"),
    ("stat", False, "stat, warm"),
    ("readdir-stat", True, "readdir + stat, cold"),
    ("unlink", False, "unlink"),
    ("create4k", False, "create + write 4 KiB + close"),
    ("stat", True, "stat, cold"),
    ("unlink", True, "unlink, cold"),
    ("seq-write", False, "write 1 MiB pieces, fsync"),
    ("seq-read", True, "read 1 MiB pieces, cold"),
    ("rand-read", True, "read random 4 KiB, cold"),
    ("rand-write", False, "overwrite random 4 KiB, fsync"),
    ("fsync1", False, "create + 4 KiB + fsync, 1 thread"),
    ("fsync16", False, "create + 4 KiB + fsync, 16 threads"),
]


def sh(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


class Kvfs:
    name = "kvfs"

    def __init__(self, kvfs, work, size):
        self.kvfs, self.store, self.dir = kvfs, work / "bench.kvfs", work / "kvfs"
        self.dir.mkdir()
        sh(kvfs, "create", str(self.store))
        self.mount()

    def mount(self):
        sh(self.kvfs, "mount", str(self.store), str(self.dir))

    def umount(self):
        sh(self.kvfs, "umount", str(self.dir))

    def requests(self):
        counts = json.loads(sh(self.kvfs, "stat", str(self.dir), "--json"))
        return counts["requests"]


class Ext4:
    name = "ext4"

    def __init__(self, kvfs, work, size):
        self.image, self.dir = work / "ext4.img", work / "ext4"
        self.dir.mkdir()
        sh("fallocate", "-l", size, str(self.image))
        sh("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self.image))
        self.mount()

    def mount(self):
        sh("mount", "-o", "loop", str(self.image), str(self.dir))

    def umount(self):
        sh("umount", str(self.dir))

    def requests(self):
        return {}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--kvfs", required=True, help="the kvfs binary")
    p.add_argument("--out", help="write the table here as well")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--files", type=int, default=10_000)
    p.add_argument("--mib", type=int, default=512)
    p.add_argument("--size", default="4G", help="size of the ext4 image")
    p.add_argument("--dir", default=None, help="where both files lie (default: a temporary directory)")
    a = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench_first: mounting ext4 and dropping caches need root")
    kvfs = str(Path(a.kvfs).resolve())
    seconds, ops, requests = {}, {}, {}
    with tempfile.TemporaryDirectory(prefix="kvfs-bench-", dir=a.dir) as tmp:
        systems = []
        try:
            for make in (Kvfs, Ext4):
                systems.append(make(kvfs, Path(tmp), a.size))
            for round_ in range(a.rounds):
                for at, (case, cold, _) in enumerate(CASES):
                    for fs in systems if round_ % 2 == 0 else reversed(systems):
                        if cold:
                            fs.umount()
                            sh("sync")
                            Path("/proc/sys/vm/drop_caches").write_text("3\n")
                            fs.mount()
                        before = fs.requests()
                        out = sh(kvfs, "bench", str(fs.dir), "--case", case, "--files", str(a.files), "--mib", str(a.mib), "--keep", "--json")
                        (t,) = json.loads(out)
                        seconds.setdefault((at, fs.name), []).append(t["seconds"])
                        ops[at] = t["ops"]
                        if fs.name == "kvfs":
                            after = fs.requests()
                            delta = {k: (v - before.get(k, 0)) / t["ops"] for k, v in after.items()}
                            requests[at] = {k: v for k, v in sorted(delta.items(), key=lambda kv: -kv[1]) if v >= 0.01}
                    print(f"round {round_ + 1}/{a.rounds}: {case}", file=sys.stderr)
        finally:
            for fs in systems:
                subprocess.run(["umount", "-l", str(fs.dir)], capture_output=True)
    lines = [
        "| operation | KVFS ops/s | ext4 ops/s | KVFS ÷ ext4 | range of rounds | requests per operation |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for at, (case, cold, what) in enumerate(CASES):
        k, e = seconds[(at, "kvfs")], seconds[(at, "ext4")]
        ratios = sorted(y / x for x, y in zip(k, e))
        mk, me = statistics.median(k), statistics.median(e)
        req = requests.get(at, {})
        shown = ", ".join(f"{n} {v:.2f}" for n, v in list(req.items())[:6])
        lines.append(
            f"| {what} | {ops[at] / mk:,.0f} | {ops[at] / me:,.0f} | **{statistics.median(ratios):.2f}** "
            f"| {ratios[0]:.2f}–{ratios[-1]:.2f} | {sum(req.values()):.2f}{': ' if shown else ''}{shown} |"
        )
    cpu = next((l.split(":", 1)[1].strip() for l in Path("/proc/cpuinfo").read_text().splitlines() if l.startswith("model name")), "?")
    text = (
        "# KVFS against ext4, first table\n\n"
        f"`make bench-first` · {a.rounds} rounds, interleaved · {a.files:,} files, a file of {a.mib} MiB · {os.cpu_count()} cores ({cpu}), "
        f"Linux {os.uname().release} · ext4 on a loop device whose file lies beside the store. Medians; a ratio above 1 means that "
        "KVFS is faster. Cold: both unmounted, all caches dropped, mounted again.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    if a.out:
        Path(a.out).parent.mkdir(parents=True, exist_ok=True)
        Path(a.out).write_text(text)


if __name__ == "__main__":
    main()
