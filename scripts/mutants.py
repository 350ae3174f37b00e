#!/usr/bin/env python3
"""Plants each bug of proof/mutants/ and runs the tests that are to catch it.

A mutant is a unified diff with comment lines before it:

    # what: the journal is not synced before a synced commit is acknowledged
    # caught by: cargo test -p kvdb --test it power_cut::

It is applied to a work tree of its own (target/mutants/tree, with a target directory next to it),
the command runs there, and the mutant is *caught* when a test fails. It *survives* when the tests
pass; a mutant that does not apply or does not compile is broken. Each distinct command is first run
without a mutant and has to pass. Results, the names of the tests that failed among them, are
appended to target/mutants/results.jsonl as they come, and a mutant with a result for the same patch
and the same commit is not run again, so a run can be cut and resumed.

    scripts/mutants.py                 run what has no result yet, print the table
    scripts/mutants.py --only pins     those in whose name the regular expression "pins" is found
    scripts/mutants.py --commit C      the code of another commit than HEAD
                                       (to go on with a run after a change of documents)
    scripts/mutants.py --report        the table of docs/mutants.md, from the results
    scripts/mutants.py --check         only see that each patch applies and names tests that exist
                                       (quick; part of make test)
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATCHES = ROOT / "proof" / "mutants"
WORK = ROOT / "target" / "mutants"
RESULTS = WORK / "results.jsonl"


def git(*args, cwd=ROOT, **kwargs):
    return subprocess.run(["git", *args], cwd=cwd, text=True, capture_output=True, **kwargs)


class Mutant:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        self.text = path.read_text()
        head, diff = re.match(r"((?:#[^\n]*\n|\n)*)(.*)", self.text, re.S).groups()
        self.what = " ".join(re.findall(r"^# what: (.*)$", head, re.M))
        self.commands = [c.strip() for c in re.findall(r"^# caught by: (.*)$", head, re.M)]
        self.planted = "\n".join([*self.commands, diff])

    def key(self, commit):
        return hashlib.sha256((commit + self.planted).encode()).hexdigest()[:16]


def mutants(only):
    return [Mutant(p) for p in sorted(PATCHES.glob("*.patch")) if re.search(only, p.stem)]


def packages():
    """The directory of each package, by its name."""
    manifests = [ROOT / path for path in git("ls-files", "*Cargo.toml").stdout.split()]
    names = ((m, re.search(r'^name = "(.*)"', m.read_text(), re.M)) for m in manifests)
    return {name[1]: m.parent for m, name in names if name}


def functions(root, source):
    """The paths of all functions of a file, as the test harness prints those that are tests."""
    parts = list(source.relative_to(root).with_suffix("").parts)
    modules = [(-1, part) for part in parts if part not in ("main", "lib", "mod")]
    for line in source.read_text().splitlines():
        found = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(mod|fn) (\w+)(.*)", line)
        if not found:
            continue
        indent, kind, name, rest = len(found[1]), found[2], found[3], found[4]
        modules = [m for m in modules if m[0] < indent]
        if kind == "fn":
            yield "::".join([m[1] for m in modules] + [name])
        elif rest.strip() == "{":
            modules.append((indent, name))


def missing(command, directories):
    """What a `cargo test` names that does not exist: a package, a suite or a test;
    None when all of it does."""
    words = shlex.split(command)
    if "test" not in words:
        return None
    words = words[words.index("test") + 1 :]
    words = words[: words.index("--")] if "--" in words else words
    package, suite, filters = None, None, []
    while words:
        word = words.pop(0)
        if word in ("-p", "--package"):
            package = words.pop(0)
        elif word == "--test":
            suite = words.pop(0)
        elif word == "--profile":
            words.pop(0)
        elif not word.startswith("-"):
            filters.append(word)
    if package not in directories:
        return f"package {package}"
    tests = directories[package] / "tests"
    if suite is None:
        root = directories[package] / "src"
        sources = root.rglob("*.rs")
    elif (tests / f"{suite}.rs").exists():
        root, sources = tests, [tests / f"{suite}.rs"]
    elif (tests / suite).is_dir():
        root = tests / suite
        sources = root.rglob("*.rs")
    else:
        return f"suite {suite}"
    names = [name for source in sources for name in functions(root, source)]
    return next((name for name in filters if not any(name in n for n in names)), None)


def check(all_of_them):
    wrong = []
    directories = packages()
    for m in all_of_them:
        if not m.commands:
            wrong.append(f"{m.name}: no line '# caught by: COMMAND'")
        if not m.what:
            wrong.append(f"{m.name}: no line '# what: SENTENCE'")
        for command in m.commands:
            if what := missing(command, directories):
                wrong.append(f"{m.name}: there is no {what}: '{command}' would run nothing")
        applied = git("apply", "--check", str(m.path))
        if applied.returncode:
            wrong.append(f"{m.name}: does not apply: {applied.stderr.strip().splitlines()[:1]}")
    return wrong


def run(command, tree, minutes):
    env = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "target"), RUST_BACKTRACE="0")
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tree,
            env=env,
            text=True,
            timeout=60 * minutes,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as e:
        out, code = (
            (e.stdout or b"").decode(errors="replace")
            if isinstance(e.stdout, bytes)
            else e.stdout or "",
            "timeout",
        )
    seconds = time.monotonic() - began
    if code == 0:
        ran = sum(int(n) for n in re.findall(r"test result: ok\. (\d+) passed", out))
        return ("passed" if ran or "test result" not in out else "ran nothing"), seconds, out
    if "could not compile" in out:
        return "broken", seconds, out
    return "failed", seconds, out


def tree_at(commit):
    tree = WORK / "tree"
    WORK.mkdir(parents=True, exist_ok=True)
    if not tree.exists():
        git("worktree", "prune")
        made = git("worktree", "add", "--detach", str(tree), commit)
        if made.returncode:
            sys.exit(f"mutants: no work tree could be made: {made.stderr}")
    for args in (
        ["checkout", "-q", "--detach", commit],
        ["reset", "-q", "--hard"],
        ["clean", "-qfd"],
    ):
        done = git(*args, cwd=tree)
        if done.returncode:
            sys.exit(f"mutants: git {' '.join(args)} failed: {done.stderr}")
    return tree


def known():
    if not RESULTS.exists():
        return {}
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {row["key"]: row for row in rows}


def note(row):
    with RESULTS.open("a") as f:
        f.write(json.dumps(row) + "\n")


def table(rows):
    print("| mutant | what is planted | run | tests that failed | seconds |")
    print("|---|---|---|---|---:|")
    for row in sorted(rows, key=lambda r: r["name"]):
        by = (
            ", ".join(row["tests"]) or "the run"
            if row["result"] == "caught"
            else f"**{row['result']}**"
        )
        print(
            f"| {row['name']} | {row['what']} | `{row['command']}` | {by} | {row['seconds']:.0f} |"
        )


def main():
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--only", default="")
    args.add_argument("--check", action="store_true")
    args.add_argument("--report", action="store_true")
    args.add_argument("--commit", default="HEAD")
    args.add_argument(
        "--minutes", type=int, default=20, help="the longest that one command may take"
    )
    args = args.parse_args()
    these = mutants(args.only)
    wrong = check(these)
    if args.check:
        print("\n".join(wrong) or f"{len(these)} mutants apply and name their tests")
        sys.exit(bool(wrong))
    commit = git("rev-parse", args.commit).stdout.strip()
    have = known()
    if args.report:
        latest = {row["name"]: row for row in have.values()}
        return table([latest[m.name] | {"what": m.what} for m in these if m.name in latest])
    rows, sound = [], {}
    for command in dict.fromkeys(c for m in these if m.key(commit) not in have for c in m.commands):
        sound[command] = run(command, tree_at(commit), args.minutes)
        print(
            f"without a mutant: {sound[command][0]} ({sound[command][1]:.0f} s): {command}",
            flush=True,
        )
    for m in these:
        key = m.key(commit)
        if key in have:
            rows.append(have[key])
            continue
        row = {
            "key": key,
            "name": m.name,
            "what": m.what,
            "commit": commit,
            "result": "survived",
            "command": "",
            "seconds": 0.0,
        }
        row["tests"] = []
        tree = tree_at(commit)
        for command in m.commands:
            outcome, _, out = sound[command]
            if outcome != "passed":
                row.update(result=f"tests {outcome} without it", command=command)
                (WORK / f"{m.name}.log").write_text(out)
                continue
            applied = git("apply", str(m.path), cwd=tree)
            if applied.returncode:
                row.update(result="does not apply")
                break
            outcome, seconds, out = run(command, tree, args.minutes)
            (WORK / f"{m.name}.log").write_text(out)
            row.update(seconds=row["seconds"] + seconds, command=command)
            tree_at(commit)
            if outcome == "failed":
                row.update(
                    result="caught",
                    tests=sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED$", out, re.M))),
                )
                break
            if outcome == "broken":
                row.update(result="does not compile")
                break
        note(row)
        rows.append(row)
        print(f"{m.name}: {row['result']} ({row['seconds']:.0f} s)", flush=True)
    table(rows)
    bad = [r for r in rows if r["result"] != "caught"]
    print(f"\n{len(rows) - len(bad)} of {len(rows)} caught")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
