"""The five personalities of filebench as cases of scripts/bench_files.py: its own workload files,
with fewer files and threads and a shorter run, since what is compared is the same on every file
system. Where filebench is not installed, scripts/bench_personalities.py does the like."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench_measure import Case
from file_systems import sh

# What differs from the workload as it is published.
PERSONALITIES = {
    "fileserver": {"nfiles": 500, "nthreads": 16},
    "webserver": {"nfiles": 1000, "nthreads": 16},
    "varmail": {"nfiles": 1000, "nthreads": 16},
    "webproxy": {"nfiles": 1000, "nthreads": 16},
    "oltp": {"nshadows": 16, "ndbwriters": 4, "filesize": "4m", "logfilesize": "4m"},
}


def find(given):
    """The program: what was given, or one that is installed."""
    places = [
        given,
        shutil.which("filebench"),
        Path.home() / ".cache/kvfs-tools/filebench/bin/filebench",
    ]
    return next((Path(place).resolve() for place in places if place and Path(place).exists()), None)


class Filebench:
    def __init__(self, program, work, seconds):
        self.program, self.work, self.seconds = program, work, seconds
        self.workloads = program.parent.parent / "share/filebench/workloads"

    def workload(self, fs, name):
        text = (self.workloads / f"{name}.f").read_text()
        for what, value in {**PERSONALITIES[name], "dir": fs.dir / f"filebench-{name}"}.items():
            text, found = re.subn(rf"^set \${what}=.*$", f"set ${what}={value}", text, flags=re.M)
            assert found == 1, f"{name} of filebench sets ${what} {found} times"
        text = re.sub(r"^run .*$", "", text, flags=re.M)
        path = self.work / f"{name}.f"
        path.write_text(f"{text}\nrun {self.seconds}\n")
        return path

    def prepare(self, fs, name):
        directory = fs.dir / f"filebench-{name}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        workload = self.workload(fs, name)

        def run():
            # It needs its memory at the same address in each of its processes.
            said = sh("setarch", "-R", self.program, "-f", workload, stdin=subprocess.DEVNULL)
            ops, rate = re.search(r"IO Summary: +(\d+) ops +([0-9.]+) ops/s", said).groups()
            # The time of the run alone, without the making of its files.
            return {"ops": int(ops), "seconds": int(ops) / float(rate)}

        run.after = lambda: shutil.rmtree(directory, ignore_errors=True)
        return run

    def case(self, name):
        def prepare(fs):
            return self.prepare(fs, name)

        return Case(f"filebench {name}", prepare, settled=True)

    def cases(self):
        return [self.case(name) for name in PERSONALITIES]


class Restated:
    """The five personalities as scripts/bench_personalities.py states them;
    their cases have names of their own, since the figures differ."""

    def __init__(self, seconds):
        self.seconds = seconds

    def prepare(self, fs, name):
        directory = fs.dir / f"restated-{name}"
        shutil.rmtree(directory, ignore_errors=True)
        program = [
            sys.executable,
            Path(__file__).with_name("bench_personalities.py"),
            name,
            directory,
        ]
        sh(*program, "prepare")

        def run():
            return json.loads(sh(*program, "run", self.seconds))

        run.after = lambda: shutil.rmtree(directory, ignore_errors=True)
        return run

    def case(self, name):
        def prepare(fs):
            return self.prepare(fs, name)

        return Case(f"{name}, restated", prepare, settled=True)

    def cases(self):
        return [self.case(name) for name in PERSONALITIES]
