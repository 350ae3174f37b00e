#!/usr/bin/env python3
"""Counts what a store in object storage is asked for: requests and bytes for a cold mount, `ls`,
`find`, `git status` and a read of everything, for forks, and for publications.

    scripts/bench_remote.py target/release/kvfs [FILES]
    scripts/remote_servers.sh scripts/bench_remote.py target/release/kvfs [FILES]

Without a server the place is a folder, so times are those of this machine; counts are those of any
place. With one (see remote_servers.sh) each cold command also runs through toxiproxy, which delays
each answer by 30 ms, and once more by 130 ms: the difference tells how many requests were waited
for one after the other. Writes a table in Markdown to standard output. Takes root, and about three
times the tree in the temporary directory.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from toxiproxy import Proxy

KVFS = os.path.abspath(sys.argv[1])
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
DELAYS = [30, 130]


def kvfs(*words):
    done = subprocess.run([KVFS, "--json", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kvfs {' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout) if done.stdout.strip() else None


def git(tree, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "gc.auto=0"]
    who += ["-c", "safe.directory=*"]
    subprocess.run(["git", *who, "-C", tree, *words], stdout=subprocess.DEVNULL, check=True)


def make_tree(root):
    """Directories of some 13 files of 200 bytes to 9,000, three levels deep, in git."""
    drawn = random.Random(3)
    for n in range(FILES):
        d = n // 13
        folder = f"{root}/{d % 40}/{d // 40 % 14}/{d}"
        if n % 13 == 0:
            os.makedirs(folder)
        with open(f"{folder}/file{n}.c", "wb") as file:
            file.write(drawn.randbytes(drawn.choice([200, 900, 3000, 9000])))
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "all")
    git(root, "gc", "--quiet")


def asked(mount):
    """Requests and bytes since the mount."""
    purposes = kvfs("stat", mount)["remote"]["by_purpose"].values()
    return sum(p["gets"] for p in purposes), sum(p["bytes"] for p in purposes)


def timed(work):
    began = time.monotonic()
    result = work()
    return result, time.monotonic() - began


def main():
    folder = tempfile.mkdtemp(prefix="kvfs-bench-remote-")
    proxy, address = None, f"dir:{folder}/share/tree"
    if endpoint := os.environ.get("KVFS_S3_ENDPOINT"):
        proxy = Proxy(folder, endpoint.removeprefix("http://"))
        address = f"s3://{os.environ['KVFS_S3_BUCKET']}/tree"
        os.environ["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{proxy.port}"
        os.environ["AWS_ALLOW_HTTP"] = "true"
    try:
        measure(folder, address, proxy)
    finally:
        if proxy:
            proxy.stop()
        shutil.rmtree(folder)


def measure(folder, address, proxy):
    tree, store, mount = f"{folder}/tree", f"{folder}/a.kvfs", f"{folder}/mnt"
    make_tree(tree)
    os.mkdir(mount)
    kvfs("create", store)
    kvfs("import", tree, store)
    # The files are others than those that git has looked at.
    kvfs("mount", store, mount)
    git(mount, "status")
    kvfs("umount", mount)
    delays = DELAYS if proxy else []
    titles = "".join(f" | s at {delay} ms" for delay in delays) + (" | rounds" if delays else "")
    print(f"| {FILES} files | requests | MiB | s here{titles} |")
    print(f"|---|{'---:|' * (titles.count('|') + 3)}")

    def row(what, requests, size, seconds, slow=()):
        cells = [f"{second:.2f}" for second in (seconds, *slow)]
        if slow:
            cells.append(f"{(slow[1] - slow[0]) * 1000 / (DELAYS[1] - DELAYS[0]):.1f}")
        print(f"| {what} | {requests} | {size / 2**20:.1f} | {' | '.join(cells)} |", flush=True)

    for what in ["publish it all", "publish it again", "publish one key more"]:
        if what == "publish one key more":
            kvfs("kv", "put", store, "key", "value")
        done, seconds = timed(lambda: kvfs("push", store, address)["published"])
        # The objects with zones, the state, and the head twice.
        row(what, done["objects"] + 3, done["bytes"], seconds)

    def cold(command):
        cache = f"{folder}/cache"

        def run():
            kvfs("mount", address, mount, "--cache", cache)
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)

        _, seconds = timed(run)
        requests, size = asked(mount)
        kvfs("umount", mount)
        shutil.rmtree(cache)
        return requests, size, seconds

    status = ["git", "-c", "safe.directory=*", "-C", mount, "status", "--porcelain"]
    for what, command in [
        ("cold mount", ["true"]),
        ("and `ls -l`", ["ls", "-l", mount]),
        ("and the first byte of a file", ["head", "-c1", f"{mount}/7/0/7/file95.c"]),
        ("and `find -size`", ["find", mount, "-size", "+1k"]),
        ("and `git status`", status),
        ("and a read of everything", ["grep", "-rc", "nothing", mount]),
    ]:
        requests, size, seconds = cold(command)
        slow, before = [], 0
        for delay in delays:
            proxy.delay(before, delay)
            slow.append(cold(command)[2])
            before = delay
        if proxy:
            proxy.delay(before, 0)
        # The head and the state are read before.
        row(what, requests + 2, size, seconds, slow)
    _, seconds = timed(lambda: kvfs("fork", address, f"{folder}/fork.kvfs"))
    row("fork", 4, 0, seconds)
    read_warm(folder, store, address)
    fork_often(folder, address)
    if proxy:
        read_in_line(folder, address, proxy)


def read_warm(folder, store, address):
    """Everything once more where it was fetched before, beside the local store."""
    mount, cache = f"{folder}/mnt", f"{folder}/warm"
    read = ["grep", "-rc", "nothing", mount]

    def by(*source):
        kvfs("mount", *source[:1], mount, *source[1:])
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
        _, seconds = timed(lambda: subprocess.run(read, stdout=subprocess.DEVNULL, check=False))
        gets, _ = asked(mount) if len(source) > 1 else (0, 0)
        kvfs("umount", mount)
        return seconds, gets

    by(address, "--cache", cache)
    rounds = [(by(store), by(address, "--cache", cache)) for _ in range(5)]
    asked_again = max(remote[1] for _, remote in rounds)
    local, remote = (sorted(r[i][0] for r in rounds)[2] for i in (0, 1))
    shutil.rmtree(cache)
    print(f"\nRead again, all of it fetched before: {remote:.2f} s, {asked_again} requests; of the "
          f"local store {local:.2f} s; medians of five in turn.", flush=True)


def fork_often(folder, address):
    """A thousand forks of one state."""
    seconds = []
    for n in range(1000):
        file = f"{folder}/forks-{n}.kvfs"
        seconds.append(timed(lambda: kvfs("fork", address, file))[1] * 1000)
        os.remove(file)
    first, last = sorted(seconds[:100])[50], sorted(seconds[-100:])[50]
    print(f"\nA thousand forks: {first:.0f} ms each of the first hundred, {last:.0f} ms each of "
          "the last hundred, medians.", flush=True)


def read_in_line(folder, address, proxy):
    """One large file, cold, beside a plain client that gets the same objects, 16 at once."""
    size, bucket = 512 << 20, os.environ["KVFS_S3_BUCKET"]
    large, mount = f"{folder}/large.kvfs", f"{folder}/mnt"
    address = address.replace("/tree", "/large")
    kvfs("create", large)
    kvfs("mount", large, mount)
    with open(f"{mount}/file", "wb") as file:
        for _ in range(size >> 20):
            file.write(random.randbytes(1 << 20))
    kvfs("umount", mount)
    before = objects_of(bucket)
    kvfs("push", large, address)
    keys = sorted(objects_of(bucket) - before)
    user = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
    client = ["curl", "--silent", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", user]
    client += ["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    client += ["--parallel", "--parallel-max", "16"]
    for key in keys:
        client += ["--output", "/dev/null", f"http://127.0.0.1:{proxy.port}/{bucket}/{key}"]

    def by_mount():
        cache = f"{folder}/cache"
        kvfs("mount", address, mount, "--cache", cache)
        cat = ["cat", f"{mount}/file"]
        _, seconds = timed(lambda: subprocess.run(cat, stdout=subprocess.DEVNULL, check=True))
        kvfs("umount", mount)
        shutil.rmtree(cache)
        return seconds

    def by_client():
        return timed(lambda: subprocess.run(client, check=True, stderr=subprocess.DEVNULL))[1]

    print(f"\n| {size >> 20} MiB in {len(keys)} objects | s at 0 ms | s at 30 ms |")
    print("|---|---:|---:|")
    rows = {"one file, in line": by_mount, "a plain client, 16 at once": by_client}
    took = {what: [] for what in rows}
    for before, delay in [(0, 0), (0, DELAYS[0])]:
        proxy.delay(before, delay)
        rounds = [[work() for work in rows.values()] for _ in range(3)]
        for what, seconds in zip(rows, zip(*rounds)):
            took[what].append(sorted(seconds)[1])
    proxy.delay(DELAYS[0], 0)
    for what, seconds in took.items():
        print(f"| {what} | {' | '.join(f'{second:.2f}' for second in seconds)} |")


def objects_of(bucket):
    """The keys of all objects with zones, which lie in a folder of the server."""
    root = f"{os.environ['KVFS_S3_DATA']}/{bucket}"
    found = subprocess.run(["find", ".", "-type", "f", "-path", "*/z/*"], cwd=root,
                           capture_output=True, text=True, check=True)
    return {line.removeprefix("./") for line in found.stdout.splitlines()}


main()
