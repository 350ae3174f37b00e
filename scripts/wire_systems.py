"""What scripts/bench_split.py compares: KVFS whose store is at the other end of a wire, ext4 on a
network block device, and KVFS whose store is here; and the wire between, which delays and counts.

This kernel may have no client of NBD, so the device is nbdfuse, a file in FUSE whose reads,
writes and flushes are requests of NBD, with a loop device on it that keeps no pages of its own
(--direct-io); nbdfuse has ten requests under way at most. What goes over the wire is NBD,
between nbdfuse and nbdkit."""

import ctypes
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 1800
NUMBERS, DELAY, UP, DOWN, REQUESTS, PIECES, KINDS, BYTES_OF_KINDS = 72, 0, 1, 2, 3, 5, 8, 40
OF_KVFS = (
    "? HELLO VIEW GETMANY GETPART ITERATE DROP BEGIN APPLY COMMIT ABORT SYNC SNAPSHOT CLONE LEASE "
    "SAVEPOINT ROLLBACK RESERVE APPLYPART LIST REMOVE"
).split()
OF_NBD = "read write disconnect flush trim cache zeroes status".split()
libc = ctypes.CDLL(None, use_errno=True)


def sh(*words, **options):
    options.setdefault("timeout", LIMIT)
    options.setdefault("stdin", subprocess.DEVNULL)
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout}"
        )
    return done.stdout


def wait_until(true, what, process=None):
    deadline = time.monotonic() + 60
    while not true():
        if process and process.poll() is not None:
            raise RuntimeError(f"{what} did not happen: exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen within a minute")
        time.sleep(0.01)


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Wire:
    """scripts/wire_delay.c between the sockets `near` and `far` in a directory."""

    def __init__(self, work, protocol):
        self.near, self.kinds = work / "near", OF_NBD if protocol == "nbd" else OF_KVFS
        program, numbers = work / "wire_delay", work / "counts"
        sh("cc", "-O2", "-o", program, HERE / "wire_delay.c", "-lpthread")
        numbers.write_bytes(bytes(NUMBERS * 8))
        self.process = subprocess.Popen([program, self.near, work / "far", numbers, protocol])
        wait_until(self.near.exists, "the proxy", self.process)
        with numbers.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), NUMBERS * 8)

    def set_round_trip(self, milliseconds):
        struct.pack_into("<Q", self.map, 8 * DELAY, round(milliseconds * 1e6 / 2))

    def counts(self):
        """Bytes both ways, requests, those of 128 KiB, and by kind of request, so far."""
        n = struct.unpack(f"<{NUMBERS}Q", self.map)
        kinds = {
            kind: (n[KINDS + i], n[BYTES_OF_KINDS + i])
            for i, kind in enumerate(self.kinds)
            if n[KINDS + i]
        }
        sums = {"bytes": n[UP] + n[DOWN], "up": n[UP], "requests": n[REQUESTS], "pieces": n[PIECES]}
        return {**sums, "kinds": kinds}

    def since(self, before):
        now = self.counts()
        kinds = {}
        for kind, (count, size) in now["kinds"].items():
            earlier = before["kinds"].get(kind, (0, 0))
            if count > earlier[0]:
                kinds[kind] = (count - earlier[0], size - earlier[1])
        sums = {what: now[what] - before[what] for what in ("bytes", "up", "requests", "pieces")}
        return {**sums, "kinds": kinds}

    def stop(self):
        end(self.process)


class System:
    """`dir` is the mount. `sync` returns when the other end has all names and what was synced,
    `settle` when it has everything, `close` when it is unmounted and durable there."""

    wire = None

    def __init__(self, work, kvfs):
        self.work, self.kvfs, self.dir = work / self.name, kvfs, work / self.name / "mnt"
        self.dir.mkdir(parents=True)
        try:
            self.make()
        except BaseException:
            self.remove()
            raise

    def set_round_trip(self, milliseconds):
        if self.wire:
            self.wire.set_round_trip(milliseconds)

    def sync(self):
        directory = os.open(self.dir, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def settle(self):
        self.sync()

    def remount(self):
        """Nothing is in the memory of this end afterwards."""
        self.close()
        self.mount()

    def remove(self):
        subprocess.run(["umount", "-l", str(self.dir)], capture_output=True, check=False)
        self.stop()
        shutil.rmtree(self.work, ignore_errors=True)

    def stop(self):
        pass


class Served(System):
    """`kvfs serve --write`, and a mount of a transaction, which each `close` commits."""

    name = "kvfs"
    server = None

    def make(self):
        self.store = self.work / "store.kvfs"
        sh(self.kvfs, "create", self.store)
        self.serve()
        self.mount()

    def serve(self):
        serve = [self.kvfs, "serve", "--write", self.store, "--listen", f"unix:{self.work}/far"]
        with (self.work / "log").open("ab") as log:
            self.server = subprocess.Popen(serve, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until((self.work / "far").exists, "the server", self.server)
        self.wire = Wire(self.work, "kvfs")

    def mount(self):
        sh(self.kvfs, "mount", f"kvfs+unix:{self.wire.near}", self.dir, "--txn")

    def close(self):
        sh(self.kvfs, "commit", self.dir)

    def settle(self):
        """An fsync of a directory is not one of the files in it, and a sync of the whole does not
        come to a file system in user space: the daemon sends by itself what is a second old. It has
        when nothing has gone over the wire for longer."""
        self.sync()
        sent, since = self.wire.counts()["bytes"], time.monotonic()
        while time.monotonic() < since + 1.6:
            time.sleep(0.05)
            if (now := self.wire.counts()["bytes"]) != sent:
                sent, since = now, time.monotonic()

    def told(self):
        """What the mount itself has counted."""
        return json.loads(sh(self.kvfs, "stat", self.dir, "--json"))["transaction"]["requests"]

    def stop(self):
        if self.server:
            end(self.server)
        if self.wire:
            self.wire.stop()


class Nbd(System):
    """ext4 on NBD, with the options that mkfs and mount have by default."""

    name = "ext4"
    server = client = loop = None
    SIZE = 8 << 30

    def make(self):
        image, device = self.work / "image", self.work / "device"
        device.mkdir()
        with image.open("wb") as file:
            file.truncate(self.SIZE)
        nbdkit = ["nbdkit", "-f", "-t", "64", "-U", self.work / "far", "file", image]
        self.server = subprocess.Popen(nbdkit, stdin=subprocess.DEVNULL)
        wait_until((self.work / "far").exists, "nbdkit", self.server)
        self.wire = Wire(self.work, "nbd")
        nbdfuse = ["nbdfuse", device / "disk", "--unix", self.wire.near]
        self.client = subprocess.Popen(nbdfuse, stdin=subprocess.DEVNULL)
        wait_until(lambda: os.path.ismount(device), "nbdfuse", self.client)
        self.loop = sh("losetup", "--direct-io=on", "-f", "--show", device / "disk").strip()
        self.sys = Path("/sys/block") / Path(self.loop).name
        if (self.sys / "loop/dio").read_text().strip() != "1":
            raise RuntimeError(f"{self.loop} keeps pages of its own")
        # A loop device takes more because of its largest request; a disk of NBD does not.
        (self.sys / "queue/read_ahead_kb").write_text("128")
        sh("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.loop)
        self.mount()

    def mount(self):
        sh("mount", "-t", "ext4", self.loop, self.dir)

    def close(self):
        sh("umount", self.dir)

    def sync(self):
        directory = os.open(self.dir, os.O_RDONLY)
        try:
            if libc.syncfs(directory) != 0:
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(directory)

    def stop(self):
        if self.loop:
            subprocess.run(["losetup", "-d", self.loop], capture_output=True, check=False)
        device = str(self.work / "device")
        subprocess.run(["umount", "-l", device], capture_output=True, check=False)
        for process in (self.client, self.server):
            if process:
                end(process)
        if self.wire:
            self.wire.stop()


class Here(System):
    """The store on this machine, mounted without a wire."""

    name = "local"

    def make(self):
        self.store = self.work / "store.kvfs"
        sh(self.kvfs, "create", self.store)
        self.mount()

    def mount(self):
        sh(self.kvfs, "mount", self.store, self.dir)

    def close(self):
        sh(self.kvfs, "umount", self.dir)
