"""What scripts/bench_files.py has recorded, as tables and as a picture."""

import json
import math
import os
import statistics
import textwrap
from html import escape
from pathlib import Path

BASE = "ext4"
OURS = "kvfs"
CEILING = "memory-uring"
# (case, how many times as fast as the base it is to be)
AIMS = {
    "create": 0.55,
    "create + 4 KiB": 0.5,
    "unlink": 0.85,
    "mkdir": 1.5,
    "rmdir": 1.1,
    "stat, warm": 0.95,
    "read, warm": 0.95,
    "readdir + stat, cold": 2,
    "read small files, cold": 1.4,
    "rename": 0.9,
    "create + fsync, 1 thread": 2.5,
    "create + fsync, 16 threads": 2.5,
    "append 4 KiB + fsync, 16 threads": 2.5,
    "sequential write, fsync": 1.0,
    "sequential read, cold": 0.97,
    "random 4 KiB overwrites, fsync": 2,
    "tar x, large tree": 0.6,
    "tar x, large tree, busy machine": 0.6,
    "rm -rf, large tree": 0.5,
    "rm -rf, large tree, busy machine": 0.5,
    "cargo build of 6 crates": 0.95,
    "git clone": 0.7,
    "git status, warm": 0.95,
    "pgbench, 4 clients": 1.0,
    "SQLite inserts, WAL": 1.5,
    "kvfs import; tar x elsewhere, large tree": 5,
    "kvfs rm; rm -rf elsewhere, large tree": 5,
}
PEER_AIMS = [
    ("juicefs", case, 10) for case in ("create", "stat, warm", "unlink", "mkdir", "rename")
] + [("bindfs", "create", 2)]
TITLES = {
    "operations": "Operations",
    "programs": "Programs",
    "large": "A large tree",
    "clients": "Several clients at once, all of them together",
    "personalities": "The five personalities of filebench",
}
# What follows it in the table's file is written by hand, and stays there.
NOTES = "\n## Where an aim is missed"


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def machine():
    models = (
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    )
    return f"{os.cpu_count()} cores ({next(models, '?')}), Linux {os.uname().release}"


def unique(values):
    return list(dict.fromkeys(values))


class Results:
    def __init__(self, lines):
        self.lines = [line for line in lines if "case" in line]
        self.runs = [line for line in lines if "sizes" in line]
        # What was left out once and measured at another time is not missing.
        there = {f"{line['case']} on {line['system']}" for line in self.lines} | {
            line["system"] for line in self.lines
        }
        self.left_out = {
            line["left_out"]: line["why"]
            for line in lines
            if line.get("left_out") not in there | {None}
        }
        self.by = {}
        for line in self.lines:
            self.by.setdefault((line["case"], line["system"]), {})[line["round"]] = line
        order = unique(name for run in self.runs for name in run["systems"])
        self.systems = [
            name for name in order if any(line["system"] == name for line in self.lines)
        ]
        self.own = [name for name in self.systems if name.startswith(OURS)]

    def cases(self, group):
        return unique(line["case"] for line in self.lines if line["group"] == group)

    def of(self, case, system):
        return self.by.get((case, system), {})

    def rounds(self, case):
        return len(
            {round_ for (name, _), rounds in self.by.items() if name == case for round_ in rounds}
        )

    def each(self, case, system, what="seconds"):
        return {round_: line[what] / line["ops"] for round_, line in self.of(case, system).items()}

    def ratios(self, case, system, base=BASE):
        """How many times as fast as the base in each round in which both ran."""
        ours, theirs = self.each(case, system), self.each(case, base)
        return sorted(theirs[r] / ours[r] for r in ours.keys() & theirs.keys())


def shown(values, digits=2):
    """The median; with its range where there are rounds enough for one."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):.{digits}f}"
    return (
        f"**{middle}** ({min(values):.{digits}f}–{max(values):.{digits}f})"
        if len(values) >= 3
        else middle
    )


def rate(results, case, system):
    each = list(results.each(case, system).values())
    if not each:
        return "–"
    middle = statistics.median(each)
    return f"{1 / middle:,.0f}/s" if middle < 0.05 else f"{middle:.2f} s"


def cost(results, case, system):
    """Requests of one operation, and processor time of client and daemon, µs (programs: ms)."""
    of = list(results.of(case, system).values())
    if not of:
        return "–"
    last = of[-1]
    sent = sum(last["requests"].values()) / last["ops"]
    kinds = sorted(last["requests"].items(), key=lambda kind: -kind[1])[:3]
    kinds = " ".join(
        f"{kind} {n / last['ops']:.1f}" for kind, n in kinds if n / last["ops"] >= 0.05
    )
    scale, unit = (1e6, "µs") if last["ops"] > 1 else (1e3, "ms")
    client, daemon = (
        statistics.median(line[who] / line["ops"] for line in of) * scale
        for who in ("client", "daemon")
    )
    return f"{sent:,.1f}{': ' if kinds else ''}{kinds} · {client:,.0f} + {daemon:,.0f} {unit}"


def written(results, case, system):
    values = [
        line["written"] / line["bytes"]
        for line in results.of(case, system).values()
        if line.get("written")
    ]
    return shown(values)


def table(head, rows, right=True):
    rule = "---:" if right else "---"
    return [
        f"| {' | '.join(head)} |",
        "|---|" + f"{rule}|" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def group_table(results, group):
    cases = results.cases(group)
    systems = [
        name
        for name in results.systems
        if name != BASE and any(results.of(case, name) for case in cases)
    ]
    rows = []
    for case in cases:
        aim = f"{AIMS[case]:g}" if case in AIMS else ""
        rows.append(
            [
                case,
                str(results.rounds(case)),
                rate(results, case, BASE),
                *(shown(results.ratios(case, name)) for name in systems),
                aim,
            ]
        )
    return [f"\n## {TITLES[group]}\n", *table(["case", "rounds", BASE, *systems, "aim"], rows)]


def together():
    """A file and its key, durable together: ratios to ext4 and SQLite,
    measured by scripts/bench_transactions.py."""
    path = Path(__file__).parent.parent / "docs/bench/transactions.jsonl"
    stages = (
        [line["figures"] for line in read(path) if line["stage"] == "together"]
        if path.exists()
        else []
    )
    for clients in (1, 8):
        ours, theirs = (
            [v for s in stages for v in s[f"together, {who}, {clients} clients, /s"]]
            for who in ("kvfs", "ext4 on a loop device")
        )
        yield clients, [a / b for a, b in zip(ours, theirs)]


def aims_table(results):
    columns = results.own + [CEILING] * (CEILING in results.systems)
    rows = []

    def row(title, aim, by_system):
        met = [
            name
            for name in results.own
            if by_system[name] and statistics.median(by_system[name]) >= aim
        ]
        verdict = ", ".join(met) or ("**missed**" if any(by_system.values()) else "not measured")
        rows.append([title, f"≥ {aim:g}", *(shown(by_system[name]) for name in columns), verdict])

    for case, aim in AIMS.items():
        row(case, aim, {name: results.ratios(case, name) for name in columns})
    for base, case, aim in PEER_AIMS:
        row(
            f"{case}, against {base}",
            aim,
            {name: results.ratios(case, name, base) for name in columns},
        )
    text = [
        "\n## Aims\n",
        *table(["÷ ext4 where nothing else is said", "aim", *columns, "met by"], rows),
    ]
    text.append(
        "\nA file and its key durable together, against ext4 and SQLite on a loop device, is to be "
        "≥ 5: "
        + "; ".join(
            f"{shown(values)} with {clients} client{'s' * (clients > 1)}"
            for clients, values in together()
        )
        + " (`python3 scripts/bench_transactions.py together`, "
        "in [transactions.md](transactions.md)). "
        f"`{CEILING}` is the ceiling: what it misses, no file system behind this transport can "
        "reach."
    )
    return text


def report(lines, out=None):
    results = Results(lines)
    sizes = results.runs[0]["sizes"]
    counts = [results.rounds(case) for case in unique(line["case"] for line in results.lines)] or [
        0
    ]
    busy = [line["busy"] for line in results.lines] or [0]
    text = [
        "# KVFS as a file system, compared with others\n",
        f"`make bench-files` · {min(counts)}{f' to {max(counts)}' * (min(counts) < max(counts))} "
        f"interleaved rounds of each case · {sizes['files']:,} files, a large file of "
        f"{sizes['mib']} MiB, a tree of {sizes['tree']:,} files and a large one of "
        f"{sizes['large_tree']:,}, 10.8 KB each on average · "
        f"{'; '.join(unique(run['machine'] for run in results.runs))}, clients and daemons "
        f"unpinned. The rest of the machine was {statistics.median(busy):.0%} busy before a case "
        f"(median; the most: {max(busy):.0%}). All files lie on one disk; ext4, btrfs and xfs are "
        "on loop devices there, bindfs passes through to an ext4 of its own; JuiceFS keeps content "
        "in files of the disk and names in Badger, which it opens without synced writes, so its "
        "fsync promises less; AgentFS keeps all in a SQLite file. `memory` is a file system in "
        "memory that does as little as the kernel needs, behind the same transport: the ceiling. "
        "“Busy machine”: an endless loop for each CPU runs during the case.\n",
        "How many times as fast as ext4: the median of the rounds' ratios, and their range where "
        "there are three or more; above 1 is faster. `kvfs`: on /dev/fuse; `kvfs-uring`: `-o "
        "transport=uring`; `kvfs-root`: the same with `nodefault_permissions`; `kvfs-writeback`: "
        "on /dev/fuse with `-o writeback`.",
    ]
    groups = [group for group in TITLES if results.cases(group)]
    for group in groups:
        text += group_table(results, group)
    names = results.cases("personalities")
    if any(name.startswith("filebench") for name in names):
        text.append(
            "\n“filebench”: its own workload files, with fewer files and threads "
            f"(scripts/bench_filebench.py), {sizes['filebench_seconds']} s each; operations are "
            "filebench's."
        )
    if any(name.endswith("restated") for name in names):
        text.append(
            "\n“Restated”: not filebench, but what its workloads publish of sizes and proportions "
            "as a loop in Python, with fewer files and processes (scripts/bench_personalities.py), "
            f"{sizes['filebench_seconds']} s each; each call of open, read, write and so on is an "
            "operation. Its figures compare file systems with each other only."
        )
    text += aims_table(results)
    writers = [
        case
        for group in groups
        for case in results.cases(group)
        if any(written(results, case, name) != "–" for name in results.systems)
    ]
    devices = [
        name
        for name in results.systems
        if any(written(results, case, name) != "–" for case in writers)
    ]
    text.append(
        "\n## Bytes written to the device for each byte of the user\n\n"
        "Until all has been synced; what is merged later is not in it.\n"
    )
    text += table(
        ["case", *devices],
        [[case, *(written(results, case, name) for name in devices)] for case in writers],
    )
    text += [
        "\n## Requests that the daemon answered for one operation (programs: for all), "
        "and processor time of client + daemon\n"
    ]
    shown_cases = [case for group in groups for case in results.cases(group)]
    text += table(
        ["case", *results.own],
        [[case, *(cost(results, case, name) for name in results.own)] for case in shown_cases],
        right=False,
    )
    if results.left_out:
        text.append(
            "\nNot measured: "
            + "; ".join(f"{what} ({why})" for what, why in results.left_out.items())
            + "."
        )
    # Notes written by hand are kept.
    notes = out.read_text().partition(NOTES) if out and out.exists() else ("", "", "")
    wrapped = (
        line
        if line.startswith(("|", "!"))
        else textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
        for line in "\n".join(text).split("\n")
    )
    return "\n".join(wrapped) + "\n" + notes[1] + notes[2]


COLOURS = {"kvfs": "#1f77b4", "kvfs-uring": "#2ca02c", "memory-uring": "#bbbbbb"}


def picture(lines):
    """Bars on a logarithmic scale: how many times as fast as ext4; a line for each aim."""
    results = Results(lines)
    drawn = [name for name in COLOURS if name in results.systems]
    cases = [
        case
        for group in TITLES
        for case in results.cases(group)
        if any(results.ratios(case, name) for name in drawn)
    ]
    left, width, bar, low, high = 250, 520, 9, 0.05, 50
    step = bar * len(drawn) + 10

    def x(ratio):
        return left + width * (math.log(min(max(ratio, low), high)) - math.log(low)) / (
            math.log(high) - math.log(low)
        )

    height = 50 + step * len(cases)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    out.append('<rect width="100%" height="100%" fill="white"/>')
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20):
        out.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="30" y2="{height}" '
            f'stroke="{"#333" if tick == 1 else "#ddd"}"/>'
        )
        out.append(f'<text x="{x(tick):.1f}" y="24" text-anchor="middle">{tick:g}</text>')
    for i, name in enumerate(drawn):
        out.append(
            f'<rect x="{left + i * 130}" y="2" width="9" height="9" fill="{COLOURS[name]}"/>'
        )
        out.append(f'<text x="{left + i * 130 + 13}" y="11">{name} ÷ ext4</text>')
    for row, case in enumerate(cases):
        top = 36 + row * step
        out.append(
            f'<text x="{left - 8}" y="{top + step / 2}" text-anchor="end">{escape(case)}</text>'
        )
        for i, name in enumerate(drawn):
            values = results.ratios(case, name)
            if values:
                middle = statistics.median(values)
                begin, end = sorted((x(1), x(middle)))
                out.append(
                    f'<rect x="{begin:.1f}" y="{top + i * bar}" width="{max(end - begin, 1):.1f}" '
                    f'height="{bar - 1}" fill="{COLOURS[name]}"/>'
                )
        if case in AIMS:
            aim = x(AIMS[case])
            out.append(
                f'<line x1="{aim:.1f}" x2="{aim:.1f}" y1="{top}" y2="{top + step - 10}" '
                'stroke="#d62728" stroke-width="2"/>'
            )
    return "\n".join(out) + "\n</svg>\n"
