#!/usr/bin/env python3
"""The tables of the papers on a modelled disk: KVFS against ext4, btrfs and xfs, interleaved round
by round, with what the disk counted. Needs root, and SLOWDISK in the environment (README.md).

    papers.py --record FILE                  rounds more in FILE, each measurement a line of JSON
    papers.py --report FILE --out papers.md  the tables of all rounds in FILE

Groups of cases: tree (fresh), commits and random (aged), large, small, mail, programs, toku,
renames, names, names-aged, index, directories, listing, pieces, personalities, builds, kvdb."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cases
import disk
import memory_group
import report
import results
import steps
import systems

GROUPS = (
    "tree",
    "commits",
    "random",
    "large",
    "small",
    "mail",
    "programs",
    "toku",
    "renames",
    "names",
    "names-aged",
    "index",
    "directories",
    "listing",
    "pieces",
    "personalities",
    "builds",
    "kvdb",
)


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--kvfs", default="target/release/kvfs", help="the kvfs program, a release build"
    )
    p.add_argument(
        "--shape",
        default="target/release/kvdb_shape",
        help="kvdb_shape of bench/measure, a release build",
    )
    p.add_argument("--options", default="allow_other", help="mount options of kvfs")
    p.add_argument(
        "--memory", help="the memory of kvfs, as its --memory; its own default when not given"
    )
    p.add_argument(
        "--within",
        type=int,
        metavar="MIB",
        help="a control group of this memory for each step: its client, the daemon of kvfs, and "
        "the pages that they read; a store larger than memory",
    )
    p.add_argument("--record", help="measure, and append to this file")
    p.add_argument("--report", help="only report what this file has")
    p.add_argument("--out", help="where the tables go")
    p.add_argument("--json", action="store_true", help="print each measurement as a line of JSON")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true", help="small sizes, one round: minutes")
    p.add_argument("--cases", default=",".join(GROUPS), help="groups of cases")
    p.add_argument("--systems", default=",".join(systems.SYSTEMS))
    p.add_argument("--profile", default="hdd", choices=disk.PROFILES)
    p.add_argument("--dir", default="/dev/shm", help="where images lie: a tmpfs")
    a = p.parse_args()
    if not a.report and not a.record and not a.json:
        p.error("give --record, --report or --json")
    if a.within and "kvdb" in a.cases.split(","):
        p.error("--within is for file systems: leave kvdb out of --cases")
    for given, known in ((a.cases, GROUPS), (a.systems, systems.SYSTEMS)):
        for name in given.split(","):
            if name not in known:
                p.error(f"{name} is none of {', '.join(known)}")
    return a


def out_of_time(*_):
    raise TimeoutError(f"took more than {disk.LIMIT} s")


@contextlib.contextmanager
def at_most(seconds):
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


class Bench:
    def __init__(self, a, work):
        self.a, self.work = a, work
        self.sizes = steps.QUICK if a.quick else steps.FULL
        self.slowdisk = disk.build(os.environ["SLOWDISK"], work)
        self.file = open(a.record, "a") if a.record else None
        self.seen = results.read(a.record) if a.record else []
        # What was measured under another memory is not compared: it has a column of its own.
        self.column = a.profile + (f" within {a.within} MiB" if a.within else "")
        self.write(
            {
                "machine": report.machine(),
                "commit": report.commit(),
                "sizes": self.sizes._asdict(),
                "profile": self.column,
                "host_memory": a.within << 20 if a.within else report.host_memory(),
                "memory": a.memory or "default",
            }
        )

    def write(self, line):
        for to in (self.file, sys.stdout if self.a.json else None):
            if to:
                print(json.dumps(line), file=to, flush=True)

    def next_round(self, group):
        """A round that was measured before is not measured again under its number."""
        numbers = (
            x["round"] + 1
            for x in self.seen
            if x.get("group") == group and x["profile"] == self.column
        )
        return max(numbers, default=0)

    def left_out(self, what, error):
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        said = said.replace(str(self.work), "")
        print(f"left out: {what} ({said})", file=sys.stderr)
        self.write({"left_out": what, "why": said, "profile": self.column})

    @contextlib.contextmanager
    def directory(self, name):
        directory = self.work / name
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def prepare(self, group, fs, image):
        """Makes the file system and its contents at the speed of memory."""
        device = disk.Loop(image.path, self.a.profile, direct=False)
        try:
            fs.make(device.device)
            fs.mount(device.device)
            with at_most(disk.LIMIT):
                group.prepare(fs)
            fs.sync()
            made = group.steps(fs)
            fs.umount()
            return made
        finally:
            if fs.mounted:
                fs.remove()
                fs.dir.mkdir()
            device.close()

    def step(self, step, fs, slow, line):
        # The model and the image of its disk stay outside, as a disk does.
        with memory_group.within(self.a.within):
            self.timed(step, fs, slow, line)

    def timed(self, step, fs, slow, line):
        slow.reset()
        begun = time.monotonic()
        fs.mount(slow.loop.device)
        mount = {"seconds": time.monotonic() - begun, "counted": slow.counters()}
        names = fs.names_bytes() if step.space else 0
        # What mounting has begun is not the step's.
        time.sleep(0.2)
        slow.reset()
        begun, before = time.monotonic(), systems.processor_seconds(fs.pid)
        with at_most(disk.LIMIT):
            figures = step.run(fs) or {}
            if step.sync:
                fs.sync()
        seconds = time.monotonic() - begun
        after = systems.processor_seconds(fs.pid)
        counted = slow.counters()
        if step.space:
            figures["names_bytes"] = fs.names_bytes() - names
        fs.umount()
        settled = slow.counters()
        self.write(
            {
                **line,
                "case": step.name,
                "files": step.files,
                "bytes": step.bytes,
                "seconds": seconds,
                "mount": mount,
                "client": after[0] - before[0],
                "daemon": after[1] - before[1],
                "counted": counted,
                "settled": settled,
                **({"figures": figures} if figures else {}),
            }
        )
        mib = counted["read_bytes"] / 2**20, counted["write_bytes"] / 2**20
        print(
            f"{line['system']:6} {step.name:40} {seconds:8.2f} s {counted['seeks']:7.0f} seeks "
            f"{mib[0]:8.1f} MiB read "
            f"{mib[1]:8.1f} written",
            file=sys.stderr,
        )

    def run(self, group, name, round_):
        line = {"profile": self.column, "round": round_, "group": group.name, "system": name}
        with self.directory(f"{group.name}-{name}") as directory:
            options = self.a.options
            if self.a.memory:
                options += f",memory={self.a.memory}"
            fs = systems.make(name, directory, self.a.kvfs, options)
            image, slow = disk.Image(directory, self.sizes.disk << 30), None
            try:
                begun = time.monotonic()
                made = self.prepare(group, fs, image)
                print(
                    f"{name:6} {group.name} prepared in {time.monotonic() - begun:.1f} s",
                    file=sys.stderr,
                )
                slow = disk.SlowDisk(self.slowdisk, image, self.a.profile, directory)
                for step in made:
                    if step.only in ("", name):
                        self.step(step, fs, slow, {**line, "stored": image.stored()})
            finally:
                fs.remove()
                if slow:
                    slow.close()
                image.remove()

    def kvdb(self, load, value, mib, threshold, options, round_):
        with self.directory("kvdb") as directory:
            image, slow = disk.Image(directory, self.sizes.disk << 30), None
            try:
                slow = disk.SlowDisk(self.slowdisk, image, self.a.profile, directory)
                said = cases.kvdb(
                    self.a.shape, slow.loop.device, load, value, mib, threshold, options
                )
                figures = json.loads(said)
                self.write(
                    {
                        "profile": self.column,
                        "round": round_,
                        "group": "kvdb",
                        "system": threshold,
                        "case": f"{load}, {value} B",
                        "mib": mib,
                        "figures": figures,
                        "counted": slow.counters(),
                    }
                )
                print(
                    f"kvdb {load} {value} at {threshold}: {figures['ops_per_s']:,} /s, "
                    f"{figures['write_amp']} written, "
                    f"{figures['scan_mb_s']} MB/s",
                    file=sys.stderr,
                )
            finally:
                if slow:
                    slow.close()
                image.remove()

    def kvdb_round(self, round_):
        for load, value, mib, thresholds, options in cases.kvdb_loads(self.sizes, self.a.profile):
            for threshold in thresholds:
                try:
                    self.kvdb(load, value, mib, threshold, options, round_)
                except (OSError, subprocess.SubprocessError, ValueError) as e:
                    self.left_out(f"kvdb {load}, {value} B at {threshold}", e)

    def all_rounds(self):
        names = self.a.systems.split(",")
        first = {group: self.next_round(group) for group in self.a.cases.split(",")}
        for n in range(1 if self.a.quick else self.a.rounds):
            with self.directory("shared") as shared:
                made = {}
                for group, start in first.items():
                    round_ = start + n
                    if group == "kvdb":
                        self.kvdb_round(round_)
                        continue
                    # Each round has trees, places and orders of its own.
                    made.setdefault(round_, cases.Cases(shared, self.sizes, round_))
                    turn = round_ % len(names)
                    for name in names[turn:] + names[:turn]:
                        try:
                            self.run(made[round_].groups()[group], name, round_)
                        except (OSError, subprocess.SubprocessError) as e:
                            self.left_out(f"{group} on {name}", e)


def main():
    a = arguments()
    if a.record or a.json:
        if os.geteuid() != 0:
            sys.exit("papers: making and mounting file systems needs root")
        if "SLOWDISK" not in os.environ:
            sys.exit("papers: SLOWDISK in the environment must name the directory of slowdisk.c")
        a.kvfs, a.shape = (str(Path(path).resolve()) for path in (a.kvfs, a.shape))
        # A kill must unmount, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        with tempfile.TemporaryDirectory(prefix="kvfs-papers-", dir=a.dir) as work:
            os.chmod(work, 0o755)
            Bench(a, Path(work)).all_rounds()
    if a.report or a.out:
        text = report.report(results.read(a.report or a.record), Path(a.out) if a.out else None)
        print(text)
        if a.out:
            Path(a.out).write_text(text)


if __name__ == "__main__":
    main()
