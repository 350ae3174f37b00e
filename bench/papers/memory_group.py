"""A control group of limited memory, version 1 or 2, for this process and those that it begins."""

import contextlib
import os
import time
from pathlib import Path


def root():
    """Where groups of memory are made, and the file that has their limit."""
    for directory, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        directory = Path(directory)
        if (directory / limit).exists() or "memory" in controllers(directory):
            return directory, limit
    raise OSError("no control group of memory: neither version is mounted at /sys/fs/cgroup")


def controllers(directory):
    file = directory / "cgroup.subtree_control"
    return file.read_text().split() if file.exists() else []


@contextlib.contextmanager
def within(mib):
    """This process is in a group of `mib` MiB, and outside again after it; nothing is done for
    none. All that was begun inside has to end inside."""
    if not mib:
        yield
        return
    above, limit = root()
    group = above / f"kvfs-papers-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(mib << 20))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (above / "cgroup.procs").write_text(str(os.getpid()))
        remove(group)


def remove(group):
    """A process that has ended may be counted for a moment longer."""
    until = time.monotonic() + 10
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
