#!/usr/bin/env python3
"""What a small durable write costs on this host, by the way it is done:
the measurement behind docs/decisions/001."""

import mmap
import os
import statistics
import sys
import tempfile
import time

SIZE, STEP, COUNT = 8 << 20, 4096, 500


def prepared(path, how):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if how == "written":
        os.write(fd, b"x" * SIZE)
    elif how == "allocated":
        os.posix_fallocate(fd, 0, SIZE)
    os.fsync(fd)
    return fd


def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as d:
        page = mmap.mmap(-1, STEP)
        ways = []
        for how in ("written", "allocated", "empty"):
            path = f"{d}/{how}"
            fd = prepared(path, how)
            ways.append((f"buffered, {how} + fdatasync", fd))
            ways.append(
                (
                    f"direct,   {how} + fdatasync",
                    os.open(prepared(path + "-d", how) and path + "-d", os.O_RDWR | os.O_DIRECT),
                )
            )
        times = {name: [] for name, _ in ways}
        for i in range(COUNT):  # interleaved, so that a noisy neighbour meets all of them
            for name, fd in ways:
                begin = time.perf_counter()
                os.pwrite(fd, page, i * STEP)
                os.fdatasync(fd)
                times[name].append(time.perf_counter() - begin)
        for name, t in times.items():
            t.sort()
            print(
                f"{name:<40} median {statistics.median(t) * 1e6:7.0f} µs   best tenth "
                f"{t[len(t) // 10] * 1e6:7.0f} µs"
            )


if __name__ == "__main__":
    main()
