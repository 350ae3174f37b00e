"""Trees as people make them, read cold from a modelled disk by two builds of kvfs in turn: seeks,
seconds and bytes a file, and what was read ahead.

    SLOWDISK=DIR python3 bench/papers/aged.py --before OLD/kvfs --after NEW/kvfs

Each tree is made once, by the build before, at the speed of memory; each run reads a copy of that
image, so both read the same bytes. With `--within` the builds run in a control group of so many
MiB, and a file of twice as much lies in the store, so that it does not fit into memory. With
`--defrag` each build defragments its copy first, at the speed of memory. Needs root and what
README.md says of SLOWDISK.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import disk
import memory_group
import systems

SIZE = 4096


def save(path, rng):
    """Writes a file as a careful program does: it is durable before it gets its name."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, rng.randbytes(SIZE))
    os.fsync(fd)
    os.close(fd)


class Tree:
    """Folders of files; the methods named in CASES age them."""

    def __init__(self, top, folders, each, seed):
        self.top, self.rng = top / "tree", random.Random(seed)
        self.paths = [
            self.top / f"folder-{folder:03}" / f"file-{file:04}"
            for folder in range(folders)
            for file in range(each)
        ]
        self.other = top / "other"
        self.other.mkdir()
        for folder in sorted({path.parent for path in self.paths}):
            folder.mkdir(parents=True)

    def shuffled(self):
        return self.rng.sample(self.paths, len(self.paths))

    def fresh(self):
        for path in self.paths:
            save(path, self.rng)

    def saved_by_rename(self):
        self.fresh()
        for path in self.shuffled():
            save(path.with_suffix(".new"), self.rng)
            os.rename(path.with_suffix(".new"), path)

    def saved_elsewhere(self):
        self.fresh()
        for path in self.shuffled():
            save(self.other / "new", self.rng)
            os.rename(self.other / "new", path)

    def half_moved(self):
        self.fresh()
        for path in self.shuffled()[: len(self.paths) // 2]:
            to = self.rng.choice(self.paths).parent
            os.rename(path, to / f"moved-{self.rng.getrandbits(64):016x}")

    def hard_links(self):
        """A farm: the files lie in one folder in the order in which they were made."""
        for n, path in enumerate(self.shuffled()):
            save(self.other / f"{n:06}", self.rng)
            os.link(self.other / f"{n:06}", path)

    def updates(self):
        """As rsync does: a third of the files, five times, each through a name next to it."""
        self.fresh()
        for _ in range(5):
            for path in sorted(self.rng.sample(self.paths, len(self.paths) // 3)):
                save(path.with_name(f".{path.name}.x"), self.rng)
                os.rename(path.with_name(f".{path.name}.x"), path)

    def checkouts(self):
        """As git does: files that differ are unlinked and made again, in the order of paths."""
        self.fresh()
        for _ in range(8):
            for path in sorted(self.rng.sample(self.paths, len(self.paths) // 4)):
                path.unlink()
                path.write_bytes(self.rng.randbytes(SIZE))
            os.sync()

    def builds(self):
        """Each build unlinks what it makes, and ends each file when it happens to be done."""
        for _ in range(4):
            for path in self.shuffled():
                path.unlink(missing_ok=True)
                path.write_bytes(self.rng.randbytes(SIZE))
            os.sync()


def read_all(tree):
    """Lists and reads everything. Nothing is found."""
    done = subprocess.run(["grep", "-rF", "no file has this text", tree])
    if done.returncode != 1:
        raise OSError(f"grep ended with {done.returncode}")


def read_some(most):
    def read(tree):
        for folder in sorted(os.scandir(tree), key=lambda entry: entry.name):
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)[:most]:
                Path(entry).read_bytes()

    return read


# The name of a case, how its tree ages, how it is read, and the files that are read in each folder.
CASES = (
    ("fresh", "fresh", read_all, None),
    ("saved by rename", "saved_by_rename", read_all, None),
    ("saved through another folder", "saved_elsewhere", read_all, None),
    ("half of the files moved", "half_moved", read_all, None),
    ("farm of hard links", "hard_links", read_all, None),
    ("rsync's updates", "updates", read_all, None),
    ("checkouts back and forth", "checkouts", read_all, None),
    ("builds that make files again", "builds", read_all, None),
    ("one file a folder", "saved_by_rename", read_some(1), 1),
    ("four files a folder", "saved_by_rename", read_some(4), 4),
)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--before", required=True, help="the program kvfs before a change")
    p.add_argument("--after", required=True, help="the program kvfs after it")
    p.add_argument("--profile", default="sata-ssd", choices=disk.PROFILES)
    p.add_argument("--within", type=int, default=64, help="MiB of memory; 0: that of the machine")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--folders", type=int, default=40)
    p.add_argument("--each", type=int, default=100, help="files of a folder")
    p.add_argument("--cases", default="", help="words; a case runs if its name has one of them")
    p.add_argument("--options", default="rw", help="options of the mount")
    p.add_argument("--dir", default="/dev/shm", help="where images lie: a tmpfs")
    p.add_argument("--defrag", action="store_true", help="defragment each copy before it is read")
    p.add_argument("--json", action="store_true", help="print each run as well, a line each")
    return p.parse_args()


class Bench:
    def __init__(self, a, work):
        self.a, self.work = a, work
        self.slowdisk = disk.build(os.environ["SLOWDISK"], work)
        self.programs = {"before": a.before, "after": a.after}
        self.size = ((a.folders * a.each * SIZE * 8) >> 20) + 4 * a.within + 1024 << 20

    @contextlib.contextmanager
    def directory(self, name):
        directory = self.work / name
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def mounted(self, which, directory):
        return systems.make("kvfs", directory, str(self.programs[which]), self.a.options)

    def make(self, ages, directory):
        """An image with the tree."""
        image = disk.Image(directory, self.size)
        fs = self.mounted("before", directory)
        loop = disk.Loop(image.path, self.a.profile, direct=False)
        try:
            fs.make(loop.device)
            fs.mount(loop.device)
            tree = Tree(fs.dir, self.a.folders, self.a.each, seed=1)
            getattr(tree, ages)()
            rng = random.Random(2)
            with open(fs.dir / "ballast", "wb") as ballast:
                for _ in range(2 * self.a.within):
                    ballast.write(rng.randbytes(1 << 20))
            fs.sync()
            fs.umount()
        finally:
            fs.remove()
            loop.close()
        return image

    def run(self, which, read, image):
        with self.directory("run") as directory:
            copy = disk.Image.__new__(disk.Image)
            copy.path, copy.size = directory / "image", image.size
            disk.sh("cp", "--sparse=always", image.path, copy.path)
            if self.a.defrag:
                disk.sh(self.programs[which], "defrag", copy.path)
            fs = self.mounted(which, directory)
            slow = disk.SlowDisk(self.slowdisk, copy, self.a.profile, directory)
            try:
                with memory_group.within(self.a.within):
                    fs.mount(slow.loop.device)
                    time.sleep(0.2)
                    Path("/proc/sys/vm/drop_caches").write_text("3")
                    slow.reset()
                    begun = time.monotonic()
                    read(fs.dir / "tree")
                    seconds = time.monotonic() - begun
                    counted = slow.counters()
                    stat = json.loads(disk.sh(fs.program, "stat", "--json", fs.dir))
                    fs.umount()
            finally:
                fs.remove()
                slow.close()
            ahead = ("files_read_ahead", "read_ahead_used", "read_ahead_wasted")
            return {
                "seconds": seconds,
                "seeks": counted["seeks"],
                "reads": counted["read_requests"],
                "mib": counted["read_bytes"] / 2**20,
                "ahead": [stat["files"].get(name) for name in ahead],
            }

    def case(self, name, ages, read, most):
        files = self.a.folders * min(most or self.a.each, self.a.each)
        seen = {"before": [], "after": []}
        with self.directory("made") as directory:
            image = self.make(ages, directory)
            for round_ in range(self.a.rounds):
                turn = list(self.programs)
                for which in turn if round_ % 2 == 0 else turn[::-1]:
                    run = self.run(which, read, image)
                    seen[which].append(run)
                    if self.a.json:
                        print(json.dumps({"case": name, "round": round_, "build": which, **run}))
        return row(name, files, seen)


def row(name, files, seen):
    def median(which, figure):
        return statistics.median(run[figure] for run in seen[which])

    cells = [name]
    for which in ("before", "after"):
        cells.append(
            f"{median(which, 'seeks') / files:.3f} · {median(which, 'reads') / files:.3f} · "
            f"{median(which, 'seconds'):.2f} s · {median(which, 'mib'):.1f} MiB"
        )
    announced, used, wasted = seen["after"][-1]["ahead"]
    cells.append("–" if announced is None else f"{announced} · {used} · {wasted}")
    return "| " + " | ".join(cells) + " |"


def main():
    a = arguments()
    if os.geteuid() != 0:
        sys.exit("aged: making and mounting file systems needs root")
    if "SLOWDISK" not in os.environ:
        sys.exit("aged: SLOWDISK in the environment must name the directory of slowdisk.c")
    a.before, a.after = (str(Path(path).resolve()) for path in (a.before, a.after))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    within = f"within {a.within} MiB" if a.within else "with the memory of the machine"
    print(f"{a.folders} folders of {a.each} files of {SIZE} bytes, {a.profile}, {within}\n")
    print("| seeks · reads a file · time · read | before | after | ahead · used · wasted |")
    print("|---|---:|---:|---:|", flush=True)
    words = a.cases.split()
    with tempfile.TemporaryDirectory(prefix="kvfs-aged-", dir=a.dir) as work:
        os.chmod(work, 0o755)
        bench = Bench(a, Path(work))
        for case in CASES:
            if not words or any(word in case[0] for word in words):
                print(bench.case(*case), flush=True)


if __name__ == "__main__":
    main()
