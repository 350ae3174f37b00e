#!/usr/bin/env python3
"""How long `git status` takes on a mount, with and without `kvfs fsmonitor`, in turn.

    scripts/bench_fsmonitor.py [--kvfs PROGRAM] [--files 20000] [--rounds 7]

Makes a store in a temporary directory, mounts it, and fills a work tree with files in directories
of a hundred. Each round runs `git status` both ways, warm, after one change, and with the kernel's
caches dropped (as root), and once after a new mount. Medians of milliseconds are printed as JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

QUIET = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL, "check": True}


def git(tree, *words):
    environment = dict(os.environ, GIT_CONFIG_NOSYSTEM="1", HOME=str(tree.parent.parent))
    for role in ("AUTHOR", "COMMITTER"):
        environment[f"GIT_{role}_NAME"] = environment[f"GIT_{role}_EMAIL"] = "bench"
    subprocess.run(["git", "-C", tree, *words], env=environment, **QUIET)


def milliseconds(tree):
    start = time.perf_counter()
    git(tree, "status", "--porcelain")
    return (time.perf_counter() - start) * 1e3


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


class Ways:
    """Two work trees with the same files: one has the hook, the other has not."""

    def __init__(self, mount, kvfs, files):
        self.trees = {name: mount / name for name in ("with", "without")}
        for name, tree in self.trees.items():
            tree.mkdir()
            git(tree, "init", "--quiet")
            git(tree, "config", "core.untrackedCache", "true")
            for number in range(files):
                path = tree / f"d{number // 100}" / f"f{number}"
                path.parent.mkdir(exist_ok=True)
                path.write_text(f"{number}\n")
            git(tree, "add", "--all")
            git(tree, "commit", "--quiet", "-m", "all")
            if name == "with":
                subprocess.run([kvfs, "fsmonitor", "install", tree], **QUIET)

    def settle(self):
        for tree in self.trees.values():
            for _ in range(2):
                milliseconds(tree)

    def times(self, rounds, before):
        found = {name: [] for name in self.trees}
        for number in range(rounds):
            # Neither is always the first.
            for name in sorted(self.trees, reverse=number % 2 == 1):
                before(self.trees[name], number)
                found[name].append(milliseconds(self.trees[name]))
        return {name: round(statistics.median(times), 1) for name, times in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvfs", default="target/release/kvfs")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    kvfs = str(Path(args.kvfs).resolve())
    with tempfile.TemporaryDirectory() as directory:
        store, mount = Path(directory) / "bench.kvfs", Path(directory) / "mnt"
        mount.mkdir()
        subprocess.run([kvfs, "create", store], **QUIET)

        def mounted():
            subprocess.run([kvfs, "mount", store, mount], **QUIET)

        def unmounted():
            subprocess.run([kvfs, "umount", mount], **QUIET)

        def change(tree, number):
            (tree / "d1" / "f100").write_text("change " * (number + 1))

        def remount(_tree, _number):
            unmounted()
            mounted()

        mounted()
        try:
            ways = Ways(mount, kvfs, args.files)
            ways.settle()
            result = {"files": args.files, "rounds": args.rounds, "unit": "ms, medians"}
            result["warm"] = ways.times(args.rounds, lambda _tree, _number: None)
            result["one change"] = ways.times(args.rounds, change)
            if os.geteuid() == 0:
                drop = lambda _tree, _number: drop_caches()  # noqa: E731
                result["caches dropped"] = ways.times(args.rounds, drop)
            result["mounted anew"] = ways.times(min(args.rounds, 3), remount)
        finally:
            unmounted()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
