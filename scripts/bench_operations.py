"""The cases of scripts/bench_files.py that are single operations,
timed by `kvfs bench` within its own process."""

import json

from bench_measure import Case
from file_systems import sh

# (name, its case in `kvfs bench`, cold)
OPERATIONS = [
    ("create", "create", False),
    ("stat, warm", "stat", False),
    ("rename", "rename", False),
    ("readdir + stat, cold", "readdir-stat", True),
    ("unlink", "unlink", False),
    ("create + 4 KiB", "create4k", False),
    ("read, warm", "read", False),
    ("read small files, cold", "read", True),
    ("stat, cold", "stat", True),
    ("unlink, cold", "unlink", True),
    ("mkdir", "mkdir", False),
    ("rmdir", "rmdir", False),
    ("sequential write, fsync", "seq-write", False),
    ("sequential read, cold", "seq-read", True),
    ("random 4 KiB reads, cold", "rand-read", True),
    ("random 4 KiB overwrites, fsync", "rand-write", False),
    ("4 bytes into random cold pages, fsync", "poke", True),
    ("append 100 bytes", "append", False),
    ("create + fsync, 1 thread", "fsync1", False),
    ("create + fsync, 16 threads", "fsync16", False),
    ("append 4 KiB + fsync, 16 threads", "append-fsync16", False),
]
# What must be there before a case, and so before the caches are dropped.
CONTENT = {
    "read": "create4k",
    "readdir-stat": "create",
    "stat": "create",
    "unlink": "create",
    "rename": "create",
}
# These write content: the bytes that reach the device for each of theirs are counted.
WRITERS = {"seq-write", "rand-write", "poke", "append", "fsync1", "fsync16", "append-fsync16"}


class Operations:
    def __init__(self, kvfs, files, mib):
        self.kvfs, self.files, self.mib = kvfs, files, mib

    def bench(self, fs, case):
        said = sh(
            self.kvfs,
            "bench",
            fs.dir,
            "--case",
            case,
            "--files",
            self.files,
            "--mib",
            self.mib,
            "--keep",
            "--json",
        )
        (timing,) = json.loads(said)
        # Its own time: without the start of the program and what it prepares.
        kept = ("seconds", "ops", "bytes") if case in WRITERS else ("seconds", "ops")
        return {name: timing[name] for name in kept}

    def prepare(self, fs, case, cold):
        first = []
        if case in CONTENT:
            # What is looked at a second time must have been once.
            first = [CONTENT[case]] + ([case] if not cold and case in ("stat", "read") else [])
        elif (
            case in ("seq-read", "rand-read", "rand-write", "poke")
            and not (fs.dir / "kvfs-bench" / "large").exists()
        ):
            first = ["seq-write"]
        elif case == "rmdir":
            first = ["mkdir"]
        for step in first:
            self.bench(fs, step)
        return lambda: self.bench(fs, case)

    def case(self, name, case, cold=False, busy=False):
        def prepare(fs):
            return self.prepare(fs, case, cold)

        return Case(name, prepare, cold=cold, settled=case in WRITERS, busy=busy)

    def cases(self):
        return [self.case(*operation) for operation in OPERATIONS]
