"""What papers.py has recorded, as tables: docs/bench/papers.md without what is written by hand."""

import os
import statistics
import subprocess
import textwrap
from pathlib import Path

from results import (
    ORDER,
    OURS,
    OVER_URING,
    Results,
    disk_busy,
    figure,
    seconds,
    traffic,
    unique,
    with_mount,
)
from theirs import NOT_RUN, PAPERS, more_traffic, over_max

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
NOTES = "\n## What differs"


def aim_of(case, profile):
    aim = AIMS.get(case)
    for look, value in LOOKS.items():
        if case in [f"{look}, {tree}" for tree in TREES]:
            aim = value
    return aim.get(profile) if isinstance(aim, dict) else aim


def machine():
    models = (
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    )
    return f"{os.cpu_count()} cores ({next(models, '?')}), Linux {os.uname().release}"


def host_memory():
    """Bytes of memory that the machine has."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return None


def memory(measured):
    """Under which memory something was measured, and how large the stores were."""

    def size(n):
        return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"

    host = unique(x["host_memory"] for x in measured if x.get("host_memory"))
    given = unique(x["memory"] for x in measured if x.get("memory"))
    if all(x["group"] == "kvdb" for x in measured):
        # The database alone, with the options that its cases name.
        given = ["–"]
    ours = (x for x in measured if x.get("system") in (OURS, OVER_URING))
    stored = [x["stored"] for x in ours if x.get("stored")]
    words = [", ".join(size(n) for n in host) or "not recorded", ", ".join(given) or "default"]
    words.append(f"{size(min(stored))}–{size(max(stored))}" if stored else "not recorded")
    return words


def commit():
    """The last commit that changed what is measured."""
    here = Path(__file__).resolve().parents[2]
    words = [
        "git",
        "-C",
        here,
        "log",
        "-1",
        "--format=%h",
        "--",
        "crates",
        "bench/measure",
        "Cargo.lock",
    ]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "?"


def table(head, rows, left=0):
    """Numbers on the right, but for the first column and the last `left` ones."""
    sides = ["---", *["---:"] * (len(head) - 1 - left), *["---"] * left]
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join(sides)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shown(values):
    """The median, with the range of three rounds or more."""
    if not values:
        return "–"
    middle = f"**{number(statistics.median(values))}**"
    return f"{middle} ({number(min(values))}–{number(max(values))})" if len(values) >= 3 else middle


def times(results):
    rows = []
    for case in results.cases:
        taken = [results.median(case, s, seconds) for s in ORDER]
        aim = aim_of(case, results.profile)
        rows.append(
            [
                case,
                *(number(t) if t is not None else "–" for t in taken),
                shown(results.ratios(case, seconds)),
                f"{aim:g}" if aim else "",
                shown(results.ratios(case, seconds, OVER_URING)),
                shown(results.ratios(case, with_mount)),
                shown(results.ratios(case, disk_busy)),
                processor(results, case),
            ]
        )
    head = [
        "seconds",
        *ORDER,
        "÷ best peer",
        "aim",
        "over io_uring",
        "with the mount",
        "by the disk's time alone",
        "processor",
    ]
    return table(head, rows)


def processor(results, case):
    """Seconds of the client and of the daemon of kvfs."""
    both = [
        results.median(case, OURS, lambda x, who=who: x.get(who)) for who in ("client", "daemon")
    ]
    return "–" if None in both else " + ".join(number(b) for b in both)


def counts(results):
    def cell(case, system):
        def of(name):
            return results.median(case, system, lambda x: x["counted"][name])

        if of("seeks") is None:
            return "–"
        return (
            f"{of('seeks'):,.0f} · {of('read_requests'):,.0f} · {of('read_bytes') / 2**20:,.1f} · "
            f"{of('write_bytes') / 2**20:,.1f}"
        )

    rows = [[case, *(cell(case, s) for s in ORDER)] for case in results.cases]
    return table(["seeks · reads · MiB read · MiB written", *ORDER], rows)


def seeks_a_file(results):
    rows = []
    for case in results.cases:
        if not case.startswith("grep -r"):
            continue
        each = [
            results.median(case, s, lambda x: x["counted"]["seeks"] / x["files"]) for s in ORDER
        ]
        rows.append([case, *("–" if e is None else f"{e:.3f}" for e in each)])
    return table(["seeks a file", *ORDER], rows)


def as_percent(parts):
    return f"**{statistics.median(parts):+.0%}**" if parts else "–"


# Groups whose bytes count as well.
OF_KEVIN = ("names", "names-aged", "directories", "personalities")


def traffic_table(results):
    rows = []
    for case in (case for group in OF_KEVIN for case in results.group(group)):
        mib = [results.median(case, s, lambda x: traffic(x) / 2**20) for s in ORDER]
        rows.append(
            [
                case,
                *("–" if m is None else f"{m:.1f}" for m in mib),
                as_percent(more_traffic(case)(results)),
            ]
        )
    return table(["MiB read and written", *ORDER, "kvfs over ext4"], rows) if rows else []


def kvdb(results):
    rows = []
    for (case, threshold), rounds in results.by.items():
        xs = [x for x in rounds.values() if x["group"] == "kvdb"]
        if not xs:
            continue

        def of(value, xs=xs):
            return statistics.median(value(x) for x in xs)

        over = over_max(case, threshold)(results)
        rows.append(
            [
                f"{case}, {threshold}",
                f"{of(lambda x: x['figures']['ops_per_s']):,.0f}",
                f"{statistics.median(over):.2f}" if over else "–",
                f"{of(lambda x: x['figures']['write_amp']):.2f}",
                f"{of(lambda x: x['figures']['scan_mb_s']):.0f}",
                f"{of(lambda x: x['figures']['flushes']):,.0f}",
                f"{of(lambda x: x['counted']['seeks']):,.0f}",
            ]
        )
    return table(
        ["load, threshold", "puts/s", "÷ max", "written a byte", "scan MB/s", "flushes", "seeks"],
        rows,
    )


def aims(by_profile):
    cases = unique(c for r in by_profile for c in r.cases if aim_of(c, r.profile))
    rows = []
    for case in cases:
        row, verdicts = [case], []
        for r in by_profile:
            ratios, aim = r.ratios(case, seconds), aim_of(case, r.profile)
            over_uring = r.ratios(case, seconds, OVER_URING)
            cell = shown(ratios)
            if over_uring:
                cell += f"; {shown(over_uring)}"
            if ratios and aim:
                cell += f"; ≥ {aim:g}"
                verdicts.append(f"{r.profile}: {verdict(ratios, over_uring, aim)}")
            row.append(cell)
        rows.append([*row, "; ".join(verdicts)])
    return table(["÷ the best of ext4, btrfs, xfs", *(r.profile for r in by_profile), ""], rows)


def verdict(ratios, over_uring, aim):
    if statistics.median(ratios) >= aim:
        return "met"
    if over_uring and statistics.median(over_uring) >= aim:
        return "**met over io_uring alone**"
    return "**missed**"


def theirs(rows, by_profile):
    text = []
    for row in rows:
        form = as_percent if row.percent else shown
        text.append([row.what, row.theirs, *(form(row.ours(r)) for r in by_profile), row.differs])
    return table(
        ["", "theirs", *(f"ours, {r.profile}" for r in by_profile), "what differs"], text, left=1
    )


def rounds(by_profile):
    rows = []
    for r in by_profile:
        by_what = {}
        for group, what in r.rounds().items():
            under = tuple(memory([x for x in r.lines if x["group"] == group]))
            by_what.setdefault((what[0], ", ".join(what[1]), under), []).append(group)
        rows += [
            [r.profile, ", ".join(groups), str(n), commits, *under]
            for (n, commits, under), groups in by_what.items()
        ]
    head = ["disk", "groups of cases", "rounds", "commits"]
    return table([*head, "memory of the machine", "of kvfs", "store"], rows)


def builds(results):
    """What others do on the machine changes the time of a build by far more than a file system
    does."""

    def cell(case, system):
        parts = [
            results.median(case, system, of)
            for of in (seconds, lambda x: x["client"] + x["daemon"], disk_busy)
        ]
        return "–" if None in parts else " · ".join(number(part) for part in parts)

    rows = [[case, *(cell(case, s) for s in ORDER)] for case in results.group("builds")]
    return table(["seconds · of processors · of the disk", *ORDER], rows) if rows else []


def toku(results):
    """Files a second until each part of them was made."""
    rows = []
    for system in ORDER:
        runs = results.values("TokuBench + sync", system, lambda x: x["figures"]["files_per_s"])
        if runs:
            rows.append([system, *(number(statistics.median(part)) for part in zip(*runs))])
    if not rows:
        return []
    parts = len(rows[0]) - 1
    return table(
        ["files a second until", *(f"{100 * (n + 1) // parts}%" for n in range(parts))], rows
    )


def index_size(results):
    rows = []
    for case in results.group("index"):
        sizes = [results.median(case, s, figure("names_bytes")) for s in ORDER]
        files = next(x["files"] for x in results.lines if x["case"] == case)
        rows.append(
            [case, *("–" if b is None else f"{b / 2**20:.1f} ({b / files:.0f})" for b in sizes)]
        )
    return table(["MiB (bytes a name)", *ORDER], rows) if rows else []


def report(lines, out=None):
    runs = [x for x in lines if "sizes" in x]
    s = {name: size for x in runs for name, size in x["sizes"].items()}
    by_profile = [Results(lines, p) for p in unique(x["profile"] for x in runs)]
    by_profile = [r for r in by_profile if r.lines]
    text = [
        "# The papers' tables on a modelled disk\n",
        f"`make bench-papers` · {'; '.join(unique(x['machine'] for x in runs))}. Medians of "
        f"interleaved rounds, with their range where "
        "there are three or more; ratios are of one round, over the best of ext4, btrfs and xfs in "
        "it, and above 1 is faster. "
        f"A tree has {s['tree']:,} files; {s['commits']} commits of {s['changes']} changes or "
        f"{s['moves']:,} random operations age it; a file "
        f"of {s['big']:,} MiB is overwritten. What is there before a case was made at the speed of "
        f"memory; the case runs on the model "
        "(`hdd`, `hdd-tb` with a track buffer, `sata-ssd`), on a file system that was mounted for "
        "it. All that writes ends when it is "
        "durable. Only the model's time is a disk's; the processor is that of the machine, which "
        "others used as well. So in addition to the ratio "
        "of times there is that of the time for which the disk was busy, and the processor time of "
        "the client and of the daemon of kvfs. "
        "“With the mount” adds what mounting took, which is not part of a case. The memory of kvfs "
        "is its `--memory`, 320 MiB by default. Where the memory of the machine was not recorded, "
        "all that is known is that it held the image of the disk (8 GiB, sparse, in a tmpfs) as "
        "well as the page cache: each case began with a fresh mount and nothing cached, and no "
        "store was larger than the memory of its machine. “Within” so much memory each step of a "
        "case ran in a control group of that size, with its client, the daemon of kvfs and all "
        "pages that they read (`--within`): there the store is larger than memory, and kvfs does "
        "not read ahead what it could not keep.\n",
        *rounds(by_profile),
        "\n## Aims\n",
        "The ratio of kvfs over /dev/fuse; the one over io_uring where it was measured; the aim.\n",
        *aims(by_profile),
        "\n## Theirs and ours\n\nWhat of the papers can be run here. Ratios as above where nothing "
        "else is said: how many times as fast as "
        "the best of ext4, btrfs and xfs, or as the one that is named. Theirs are of the machines "
        "and sizes of their time; where a figure is "
        "a chart, it is described.\n",
    ]
    for paper, rows in PAPERS:
        text += [f"### {paper}\n", *theirs(rows, by_profile), ""]
    text += [
        "### What cannot be run here, or is elsewhere\n",
        *(f"- {what}: {why}." for what, why in NOT_RUN),
    ]
    for r in by_profile:
        if r.cases:
            text += [
                f"\n## Times, {r.profile}\n",
                *times(r),
                f"\n## What the disk saw, {r.profile}\n",
                *counts(r),
            ]
            text += ["\n`grep -r` reads every file. Seeks a file:\n", *seeks_a_file(r)]
        if bytes_moved := traffic_table(r):
            text += [
                "\nBytes between file system and device until all is unmounted (KEVIN's loads):\n",
                *bytes_moved,
            ]
        if sizes := index_size(r):
            text += [
                "\nRoom that names and inodes of empty files take: of kvfs its dictionaries, "
                "merged, with their index nodes; of the others the device "
                "that is in use, less what mkfs laid out, with both copies of btrfs and 256 bytes "
                "an inode of ext4:\n",
                *sizes,
            ]
        if made := builds(r):
            text += ["\nBuilds (VT-tree Figure 8 and Table 4), on two cores:\n", *made]
        if made := toku(r):
            text += ["\nTokuBench (BetrFS Figure 8), without the sync at the end:\n", *made]
        if r.group("kvdb"):
            text += [f"\n## Stitching thresholds, {r.profile}\n", *kvdb(r)]
        if r.left_out:
            text.append(
                "\nNot measured: "
                + "; ".join(f"{what} ({why})" for what, why in r.left_out.items())
                + "."
            )
    notes = out.read_text().partition(NOTES) if out and out.exists() else ("", "", "")

    def wrap(line):
        indent = "  " if line.startswith("- ") else ""
        return (
            line
            if line.startswith("|")
            else textwrap.fill(
                line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        )

    wrapped = (wrap(line) for line in "\n".join(text).split("\n"))
    return "\n".join(wrapped) + "\n" + notes[1] + notes[2]
