#!/usr/bin/env python3
"""The commands that work on whole trees against those of the system: interleaved rounds, medians,
ranges.

    scripts/bench_commands.py DIRECTORY [--kvfs PROGRAM] [--rounds 7] [--only rm,imports,walks]
    scripts/bench_commands.py DIRECTORY [--kvfs PROGRAM] [--rounds 7] --before PROGRAM

DIRECTORY is on the file system to compare with; the store is a file in it. The tree: 20,000 files
of 10 KB on average in 1,000 directories. Before each measurement is a sync(1) of everything. Load
of the machine is shown, since both sides suffer from it, but not alike.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import time

FILES, DIRECTORIES = 20_000, 1_000
SIZES = [300, 1_000, 4_000, 8_000, 16_000, 31_000]


def make_tree(at):
    rnd = random.Random(1)
    data = rnd.randbytes(1 << 20)
    for d in range(DIRECTORIES):
        directory = at / f"d{d // 32:02}" / f"e{d:03}"
        directory.mkdir(parents=True)
        for n in range(FILES // DIRECTORIES):
            size, start = rnd.choice(SIZES), rnd.randrange(1 << 19)
            (directory / f"file-{n:02}").write_bytes(data[start : start + size])


class Bench:
    def __init__(self, args):
        self.kvfs, self.rounds = args.kvfs, args.rounds
        self.top = pathlib.Path(args.directory).resolve() / "bench-commands"
        self.top.mkdir()
        self.store, self.mnt, self.source = (
            self.top / "s.kvfs",
            self.top / "mnt",
            self.top / "source",
        )
        self.tar, self.copy = self.top / "source.tar", self.top / "copy"
        self.mnt.mkdir()
        make_tree(self.source)
        self.run("tar", "cf", self.tar, "-C", self.top, "source")

    def run(self, *words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def timed(self, *words):
        os.sync()
        began = time.perf_counter()
        self.run(*words)
        return time.perf_counter() - began

    def mount(self):
        self.run(self.kvfs, "create", self.store)
        self.run(self.kvfs, "mount", self.store, self.mnt)

    def umount(self):
        self.run(self.kvfs, "umount", self.mnt)
        self.store.unlink()

    def compare(self, title, rounds):
        """`rounds` yields (theirs, ours), seconds."""
        theirs, ours = zip(*rounds)
        show = lambda all: (
            f"{statistics.median(all) * 1e3:.0f} ms ({min(all) * 1e3:.0f} to {max(all) * 1e3:.0f})"
        )
        ratio = statistics.median(a / b for a, b in zip(theirs, ours))
        print(f"| {title} | {show(theirs)} | {show(ours)} | {ratio:.1f} |", flush=True)

    def rm(self):
        def rounds(known):
            for _ in range(self.rounds):
                self.run("cp", "-a", self.source, self.copy)
                self.run(self.kvfs, "clone-tree", self.mnt / "source", self.mnt / "copy")
                if known:
                    self.run("find", self.mnt / "copy", "-size", "+1G")
                theirs = self.timed("rm", "-rf", self.copy)
                yield theirs, self.timed(self.kvfs, "rm", self.mnt / "copy")

        self.mount()
        self.run("cp", "-a", self.source, self.mnt / "source")
        self.compare("`rm -rf`, `kvfs rm`", rounds(False))
        self.compare("the same of a tree that the kernel has cached", rounds(True))
        self.umount()

    def imports(self):
        def rounds(mounted):
            """(tar x, tar x and a sync, dd with an fsync, ours), seconds."""
            for n in range(self.rounds):
                self.copy.mkdir()
                theirs = self.timed("tar", "xf", self.tar, "-C", self.copy)
                began = time.perf_counter()
                self.run("sync", "-f", self.copy)
                synced = theirs + time.perf_counter() - began
                shutil.rmtree(self.copy)
                bytes_alone = self.timed(
                    "dd", f"if={self.tar}", f"of={self.copy}", "bs=1M", "conv=fsync"
                )
                self.copy.unlink()
                if mounted:
                    ours = self.timed(self.kvfs, "import", self.mnt / "copy", self.tar)
                    self.run(self.kvfs, "rm", self.mnt / "copy")
                else:
                    self.run(self.kvfs, "create", self.store)
                    ours = self.timed(self.kvfs, "import", self.store, self.tar)
                    self.store.unlink()
                yield theirs, synced, bytes_alone, ours

        def compare(where, rounds):
            theirs = ["`tar x`", "`tar x` and a `sync`", "the tar file by `dd` and an `fsync`"]
            *others, ours = zip(*rounds)
            for what, other in zip(theirs, others):
                self.compare(f"{what}, `kvfs import` into a {where}", zip(other, ours))

        compare("store that is not mounted", rounds(False))
        self.mount()
        compare("mounted store", rounds(True))
        self.umount()

    def builds(self, before):
        """Imports by two builds in turn, each with a daemon of its own on a new store: seconds,
        and what both sides take of processors."""

        def spent():
            used = os.times()
            return used.children_user + used.children_system

        def one(kvfs, source):
            self.run(kvfs, "create", self.store)
            self.run(kvfs, "mount", self.store, self.mnt)
            daemon = pathlib.Path(
                "/proc",
                str(json.loads(self.run(kvfs, "stat", self.mnt, "--json"))["daemon"]["pid"]),
                "stat",
            )
            ticks = lambda: (
                sum(map(int, daemon.read_text().rpartition(")")[2].split()[11:13]))
                / os.sysconf("SC_CLK_TCK")
            )
            client, served = spent(), ticks()
            seconds = self.timed(kvfs, "import", self.mnt / "copy", source)
            client, served = spent() - client, ticks() - served
            self.run(kvfs, "umount", self.mnt)
            self.store.unlink()
            return seconds, client, served

        for title, source in (("a tar file", self.tar), ("a directory", self.source)):
            rounds = []
            for n in range(self.rounds):
                pair = [
                    one(kvfs, source)
                    for kvfs in ((before, self.kvfs) if n % 2 else (self.kvfs, before))
                ]
                rounds.append(pair if n % 2 else pair[::-1])
            self.compare(
                f"`kvfs import` of {title} into a mounted store, before and after",
                [(a[0], b[0]) for a, b in rounds],
            )
            for at, who in ((1, "command"), (2, "daemon")):
                theirs, ours = ([one[at] * 1e3 for one in side] for side in zip(*rounds))
                print(
                    f"| processor time of the {who} | {statistics.median(theirs):.0f} ms "
                    f"| {statistics.median(ours):.0f} ms | |",
                    flush=True,
                )

    def walks(self):
        def rounds(theirs, ours):
            for _ in range(self.rounds):
                yield self.timed(*theirs), self.timed(self.kvfs, *ours)

        self.mount()
        self.run(self.kvfs, "import", self.mnt / "copy", self.tar)
        self.compare(
            "`du -s` with all in the kernel's cache, `kvfs du`",
            rounds(["du", "-s", self.source], ["du", self.mnt / "copy"]),
        )
        conditions = ["-name", "file-1*", "-size"]
        self.compare(
            "`find -name -size`, `kvfs find`",
            rounds(
                ["find", self.source, *conditions, "+9k"],
                ["find", self.mnt / "copy", *conditions, "+9K"],
            ),
        )
        self.umount()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory")
    parser.add_argument("--kvfs", default="kvfs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="rm,imports,walks")
    parser.add_argument(
        "--before", help="another build, whose imports are compared with those of --kvfs"
    )
    args = parser.parse_args()
    bench = Bench(args)
    try:
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        if args.before:
            bench.builds(args.before)
        else:
            for name in args.only.split(","):
                getattr(bench, name)()
        print(f"load {os.getloadavg()[0]:.1f}")
    finally:
        subprocess.run([bench.kvfs, "umount", "--force", str(bench.mnt)], capture_output=True)
        shutil.rmtree(bench.top)


if __name__ == "__main__":
    main()
