"""What scripts/bench_files.py has measured, as a table and as a picture."""

import math
import os
import statistics
from html import escape
from pathlib import Path

BASE = "ext4"


def by_round(lines, case, system, field="seconds"):
    return {line["round"]: line[field] / line["ops"] for line in lines if line["case"] == case and line["system"] == system}


def ratios(lines, case, system):
    """How many times as fast as ext4 in each round in which both ran."""
    ours, theirs = by_round(lines, case, system), by_round(lines, case, BASE)
    return sorted(theirs[r] / ours[r] for r in ours.keys() & theirs.keys())


def shown(values):
    if not values:
        return "–"
    middle = statistics.median(values)
    return f"**{middle:.2f}** ({values[0]:.2f}–{values[-1]:.2f})"


def rate(lines, case, system):
    each = list(by_round(lines, case, system).values())
    if not each:
        return "–"
    middle = statistics.median(each)
    return f"{1 / middle:,.0f}/s" if middle < 0.05 else f"{middle:.2f} s"


def cost(lines, case, system):
    """Requests of one operation, and processor time of client and daemon, µs (programs: ms)."""
    of = [line for line in lines if line["case"] == case and line["system"] == system]
    if not of:
        return "–"
    last = of[-1]
    sent = sum(last["requests"].values()) / last["ops"]
    kinds = sorted(last["requests"].items(), key=lambda kind: -kind[1])[:3]
    kinds = " ".join(f"{kind} {n / last['ops']:.1f}" for kind, n in kinds if n / last["ops"] >= 0.05)
    scale, unit = (1e6, "µs") if last["ops"] > 1 else (1e3, "ms")
    client, daemon = (statistics.median(line[who] / line["ops"] for line in of) * scale for who in ("client", "daemon"))
    return f"{sent:,.1f}{': ' if kinds else ''}{kinds} · {client:,.0f} + {daemon:,.0f} {unit}"


def report(a, lines, aims, systems, left_out):
    others = [name for name in systems if name != BASE]
    cases = [case for case in aims if any(line["case"] == case for line in lines)]
    model = next((l.split(":", 1)[1].strip() for l in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in l), "?")
    busy = [line["busy"] for line in lines] or [0]
    text = [
        "# KVFS as a file system, beside others\n",
        f"`make bench-files` · {a.rounds} rounds ({a.program_rounds or a.rounds} of the programs), interleaved · {a.files:,} files, a large file of {a.mib} MiB, a tree of {a.tree:,} files · "
        f"{os.cpu_count()} cores ({model}), Linux {os.uname().release}, clients and daemons unpinned. The rest of the machine was "
        f"{statistics.median(busy):.0%} busy before a case (median; the most: {max(busy):.0%}). All files lie on one disk; ext4, btrfs and xfs "
        "are on loop devices there, bindfs passes through to an ext4 of its own. `memory` is a file system in memory that does as little "
        "as the kernel needs, behind the same transport: the ceiling.\n",
        "How many times as fast as ext4, median and range of the rounds' ratios; above 1 is faster. `kvfs`: the default, on /dev/fuse; "
        "`kvfs-uring`: `-o transport=uring`; `kvfs-root`: the same with `nodefault_permissions`; `kvfs-writeback`: `-o writeback`.\n",
        f"| case | {BASE} | " + " | ".join(others) + " | aim |",
        "|---|---:|" + "---:|" * len(others) + "---:|",
    ]
    for case in cases:
        aim = f"{aims[case]:g}" if aims[case] else ""
        text.append(f"| {case} | {rate(lines, case, BASE)} | " + " | ".join(shown(ratios(lines, case, o)) for o in others) + f" | {aim} |")
    own = [name for name in systems if name.startswith("kvfs")]
    text += [
        "\nRequests that the daemon answered for one operation (programs: for all), and processor time of client + daemon:\n",
        "| case | " + " | ".join(own) + " |",
        "|---|" + "---|" * len(own),
    ]
    text += [f"| {case} | " + " | ".join(cost(lines, case, name) for name in own) + " |" for case in cases]
    if left_out:
        text.append("\nNot measured: " + "; ".join(f"{what} ({why})" for what, why in left_out.items()) + ".")
    return "\n".join(text) + "\n"


COLOURS = {"kvfs": "#1f77b4", "kvfs-uring": "#2ca02c", "memory-uring": "#bbbbbb"}


def picture(lines, aims, systems):
    """Bars on a logarithmic scale: how many times as fast as ext4; a line for each aim."""
    drawn = [name for name in COLOURS if name in systems]
    cases = [case for case in aims if any(ratios(lines, case, name) for name in drawn)]
    left, width, bar, low, high = 250, 520, 9, 0.05, 50
    step = bar * len(drawn) + 10

    def x(ratio):
        return left + width * (math.log(min(max(ratio, low), high)) - math.log(low)) / (math.log(high) - math.log(low))

    height = 50 + step * len(cases)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{height}" font-family="sans-serif" font-size="11">']
    out.append('<rect width="100%" height="100%" fill="white"/>')
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20):
        out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="30" y2="{height}" stroke="{"#333" if tick == 1 else "#ddd"}"/>')
        out.append(f'<text x="{x(tick):.1f}" y="24" text-anchor="middle">{tick:g}</text>')
    for i, name in enumerate(drawn):
        out.append(f'<rect x="{left + i * 130}" y="2" width="9" height="9" fill="{COLOURS[name]}"/>')
        out.append(f'<text x="{left + i * 130 + 13}" y="11">{name} ÷ ext4</text>')
    for row, case in enumerate(cases):
        top = 36 + row * step
        out.append(f'<text x="{left - 8}" y="{top + step / 2}" text-anchor="end">{escape(case)}</text>')
        for i, name in enumerate(drawn):
            values = ratios(lines, case, name)
            if values:
                middle = statistics.median(values)
                begin, end = sorted((x(1), x(middle)))
                out.append(f'<rect x="{begin:.1f}" y="{top + i * bar}" width="{max(end - begin, 1):.1f}" height="{bar - 1}" fill="{COLOURS[name]}"/>')
        if aims[case]:
            out.append(f'<line x1="{x(aims[case]):.1f}" x2="{x(aims[case]):.1f}" y1="{top}" y2="{top + step - 10}" stroke="#d62728" stroke-width="2"/>')
    return "\n".join(out) + "\n</svg>\n"
