"""The groups of cases. A group prepares a disk at the speed of memory; then each of its steps runs on
the modelled disk, on a file system that was mounted for it."""

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

import trees
import workloads
from disk import LIMIT, sh


class Sizes(NamedTuple):
    disk: int  # GiB
    tree: int  # files
    commits: int
    changes: int  # files a commit
    moves: int  # operations of the random aging
    big: int  # MiB, overwritten
    pokes: int  # overwrites of 4 bytes
    pages: int  # overwrites of 4 KiB
    stream: int  # MiB, written and read in order
    unlinks: tuple  # MiB
    small: int  # files of 200 bytes
    mail: int  # operations
    names: int  # names in each of 100 directories
    kvdb: int  # MiB


FULL = Sizes(8, 6000, 200, 100, 12000, 2048, 1000, 5000, 1024, (256, 1024), 20000, 1000, 200, 512)
QUICK = Sizes(4, 1000, 20, 50, 1000, 256, 125, 625, 128, (32, 128), 2000, 100, 20, 32)


class Step(NamedTuple):
    name: str
    # Takes the file system; may return figures of its own.
    run: Callable
    # What the report divides the counts by: files, operations, or bytes of the user.
    files: int = 0
    bytes: int = 0
    # Everything is durable when its time ends; the others see to that themselves, or write nothing.
    sync: bool = False
    only: str = ""


class Group(NamedTuple):
    name: str
    prepare: Callable
    # Takes the file system as prepared, since some counts are of what is there.
    steps: Callable


def program(*words, answers=(0,)):
    done = subprocess.run([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LIMIT)
    if done.returncode not in answers:
        raise OSError(f"{words[0]}: {done.stderr.decode(errors='replace').strip().splitlines()[-1:]}")


def find(fs):
    program("find", fs.dir / "tree", "-name", "file-77.c")


def list_all(fs):
    program("ls", "-lR", fs.dir / "tree")


def grep(fs):
    program("grep", "-r", "no such words", fs.dir / "tree", answers=(1,))


def move(fs):
    os.mkdir(fs.dir / "to")
    program("mv", fs.dir / "tree", fs.dir / "to/tree")


def remove(path, fs):
    program("rm", "-rf", fs.dir / path)


def looks(files, title):
    return [
        Step(f"find, {title}", find, files),
        Step(f"ls -lR, {title}", list_all, files),
        Step(f"grep -r, {title}", grep, files),
    ]


def ends(files, title):
    return [Step(f"mv, {title}", move, files, sync=True), Step(f"rm -rf, {title}", partial(remove, "to"), files, sync=True)]


def aged_steps(title, fs):
    files = trees.files_below(fs.dir / "tree")
    return [
        *looks(files, title),
        Step(f"kvfs defrag, {title}", lambda fs: fs.defrag() and None, files, only="kvfs"),
        *(s._replace(only="kvfs") for s in looks(files, f"{title}, defragmented")),
        *ends(files, title),
    ]


class Cases:
    """The groups of one run; what they share is made once, in a directory on a tmpfs."""

    def __init__(self, directory, sizes, seed):
        self.directory, self.sizes, self.seed = Path(directory), sizes, seed
        self.tar, self.repository = self.directory / "tree.tar", None

    def groups(self):
        made = (self.tree, self.commits, self.random, self.large, self.small, self.mail, self.names)
        return {g.name: g for g in (make() for make in made)}

    def tree(self):
        """A tree that was just unpacked."""
        files = self.sizes.tree

        def untar(fs):
            program("tar", "xf", self.tar, "-C", fs.dir)
        
        def steps(fs):
            size = self.tar.stat().st_size
            first = Step("untar + sync, fresh", untar, files, size, sync=True)
            return [first, *looks(files, "fresh"), *ends(files, "fresh")]

        def prepare(fs):
            if not self.tar.exists():
                trees.make_tar(self.tar, files, self.seed + 1)

        return Group("tree", prepare, steps)

    def commits(self):
        """A tree into which the commits of a repository were checked out, one after the other."""

        def prepare(fs):
            if not self.repository:
                s = self.sizes
                self.repository = trees.Repository(self.directory, s.tree, s.commits, s.changes, self.seed)
            self.repository.check_out_each(fs.dir, fs.sync)

        return Group("commits", prepare, partial(aged_steps, "aged by commits"))

    def random(self):
        """A tree whose files were made round robin, removed, made again and renamed."""

        def prepare(fs):
            trees.age_at_random(fs.dir, fs.sync, self.sizes.tree, self.sizes.moves, self.seed)

        return Group("random", prepare, partial(aged_steps, "aged at random"))

    def large(self):
        s = self.sizes

        def prepare(fs):
            workloads.fill(fs.dir / "big", s.big)
            for mib in s.unlinks:
                workloads.fill(fs.dir / f"unlink-{mib}", mib)

        def over(count, size):
            return lambda fs: workloads.overwrite(fs.dir / "big", count, size, self.seed)

        def read_big(fs):
            workloads.read_in_order(fs.dir / "big")

        def unlink(mib, fs):
            os.unlink(fs.dir / f"unlink-{mib}")
        
        def steps(fs):
            return [
                Step("sequential write", lambda fs: workloads.fill(fs.dir / "one", s.stream), 0, s.stream << 20),
                Step("sequential read", lambda fs: workloads.read_in_order(fs.dir / "one"), 0, s.stream << 20),
                *(Step(f"unlink of {mib} MiB", partial(unlink, mib), sync=True) for mib in s.unlinks),
                Step("4-byte overwrites + fsync", over(s.pokes, 4), s.pokes, 4 * s.pokes),
                Step("4 KiB overwrites + fsync", over(s.pages, 4096), s.pages, 4096 * s.pages),
                Step("read in order what was overwritten", read_big, 0, s.big << 20),
            ]

        return Group("large", prepare, steps)

    def small(self):
        n = self.sizes.small

        def steps(fs):
            return [
                Step("create of 200-byte files + sync", lambda fs: workloads.make_small(fs.dir / "tree", n, 200), n, 200 * n, sync=True),
                Step("find, 200-byte files", find, n),
                Step("rm -rf, 200-byte files", partial(remove, "tree"), n, sync=True),
            ]

        return Group("small", lambda fs: None, steps)

    def mail(self):
        n, boxes, messages = self.sizes.mail, 10, 300

        def steps(fs):
            return [Step("mail", lambda fs: workloads.mail(fs.dir / "mail", boxes, messages, n, self.seed), n)]

        return Group("mail", lambda fs: workloads.make_mailboxes(fs.dir / "mail", boxes, messages, self.seed), steps)

    def names(self):
        """KEVIN's metadata loads: nothing but names, whose bytes to and from the device count."""
        each, directories = self.sizes.names, 100
        n = each * directories

        def step(title, work):
            return Step(f"{title} of names", lambda fs: work(fs.dir / "names", directories, each, self.seed), n, sync=True)

        def steps(fs):
            return [
                step("create", workloads.names_create),
                step("rename", workloads.names_rename),
                step("unlink", workloads.names_unlink),
            ]

        return Group("names", lambda fs: None, steps)


def kvdb_loads(sizes, profile):
    """(load, bytes of a value, MiB, thresholds, more options). VT-tree Figures 5 and 6: a tuple fills
    its block (4 KiB theirs, 8 KiB here), thresholds of 0, 7, 15 and 16,383 blocks, no journal, memtables
    of 8 MiB, and more than 200 flushes; then the same with the store's journal and two tuples of 4 KiB
    a block. DeLSM's loads by bytes, with the options that a store has. On a hard disk a seek costs what
    `kvfs create --profile hdd` takes it to cost."""
    seek = ("seek_bytes=1048576",) if profile.startswith("hdd") else ()
    paper = ("memory=32", "journal=false", "separate_at=1048576", *seek)
    small, store = ("memory=8", "separate_at=1048576", *seek), ("memory=32", *seek)
    return [
        ("append", 8192, sizes.kvdb * 13 // 4, ("0", "max", "122880", "57344"), paper),
        ("append", 4096, sizes.kvdb, ("0", "max"), small),
        ("wdw", 512, sizes.kvdb // 4, ("adaptive", "max"), store),
        ("wdw", 64, sizes.kvdb // 4, ("adaptive", "max"), store),
        ("wdw", 4096, sizes.kvdb, ("adaptive", "max"), store),
        ("random", 4096, sizes.kvdb, ("adaptive", "max"), store),
    ]


def kvdb(shape, device, load, value, mib, threshold, options):
    """Runs `kvdb_shape` of bench/measure on the device itself; gives the figures it prints."""
    return sh(shape, device, load, value, mib, f"stitch_at={threshold}", "scan=32", *options)
