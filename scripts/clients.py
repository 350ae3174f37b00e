#!/usr/bin/env python3
"""Programs and libraries that people use with Redis, on KVFS and on a real Redis in one run.

    scripts/clients.py --kvfs PATH [--only NAME,...] [--work DIR] [--out FILE]

Each row of scripts/clients/rows.py is a program or a library in a pinned version. It is installed
from its registry into an environment of its own below --work (target/clients), which later runs use
again, and then either its own test suite or a small program of scripts/clients/ is run: once
against a redis-server, once against KVFS, each started for that row, empty, on a free port and with
a password. KVFS is a mounted store (`-o listen=`), so the machine must be able to mount. With
--only, the other lines of the page are those of earlier runs.

A program says `ok NAME` or `not ok NAME: why` for each thing that it checks. The table is written
to docs/clients.md. A toolchain that is not there makes a row say so. Packages of Debian (Ruby, PHP)
are installed by root alone; without them their rows say what is missing.
"""

import argparse
import json
import pathlib
import re
import signal
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().with_name("clients")))

import environments  # noqa: E402
import results  # noqa: E402
import rows  # noqa: E402
import servers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_row(row, work, kvfs):
    """(environment, {server: result}); the environment says why where there is none."""
    environment = environments.prepare(row, work)
    if environment.missing:
        return environment, {}
    found = {}
    for name in ("Redis", "KVFS"):
        with servers.start(name, kvfs, row.kind.password) as server:
            log = work / "logs" / f"{row.name.replace(' ', '-')}.{name}"
            log.parent.mkdir(exist_ok=True)
            found[name] = results.of_row(row, environment, server, log)
        print(f"{row.name}: {name}: {found[name].summary()}", flush=True)
    record(row, work).write_text(
        json.dumps(
            {
                "packages": row.packages,
                "version": environment.version,
                "found": {name: result.checks for name, result in found.items()},
            }
        )
    )
    return environment, found


def record(row, work):
    """The file of what a run has found for the row."""
    (work / "records").mkdir(exist_ok=True)
    return work / "records" / f"{row.name.replace(' ', '-')}.json"


def recorded(row, work):
    """What an earlier run has found, or nothing."""
    file = record(row, work)
    known = json.loads(file.read_text()) if file.exists() else {}
    if known.get("packages") != row.packages:
        return None
    found = {name: results.Result(checks) for name, checks in known["found"].items()}
    return environments.Environment(None, known["version"]), found


def cells(row, environment, found):
    title = f"{row.name} {environment.version}".strip()
    if not found:
        return [title, row.language, row.run, f"not run: {environment.missing}", ""]
    redis, kvfs = found["Redis"], found["KVFS"]
    return [title, row.language, row.run, kvfs.cell(redis), redis.cell(kvfs)]


def several(tests):
    """The names of tests, each once: those of a suite without the module and the parameters."""
    names = [re.sub(r"^\w+(\.\w+)+\.(\w+)(\[.*)?$", r"\2", test) for test in tests]
    number = f"{len(tests)}: " if len(tests) > 1 else ""
    return number + ", ".join(dict.fromkeys(names))


def page(done, redis_version):
    wrap = lambda text: textwrap.fill(text, 100, break_on_hyphens=False)
    ran = [found for _, _, found in done if found]
    same = [found for found in ran if not found["KVFS"].lacks(found["Redis"])]
    lines = [
        "# Programs and libraries for Redis that were run on KVFS",
        "",
        wrap(
            "Each line is a program or a library in one version, installed from its registry. It "
            f"was run on KVFS and on Redis {redis_version} in one run, by its own test suite or "
            "by a short real use, whose checks are in `scripts/clients/`. This page is written by:"
        ),
        "",
        "```sh",
        "make clients",
        "```",
        "",
        wrap(
            f"{len(same)} of {len(ran)} lines pass all checks on KVFS that they pass on Redis. "
            "Each line had its own empty servers, which it reached over TCP on the loopback "
            "interface with a password. Suites use no password, and reach the store's Unix socket "
            "by a relay. KVFS is a mounted store on disk with its defaults; Redis runs without "
            "persistence. The numbers count checks or tests that pass on at least one of the two "
            "servers; tests that a suite skips by itself are not counted. Times were not compared."
        ),
        "",
        "| program or library | language | what was run | KVFS | Redis |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(cells(*row)) + " |" for row in done]
    lines += ["", "## What passes on Redis and not on KVFS", ""]
    failed = {}
    for row, _, found in done:
        for test in found["KVFS"].lacks(found["Redis"]) if found else []:
            why = rows.reason(test, found["KVFS"].why(test))
            failed.setdefault((row.name, why), []).append(test.replace("|", "\\|"))
    if failed:
        lines += ["| program or library | why | tests |", "|---|---|---|"]
        lines += [f"| {name} | {why} | {several(tests)} |" for (name, why), tests in failed.items()]
    else:
        lines.append("Nothing.")
    lines += [
        "",
        wrap(
            "[resp.md](resp.md#programs-that-do-not-run) lists programs that missing features rule "
            "out, and [redis-suites.md](bench/redis-suites.md) has Redis' own test suites on both "
            "servers."
        ),
    ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvfs", type=pathlib.Path, default=ROOT / "target/release/kvfs")
    parser.add_argument("--only", default="", help="rows whose names begin with one of these words")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/clients")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/clients.md")
    options = parser.parse_args()
    # One that is told to end unmounts first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    words = [word.lower() for word in options.only.split(",") if word]
    wanted = [
        row for row in rows.ROWS if not words or any(row.name.lower().startswith(w) for w in words)
    ]
    if not wanted:
        sys.exit(f"no row has a name like {options.only}")
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    version = servers.redis_version()
    done = []
    for row in rows.ROWS:
        # A toolchain that is not there is told in any case.
        if row in wanted or not row.packages:
            done.append((row, *run_row(row, work, options.kvfs.resolve())))
        elif known := recorded(row, work):
            done.append((row, *known))
    options.out.write_text(page(done, version))
    print(f"written to {options.out}: {len(done)} of {len(rows.ROWS)} rows")
    if any(found["KVFS"].lacks(found["Redis"]) for _, _, found in done if found):
        print("some checks that pass on Redis do not pass on KVFS", file=sys.stderr)


if __name__ == "__main__":
    main()
