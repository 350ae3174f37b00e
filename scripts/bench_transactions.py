#!/usr/bin/env python3
"""What transactions, snapshots and clones cost on a real mount, each compared with the same work
without them, interleaved in one run.

Each stage is a run of its own, of less than a minute, and appends its figures to a file of JSON
lines; `report` writes the table:

    build    `make -j2` of a C library in a transaction (si, ser) and on the plain mount
    ends     begin and commit of that build, in a store of 1,000 files and in one of many
    four     four such builds at once in four transactions,
             and four on the plain mount one after the other
    serial   the same with `make -j1`, which leaves a core to others
    together a file and its key made durable together, and an ext4 file and a SQLite row
    latency  begin, snapshot, clone, drop and differences through the socket,
             at 1,000 files and at many
    library  the same in the library, and `together` in it
    many     stat and GET with 1,000 snapshots and 100 open transactions, and without them

The C library is zstd, whose sources lie in Cargo's registry. `together` needs a C compiler and
libsqlite3-dev. Needs root."""

import argparse
import glob
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

MAKEFILE = """\
SOURCES := $(shell find lib -name '*.[cS]')
OBJECTS := $(addsuffix .o,$(SOURCES))
libzstd.so: $(OBJECTS)
	$(CC) -shared -o $@ $^
	ar rcs libzstd.a $^
Makefile: ;
%.o: %
	$(CC) -O0 -fPIC -DZSTD_LEGACY_SUPPORT=1 -DZSTD_MULTITHREAD -MMD -c -o $@ $<
clean:
	rm -f libzstd.so libzstd.a $(OBJECTS) $(addsuffix .d,$(SOURCES))
"""


def sh(*args, **kwargs):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, **kwargs)
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, args))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout.strip()


def copy_sources(directory):
    """Puts the sources of the C library and their Makefile into a new directory."""
    registry = f"{os.environ.get('CARGO_HOME', Path.home() / '.cargo')}/registry/src"
    found = sorted(glob.glob(f"{registry}/*/zstd-sys-*/zstd/lib"))
    if not found:
        raise FileNotFoundError(
            f"the sources of zstd are not in {registry}; `cargo fetch` brings them"
        )
    shutil.copytree(found[-1], directory / "lib")
    (directory / "Makefile").write_text(MAKEFILE)
    return directory


def clock(work):
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


class Socket:
    """A client of the store's socket: RESP2, as much of it as is needed."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(path))
        self.input = self.connection.makefile("rb")

    def send(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    def reply(self):
        line = self.input.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.input.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        return rest

    def __call__(self, *words):
        self.connection.sendall(self.send(*words))
        return self.reply()

    def pipeline(self, commands):
        self.connection.sendall(b"".join(self.send(*c) for c in commands))
        return [self.reply() for _ in commands]


class Store:
    def __init__(self, a, work, name, files=0):
        self.kvfs, self.file, self.dir = a.kvfs, work / f"{name}.kvfs", work / name
        self.dir.mkdir()
        sh(a.kvfs, "create", self.file)
        if files:
            sh(a.example, self.file, "fill", files)
        sh(a.kvfs, "mount", self.file, self.dir)
        self.socket = Path(f"{self.file}.sock")

    def client(self):
        return Socket(self.socket)

    def project(self, name):
        return copy_sources(self.dir / name)

    def close(self):
        subprocess.run([self.kvfs, "umount", str(self.dir)], capture_output=True)
        subprocess.run(["umount", "-l", str(self.dir)], capture_output=True)
        self.file.unlink(missing_ok=True)


def make(directory, jobs=2):
    return ["make", "-s", f"-j{jobs}", "-C", str(directory)]


def clean(directory):
    assert (directory / "libzstd.so").exists(), "the build has left nothing"
    sh("make", "-s", "clean", "-C", directory)


# --- stages: each gives figures by name, a list of values for each


def build(a, work):
    s = Store(a, work, "s")
    try:
        directory = s.project("zstd")
        ways = {
            "plain": make(directory),
            "si": [a.kvfs, "run", "--isolation", "si", str(s.dir), "--", *make(directory)],
            "ser": [a.kvfs, "run", "--isolation", "ser", str(s.dir), "--", *make(directory)],
        }
        figures = {}
        order = list(ways)
        for r in range(a.rounds):
            random.Random(r + os.getpid()).shuffle(order)
            for way in order:
                seconds, _ = clock(lambda: sh(*ways[way]))
                figures.setdefault(f"build {way}, s", []).append(seconds)
                clean(directory)
        return figures
    finally:
        s.close()


def ends(a, work):
    figures = {}
    stores = {}
    try:
        for files in (1_000, a.files):
            stores[files] = Store(a, work, f"s{files}", files)
        for r in range(a.rounds):
            for files, s in stores.items():
                directory = s.dir / "zstd"
                if r == 0:
                    s.project("zstd")
                c = s.client()
                for way in ("SI", "SER") if r < 2 else ("SI",):
                    begin, id = clock(lambda: c("TXN", "BEGIN", way))
                    sh(a.kvfs, "txn", "exec", s.dir, id, "--", *make(directory))
                    commit, _ = clock(lambda: c("TXN", "COMMIT", id))
                    sync, _ = clock(lambda: c("SYNC"))
                    for what, seconds in (
                        ("begin", begin),
                        ("commit", commit),
                        ("commit and sync", commit + sync),
                    ):
                        figures.setdefault(f"{what} {way.lower()}, {files} files, ms", []).append(
                            seconds * 1e3
                        )
                    clean(directory)
        return figures
    finally:
        for s in stores.values():
            s.close()


def four(a, work, jobs=2, named=""):
    s = Store(a, work, "s")
    try:
        directories = [s.project(f"zstd{i}") for i in range(4)]
        run = [a.kvfs, "run", str(s.dir), "--"]

        def at_once():
            all = [subprocess.Popen([*run, *make(f, jobs)]) for f in directories]
            assert all and not any([p.wait() for p in all])

        def in_turn():
            for f in directories:
                sh(*make(f, jobs))

        figures = {}
        ways = {
            f"four{named} builds in turn, plain, s": in_turn,
            f"four{named} builds at once, transactions, s": at_once,
        }
        for name in random.sample(list(ways), 2):
            seconds, _ = clock(ways[name])
            figures[name] = [seconds]
            for f in directories:
                clean(f)
        return figures
    finally:
        s.close()


def serial(a, work):
    return four(a, work, jobs=1, named=" serial")


def together(a, work):
    s = Store(a, work, "s")
    image, loop, host = work / "ext4.img", work / "loop", work / "host"
    loop.mkdir(), host.mkdir()
    sh("fallocate", "-l", "2G", image)
    sh("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
    sh("mount", "-o", "loop", image, loop)
    binary = work / "together"
    sh("cc", "-O2", "-o", binary, Path(__file__).with_name("together.c"), "-lsqlite3")
    figures = {}
    try:
        ways = {
            "kvfs": [binary, "kvfs", s.dir, s.socket],
            "ext4 on a loop device": [binary, "ext4", loop],
            "ext4 of the host": [binary, "ext4", host],
        }
        library = work / "library.kvfs"
        for _ in range(a.rounds):
            for clients in (1, 8):
                for name, way in ways.items():
                    rate = float(sh(*way, clients, 1.5))
                    figures.setdefault(f"together, {name}, {clients} clients, /s", []).append(rate)
                line = json.loads(sh(a.example, library, "together", clients, 1))
                figures.setdefault(f"together, the library, {clients} clients, /s", []).append(
                    line["per_second"]
                )
        return figures
    finally:
        s.close()
        sh("umount", loop)


def change_ten(s, dirs, noise):
    for _ in range(10):
        (s.dir / f"d{noise.randrange(dirs):05}" / f"f{noise.randrange(100):02}").write_bytes(
            noise.randbytes(100)
        )


def latency(a, work):
    figures = {}
    for files in (1_000, a.files):
        s = Store(a, work, f"s{files}", files)
        try:
            c, noise = s.client(), random.Random(1)

            def timed(what, *words):
                seconds, reply = clock(lambda: c(*words))
                figures.setdefault(f"{what}, {files} files, ms", []).append(seconds * 1e3)
                return reply

            for _ in range(20):
                for way in ("SI", "SER"):
                    id = timed(f"begin {way.lower()}", "TXN", "BEGIN", way)
                    timed("abort", "TXN", "ABORT", id)
                change_ten(s, files // 100, noise)
                timed("snapshot", "SNAPSHOT", "CREATE", "a")
                timed("clone", "CLONE", "CREATE", "a", "branch")
                change_ten(s, files // 100, noise)
                found = timed("difference of 10 files", "SNAPSHOT", "FILES", "a")
                assert 0 < len(found) <= 10, f"{len(found)} differences"
                timed("drop a clone", "CLONE", "DROP", "branch")
                timed("drop", "SNAPSHOT", "DROP", "a")
        finally:
            s.close()
    return figures


def library(a, work):
    figures = {}
    for files in (1_000, a.files):
        file = work / f"{files}.kvfs"
        sh(a.example, file, "fill", files)
        for line in sh(a.example, file, "latency").splitlines():
            line = json.loads(line)
            figures.setdefault(f"library: {line['what']}, {files} files, ms", []).append(
                line["median_ms"]
            )
        file.unlink()
    file = work / "many.kvfs"
    for store in (file, f"{file}.alone"):
        sh(a.example, store, "fill", 100_000)
    for line in sh(a.example, file, "many").splitlines():
        line = json.loads(line)
        for name, value in line.items():
            if name != "what":
                figures.setdefault(f"library: {line['what']}: {name}", []).append(value)
    return figures


def many(a, work):
    """Two stores with the same writes, one of them with snapshots and transactions."""
    files, keys = 100_000, 100_000
    stores = {}
    figures = {}
    try:
        clients = {}
        for when in ("alone", "beside"):
            stores[when] = Store(a, work, when, files)
            clients[when] = stores[when].client()
        for when, s in stores.items():
            c, noise = clients[when], random.Random(1)
            for at in range(0, keys, 1000):
                c.pipeline([("SET", f"key:{at + i:08}", b"v" * 64) for i in range(1000)])
            begun = time.perf_counter()
            for i in range(1000):
                (s.dir / f"d{noise.randrange(files // 100):05}" / "f00").write_bytes(
                    noise.randbytes(100)
                )
                c("SET", f"key:{noise.randrange(keys):08}", "changed")
                if when == "beside":
                    c("SNAPSHOT", "CREATE", f"s{i:04}")
            figures[f"1,000 changes {when}, s"] = [time.perf_counter() - begun]
        s, c = stores["beside"], clients["beside"]
        for i in range(100):
            id = c("TXN", "BEGIN")
            c("TXN", "JOIN", id)
            c.pipeline([("SET", f"key:{i * 1000 + k:08}", "in a transaction") for k in range(10)])
            c("TXN", "LEAVE")
            (s.dir / ".kvfs" / "txn" / str(id) / f"d{i:05}" / "f01").write_bytes(b"x" * 100)
        assert len(c("TXN", "LIST")) == 100 and len(c("SNAPSHOT", "LIST")) == 1000
        for r in range(-1, 5):
            noise = random.Random(r)
            chosen = [
                f"d{noise.randrange(files // 100):05}/f{noise.randrange(100):02}"
                for _ in range(20_000)
            ]
            gets = [
                [("GET", f"key:{noise.randrange(keys):08}") for _ in range(50)] for _ in range(600)
            ]
            order = list(stores) if r % 2 else list(reversed(stores))
            for what in ("stat", "read", "GET"):
                Path("/proc/sys/vm/drop_caches").write_text("2\n")
                for when in order:
                    s, c = stores[when], clients[when]
                    work_of = {
                        "stat": (20_000, lambda: [os.stat(s.dir / n) for n in chosen]),
                        "read": (5_000, lambda: [(s.dir / n).read_bytes() for n in chosen[:5000]]),
                        "GET": (30_000, lambda: [c.pipeline(some) for some in gets]),
                    }
                    count, ask = work_of[what]
                    seconds, _ = clock(ask)
                    if r >= 0:
                        figures.setdefault(f"{what} {when}, /s", []).append(count / seconds)
        return figures
    finally:
        for s in stores.values():
            s.close()


STAGES = {f.__name__: f for f in (build, ends, four, serial, together, latency, library, many)}


# --- the report


def report(a):
    values = {}
    rounds = {}
    for line in Path(a.results).read_text().splitlines():
        line = json.loads(line)
        rounds[line["stage"]] = rounds.get(line["stage"], 0) + 1
        for name, some in line["figures"].items():
            values.setdefault(name, []).extend(some)

    def mid(name):
        return statistics.median(values[name]) if name in values else float("nan")

    rows = []

    def row(what, figure, aim=""):
        rows.append(f"| {what} | {figure} | {aim} |")

    def ratio(x, y, larger=False):
        """Medians of the ratios of each round, and their range."""
        all = sorted(p / q for p, q in zip(values.get(x, []), values.get(y, [])))
        return (
            f"**{statistics.median(all):.3f}** ({all[0]:.3f}–{all[-1]:.3f})"
            if all
            else "not measured"
        )

    plain = "build plain, s"
    n = len(values.get(plain, []))
    row("**a. `kvfs run -- make -j2`**", f"{n} rounds")
    row("on the plain mount", f"{mid(plain):.2f} s")
    row(
        "in a transaction, `si`",
        f"{mid('build si, s'):.2f} s, ratio {ratio('build si, s', plain)}",
        "≤ 1.03",
    )
    row(
        "in a transaction, `ser`",
        f"{mid('build ser, s'):.2f} s, ratio {ratio('build ser, s', plain)}",
        "≤ 1.10",
    )
    for way in ("si", "ser"):
        for files in (1_000, a.files):
            at = f"{way}, {files} files, ms"
            row(
                f"begin, commit, commit until on disk; `{way}`, {files:,} files in the store",
                f"{mid(f'begin {at}'):.2f} ms, {mid(f'commit {at}'):.2f} ms, "
                f"{mid(f'commit and sync {at}'):.2f} ms",
                "≤ 5 ms",
            )
    row("**b. four builds**", "at once in four transactions; on the plain mount in turn")
    for how, named in (
        ("`make -j1`: a core each", " serial"),
        ("`make -j2`: each fills both cores", ""),
    ):
        x, y = (
            f"four{named} builds at once, transactions, s",
            f"four{named} builds in turn, plain, s",
        )
        row(how, f"{mid(x):.2f} s; {mid(y):.2f} s; ratio {ratio(x, y)}", "< 1")
    row("**c. a file and its key, durable together**", "per second")
    for clients in (1, 8):
        k, l, e, h = (
            f"together, {name}, {clients} clients, /s"
            for name in ("kvfs", "the library", "ext4 on a loop device", "ext4 of the host")
        )
        who = f"{clients} client{'s' if clients > 1 else ''}"
        row(f"KVFS mount and socket, {who}", f"{mid(k):,.0f}")
        row(f"KVFS library, {who}", f"{mid(l):,.0f}")
        row(
            f"ext4 on a loop device and SQLite, {who}",
            f"{mid(e):,.0f}; mount {ratio(k, e)}, library {ratio(l, e)} times",
            "≥ 5",
        )
        row(
            f"ext4 of the host and SQLite, {who}",
            f"{mid(h):,.0f}; mount {ratio(k, h)}, library {ratio(l, h)} times",
            "≥ 5",
        )
    row("**d, e. by the size of the store**", f"1,000 files; {a.files:,} files")
    for what, aim in (
        ("begin si", "< 1 ms"),
        ("begin ser", "< 1 ms"),
        ("abort", ""),
        ("snapshot", "< 1 ms"),
        ("snapshot, synced", ""),
        ("clone", "< 1 ms"),
        ("drop", "< 1 ms"),
        ("drop a clone", ""),
        ("difference of 10 files", "< 50 ms"),
    ):
        for where, name in (("mount", what), ("library", f"library: {what}")):
            if f"{name}, 1000 files, ms" in values:
                few, lots = mid(f"{name}, 1000 files, ms"), mid(f"{name}, {a.files} files, ms")
                row(f"{what}, {where}", f"{few:.3f} ms; {lots:.3f} ms", aim)
    row("**f. 1,000 snapshots and 100 open transactions**", "alone; with them; ratio of times")
    for what in ("stat", "read", "GET"):
        x, y = f"{what} alone, /s", f"{what} beside, /s"
        row(f"{what}, mount", f"{mid(x):,.0f}/s; {mid(y):,.0f}/s; {ratio(x, y)}", "≤ 1.2")
    for what in ("gets", "lookups"):
        name = f"library: {what} beside 1000 snapshots and 100 transactions: "
        alone, beside, times, low, high = (
            mid(name + f) for f in ("alone_per_second", "per_second", "ratio", "low", "high")
        )
        before = mid(f"library: {what} before: ratio")
        row(
            f"{what}, library",
            f"{alone:,.0f}/s; {beside:,.0f}/s; **{times:.3f}** ({low:.3f}–{high:.3f}), "
            f"the same two stores before {before:.3f}",
            "≤ 1.2",
        )
    row(
        "memory of those transactions",
        f"{mid('library: memory of 100 transactions: kib'):,.0f} KiB",
    )
    cpu = next(
        (
            l.split(":", 1)[1].strip()
            for l in Path("/proc/cpuinfo").read_text().splitlines()
            if l.startswith("model name")
        ),
        "?",
    )
    how = (
        f"`make bench-transactions` · {os.cpu_count()} cores ({cpu}), Linux {os.uname().release}, "
        "the store a file on ext4. What is compared is interleaved in one run. Medians; in "
        "brackets the range of the rounds' ratios."
    )
    text = (
        "# What transactions, snapshots and clones cost\n\n"
        + textwrap.fill(how, 100, break_long_words=False, break_on_hyphens=False)
        + "\n\n| | measured | aim |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    notes = Path(a.out).read_text().partition("\n## ") if Path(a.out).exists() else ("", "", "")
    Path(a.out).write_text(text + notes[1] + notes[2])
    print(text)


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("stages", nargs="+", choices=[*STAGES, "report"], metavar="STAGE")
    p.add_argument("--kvfs", default="target/release/kvfs")
    p.add_argument("--example", default="target/release/kvfs_views", help="the library's example")
    p.add_argument("--results", default="docs/bench/transactions.jsonl")
    p.add_argument("--out", default="docs/bench/transactions.md")
    p.add_argument("--rounds", type=int, default=3)
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
            seconds, figures = clock(lambda: STAGES[stage](a, Path(tmp)))
        with open(a.results, "a") as results:
            results.write(json.dumps({"stage": stage, "figures": figures}) + "\n")
        shown = {k: [round(v, 3) for v in some] for k, some in figures.items()}
        print(
            f"{stage}: {seconds:.0f} s\n" + "\n".join(f"  {k}: {v}" for k, v in shown.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
