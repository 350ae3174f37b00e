#!/usr/bin/env python3
"""What programs that watch files see of commits, undos and restores that they did not make.

    scripts/watchers.py KVFS NODE_MODULES [--python PYTHON]

KVFS is the command. NODE_MODULES has chokidar, typescript and vite, and PYTHON has watchdog and
watchfiles; watchman is taken where it is installed. Each watcher looks at a folder of a mount of
its own while the same changes are made to it: a file is changed, one is made, one is removed, one
is renamed, and a directory with a file is made. They are made by plain calls, by the commit of
`kvfs run`, taken back by `kvfs undo`, and made once more by `kvfs restore` from a snapshot. The
table says which of the five changes each watcher has told within ten seconds (`-` for none), and
the versions. It is part of docs/fuse.md.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

CHANGES = ["changed", "new", "removed", "renamed", "folder"]

FILES = {"changed.ts": "export const a = 1;\n", "removed.ts": "export const r = 1;\n",
         "before.ts": "export const n = 1;\n", "index.ts": "export const i = 1;\n"}

CHANGED = ["changed.ts", "new.ts", "removed.ts", "before.ts", "renamed.ts", "folder"]

MAKE = """
cd "$1" || exit 1
echo 'export const a: number = "wrong";' > changed.ts
echo 'export const b: number = "wrong";' > new.ts
rm removed.ts
mv before.ts renamed.ts
mkdir folder && echo 'export const f: number = "wrong";' > folder/inside.ts
"""

# Names by which a watcher may tell of each change, when it is made and when it is taken back.
TOLD = {
    "changed": ["changed.ts"],
    "new": ["new.ts"],
    "removed": ["removed.ts"],
    "renamed": ["before.ts", "renamed.ts"],
    "folder": ["folder"],
}

INOTIFY = r"""
import ctypes, os, struct, sys
c = ctypes.CDLL(None, use_errno=True)
fd = c.inotify_init1(0)
assert c.inotify_add_watch(fd, sys.argv[1].encode(), 0xFFF & ~0x1 & ~0x20 & ~0x10) >= 0
NAMES = {2: "MODIFY", 4: "ATTRIB", 8: "CLOSE_WRITE", 64: "MOVED_FROM", 128: "MOVED_TO",
         256: "CREATE", 512: "DELETE"}
print("ready", flush=True)
while True:
    data = os.read(fd, 65536)
    while data:
        _, mask, _, n = struct.unpack_from("iIII", data)
        name = data[16 : 16 + n].rstrip(b"\0").decode()
        print(name or ".", "|".join(v for k, v in NAMES.items() if mask & k), flush=True)
        data = data[16 + n :]
"""

WATCHDOG = """
import sys, time
from watchdog.observers import Observer
from watchdog.events import FileSystemEventHandler
class All(FileSystemEventHandler):
    def on_any_event(self, e):
        if e.event_type in ("opened", "closed_no_write"): return
        print(e.event_type, e.src_path, getattr(e, "dest_path", ""), flush=True)
o = Observer(); o.schedule(All(), sys.argv[1], recursive=True); o.start()
print("ready", flush=True)
while True: time.sleep(60)
"""

WATCHFILES = """
import sys
from watchfiles import watch
first = True
print("ready", flush=True)
for changes in watch(sys.argv[1], step=50, rust_timeout=60000):
    for kind, path in changes: print(kind.name, path, flush=True)
"""

WATCHMAN = """
import json, subprocess, sys, time
def ask(*command):
    done = subprocess.run(["watchman", "-j"], input=json.dumps(command), text=True,
                          capture_output=True)
    return json.loads(done.stdout)
def changes():
    query = {"since": "n:all", "fields": ["name"], "expression": ["true"]}
    return ask("query", sys.argv[1], query)["files"]
ask("watch", sys.argv[1])
changes()
print("ready", flush=True)
while True:
    for name in changes(): print(name, flush=True)
    time.sleep(0.2)
"""

CHOKIDAR = """
const { createRequire } = require('module');
const load = createRequire(process.argv[3] + '/x.js');
const chokidar = load('chokidar');
chokidar.watch(process.argv[2], { ignoreInitial: true })
  .on('all', (event, path) => console.log(event, path))
  .on('ready', () => console.log('ready'));
"""

VITE = """
const { createRequire } = require('module');
const { pathToFileURL } = require('url');
const load = createRequire(process.argv[3] + '/x.js');
import(pathToFileURL(load.resolve('vite'))).then(async (vite) => {
  const server = await vite.createServer({ root: process.argv[2], logLevel: 'error',
    server: { port: 0, watch: {} }, configFile: false });
  server.watcher.on('all', (event, path) => console.log(event, path));
  server.watcher.on('ready', () => console.log('ready'));
});
"""


class Watcher:
    """A program that prints a line for what it sees."""

    def __init__(self, name, command, ready, folder):
        self.name, self.log = name, tempfile.NamedTemporaryFile("r+", suffix=".log")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        cwd=folder)
        until(lambda: ready in self.text() or self.process.poll() is not None, 60)
        if self.process.poll() is not None:
            raise RuntimeError(f"{name} ended: {self.text()}")
        time.sleep(1)  # Some say that they are ready before their last watch is set.

    def text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def mark(self):
        return len(self.text())

    def stop(self):
        self.process.terminate()
        self.process.wait()


def until(done, seconds):
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return done()


def seen(text, made):
    """The changes that a watcher tells in a text by their names."""
    return [change for change, names in TOLD.items() if any(name in text for name in names)]


def compiled(text, made):
    """The changes that are in what a compiler last read: it lists its files, and errors in them."""
    _, begun, last = text.rpartition("File change detected")
    if not begun or "Watching for file changes" not in last:
        return []
    lists = {name: f"/{name}" in last for name in ("new.ts", "removed.ts", "renamed.ts",
                                                   "before.ts", "folder/inside.ts")}
    right = {
        "changed": ("changed.ts(" in last) == made,
        "new": lists["new.ts"] == made,
        "removed": lists["removed.ts"] != made,
        "renamed": lists["renamed.ts"] == made and lists["before.ts"] != made,
        "folder": lists["folder/inside.ts"] == made,
    }
    return [change for change in CHANGES if right[change]]


def run(*command, **kwargs):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, **kwargs)
    if done.returncode:
        sys.exit(f"watchers: {' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def watchers(modules, python, folder):
    modules, script = str(modules), tempfile.mkdtemp()

    def written(name, text):
        path = pathlib.Path(script) / name
        path.write_text(text)
        return str(path)

    yield "inotify", [python, "-c", INOTIFY, folder], "ready"
    yield "watchdog", [python, "-c", WATCHDOG, folder], "ready"
    yield "watchfiles", [python, "-c", WATCHFILES, folder], "ready"
    yield "chokidar", ["node", written("chokidar.js", CHOKIDAR), folder, modules], "ready"
    yield "vite", ["node", written("vite.js", VITE), folder, modules], "ready"
    yield (
        "tsc --watch",
        ["node", f"{modules}/typescript/bin/tsc", "--watch", "--noEmit", "--preserveWatchOutput",
         "--strict", "--listFiles", "--project", folder],
        "Watching for file changes",
    )
    if shutil.which("watchman"):
        yield "watchman", [python, "-c", WATCHMAN, folder], "ready"


def versions(modules, python):
    found = {}
    for name in ("chokidar", "vite", "typescript"):
        found[name] = json.loads((modules / name / "package.json").read_text())["version"]
    for name in ("watchdog", "watchfiles"):
        code = f"import importlib.metadata as m; print(m.version('{name}'))"
        found[name] = run(python, "-c", code).strip()
    if shutil.which("watchman"):
        found["watchman"] = run("watchman", "--version").strip()
    found["Linux"] = run("uname", "-r").strip()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvfs", type=pathlib.Path)
    parser.add_argument("modules", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", help="one watcher")
    parser.add_argument("--tell", action="store_true", help="print what it says")
    options = parser.parse_args()
    kvfs = options.kvfs.resolve()
    names = [n for n, _, _ in watchers(options.modules, options.python, "")]
    print("| watcher | plain calls | commit | undo | restore |\n|---|---|---|---|---|")
    for name in names:
        if options.only and options.only != name:
            continue
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            mount = place / "m"
            mount.mkdir()
            run(kvfs, "create", place / "s.kvfs")
            run(kvfs, "mount", place / "s.kvfs", mount)
            try:
                print(row(kvfs, options, mount, name), flush=True)
            finally:
                run(kvfs, "umount", mount)
    found = versions(options.modules, options.python)
    print("\n" + ", ".join(f"{name} {version}" for name, version in found.items()))


def row(kvfs, options, mount, name):
    cells = []

    def fill(folder):
        folder.mkdir()
        for file, text in FILES.items():
            (folder / file).write_text(text)
        (folder / "tsconfig.json").write_text('{"include": ["./**/*.ts"]}\n')

    def watched(folder, change):
        command = {n: (c, r) for n, c, r in watchers(options.modules.resolve(), options.python,
                                                     str(folder))}[name]
        watcher = Watcher(name, command[0], command[1], folder)
        try:
            for made, step in change:
                before = watcher.mark()
                step()
                tell = compiled if name.startswith("tsc") else seen
                until(lambda: len(tell(watcher.text()[before:], made)) == len(CHANGES), 10)
                told = tell(watcher.text()[before:], made)
                if options.tell:
                    print(watcher.text()[before:], "--", file=sys.stderr)
                cells.append("all" if len(told) == len(CHANGES) else ", ".join(told) or "-")
        finally:
            watcher.stop()
            if name == "watchman":
                run("watchman", "watch-del", folder)

    plain, view = mount / "plain", mount / "view"
    fill(plain)
    watched(plain, [(True, lambda: run("sh", "-c", MAKE, "sh", plain))])
    fill(view)
    run("sync", "-f", mount)
    run(kvfs, "snapshot", "create", mount, "before")
    commits = lambda: run(kvfs, "run", mount, "--", "sh", "-c", MAKE, "sh", view)
    names = [f"view/{name}" for name in CHANGED]
    watched(view, [
        (True, commits),
        (False, lambda: run(kvfs, "undo", mount)),
        (True, commits),
        (False, lambda: run(kvfs, "restore", mount, "before", *names)),
    ])
    del cells[3]  # The second commit is there for the restore to have something to take back.
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
