#!/usr/bin/env python3
"""Redis' own test suites against a redis-server and against KVFS, in one run.

    scripts/redis_suites.py SOURCES [--kvfs PATH] [--serve PATH] [--units a,b] [--out FILE]

SOURCES is a checkout of Redis' sources whose version is that of the installed redis-server (7.0). A
redis-server and a KVFS server on a store in memory are started for the run, each in a temporary
directory; the suites reach both as servers that they have not started (`--host`, `--port`), KVFS by
way of a relay from TCP to its socket (which answers CONFIG SET of settings that mean nothing to a
store on disk). A test that an external server cannot pass is left out by the
suites themselves, for both. The table is written to docs/bench/redis-suites.md.

Needs tclsh and redis-server (Debian: tcl, redis-server), and
`cargo build --release -p kvfs-cli` and `cargo build --release -p kvdb-server --example serve`.
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

UNITS = [
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/hash",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/stream",
    "unit/type/stream-cgroups",
    "unit/keyspace",
    "unit/expire",
    "unit/multi",
    "unit/scan",
    "unit/protocol",
    "unit/scripting",
    "unit/functions",
    "unit/pubsub",
    "unit/sort",
    "unit/dump",
]
# What is said of a test that fails, by what its output has; the first that fits counts.
REASONS = [
    (r"migrate_cached_sockets", "keys are not moved from server to server: MIGRATE"),
    (
        r"Expected 0 >= 1000|access frequency not tracked",
        "how often and when a key was last read is not kept",
    ),
    (
        r"(?i)xlen mystream|xtrim mystream|xadd mystream",
        "whole hundreds of entries go: there is no stream-node-max-entries",
    ),
    (r"(?i)unknown command '([\w|]+)", "a command that is not there: {0}"),
    (
        r"(?i)OOM|maxmemory|used memory|'OK 1 OK' to match 'EXECABORT",
        "there is no limit of memory at which writes are refused: values are on disk",
    ),
    (r"NOREPLICAS|replicaof", "replication is not there"),
    (
        r"EXECABORT\*(?:BUSY|previous errors)|start running|scripts in execution",
        "scripts that take long are ended, and others do not wait for them",
    ),
    (
        r"out of range.*but got '0'|maximum allowed size.*but got|2147483648",
        "strings may be longer than in Redis",
    ),
    (r"expecting an error", "strings may be longer than in Redis"),
    (r"match '3 0 0'", "what has expired is not there, also before it is removed"),
    (
        r"'10003' to be between|to be between to '5000'",
        "the coarse clock is some milliseconds behind",
    ),
    (
        r"to be equal to 'foo'",
        "a client that waits takes what has come itself, "
        "a moment after the command that brought it",
    ),
    (
        r"'PONG' to be equal to ''",
        "a range of keys that is deleted counts as a change of each key in it (FLUSHDB)",
    ),
    (
        r"'\*1' to be equal to",
        "the relay of this script answers CONFIG SET of settings that are not there at once",
    ),
    (r"unpack|too many arguments to a Lua function", "the worker has a smaller stack for Lua"),
    (
        r"it waited for longer",
        "it waits for an event that does not come: nothing is evicted, values are on disk",
    ),
    (
        r"Unknown Redis command called from script",
        "a command that is not there, called from a script",
    ),
    (r"replication_stream|repl-ping", "replication is not there"),
    (r"(?i)Try DEBUG", "a subcommand of DEBUG"),
    (r"(?i)CONFIG SET - '([\w-]+)'", "a setting that is not there: {0}"),
    (r"(?i)Try CONFIG", "a setting that is not there"),
    (r"(?i)Try (CLIENT|OBJECT|SCRIPT|MEMORY|COMMAND)", "a subcommand of {0}"),
    (
        r"lua-time-limit|to match 'BUSY",
        "scripts that take long are ended, and others do not wait for them",
    ),
    (r"longer than the limit|exceeds maximum allowed|LIMIT ", "a limit of size"),
    (r"not possible between MULTI and EXEC", "a command that MULTI does not take here"),
    (r"(?i)refcount|encoding", "how a value is kept in memory"),
    (r"(?i)I/O error|reset by peer|broken pipe", "the connection was closed"),
]


# The suites send these outside of tests, and stop where they are errors: settings say how Redis
# keeps values in memory. KVFS has none of them; the relay answers.
SETTING = re.compile(
    rb"\*\d+\r\n\$6\r\nconfig\r\n\$3\r\nset\r\n\$\d+\r\n"
    rb"(?!lua-time-limit|busy-reply|durable|notify-keyspace|slowlog)",
    re.I,
)
# How lists are kept in memory, for tests of their corners.
PACKING = re.compile(
    rb"\*\d+\r\n\$5\r\ndebug\r\n\$\d+\r\n(?:quicklist-packed-threshold|listpack)\r\n", re.I
)


class Relay:
    """From a free TCP port to a Unix socket."""

    def __init__(self, path, answers):
        self.path, self.answers = path, answers
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.path)
            except OSError:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                if self.answers and (SETTING.match(data) or PACKING.match(data)):
                    source.sendall(b"+OK\r\n")
                else:
                    sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def wait_for(path):
    until = time.monotonic() + 30
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
                return
        except OSError:
            if time.monotonic() > until:
                sys.exit(f"no server at {path}")
            time.sleep(0.05)


def start_redis(directory):
    path = os.path.join(directory, "redis.sock")
    command = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        path,
        "--save",
        "",
        "--dir",
        directory,
        "--enable-debug-command",
        "yes",
        "--daemonize",
        "no",
        "--loglevel",
        "warning",
    ]
    return path, subprocess.Popen(command, stdout=subprocess.DEVNULL)


def start_kvfs(directory, serve, kvfs):
    path = os.path.join(directory, "kvfs.sock")
    command = [serve, path, kvfs, "lua-worker"]
    return path, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


# Seconds that a test may say nothing, and tests of a unit that may.
PATIENCE, MOST_HANGING = 15, 4
# Tests of a unit that are asked alone.
MOST_ALONE = 300
NOT_REACHED = "\nit was not reached"
RESULT = re.compile(r"^\[(ok|err|ignore|skip|exception|TIMEOUT)\]: ?(.*)")


def run_unit(sources, unit, port, seconds):
    """{test: (passed, what was said)}, and why the run has ended early. A test that hangs fails,
    and the unit is run again without it."""
    hung = {}
    for _ in range(MOST_HANGING + 1):
        results, broken, hanging = run_once(sources, unit, port, seconds, hung)
        if hanging is None or len(hung) == MOST_HANGING:
            break
        hung[hanging] = (False, f"\nit waited for longer than {PATIENCE} s")
    return results | hung, broken


def run_once(sources, unit, port, seconds, skipped, only=None):
    command = [
        "tclsh",
        "tests/test_helper.tcl",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--single",
        unit,
        "--durable",
        "--singledb",
        "--ignore-digest",
        "--ignore-encoding",
        "--tags",
        "-slow",
        "--timeout",
        str(PATIENCE),
        "--clients",
        "1",
    ]
    for name in skipped:
        command += ["--skiptest", name]
    if only:
        command += ["--only", only]
    try:
        done = subprocess.run(command, cwd=sources, capture_output=True, timeout=seconds)
        said, broken = done.stdout, None
    except subprocess.TimeoutExpired as error:
        said, broken = error.stdout or b"", f"ended after {seconds} s"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said.decode(errors="replace")).splitlines()
    results, last = {}, None
    counts = collections.Counter()
    for line in lines:
        found = RESULT.match(line)
        if not found:
            if line.startswith(("[", "\\o", "The End", "Execution time", "!!!")):
                last = None
            elif last is not None:
                results[last] = (False, results[last][1] + "\n" + line)
            continue
        kind, text = found.groups()
        last = None
        if kind == "ok":
            name = re.sub(r" \(\d+ ms\)$", "", text)
        elif kind == "err":
            name = re.sub(rf" in tests/{unit}\.tcl.*", "", text)
        elif kind in ("exception", "TIMEOUT"):
            broken = text or f"a test took longer than {PATIENCE} s"
            continue
        else:
            continue
        # A name may come several times, with other parameters.
        counts[name] += 1
        name = name if counts[name] == 1 else f"{name} ({counts[name]})"
        results[name] = (kind == "ok", text)
        last = name if kind == "err" else None
    hanging = re.search(r"\(IN PROGRESS\) (.*)", "\n".join(lines)) if broken else None
    return results, broken, hanging and hanging.group(1)


def reason(said):
    for pattern, words in REASONS:
        if found := re.search(pattern, said, re.S):
            return words.format(*(group or "" for group in found.groups()))
    if said == NOT_REACHED:
        return "an error outside of a test has ended the run before it"
    text = said.split("\n", 1)
    text = (text[1] if len(text) > 1 else text[0]).strip().splitlines() or [""]
    return "`" + text[0][:110].replace("`", "'").replace("|", "\\|") + "`"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=pathlib.Path)
    parser.add_argument("--kvfs", default="target/release/kvfs")
    parser.add_argument("--serve", default="target/release/examples/serve")
    parser.add_argument("--units", default=",".join(UNITS))
    parser.add_argument("--seconds", type=int, default=300, help="for each unit")
    parser.add_argument("--out", type=pathlib.Path, default="docs/bench/redis-suites.md")
    options = parser.parse_args()
    for program in ("tclsh", "redis-server"):
        if not shutil.which(program):
            sys.exit(f"{program} is missing (Debian: tcl, redis-server)")
    if not (options.sources / "tests/test_helper.tcl").exists():
        sys.exit(
            f"{options.sources} has no tests/test_helper.tcl: a checkout of Redis 7.0 is wanted"
        )
    serve, kvfs = map(os.path.abspath, (options.serve, options.kvfs))
    for program in (serve, kvfs):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} is not built")
    version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    version = re.search(r"v=(\S+)", version).group(1)
    copy = tempfile.TemporaryDirectory()
    sources = pathlib.Path(copy.name)
    shutil.copytree(options.sources / "tests", sources / "tests")
    table, failed = [], []
    for unit in options.units.split(","):
        row = [unit.removeprefix("unit/")]
        both = []
        for name in ("redis", "kvfs"):
            # A server for each unit: what one leaves behind is no matter of the next.
            with tempfile.TemporaryDirectory() as directory:
                started = (
                    start_redis(directory)
                    if name == "redis"
                    else start_kvfs(directory, serve, kvfs)
                )
                path, server = started
                try:
                    wait_for(path)
                    port = Relay(path, name == "kvfs").port
                    results, broken = run_unit(sources, unit, port, options.seconds)
                    if name == "kvfs":
                        # One that stops in the middle of MULTI spoils those after it: what fails is
                        # asked once more, each test alone.
                        wanted = [t for t in both[0] if both[0][t][0]]
                        wanted = [t for t in wanted if not results.get(t, (False,))[0]]
                        for test in wanted[:MOST_ALONE]:
                            only = re.sub(r" \(\d+\)$", "", test) if test not in results else test
                            alone, _, _ = run_once(sources, unit, port, 30, {}, only)
                            if only in alone:
                                results[test] = alone[only]
                finally:
                    server.kill()
                    server.wait()
            both.append(results)
            passed = sum(ok for ok, _ in results.values())
            row.append(f"{passed} of {len(results)}")
            print(
                f"{unit}: {name} {row[-1]}" + (f", ended early: {broken}" if broken else ""),
                flush=True,
            )
            if broken:
                failed.append((unit, f"*{name}: the run ended early*", broken.strip()[:110]))
        redis, ours = both
        shared = [test for test in redis if redis[test][0]]
        kept = sum(ours.get(test, (False, ""))[0] for test in shared)
        row.append(f"{kept} of {len(shared)}")
        table.append(row)
        for test in shared:
            ok, said = ours.get(test, (False, NOT_REACHED))
            if not ok:
                failed.append((unit, test, reason(said)))
    lines = [
        "# Redis' own test suites",
        "",
        textwrap.fill(
            f"Redis {version} and KVFS on a store in memory, each an external server to the "
            "suites of that version, in one run:",
            100,
        ),
        "",
        "```sh",
        "scripts/redis_suites.py SOURCES",
        "```",
        "",
        textwrap.fill(
            "Tests that are marked as slow, or as none for an external server, were left "
            "out by the suites themselves. A test that failed in the run of its suite was "
            "asked once more, alone.",
            100,
        ),
        "",
        "| suite | Redis passes | KVFS passes | of those that Redis passes |",
        "|---|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in table]
    lines += [
        "",
        "## What Redis passes and KVFS does not",
        "",
        "| suite | test | why |",
        "|---|---|---|",
    ]
    escape = lambda text: text.replace("|", "\\|").replace("\n", " ")
    lines += [
        f"| {unit.removeprefix('unit/')} | {escape(test)} | {why} |" for unit, test, why in failed
    ]
    options.out.write_text("\n".join(lines) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
