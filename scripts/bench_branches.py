#!/usr/bin/env python3
"""What branches of a tree cost: transactions and clones of KVFS, git worktrees, copies by
reference and subvolumes of btrfs.

    trees    one tree: a branch of it is made, a tar archive is unpacked there, ten files of it are
             changed and brought back, it is thrown away; by each means
    many     the same calls, at so many files and with 1,000 clones beside them, and without

Each stage appends its figures to a file of JSON lines; `report` writes the table into
docs/bench/transactions.md. The tree is taken from Cargo's registry. Needs root, git,
rsync and btrfs-progs."""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bench_transactions import Store, change_ten, clock, sh

CLONES = 1_000
TEN = 10


def sources(to, count):
    """Copies so many files of Cargo's registry into a directory, again and again if it has fewer:
    their paths there."""
    registry = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry/src"
    files = sorted(p for p in registry.rglob("*") if p.is_file() and not p.is_symlink())
    files = [p for p in files if not any(part.startswith(".git") for part in p.parts)]
    if not files:
        sys.exit(f"there is nothing in {registry}; `cargo fetch` brings it")
    paths = []
    while len(paths) < count:
        turn = Path(str(len(paths) // len(files)))
        for file in files[: count - len(paths)]:
            path = turn / Path(*file.relative_to(registry).parts[1:])
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to / path)
            paths.append(path)
    return paths


def change(directory, paths, noise):
    for path in noise.sample(paths, TEN):
        (directory / path).write_bytes(noise.randbytes(1000))


class Figures(dict):
    def time(self, name, work):
        seconds, result = clock(work)
        self.setdefault(f"{name}, ms", []).append(seconds * 1e3)
        return result


def kvfs(a, work, base, paths, archive, figures, noise):
    s = Store(a, work, "s")
    try:
        shutil.copytree(base, s.dir / "tree")
        c = s.client()
        c("SYNC")
        views = s.dir / ".kvfs"
        for r in range(a.rounds):
            (s.dir / "plain").mkdir()
            figures.time(
                "kvfs, plain: tar x", lambda: sh("tar", "xf", archive, "-C", s.dir / "plain")
            )
            sh(a.kvfs, "rm", "-r", s.dir / "plain")
            c("SYNC")
            # A transaction.
            id = figures.time("kvfs, transaction: made", lambda: c("TXN", "BEGIN", "SI"))
            inside = views / "txn" / str(id)
            (inside / "new").mkdir()
            figures.time(
                "kvfs, transaction: tar x", lambda: sh("tar", "xf", archive, "-C", inside / "new")
            )
            figures.time("kvfs, transaction: all of it dropped", lambda: c("TXN", "ABORT", id))
            id = c("TXN", "BEGIN", "SI")
            change(views / "txn" / str(id) / "tree", paths, noise)
            figures.time("kvfs, transaction: ten files back", lambda: c("TXN", "COMMIT", id))
            # One within another.
            outer = c("TXN", "BEGIN", "SI")
            id = figures.time("kvfs, nested: made", lambda: c("TXN", "BEGIN", "WITHIN", outer))
            inside = views / "txn" / str(id)
            (inside / "new").mkdir()
            figures.time(
                "kvfs, nested: tar x", lambda: sh("tar", "xf", archive, "-C", inside / "new")
            )
            figures.time("kvfs, nested: all of it dropped", lambda: c("TXN", "ABORT", id))
            id = c("TXN", "BEGIN", "WITHIN", outer)
            change(views / "txn" / str(id) / "tree", paths, noise)
            figures.time("kvfs, nested: ten files back", lambda: c("TXN", "COMMIT", id))
            c("TXN", "ABORT", outer)

            # A clone, which lasts.
            def clone():
                c("SNAPSHOT", "CREATE", "base")
                c("CLONE", "CREATE", "base", "try")

            figures.time("kvfs, clone: made", clone)
            inside = views / "clone/try"
            change(inside / "tree", paths, noise)
            (s.dir / "beside").write_bytes(noise.randbytes(1000))
            figures.time("kvfs, clone: ten files back", lambda: sh(a.kvfs, "merge", inside))
            (inside / "new").mkdir()
            figures.time(
                "kvfs, clone: tar x", lambda: sh("tar", "xf", archive, "-C", inside / "new")
            )
            figures.time("kvfs, clone: all of it dropped", lambda: c("CLONE", "DROP", "try"))
            c("SNAPSHOT", "DROP", "base")
    finally:
        s.close()


def git(a, work, base, paths, archive, figures, noise):
    repo, tree = work / "repo", work / "tree"
    shutil.copytree(base, repo)

    def run(*words, at=repo):
        return sh(
            "git",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "core.autocrlf=false",
            "-C",
            at,
            *words,
        )

    run("init", "-q", "-b", "main")
    run("add", "-A", "-f")
    run("commit", "-q", "-m", "base")
    for r in range(a.rounds):
        figures.time(
            "git worktree: made", lambda: run("worktree", "add", "-q", "-b", f"b{r}", tree)
        )
        change(tree, paths, noise)
        (repo / "beside").write_bytes(noise.randbytes(1000))
        run("add", "beside")
        run("commit", "-q", "-m", "beside")

        def back():
            run("commit", "-q", "-a", "-m", "ten", at=tree)
            run("merge", "-q", "-m", "merge", f"b{r}")

        figures.time("git worktree: ten files back", back)
        (tree / "new").mkdir()
        figures.time("git worktree: tar x", lambda: sh("tar", "xf", archive, "-C", tree / "new"))
        figures.time(
            "git worktree: all of it dropped", lambda: run("worktree", "remove", "--force", tree)
        )


def btrfs(a, work, base, paths, archive, figures, noise):
    image, at = work / "btrfs.img", work / "btrfs"
    at.mkdir()
    sh("truncate", "-s", "8G", image)
    sh("mkfs.btrfs", "-q", image)
    sh("mount", "-o", "loop", image, at)
    try:
        sh("btrfs", "subvolume", "create", at / "main")
        shutil.copytree(base, at / "main/tree")
        sh("sync", "-f", at)
        for r in range(a.rounds):
            copy = at / "main/copy"
            figures.time(
                "cp --reflink: made",
                lambda: sh("cp", "-a", "--reflink=always", at / "main/tree", copy),
            )
            change(copy, paths, noise)
            figures.time(
                "cp --reflink: ten files back",
                lambda: sh("rsync", "-a", "--delete", f"{copy}/", at / "main/tree"),
            )
            (copy / "new").mkdir()
            figures.time(
                "cp --reflink: tar x", lambda: sh("tar", "xf", archive, "-C", copy / "new")
            )
            figures.time("cp --reflink: all of it dropped", lambda: sh("rm", "-rf", copy))
            figures.time(
                "btrfs subvolume: made",
                lambda: sh("btrfs", "subvolume", "snapshot", at / "main", at / "copy"),
            )
            (at / "copy/new").mkdir()
            figures.time(
                "btrfs subvolume: tar x", lambda: sh("tar", "xf", archive, "-C", at / "copy/new")
            )
            figures.time(
                "btrfs subvolume: all of it dropped",
                lambda: sh("btrfs", "subvolume", "delete", at / "copy"),
            )
    finally:
        sh("umount", at)


def trees(a, work):
    figures, noise = Figures(), random.Random(1)
    base, archive = work / "base", work / "tree.tar"
    base.mkdir()
    paths = sources(base, a.tree)
    sh("tar", "cf", archive, "-C", base, ".")
    ways = [kvfs, git, btrfs]
    for r, way in enumerate(ways):
        directory = work / str(r)
        directory.mkdir()
        way(a, directory, base, paths, archive, figures, noise)
        shutil.rmtree(directory)
    return figures


def memory(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1])


def many(a, work):
    figures = Figures()
    s = Store(a, work, "s", a.files)
    try:
        c, noise = s.client(), random.Random(1)
        pid = json.loads(sh(a.kvfs, "--json", "stat", s.dir))["daemon"]["pid"]
        for beside in (0, CLONES):
            at = f"{beside} clones beside"
            if beside:
                c("SNAPSHOT", "CREATE", "of-many")
                before = memory(pid)
                for n in range(beside):
                    c("CLONE", "CREATE", "of-many", f"c{n}")
                figures[f"memory of a clone, {at}, KiB"] = [(memory(pid) - before) / beside]
            for _ in range(20):
                id = figures.time(f"begin, {at}", lambda: c("TXN", "BEGIN", "SI"))
                change_ten_in(s.dir / f".kvfs/txn/{id}", a.files // 100, noise)
                figures.time(f"commit of ten files, {at}", lambda: c("TXN", "COMMIT", id))
                change_ten(s, a.files // 100, noise)
                figures.time(f"snapshot, {at}", lambda: c("SNAPSHOT", "CREATE", "a"))
                figures.time(f"clone, {at}", lambda: c("CLONE", "CREATE", "a", "b"))
                change_ten_in(s.dir / ".kvfs/clone/b", a.files // 100, noise)

                def merge():
                    id = c("TXN", "MERGE", "b")[0]
                    c("TXN", "COMMIT", id)

                figures.time(f"merge of ten files, {at}", merge)
                figures.time(f"drop of a clone, {at}", lambda: c("CLONE", "DROP", "b"))
                c("SNAPSHOT", "DROP", "a")
                put = clock(lambda: c.pipeline([("SET", n, "1") for n in range(1000)]))[0]
                figures.setdefault(f"a put, {at}, µs", []).append(put * 1e3)
        return figures
    finally:
        s.close()


def change_ten_in(directory, dirs, noise):
    for _ in range(TEN):
        file = f"d{noise.randrange(dirs):05}/f{noise.randrange(100):02}"
        (directory / file).write_bytes(noise.randbytes(100))


STAGES = {"trees": trees, "many": many}
HEADING = "## Branches, beside git worktrees and copies by reference\n"


def report(a):
    values = {}
    for line in Path(a.results).read_text().splitlines():
        for name, some in json.loads(line)["figures"].items():
            values.setdefault(name, []).extend(some)

    def shown(name):
        some = values.get(f"{name}, ms")
        if not some:
            return "–"
        mid = statistics.median(some)
        return (
            f"{mid / 1e3:.2f} s"
            if mid >= 1000
            else f"{mid:.2f} ms"
            if mid < 100
            else f"{mid:.0f} ms"
        )

    rows = [
        f"| a tree of {a.tree:,} files | made | `tar x` of as many "
        "| ten changed files brought back | dropped |",
        "|---|---|---|---|---|",
    ]
    for name in (
        "kvfs, plain",
        "kvfs, transaction",
        "kvfs, nested",
        "kvfs, clone",
        "git worktree",
        "cp --reflink",
        "btrfs subvolume",
    ):
        cells = ("made", "tar x", "ten files back", "all of it dropped")
        rows.append(f"| {name} | " + " | ".join(shown(f"{name}: {cell}") for cell in cells) + " |")
    rows += ["", f"| {a.files:,} files | alone | with {CLONES:,} clones beside |", "|---|---|---|"]
    for what in (
        "begin",
        "commit of ten files",
        "snapshot",
        "clone",
        "merge of ten files",
        "drop of a clone",
    ):
        rows.append(
            f"| {what} | "
            + " | ".join(shown(f"{what}, {n} clones beside") for n in (0, CLONES))
            + " |"
        )
    put = [statistics.median(values[f"a put, {n} clones beside, µs"]) for n in (0, CLONES)]
    rows.append(f"| a put, in a pipeline | {put[0]:.2f} µs | {put[1]:.2f} µs |")
    kib = statistics.median(values[f"memory of a clone, {CLONES} clones beside, KiB"])
    rows.append(f"| memory of an idle clone | – | {kib:.1f} KiB |")
    text = Path(a.out).read_text()
    before, _, rest = text.partition(HEADING)
    if not rest:
        sys.exit(f"{a.out} has no line '{HEADING.strip()}'")
    notes = rest[rest.index("\n\n", rest.rindex("\n| ") + 1) :] if "\n| " in rest else rest
    Path(a.out).write_text(before + HEADING + "\n" + "\n".join(rows) + notes)
    print("\n".join(rows))


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("stages", nargs="+", choices=[*STAGES, "report"], metavar="STAGE")
    p.add_argument("--kvfs", default="target/release/kvfs")
    p.add_argument("--example", default="target/release/kvfs_views", help="the library's example")
    p.add_argument("--results", default="docs/bench/branches.jsonl")
    p.add_argument("--out", default="docs/bench/transactions.md")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tree", type=int, default=22_610, help="files of the tree")
    p.add_argument("--files", type=int, default=500_000, help="how many are many")
    p.add_argument(
        "--dir", default=None, help="where the stores lie (default: a temporary directory)"
    )
    a = p.parse_args()
    a.kvfs, a.example = (str(Path(f).resolve()) for f in (a.kvfs, a.example))
    for stage in a.stages:
        if stage == "report":
            report(a)
            continue
        with tempfile.TemporaryDirectory(prefix="kvfs-bench-", dir=a.dir) as tmp:
            seconds, figures = clock(lambda stage=stage: STAGES[stage](a, Path(tmp)))
        with open(a.results, "a") as results:
            results.write(json.dumps({"stage": stage, "figures": figures}) + "\n")
        print(f"{stage}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
