"""What papers.py has recorded: measurements by profile, and ratios of one round."""

import json
import statistics
from pathlib import Path

OURS = "kvfs"
OVER_URING = "kvfs-uring"
PEERS = ("ext4", "btrfs", "xfs")
ORDER = (OURS, *PEERS)
# What a run says of the memory that it had, for each of its measurements.
UNDER = ("host_memory", "memory")


def read(path):
    """The lines of a record, each measurement with the run that it is of, by its place, and the
    commit. Two records in one file may have rounds of one number."""
    path, run, lines = Path(path), None, []
    for line in path.read_text().splitlines() if path.exists() else []:
        x = json.loads(line)
        under = {}
        if "sizes" in x:
            run = len(lines)
        elif run is not None:
            under = {name: lines[run][name] for name in UNDER if name in lines[run]}
        lines.append(
            {
                **x,
                "run": run,
                "commit": x.get("commit")
                or (lines[run].get("commit", "?") if run is not None else "?"),
                **under,
            }
        )
    return lines


def unique(values):
    return list(dict.fromkeys(values))


def seconds(x):
    return x["seconds"]


def with_mount(x):
    return x["seconds"] + x["mount"]["seconds"]


def disk_busy(x):
    """A tenth of a millisecond at least, so that what needs no disk has a ratio."""
    return max(x["counted"]["busy_read_s"] + x["counted"]["busy_write_s"], 1e-4)


def traffic(x):
    return x["settled"]["read_bytes"] + x["settled"]["write_bytes"]


def figure(name):
    """A figure that a case gave by itself; of a list the last one."""

    def of(x):
        value = x.get("figures", {}).get(name)
        return value[-1] if isinstance(value, list) else value

    return of


class Results:
    """The measurements of one profile. All values are lists, one for each round that has them."""

    def __init__(self, lines, profile):
        self.profile = profile
        self.lines = [x for x in lines if x.get("profile") == profile and "case" in x]
        self.by = {}
        for x in self.lines:
            self.by.setdefault((x["case"], x["system"]), {})[x["run"], x["round"]] = x
        self.cases = unique(x["case"] for x in self.lines if x["group"] != "kvdb")
        there = {(x["group"], x["system"]) for x in self.lines}
        self.left_out = {
            x["left_out"]: x["why"]
            for x in lines
            if x.get("profile") == profile
            and "left_out" in x
            and tuple(x["left_out"].split(" on ")) not in there
        }

    def of(self, case, system, value=seconds):
        values = {r: value(x) for r, x in self.by.get((case, system), {}).items()}
        return {r: v for r, v in values.items() if v is not None}

    def values(self, case, system, value=seconds):
        return list(self.of(case, system, value).values())

    def median(self, case, system, value=seconds):
        values = self.values(case, system, value)
        return statistics.median(values) if values else None

    def ratios(self, case, value=seconds, system=OURS):
        """How many times as good as the best peer of the same round."""
        ours = self.of(case, system, value)
        theirs = [self.of(case, peer, value) for peer in PEERS]
        return [
            min(t[r] for t in theirs if r in t) / max(ours[r], 1e-9)
            for r in ours
            if any(r in t for t in theirs)
        ]

    def quotients(self, above, below, value=seconds):
        """Of two cases, each with its system, round by round."""
        a, b = self.of(*above, value), self.of(*below, value)
        return [a[r] / max(b[r], 1e-9) for r in a if r in b]

    def group(self, name):
        return unique(x["case"] for x in self.lines if x["group"] == name)

    def rounds(self):
        """For each group how many rounds there are, and of which commits."""
        found = {}
        for x in self.lines:
            found.setdefault(x["group"], {})[x["run"], x["round"]] = x["commit"]
        return {group: (len(of), unique(of.values())) for group, of in found.items()}
