#!/usr/bin/env python3
"""KVFS as a file system against others: the same operations by the same programs, interleaved round
by round. Every case is prepared for a system right before it is timed there; before a cold one that
system is unmounted, the caches are dropped and it is mounted again. Ratios are of one round,
medians of all. Needs root.

    bench_files.py --kvfs PROGRAM --record FILE      a round more in FILE,
                                                     a line of JSON for each measurement
    bench_files.py --report FILE --out files.md      the table and the picture of all rounds in FILE

Rounds can so be run one at a time, and groups of cases or a few systems on their own, whenever the
machine is quiet. The groups:

    operations     one operation many times, by `kvfs bench`
    programs       tar, cp, rsync, git, npm-like, make, cargo, SQLite, PostgreSQL
    clients        create, stat and unlink by 1, 2 and 16 processes at once;
                   create on a busy machine
    personalities  the five of filebench, or restated where it is not installed
    large          a large tree: tar x, rm -rf (quiet and busy), kvfs import, kvfs rm"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_clients
import bench_files_report
import bench_filebench
import bench_operations
import bench_programs
import file_systems
from bench_measure import run_case

GROUPS = ("operations", "programs", "clients", "personalities", "large")
SYSTEMS = (
    "kvfs,kvfs-uring,kvfs-root,kvfs-writeback,ext4,btrfs,xfs,bindfs,juicefs,agentfs,"
    "memory,memory-uring,memory-root"
)
# Sizes: what was measured with others cannot be in one table.
SIZES = ("files", "mib", "tree", "large_tree", "filebench_seconds")


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--kvfs", default="target/release/kvfs", help="the kvfs program, a release build"
    )
    p.add_argument(
        "--memory",
        help="the program memory_mount of bench/measure, a release build: "
        "the ceiling of the transport",
    )
    p.add_argument("--filebench", help="filebench (default: one that is installed)")
    p.add_argument(
        "--restated",
        action="store_true",
        help="its personalities as scripts/bench_personalities.py states them, even so",
    )
    p.add_argument("--record", help="measure, and append to this file")
    p.add_argument("--report", help="only report what this file has")
    p.add_argument("--out", help="where the table goes; the picture goes next to it")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--files", type=int, default=3_000)
    p.add_argument("--mib", type=int, default=128)
    p.add_argument("--tree", type=int, default=3_000, help="files in the tree of the programs")
    p.add_argument("--large-tree", type=int, default=20_144, help="files in the large tree")
    p.add_argument(
        "--filebench-seconds", type=int, default=2, help="how long each personality runs"
    )
    p.add_argument("--size", default="4G", help="size of the images of the others")
    p.add_argument("--dir", help="where all of them lie (default: a temporary directory)")
    p.add_argument("--systems", default=SYSTEMS)
    p.add_argument(
        "--long-on",
        default="kvfs,kvfs-uring,ext4,memory-uring",
        help="systems for the groups clients, large and personalities",
    )
    p.add_argument("--groups", default=",".join(GROUPS))
    p.add_argument("--cases", help="a regular expression: only cases whose names it is found in")
    p.add_argument(
        "--wait",
        type=float,
        default=30,
        help="seconds to wait for a quiet machine before each case",
    )
    p.add_argument(
        "--limit", type=float, default=60, help="seconds that a program of a case may take"
    )
    a = p.parse_args()
    if not a.report and not a.record:
        p.error("give --record or --report")
    for given, known in (
        (a.systems, SYSTEMS.split(",")),
        (a.long_on, SYSTEMS.split(",")),
        (a.groups, GROUPS),
    ):
        for name in given.split(","):
            if name not in known:
                p.error(f"{name} is none of {', '.join(known)}")
    return a


def cases_by_group(a, work, groups, left_out):
    operations = bench_operations.Operations(a.kvfs, a.files, a.mib)
    cases = {"operations": operations.cases()}
    if "programs" in groups:
        cases["programs"] = bench_programs.Programs(work, a.kvfs, a.tree).cases()
    if "clients" in groups:
        cases["clients"] = bench_clients.Clients(operations, work, a.files).cases()
    if "personalities" in groups:
        filebench = not a.restated and bench_filebench.find(a.filebench)
        if filebench:
            cases["personalities"] = bench_filebench.Filebench(
                filebench, work, a.filebench_seconds
            ).cases()
        else:
            cases["personalities"] = bench_filebench.Restated(a.filebench_seconds).cases()
    if "large" in groups:
        cases["large"] = bench_programs.large_tree_cases(work, a.kvfs, a.large_tree)
    return {group: cases[group] for group in GROUPS if group in groups and group in cases}


def runs_on(a, group, case, system):
    """The long groups run on a few systems; of peers in user space the single operations are
    compared; and where the processor takes most of the time, a pass-through and the slower ceilings
    say nothing."""
    if group in ("clients", "large", "personalities"):
        return system in a.long_on.split(",")
    if case.startswith(bench_programs.COMPUTING) and system in ("bindfs", "memory", "memory-root"):
        return False
    return group == "operations" or system not in file_systems.PEERS


def why(error, work):
    """The last line of what a program has said, or the error itself,
    without the name of the temporary directory."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"took more than {error.timeout:g} s"
    said = getattr(error, "stderr", None) or str(error)
    last = said.strip().splitlines()[-1]
    if last.startswith("{"):
        last = json.loads(last)["error"]["message"]
    return last.replace(f"{work}/", "")


class Record:
    """The file of the rounds; a line is written as soon as it is measured."""

    def __init__(self, a, path):
        self.lines = bench_files_report.read(path) if Path(path).exists() else []
        sizes = {size: getattr(a, size) for size in SIZES}
        for other in {
            json.dumps(line.get("sizes"))
            for line in self.lines
            if "left_out" not in line and "case" not in line
        }:
            if json.loads(other) != sizes:
                sys.exit(f"bench_files: {path} has rounds of {other}, not of {json.dumps(sizes)}")
        self.file = open(path, "a")
        self.add(
            {
                "sizes": sizes,
                "machine": bench_files_report.machine(),
                "systems": a.systems.split(","),
            }
        )

    def add(self, line):
        self.lines.append(line)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def next_round(self, case):
        return max(
            (line["round"] + 1 for line in self.lines if line.get("case") == case), default=0
        )


def measure(a):
    if os.geteuid() != 0:
        sys.exit("bench_files: making and mounting file systems needs root")
    a.kvfs, a.memory = (path and str(Path(path).resolve()) for path in (a.kvfs, a.memory))
    file_systems.LIMIT = a.limit
    wanted, groups = re.compile(a.cases or ""), a.groups.split(",")
    record = Record(a, a.record)

    def left_out(what, reason):
        print(f"left out: {what} ({reason})", file=sys.stderr)
        record.add({"left_out": what, "why": reason})

    with tempfile.TemporaryDirectory(prefix="kvfs-bench-", dir=a.dir) as tmp:
        work, systems, begun = Path(tmp), [], time.monotonic()
        work.chmod(0o755)
        try:
            grouped = cases_by_group(a, work, groups, left_out)
            for name in a.systems.split(","):
                try:
                    systems.append(file_systems.make(name, work, a.size, a.kvfs, a.memory))
                except (OSError, subprocess.SubprocessError) as e:
                    left_out(name, why(e, work))
            print(f"prepared: {time.monotonic() - begun:.0f} s", file=sys.stderr)
            for _ in range(a.rounds):
                for group, cases in grouped.items():
                    begun = time.monotonic()
                    for case in cases:
                        of_case = [fs for fs in systems if runs_on(a, group, case.name, fs.name)]
                        if not wanted.search(case.name) or not of_case:
                            continue
                        number = record.next_round(case.name)
                        first = number % len(of_case)
                        for fs in of_case[first:] + of_case[:first]:
                            try:
                                result = run_case(case, fs, a.wait)
                            except (OSError, subprocess.SubprocessError) as e:
                                left_out(f"{case.name} on {fs.name}", why(e, work))
                                continue
                            if result:
                                record.add({"round": number, "group": group, **result})
                        print(f"round {number + 1}: {case.name}", file=sys.stderr)
                    print(f"{group}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        finally:
            for fs in systems:
                fs.remove()


def main():
    a = arguments()
    if a.record:
        measure(a)
    if a.report or a.out:
        lines = bench_files_report.read(a.report or a.record)
        out = Path(a.out) if a.out else None
        text = bench_files_report.report(lines, out)
        print(text)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text)
            out.with_suffix(".svg").write_text(bench_files_report.picture(lines))


if __name__ == "__main__":
    main()
