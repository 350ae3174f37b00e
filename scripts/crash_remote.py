#!/usr/bin/env python3
"""SIGKILL of the writer of a store in a bucket, loss of its machine, and a second machine that
takes the store while the first one works, with `durability=remote`, on a server of S3.

    scripts/remote_servers.sh scripts/crash_remote.py --kvfs target/release/kvfs

Each round lets several workers write, rename over, fsync and set keys, and ends in one of three
ways at a random moment:

- *killed*: the daemon is killed, and mounted again on the same machine;
- *lost*: the daemon is killed, all that its machine has is deleted, and another one takes the
  store;
- *taken*: another machine takes the store while the first one goes on; then the first one is
  killed.

Then the store is compared with what had been acknowledged, as in `crash_live.py`: a file whose
fsync returned and a key whose SYNC returned are there, or a later version that was on its way; a
file renamed over another is whole. So a machine that was displaced and acknowledges a sync is
found, since the machine that displaced it does not have that. At the end `kvfs check` reads the
store once more from the bucket alone. The seed of a round makes its choices (not the timing)
repeatable."""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from crash_live import (
    Lab,
    Ledger,
    Redis,
    churn_worker,
    fsync_worker,
    key_worker,
    rename_worker,
    sync_dir,
    verify,
)

ENDS = ["killed", "lost", "taken"]


class Machine(Lab):
    """One machine: a directory for what it keeps, and a mount."""

    def __init__(self, kvfs, work, number, address):
        self.kvfs, self.address = kvfs, address
        self.home, self.mnt = work / f"machine{number}", work / f"mnt{number}"
        self.mnt.mkdir()

    def mount(self, *words):
        options = ["-o", "durability=remote,publish_every=1", "--cache", str(self.home)]
        self.run("mount", "--write", *words, *options, self.address, str(self.mnt))
        daemon = json.loads(self.run("stat", str(self.mnt), "--json"))["daemon"]
        self.socket = Path(daemon["socket"])
        # `verify` of crash_live.py looks for the socket next to the store.
        self.store = str(self.socket).removesuffix(".sock")
        return daemon["pid"]


def until_refused(worker, problems):
    """Runs a worker until the daemon is killed or displaced: only then may a call fail."""

    def run(*args):
        ending = args[-1]
        try:
            worker(*args)
        except (OSError, RuntimeError, ValueError) as e:
            if not ending.wait(timeout=30):
                problems.append(f"{worker.__name__}: {e!r} before the end of the round")

    return run


class Run:
    def __init__(self, kvfs, work):
        self.kvfs, self.work = kvfs, work
        self.address = f"s3://{os.environ['KVFS_S3_BUCKET']}/crash"
        subprocess.run([kvfs, "create", self.address], check=True, stdout=subprocess.DEVNULL)
        self.machines = self.compared = self.acknowledged = 0
        self.problems, self.ends = [], Counter()
        self.machine = self.next_machine()

    def next_machine(self):
        self.machines += 1
        return Machine(self.kvfs, self.work, self.machines, self.address)

    def take(self, machine):
        """Takes the store while another machine has it. A publication that comes in between is the
        only reason to try again."""
        for _ in range(20):
            try:
                return machine.mount("--take")
            except SystemExit as e:
                if "published by another process" not in str(e):
                    raise
        raise SystemExit("the store was not taken in 20 attempts")

    def round(self, seed):
        rnd, ledger = random.Random(seed), Ledger()
        stop, ending = threading.Event(), threading.Event()
        machine, end = self.machine, rnd.choice(ENDS)
        pid = machine.mount()
        # Versions start anew in every round, so what earlier rounds left is removed first.
        for f in machine.mnt.iterdir():
            shutil.rmtree(f) if f.is_dir() else f.unlink()
        client = Redis(machine.socket)
        client.call("DELPREFIX", "key-")
        client.call("SYNC")
        sync_dir(machine.mnt)
        jobs = [
            (fsync_worker, machine.mnt, 0),
            (fsync_worker, machine.mnt, 1),
            (rename_worker, machine.mnt, 0),
            (churn_worker, machine.mnt, 0),
            (key_worker, machine.socket, 0),
            (key_worker, machine.socket, 1),
        ]

        class Stop:
            """Of the workers of crash_live.py: they go on until it is set."""

            is_set, wait = stop.is_set, ending.wait

        threads = [
            threading.Thread(
                target=until_refused(worker, self.problems),
                args=(random.Random(rnd.random()), place, ledger, n, Stop),
                daemon=True,
            )
            for worker, place, n in jobs
        ]
        for t in threads:
            t.start()
        time.sleep(rnd.uniform(0.05, 1.5))  # the random moment itself, not a wait for a condition
        to = machine
        if end == "taken":
            to = self.next_machine()
            ending.set()
            self.take(to)
            # The first machine goes on for a moment: what it acknowledges now is lost.
            time.sleep(rnd.uniform(0, 0.5))
        stop.set()
        ending.set()
        machine.kill(pid)
        for t in threads:
            t.join()
        machine.clear()
        if end == "lost":
            shutil.rmtree(machine.home)
            to = self.next_machine()
            to.mount("--take")
        elif end == "killed":
            to.mount()
        self.acknowledged += len(ledger.acknowledged)
        self.compared += verify(to, ledger, self.problems, f"seed {seed}, {end}")
        to.run("umount", str(to.mnt))
        if to is not machine:
            shutil.rmtree(machine.home, ignore_errors=True)
        self.machine = to
        self.ends[end] += 1

    def check(self):
        """Reads all of the store from the bucket alone."""
        copy = self.work / "copy.kvfs"
        for words in (["pull", self.address, str(copy)], ["check", str(copy)]):
            done = subprocess.run([self.kvfs, *words], capture_output=True, text=True)
            if done.returncode != 0:
                self.problems.append(f"{words[0]} ended with {done.returncode}: {done.stderr}")


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--kvfs", required=True)
    p.add_argument("--rounds", type=int, default=200)
    p.add_argument("--seed-base", type=int, default=None, help="the seed of the first round")
    p.add_argument("--keep", action="store_true", help="keep the files when something is wrong")
    a = p.parse_args()
    base = a.seed_base if a.seed_base is not None else int.from_bytes(os.urandom(4), "little")
    print(f"--seed-base {base}", flush=True)
    os.environ.update(AWS_ENDPOINT_URL_S3=os.environ["KVFS_S3_ENDPOINT"], AWS_ALLOW_HTTP="true")
    work = Path(tempfile.mkdtemp(prefix="kvfs-crash-remote-"))
    begun, run = time.monotonic(), Run(str(Path(a.kvfs).resolve()), work)
    try:
        for seed in range(base, base + a.rounds):
            run.round(seed)
            said = f"{run.compared} names compared, {run.acknowledged} acknowledged"
            print(f"\r{dict(run.ends)}, {said}", end="", flush=True)
            if run.problems:
                break
        else:
            run.check()
        print()
    finally:
        for mnt in work.glob("mnt*"):
            subprocess.run([run.kvfs, "umount", str(mnt)], capture_output=True)
            subprocess.run(["umount", "-l", str(mnt)], capture_output=True)
        if not (a.keep and run.problems):
            shutil.rmtree(work, ignore_errors=True)
    for what in run.problems:
        print(what, file=sys.stderr)
    if run.problems:
        sys.exit(1)
    print(
        f"{sum(run.ends.values())} rounds in {time.monotonic() - begun:.0f} s: everything "
        "acknowledged was there, every rename whole"
    )


if __name__ == "__main__":
    main()
