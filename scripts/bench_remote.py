#!/usr/bin/env python3
"""Counts what a store in object storage is asked for: requests and bytes for a cold mount, `ls`,
`find` and a read of everything, for forks, and for publications.

    scripts/bench_remote.py target/release/kvfs [FILES]

The place is a folder, so times are those of this machine; counts are those of any place. Writes a
table in Markdown to standard output. Takes root, and about three times the tree in the temporary
directory.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

KVFS = os.path.abspath(sys.argv[1])
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000


def kvfs(*words):
    done = subprocess.run([KVFS, "--json", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kvfs {' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout) if done.stdout.strip() else None


def make_tree(root):
    """Directories of some 13 files of 200 bytes to 9,000, three levels deep."""
    drawn = random.Random(3)
    for n in range(FILES):
        d = n // 13
        folder = f"{root}/{d % 40}/{d // 40 % 14}/{d}"
        if n % 13 == 0:
            os.makedirs(folder)
        with open(f"{folder}/file{n}.c", "wb") as file:
            file.write(drawn.randbytes(drawn.choice([200, 900, 3000, 9000])))


def asked(mount):
    """Requests and bytes since the mount."""
    purposes = kvfs("stat", mount)["remote"]["by_purpose"].values()
    return sum(p["gets"] for p in purposes), sum(p["bytes"] for p in purposes)


def row(what, requests, size, seconds):
    print(f"| {what} | {requests} | {size / 2**20:.1f} | {seconds:.2f} |", flush=True)


def timed(work):
    began = time.monotonic()
    result = work()
    return result, time.monotonic() - began


def main():
    folder = tempfile.mkdtemp(prefix="kvfs-bench-remote-")
    try:
        measure(folder)
    finally:
        shutil.rmtree(folder)


def measure(folder):
    tree, store, mount = f"{folder}/tree", f"{folder}/a.kvfs", f"{folder}/mnt"
    address = f"dir:{folder}/share/tree"
    make_tree(tree)
    os.mkdir(mount)
    kvfs("create", store)
    kvfs("import", tree, store)
    print(f"| {FILES} files | requests | MiB | s here |\n|---|---|---|---|")
    for what in ["publish it all", "publish it again", "publish one key more"]:
        if what == "publish one key more":
            kvfs("kv", "put", store, "key", "value")
        done, seconds = timed(lambda: kvfs("push", store, address)["published"])
        # The objects with zones, the state, and the head twice.
        row(what, done["objects"] + 3, done["bytes"], seconds)
    for what, command in [
        ("cold mount", ["true"]),
        ("and `ls`", ["ls", mount]),
        ("and `find -size`", ["find", mount, "-size", "+1k"]),
        ("and a read of everything", ["grep", "-rc", "nothing", mount]),
    ]:
        cache = f"{folder}/cache"
        began = time.monotonic()
        kvfs("mount", address, mount, "--cache", cache)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        seconds = time.monotonic() - began
        requests, size = asked(mount)
        # The head and the state are read before.
        row(what, requests + 2, size, seconds)
        kvfs("umount", mount)
        shutil.rmtree(cache)
    _, seconds = timed(lambda: kvfs("fork", address, f"{folder}/fork.kvfs"))
    row("fork", 2, 0, seconds)


main()
