#!/usr/bin/env python3
"""`kvfs defrag` on a mount: the load of VT-tree §4.4 through the kernel, cold scans before and
after, with a client at work.

  scripts/defrag_mount.py KVFS DIRECTORY [MIB]

KVFS: the program; DIRECTORY: on the file system to be measured; MIB: written (1024).

Files of 128 KiB are created, appended to (4 to 32 KiB), overwritten at random pages and deleted.
Then every file is read in the order of its number with nothing cached (three times, mounted anew
each time; the median), the store is defragmented while a client reads and overwrites pages, and
read again. One line of JSON."""

import json, os, random, statistics, subprocess, sys, threading, time

kvfs, directory, mib = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1024
store, mnt = os.path.join(directory, "defrag.kvfs"), os.path.join(directory, "mnt")
PAGE, r = 4096, random.Random(7)
noise = r.randbytes(1 << 20)


def run(*args):
    return subprocess.run([kvfs, *args], check=True, capture_output=True, text=True).stdout


def page():
    at = r.randrange(len(noise) - PAGE)
    return noise[at : at + PAGE]


def path(number):
    return os.path.join(mnt, f"{number % 64:02}", f"f{number}")


def load():
    live, made, written = {}, 0, 0
    for i in range(64):
        os.mkdir(os.path.join(mnt, f"{i:02}"))
    while written < mib << 20:
        kind = r.random()
        # As many bytes alive as half of what is written, in the end.
        if kind < 0.06 or not live:
            fd = os.open(path(made), os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"".join(page() for _ in range(32)))
            live[made], made, written = 32, made + 1, written + 32 * PAGE
        elif kind < 0.08:
            gone = r.choice(list(live))
            os.unlink(path(gone))
            del live[gone]
            continue
        else:
            number = r.choice(range(made))
            if number not in live:
                continue
            fd = os.open(path(number), os.O_WRONLY)
            pages = r.randint(1, 8)
            if kind < 0.3:
                os.pwrite(fd, b"".join(page() for _ in range(pages)), live[number] * PAGE)
                live[number] += pages
            else:
                for _ in range(pages):
                    os.pwrite(fd, page(), r.randrange(live[number]) * PAGE)
            written += pages * PAGE
        os.close(fd)
    return live, written


def mount():
    run("mount", store, mnt)


def scan(live):
    """Seconds and bytes of a cold scan."""
    run("umount", mnt)
    fd = os.open(store, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    mount()
    begun, total = time.monotonic(), 0
    for number in sorted(live):
        with open(path(number), "rb", buffering=0) as f:
            while data := f.read(1 << 20):
                total += len(data)
    return time.monotonic() - begun, total


def scans(live):
    each = [scan(live) for _ in range(3)]
    assert len({total for _, total in each}) == 1
    return [round(total / seconds / 1e6) for seconds, total in each]


def clients(live, stop, waits):
    mine = random.Random(8)
    numbers = sorted(live)
    while not stop.is_set():
        number, at = mine.choice(numbers), mine.randrange(16) * PAGE
        begun = time.monotonic()
        with open(path(number), "r+b", buffering=0) as f:
            if mine.random() < 0.5:
                f.seek(at)
                f.read(PAGE)
            else:
                os.pwrite(f.fileno(), noise[at : at + PAGE], at)
        waits.append(time.monotonic() - begun)
        stop.wait(0.001)


os.makedirs(mnt, exist_ok=True)
run("create", store)
mount()
try:
    begun = time.monotonic()
    live, written = load()
    os.sync()
    out = {
        "written_mib": written >> 20,
        "alive_mib": sum(live.values()) * PAGE >> 20,
        "load_s": round(time.monotonic() - begun, 1),
    }
    time.sleep(4)  # What idleness does by itself.
    used = lambda: os.stat(store).st_blocks * 512 >> 20
    out["scan_before_mb_s"] = scans(live)
    out["file_before_mib"] = used()
    stop, waits = threading.Event(), []
    client = threading.Thread(target=clients, args=(live, stop, waits))
    client.start()
    begun = time.monotonic()
    out["defrag"] = json.loads(
        run("--json", "defrag", "--fullest", "99", mnt).strip().splitlines()[-1]
    )
    out["defrag_s"] = round(time.monotonic() - begun, 2)
    stop.set()
    client.join()
    out["client"] = {
        "operations": len(waits),
        "worst_ms": round(max(waits) * 1e3, 1),
        "p99_ms": round(statistics.quantiles(waits, n=100)[98] * 1e3, 2),
    }
    time.sleep(4)
    out["scan_after_mb_s"] = scans(live)
    out["file_after_mib"] = used()
    print(json.dumps(out))
finally:
    run("umount", mnt)
    os.unlink(store)
    os.rmdir(mnt)
