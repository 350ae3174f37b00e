"""Groups of the VT-tree paper's tables (KEVIN's Figure 13 has the same personalities)."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import workloads
from disk import LIMIT, sh
from steps import Group, Step, program

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import bench_transactions

KIB = 1024
# (title, personality of scripts/bench_personalities.py, how often each process goes through its
# loop, what differs from what is
# set there). The VT-tree paper has 400,000 files of 32 KiB for the file server; KEVIN has
# Filebench's own sizes.
PERSONALITIES = (
    (
        "fileserver, files of 32 KiB",
        "fileserver",
        50,
        {"mean": 32 * KIB, "appended": 8 * KIB, "files": 8000, "processes": 10},
    ),
    ("webserver", "webserver", 12, {"files": 1000, "processes": 20}),
    ("fileserver, files of 128 KiB", "fileserver", 50, {"files": 2000, "processes": 10}),
    ("varmail", "varmail", 12, {"files": 1000}),
    ("webproxy", "webproxy", 20, {"files": 2000}),
    ("oltp", "oltp", 5, {}),
)
# What the paper does with the sources of Linux, here with those of zstd.
BUILD = (
    "set -e; cd {}; tar xf sources.tar; rm sources.tar; make -s -j{}; find . > /dev/null; "
    "find . -type f -exec cat {{}} + > /dev/null"
)


def pieces(sizes, seed):
    """Table 2: one file, 4 or 16 KiB at a time."""
    s = sizes

    def reads(title):
        return Step(
            title,
            lambda fs: workloads.read_at_random(fs.dir / "file", s.reads, seed),
            s.reads,
            4096 * s.reads,
        )

    def overwrite(fs):
        workloads.overwrite(fs.dir / "file", s.pages, 4096, seed)

    def steps(fs):
        return [
            Step(
                "sequential write, 4 KiB each",
                lambda fs: workloads.fill(fs.dir / "one", s.file, 4 * KIB),
                0,
                s.file << 20,
            ),
            Step(
                "sequential read, 16 KiB each",
                lambda fs: workloads.read_in_order(fs.dir / "file", 16 * KIB),
                0,
                s.file << 20,
            ),
            reads("random 4 KiB reads"),
            Step("random 4 KiB writes + fsync", overwrite, s.pages, 4096 * s.pages),
            reads("random 4 KiB reads after random writes"),
        ]

    return Group("pieces", lambda fs: workloads.fill(fs.dir / "file", s.file), steps)


def personalities(sizes):
    """Tables 3 (file server and web server) and KEVIN's Figure 13: a number of loops, not a
    time."""

    def words(fs, n, *more):
        _, name, _, changed = PERSONALITIES[n]
        changes = (f"{key}={value}" for key, value in changed.items())
        return (
            sys.executable,
            SCRIPTS / "bench_personalities.py",
            name,
            fs.dir / f"{n}-{name}",
            *more,
            *changes,
        )

    def prepare(fs):
        for n in range(len(PERSONALITIES)):
            program(*words(fs, n, "prepare"))

    def run(n, loops, fs):
        return {"operations": json.loads(sh(*words(fs, n, "loops", loops)))["ops"]}

    def steps(fs):
        percent = sizes.loops
        each = [
            (n, title, max(loops * percent // 100, 1))
            for n, (title, _, loops, _) in enumerate(PERSONALITIES)
        ]
        return [Step(title, partial(run, n, loops), sync=True) for n, title, loops in each]

    return Group("personalities", prepare, steps)


def builds(directory):
    """Figure 8 and Table 4: unpack, build, find and read the sources of a library, alone and four
    at once, on the plain mount and in transactions."""
    tar = directory / "sources.tar"
    alone, at_once = (
        ("plain", "si", "ser"),
        [f"{way}-{n}" for way in ("plain", "si") for n in range(4)],
    )

    def prepare(fs):
        if not tar.exists():
            sources = directory / "sources"
            bench_transactions.copy_sources(sources)
            sh("tar", "cf", tar, "-C", sources, ".")
            shutil.rmtree(sources)
        for name in (*alone, *at_once):
            (fs.dir / name).mkdir()
            shutil.copy(tar, fs.dir / name)

    def command(fs, name, isolation, jobs):
        transaction = (
            [fs.program, "run", "--isolation", isolation, str(fs.dir), "--"] if isolation else []
        )
        return [*transaction, "sh", "-c", BUILD.format(fs.dir / name, jobs)]

    def one(name, isolation, fs):
        program(*command(fs, name, isolation, 2))

    def four(way, isolation, fs):
        # Two cores: each build has one job.
        runs = [
            subprocess.Popen(command(fs, f"{way}-{n}", isolation, 1), stdin=subprocess.DEVNULL)
            for n in range(4)
        ]
        try:
            if any([run.wait(timeout=LIMIT) for run in runs]):
                raise OSError("one of four builds failed")
        finally:
            for run in runs:
                run.kill()
                run.wait()

    def steps(fs):
        return [
            Step("build", partial(one, "plain", ""), sync=True),
            Step("build in a transaction, si", partial(one, "si", "si"), sync=True, only="kvfs"),
            Step("build in a transaction, ser", partial(one, "ser", "ser"), sync=True, only="kvfs"),
            Step("four builds at once", partial(four, "plain", ""), sync=True),
            Step(
                "four builds at once, in transactions",
                partial(four, "si", "si"),
                sync=True,
                only="kvfs",
            ),
        ]

    return Group("builds", prepare, steps)
