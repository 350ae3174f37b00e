"""Trees and what ages them, each from a seed and the same for every file system: `git checkout` of
hundreds of commits, as BetrFS' authors age theirs, and files made, removed and renamed at
random."""

import os
import random
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_trees import WORDS, make_tar
from disk import sh

__all__ = ["Repository", "age_at_random", "files_below", "make_tar"]


def files_below(directory):
    return sum(len(files) for _, _, files in os.walk(directory))


class Repository:
    """A bare repository whose commits change, add, remove and move files of one tree."""

    def __init__(self, directory, files, commits, changes, seed):
        self.path, self.commits, self.rng = (
            directory / "repository.git",
            commits,
            random.Random(seed),
        )
        self.text = " ".join(self.rng.choices(WORDS, k=1 << 18)).encode()
        self.paths, self.first, self.made = [], files, files
        sh("git", "init", "-q", "--bare", "-b", "main", self.path)
        words = ["git", f"--git-dir={self.path}", "fast-import", "--quiet", "--depth=0"]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as git:
            self.to = git.stdin
            for n in range(commits):
                self.commit(n, range(files) if n == 0 else None, changes)
        if git.returncode != 0:
            raise OSError("git fast-import failed")

    def place(self, n):
        module = n // 20
        return f"part-{module // 20}/module-{module}/file-{n}.c"

    def another(self):
        """A path that no commit has had, in any of the directories, which have twenty files
        each."""
        self.made += 1
        module = self.rng.randrange(self.first // 20)
        return f"part-{module // 20}/module-{module}/file-{self.made}.c"

    def content(self):
        size = min(int(self.rng.lognormvariate(8.0, 1.2)), 1 << 16)
        start = self.rng.randrange(len(self.text) - size)
        return self.text[start : start + size]

    def write(self, path):
        data = self.content()
        self.to.write(f"M 644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n")

    def commit(self, n, first, changes):
        stamp = f"committer a <a@b> {1_700_000_000 + n} +0000\ndata 1\nx\n"
        self.to.write(f"commit refs/heads/main\nmark :{n + 1}\n{stamp}".encode())
        if first is not None:
            self.paths = [self.place(i) for i in first]
            for path in self.paths:
                self.write(path)
            return
        added = []
        for at in sorted(self.rng.sample(range(len(self.paths)), changes), reverse=True):
            kind = self.rng.random()
            if kind < 0.7:
                self.write(self.paths[at])
            elif kind < 0.85:
                self.to.write(f"D {self.paths[at]}\n".encode())
                self.paths[at] = self.paths[-1]
                self.paths.pop()
                added.append(self.another())
            else:
                target = self.another()
                self.to.write(f"R {self.paths[at]} {target}\n".encode())
                self.paths[at] = target
        for path in added:
            self.write(path)
            self.paths.append(path)

    def check_out_each(self, directory, sync):
        """The commits one after the other, each durable before the next. The repository and its
        index lie elsewhere, so that the file system holds the tree alone."""
        tree = directory / "tree"
        tree.mkdir()
        (self.path / "index").unlink(missing_ok=True)
        git = [
            "git",
            f"--git-dir={self.path}",
            f"--work-tree={tree}",
            "-c",
            "advice.detachedHead=false",
        ]
        commits = sh(*git, "rev-list", "--reverse", "main").split()
        for commit in commits:
            sh(*git, "checkout", "-q", "-f", commit, cwd=tree)
            sync()


def age_at_random(directory, sync, files, operations, seed, directories=50):
    """Files of 4 KiB on average made round robin in so many directories; then one is removed and
    one made, or one moves to another directory, again and again, synced every 500 operations."""
    rng, tree = random.Random(seed), directory / "tree"
    noise = rng.randbytes(1 << 16)
    for d in range(directories):
        os.makedirs(tree / f"dir-{d}")
    paths = []

    def create(n):
        path = f"{tree}/dir-{n % directories}/file-{n}.c"
        start, size = rng.randrange(1 << 15), rng.randrange(1, 8192)
        with open(path, "wb", buffering=0) as f:
            f.write(noise[start : start + size])
        return path

    for n in range(files):
        paths.append(create(n))
        if n % 500 == 499:
            sync()
    for n in range(files, files + operations):
        at = rng.randrange(files)
        if rng.random() < 0.6:
            os.unlink(paths[at])
            paths[at] = create(n)
        else:
            target = f"{tree}/dir-{rng.randrange(directories)}/file-{n}.c"
            os.rename(paths[at], target)
            paths[at] = target
        if n % 500 == 499:
            sync()
    sync()
