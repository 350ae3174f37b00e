"""Groups of KEVIN's figures: names, directories and small files, whose bytes to and from the device
count as well."""

from functools import partial

import trees
import workloads
from steps import Group, Step, program

DIRECTORIES = 100


def name_steps(sizes, seed, title=""):
    each = sizes.names

    def step(what, work):
        return Step(
            f"{what} of names{title}",
            lambda fs: work(fs.dir / "names", DIRECTORIES, each, seed),
            DIRECTORIES * each,
            sync=True,
        )

    return [
        step("create", workloads.names_create),
        step("rename", workloads.names_rename),
        step("unlink", workloads.names_unlink),
    ]


def names(sizes, seed):
    """Figure 9, on an empty file system."""
    return Group("names", lambda fs: None, lambda fs: name_steps(sizes, seed))


def names_aged(sizes, seed):
    """Figure 15 (a): the same beside a tree that was aged at random."""
    s = sizes

    def prepare(fs):
        trees.age_at_random(fs.dir, fs.sync, s.tree, s.moves, seed)

    return Group("names-aged", prepare, lambda fs: name_steps(s, seed, ", aged"))


def index(sizes, seed):
    """How much room names take on the device."""
    n, (create, *_) = DIRECTORIES * sizes.names, name_steps(sizes, seed)
    return Group(
        "index",
        lambda fs: None,
        lambda fs: [create._replace(name=f"index of {n:,} names", space=True)],
    )


def directories(sizes, seed):
    """Figures 9 and 11: directories, and files of 4 KiB."""
    each, n = sizes.names, DIRECTORIES * sizes.names
    copied = 20 * sizes.copied

    def files(work):
        return lambda fs: work(fs.dir / "files", 20, sizes.copied, seed)

    def steps(fs):
        return [
            Step(
                "mkdir",
                lambda fs: workloads.directories_make(fs.dir / "names", DIRECTORIES, each, seed),
                n,
                sync=True,
            ),
            Step(
                "rmdir",
                lambda fs: workloads.directories_remove(fs.dir / "names", DIRECTORIES, each, seed),
                n,
                sync=True,
            ),
            Step(
                "create of 4 KiB files",
                files(partial(workloads.names_create, size=4096)),
                copied,
                4096 * copied,
                sync=True,
            ),
            Step(
                "cp of 4 KiB files",
                lambda fs: program("cp", "-r", fs.dir / "files", fs.dir / "copy"),
                copied,
                4096 * copied,
                sync=True,
            ),
            Step("unlink of 4 KiB files", files(workloads.names_remove), copied, sync=True),
        ]

    return Group("directories", lambda fs: None, steps)


def listing(sizes, seed):
    """Figures 9 and 16 (b): directories of five files, each listed once, in no order."""
    n = sizes.listed

    def prepare(fs):
        workloads.names_create(fs.dir / "fresh", n, 5, None)
        (fs.dir / "aged").mkdir()
        trees.age_at_random(fs.dir / "aged", fs.sync, 5 * n, 10 * n, seed, directories=n)

    def steps(fs):
        tops = (("fresh", fs.dir / "fresh"), ("aged at random", fs.dir / "aged/tree"))
        return [
            Step(
                f"{what}, {title}", partial(lambda top, fs: workloads.list_each(top, seed), top), n
            )
            for title, top in tops
            for what in ("readdir", "readdir again")
        ]

    return Group("listing", prepare, steps)
