"""What every case of scripts/bench_files.py shares: what a case is,
how quiet the machine is before it, and what it took."""

import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Callable, NamedTuple

from file_systems import sh


class Case(NamedTuple):
    name: str
    # Takes a file system; gives what is timed, or nothing where the case does not run. What is
    # timed may give seconds, ops and bytes that it measured better itself.
    prepare: Callable
    # Everything is unmounted and the caches are dropped before it, so it needs a file system that
    # keeps.
    cold: bool = False
    # What the preparation has left dirty is written before the case, since it is not the case's.
    settled: bool = False
    # An endless loop for each CPU runs during it.
    busy: bool = False


def busy_share(seconds):
    """How much of the machine others use, over so many seconds."""

    def read():
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]

    (all_before, idle_before), _ = read(), time.sleep(seconds)
    all_after, idle_after = read()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def wait_for_quiet(limit):
    """Waits until the machine is at most 10 % busy, `limit` seconds at most;
    gives how busy it is then."""
    until = time.monotonic() + limit
    while (busy := busy_share(0.1)) > 0.1 and time.monotonic() < until:
        time.sleep(0.4)
    return busy


@contextmanager
def endless_loops():
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())
    ]
    try:
        # The interpreters are past their start when they have used 50 ms each.
        started = [Path(f"/proc/{loop.pid}/stat") for loop in loops]
        while any(int(s.read_text().rsplit(") ", 1)[1].split()[11]) < 5 for s in started):
            time.sleep(0.01)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def client_cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def sync_all(directory):
    """What a case has left in memory is its own, too. A file system in user space is not told of a
    syncfs, but of the fsync of its directory; one that cannot do that has written less than it
    will."""
    with suppress(OSError, subprocess.SubprocessError):
        sh("sync", "-f", directory)
        of_directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(of_directory)
        finally:
            os.close(of_directory)


def measured(fs, run):
    """Runs what a case has prepared; what it took."""
    written, requests, daemon = fs.written(), fs.requests(), fs.daemon_cpu()
    client, begun = client_cpu(), time.perf_counter()
    own = run()
    seconds, client = time.perf_counter() - begun, client_cpu() - client
    daemon = fs.daemon_cpu() - daemon
    difference = {
        kind: n - requests.get(kind, 0)
        for kind, n in fs.requests().items()
        if n > requests.get(kind, 0)
    }
    result = {
        "ops": 1,
        "seconds": seconds,
        "client": client,
        "daemon": daemon,
        "requests": difference,
    }
    result.update(own if isinstance(own, dict) else {})
    if result.get("bytes"):
        sync_all(fs.dir)
        result["written"] = fs.written() - written
    return result


def run_case(case, fs, wait):
    """One case on one file system: what it took, or nothing where it does not run."""
    if case.cold and not fs.keeps:
        return None
    busy = wait_for_quiet(wait)
    run = case.prepare(fs)
    if run is None:
        return None
    try:
        if case.cold:
            fs.remount_cold()
        if case.settled:
            sh("sync")
        with endless_loops() if case.busy else nullcontext():
            return {"case": case.name, "system": fs.name, "busy": busy, **measured(fs, run)}
    finally:
        getattr(run, "after", lambda: None)()
