"""What papers.py has recorded, as tables: docs/bench/papers.md without what is written by hand."""

import json
import os
import statistics
import textwrap
from pathlib import Path

OURS = "kvfs"
PEERS = ("ext4", "btrfs", "xfs")
ORDER = (OURS, *PEERS)
# How many times as fast as the best peer a case is to be; a pair where profiles differ.
AIMS = {
    "4-byte overwrites + fsync": 50,
    "4 KiB overwrites + fsync": 2,
    "sequential write": 0.97,
    "sequential read": 0.97,
    "untar + sync, fresh": 1.1,
    "create of 200-byte files + sync": 2,
    "mail": 2,
}
LOOKS = {"find": {"hdd": 4, "hdd-tb": 1.5}, "ls -lR": 2, "grep -r": 3, "mv": 1, "rm -rf": 2}
TREES = ("fresh", "aged by commits", "aged at random")
# What follows it in the table's file is written by hand, and stays there.
NOTES = "\n## Theirs beside ours"


def aim_of(case, profile):
    aim = AIMS.get(case)
    for look, value in LOOKS.items():
        if case in [f"{look}, {tree}" for tree in TREES]:
            aim = value
    return aim.get(profile) if isinstance(aim, dict) else aim


def read(path):
    path = Path(path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def machine():
    models = (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    return f"{os.cpu_count()} cores ({next(models, '?')}), Linux {os.uname().release}"


def unique(values):
    return list(dict.fromkeys(values))


def table(head, rows):
    return [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1), *(f"| {' | '.join(row)} |" for row in rows)]


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shown(values):
    """The median, with the range of three rounds or more."""
    if not values:
        return "–"
    middle = f"**{number(statistics.median(values))}**"
    return f"{middle} ({number(min(values))}–{number(max(values))})" if len(values) >= 3 else middle


class Results:
    """The measurements of one profile."""

    def __init__(self, lines, profile):
        self.profile = profile
        self.lines = [x for x in lines if x.get("profile") == profile and "case" in x]
        self.by = {}
        for x in self.lines:
            self.by.setdefault((x["case"], x["system"]), {})[x["round"]] = x
        self.cases = unique(x["case"] for x in self.lines if x["group"] != "kvdb")
        there = {(x["group"], x["system"]) for x in self.lines}
        self.left_out = {x["left_out"]: x["why"] for x in lines if x.get("profile") == profile and "left_out" in x
                         and tuple(x["left_out"].split(" on ")) not in there}

    def of(self, case, system, value):
        return {r: value(x) for r, x in self.by.get((case, system), {}).items()}

    def median(self, case, system, value):
        values = self.of(case, system, value).values()
        return statistics.median(values) if values else None

    def ratios(self, case, value):
        """How many times as good as the best peer of the same round."""
        ours = self.of(case, OURS, value)
        theirs = [self.of(case, peer, value) for peer in PEERS]
        return [min(t[r] for t in theirs if r in t) / max(ours[r], 1e-9) for r in ours if any(r in t for t in theirs)]

    def group(self, name):
        return unique(x["case"] for x in self.lines if x["group"] == name)


def seconds(x):
    return x["seconds"]


def with_mount(x):
    return x["seconds"] + x["mount"]["seconds"]


def traffic(x):
    return x["settled"]["read_bytes"] + x["settled"]["write_bytes"]


def times(results):
    rows = []
    for case in results.cases:
        taken = [results.median(case, s, seconds) for s in ORDER]
        aim = aim_of(case, results.profile)
        rows.append([case, *(number(t) if t is not None else "–" for t in taken), shown(results.ratios(case, seconds)),
                     shown(results.ratios(case, with_mount)), f"{aim:g}" if aim else ""])
    return table(["seconds", *ORDER, "÷ best peer", "the same, with the mount", "aim"], rows)


def counts(results):
    def cell(case, system):
        def of(name):
            return results.median(case, system, lambda x: x["counted"][name])

        if of("seeks") is None:
            return "–"
        return (f"{of('seeks'):,.0f} · {of('read_requests'):,.0f} · {of('read_bytes') / 2**20:,.1f} · "
                f"{of('write_bytes') / 2**20:,.1f}")

    rows = [[case, *(cell(case, s) for s in ORDER)] for case in results.cases]
    return table(["seeks · reads · MiB read · MiB written", *ORDER], rows)


def seeks_a_file(results):
    rows = []
    for case in results.cases:
        if not case.startswith("grep -r"):
            continue
        each = [results.median(case, s, lambda x: x["counted"]["seeks"] / x["files"]) for s in ORDER]
        rows.append([case, *("–" if e is None else f"{e:.3f}" for e in each)])
    return table(["seeks a file", *ORDER], rows)


def names_traffic(results):
    rows = []
    for case in results.group("names"):
        mib = [results.median(case, s, lambda x: traffic(x) / 2**20) for s in ORDER]
        ours, theirs = (results.of(case, s, traffic) for s in (OURS, "ext4"))
        less = [ours[r] / theirs[r] - 1 for r in ours.keys() & theirs.keys()]
        saved = f"**{statistics.median(less):+.0%}**" if less else "–"
        rows.append([case, *("–" if m is None else f"{m:.1f}" for m in mib), saved])
    return table(["MiB read and written", *ORDER, "kvfs over ext4"], rows)


def kvdb(results):
    rows = []
    for (case, threshold), rounds in results.by.items():
        xs = [x for x in rounds.values() if x["group"] == "kvdb"]
        if not xs:
            continue

        def of(value, xs=xs):
            return statistics.median(value(x) for x in xs)

        base = results.by.get((case, "max"), {})
        over = [x["figures"]["ops_per_s"] / base[r]["figures"]["ops_per_s"] for r, x in rounds.items() if r in base]
        rows.append([f"{case}, {threshold}", f"{of(lambda x: x['figures']['ops_per_s']):,.0f}",
                     f"{statistics.median(over):.2f}" if over else "–", f"{of(lambda x: x['figures']['write_amp']):.2f}",
                     f"{of(lambda x: x['figures']['scan_mb_s']):.0f}", f"{of(lambda x: x['figures']['flushes']):,.0f}",
                     f"{of(lambda x: x['counted']['seeks']):,.0f}"])
    return table(["load, threshold", "puts/s", "÷ max", "written a byte", "scan MB/s", "flushes", "seeks"], rows)


def aims(by_profile):
    cases = unique(c for r in by_profile for c in r.cases if aim_of(c, r.profile))
    rows = []
    for case in cases:
        row, verdicts = [case], []
        for r in by_profile:
            ratios, aim = r.ratios(case, seconds), aim_of(case, r.profile)
            row.append(f"{shown(ratios)}, ≥ {aim:g}" if ratios and aim else shown(ratios))
            if ratios and aim:
                verdicts.append(f"{r.profile}: {'met' if statistics.median(ratios) >= aim else '**missed**'}")
        rows.append([*row, "; ".join(verdicts)])
    return table(["÷ the best of ext4, btrfs, xfs", *(r.profile for r in by_profile), ""], rows)


def report(lines, out=None):
    runs = [x for x in lines if "sizes" in x]
    s = runs[0]["sizes"]
    by_profile = [Results(lines, p) for p in unique(x["profile"] for x in runs)]
    by_profile = [r for r in by_profile if r.lines]
    text = [
        "# The papers' tables on a modelled disk\n",
        f"`make bench-papers` · {'; '.join(unique(x['machine'] for x in runs))}. Medians of interleaved rounds, with their range where "
        "there are three or more; ratios are of one round, over the best of ext4, btrfs and xfs in it, and above 1 is faster. "
        f"A tree has {s['tree']:,} files; {s['commits']} commits of {s['changes']} changes or {s['moves']:,} random operations age it; a file "
        f"of {s['big']:,} MiB is overwritten. What is there before a case was made at the speed of memory; the case runs on the model "
        "(`hdd`, `hdd-tb` with a track buffer, `sata-ssd`), on a file system that was mounted for it. All that writes ends when it is "
        "durable. Only the model's time is a disk's: the processor is that of the machine, which was shared.\n",
        "## Aims\n",
        *aims(by_profile),
    ]
    for r in by_profile:
        if r.cases:
            text += [f"\n## Times, {r.profile}\n", *times(r), f"\n## What the disk saw, {r.profile}\n", *counts(r)]
            text += ["\n`grep -r` reads every file. Seeks a file:\n", *seeks_a_file(r)]
        if r.group("names"):
            text += ["\nBytes between file system and device until all is unmounted (KEVIN's loads):\n", *names_traffic(r)]
        if r.group("kvdb"):
            text += [f"\n## Stitching thresholds, {r.profile}\n", *kvdb(r)]
        if r.left_out:
            text.append("\nNot measured: " + "; ".join(f"{what} ({why})" for what, why in r.left_out.items()) + ".")
    notes = out.read_text().partition(NOTES) if out and out.exists() else ("", "", "")
    wrapped = (line if line.startswith("|") else textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
               for line in "\n".join(text).split("\n"))
    return "\n".join(wrapped) + "\n" + notes[1] + notes[2]
