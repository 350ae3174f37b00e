#!/usr/bin/env python3
"""File systems over one bucket, next to each other: KVFS (`kvfs mount --write`), rclone mount and
s3fs. Each step ends when the bucket has what was written; each answer of the server comes 30 ms
late (toxiproxy). Requests are the lines of the server's access log.

    scripts/remote_servers.sh scripts/bench_buckets.py target/release/kvfs [FILES [ROUNDS]]

Cold steps begin without a mount, without any cache, and end with the command; the mount is
included. The ways take turns, ROUNDS times (3); the table has medians. Writes it in Markdown to
standard output. Needs root, rclone and s3fs; a way whose program is missing is left out, and said.
"""

import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from toxiproxy import Proxy, free_port

KVFS = os.path.abspath(sys.argv[1])
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 500
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
DELAY = 30
LARGE = 64 << 20
OVERWRITES = 100
BUCKET = os.environ["KVFS_S3_BUCKET"]


def sh(*words, **options):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr}{done.stdout}")
    return done.stdout


def wait_until(true, what, seconds=600):
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)


class Way:
    """One file system in a prefix of its own, and the directory that it is mounted at."""

    def __init__(self, work, endpoint, round_number):
        self.endpoint = endpoint
        self.prefix = f"{self.name}{round_number}"
        self.at, self.cache = work / self.prefix / "mnt", work / self.prefix / "cache"
        self.at.mkdir(parents=True)
        self.create()

    def create(self):
        pass

    def forget(self):
        """Unmounts, and removes what is kept on this machine."""
        self.umount()
        shutil.rmtree(self.cache, ignore_errors=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def umount(self):
        sh("umount", self.at)

    def settle(self):
        """Returns when the bucket has everything: fsync of the root is what each of them obeys, as
        FUSE passes no syncfs on."""
        directory = os.open(self.at, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


class Kvfs(Way):
    name = "kvfs"
    program = KVFS

    def address(self):
        return f"s3://{BUCKET}/{self.prefix}/store"

    def create(self):
        sh(KVFS, "create", self.address())

    def mount(self):
        options = ("--cache", self.cache, "-o", "durability=remote")
        sh(KVFS, "mount", "--write", self.address(), self.at, *options)

    def umount(self):
        sh(KVFS, "umount", self.at)


class Rclone(Way):
    name = "rclone mount"
    program = "rclone"

    def mount(self):
        self.control = f"127.0.0.1:{free_port()}"
        remote = f":s3,provider=Other,env_auth,force_path_style,endpoint='{self.endpoint}':"
        self.process = subprocess.Popen(
            [
                *("rclone", "mount", f"{remote}{BUCKET}/{self.prefix}", self.at),
                *("--cache-dir", self.cache, "--vfs-cache-mode", "full", "--vfs-write-back", "0s"),
                *("--rc", "--rc-addr", self.control, "--rc-no-auth"),
            ],
            stderr=subprocess.DEVNULL,
        )

        def is_there():
            if self.process.poll() is not None:
                raise RuntimeError(f"rclone ended with {self.process.returncode}")
            return os.path.ismount(self.at)

        wait_until(is_there, "the mount of rclone")

    def umount(self):
        super().umount()
        self.process.wait()

    def settle(self):
        super().settle()

        def nothing_waits():
            state = json.loads(sh("rclone", "rc", f"--url=http://{self.control}", "vfs/stats"))
            cache = state["diskCache"]
            return cache["uploadsInProgress"] == 0 and cache["uploadsQueued"] == 0

        wait_until(nothing_waits, "the upload of rclone")


class S3fs(Way):
    name = "s3fs"
    program = "s3fs"

    def mount(self):
        keys = self.at.parent / "keys"
        access, secret = (os.environ[f"AWS_{k}"] for k in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        keys.write_text(f"{access}:{secret}")
        keys.chmod(0o600)
        options = f"url={self.endpoint},endpoint=us-east-1,passwd_file={keys}"
        options += f",use_cache={self.cache},use_path_request_style"
        self.cache.mkdir(exist_ok=True)
        sh("s3fs", f"{BUCKET}:/{self.prefix}", self.at, "-o", options)
        wait_until(lambda: os.path.ismount(self.at), "the mount of s3fs")


def git(tree, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "gc.auto=0"]
    return sh("git", *who, "-c", "safe.directory=*", "-C", tree, *words)


def make_archive(work):
    """A repository of small files: its archive."""
    tree, drawn = work / "tree", random.Random(3)
    for n in range(FILES):
        folder = tree / str(n // 13 % 40) / str(n // 13)
        folder.mkdir(parents=True, exist_ok=True)
        size = drawn.choice([200, 900, 3000, 9000])
        (folder / f"file{n}.c").write_bytes(drawn.randbytes(size))
    git(work, "init", "--quiet", tree)
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "all")
    git(tree, "gc", "--quiet")
    sh("tar", "cf", work / "tree.tar", "-C", work, "tree")
    return work / "tree.tar"


def overwrite(file):
    drawn = random.Random(5)
    descriptor = os.open(file, os.O_WRONLY)
    for _ in range(OVERWRITES):
        os.pwrite(descriptor, drawn.randbytes(4096), drawn.randrange(LARGE // 4096) * 4096)
    os.fsync(descriptor)
    os.close(descriptor)


def measure(way, archive, log, take):
    """All steps of one way; `take(step, seconds, requests)` gets what each took."""

    def step(what, *works):
        before, began = len(log.read_bytes().splitlines()), time.monotonic()
        try:
            for work in works:
                work()
            seconds = time.monotonic() - began
        except RuntimeError as e:
            print(f"{way.name}: {what}: {e}", file=sys.stderr)
            seconds = math.nan
        take(what, seconds, len(log.read_bytes().splitlines()) - before)

    tree, large = way.at / "tree", way.at / "large"
    way.mount()
    step("`tar x` and sync", lambda: sh("tar", "xf", archive, "-C", way.at), way.settle)
    git(tree, "status")
    way.settle()
    for what, work in [
        ("first `ls -l`, cold", lambda: sh("ls", "-l", tree)),
        ("`grep -r`, cold", lambda: sh("grep", "-rac", "a", tree)),
        ("`git status`, cold", lambda: git(tree, "status")),
    ]:
        way.forget()
        step(what, way.mount, work)
        way.settle()
    large.write_bytes(random.Random(4).randbytes(LARGE))
    way.settle()
    step(f"{OVERWRITES} overwrites of 4 KiB, synced once", lambda: overwrite(large), way.settle)
    step("`rm -rf`", lambda: sh("rm", "-rf", tree), way.settle)
    way.umount()


def main():
    log = Path(os.environ["KVFS_S3_ACCESS_LOG"])
    work = Path(tempfile.mkdtemp(prefix="kvfs-bench-buckets-"))
    proxy = Proxy(work, os.environ["KVFS_S3_ENDPOINT"].removeprefix("http://"))
    endpoint = f"http://127.0.0.1:{proxy.port}"
    os.environ.update(AWS_ENDPOINT_URL_S3=endpoint, AWS_ALLOW_HTTP="true")
    # rclone 1.60 refuses it, and nothing here speaks TLS.
    os.environ.pop("AWS_CA_BUNDLE", None)
    ways, took = [w for w in (Kvfs, Rclone, S3fs) if shutil.which(w.program)], {}
    for way in (Kvfs, Rclone, S3fs):
        if way not in ways:
            print(f"{way.name} is left out: {way.program} is missing", file=sys.stderr)
    try:
        archive = make_archive(work)
        proxy.delay(0, DELAY)
        for round_number in range(ROUNDS):
            for kind in ways:
                way = kind(work, endpoint, round_number)

                def take(what, seconds, requests, kind=kind):
                    print(f"{kind.name}: {what}: {seconds:.2f} s, {requests}", file=sys.stderr)
                    took.setdefault(what, {}).setdefault(kind, []).append((seconds, requests))

                try:
                    measure(way, archive, log, take)
                finally:
                    if os.path.ismount(way.at):
                        subprocess.run(["umount", "-l", way.at], check=False)
    finally:
        proxy.stop()
        shutil.rmtree(work, ignore_errors=True)
    print(f"| {FILES} files | " + " | ".join(f"{w.name}, s | requests" for w in ways) + " |")
    print("|---|" + "---:|" * (2 * len(ways)))
    for what, by_way in took.items():
        cells = [cell(by_way[w]) for w in ways]
        print(f"| {what} | " + " | ".join(cells) + " |")


def cell(took):
    """The medians of the seconds and of the requests of one way in one step."""
    if any(math.isnan(seconds) for seconds, _ in took):
        return "fails | –"
    seconds, requests = zip(*took)
    return f"{statistics.median(seconds):.2f} | {statistics.median(requests):.0f}"


main()
