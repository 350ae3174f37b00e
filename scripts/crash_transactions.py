#!/usr/bin/env python3
"""SIGKILL of the daemon at random moments of transactions over files and keys, on a real mount.

Each worker goes through versions, one transaction for each: begun on the socket, it writes a file
under `.kvfs/txn/ID`, renames it (over the one before, or to a new name, and then the old one goes),
sets a key to the same content on a connection that has joined, and commits with SYNC. Some abort,
some only commit, some let the key come first, some have more than fits into a file's node, some go
back to a savepoint behind which they have spoiled everything (with a range of keys deleted and a
tree copied), some are durable and outlive a kill, to be committed afterwards. Every round mounts
the store, kills the daemon at a random moment, checks the store, mounts it again and looks:

- the file and the key of a worker have the same version, whole, under one name: both of a
  transaction, or neither;
- that version was acknowledged with SYNC, or is a later one whose commit had begun, and was not
  aborted;
- no transaction is open but durable ones, of which those that were kept are; no file of one that
  did not commit is there, and `kvfs check` finds nothing.

Versions go on over all rounds, so that every store is old when it is killed. Every SIGKILL counts.
The seed of a round makes its choices (not the timing) repeatable; a run goes on where the last one
ended with --seed-base."""

import argparse
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from crash_live import Lab, Redis, content, version_of, write_file

SIZES = [40, 300, 3000, 4096, 5000, 20_000, 70_000, 300_000]


class Left(Exception):
    """A durable transaction was left open for the next round."""


class Worker:
    """One file and one key, and how far they have come."""

    def __init__(self, n, isolation):
        self.name, self.isolation = f"pair-{n}", isolation
        self.version = 0
        # Durable for certain; and what else may be there: commits that had begun.
        self.acknowledged, self.possible = 0, set()
        # A durable transaction that was kept, with the version in it and its name; and all
        # that were not durable.
        self.kept, self.passing = None, set()
        # Of this round.
        self.committed = self.refused = self.taken_up = 0

    def run(self, rnd, mnt, sock, killed, problems):
        """Until the daemon is gone, which shows as an error: before that, an error is a finding."""
        try:
            control, joined = Redis(sock), Redis(sock)
            while not killed.is_set():
                self.version += 1
                self.transaction(rnd, mnt, control, joined, killed)
        except Left:
            pass
        except Exception as e:  # noqa: BLE001 - every one is a finding, but for what a kill does
            if not (killed.is_set() and isinstance(e, OSError)):
                problems.append(f"{self.name}, version {self.version}: {e!r}")

    def may_be_refused(self, e):
        """For the sake of another transaction, and so without a trace.
        Snapshots that touch different files never are."""
        if isinstance(e, OSError):
            return self.isolation == "SER" and e.errno in (errno.EDEADLK, errno.ESTALE)
        return self.isolation == "SER" and str(e).startswith(("LOCKED", "NOTXN"))

    def spoil(self, rnd, control, joined, inside, txn, target):
        """Changes all of it, more than fits in memory perhaps, and goes back."""
        joined.call("TXN", "SAVEPOINT", "here")
        for n in range(rnd.choice([1, 30])):
            joined.call("SET", f"{self.name}:{n}", content(self.name, n, 70_000))
        joined.call("DELRANGE", self.name, f"{self.name}~")
        write_file(inside / target, b"of no account", False)
        control.call("CLONETREE", f"/{target}", f"/new-copy-{self.name}", "TXN", txn)
        os.unlink(inside / target)
        joined.call("TXN", "ROLLBACK", "here")

    def take_up(self, mnt, client, problems, where):
        """A durable transaction that was kept has all of it, and commits."""
        (txn, version, name), self.kept = self.kept, None
        try:
            found = version_of(self.name, (mnt / ".kvfs" / "txn" / txn / name).read_bytes())
        except OSError as e:
            problems.append(f"{where}: the durable transaction {txn} has no {name}: {e}")
            return
        if found != version:
            problems.append(
                f"{where}: {name} in the durable transaction {txn} has version {found}, "
                f"{version} was kept"
            )
            return
        client.call("TXN", "COMMIT", txn, "SYNC")
        self.taken_up += 1
        self.acknowledged = version
        self.possible = {version}
        names, files, key = find(client, mnt, self)
        if (names, files, key) != ([name], [version], version):
            problems.append(
                f"{where}: after the commit of {txn}, which had version {version} in {name}: "
                f"{names} {files}, key {key}"
            )

    def transaction(self, rnd, mnt, control, joined, killed):
        version, end = self.version, rnd.choices(["sync", "commit", "abort"], [8, 1, 1])[0]
        data = content(self.name, version, rnd.choice(SIZES))
        durable = ["DURABLE"] if self.isolation == "SI" and rnd.random() < 0.2 else []
        txn = control.call(
            "TXN", "BEGIN", self.isolation, "LABEL", self.name, "IDLE", "60", *durable
        ).decode()
        if not durable:
            self.passing.add(txn)
        inside = mnt / ".kvfs" / "txn" / txn
        try:
            joined.call("TXN", "JOIN", txn)
            key_first = rnd.random() < 0.5
            if key_first:
                joined.call("SET", self.name, data)
            before = [f for f in os.listdir(inside) if f.startswith(f"{self.name}.")]
            # A name of its own, or the one that is there.
            target = f"{self.name}.{version}" if rnd.random() < 0.5 or not before else before[0]
            write_file(inside / f"new-{self.name}", data, rnd.random() < 0.2)
            os.rename(inside / f"new-{self.name}", inside / target)
            for f in before:
                if f != target:
                    os.unlink(inside / f)
            if not key_first:
                joined.call("SET", self.name, data)
            if rnd.random() < 0.25:
                self.spoil(rnd, control, joined, inside, txn, target)
            if durable and rnd.random() < 0.3:
                control.call("TXN", "KEEP", txn)
                # Left as it is until the kill, behind which it must be there.
                self.kept = (txn, version, target)
                killed.wait()
                raise Left
            if end == "abort":
                control.call("TXN", "ABORT", txn)
                return
            self.possible.add(version)
            control.call("TXN", "COMMIT", txn, *(["SYNC"] if end == "sync" else []))
        except (RuntimeError, OSError) as e:
            if not self.may_be_refused(e):
                raise
            self.refused += 1
            self.possible.discard(version)
            self.abandon(control, txn)
            return
        self.committed += 1
        if end == "sync":
            self.acknowledged = version

    @staticmethod
    def abandon(control, txn):
        try:
            control.call("TXN", "ABORT", txn)
        except RuntimeError:
            pass  # it is over already


def find(client, mnt, worker):
    """What is there of a pair: names of the file, version of the file, version of the key.
    None: not there; -1: damaged."""

    def which(data):
        if data is None:
            return None
        version = version_of(worker.name, data)
        return -1 if version is None else version

    names = [f for f in os.listdir(mnt) if f.startswith(f"{worker.name}.")]
    files = [which((mnt / f).read_bytes()) for f in names]
    return names, files, which(client.call("GET", worker.name))


def verify(lab, workers, problems, round_number):
    client = Redis(f"{lab.store}.sock")
    for worker in workers:
        where = f"round {round_number}: {worker.name}"
        names, files, key = find(client, lab.mnt, worker)
        if len(names) > 1:
            problems.append(f"{where} has more than one name: {names} with {files}, key {key}")
            continue
        file = files[0] if files else None
        if file != key:
            problems.append(
                f"{where}: the file {names} has version {file}, the key {key}; "
                f"{worker.acknowledged} was acknowledged"
            )
        elif file is None:
            if worker.acknowledged:
                problems.append(f"{where} is gone; {worker.acknowledged} was acknowledged")
        elif file < worker.acknowledged or file not in worker.possible:
            problems.append(
                f"{where} has version {file}; {worker.acknowledged} was acknowledged, "
                f"{max(worker.possible, default=0)} begun"
            )
        # From here on this one is what was there, and durable.
        worker.acknowledged = file or 0
        worker.possible = {worker.acknowledged}
    left = [f for f in os.listdir(lab.mnt) if f.startswith("new-")]
    if left:
        problems.append(
            f"round {round_number}: of transactions that did not commit there is {left}"
        )
    for worker in workers:
        if worker.kept and not problems:
            worker.take_up(lab.mnt, client, problems, f"round {round_number}: {worker.name}")
    # Others may be there that were durable, but were not reported as kept.
    for txn in os.listdir(lab.mnt / ".kvfs" / "txn"):
        if any(txn in worker.passing for worker in workers):
            problems.append(f"round {round_number}: transaction {txn} is open after a restart")
        client.call("TXN", "ABORT", txn)
    for worker in workers:
        # A number may come again after a kill.
        worker.passing.clear()
    # What was found was read from the journal or the tree; make sure that it stays.
    client.call("SYNC")
    return len(workers)


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--kvfs", required=True)
    p.add_argument("--kills", type=int, default=200)
    p.add_argument(
        "--workers", type=int, default=4, help="with snapshot isolation; one more is serializable"
    )
    p.add_argument("--seed-base", type=int, default=None, help="the seed of the first round")
    p.add_argument("--dir", default=None)
    p.add_argument("--options", default="", help="of the mount, as for -o: transport=uring")
    p.add_argument("--keep", action="store_true", help="keep the store when something is wrong")
    a = p.parse_args()
    base = a.seed_base if a.seed_base is not None else int.from_bytes(os.urandom(4), "little")
    print(f"--seed-base {base}", flush=True)
    begun = time.monotonic()
    kvfs = str(Path(a.kvfs).resolve())
    work = Path(tempfile.mkdtemp(prefix="kvfs-crash-", dir=a.dir))
    problems, compared, committed, refused, taken_up = [], 0, 0, 0, 0
    lab = Lab(kvfs, work, a.options)
    workers = [Worker(n, "SI") for n in range(a.workers)] + [Worker(a.workers, "SER")]
    sock = Path(f"{lab.store}.sock")
    done, seed = 0, base
    try:
        while done < a.kills and not problems:
            rnd = random.Random(seed)
            pid = lab.mount()
            killed = threading.Event()
            threads = []
            for w in workers:
                arguments = (random.Random(rnd.random()), lab.mnt, sock, killed, problems)
                threads.append(threading.Thread(target=w.run, args=arguments, daemon=True))
            for t in threads:
                t.start()
            # The random moment itself, not a wait for a condition.
            time.sleep(rnd.uniform(0.02, 0.8))
            killed.set()
            lab.kill(pid)
            for t in threads:
                t.join()
            lab.clear()
            done += 1
            found = subprocess.run([kvfs, "check", str(lab.store)], capture_output=True, text=True)
            if found.returncode != 0:
                problems.append(
                    f"round {seed}: check ended with {found.returncode}: "
                    f"{found.stdout}{found.stderr}"
                )
            pid = lab.mount()
            compared += verify(lab, workers, problems, seed)
            committed += sum(w.committed for w in workers)
            refused += sum(w.refused for w in workers)
            taken_up += sum(w.taken_up for w in workers)
            for w in workers:
                w.committed = w.refused = w.taken_up = 0
            # Half of the rounds end with a clean unmount, the others with a second kill right after
            # recovery.
            if rnd.random() < 0.5:
                lab.run("umount", str(lab.mnt))
            else:
                lab.kill(pid)
                lab.clear()
                done += 1
            seed += 1
            print(
                f"\r{done}/{a.kills} kills, {compared} pairs compared, {committed} transactions "
                f"committed, {refused} refused, {taken_up} taken up after a kill",
                end="",
                flush=True,
            )
        print()
        lab.run("check", str(lab.store))
    finally:
        subprocess.run([kvfs, "umount", str(lab.mnt)], capture_output=True)
        subprocess.run(["umount", "-l", str(lab.mnt)], capture_output=True)
        if not (a.keep and problems):
            shutil.rmtree(work, ignore_errors=True)
    for what in problems:
        print(what, file=sys.stderr)
    if problems:
        sys.exit(1)
    if committed == 0:
        sys.exit("nothing was committed, so nothing was tested")
    took = time.monotonic() - begun
    print(
        f"{done} kills in {took:.0f} s, {took / done:.2f} s each: every file had its key, "
        f"everything acknowledged was there, every check clean; go on: --seed-base {seed}"
    )


if __name__ == "__main__":
    main()
