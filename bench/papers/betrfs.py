"""Groups of BetrFS's figures that are not of trees, large files and mail (cases.py)."""

from functools import partial

import trees
import workloads
from disk import sh
from steps import Group, Step, program


def programs(cases):
    """Figure 9: rsync within the file system, tar, git clone, git diff."""

    def prepare(fs):
        cases.make_tar()
        program("tar", "xf", cases.tar, "-C", fs.dir)
        program("cp", "-r", cases.make_repository().path, fs.dir / "repository.git")

    def rsync(to, option, fs):
        program("rsync", "-a", *option, f"{fs.dir}/tree/", fs.dir / to)

    def clone(fs):
        program("git", "clone", "-q", "--no-hardlinks", fs.dir / "repository.git", fs.dir / "clone")

    def diff(fs):
        git = ["git", "-C", fs.dir / "clone"]
        program(*git, "diff", *sh(*git, "rev-list", "--max-parents=0", "HEAD").split(), "HEAD")

    def steps(fs):
        files = trees.files_below(fs.dir / "tree")
        size = cases.tar.stat().st_size
        return [
            Step("rsync", partial(rsync, "copy", []), files, size, sync=True),
            Step(
                "rsync --inplace", partial(rsync, "in-place", ["--inplace"]), files, size, sync=True
            ),
            Step(
                "tar of the tree",
                lambda fs: program("tar", "cf", fs.dir / "tree.tar", "-C", fs.dir, "tree"),
                files,
                size,
                sync=True,
            ),
            Step("git clone", clone, sync=True),
            Step("git diff", diff),
        ]

    return Group("programs", prepare, steps)


def toku(sizes):
    """Figure 8: TokuBench, files of 200 bytes made by four processes."""
    n = sizes.toku

    def steps(fs):
        return [
            Step(
                "TokuBench + sync",
                lambda fs: workloads.make_small_at_once(fs.dir / "tree", n, 200),
                n,
                200 * n,
                sync=True,
            )
        ]

    return Group("toku", lambda fs: None, steps)


def renames(seed):
    """Figure 4: a file moves to another directory, which is made durable, a hundred times."""
    sizes = ((4, "4 KiB"), (1024, "1 MiB"))

    def prepare(fs):
        for kib, _ in sizes:
            workloads.make_files(fs.dir / f"from-{kib}", 100, kib << 10)
            (fs.dir / f"to-{kib}").mkdir()

    def step(kib, size):
        work = lambda fs: workloads.move_durably(
            fs.dir / f"from-{kib}", fs.dir / f"to-{kib}", 100, seed
        )
        return Step(f"rename + fsync, files of {size}", work, 100)

    return Group("renames", prepare, lambda fs: [step(*size) for size in sizes])
