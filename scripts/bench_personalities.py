#!/usr/bin/env python3
"""The five personalities of filebench, restated in Python: what each does in a loop, with what its
workload file publishes of sizes and proportions, and fewer files and processes. It is not
filebench: its figures compare file systems with each other in one run, not with figures of
filebench.

    bench_personalities.py NAME DIRECTORY prepare [KEY=NUMBER...]
    bench_personalities.py NAME DIRECTORY run SECONDS [KEY=NUMBER...]
    bench_personalities.py NAME DIRECTORY loops COUNT [KEY=NUMBER...]

`prepare` makes the files. `run` lets the processes go for so long, `loops` lets each go through its
loop so often, which is the same work on every file system; each has its own share of the names in
common directories. Both print as JSON how many operations all of them did: each open, read of a
whole file, write, append, stat, unlink, fsync and close counts as one, as in filebench. A run is of
files that were just prepared. KEY is `files`, `processes`, or `mean` or `appended`: the mean size
of a file or of an append, bytes."""

import json
import math
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

KIB = 1024
DATA = random.Random(1).randbytes(KIB * KIB)


class Share:
    """One process: its names, and how many operations it has done."""

    def __init__(self, personality, directory, me):
        self.rng = random.Random(me)
        mine = [
            made
            for n, made in enumerate(personality.made(directory))
            if n % personality.processes == me
        ]
        self.names = [name for name, _ in mine]
        self.there = [size is not None for _, size in mine]
        self.mean, self.appended, self.log, self.done = (
            personality.mean,
            personality.appended,
            f"{directory}/log",
            0,
        )

    def pick(self, there=True):
        """A file of its own that is there, or is not; another one if there is none such."""
        for _ in range(50):
            n = self.rng.randrange(len(self.names))
            if self.there[n] == there:
                return n
        return n

    def open(self, path, flags):
        self.done += 1
        return os.open(path, flags, 0o644)

    def close(self, f):
        self.done += 1
        os.close(f)

    def write(self, f, size):
        self.done += 1
        os.write(f, DATA[:size])

    def fsync(self, f):
        self.done += 1
        os.fsync(f)

    def read_whole(self, n):
        f = self.open(self.names[n], os.O_RDONLY)
        self.done += 1
        while len(os.read(f, len(DATA))) == len(DATA):
            pass
        self.close(f)

    def create(self):
        n = self.pick(there=False)
        self.there[n] = True
        return self.open(self.names[n], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def delete(self):
        n = self.pick()
        if self.there[n]:
            self.done += 1
            os.unlink(self.names[n])
            self.there[n] = False

    def append(self, path, sync=False):
        """At the end of a file."""
        f = self.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.write(f, self.rng.randrange(2 * self.appended) + 1)
        if sync:
            self.fsync(f)
        self.close(f)

    def existing(self):
        n = self.pick()
        if not self.there[n]:
            self.close(self.open(self.names[n], os.O_WRONLY | os.O_CREAT))
            self.there[n] = True
        return n


class Personality:
    # As published: the mean size of a file and of an append. Scaled down: how many files there are,
    # and how many processes.
    mean, appended, files, width, processes = 16 * KIB, 16 * KIB, 400, 1_000_000, 8

    def names(self, directory):
        return [f"{directory}/dir-{n // self.width}/file-{n}" for n in range(self.files)]

    def size(self, rng):
        """Sizes follow a gamma distribution of shape 1.5."""
        return min(int(rng.gammavariate(1.5, self.mean / 1.5)), len(DATA))

    # Four fifths of the files are there at the beginning.
    preallocated = 0.8

    def made(self, directory):
        """Each name, and the size of its file at the beginning, or None. Nothing is looked up, so a
        run begins with nothing in memory when the files are prepared by another mount."""
        rng = random.Random(7)
        for name in self.names(directory):
            yield name, self.size(rng) if rng.random() < self.preallocated else None

    def prepare(self, directory):
        for name, size in self.made(directory):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if size is not None:
                Path(name).write_bytes(DATA[:size])


class Fileserver(Personality):
    """Create and write a file, append to one, read one, delete one, stat one.
    Published: 10,000 files, 50 threads."""

    mean, files, width = 128 * KIB, 200, 20

    def loop(self, s):
        f = s.create()
        s.write(f, self.size(s.rng))
        s.close(f)
        s.append(s.names[s.existing()])
        s.read_whole(s.existing())
        s.delete()
        s.done += 1
        os.stat(s.names[s.existing()])


class Webserver(Personality):
    """Read ten files, append to a log that all share. Published: 1,000 files, 100 threads."""

    width, preallocated = 20, 1

    def loop(self, s):
        for _ in range(10):
            s.read_whole(s.pick())
        s.append(s.log)


class Varmail(Personality):
    """A mail comes, is durable, is read, gets a mark, is read again, all in one directory.
    Published: 1,000 files, 16 threads."""

    processes = 16

    def loop(self, s):
        s.delete()
        f = s.create()
        s.write(f, s.rng.randrange(32 * KIB) + 1)
        s.fsync(f)
        s.close(f)
        n = s.existing()
        s.read_whole(n)
        s.append(s.names[n], sync=True)
        s.read_whole(s.existing())


class Webproxy(Personality):
    """Replace a file, read five, append to a log that all share, all in one directory.
    Published: 10,000 files, 100 threads."""

    def loop(self, s):
        s.delete()
        f = s.create()
        s.write(f, s.rng.randrange(32 * KIB) + 1)
        s.close(f)
        for _ in range(5):
            s.read_whole(s.existing())
        s.append(s.log)


class Oltp(Personality):
    """Reads of 2 KiB at random places of a few data files; ten writes of 2 KiB that are on disk
    when they return for each hundred reads, and a write of 256 KiB to the log for each 3,200.
    Published: 10 data files of 10 MiB, 200 readers, 10 writers."""

    mean, files, preallocated = 2 * KIB * KIB, 8, 1

    def prepare(self, directory):
        for name in [*self.names(directory), f"{directory}/log"]:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(DATA * (self.mean // len(DATA)))

    def loop(self, s):
        if not hasattr(s, "data"):
            s.data = os.open(s.names[0], os.O_RDONLY)
            s.durable = os.open(s.names[0], os.O_WRONLY | os.O_DSYNC)
            s.durable_log = os.open(s.log, os.O_WRONLY | os.O_DSYNC)
            s.loops = 0
        place = lambda: s.rng.randrange(self.mean // (2 * KIB)) * 2 * KIB
        for _ in range(100):
            os.pread(s.data, 2 * KIB, place())
        for _ in range(10):
            os.pwrite(s.durable, DATA[: 2 * KIB], place())
        s.loops += 1
        s.done += 110
        if s.loops % 32 == 0:
            os.pwrite(s.durable_log, DATA[: 256 * KIB], s.loops // 32 % 8 * 256 * KIB)
            s.done += 1


PERSONALITIES = {c.__name__.lower(): c for c in (Fileserver, Webserver, Varmail, Webproxy, Oltp)}


def run(personality, directory, seconds, loops):
    """All processes begin when the last of them is ready, and go on for so long and so often. What
    one has done is in memory that they share."""
    shared = mmap.mmap(-1, 16 * personality.processes)
    ready, gate = os.pipe(), os.pipe()
    children = []
    for me in range(personality.processes):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            os.close(gate[1])
            share = Share(personality, directory, me)
            os.write(ready[1], b".")
            os.close(ready[1])
            # Ends when the parent closes its side.
            os.read(gate[0], 1)
            begun, n = time.perf_counter(), 0
            while n < loops and time.perf_counter() < begun + seconds:
                personality.loop(share)
                n += 1
            struct.pack_into("dd", shared, 16 * me, share.done, time.perf_counter() - begun)
        except BaseException as e:
            print(f"bench_personalities: {e!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(ready[1])
    for _ in children:
        os.read(ready[0], 1)
    os.close(gate[1])
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)
    each = [struct.unpack_from("dd", shared, 16 * me) for me in range(personality.processes)]
    return {"ops": int(sum(done for done, _ in each)), "seconds": max(took for _, took in each)}


def main():
    name, directory, what, *rest = sys.argv[1:]
    personality = PERSONALITIES[name]()
    for word in [word for word in rest if "=" in word]:
        key, value = word.split("=")
        if key not in ("files", "processes", "mean", "appended"):
            sys.exit(f"bench_personalities: {key} cannot be set")
        setattr(personality, key, int(value))
    if what == "prepare":
        personality.prepare(directory)
    elif what == "run":
        print(json.dumps(run(personality, directory, float(rest[0]), math.inf)))
    else:
        print(json.dumps(run(personality, directory, math.inf, int(rest[0]))))


if __name__ == "__main__":
    main()
