#!/usr/bin/env python3
"""Everything at once on a real mount for a long time: nothing may grow, slow down, or be lost.

Workers write, append, rename over, link, truncate, fsync and remove files; set, count and delete
keys; commit and abort transactions over a file and a key; take, read and drop snapshots and clones;
copy trees by reference; defragment. The total of what is alive is bounded, so memory, the space on
the host and the journal have to level off, and so have the latencies. Each worker remembers what
its own files and keys hold and compares at random; what a transaction wrote is seen whole after its
commit.

Every few seconds a line is sampled from `kvfs stat --json` and /proc. At the end the store is
unmounted and checked, and the last third of the samples is compared with the third before it. Exit
1: something was lost, `check` found something, or something grew.

    scripts/soak.py --kvfs target/release/kvfs --minutes 60"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from crash_live import Redis  # noqa: E402

FILES, KEYS, LARGEST = 300, 2000, 300_000


class Wrong(Exception):
    pass


class World:
    def __init__(self, kvfs, mount, sock, seed):
        self.kvfs, self.mount, self.sock, self.seed = kvfs, mount, sock, seed
        self.stop = threading.Event()
        self.wrong = []
        self.counts = {}
        self.times = []
        self.lock = threading.Lock()

    def timed(self, what, call):
        began = time.monotonic()
        try:
            return call()
        finally:
            with self.lock:
                self.counts[what] = self.counts.get(what, 0) + 1
                self.times.append(time.monotonic() - began)

    def worker(self, number, body):
        rng = random.Random(self.seed * 1000 + number)
        try:
            while not self.stop.is_set():
                body(rng)
        except Exception as e:  # whatever it is, the run has failed
            if not self.stop.is_set():
                self.wrong.append(f"worker {number}: {type(e).__name__}: {e}")
                self.stop.set()


def data(rng, size):
    piece = rng.randbytes(64)
    return (piece * (size // 64 + 1))[:size]


def files_worker(world, number):
    """Its own directory, whose content it knows."""
    home = world.mount / f"files{number}"
    home.mkdir()
    have = {}

    def step(rng):
        name = f"f{rng.randrange(FILES)}"
        path = home / name
        what = rng.randrange(12)
        if what < 4 or name not in have:
            content = data(rng, rng.choice([10, 300, 4096, 20_000, LARGEST]))

            def write():
                with open(path, "wb") as f:
                    f.write(content)
                    if what == 0:
                        os.fsync(f.fileno())

            world.timed("write", write)
            have[name] = content
        elif what == 4:
            more = data(rng, 200)
            with open(path, "ab") as f:
                world.timed("append", lambda: f.write(more))
            have[name] += more
            if len(have[name]) > 2 * LARGEST:
                path.unlink()
                del have[name]
        elif what == 5:
            size = rng.randrange(len(have[name]) + 1)
            world.timed("truncate", lambda: os.truncate(path, size))
            have[name] = have[name][:size]
        elif what == 6:
            content = data(rng, rng.choice([100, 9000]))
            new = home / "new"
            new.write_bytes(content)
            world.timed("rename over", lambda: os.rename(new, path))
            have[name] = content
        elif what == 7:
            world.timed("unlink", path.unlink)
            del have[name]
        elif what == 8:
            copy = home / "copy"
            os.link(path, copy)
            if copy.read_bytes() != have[name]:
                raise Wrong(f"{path} through a second name")
            copy.unlink()
        else:
            if world.timed("read", path.read_bytes) != have[name]:
                raise Wrong(f"{path} does not hold what was written last")
            if what == 9 and sorted(p.name for p in home.iterdir()) != sorted(have):
                raise Wrong(f"{home} lists other names than were made")

    return step


def keys_worker(world, number):
    client = Redis(world.sock)
    have = {}

    def step(rng):
        key = f"k{number}:{rng.randrange(KEYS)}"
        what = rng.randrange(10)
        if what < 5:
            value = data(rng, rng.choice([8, 100, 3000, 20_000]))
            world.timed("set", lambda: client.call("SET", key, value))
            have[key] = value
        elif what == 5:
            client.call("DEL", key)
            have.pop(key, None)
        elif what == 6:
            before = int(client.call("GET", f"n{number}") or 0)
            if int(world.timed("incr", lambda: client.call("INCR", f"n{number}"))) != before + 1:
                raise Wrong(f"a count of worker {number}")
        elif world.timed("get", lambda: client.call("GET", key)) != have.get(key):
            raise Wrong(f"key {key} does not hold what was set last")

    return step


def transactions_worker(world, number):
    """A file and its key always say the same."""
    client = Redis(world.sock)
    home = world.mount / f"pairs{number}"
    home.mkdir()
    have = {}

    def step(rng):
        n = rng.randrange(50)
        value = data(rng, rng.choice([50, 5000])) + os.urandom(8)
        txn = client.call("TXN", "BEGIN", "SER" if rng.randrange(4) == 0 else "SI").decode()
        (world.mount / ".kvfs" / "txn" / txn / home.name / str(n)).write_bytes(value)
        client.call("TXN", "JOIN", txn)
        client.call("SET", f"pair{number}:{n}", value)
        client.call("TXN", "LEAVE")
        if rng.randrange(4) == 0:
            world.timed("abort", lambda: client.call("TXN", "ABORT", txn))
        else:
            world.timed("commit", lambda: client.call("TXN", "COMMIT", txn))
            have[n] = value
        if n in have and (
            (home / str(n)).read_bytes() != have[n]
            or client.call("GET", f"pair{number}:{n}") != have[n]
        ):
            raise Wrong(f"a file and its key in {home}: not what was committed last")

    return step


def snapshots_worker(world, number):
    marker = world.mount / f"marker{number}"
    taken = []

    def kvfs(*args):
        done = subprocess.run([world.kvfs, *args], text=True, capture_output=True)
        if done.returncode:
            raise Wrong(f"kvfs {' '.join(args)}: {done.stderr.strip()}")

    def step(rng):
        name = f"s{number}-{rng.randrange(1 << 30)}"
        content = os.urandom(16)
        marker.write_bytes(content)
        world.timed("snapshot", lambda: kvfs("snapshot", "create", str(world.mount), name))
        taken.append((name, content))
        name, content = rng.choice(taken)
        if (world.mount / ".kvfs" / "snapshot" / name / marker.name).read_bytes() != content:
            raise Wrong(f"snapshot {name} does not hold what was there when it was made")
        if len(taken) > 5:
            kvfs("snapshot", "drop", str(world.mount), taken.pop(0)[0])
        copy = world.mount / f"tree{number}"
        if rng.randrange(3) == 0:
            if copy.exists():
                shutil.rmtree(copy)
            world.timed(
                "clone-tree", lambda: kvfs("clone-tree", str(world.mount / "pairs90"), str(copy))
            )
        if rng.randrange(20) == 0:
            world.timed("defrag", lambda: kvfs("defrag", str(world.mount)))
        world.stop.wait(1)

    return step


def sample(world, store, pid):
    stat = json.loads(
        subprocess.run(
            [world.kvfs, "stat", str(world.mount), "--json"], capture_output=True, check=True
        ).stdout
    )
    status = Path(f"/proc/{pid}/status").read_text()
    rss = (
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        / 1024
    )
    with world.lock:
        times, world.times = sorted(world.times), []
    at = lambda part: times[min(len(times) - 1, int(len(times) * part))] * 1000 if times else 0.0
    return {
        "rss_mib": rss,
        "store_mib": store.stat().st_blocks * 512 / (1 << 20),
        "journal_mib": stat["journal_bytes"] / (1 << 20),
        "operations": len(times),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "worst_ms": times[-1] * 1000 if times else 0.0,
    }


def main():
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--kvfs", default="target/release/kvfs")
    args.add_argument("--minutes", type=float, default=60)
    args.add_argument("--every", type=float, default=10, help="seconds between samples")
    args.add_argument("--memory", default="64M")
    args.add_argument("--dir", help="where the store lies")
    args.add_argument("--options", default="", help="mount options, such as writeback")
    args.add_argument("--seed", type=int, default=int(time.time()))
    args.add_argument("--json", action="store_true", help="print the samples as JSON, too")
    args = args.parse_args()
    kvfs = str(Path(args.kvfs).resolve())
    print(f"seed {args.seed}")
    work = Path(tempfile.mkdtemp(prefix="kvfs-soak-", dir=args.dir))
    store, mount = work / "s.kvfs", work / "m"
    mount.mkdir()
    mounted, samples = False, []
    try:
        subprocess.run([kvfs, "create", str(store)], check=True, capture_output=True)
        options = ["-o", args.options] if args.options else []
        subprocess.run(
            [kvfs, "mount", "--memory", args.memory, *options, str(store), str(mount)], check=True
        )
        mounted = True
        pid = json.loads(
            subprocess.run(
                [kvfs, "stat", str(mount), "--json"], capture_output=True, check=True
            ).stdout
        )["daemon"]["pid"]
        world = World(kvfs, mount, Path(f"{store}.sock"), args.seed)
        kinds = [files_worker, files_worker, keys_worker, keys_worker]
        bodies = [(n, kind(world, n)) for n, kind in enumerate(kinds)]
        bodies += [
            (90, transactions_worker(world, 90)),
            (91, transactions_worker(world, 91)),
            (95, snapshots_worker(world, 95)),
        ]
        threads = [threading.Thread(target=world.worker, args=body) for body in bodies]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 60 * args.minutes
        print(
            f"{'minute':>7}"
            + "".join(
                f"{name:>13}"
                for name in [
                    "rss_mib",
                    "store_mib",
                    "journal_mib",
                    "operations",
                    "p50_ms",
                    "p99_ms",
                    "worst_ms",
                ]
            )
        )
        began = time.monotonic()
        while time.monotonic() < end and not world.stop.wait(args.every):
            samples.append(sample(world, store, pid))
            print(
                f"{(time.monotonic() - began) / 60:7.1f}"
                + "".join(f"{v:13.2f}" for v in samples[-1].values()),
                flush=True,
            )
        world.stop.set()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                world.wrong.append("a worker hangs")
        wrong = world.wrong
        print("done:", ", ".join(f"{n} {what}" for what, n in sorted(world.counts.items())))
    finally:
        if mounted:
            subprocess.run([kvfs, "umount", str(mount)], check=False)
    checked = subprocess.run([kvfs, "check", str(store)], text=True, capture_output=True)
    print(checked.stdout.strip())
    if checked.returncode:
        wrong.append(f"check: {checked.stdout}{checked.stderr}")
    third = len(samples) // 3
    if third >= 5:
        for what, most in [
            ("rss_mib", 1.15),
            ("store_mib", 1.25),
            ("journal_mib", 1.5),
            ("p99_ms", 2.0),
        ]:
            before, after = (
                statistics.median(s[what] for s in part)
                for part in (samples[third : 2 * third], samples[2 * third :])
            )
            grown = after / before if before > 0.01 else 1.0
            print(f"{what}: {before:.2f} in the second third, {after:.2f} in the last: {grown:.2f}")
            if grown > most:
                wrong.append(f"{what} grew by {grown:.2f}, more than {most}")
    if args.json:
        print(json.dumps(samples))
    for line in wrong:
        print("WRONG:", line)
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
