"""The groups of cases. A group prepares a disk at the speed of memory; then each of its steps runs
on the modelled disk, on a file system that was mounted for it."""

import os
from functools import partial
from pathlib import Path

import betrfs
import kevin
import trees
import vt_tree
import workloads
from disk import sh
from steps import Group, Step, program


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
    return [
        Step(f"mv, {title}", move, files, sync=True),
        Step(f"rm -rf, {title}", partial(remove, "to"), files, sync=True),
    ]


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
        s, seed = self.sizes, self.seed
        made = [
            make()
            for make in (self.tree, self.commits, self.random, self.large, self.small, self.mail)
        ]
        made += [betrfs.programs(self), betrfs.toku(s), betrfs.renames(seed)]
        made += [
            make(s, seed)
            for make in (
                kevin.names,
                kevin.names_aged,
                kevin.index,
                kevin.directories,
                kevin.listing,
            )
        ]
        made += [vt_tree.pieces(s, seed), vt_tree.personalities(s), vt_tree.builds(self.directory)]
        return {group.name: group for group in made}

    def make_tar(self):
        if not self.tar.exists():
            trees.make_tar(self.tar, self.sizes.tree, self.seed + 1)

    def make_repository(self):
        if not self.repository:
            s = self.sizes
            self.repository = trees.Repository(
                self.directory, s.tree, s.commits, s.changes, self.seed
            )
        return self.repository

    def tree(self):
        """A tree that was just unpacked."""
        files = self.sizes.tree

        def untar(fs):
            program("tar", "xf", self.tar, "-C", fs.dir)

        def steps(fs):
            size = self.tar.stat().st_size
            first = Step("untar + sync, fresh", untar, files, size, sync=True)
            return [first, *looks(files, "fresh"), *ends(files, "fresh")]

        return Group("tree", lambda fs: self.make_tar(), steps)

    def commits(self):
        """A tree into which the commits of a repository were checked out, one after the other."""

        def prepare(fs):
            self.make_repository().check_out_each(fs.dir, fs.sync)

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
                Step(
                    "sequential write",
                    lambda fs: workloads.fill(fs.dir / "one", s.stream),
                    0,
                    s.stream << 20,
                ),
                Step(
                    "sequential read",
                    lambda fs: workloads.read_in_order(fs.dir / "one"),
                    0,
                    s.stream << 20,
                ),
                *(
                    Step(f"unlink of {mib} MiB", partial(unlink, mib), sync=True)
                    for mib in s.unlinks
                ),
                Step("4-byte overwrites + fsync", over(s.pokes, 4), s.pokes, 4 * s.pokes),
                Step("4 KiB overwrites + fsync", over(s.pages, 4096), s.pages, 4096 * s.pages),
                Step("read in order what was overwritten", read_big, 0, s.big << 20),
            ]

        return Group("large", prepare, steps)

    def small(self):
        n = self.sizes.small

        def steps(fs):
            return [
                Step(
                    "create of 200-byte files + sync",
                    lambda fs: workloads.make_small(fs.dir / "tree", n, 200),
                    n,
                    200 * n,
                    sync=True,
                ),
                Step("find, 200-byte files", find, n),
                Step("rm -rf, 200-byte files", partial(remove, "tree"), n, sync=True),
            ]

        return Group("small", lambda fs: None, steps)

    def mail(self):
        n, boxes, messages = self.sizes.mail, 10, 300

        def steps(fs):
            return [
                Step(
                    "mail",
                    lambda fs: workloads.mail(fs.dir / "mail", boxes, messages, n, self.seed),
                    n,
                )
            ]

        return Group(
            "mail",
            lambda fs: workloads.make_mailboxes(fs.dir / "mail", boxes, messages, self.seed),
            steps,
        )


def kvdb_loads(sizes, profile):
    """(load, bytes of a value, MiB, thresholds, more options). VT-tree Figures 5 and 6: a tuple
    fills its block (4 KiB theirs, 8 KiB here), thresholds of 0, 7, 15 and 16,383 blocks, no
    journal, memtables of 8 MiB, and more than 200 flushes; then the same with the store's journal
    and two tuples of 4 KiB a block. DeLSM's loads by bytes, with the options that a store has. On a
    hard disk a seek costs what `kvfs create --profile hdd` takes it to cost."""
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
