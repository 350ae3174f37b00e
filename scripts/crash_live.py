#!/usr/bin/env python3
"""SIGKILL of the daemon at random moments under load, on a real mount.

Each round mounts the store, lets several workers write, rename over, fsync and set keys, kills the daemon without warning at a random
moment, checks the store, mounts it again and compares it with what had been acknowledged:

- a file whose fsync returned has that content, or a later one that was on its way;
- a file renamed over another is the old one or the new one, whole, whether it was fsynced or not;
- a key whose SYNC returned has that value, or a later one on its way;
- `kvfs check` finds nothing.

The seed is printed and makes the choices (not the timing) repeatable."""

import argparse
import hashlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


def content(name, version, size):
    """What version `version` of `name` holds: its header says so, the rest follows from it."""
    seed = f"{name} {version} {size}\n".encode()
    block = hashlib.sha256(seed).digest()
    return (seed + block * (size // len(block) + 1))[: max(size, len(seed))]


def version_of(name, data):
    """The version that `data` is, whole; None when it is none."""
    try:
        head = data[: data.index(b"\n")].decode().split(" ")
        version, size = int(head[1]), int(head[2])
    except (ValueError, IndexError):
        return None
    return version if head[0] == name and content(name, version, size) == data else None


class Redis:
    """As much of a RESP client as is needed here."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.connect(str(path))
        self.f = self.s.makefile("rb")

    def call(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        line = self.f.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the server is gone")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self.f.read(int(rest) + 2)
            if len(data) != int(rest) + 2:
                raise OSError("the server is gone")
            return data[:-2]
        return rest


class Ledger:
    """What was acknowledged, and what was on its way, by name."""

    def __init__(self):
        self.lock = threading.Lock()
        self.acknowledged = {}
        self.begun = {}

    def begin(self, name, version):
        with self.lock:
            self.begun[name] = version

    def acknowledge(self, name, version):
        with self.lock:
            self.acknowledged[name] = version

    def forget(self, names):
        with self.lock:
            for n in names:
                self.acknowledged.pop(n, None)
                self.begun.pop(n, None)


def write_file(path, data, sync):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view[: 1 << 17]) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def size_of(rnd):
    return rnd.choice([40, 300, 3000, 4096, 5000, 20_000, 70_000, 300_000])


def fsync_worker(rnd, mnt, ledger, n, stop):
    """New files and appended versions, each fsynced."""
    version = 0
    while not stop.is_set():
        version += 1
        name = f"sync-{n}-{rnd.randrange(30)}"
        ledger.begin(name, version)
        # Replaced by rename, as a careful program does, so that each state is whole.
        tmp = mnt / f"{name}.tmp"
        write_file(tmp, content(name, version, size_of(rnd)), True)
        os.rename(tmp, mnt / name)
        sync_dir(mnt)
        ledger.acknowledge(name, version)


def rename_worker(rnd, mnt, ledger, n, stop):
    """Rename over an existing file without any fsync: old or new, never empty, never half."""
    version = 0
    while not stop.is_set():
        version += 1
        name = f"over-{n}-{rnd.randrange(10)}"
        ledger.begin(name, version)
        tmp = mnt / f"{name}.tmp"
        write_file(tmp, content(name, version, size_of(rnd)), False)
        os.rename(tmp, mnt / name)


def churn_worker(rnd, mnt, ledger, n, stop):
    """Unacknowledged work of all kinds, so that the store is busy: trees, links, truncation, removal."""
    while not stop.is_set():
        d = mnt / f"churn-{n}"
        d.mkdir(exist_ok=True)
        for i in range(50):
            if stop.is_set():
                return
            write_file(d / f"f{i}", os.urandom(rnd.randrange(0, 50_000)), rnd.random() < 0.05)
            if rnd.random() < 0.3:
                os.truncate(d / f"f{i}", rnd.randrange(0, 60_000))
            if rnd.random() < 0.3 and not (d / f"l{i}").exists():
                os.link(d / f"f{i}", d / f"l{i}")
        if rnd.random() < 0.5:
            shutil.rmtree(d)


def key_worker(rnd, sock, ledger, n, stop):
    """Keys, alone and several at once, made durable by SYNC."""
    client = Redis(sock)
    version = 0
    while not stop.is_set():
        version += 1
        names = [f"key-{n}-{rnd.randrange(50)}" for _ in range(rnd.randrange(1, 4))]
        for name in names:
            ledger.begin(name, version)
        words = ["MSET"]
        for name in names:
            words += [name, content(name, version, rnd.choice([40, 100, 5000, 70_000]))]
        client.call(*words)
        if rnd.random() < 0.5:
            client.call("SYNC")
            for name in names:
                ledger.acknowledge(name, version)


def guarded(worker, problems):
    def run(*args):
        try:
            worker(*args)
        except (OSError, ConnectionError):
            pass  # the daemon was killed under it
        except Exception as e:  # noqa: BLE001 - every other one is a finding
            problems.append(f"{worker.__name__}: {e!r}")

    return run


class Lab:
    def __init__(self, kvfs, work):
        self.kvfs, self.store, self.mnt = kvfs, work / "crash.kvfs", work / "mnt"
        self.mnt.mkdir()
        self.run("create", str(self.store))

    def run(self, *args):
        r = subprocess.run([self.kvfs, *args], capture_output=True, text=True)
        if r.returncode != 0:
            raise SystemExit(f"kvfs {' '.join(args)} ended with {r.returncode}:\n{r.stdout}{r.stderr}")
        return r.stdout

    def mount(self):
        self.run("mount", str(self.store), str(self.mnt))
        return json.loads(self.run("stat", str(self.mnt), "--json"))["daemon"]["pid"]

    def kill(self, pid):
        fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        # Readable when the process has ended, with all of its threads.
        ended = select.select([fd], [], [], 60)[0]
        os.close(fd)
        if not ended:
            # Its threads wait for answers that nobody gives: a finding. This sets them free.
            subprocess.run(["umount", "-f", str(self.mnt)], capture_output=True)
            raise SystemExit(f"the daemon {pid} was killed and has not ended within a minute")

    def clear(self):
        """Takes the dead mount away. Not before every worker has stopped: they would go on in the folder beneath it."""
        subprocess.run(["umount", "-l", str(self.mnt)], capture_output=True)


def verify(lab, ledger, problems, rnd_round):
    mnt, client = lab.mnt, Redis(f"{lab.store}.sock")
    for name in sorted(ledger.begun):
        if name.startswith("key-"):
            data = client.call("GET", name)
        else:
            try:
                data = (mnt / name).read_bytes()
            except FileNotFoundError:
                data = None
        least, most = ledger.acknowledged.get(name, 0), ledger.begun[name]
        found = None if data is None else version_of(name, data)
        if data is None and least == 0:
            continue
        if found is None:
            problems.append(f"round {rnd_round}: {name} is {'gone' if data is None else f'damaged ({len(data)} bytes: {data[:40]!r})'}; version {least} was acknowledged")
        elif not least <= found <= most:
            problems.append(f"round {rnd_round}: {name} has version {found}; {least} was acknowledged, {most} begun")
    return len(ledger.begun)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kvfs", required=True)
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--dir", default=None)
    p.add_argument("--keep", action="store_true", help="keep the store when something is wrong")
    a = p.parse_args()
    seed = a.seed if a.seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    rnd = random.Random(seed)
    kvfs = str(Path(a.kvfs).resolve())
    work = Path(tempfile.mkdtemp(prefix="kvfs-crash-", dir=a.dir))
    problems, compared, acknowledged = [], 0, 0
    lab = Lab(kvfs, work)
    try:
        for n in range(a.kills):
            pid = lab.mount()
            # Versions start anew in every round, so what earlier rounds left is removed first.
            for f in lab.mnt.iterdir():
                shutil.rmtree(f) if f.is_dir() else f.unlink()
            client = Redis(f"{lab.store}.sock")
            client.call("FLUSHDB")
            client.call("SYNC")
            sync_dir(lab.mnt)
            ledger, stop = Ledger(), threading.Event()
            jobs = [
                (fsync_worker, lab.mnt, 0),
                (fsync_worker, lab.mnt, 1),
                (rename_worker, lab.mnt, 0),
                (churn_worker, lab.mnt, 0),
                (key_worker, Path(f"{lab.store}.sock"), 0),
                (key_worker, Path(f"{lab.store}.sock"), 1),
            ]
            threads = [
                threading.Thread(target=guarded(w, problems), args=(random.Random(rnd.random()), where, ledger, i, stop), daemon=True)
                for w, where, i in jobs
            ]
            for t in threads:
                t.start()
            time.sleep(rnd.uniform(0.02, 1.5))  # the random moment itself, not a wait for a condition
            lab.kill(pid)
            stop.set()
            for t in threads:
                t.join()
            lab.clear()
            acknowledged += len(ledger.acknowledged)
            found = subprocess.run([kvfs, "check", str(lab.store)], capture_output=True, text=True)
            if found.returncode != 0:
                problems.append(f"round {n}: check ended with {found.returncode}: {found.stdout}{found.stderr}")
            pid = lab.mount()
            compared += verify(lab, ledger, problems, n)
            if problems:
                break
            # Half of the rounds end with a clean unmount, the others with a second kill right after recovery.
            if rnd.random() < 0.5:
                lab.run("umount", str(lab.mnt))
            else:
                lab.kill(pid)
                lab.clear()
            print(f"\r{n + 1}/{a.kills} kills, {compared} names compared, {acknowledged} acknowledged", end="", flush=True)
        print()
    finally:
        subprocess.run([kvfs, "umount", str(lab.mnt)], capture_output=True)
        subprocess.run(["umount", "-l", str(lab.mnt)], capture_output=True)
        if not (a.keep and problems):
            shutil.rmtree(work, ignore_errors=True)
    for what in problems:
        print(what, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{a.kills} kills: everything acknowledged was there, every rename whole, every check clean")


if __name__ == "__main__":
    main()
