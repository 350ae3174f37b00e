#!/usr/bin/env python3
"""Batches from Python: kvfs, rocksdict (RocksDB) and lmdb, each in its own process's store.

    scripts/bench_python.py [--rounds N] [--batches N] [--size N] [--value BYTES]

A batch writes `--size` random keys of 16 bytes with values of `--value` bytes, as one change; a
read gets as many random keys by one call. No batch is synced: rocksdict writes its log to the
kernel at each batch, kvfs within a second, lmdb (`sync=False`) its pages at each commit, without a
log. The stores take turns batch by batch in a random order, so that what else runs on the machine
meets all of them. Each round fills new stores. Printed are the medians of all batches of
all rounds in µs a key, and the means, which contain waits for merges and the disk, as lines of a
table, and the quotients.

Needs `pip install rocksdict lmdb` and the package kvfs (`make python`).
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import kvfs
import lmdb
import rocksdict


class Kvfs:
    def __init__(self, path):
        self.store = kvfs.open(str(path))
        self.keys = self.store["d"]

    def update(self, pairs):
        self.keys.update(pairs)

    def batch(self, pairs):
        with self.store.batch() as batch:
            keys = batch["d"]
            for key, value in pairs.items():
                keys[key] = value

    def read(self, keys):
        return self.keys.get_many(keys)

    def close(self):
        self.store.close()


class Rocks:
    def __init__(self, path):
        self.store = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))

    def update(self, pairs):
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in pairs.items():
            batch.put(key, value)
        self.store.write(batch)

    batch = update

    def read(self, keys):
        return self.store[keys]

    def close(self):
        self.store.close()


class Lmdb:
    def __init__(self, path):
        self.env = lmdb.open(str(path), map_size=1 << 34, sync=False)

    def update(self, pairs):
        with self.env.begin(write=True) as t, t.cursor() as cursor:
            cursor.putmulti(pairs.items())

    def batch(self, pairs):
        with self.env.begin(write=True) as t:
            for key, value in pairs.items():
                t.put(key, value)

    def read(self, keys):
        with self.env.begin() as t, t.cursor() as cursor:
            found = dict(cursor.getmulti(keys))
        return [found.get(key) for key in keys]

    def close(self):
        self.env.close()


WAYS = {"kvfs": Kvfs, "rocksdict": Rocks, "lmdb": Lmdb}
CASES = {
    "update": "a batch in one call",
    "batch": "a batch, key by key",
    "read": "a read of many keys",
}


def one_round(a, directory, noise, times):
    stores = {name: way(directory / name) for name, way in WAYS.items()}
    order = list(stores)
    written = []
    try:
        for _ in range(a.batches):
            for case in ("update", "batch"):
                pairs = {noise.randbytes(16): noise.randbytes(a.value) for _ in range(a.size)}
                written.extend(pairs)
                noise.shuffle(order)
                for name in order:
                    work = getattr(stores[name], case)
                    begin = time.perf_counter()
                    work(pairs)
                    times[case, name].append(time.perf_counter() - begin)
        for _ in range(a.batches):
            keys = noise.sample(written, a.size)
            noise.shuffle(order)
            answers = []
            for name in order:
                work = stores[name].read
                begin = time.perf_counter()
                answers.append(list(work(keys)))
                times["read", name].append(time.perf_counter() - begin)
            assert answers[0] == answers[1] == answers[2], "the stores differ"
            assert all(len(value) == a.value for value in answers[0])
    finally:
        for store in stores.values():
            store.close()


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--batches", type=int, default=400)
    p.add_argument("--size", type=int, default=500)
    p.add_argument("--value", type=int, default=100)
    a = p.parse_args()
    times = {(case, name): [] for case in CASES for name in WAYS}
    for seed in range(a.rounds):
        directory = Path(tempfile.mkdtemp(prefix="kvfs-bench-"))
        try:
            one_round(a, directory, random.Random(seed), times)
        finally:
            shutil.rmtree(directory)
    print(
        f"| µs a key, {a.size} keys of 16 and {a.value} bytes: median, mean | "
        + " | ".join(WAYS)
        + " | ÷ rocksdict | ÷ lmdb |"
    )
    print("|---|---:|---:|---:|---:|---:|")

    for case, what in CASES.items():

        def a_key(name, of, case=case):
            return of(times[case, name]) / a.size * 1e6

        figures = [(a_key(n, statistics.median), a_key(n, statistics.mean)) for n in WAYS]
        row = [f"{median:.2f}, {mean:.2f}" for median, mean in figures]
        mine = figures[0]
        row += [f"{mine[0] / m:.2f}, {mine[1] / n:.2f}" for m, n in figures[1:]]
        print(f"| {what} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
