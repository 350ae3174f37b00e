#!/usr/bin/env python3
"""SIGKILL of the server of a store, and of mounts of transactions that it has, at random moments.

`kvfs serve --write` serves a store in a file. Each worker goes through versions, one transaction
for each, in a mount of its own (`kvfs mount kvfs+unix:SOCKET DIR --txn`): it writes a file and
renames it over the one before, makes a file whose name has the version and removes that of the
version before, adds a line to a log, writes steps and calls fsync after some of them, and ends with
`kvfs commit` or `kvfs abort`. Two in three are durable: when their daemon is killed, another mount
takes them up by their key. Some change a file that all workers change, so that the second one is in
conflict. Meanwhile the server and the daemons are killed one after the other.

- A commit that ended with 0 is there after every kill, whole: the file, the name, the line; once.
- One that ended with 75, or was aborted, is not; nor is one whose mount was told that it is over.
- Lines stand in the order of the commits, none twice, none left out.
- A durable transaction that is taken up has each file whose fsync has returned.
- An error is a finding, unless the daemon of that mount was killed, or, for a transaction that is
  not durable, the server.
- `kvfs check` finds nothing.

Before and after each fsync and each commit a line is written to a record, which is kept when
something is wrong. Every SIGKILL counts. The seed of a round makes its choices (not the timing)
repeatable; a run goes on where the last one ended with --seed-base."""

import argparse
import errno
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from crash_live import Lab, content, version_of, write_file

SIZES = [40, 300, 3000, 4096, 5000, 20_000, 70_000, 300_000]
CONFLICT = 75


class Over(Exception):
    """The transaction has ended without a commit, or its mount has."""


class Finding(Exception):
    """Something that must not be."""


class Record:
    """What workers were told, in the order of time."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.file = path.open("a", buffering=1)

    def note(self, *words):
        with self.lock:
            self.file.write(f"{time.monotonic():.6f} {' '.join(str(w) for w in words)}\n")


class Server:
    """The process that serves the store; `generation` tells it from those before."""

    def __init__(self, kvfs, store, socket, record):
        self.kvfs, self.store, self.socket, self.record = kvfs, store, socket, record
        self.generation, self.process = 0, None

    def begin(self):
        self.process = subprocess.Popen(
            [self.kvfs, "serve", "--write", str(self.store), "--listen", f"unix:{self.socket}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        line = self.process.stdout.readline()
        if "is served at" not in line:
            raise SystemExit(f"the server does not begin: {line}{self.process.stdout.read()}")

    def kill(self):
        self.generation += 1
        self.record.note("server killed")
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        self.generation += 1
        self.process.terminate()
        if self.process.wait() != 0:
            raise SystemExit(f"the server ended with {self.process.returncode}")
        self.process.stdout.close()


class Worker:
    """One file, one name and one log, and how far they have come."""

    def __init__(self, n, lab, server, record):
        self.name, self.lab, self.server, self.record = f"w{n}", lab, server, record
        self.mnt = lab.mnt / self.name
        self.mnt.mkdir()
        self.version = 0
        # In their order; and those whose commit may have happened.
        self.committed, self.possible = [], set()
        # The daemon that may be killed, as a descriptor of its process, and whether it was.
        self.lock, self.daemon, self.was_killed = threading.Lock(), None, False
        self.counts = {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def kvfs(self, *args):
        return subprocess.run([self.lab.kvfs, *args], capture_output=True, text=True)

    # The mount.

    def mount(self, *more):
        address = f"kvfs+unix:{self.server.socket}"
        options = ["--json", "mount", address, str(self.mnt), "--txn", *more]
        # The server is down between its kill and its next start, however long that takes here.
        until = time.monotonic() + 120
        while time.monotonic() < until:
            done = self.kvfs(*options)
            if done.returncode == 0:
                told = json.loads(done.stdout)
                with self.lock:
                    self.daemon, self.was_killed = os.pidfd_open(told["pid"]), False
                return told
            said = done.stdout + done.stderr
            if "is over" in said or "has committed" in said:
                raise Over(said)
            # The server may be down.
            self.last_said = said
            time.sleep(0.1)
        raise Finding(f"no mount within two minutes: {self.last_said}")

    def killed(self):
        """Whether the daemon was killed. A kill under way is over when this returns: an error of
        the mount may reach a thread before the thread that kills has noted the kill."""
        with self.lock:
            return self.was_killed

    def kill_daemon(self):
        """`True`: there was one."""
        with self.lock:
            daemon, self.daemon = self.daemon, None
            if daemon is None:
                return False
            try:
                signal.pidfd_send_signal(daemon, signal.SIGKILL)
            except ProcessLookupError:
                # It has just ended by itself.
                return False
            finally:
                self.was_killed = True
                ended = select.select([daemon], [], [], 60)[0]
                os.close(daemon)
            self.record.note(self.name, "daemon killed")
            if not ended:
                raise SystemExit(f"the daemon of {self.name} was killed and has not ended")
            return True

    def clear(self):
        """Takes the mount away, however it is."""
        with self.lock:
            if self.daemon is not None:
                os.close(self.daemon)
            self.daemon = None
        subprocess.run(["umount", "-l", str(self.mnt)], capture_output=True)

    # A transaction.

    def run(self, rnd, stop, problems):
        try:
            while not stop.is_set() and not problems:
                self.version += 1
                self.transaction(rnd)
        except Exception as e:  # noqa: BLE001 - every one is a finding
            problems.append(f"{self.name}, version {self.version}: {e!r}")

    def transaction(self, rnd):
        durable = rnd.random() < 0.67
        generation = self.server.generation
        self.synced, self.key, self.is_shared = set(), None, False
        try:
            told = self.mount(*(["--durable"] if durable else []))
            self.key = told.get("key")
            if durable and not self.key:
                raise Finding(f"a durable transaction without a key: {told}")
            self.attempt(rnd, lambda: self.write_all(rnd), durable)
            self.end(rnd, durable)
        except Over as e:
            self.count("over")
            if durable and self.synced:
                raise Finding(f"a durable transaction that was synced is over: {e}") from e
            if not durable and self.server.generation == generation and not self.killed():
                raise Finding(f"over, though nothing was killed: {e}") from e
            self.record.note(self.name, self.version, "is over")
            self.clear()

    def attempt(self, rnd, does, durable):
        """Does it; when the daemon is killed, goes on with the transaction, if that is durable."""
        for _ in range(50):
            try:
                return does()
            except OSError as e:
                if self.killed() and e.errno in (
                    errno.ENOTCONN,
                    errno.ECONNABORTED,
                    errno.ENOENT,
                    errno.ENODEV,
                    errno.EIO,
                ):
                    self.clear()
                    if not durable:
                        raise Over("its daemon was killed") from e
                    self.take_up()
                elif e.errno == errno.ESTALE:
                    self.clear()
                    if not durable:
                        raise Over("it has ended") from e
                    # What was not synced is lost with the server.
                    self.take_up()
                else:
                    raise
        raise Finding("it is killed again and again")

    def take_up(self):
        self.count("taken up")
        for _ in range(50):
            self.mount("--key", self.key)
            try:
                self.verify_steps()
                return
            except OSError as e:
                if not self.killed():
                    raise
                self.record.note(self.name, "killed again", e)
                self.clear()
        raise Finding("no mount lives for long enough")

    def verify_steps(self):
        """Each file whose fsync has returned is there, and whole."""
        for step in self.synced:
            name = f"{self.name}-step-{step}"
            try:
                data = (self.mnt / name).read_bytes()
            except FileNotFoundError:
                raise Finding(f"{name} was synced, and is not there") from None
            if version_of(name, data) != self.version:
                raise Finding(f"{name} was synced, and has {data[:60]!r}")

    def write_all(self, rnd):
        """What was not synced is lost with a daemon, so all of it is written again."""
        self.write(rnd)
        for step in range(1, 8):
            # The next version has steps of its own.
            if rnd.random() < 0.9:
                self.remove_step(step)

    def write(self, rnd):
        mine = f"{self.name}-"
        for step in range(1, rnd.randrange(2, 7)):
            if step in self.synced:
                continue
            name = f"{mine}step-{step}"
            syncs = rnd.random() < 0.5
            write_file(self.mnt / name, content(name, self.version, rnd.choice(SIZES)), False)
            if syncs:
                self.record.note(self.name, self.version, "syncs step", step)
                fd = os.open(self.mnt / name, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
                self.record.note(self.name, self.version, "has synced step", step)
                self.synced.add(step)
                self.count("syncs")
        data = content(self.name, self.version, rnd.choice(SIZES))
        write_file(self.mnt / f"new-{self.name}", data, rnd.random() < 0.3)
        os.rename(self.mnt / f"new-{self.name}", self.mnt / self.name)
        for other in os.listdir(self.mnt):
            if other.startswith(f"{mine}v") and other != f"{mine}v{self.version}":
                os.unlink(self.mnt / other)
        (self.mnt / f"{mine}v{self.version}").touch()
        log = self.mnt / f"{mine}log"
        lines = log.read_text().split() if log.exists() else []
        if str(self.version) not in lines:
            with log.open("a") as file:
                file.write(f"{self.version}\n")
        if rnd.random() < 0.25:
            self.is_shared = True
            (self.mnt / "shared").write_text(f"{self.name} {self.version}\n")

    def end(self, rnd, durable):
        verb = "abort" if rnd.random() < 0.1 else "commit"
        self.record.note(self.name, self.version, verb)
        may_have_committed = False
        for _ in range(50):
            done = self.kvfs(verb, str(self.mnt))
            said = done.stdout + done.stderr
            self.record.note(self.name, self.version, verb, "ended with", done.returncode, said)
            if done.returncode == 0:
                if verb == "commit":
                    self.count("committed")
                    self.committed.append(self.version)
                self.clear()
                return
            if done.returncode == CONFLICT:
                self.count("conflicts")
                if not self.is_shared:
                    raise Finding(f"in conflict with none: {said}")
                self.attempt_to_abort()
                return
            was_killed = self.killed()
            # Who is told that it is over is told that it has not committed.
            if verb == "commit" and (was_killed or "is over" not in said):
                may_have_committed = True
            self.clear()
            try:
                if not was_killed and durable and "over" not in said and "stale" not in said:
                    raise Finding(f"{verb} ended with {done.returncode}: {said}")
                if not durable:
                    raise Over(said)
                self.take_up()
                # What was not synced may be lost with its daemon, or its server.
                self.attempt(rnd, lambda: self.write_all(rnd), durable)
            except Over:
                # It has committed, or is gone.
                if may_have_committed:
                    self.count("commits without an answer")
                    self.possible.add(self.version)
                    return
                if verb == "abort":
                    return
                raise
        raise Finding(f"{verb} never ends: {said}")

    def attempt_to_abort(self):
        """After a conflict. A durable one whose daemon was killed stays for ever."""
        self.kvfs("abort", str(self.mnt))
        self.clear()

    def remove_step(self, step):
        path = self.mnt / f"{self.name}-step-{step}"
        # From here on it need not be there.
        self.synced.discard(step)
        try:
            path.unlink()
        except FileNotFoundError:
            pass

    # What others see.

    def verify(self, tree, where, problems):
        mine = f"{self.name}-"
        names = [n for n in os.listdir(tree) if n.startswith(f"{mine}v")]
        path, log = tree / self.name, tree / f"{mine}log"
        data = path.read_bytes() if path.exists() else None
        version = 0 if data is None else version_of(self.name, data)
        lines = [int(line) for line in log.read_text().split()] if log.exists() else []
        wanted = [f"{mine}v{version}"] if version else []
        at_most = sorted(set(self.committed) | self.possible)
        if version is None:
            problems.append(f"{where}: {self.name} is damaged: {data[:60]!r}")
        elif names != wanted:
            problems.append(f"{where}: {self.name} has version {version} and names {names}")
        elif (lines[-1] if lines else 0) != version:
            problems.append(f"{where}: {self.name} has version {version} and lines {lines[-5:]}")
        elif [line for line in lines if line not in self.possible] != self.committed or any(
            line not in at_most for line in lines
        ):
            problems.append(
                f"{where}: {self.name} has lines {lines}; {self.committed} were acknowledged, "
                f"{sorted(self.possible)} begun"
            )
        elif lines != sorted(set(lines)):
            problems.append(f"{where}: {self.name} has lines {lines}")
        else:
            # What is there is certain from here on.
            self.committed, self.possible = lines, set()


def verify(lab, server, workers, where, problems):
    tree = lab.mnt / "seen"
    tree.mkdir(exist_ok=True)
    lab.run("mount", f"kvfs+unix:{server.socket}", str(tree), "--txn")
    try:
        for worker in workers:
            worker.verify(tree, where, problems)
        left = [n for n in os.listdir(tree) if n.startswith("new-")]
        if left:
            problems.append(f"{where}: of transactions that did not commit there is {left}")
    finally:
        lab.run("abort", str(tree))


def check(lab, where, problems):
    found = subprocess.run([lab.kvfs, "check", str(lab.store)], capture_output=True, text=True)
    if found.returncode != 0:
        problems.append(
            f"{where}: check ended with {found.returncode}: {found.stdout}{found.stderr}"
        )


def kill_some(rnd, lab, server, workers, where, problems):
    """Kills one of them at a random moment. Returns how many that were."""
    # The random moment itself, not a wait for a condition.
    time.sleep(rnd.uniform(0.0, 0.5))
    if rnd.random() < 0.5:
        return int(rnd.choice(workers).kill_daemon())
    server.kill()
    if rnd.random() < 0.1:
        check(lab, where, problems)
    time.sleep(rnd.uniform(0.0, 0.3) * rnd.randrange(2))
    server.begin()
    return 1


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--kvfs", required=True)
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--workers", type=int, default=3)
    p.add_argument("--round", type=int, default=20, help="kills until all is compared")
    p.add_argument("--seed-base", type=int, default=None, help="the seed of the first round")
    p.add_argument("--dir", default=None)
    a = p.parse_args()
    base = a.seed_base if a.seed_base is not None else int.from_bytes(os.urandom(4), "little")
    print(f"--seed-base {base}", flush=True)
    begun = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="kvfs-wire-", dir=a.dir))
    lab = Lab(str(Path(a.kvfs).resolve()), work)
    record = Record(work / "record.txt")
    server = Server(lab.kvfs, lab.store, work / "socket", record)
    workers = [Worker(n, lab, server, record) for n in range(a.workers)]
    problems, done, compared, seed = [], 0, 0, base
    server.begin()
    try:
        while done < a.kills and not problems:
            rnd, stop, threads = random.Random(seed), threading.Event(), []
            for worker in workers:
                arguments = (random.Random(rnd.random()), stop, problems)
                threads.append(threading.Thread(target=worker.run, args=arguments, daemon=True))
            for thread in threads:
                thread.start()
            until = min(done + a.round, a.kills)
            while done < until and not problems:
                done += kill_some(rnd, lab, server, workers, f"round {seed}", problems)
            stop.set()
            for thread in threads:
                thread.join(120)
                if thread.is_alive():
                    problems.append(f"round {seed}: a worker has not ended within two minutes")
            if not problems:
                verify(lab, server, workers, f"round {seed}", problems)
                compared += len(workers)
                server.end()
                check(lab, f"round {seed}", problems)
                server.begin()
            seed += 1
            totals = {}
            for worker in workers:
                for what, count in worker.counts.items():
                    totals[what] = totals.get(what, 0) + count
            told = ", ".join(f"{count} {what}" for what, count in sorted(totals.items()))
            print(f"\r{done}/{a.kills} kills, {compared} compared: {told}", end="", flush=True)
        print()
    finally:
        for worker in workers:
            worker.kill_daemon()
            worker.clear()
        subprocess.run(["umount", "-l", str(lab.mnt / "seen")], capture_output=True)
        server.kill()
        if not problems:
            shutil.rmtree(work, ignore_errors=True)
    for what in problems:
        print(what, file=sys.stderr)
    if problems:
        print(f"the record: {work / 'record.txt'}", file=sys.stderr)
        sys.exit(1)
    if not all(worker.committed for worker in workers):
        sys.exit("a worker has committed nothing, so nothing was tested")
    took = time.monotonic() - begun
    print(
        f"{done} kills in {took:.0f} s, {took / done:.2f} s each: everything acknowledged was "
        f"there, whole and once, every check clean; go on: --seed-base {seed}"
    )


if __name__ == "__main__":
    main()
