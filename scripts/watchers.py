#!/usr/bin/env python3
"""Which events programs that watch files get of a commit, an undo and a rollback on a mount.

    scripts/watchers.py --kvfs target/release/kvfs [--modules DIR] [--tools NAME,NAME] [--rounds 3]

For each tool a store is mounted, the tool watches a directory of it, and then `kvfs run` changes
files there as an agent does: one is written, one replaced by a rename, one made, one removed, one
renamed, and a directory made with a file in it; `kvfs undo` takes that back, and a rollback brings
it about again. The same is done by a shell in a directory beside the store, where the tool sees a
file system of the kernel's own. The table says for each change in how many rounds the tool told it.

The tools: `inotify` (inotifywait-like, by ctypes), `watchdog` (PyPI), `chokidar` and `tsc` (npm, in
DIR/node_modules), `watchman`. One that is not there is said to be missing.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CHANGES = """
printf 'export const a = 2;\\n' > changed.ts
printf 'export const b = 2;\\n' > tmp && mv tmp replaced.ts
printf 'export const c = 2;\\n' > made.ts
rm removed.ts
mv old.ts new.ts
mkdir fresh && printf 'export const d = 2;\\n' > fresh/inside.ts
"""
WHAT = ["changed.ts", "replaced.ts", "made.ts", "removed.ts", "old.ts", "new.ts", "fresh",
        "fresh/inside.ts"]
BEFORE = ["changed.ts", "replaced.ts", "removed.ts", "old.ts"]
# After a change a tool is listened to until it has been silent for so long, seconds.
SILENCE = 2.5


class Told:
    """The names that a tool has told since the last look."""

    def __init__(self):
        self.lock = threading.Lock()
        self.events, self.last = [], time.monotonic()

    def add(self, name, event):
        with self.lock:
            self.events.append((name, event))
            self.last = time.monotonic()

    def taken(self):
        begun = time.monotonic()
        while time.monotonic() - max(self.last, begun) < SILENCE:
            time.sleep(0.05)
        with self.lock:
            events, self.events = self.events, []
        return events


def lines_of(process, told, read):
    """Has a thread read what a process prints."""

    def run():
        for line in process.stdout:
            for name, event in read(line.rstrip("\n")):
                told.add(name, event)

    threading.Thread(target=run, daemon=True).start()


@contextlib.contextmanager
def inotify(directory, told, _args):
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    watched = {}
    names = {0x2: "MODIFY", 0x4: "ATTRIB", 0x8: "CLOSE_WRITE", 0x40: "MOVED_FROM",
             0x80: "MOVED_TO", 0x100: "CREATE", 0x200: "DELETE", 0x400: "DELETE_SELF"}

    def watch(path):
        number = libc.inotify_add_watch(fd, os.fsencode(path), 0xFFF & ~0x31)
        watched[number] = path
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                watch(Path(entry.path))

    def run():
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except OSError:
                return
            while data:
                number, mask, _, length = struct.unpack_from("iIII", data)
                name = data[16 : 16 + length].rstrip(b"\0").decode()
                data = data[16 + length :]
                at = watched.get(number)
                if at is None:
                    continue
                path = at / name if name else at
                for bit, event in names.items():
                    if mask & bit:
                        told.add(os.path.relpath(path, directory), event)
                if mask & 0x40000100 == 0x40000100:
                    with contextlib.suppress(OSError):
                        watch(path)

    watch(directory)
    threading.Thread(target=run, daemon=True).start()
    yield
    os.close(fd)


WATCHDOG = """
import sys, time
from watchdog.events import FileSystemEventHandler
from watchdog.observers import Observer
class Handler(FileSystemEventHandler):
    def on_any_event(self, event):
        print(event.event_type, event.src_path, event.dest_path or "", sep="\\t", flush=True)
observer = Observer()
observer.schedule(Handler(), sys.argv[1], recursive=True)
observer.start()
print("ready", flush=True)
time.sleep(3600)
"""


def started(command, directory, told, read, ready):
    """A tool that prints what it is told, once it says that it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, cwd=directory)
    for line in process.stdout:
        if ready in line:
            break
    lines_of(process, told, read)
    return process


def ended(process):
    process.kill()
    process.wait()


@contextlib.contextmanager
def watchdog(directory, told, args):
    def read(line):
        event, *paths = line.split("\t")
        if event not in ("opened", "closed_no_write"):
            yield from ((os.path.relpath(p, directory), event) for p in paths if p)

    command = [args.python, "-c", WATCHDOG, str(directory)]
    process = started(command, directory, told, read, "ready")
    yield
    ended(process)


CHOKIDAR = """
import { watch } from "chokidar";
const watcher = watch(process.argv[2], { ignoreInitial: true });
watcher.on("all", (event, path) => console.log(event + "\\t" + path));
watcher.on("ready", () => console.log("ready"));
"""


@contextlib.contextmanager
def chokidar(directory, told, args):
    script = args.modules / "watchers-chokidar.mjs"
    script.write_text(CHOKIDAR)

    def read(line):
        event, _, path = line.partition("\t")
        yield os.path.relpath(path or directory, directory), event

    process = started(["node", script, str(directory)], directory, told, read, "ready")
    yield
    ended(process)
    script.unlink()


@contextlib.contextmanager
def tsc(directory, told, args):
    """It compiles: what it has seen is what it has written."""
    out = Path(tempfile.mkdtemp(prefix="kvfs-tsc"))

    def seen():
        files = [p for p in out.rglob("*.js")]
        return {str(p.relative_to(out).with_suffix(".ts")): p.read_bytes() for p in files}

    command = ["node", args.modules / "node_modules/typescript/bin/tsc", "--watch",
               "--preserveWatchOutput", "--listEmittedFiles", "--rootDir", str(directory),
               "--outDir", str(out), "--project", str(directory)]

    def read(line):
        if line.startswith("TSFILE: "):
            path = Path(line.removeprefix("TSFILE: ")).relative_to(out).with_suffix(".ts")
            yield str(path), "compiled"
        elif "Starting incremental" in line:
            yield "", "compiles"

    process = started(command, directory, told, read, "Watching for file changes")
    yield
    ended(process)
    seen()
    shutil.rmtree(out)


@contextlib.contextmanager
def watchman(directory, told, args):
    env = {**os.environ, "LD_LIBRARY_PATH": args.watchman_libraries or ""}
    state = tempfile.mkdtemp(prefix="kvfs-watchman")
    base = [args.watchman, f"--sockname={state}/sock", f"--statefile={state}/state",
            f"--logfile={state}/log", f"--pidfile={state}/pid"]
    subprocess.run([*base, "watch", str(directory)], env=env, check=True, capture_output=True)
    process = subprocess.Popen([*base, "--persistent", "--server-encoding=json", "-j"],
                               env=env, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdin.write(json.dumps(["subscribe", str(directory), "all", {
        "fields": ["name", "exists", "new"]}]) + "\n")
    process.stdin.flush()

    def read(line):
        with contextlib.suppress(ValueError):
            for file in json.loads(line).get("files", []):
                yield file["name"], "exists" if file["exists"] else "gone"

    lines_of(process, told, read)
    told.taken()
    yield
    ended(process)
    subprocess.run([*base, "shutdown-server"], env=env, capture_output=True)


def fill(directory):
    directory.mkdir()
    for name in BEFORE:
        (directory / name).write_text("export const x = 1;\n")
    (directory / "tsconfig.json").write_text('{"compilerOptions": {"target": "es2022"}}\n')


def names(events, undone):
    """The names of which a tool was told something that says what became of them."""
    told = {}
    for name, event in events:
        told.setdefault(name, []).append(event)
    return told


def of_mount(tool, args):
    with tempfile.TemporaryDirectory(prefix="kvfs-watchers") as scratch:
        scratch = Path(scratch)
        store, mount = scratch / "s.kvfs", scratch / "mnt"
        mount.mkdir()
        run = lambda *words, **kw: subprocess.run([args.kvfs, *map(str, words)], check=True,
                                                  capture_output=True, **kw)
        run("create", store)
        run("mount", store, mount)
        try:
            fill(mount / "d")
            run("snapshot", "create", mount, "before")
            told = Told()
            with tool(mount / "d", told, args):
                told.taken()
                steps = {}
                run("run", mount, "--", "sh", "-ec", f"cd {mount}/d\n{CHANGES}")
                steps["commit"] = names(told.taken(), False)
                run("undo", mount)
                steps["undo"] = names(told.taken(), True)
                run("run", mount, "--", "sh", "-ec", f"cd {mount}/d\n{CHANGES}")
                told.taken()
                run("snapshot", "rollback", mount, "before")
                steps["rollback"] = names(told.taken(), True)
            return steps
        finally:
            subprocess.run([args.kvfs, "umount", "--force", str(mount)], capture_output=True)


def of_kernel(tool, args):
    with tempfile.TemporaryDirectory(prefix="kvfs-watchers", dir=args.beside) as scratch:
        directory = Path(scratch) / "d"
        fill(directory)
        told = Told()
        with tool(directory, told, args):
            told.taken()
            subprocess.run(["sh", "-ec", CHANGES], cwd=directory, check=True)
            return {"by a shell": names(told.taken(), False)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvfs", required=True, type=lambda p: str(Path(p).resolve()))
    parser.add_argument("--modules", type=lambda p: Path(p).resolve(), default=Path.cwd())
    parser.add_argument("--python", default=sys.executable, help="one that has watchdog")
    parser.add_argument("--watchman", default=shutil.which("watchman"))
    parser.add_argument("--watchman-libraries", help="where its shared libraries are")
    parser.add_argument("--beside", help="a directory of the kernel's own file system")
    parser.add_argument("--tools", default="inotify,watchdog,chokidar,tsc,watchman")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", action="store_true", help="the events themselves, too")
    args = parser.parse_args()
    all_tools = {"inotify": inotify, "watchdog": watchdog, "chokidar": chokidar, "tsc": tsc,
                 "watchman": watchman}
    missing = {
        "watchdog": args.python == sys.executable
        and importlib.util.find_spec("watchdog") is None,
        "chokidar": not (args.modules / "node_modules/chokidar").is_dir(),
        "tsc": not (args.modules / "node_modules/typescript").is_dir(),
        "watchman": args.watchman is None,
    }
    print("| tool | change | " + " | ".join(WHAT) + " |")
    print("|---|---|" + "---|" * len(WHAT))
    for name in args.tools.split(","):
        if missing.get(name):
            print(f"| {name} | is not installed |" + " |" * len(WHAT))
            continue
        counted, shown = {}, {}
        for _ in range(args.rounds):
            for of in (of_kernel, of_mount):
                for step, told in of(all_tools[name], args).items():
                    counts = counted.setdefault(step, dict.fromkeys(WHAT, 0))
                    for what in WHAT:
                        counts[what] += what in told
                    shown[step] = told
        for step, counts in counted.items():
            cells = [f"{count} of {args.rounds}" for count in counts.values()]
            print(f"| {name} | {step} | " + " | ".join(cells) + " |", flush=True)
            if args.events:
                for what, events in sorted(shown[step].items()):
                    print(f"    {what or '.'}: {', '.join(events)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
