#!/usr/bin/env python3
"""Compares two ways in which a mount can work.

usage: modes.py KVFS TREE [ROUNDS [writes|transports [BUSY]]]

writes:     writes go through at once (the default), or the kernel gathers them (-o writeback)
transports: requests come over /dev/fuse, or over io_uring

KVFS is the program, TREE a git repository to unpack, clone and read. Both modes run in turn in each
round, on a new store each; the medians of the rounds are printed, and their quotient, and how busy
the machine was. BUSY endless loops run at the same time. Needs root, git, tar.
"""

import concurrent.futures
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

PAIRS = {
    "writes": {"through": "nowriteback", "gathered": "writeback"},
    "transports": {"/dev/fuse": "transport=device", "io_uring": "transport=uring"},
}


def run(*words, **more):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, **more)


def untar(mount, archive, tree):
    (mount / "tree").mkdir()
    run("tar", "-xf", archive, "-C", mount / "tree")


def clone(mount, archive, tree):
    run("git", "clone", "-q", "--no-hardlinks", tree, mount / "clone")


def append_open(mount, archive, tree):
    with open(mount / "log", "ab", buffering=0) as log:
        for _ in range(20000):
            log.write(b"x" * 100)


def append_close(mount, archive, tree):
    for _ in range(4000):
        with open(mount / "log2", "ab", buffering=0) as log:
            log.write(b"x" * 100)


def sqlite_one(mount, archive, tree):
    db = sqlite3.connect(mount / "one.db")
    with db:
        db.execute("create table t (k integer primary key, v text)")
        db.executemany("insert into t values (?, ?)", ((i, "v" * 100) for i in range(50000)))
    db.close()


def sqlite_many(mount, archive, tree):
    db = sqlite3.connect(mount / "many.db", isolation_level=None)
    db.execute("create table t (k integer primary key, v text)")
    for i in range(200):
        db.execute("insert into t values (?, ?)", (i, "v" * 100))
    db.close()


def rename_over(mount, archive, tree):
    for i in range(2000):
        with open(mount / "config.new", "wb", buffering=0) as new:
            new.write(b"%d" % i * 500)
        os.rename(mount / "config.new", mount / "config")


def create(mount, archive, tree):
    (mount / "many").mkdir()
    for i in range(4000):
        with open(mount / "many" / str(i), "wb", buffering=0) as new:
            new.write(b"x" * 4096)


def stream(mount, archive, tree):
    with open(mount / "stream", "wb", buffering=0) as new:
        for _ in range(256):
            new.write(b"x" * (1 << 20))
        os.fsync(new.fileno())


def stream_4k(mount, archive, tree):
    with open(mount / "stream4k", "wb", buffering=0) as new:
        for _ in range(16384):
            new.write(b"x" * 4096)
        os.fsync(new.fileno())


def read(mount, archive, tree):
    with open(mount / "stream", "rb", buffering=0) as old:
        os.posix_fadvise(old.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while old.read(1 << 20):
            pass


def synced(path, times):
    for i in range(times):
        with open(f"{path}-{i}", "wb", buffering=0) as new:
            new.write(b"x" * 4096)
            os.fsync(new.fileno())


def sync_alone(mount, archive, tree):
    synced(mount / "alone", 300)


def sync_together(mount, archive, tree):
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: synced(mount / f"together-{n}", 40), range(16)))


def look(mount, archive, tree):
    for i in range(3000):
        os.statvfs(mount)


def unlink(mount, archive, tree):
    for i in range(4000):
        os.unlink(mount / "many" / str(i))


def remove(mount, archive, tree):
    run("rm", "-rf", mount / "tree", mount / "clone")


WORK = {
    "untar the tree": untar,
    "git clone of it": clone,
    "20,000 appends of 100 bytes, one open file": append_open,
    "4,000 times open, append 100 bytes, close": append_close,
    "SQLite: 50,000 inserts in one transaction": sqlite_one,
    "SQLite: 200 transactions of one insert": sqlite_many,
    "2,000 times write a file, rename it over another": rename_over,
    "4,000 files of 4 KiB": create,
    "256 MiB in writes of 1 MiB, fsync": stream,
    "64 MiB in writes of 4 KiB, fsync": stream_4k,
    "256 MiB read, uncached": read,
    "300 times create, write 4 KiB, fsync": sync_alone,
    "640 times the same, 16 threads": sync_together,
    "3,000 times statfs": look,
    "unlink of the 4,000 files": unlink,
    "rm -rf of the trees": remove,
}


def main():
    kvfs, tree = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    pair = sys.argv[4] if len(sys.argv) > 4 else "writes"
    modes, busy = PAIRS[pair], int(sys.argv[5]) if len(sys.argv) > 5 else 0
    times = {name: {mode: [] for mode in modes} for name in WORK}
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        archive, mount = directory / "tree.tar", directory / "mount"
        run("git", "-C", tree, "archive", "-o", archive, "HEAD")
        mount.mkdir()
        for round in range(rounds):
            for mode in sorted(modes, reverse=round % 2 == 0):
                store = directory / "store.kvfs"
                run(kvfs, "create", store)
                run(kvfs, "mount", "-o", modes[mode], store, mount)
                loops = [
                    subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    for _ in range(busy)
                ]
                try:
                    for name, work in WORK.items():
                        begun = time.monotonic()
                        work(mount, archive, tree)
                        times[name][mode].append(time.monotonic() - begun)
                finally:
                    for loop in loops:
                        loop.kill()
                        loop.wait()
                    run(kvfs, "umount", mount)
                store.unlink()
            load.append(os.getloadavg()[0])
    one, other = modes
    print(f"load {min(load):.1f} to {max(load):.1f}, {busy} loops of ours among it\n")
    print(f"| | {one}, s | {other}, s | {other} ÷ {one} |\n|---|---:|---:|---:|")
    for name, seen in times.items():
        first, second = (statistics.median(seen[mode]) for mode in modes)
        print(f"| {name} | {first:.3f} | {second:.3f} | {second / first:.2f} |")


if __name__ == "__main__":
    main()
