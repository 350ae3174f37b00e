#!/usr/bin/env python3
"""Ranks in large collections: a redis-server and a mounted KVFS store, asked in turn.

    scripts/bench_ranks.py [--kvfs PATH] [--elements N] [--requests N]

Both are started for the run, as `bench_redis.py` has them, and filled with a sorted set and a list.
Then each request goes to one and to the other, one by one over a Unix socket; the replies must be
the same. Printed are the medians in µs as lines of a table, and what the first rank took, which
counts the collection.
"""

import argparse
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time


class Client:
    """One connection."""

    def __init__(self, path):
        until = time.monotonic() + 60
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(str(path))
                break
            except OSError:
                if time.monotonic() > until:
                    sys.exit(f"no server at {path}")
                time.sleep(0.05)
        self.replies = self.socket.makefile("rb")

    @staticmethod
    def encode(words):
        words = [str(word).encode() for word in words]
        parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        return b"*%d\r\n%b" % (len(words), b"".join(parts))

    def reply(self):
        line = self.replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"$" and rest != b"-1":
            return self.replies.read(int(rest) + 2)[:-2]
        return rest

    def run(self, *words):
        self.socket.sendall(self.encode(words))
        return self.reply()

    def pipeline(self, commands):
        self.socket.sendall(b"".join(self.encode(words) for words in commands))
        return [self.reply() for _ in commands]


def fill(client, elements):
    numbers = random.Random(1)
    for start in range(0, elements, 1000):
        some = range(start, min(start + 1000, elements))
        pairs = [word for i in some for word in (numbers.randrange(elements), f"member:{i}")]
        client.pipeline([("ZADD", "board", *pairs), ("RPUSH", "list", *(f"e{i}" for i in some))])


def cases(n, numbers):
    """Names, and what makes one request of each."""
    some = lambda: numbers.randrange(n // 4, 3 * n // 4)  # noqa: E731
    yield "ZRANK", lambda: [("ZRANK", "board", f"member:{some()}")]
    yield "ZREVRANK", lambda: [("ZREVRANK", "board", f"member:{some()}")]
    yield "ZRANGE of 10", lambda: [("ZRANGE", "board", at := some(), at + 9)]
    yield "ZCOUNT", lambda: [("ZCOUNT", "board", some() // 2, some())]
    yield "ZRANGEBYSCORE LIMIT n/4 10", lambda: [
        ("ZRANGEBYSCORE", "board", some() // 8, "+inf", "LIMIT", n // 4, 10)
    ]
    yield "ZADD, then ZRANK", lambda: [
        ("ZADD", "board", numbers.randrange(n), m := f"member:{some()}"),
        ("ZRANK", "board", m),
    ]
    yield "10 ZADD, then ZRANK", lambda: [
        *(("ZADD", "board", numbers.randrange(n), f"member:{some()}") for _ in range(10)),
        ("ZRANK", "board", f"member:{some()}"),
    ]
    yield "MULTI, ZADD, ZRANK, EXEC", lambda: [
        ("MULTI",),
        ("ZADD", "board", numbers.randrange(n), m := f"member:{some()}"),
        ("ZRANK", "board", m),
        ("EXEC",),
    ]
    yield "ZADD of one that is new", lambda: [
        ("ZADD", "board", numbers.randrange(n), f"new:{numbers.random()}")
    ]
    yield "LINDEX", lambda: [("LINDEX", "list", some())]
    yield "LSET", lambda: [("LSET", "list", some(), "x")]
    yield "LRANGE of 10", lambda: [("LRANGE", "list", at := some(), at + 9)]
    near = iter(range(2, n, 2))
    yield "LREM next to an end, LINDEX", lambda: [
        ("LREM", "list", 1, f"e{next(near)}"),
        ("LINDEX", "list", some()),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvfs", default="target/release/kvfs")
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    kvfs = os.path.abspath(options.kvfs)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        store, mount = directory / "store.kvfs", directory / "mount"
        mount.mkdir()
        sockets = {"Redis": directory / "redis.sock", "KVFS": directory / "store.kvfs.sock"}
        redis = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(sockets["Redis"]), "--save", ""]
            + ["--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(directory)],
            stdout=subprocess.DEVNULL,
        )
        quiet = {"check": True, "stdout": subprocess.DEVNULL}
        try:
            subprocess.run([kvfs, "create", "--size", "8G", str(store)], **quiet)
            subprocess.run([kvfs, "mount", str(store), str(mount)], **quiet)
            measure({name: Client(path) for name, path in sockets.items()}, options)
        finally:
            subprocess.run([kvfs, "umount", str(mount)], stdout=subprocess.DEVNULL)
            redis.kill()
            redis.wait()


def measure(clients, options):
    for client in clients.values():
        fill(client, options.elements)
    for name, client in clients.items():
        started = time.perf_counter()
        client.run("ZRANK", "board", "member:1")
        print(f"first ZRANK, {name}: {(time.perf_counter() - started) * 1e3:.1f} ms")
    print("| | Redis, µs | KVFS, µs | ÷ |\n|---|---:|---:|---:|")
    numbers = random.Random(2)
    for name, request in cases(options.elements, numbers):
        times = {name: [] for name in clients}
        for _ in range(options.requests):
            commands, said = request(), {}
            for which, client in clients.items():
                started = time.perf_counter()
                said[which] = [client.run(*words) for words in commands]
                times[which].append((time.perf_counter() - started) * 1e6)
            if said["Redis"] != said["KVFS"]:
                sys.exit(f"{commands}: Redis says {said['Redis']}, KVFS {said['KVFS']}")
        redis, kvfs = (statistics.median(times[which]) for which in ("Redis", "KVFS"))
        print(f"| {name} | {redis:.0f} | {kvfs:.0f} | {kvfs / redis:.2f} |")


if __name__ == "__main__":
    main()
