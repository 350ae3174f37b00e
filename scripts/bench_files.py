#!/usr/bin/env python3
"""KVFS as a file system beside others: the same operations by the same programs, interleaved round by round in one run. Every case is
prepared for a system right before it is timed there; before a cold one that system is unmounted, the caches are dropped and it is mounted
again. Ratios are of one round, medians of all. Needs root."""

import argparse
import json
import os
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import bench_files_report
import file_systems
from file_systems import sh

# Cases of `kvfs bench`: (name, its case there, cold, aim as a ratio to ext4).
OPERATIONS = [
    ("create", "create", False, 0.55),
    ("stat, warm", "stat", False, 0.95),
    ("rename", "rename", False, 0.9),
    ("readdir + stat, cold", "readdir-stat", True, 2),
    ("unlink", "unlink", False, 0.85),
    ("create + 4 KiB", "create4k", False, 0.5),
    ("read, warm", "read", False, 0.95),
    ("read small files, cold", "read", True, 1.4),
    ("stat, cold", "stat", True, None),
    ("unlink, cold", "unlink", True, None),
    ("mkdir", "mkdir", False, 1.5),
    ("rmdir", "rmdir", False, 1.1),
    ("sequential write, fsync", "seq-write", False, 1.0),
    ("sequential read, cold", "seq-read", True, 0.97),
    ("random 4 KiB reads, cold", "rand-read", True, None),
    ("random 4 KiB overwrites, fsync", "rand-write", False, 2),
    ("4 bytes into random cold pages, fsync", "poke", True, None),
    ("append 100 bytes", "append", False, None),
    ("create + fsync, 1 thread", "fsync1", False, 2.5),
    ("create + fsync, 16 threads", "fsync16", False, 2.5),
    ("append 4 KiB + fsync, 16 threads", "append-fsync16", False, 2.5),
]


def make_tree(path, files, seed=1):
    """A tar of a tree like one of sources: about 20 files a directory, 10 KiB each on average, most of them small."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as tmp:
        for n in range(files):
            folder = Path(tmp) / "tree" / f"part-{n // 400}" / f"module-{n // 20}"
            folder.mkdir(parents=True, exist_ok=True)
            words = rng.choices(["let", "return", "struct", "0x7f", "the", "of", "\n", "{", "}"], k=int(rng.lognormvariate(6.4, 1.3)))
            (folder / f"file-{n}.c").write_text(" ".join(words))
        with tarfile.open(path, "w") as tar:
            tar.add(Path(tmp) / "tree", "tree")


class Programs:
    """Real programs: each takes the directory to work in, and gives what to run, prepared outside of the time."""

    def __init__(self, tar, kvfs, work):
        self.tar, self.kvfs, self.repository = tar, kvfs, work / "repository.git"
        tree = work / "tree-of-repository"
        tree.mkdir()
        sh("tar", "xf", tar, "-C", tree)
        git = ["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "-C", tree]
        sh("git", "init", "-q", tree)
        sh(*git, "add", "-A")
        sh(*git, "commit", "-qm", "all")
        sh("git", "clone", "-q", "--bare", tree, self.repository)
        shutil.rmtree(tree)

    def untar(self, fs):
        remove(fs.dir / "tree")
        return lambda: sh("tar", "xf", self.tar, "-C", fs.dir)

    def remove_tree(self, fs):
        if not (fs.dir / "tree").exists():
            self.untar(fs)()
        return lambda: sh("rm", "-rf", fs.dir / "tree")

    def kvfs_rm(self, fs):
        if not (fs.dir / "tree").exists():
            self.untar(fs)()
        remove_by = [self.kvfs, "rm"] if isinstance(fs, file_systems.Kvfs) else ["rm", "-rf"]
        return lambda: sh(*remove_by, fs.dir / "tree")

    def kvfs_import(self, fs):
        remove(fs.dir / "tree")
        if isinstance(fs, file_systems.Kvfs):
            return lambda: sh(self.kvfs, "import", fs.dir, self.tar)
        return lambda: sh("tar", "xf", self.tar, "-C", fs.dir)

    def copy(self, fs):
        if not (fs.dir / "tree").exists():
            self.untar(fs)()
        remove(fs.dir / "copy")
        return lambda: sh("cp", "-a", fs.dir / "tree", fs.dir / "copy")

    def rsync(self, fs):
        if not shutil.which("rsync"):
            return None
        if not (fs.dir / "tree").exists():
            self.untar(fs)()
        remove(fs.dir / "synced")
        return lambda: sh("rsync", "-a", fs.dir / "tree", fs.dir / "synced")

    def clone(self, fs):
        remove(fs.dir / "clone")
        return lambda: sh("git", "clone", "-q", "--no-hardlinks", self.repository, fs.dir / "clone")

    def status(self, fs):
        if not (fs.dir / "clone").exists():
            self.clone(fs)()
        look = ["git", "-C", fs.dir / "clone", "status", "--short"]
        sh(*look)
        return lambda: sh(*look)

    def gc(self, fs):
        if not (fs.dir / "clone").exists():
            self.clone(fs)()
        return lambda: sh("git", "-C", fs.dir / "clone", "gc", "-q")

    def build(self, fs):
        remove(fs.dir / "build")
        source = fs.dir / "build"
        source.mkdir()
        for n in range(40):
            body = "".join(f"int f{n}_{i}(int x) {{ return x * {i} + {n}; }}\n" for i in range(200))
            (source / f"m{n}.c").write_text("#include <stdio.h>\n#include <stdlib.h>\n" + body)
        rule = "all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O1 -c -o $@ $<\n"
        (source / "Makefile").write_text(rule)
        return lambda: sh("make", "-s", "-j2", "-C", source)

    def sqlite(self, fs, journal):
        path = fs.dir / "rows.sqlite"
        for old in fs.dir.glob("rows.sqlite*"):
            old.unlink()
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(f"pragma journal_mode={journal}")
        db.execute("pragma synchronous=full")
        db.execute("create table t (k integer primary key, v text)")

        def run():
            for n in range(1000):
                db.execute("insert into t values (?, ?)", (n, "v" * 100))
            db.close()

        return run

    def pgbench(self, fs):
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not binaries or fs.name.startswith("memory"):
            return None
        data, sockets = fs.dir / "pg", fs.work / "pg-sockets"
        remove(data)
        for folder in (data, sockets):
            folder.mkdir(exist_ok=True)
            shutil.chown(folder, "postgres")
        for folder in [fs.dir, fs.work, fs.work.parent]:
            folder.chmod(0o755)
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        at = binaries[-1]
        sh(*as_postgres, at / "initdb", "-D", data, "--no-sync", cwd="/")
        start = f"-c listen_addresses='' -c unix_socket_directories={sockets}"
        sh(*as_postgres, at / "pg_ctl", "-D", data, "-w", "-l", sockets / "log", "-o", start, "start", cwd="/")
        bench = [*as_postgres, at / "pgbench", "-h", sockets]
        sh(*bench, "-q", "-i", "-s", "2", "postgres", cwd="/")

        def run():
            sh(*bench, "-c", "4", "-j", "2", "-t", "500", "postgres", cwd="/")

        run.after = lambda: sh(*as_postgres, at / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop", cwd="/")
        return run

    def cases(self):
        """(name, what prepares it, aim)"""
        return [
            ("tar x", self.untar, 0.6),
            ("cp -a", self.copy, None),
            ("rsync -a", self.rsync, None),
            ("rm -rf", self.remove_tree, 0.5),
            ("kvfs import; tar x elsewhere", self.kvfs_import, 5),
            ("kvfs rm; rm -rf elsewhere", self.kvfs_rm, 5),
            ("git clone", self.clone, 0.7),
            ("git status, warm", self.status, 0.95),
            ("git gc", self.gc, None),
            ("make of 40 C files", self.build, 0.95),
            ("SQLite inserts, WAL", lambda fs: self.sqlite(fs, "wal"), 1.5),
            ("SQLite inserts, rollback journal", lambda fs: self.sqlite(fs, "delete"), None),
            ("pgbench, 4 clients", self.pgbench, 1.0),
        ]


def remove(path):
    if path.exists():
        sh("rm", "-rf", path)


def busy_share(seconds):
    """How much of the machine others use, over so many seconds."""

    def read():
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]

    (all_before, idle_before), _ = read(), time.sleep(seconds)
    all_after, idle_after = read()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def wait_for_quiet(limit):
    """Waits until the machine is at most 10 % busy, `limit` seconds at most; gives how busy it is then."""
    until = time.monotonic() + limit
    while (busy := busy_share(0.5)) > 0.1 and time.monotonic() < until:
        time.sleep(0.5)
    return busy


def client_cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def measured(fs, run):
    """Runs a case; what it took."""
    requests, daemon = fs.requests(), fs.daemon_cpu()
    client, begun = client_cpu(), time.perf_counter()
    said = run()
    seconds, client = time.perf_counter() - begun, client_cpu() - client
    daemon = fs.daemon_cpu() - daemon
    difference = {kind: n - requests.get(kind, 0) for kind, n in fs.requests().items() if n > requests.get(kind, 0)}
    return said, {"seconds": seconds, "client": client, "daemon": daemon, "requests": difference}


def run_operation(a, fs, case, cold):
    def bench():
        return sh(a.kvfs, "bench", fs.dir, "--case", case, "--files", a.files, "--mib", a.mib, "--keep", "--json")

    said, result = measured(fs, bench)
    (timing,) = json.loads(said)
    # Its own time: without the start of the program and what it prepares.
    result.update(seconds=timing["seconds"], ops=timing["ops"])
    return result


def prepare_operation(a, fs, case, cold):
    """What a case reads must be there before the caches are dropped; and what is looked at a second time must have been once."""
    content = {"read": "create4k", "readdir-stat": "create", "stat": "create", "unlink": "create", "rename": "create"}
    large = fs.dir / "kvfs-bench" / "large"
    first = []
    if case in content:
        first = [content[case]] + ([case] if not cold and case in ("stat", "read") else [])
    elif case in ("seq-read", "rand-read", "rand-write", "poke") and not large.exists():
        first = ["seq-write"]
    elif case == "rmdir":
        first = ["mkdir"]
    for step in first:
        sh(a.kvfs, "bench", fs.dir, "--case", step, "--files", a.files, "--mib", a.mib, "--keep")
    if cold:
        fs.remount_cold()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--kvfs", required=True, help="the kvfs program, a release build")
    p.add_argument("--memory", help="the example memory_mount of kvfs-fuse, a release build: the ceiling of the transport")
    p.add_argument("--out", help="where the table goes; the raw lines and the picture go beside it")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--program-rounds", type=int, help="rounds of the programs (default: as many)")
    p.add_argument("--files", type=int, default=10_000)
    p.add_argument("--mib", type=int, default=256)
    p.add_argument("--tree", type=int, default=20_144, help="files in the tree of the programs")
    p.add_argument("--size", default="4G", help="size of the images of the others")
    p.add_argument("--dir", help="where all of them lie (default: a temporary directory)")
    p.add_argument("--systems", default="kvfs,kvfs-uring,kvfs-root,kvfs-writeback,ext4,btrfs,xfs,bindfs,memory,memory-uring,memory-root")
    p.add_argument("--cases", help="a regular expression: only cases whose names it is found in")
    p.add_argument("--wait", type=float, default=30, help="seconds to wait for a quiet machine before each case")
    a = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench_files: making and mounting file systems needs root")
    a.kvfs = str(Path(a.kvfs).resolve())
    a.memory = a.memory and str(Path(a.memory).resolve())
    wanted = re.compile(a.cases or "")
    lines, left_out = [], {}
    with tempfile.TemporaryDirectory(prefix="kvfs-bench-", dir=a.dir) as tmp:
        work, systems = Path(tmp), []
        work.chmod(0o755)
        try:
            tar = work / "tree.tar"
            make_tree(tar, a.tree)
            programs = Programs(tar, a.kvfs, work)
            for name in a.systems.split(","):
                try:
                    systems.append(file_systems.make(name, work, a.size, a.kvfs, a.memory))
                except (OSError, subprocess.CalledProcessError) as e:
                    left_out[name] = (getattr(e, "stderr", None) or str(e)).strip()
            for round_ in range(a.rounds):
                for name, case, cold, _ in OPERATIONS:
                    if not wanted.search(name):
                        continue
                    for fs in systems[round_ % len(systems) :] + systems[: round_ % len(systems)]:
                        if cold and not fs.keeps:
                            continue
                        busy = wait_for_quiet(a.wait)
                        prepare_operation(a, fs, case, cold)
                        result = run_operation(a, fs, case, cold)
                        lines.append({"round": round_, "case": name, "system": fs.name, "busy": busy, **result})
                    print(f"round {round_ + 1}/{a.rounds}: {name}", file=sys.stderr)
                for name, prepare, _ in programs.cases():
                    if not wanted.search(name) or round_ >= (a.program_rounds or a.rounds):
                        continue
                    for fs in systems[round_ % len(systems) :] + systems[: round_ % len(systems)]:
                        busy = wait_for_quiet(a.wait)
                        try:
                            run = prepare(fs)
                            if run is None:
                                continue
                            # What the preparation has left dirty is not the case's.
                            sh("sync")
                            _, result = measured(fs, run)
                            getattr(run, "after", lambda: None)()
                        except subprocess.CalledProcessError as e:
                            left_out[f"{name} on {fs.name}"] = e.stderr.strip().splitlines()[-1] if e.stderr.strip() else str(e)
                            continue
                        lines.append({"round": round_, "case": name, "system": fs.name, "busy": busy, "ops": 1, **result})
                    print(f"round {round_ + 1}/{a.rounds}: {name}", file=sys.stderr)
        finally:
            for fs in systems:
                fs.remove()
    aims = {name: aim for name, _, _, aim in OPERATIONS} | {name: aim for name, _, aim in programs.cases()}
    text = bench_files_report.report(a, lines, aims, [fs.name for fs in systems], left_out)
    print(text)
    if a.out:
        out = Path(a.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
        out.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        out.with_suffix(".svg").write_text(bench_files_report.picture(lines, aims, [fs.name for fs in systems]))


if __name__ == "__main__":
    main()
