"""The cases of scripts/bench_files.py that are real programs: each takes a file system, and gives
what to run, prepared outside of the time."""

import os
import shutil
import sqlite3
from pathlib import Path

import file_systems
from bench_measure import Case
from bench_trees import Packages, in_memory, make_tar, make_workspace
from file_systems import sh


# How the names of those begin whose time is mostly the processor's.
COMPUTING = ("git gc", "make of", "cargo build")


def remove(path):
    if path.exists():
        sh("rm", "-rf", path)


class Tree:
    """A tar and the tree in it, under a name of its own in each file system."""

    def __init__(self, work, kvfs, name, files):
        self.kvfs, self.name, self.tar = kvfs, name, work / f"{name}.tar"
        make_tar(self.tar, files)

    def at(self, fs):
        return fs.dir / self.name / "tree"

    def unpack(self, fs, by=None):
        self.at(fs).parent.mkdir(exist_ok=True)
        sh(*(by or ["tar", "xf", self.tar, "-C"]), self.at(fs).parent)

    def there(self, fs):
        if not self.at(fs).exists():
            self.unpack(fs)

    def gone(self, fs):
        self.at(fs).parent.mkdir(exist_ok=True)
        remove(self.at(fs))
        in_memory(self.tar)

    def untar(self, fs):
        self.gone(fs)
        return lambda: self.unpack(fs)

    def remove(self, fs):
        self.there(fs)
        return lambda: sh("rm", "-rf", self.at(fs))

    def kvfs_import(self, fs):
        if not isinstance(fs, file_systems.Kvfs):
            return self.untar(fs)
        self.gone(fs)
        return lambda: sh(self.kvfs, "import", self.at(fs).parent, self.tar)

    def kvfs_rm(self, fs):
        if not isinstance(fs, file_systems.Kvfs):
            return self.remove(fs)
        self.there(fs)
        return lambda: sh(self.kvfs, "rm", self.at(fs))


class Programs:
    def __init__(self, work, kvfs, files):
        self.work, self.tree = work, Tree(work, kvfs, "small", files)
        self.packages = Packages(max(2, files // 20))
        self.repository = work / "repository.git"
        sources = work / "sources"
        sources.mkdir()
        sh("tar", "xf", self.tree.tar, "-C", sources)
        git = ["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "-C", sources]
        sh("git", "init", "-q", sources)
        sh(*git, "add", "-A")
        sh(*git, "commit", "-qm", "all")
        sh("git", "clone", "-q", "--bare", sources, self.repository)
        shutil.rmtree(sources)

    def copy(self, fs):
        self.tree.there(fs)
        remove(fs.dir / "copy")
        return lambda: sh("cp", "-a", self.tree.at(fs), fs.dir / "copy")

    def rsync(self, fs):
        if not shutil.which("rsync"):
            raise FileNotFoundError("rsync is not installed")
        self.tree.there(fs)
        remove(fs.dir / "synced")
        return lambda: sh("rsync", "-a", self.tree.at(fs), fs.dir / "synced")

    def clone(self, fs):
        remove(fs.dir / "clone")
        return lambda: sh("git", "clone", "-q", "--no-hardlinks", self.repository, fs.dir / "clone")

    def status(self, fs):
        if not (fs.dir / "clone").exists():
            self.clone(fs)()
        look = ["git", "-C", fs.dir / "clone", "status", "--short"]
        sh(*look)
        return lambda: sh(*look)

    def gc(self, fs):
        if not (fs.dir / "clone").exists():
            self.clone(fs)()
        return lambda: sh("git", "-C", fs.dir / "clone", "gc", "-q")

    def npm(self, fs):
        directory = fs.dir / "project"
        remove(directory)
        directory.mkdir()
        return lambda: self.packages.install(directory)

    def make(self, fs):
        source = fs.dir / "build"
        remove(source)
        source.mkdir()
        for n in range(10):
            body = "".join(f"int f{n}_{i}(int x) {{ return x * {i} + {n}; }}\n" for i in range(200))
            (source / f"m{n}.c").write_text("#include <stdio.h>\n#include <stdlib.h>\n" + body)
        rule = "all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O1 -c -o $@ $<\n"
        (source / "Makefile").write_text(rule)
        return lambda: sh("make", "-s", "-j2", "-C", source)

    def cargo(self, fs):
        source = fs.dir / "workspace"
        remove(source)
        make_workspace(source)
        environment = dict(os.environ, CARGO_TARGET_DIR=str(source / "target"))
        build = ["cargo", "build", "--offline", "--quiet", "--jobs", "2"]
        return lambda: sh(*build, cwd=source, env=environment)

    def sqlite(self, fs, journal):
        path = fs.dir / "rows.sqlite"
        for old in fs.dir.glob("rows.sqlite*"):
            old.unlink()
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(f"pragma journal_mode={journal}")
        db.execute("pragma synchronous=full")
        db.execute("create table t (k integer primary key, v text)")

        def run():
            for n in range(1000):
                db.execute("insert into t values (?, ?)", (n, "v" * 100))
            db.close()
            return {"ops": 1000}

        return run

    def pgbench(self, fs):
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not binaries:
            raise FileNotFoundError("PostgreSQL is not installed")
        if fs.name.startswith("memory"):
            return None
        data, sockets = fs.dir / "pg", fs.work / "pg-sockets"
        remove(data)
        for directory in (data, sockets):
            directory.mkdir(exist_ok=True)
            shutil.chown(directory, "postgres")
        for directory in [fs.dir, fs.work, fs.work.parent]:
            directory.chmod(0o755)
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        at = binaries[-1]
        sh(*as_postgres, at / "initdb", "-D", data, "--no-sync", cwd="/")
        options = f"-c listen_addresses='' -c unix_socket_directories={sockets}"
        control = [*as_postgres, at / "pg_ctl", "-D", data, "-w"]
        bench = [*as_postgres, at / "pgbench", "-h", sockets]

        def stop():
            sh(*control, "-m", "immediate", "stop", cwd="/")

        sh(*control, "-l", sockets / "log", "-o", options, "start", cwd="/")
        try:
            sh(*bench, "-q", "-i", "-s", "2", "postgres", cwd="/")
        except BaseException:
            stop()
            raise

        def run():
            sh(*bench, "-c", "4", "-j", "2", "-t", "500", "postgres", cwd="/")
            return {"ops": 2000}

        run.after = stop
        return run

    def cases(self):
        def case(name, prepare):
            return Case(name, prepare, settled=True)

        return [
            case("tar x", self.tree.untar),
            case("cp -a", self.copy),
            case("rsync -a", self.rsync),
            case("rm -rf", self.tree.remove),
            case("git clone", self.clone),
            case("git status, warm", self.status),
            case("git gc", self.gc),
            case("npm-like install", self.npm),
            case("make of 10 C files", self.make),
            case("cargo build of 6 crates", self.cargo),
            case("SQLite inserts, WAL", lambda fs: self.sqlite(fs, "wal")),
            case("SQLite inserts, rollback journal", lambda fs: self.sqlite(fs, "delete")),
            case("pgbench, 4 clients", self.pgbench),
        ]


def large_tree_cases(work, kvfs, files):
    """The large tree, quiet and with an endless loop for each CPU;
    in this order nothing but what is timed makes or removes it."""
    tree = Tree(work, kvfs, "large", files)
    cases = []
    for mark, busy in (("", False), (", busy machine", True)):
        cases.append(Case(f"tar x, large tree{mark}", tree.untar, settled=True, busy=busy))
        cases.append(Case(f"rm -rf, large tree{mark}", tree.remove, settled=True, busy=busy))
    return [
        *cases,
        Case("kvfs import; tar x elsewhere, large tree", tree.kvfs_import, settled=True),
        Case("kvfs rm; rm -rf elsewhere, large tree", tree.kvfs_rm, settled=True),
    ]
