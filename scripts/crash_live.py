#!/usr/bin/env python3
"""SIGKILL of the daemon at random moments under load, on a real mount.

Each round mounts the store, lets several workers write, rename over, fsync and set keys, kills the
daemon without warning at a random moment, checks the store, mounts it again and compares it with
what had been acknowledged:

- a file whose fsync returned has that content, or a later one that was on its way;
- a file renamed over another is the old one or the new one, whole, whether it was fsynced or not;
- a key whose SYNC returned has that value, or a later one on its way;
- what a worker has done that does a little of everything, one thing after the other, is there up to
  one of its steps (`crash_history.py`);
- `kvfs check` finds nothing.

Some rounds have that worker alone, which then rolls the store back, too; some end with a second
kill right after recovery; between some, `kvfs import` is killed. Every SIGKILL counts. The seed of
a round makes its choices (not the timing) repeatable; a run goes on where the last one ended with
--seed-base."""

import argparse
import hashlib
import io
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from crash_history import Historian


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
        self.s.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        )
        line = self.f.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the server is gone")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return self.value(kind, rest)

    def value(self, kind, rest):
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self.f.read(int(rest) + 2)
            if len(data) != int(rest) + 2:
                raise OSError("the server is gone")
            return data[:-2]
        if kind in b"*%" and rest != b"-1":
            items = []
            for _ in range(int(rest) * (2 if kind == b"%" else 1)):
                line = self.f.readline()
                if not line.endswith(b"\r\n"):
                    raise OSError("the server is gone")
                items.append(self.value(line[:1], line[1:-2]))
            return items
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
    """Unacknowledged work of all kinds, so that the store is busy: trees, links, truncation,
    removal."""
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


def history_worker(rnd, where, ledger, historian, stop):
    """A little of everything, in one order."""
    historian.run(rnd, *where, Redis, stop)


def guarded(worker, problems):
    def run(*args):
        try:
            worker(*args)
        except (OSError, ConnectionError) as e:
            # The last argument is set when the daemon is killed.
            if not args[-1].is_set():
                problems.append(f"{worker.__name__}: {e!r} before the kill")
        except Exception as e:  # noqa: BLE001 - every other one is a finding
            problems.append(
                f"{worker.__name__}: "
                f"{e!r}{' in ' + str(list(args[-2].steps)) if worker is history_worker else ''}"
            )

    return run


class Lab:
    def __init__(self, kvfs, work, options=""):
        self.kvfs, self.store, self.mnt = kvfs, work / "crash.kvfs", work / "mnt"
        self.options = ["-o", options] if options else []
        self.mnt.mkdir()
        self.run("create", str(self.store))

    def run(self, *args):
        r = subprocess.run([self.kvfs, *args], capture_output=True, text=True)
        if r.returncode != 0:
            raise SystemExit(
                f"kvfs {' '.join(args)} ended with {r.returncode}:\n{r.stdout}{r.stderr}"
            )
        return r.stdout

    def mount(self):
        self.run("mount", *self.options, str(self.store), str(self.mnt))
        return json.loads(self.run("stat", str(self.mnt), "--json"))["daemon"]["pid"]

    def kill(self, pid):
        fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        # Readable when the process has ended, with all of its threads.
        ended = select.select([fd], [], [], 60)[0]
        os.close(fd)
        if not ended:
            # Its threads wait for answers that never come: a finding. This sets them free.
            subprocess.run(["umount", "-f", str(self.mnt)], capture_output=True)
            raise SystemExit(f"the daemon {pid} was killed and has not ended within a minute")

    def clear(self):
        """Takes the dead mount away. Not before every worker has stopped:
        they would go on in the directory beneath it."""
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
            problems.append(
                f"round {rnd_round}: {name} is "
                f"{'gone' if data is None else f'damaged ({len(data)} bytes: {data[:40]!r})'}; "
                f"version {least} was acknowledged"
            )
        elif not least <= found <= most:
            problems.append(
                f"round {rnd_round}: {name} has version {found}; {least} was acknowledged, "
                f"{most} begun"
            )
    return len(ledger.begun)


class Imports:
    """`kvfs import` of a tar into the unmounted store, killed or not:
    one that has ended is there whole."""

    def __init__(self, work):
        self.files = {f"f{i}": content(f"f{i}", i, 30_000 * (i % 7)) for i in range(40)}
        self.tar = work / "import.tar"
        with tarfile.open(self.tar, "w") as tar:
            for name, data in self.files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        self.done = self.killed = 0

    def run(self, lab, rnd):
        to = f"import-{self.done + self.killed}"
        process = subprocess.Popen(
            [lab.kvfs, "import", str(lab.store), str(self.tar), "--to", f"/{to}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            process.wait(rnd.uniform(0.005, 0.12))
        except subprocess.TimeoutExpired:
            process.kill()
        _, said = process.communicate()
        if process.returncode == -signal.SIGKILL:
            self.killed += 1
            return None
        if process.returncode != 0:
            raise SystemExit(f"kvfs import ended with {process.returncode}: {said.decode()}")
        self.done += 1
        return to

    def verify(self, mnt, to, problems, where):
        for name, data in self.files.items():
            if (mnt / to / name).read_bytes() != data:
                problems.append(f"{where}: {to}/{name} is not what was imported")


class Run:
    """Rounds on one store."""

    def __init__(self, kvfs, work, options):
        self.lab, self.imports, self.historian = (
            Lab(kvfs, work, options),
            Imports(work),
            Historian(0),
        )
        self.sock = Path(f"{self.lab.store}.sock")
        self.problems = []
        self.kills = self.compared = self.acknowledged = 0
        pid = self.lab.mount()
        (self.lab.mnt / self.historian.directory).mkdir()
        sync_dir(self.lab.mnt)
        assert pid
        self.lab.run("umount", str(self.lab.mnt))

    def kill(self, pid):
        self.lab.kill(pid)
        self.kills += 1

    def round(self, seed):
        rnd, lab, ledger, stop = random.Random(seed), self.lab, Ledger(), threading.Event()
        where = f"seed {seed}"
        imported = None
        if rnd.random() < 0.2:
            killed = self.imports.killed
            imported = self.imports.run(lab, rnd)
            self.kills += self.imports.killed - killed
        pid = lab.mount()
        if imported:
            self.imports.verify(lab.mnt, imported, self.problems, where)
        # Versions start anew in every round, so what earlier rounds left is removed first.
        for f in lab.mnt.iterdir():
            if not f.name.startswith("history-"):
                shutil.rmtree(f) if f.is_dir() else f.unlink()
        client = Redis(self.sock)
        client.call("DELPREFIX", "key-")
        client.call("SYNC")
        sync_dir(lab.mnt)
        self.historian.alone = rnd.random() < 0.3
        jobs = [(history_worker, (lab.mnt, self.sock), self.historian)]
        if not self.historian.alone:
            jobs += [
                (fsync_worker, lab.mnt, 0),
                (fsync_worker, lab.mnt, 1),
                (rename_worker, lab.mnt, 0),
                (churn_worker, lab.mnt, 0),
                (key_worker, self.sock, 0),
                (key_worker, self.sock, 1),
            ]
        threads = [
            threading.Thread(
                target=guarded(w, self.problems),
                args=(random.Random(rnd.random()), place, ledger, i, stop),
                daemon=True,
            )
            for w, place, i in jobs
        ]
        for t in threads:
            t.start()
        time.sleep(rnd.uniform(0.02, 0.8))  # the random moment itself, not a wait for a condition
        # Before the kill: nothing may go on in the directory beneath the mount, and an error from
        # here on is the kill's.
        stop.set()
        self.kill(pid)
        for t in threads:
            t.join()
        lab.clear()
        self.acknowledged += len(ledger.acknowledged)
        found = subprocess.run([lab.kvfs, "check", str(lab.store)], capture_output=True, text=True)
        if found.returncode != 0:
            self.problems.append(
                f"{where}: check ended with {found.returncode}: {found.stdout}{found.stderr}"
            )
        pid = lab.mount()
        self.compared += verify(lab, ledger, self.problems, where)
        self.historian.verify(lab.mnt, Redis(self.sock), self.problems, where)
        # What was found was read from the journal or the tree; make sure that it stays.
        Redis(self.sock).call("SYNC")
        if self.problems:
            return
        # Half of the rounds end with a clean unmount, the others with a second kill right after
        # recovery.
        if rnd.random() < 0.5:
            lab.run("umount", str(lab.mnt))
        else:
            self.kill(pid)
            lab.clear()


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--kvfs", required=True)
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--seed-base", type=int, default=None, help="the seed of the first round")
    p.add_argument("--dir", default=None)
    p.add_argument("--options", default="", help="of the mount, as for -o: transport=uring")
    p.add_argument("--keep", action="store_true", help="keep the store when something is wrong")
    a = p.parse_args()
    base = a.seed_base if a.seed_base is not None else int.from_bytes(os.urandom(4), "little")
    print(f"--seed-base {base}", flush=True)
    work = Path(tempfile.mkdtemp(prefix="kvfs-crash-", dir=a.dir))
    begun, seed = time.monotonic(), base
    run = Run(str(Path(a.kvfs).resolve()), work, a.options)
    try:
        while run.kills < a.kills and not run.problems:
            run.round(seed)
            seed += 1
            print(
                f"\r{run.kills}/{a.kills} kills, {run.compared} names compared, "
                f"{run.acknowledged} acknowledged",
                end="",
                flush=True,
            )
        print()
    finally:
        subprocess.run([run.lab.kvfs, "umount", str(run.lab.mnt)], capture_output=True)
        subprocess.run(["umount", "-l", str(run.lab.mnt)], capture_output=True)
        if not (a.keep and run.problems):
            shutil.rmtree(work, ignore_errors=True)
    for what in run.problems:
        print(what, file=sys.stderr)
    if run.problems:
        sys.exit(1)
    took = time.monotonic() - begun
    print(
        f"the one history: {dict(sorted(run.historian.done.items()))}; imports: "
        f"{run.imports.done} ended, {run.imports.killed} killed"
    )
    print(
        f"{run.kills} kills in {took:.0f} s, {took / run.kills:.2f} s each: everything "
        f"acknowledged was there, every rename whole, every check clean; go on: --seed-base {seed}"
    )


if __name__ == "__main__":
    main()
