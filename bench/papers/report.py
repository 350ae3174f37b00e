"""What papers.py has recorded, as tables: docs/bench/papers.md without what is written by hand."""

import json
import os
import statistics
import subprocess
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
# (of which paper, what it compares, its ratio, our case): ratios to the best of ext4, btrfs and xfs.
THEIRS = (
    ("BetrFS 0.2, Table 1: find", "10.0 (0.35 s, ext4 3.51)", "find, fresh"),
    ("BetrFS 0.2, Table 1: grep", "2.2 (5.78 s, btrfs 12.77)", "grep -r, fresh"),
    ("BetrFS 0.2, Table 1: mv", "0.62 (0.13 s, xfs 0.08)", "mv, fresh"),
    ("BetrFS 0.2, Table 1: rm -rf", "1.8 (2.37 s, ext4 4.17)", "rm -rf, fresh"),
    ("BetrFS 0.2, Table 2: 4-byte overwrites", "326 (0.32 s, btrfs 104.18)", "4-byte overwrites + fsync"),
    ("BetrFS 0.2, Figure 5: sequential write", "about 0.9 (96 MiB/s)", "sequential write"),
    ("BetrFS 0.2, Figure 8: files of 200 bytes", "3 and more", "create of 200-byte files + sync"),
)
# What follows it in the table's file is written by hand, and stays there.
NOTES = "\n## What differs"


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


def commit():
    """The last commit that changed what is measured."""
    here = Path(__file__).resolve().parents[2]
    words = ["git", "-C", here, "log", "-1", "--format=%h", "--", "crates", "bench/measure", "Cargo.lock"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "?"


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
        values = {r: value(x) for r, x in self.by.get((case, system), {}).items()}
        return {r: v for r, v in values.items() if v is not None}

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


def disk_busy(x):
    """A tenth of a millisecond at least, so that what needs no disk has a ratio."""
    return max(x["counted"]["busy_read_s"] + x["counted"]["busy_write_s"], 1e-4)


def traffic(x):
    return x["settled"]["read_bytes"] + x["settled"]["write_bytes"]


def times(results):
    rows = []
    for case in results.cases:
        taken = [results.median(case, s, seconds) for s in ORDER]
        aim = aim_of(case, results.profile)
        rows.append([case, *(number(t) if t is not None else "–" for t in taken), shown(results.ratios(case, seconds)),
                     f"{aim:g}" if aim else "", shown(results.ratios(case, with_mount)), shown(results.ratios(case, disk_busy)),
                     processor(results, case)])
    head = ["seconds", *ORDER, "÷ best peer", "aim", "with the mount", "by the disk's time alone", "processor"]
    return table(head, rows)


def processor(results, case):
    """Seconds of the client and of the daemon of kvfs."""
    both = [results.median(case, OURS, lambda x, who=who: x.get(who)) for who in ("client", "daemon")]
    return "–" if None in both else " + ".join(number(b) for b in both)


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


def over_ext4(results, case):
    ours, theirs = (results.of(case, s, traffic) for s in (OURS, "ext4"))
    return [ours[r] / theirs[r] - 1 for r in ours.keys() & theirs.keys()]


def saved(parts):
    return f"**{statistics.median(parts):+.0%}**" if parts else "–"


def over_max(results, case, threshold):
    puts, base = (results.of(case, t, lambda x: x["figures"]["ops_per_s"]) for t in (threshold, "max"))
    return [puts[r] / base[r] for r in puts.keys() & base.keys()]


def names_traffic(results):
    rows = []
    for case in results.group("names"):
        mib = [results.median(case, s, lambda x: traffic(x) / 2**20) for s in ORDER]
        rows.append([case, *("–" if m is None else f"{m:.1f}" for m in mib), saved(over_ext4(results, case))])
    return table(["MiB read and written", *ORDER, "kvfs over ext4"], rows)


def kvdb(results):
    rows = []
    for (case, threshold), rounds in results.by.items():
        xs = [x for x in rounds.values() if x["group"] == "kvdb"]
        if not xs:
            continue

        def of(value, xs=xs):
            return statistics.median(value(x) for x in xs)

        over = over_max(results, case, threshold)
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


def theirs(by_profile):
    rows = []
    for title, said, case in THEIRS:
        rows.append([title, said, *(shown(r.ratios(case, seconds)) for r in by_profile)])
    sizes = [f"unlink of {mib} MiB" for mib in unlink_sizes(by_profile)]
    if len(sizes) == 2:
        row = ["BetrFS 0.2, Figure 7: unlink of a file four times as large, seconds ÷ seconds", "flat"]
        for r in by_profile:
            small, large = (r.of(case, OURS, seconds) for case in sizes)
            row.append(shown([large[n] / small[n] for n in small.keys() & large.keys()]))
        rows.append(row)
    row = ["KEVIN, Figure 9: bytes to and from the device on metadata loads, over ext4", "-74%"]
    for r in by_profile:
        row.append(saved([x for case in r.group("names") for x in over_ext4(r, case)]))
    rows.append(row)
    row = ["VT-tree §4.1 on a disk: appends at threshold 0 over the highest, puts/s", "3.4 (34 MB/s, 10 MB/s)"]
    for r in by_profile:
        row.append(shown(over_max(r, "append, 8192 B", "0")))
    rows.append(row)
    for value, said in ((512, "3.0 (LevelDB 12.1)"), (4096, "2.5 (LevelDB 16.5)")):
        row = [f"DeLSM, Table 2: bytes written for each of write, delete, write of {value} B", said]
        for r in by_profile:
            amp = r.of(f"wdw, {value} B", "adaptive", lambda x: x["figures"]["write_amp"])
            row.append(shown(list(amp.values())))
        rows.append(row)
    return table(["", "theirs", *(f"ours, {r.profile}" for r in by_profile)], rows)


def unlink_sizes(by_profile):
    cases = unique(c for r in by_profile for c in r.cases if c.startswith("unlink of ") and c.endswith("MiB"))
    return [case.split()[2] for case in cases]


def report(lines, out=None):
    runs = [x for x in lines if "sizes" in x]
    s = runs[0]["sizes"]
    by_profile = [Results(lines, p) for p in unique(x["profile"] for x in runs)]
    by_profile = [r for r in by_profile if r.lines]
    text = [
        "# The papers' tables on a modelled disk\n",
        f"`make bench-papers` · {'; '.join(unique(x['machine'] for x in runs))} · commit "
        f"{', '.join(unique(x.get('commit', '?') for x in runs))}. Medians of interleaved rounds, with their range where "
        "there are three or more; ratios are of one round, over the best of ext4, btrfs and xfs in it, and above 1 is faster. "
        f"A tree has {s['tree']:,} files; {s['commits']} commits of {s['changes']} changes or {s['moves']:,} random operations age it; a file "
        f"of {s['big']:,} MiB is overwritten. What is there before a case was made at the speed of memory; the case runs on the model "
        "(`hdd`, `hdd-tb` with a track buffer, `sata-ssd`), on a file system that was mounted for it. All that writes ends when it is "
        "durable. Only the model's time is a disk's; the processor is that of the machine, which others used as well. So in addition to the ratio "
        "of times there is that of the time for which the disk was busy, and the processor time of the client and of the daemon of kvfs. "
        "“With the mount” adds what mounting took, which is not part of a case.\n",
        "## Aims\n",
        *aims(by_profile),
        "\n## Theirs and ours\n\nRatios as above where nothing else is said. Theirs are of the machines and sizes of their time.\n",
        *theirs(by_profile),
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
