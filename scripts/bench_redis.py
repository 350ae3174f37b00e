#!/usr/bin/env python3
"""redis-benchmark on a redis-server and on a mounted KVFS store, in turn, over Unix sockets.

    scripts/bench_redis.py [--kvfs PATH] [--rounds N] [--requests N] [--out FILE] [--elements]

Both are started for the run: redis-server with an append-only file that is synced each second, and
KVFS with its flush interval of a second. Each round asks both for each case, in turn, unpipelined
and pipelined by 16; the table has medians and their ratio. A second table has commands that read
the elements of collections: the processor time of the server for one of them, on collections that
were just written, and again after a remount, which has written them to runs. `--elements` measures
and prints that table alone; processor time says something on a busy machine, too. Needs
redis-server, redis-benchmark, redis-cli (Debian: redis-server, redis-tools), and what a mount
needs. Run it when the machine does nothing else.
"""

import argparse
import os
import pathlib
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import textwrap
import time

CASES = [
    ("PING", ["ping"]),
    ("SET", ["set", "key:__rand_int__", "__data__"]),
    ("GET", ["get", "key:__rand_int__"]),
    ("INCR", ["incr", "counter:__rand_int__"]),
    ("MSET of 10", ["mset", *[w for _ in range(10) for w in ("key:__rand_int__", "__data__")]]),
    ("HSET", ["hset", "hash:__rand_int__", "field", "__data__"]),
    ("SADD", ["sadd", "set", "member:__rand_int__"]),
    ("ZADD", ["zadd", "sorted", "1", "member:__rand_int__"]),
    ("LPUSH", ["lpush", "list", "__data__"]),
    ("RPOP", ["rpop", "list"]),
    ("EVAL of a GET", ["eval", "return redis.call('GET', KEYS[1])", "1", "key:__rand_int__"]),
]
HUNDRED = range(100)
# The collections that `ELEMENTS` reads, of a hundred elements each.
COLLECTIONS = [
    ["rpush", "elements:list", *[f"element:{i:010}" for i in HUNDRED]],
    ["rpush", "elements:ring", *[f"element:{i:010}" for i in HUNDRED]],
    ["sadd", "elements:set", *[f"member:{i:010}" for i in HUNDRED]],
    ["zadd", "elements:sorted", *[w for i in HUNDRED for w in (str(i), f"member:{i:010}")]],
    ["hset", "elements:hash", *[f"{w}:{i:010}" for i in HUNDRED for w in ("field", "value")]],
]
ELEMENTS = [
    ("LRANGE of 100", ["lrange", "elements:list", "0", "-1"]),
    ("ZRANGE of 100", ["zrange", "elements:sorted", "0", "-1"]),
    ("ZRANGE of 100, WITHSCORES", ["zrange", "elements:sorted", "0", "-1", "withscores"]),
    ("SMEMBERS of 100", ["smembers", "elements:set"]),
    ("HGETALL of 100", ["hgetall", "elements:hash"]),
    ("SRANDMEMBER of 100", ["srandmember", "elements:set"]),
    ("SRANDMEMBER of 100, 5", ["srandmember", "elements:set", "5"]),
    ("RPOPLPUSH, 100", ["rpoplpush", "elements:ring", "elements:ring"]),
]
PIPELINES = (1, 16)
NOTE = """\
Redis answers all its clients from one thread, and so does an event loop of KVFS; on two processors
it has one. A script runs in a process of its own (EVAL), whose time is not in the table.

## What bounds it

One by one the client takes more time for a request than the server: both servers wait for it.

By 16 a server is as quick as it has little to do, and none of these cases is one and a half times
as quick here as in Redis. `PING` is what a request costs before it is looked at: to read it, to
find the command, to send the reply. What is left of a `GET` is a search among 100,000 keys, and
another one as soon as the dictionary has collections or deadlines, as it has here after the first
round. Each waits for memory two or three times; Redis looks into one hash table. To be one and a
half times as quick as Redis, a `GET` would have to find its key in 0.2 µs.

The rest is what a store of ordered keys on a disk does and a table in memory does not. A collection
is a head, a count and its elements, each in its place in the order of keys (`docs/format.md`):
`HSET` looks for three tuples and writes one to four, `LPUSH` looks for three and writes three. What
a change has read is compared with the newest commits, so that a transaction elsewhere cannot come
between, and it goes into the journal as a record of its own. In a profile of `HSET` (`perf record`
of the mount) searches in memtables are 28 %, searches in runs 10 %, the commit 23 %, of which half
is the insertion of its tuples, and the sockets 11 %. A second thread that takes half of the work of
an event loop makes it slower on two processors ([082](../decisions/082-replies-together.md))."""
CLIENTS = 50
VALUE = "x" * 64


def processor_seconds(path):
    """What the server of a socket has taken of the processors so far."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", peer)[0]
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(path):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
                return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"no server at {path}")


def measure(path, words, pipeline, requests):
    """Requests in a second."""
    words = [word.replace("__data__", VALUE) for word in words]
    command = [
        "redis-benchmark",
        "-s",
        str(path),
        "-c",
        str(CLIENTS),
        "-n",
        str(requests),
        "-r",
        "100000",
        "-P",
        str(pipeline),
        "--csv",
        *words,
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    lines = [line for line in said.splitlines() if line.startswith('"')]
    # A head with the names of the columns, and one line.
    return float(lines[-1].rsplit('","', 7)[1] if len(lines) > 1 else lines[-1].split('"')[3])


def measure_elements(sockets, requests, rounds, figures, place):
    """Adds the processor time of a server for a command of `ELEMENTS` to `figures`, in seconds."""
    for round_ in range(rounds):
        for name, words in ELEMENTS:
            for server in sorted(sockets, reverse=round_ % 2 == 1):
                before = processor_seconds(sockets[server])
                measure(sockets[server], words, 16, requests)
                took = processor_seconds(sockets[server]) - before
                figures.setdefault((name, place, server), []).append(took / requests)


def elements(sockets, requests, rounds, remount):
    """Returns the lines of the table of elements."""
    for path in sockets.values():
        for words in COLLECTIONS:
            command = ["redis-cli", "-s", str(path), *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures = {}
    measure_elements(sockets, requests, rounds, figures, "written")
    remount()
    measure_elements(sockets, requests, rounds, figures, "remounted")
    lines = [
        "Processor time of the server for a command that reads elements of a collection of a",
        "hundred, by 16, in µs. KVFS has just written the collections, or was mounted again since:",
        "then all of them are in runs.",
        "",
        "| | Redis | KVFS | ÷ | KVFS, mounted again | ÷ |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, _ in ELEMENTS:
        redis = figures[name, "written", "Redis"] + figures[name, "remounted", "Redis"]
        # The clock of a process ticks a hundred times a second.
        redis = max(statistics.median(redis), 0.01 / requests)
        row = [name, f"{redis * 1e6:.2f}"]
        for place in ("written", "remounted"):
            kvfs = statistics.median(figures[name, place, "KVFS"])
            row += [f"{kvfs * 1e6:.2f}", f"{kvfs / redis:.1f}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvfs", default="target/release/kvfs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--out", type=pathlib.Path, default="docs/bench/redis.md")
    parser.add_argument("--elements", action="store_true", help="only the table of elements")
    options = parser.parse_args()
    for program in ("redis-server", "redis-benchmark", "redis-cli"):
        if not shutil.which(program):
            sys.exit(f"{program} is missing (Debian: redis-server, redis-tools)")
    kvfs = os.path.abspath(options.kvfs)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        store, mount = directory / "store.kvfs", directory / "mount"
        mount.mkdir()
        sockets = {"Redis": directory / "redis.sock", "KVFS": directory / "store.kvfs.sock"}
        redis = subprocess.Popen(
            [
                "redis-server",
                "--port",
                "0",
                "--unixsocket",
                str(sockets["Redis"]),
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "everysec",
                "--dir",
                str(directory),
            ],
            stdout=subprocess.DEVNULL,
        )

        def run(*words):
            subprocess.run([kvfs, *words], check=True, stdout=subprocess.DEVNULL)

        def remount():
            run("umount", str(mount))
            run("mount", str(store), str(mount))
            wait_for(sockets["KVFS"])

        try:
            run("create", "--size", "8G", str(store))
            run("mount", str(store), str(mount))
            for path in sockets.values():
                wait_for(path)
            figures, times = {}, {}
            for round_ in range(0 if options.elements else options.rounds):
                for name, words in CASES:
                    for pipeline in PIPELINES:
                        # Who begins takes turns as well.
                        for server in sorted(sockets, reverse=round_ % 2 == 1):
                            requests = options.requests * (4 if pipeline > 1 else 1)
                            before = processor_seconds(sockets[server])
                            figure = measure(sockets[server], words, pipeline, requests)
                            took = processor_seconds(sockets[server]) - before
                            figures.setdefault((name, pipeline, server), []).append(figure)
                            times.setdefault((name, pipeline, server), []).append(took / requests)
                print(f"round {round_ + 1} of {options.rounds}", flush=True)
            of_elements = elements(sockets, options.requests, options.rounds, remount)
        finally:
            subprocess.run([kvfs, "umount", str(mount)], stdout=subprocess.DEVNULL)
            redis.kill()
            redis.wait()
    if options.elements:
        print("\n".join(of_elements))
        return
    version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    version = version.split("v=")[1].split()[0]
    said = (
        f"`make bench-redis` (`scripts/bench_redis.py`) · {os.cpu_count()} cores, Linux "
        f"{os.uname().release} · Redis {version} with an append-only file synced each second, KVFS "
        f"mounted with its flush interval of a second · {CLIENTS} clients on Unix sockets, 100,000 "
        f"keys, values of 64 bytes · medians of {options.rounds} rounds "
        f"of {options.requests:,} requests a case, four times as many pipelined, both in turn"
    )
    lines = [
        "# The socket compared with Redis",
        "",
        textwrap.fill(said, 100),
        "",
        "Thousands of requests in a second, and the processor time of the server for one of those",
        "that come by 16, in µs:",
        "",
        "| | Redis | KVFS | ÷ | Redis, by 16 | KVFS, by 16 | ÷ | Redis, µs | KVFS, µs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, _ in CASES:
        row = [name]
        for pipeline in PIPELINES:
            a, b = (statistics.median(figures[name, pipeline, s]) for s in ("Redis", "KVFS"))
            row += [f"{a / 1000:.0f}", f"{b / 1000:.0f}", f"{b / a:.2f}"]
        row += [f"{statistics.median(times[name, 16, s]) * 1e6:.2f}" for s in ("Redis", "KVFS")]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", *of_elements, "", NOTE]
    options.out.write_text("\n".join(lines) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
