#!/usr/bin/env python3
"""What a store at the other end of a wire costs, next to ext4 on a network block device and to the
store on this machine: bytes and requests over the wire, and times at some round trips.

    scripts/bench_split.py target/release/kvfs [STAGE...]

Stages, all by default: names (create, rename and unlink of names), programs (real programs and
KEVIN's personalities of Filebench), times (at each round trip), begin (a mount of a large store),
commit (of a build). Sizes come from the environment: SPLIT_NAMES (20000; several by commas),
SPLIT_FILES of the tree (2000), SPLIT_ROUNDS (3), SPLIT_STORE, the files of the large store
(500000), SPLIT_TRIPS in milliseconds (0.05,0.2,2), SPLIT_DIR, where to work, and SPLIT_RECORD, a
file to which each result is added as a line of JSON.

The systems take turns in each round; tables have medians, in Markdown, on standard output. Caches
are dropped by mounting anew, at this end alone. Bytes are those between the two programs both ways,
headers of requests and answers included, those of TCP not. Requests are counted where they go over
the wire; those of ext4 in brackets are what they were if none had more than 128 KiB. Needs root,
FUSE, nbdkit, nbdfuse (Debian: libnbd-bin), git and rsync."""

import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench_trees import make_tar
from wire_systems import Here, Nbd, Served, sh

sys.path.insert(0, str(Path(__file__).parent.parent / "bench/papers"))
import workloads

KVFS = os.path.abspath(sys.argv[1])
NAMES = [int(n) for n in os.environ.get("SPLIT_NAMES", "20000").split(",")]
FILES = int(os.environ.get("SPLIT_FILES", "2000"))
ROUNDS = int(os.environ.get("SPLIT_ROUNDS", "3"))
STORE = int(os.environ.get("SPLIT_STORE", "500000"))
TRIPS = [float(n) for n in os.environ.get("SPLIT_TRIPS", "0.05,0.2,2").split(",")]
DIRECTORIES, SEED = 100, 1
# Round trips at which requests in line are told from the time that they take, ms.
FAR, FARTHER = 40, 120
# Files and loops of each process: the bytes are of some seconds.
PERSONALITIES = {
    "varmail": ("files=1000", 50),
    "fileserver": ("files=500", 8),
    "webserver": ("files=1000", 20),
    "webproxy": ("files=2000", 20),
    "oltp": ("files=8", 5),
}
# What the paper says: bytes in its text are those of names alone; of programs it has rates.
THEIRS = {
    "`rsync -a`": "rate above 1",
    "`git clone`": "rate above 1",
    "`make`": "rate about 1",
    "varmail": "rate 1.37",
    "oltp": "rate above 1",
    "fileserver": "rate 0.77",
    "webserver": "rate 0.90",
    "webproxy": "rate above 1",
}


class Results:
    """What each step took, of each system, round by round."""

    def __init__(self):
        self.all = {}

    def add(self, table, step, system, result):
        key = (table, step, system)
        self.all.setdefault(key, []).append(result)
        line = {"table": table, "step": step, "system": system, **result}
        print(json.dumps(line), file=sys.stderr, flush=True)
        if record := os.environ.get("SPLIT_RECORD"):
            with open(record, "a") as file:
                file.write(json.dumps(line) + "\n")

    def median(self, table, step, system, what):
        found = [r[what] for r in self.all.get((table, step, system), []) if what in r]
        return statistics.median(found) if found else None

    def steps(self, table):
        return list(dict.fromkeys(step for of, step, _ in self.all if of == table))


def counted(system, work, until=None):
    """What `work` has sent, until the other end has it, and how long it took."""
    before, begun = system.wire.counts(), time.monotonic()
    work()
    result = {"seconds": time.monotonic() - begun}
    (until or system.settle)()
    return {**result, **system.wire.since(before)}


def with_system(kind, work, does):
    system = kind(work, KVFS)
    try:
        return does(system)
    finally:
        system.remove()


# Names.


def names(work, results, count):
    """Each step on one mount, and then with a mount of its own."""
    each = count // DIRECTORIES
    steps = {
        "create": workloads.names_create,
        "rename": workloads.names_rename,
        "unlink": workloads.names_unlink,
    }
    for kind in (Served, Nbd):

        def one_mount(system):
            whole = system.wire.counts()
            for step, does in steps.items():
                top = system.dir / "names"
                made = partial(does, top, DIRECTORIES, each, SEED)
                took = counted(system, made, system.sync)
                results.add(f"{count:,} names, one mount", step, system.name, took)
            system.close()
            what, took = "all three, until unmounted", system.wire.since(whole)
            results.add(f"{count:,} names, one mount", what, system.name, took)

        def mounts(system):
            for step, does in steps.items():
                if step != "create":
                    system.mount()
                top = system.dir / "names"
                made = partial(does, top, DIRECTORIES, each, SEED)
                took = counted(system, made, system.close)
                results.add(f"{count:,} names, a mount each", step, system.name, took)

        with_system(kind, work, one_mount)
        with_system(kind, work, mounts)


# Programs.


def git(*words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "gc.auto=0"]
    return sh("git", *who, "-c", "safe.directory=*", *words)


class Sources:
    """A tree like one of sources, as a tar, a directory and a repository, outside of what is
    measured."""

    def __init__(self, work):
        self.tar, self.repository = work / "tree.tar", work / "repository.git"
        make_tar(self.tar, FILES)
        sh("tar", "xf", self.tar, "-C", work)
        self.tree = work / "tree"
        git("init", "-q", self.tree)
        git("-C", self.tree, "add", "-A")
        git("-C", self.tree, "commit", "-qm", "all")
        git("clone", "-q", "--bare", self.tree, self.repository)
        shutil.rmtree(self.tree / ".git")

    def untar(self, system):
        sh("tar", "xf", self.tar, "-C", system.dir)

    def rsync(self, system):
        sh("rsync", "-a", self.tree, system.dir / "synced")

    def clone(self, system):
        git("clone", "-q", "--no-hardlinks", self.repository, system.dir / "clone")

    def prepare_status(self, system):
        """An index whose files are older than it, so that none has to be read."""
        # The clock itself, whose second must be another one.
        time.sleep(1.1)
        git("-C", system.dir / "clone", "reset", "-q")


def status(system):
    git("-C", system.dir / "clone", "status", "--porcelain")


def sqlite(system, journal="wal"):
    db = sqlite3.connect(system.dir / f"{journal}.sqlite", isolation_level=None)
    db.execute(f"pragma journal_mode={journal}")
    db.execute("pragma synchronous=full")
    db.execute("create table t (k integer primary key, v text)")
    for n in range(1000):
        db.execute("insert into t values (?, ?)", (n, "v" * 100))
    db.close()


def make_build(system):
    source = system.dir / "build"
    source.mkdir()
    for n in range(10):
        body = "".join(f"int f{n}_{i}(int x) {{ return x * {i} + {n}; }}\n" for i in range(200))
        (source / f"m{n}.c").write_text("#include <stdio.h>\n#include <stdlib.h>\n" + body)
    rule = "all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O1 -c -o $@ $<\n"
    (source / "Makefile").write_text(rule)


def build(system):
    sh("make", "-s", "-C", system.dir / "build")


def personality(system, name, what, loops=()):
    program = [sys.executable, Path(__file__).with_name("bench_personalities.py"), name]
    sh(*program, system.dir / name, what, *loops, PERSONALITIES[name][0])


def programs(work, results, sources):
    def take(system, what, does):
        results.add("programs", what, system.name, counted(system, does))

    for kind in (Served, Nbd):

        def steps(system):
            take(system, "`tar x`", lambda: sources.untar(system))
            take(system, "`rsync -a`", lambda: sources.rsync(system))
            take(system, "`git clone`", lambda: sources.clone(system))
            for journal, title in (("wal", "WAL"), ("delete", "rollback journal")):
                take(system, f"SQLite, 1,000 inserts, {title}", partial(sqlite, system, journal))
            make_build(system)
            system.settle()
            take(system, "`make`", lambda: build(system))
            sources.prepare_status(system)
            system.remount()
            take(system, "`git status`, cold", lambda: status(system))
            system.remount()
            tree = system.dir / "tree"
            take(system, "`find -size`, cold", lambda: sh("find", tree, "-size", "+9k"))
            system.remount()
            take(system, "`grep -r`, cold", lambda: grep(tree))
            take(system, "`rm -rf`", lambda: sh("rm", "-rf", tree))
            for name, (_, loops) in PERSONALITIES.items():
                personality(system, name, "prepare")
                system.settle()
                take(system, name, partial(personality, system, name, "loops", (str(loops),)))

        with_system(kind, work, steps)


def grep(tree):
    # It finds nothing, and says so by its exit code.
    subprocess.run(["grep", "-r", "no such words", tree], stdout=subprocess.DEVNULL, check=False)


# Times.


def times(work, results, sources):
    count = NAMES[0]
    for trip in TRIPS:
        for kind in (Served, Nbd, Here):

            def steps(system, trip=trip):
                def take(what, does):
                    begun = time.monotonic()
                    before = system.wire.counts() if system.wire else None
                    does()
                    took = {"seconds": time.monotonic() - begun}
                    if before:
                        took.update(system.wire.since(before))
                    system.close()
                    took["durable"] = time.monotonic() - begun
                    system.set_round_trip(0)
                    system.mount()
                    system.set_round_trip(trip)
                    results.add(f"{trip:g} ms", what, system.name, took)

                system.set_round_trip(trip)
                top, tree = system.dir / "names", system.dir / "tree"
                each = count // DIRECTORIES
                take("create", lambda: workloads.names_create(top, DIRECTORIES, each, SEED))
                take("`tar x`", lambda: sources.untar(system))
                system.set_round_trip(0)
                sources.clone(system)
                sources.prepare_status(system)
                system.remount()
                system.set_round_trip(trip)
                take("`grep -r`, cold", lambda: grep(tree))
                take("`find`, cold", lambda: sh("find", tree, "-size", "+9k"))
                take("`git status`, cold", lambda: status(system))
                system.set_round_trip(0)

            with_system(kind, work, steps)


# Requests in line.


def in_line(system, does, undo):
    """How many round trips `does` waits for, told from its times at two of them, and what it
    sends."""
    seconds = []
    for trip in (FAR, FARTHER):
        system.set_round_trip(trip)
        before, begun = system.wire.counts(), time.monotonic()
        does()
        seconds.append(time.monotonic() - begun)
        took = system.wire.since(before)
        system.set_round_trip(0)
        undo()
    took["rounds"] = (seconds[1] - seconds[0]) * 1000 / (FARTHER - FAR)
    return took


def begin(work, results):
    """A transaction on a store of many files, to the first `ls`."""

    def steps(system):
        sh(KVFS, "commit", system.dir)
        system.stop()
        (system.work / "far").unlink(missing_ok=True)
        (system.work / "near").unlink()
        sh(KVFS, "mount", system.store, system.dir)
        per = 50
        for n in range(STORE // per):
            if n % 100 == 0:
                os.mkdir(f"{system.dir}/{n // 100}")
            os.mkdir(f"{system.dir}/{n // 100}/{n}")
            for m in range(per):
                os.close(os.open(f"{system.dir}/{n // 100}/{n}/{m}", os.O_CREAT | os.O_WRONLY))
        sh(KVFS, "umount", system.dir)
        system.serve()

        def abort():
            sh(KVFS, "abort", system.dir)

        for what, listed in (
            ("mount", ["true"]),
            ("mount and `ls`", ["ls", system.dir]),
            ("mount and `ls -l`", ["ls", "-l", system.dir]),
            ("mount and `ls -l` of a directory below", ["ls", "-l", system.dir / "0"]),
        ):

            def first(listed=listed):
                system.mount()
                sh(*listed)

            for _ in range(ROUNDS):
                results.add("begin", what, system.name, in_line(system, first, abort))
        system.mount()

    with_system(Served, work, steps)


def commit(work, results):
    """The commit of a build, whose last bytes may be on their way before it."""

    def steps(system):
        make_build(system)
        system.close()
        for title, synced in (("right after it", False), ("when all is sent", True)):
            for _ in range(ROUNDS):

                def prepared(synced=synced):
                    system.mount()
                    drawn = random.random()
                    for file in (system.dir / "build").glob("*.c"):
                        file.write_text(file.read_text() + f"/* {drawn} */\n")
                    build(system)
                    if synced:
                        system.settle()

                prepared()
                what = f"commit of a build, {title}"
                results.add("commit", what, system.name, in_line(system, system.close, prepared))
                system.close()
        system.mount()

    with_system(Served, work, steps)


# The tables.


def ratio(a, b, digits=2):
    return f"{a / b:.{digits}f}" if a is not None and b else "–"


def traffic_table(results, table, title):
    print(f"\n{title}\n")
    theirs = table == "programs"
    more = " the paper, over ext4 |" if theirs else ""
    heads = "| | KVFS, KiB | ext4 on NBD, KiB | ÷ | KVFS, requests | ext4 on NBD, requests | ÷ |"
    print(f"{heads}{more}\n|---|{'---:|' * (7 if theirs else 6)}")
    for step in results.steps(table):

        def both(what, step=step):
            return [results.median(table, step, system, what) for system in ("kvfs", "ext4")]

        (ours, other), (asked, other_asked), (_, pieces) = map(
            both, ("bytes", "requests", "pieces")
        )
        cells = [f"{ours / 1024:,.0f}", f"{other / 1024:,.0f}", f"**{ratio(ours, other)}**"]
        cells += [f"{asked:,.0f}", f"{other_asked:,.0f} ({pieces:,.0f})"]
        cells.append(f"**{ratio(asked, other_asked)}** ({ratio(asked, pieces)})")
        if theirs:
            cells.append(THEIRS.get(step, "–"))
        print(f"| {step} | {' | '.join(cells)} |")


def times_table(results, sizes):
    print(f"\nSeconds, {sizes}; in brackets until it is unmounted and durable:\n")
    print("| | KVFS | ext4 on NBD | KVFS here | rate over ext4 | rate over KVFS here |")
    print("|---|---:|---:|---:|---:|---:|")
    for trip in TRIPS:
        table = f"{trip:g} ms"
        for step in results.steps(table):
            cells, by = [], {}
            for system in ("kvfs", "ext4", "local"):
                by[system] = [
                    results.median(table, step, system, what) for what in ("seconds", "durable")
                ]
                run, durable = by[system]
                cold = step.endswith("cold")
                cells.append(f"{run:.3f}" if cold else f"{run:.3f} ({durable:.3f})")
            for peer in ("ext4", "local"):
                pairs = [ratio(by[peer][n], by["kvfs"][n]) for n in (0, 1)]
                cells.append(f"**{pairs[0]}**" + ("" if cold else f" ({pairs[1]})"))
            print(f"| {step}, {table} | {' | '.join(cells)} |")


def rounds_table(results):
    print("\n| | round trips | requests | bytes to the server | which |\n|---|---:|---:|---:|---|")
    for table in ("begin", "commit"):
        for step in results.steps(table):
            last = results.all[(table, step, "kvfs")][-1]
            rounds, requests, up = (
                results.median(table, step, "kvfs", what) for what in ("rounds", "requests", "up")
            )
            which = ", ".join(f"{n} {kind}" for kind, (n, _) in last["kinds"].items())
            print(f"| {step} | {rounds:.1f} | {requests:.0f} | {up:,.0f} | {which} |")


def main():
    stages = sys.argv[2:] or ["names", "programs", "times", "begin", "commit"]
    needed = ["nbdkit", "nbdfuse", "mkfs.ext4", "git", "rsync", "cc", "make"]
    if missing := [program for program in needed if not shutil.which(program)]:
        sys.exit(f"bench_split: not installed: {', '.join(missing)}")
    work = Path(tempfile.mkdtemp(prefix="kvfs-split-", dir=os.environ.get("SPLIT_DIR")))
    results = Results()
    try:
        sources = Sources(work)
        for _ in range(ROUNDS):
            if "names" in stages:
                for count in NAMES:
                    names(work, results, count)
            if "programs" in stages:
                programs(work, results, sources)
            if "times" in stages:
                times(work, results, sources)
        if "begin" in stages:
            begin(work, results)
        if "commit" in stages:
            commit(work, results)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"Medians of {ROUNDS} rounds.")
    for table in dict.fromkeys(table for table, _, _ in results.all if "names" in table):
        traffic_table(results, table, f"{table}:")
    if "programs" in stages:
        traffic_table(results, "programs", f"Programs, a tree of {FILES:,} files:")
    if "times" in stages:
        times_table(results, f"{NAMES[0]:,} names, a tree of {FILES:,} files")
    if {"begin", "commit"} & set(stages):
        rounds_table(results)


if __name__ == "__main__":
    main()
