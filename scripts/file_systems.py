"""The file systems that scripts/bench_files.py compares: how each is made, mounted, unmounted,
and what its daemon has used."""

import json
import os
import select
import shutil
import subprocess
from pathlib import Path

# No program of a case may take longer, seconds: a system on which it does is left out of the case.
LIMIT = 120


def sh(*args, **more):
    more.setdefault("timeout", LIMIT)
    return subprocess.run(
        [str(a) for a in args], check=True, capture_output=True, text=True, **more
    ).stdout


def wait_until_mounted(path, process):
    """Waits for a daemon in the foreground: until its mount is there, or it has ended."""
    while not os.path.ismount(path):
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise OSError(f"{process.args[0]} does not mount: exit code {process.returncode}")


def written_by(pid):
    """Bytes that a process has made the device write."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["write_bytes"])


def cpu_seconds(pid):
    """User and system time of a process, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class FileSystem:
    """`dir` is where to work. A file system that `keeps` has what was written after an unmount."""

    keeps = True

    def __init__(self, name, work, size):
        self.name, self.work, self.size = name, work / name, size
        self.work.mkdir()
        self.dir = self.work / "mnt"
        self.dir.mkdir()

    def umount(self):
        sh("umount", self.dir)

    def remount_cold(self):
        """Nothing of it is in memory afterwards, and nothing of the others that is dirty."""
        self.umount()
        sh("sync")
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        self.mount()

    def requests(self):
        return {}

    def daemon_cpu(self):
        return 0.0

    def written(self):
        """Bytes that have gone to the device; nothing for a file system that has none."""
        return 0

    def remove(self):
        subprocess.run(["umount", "-l", str(self.dir)], capture_output=True)


class Loop(FileSystem):
    """A file system of the kernel on a loop device whose file lies where the store of KVFS does."""

    MAKE = {
        "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
        "btrfs": ["mkfs.btrfs", "-q", "-f"],
        "xfs": ["mkfs.xfs", "-q", "-f"],
    }

    def __init__(self, name, work, size):
        super().__init__(name, work, size)
        self.image = self.work / "image"
        sh("fallocate", "-l", size, self.image)
        sh(*self.MAKE[name], self.image)
        self.mount()

    def mount(self):
        sh("mount", "-o", "loop", self.image, self.dir)
        self.device = Path(sh("findmnt", "-no", "SOURCE", self.dir).strip()).name

    def written(self):
        return int(Path(f"/sys/block/{self.device}/stat").read_text().split()[6]) * 512


class Kvfs(FileSystem):
    def __init__(self, name, work, size, program, options):
        super().__init__(name, work, size)
        self.program, self.options, self.store = program, options, self.work / "store.kvfs"
        sh(program, "create", self.store)
        self.mount()

    def mount(self):
        said = json.loads(
            sh(
                self.program,
                "mount",
                "--json",
                "-o",
                self.options,
                self.store,
                self.dir,
                stdin=subprocess.DEVNULL,
            )
        )
        self.pid = said["pid"]

    def umount(self):
        sh(self.program, "umount", self.dir)

    def requests(self):
        return json.loads(sh(self.program, "stat", self.dir, "--json"))["requests"]

    def daemon_cpu(self):
        return cpu_seconds(self.pid)

    def written(self):
        return written_by(self.pid)


class Bindfs(FileSystem):
    """Passes everything through to an ext4 of its own:
    what a file system in user space costs that does nothing itself."""

    def __init__(self, name, work, size):
        super().__init__(name, work, size)
        self.below = Loop("ext4", self.work, size)
        self.mount(below=False)

    def mount(self, below=True):
        if below:
            self.below.mount()
        sh("bindfs", "--multithreaded", self.below.dir, self.dir)
        self.pid = int(sh("pgrep", "-nx", "bindfs"))

    def umount(self):
        daemon = os.pidfd_open(self.pid)
        super().umount()
        # It uses what is below until it has ended.
        select.select([daemon], [], [])
        os.close(daemon)
        self.below.umount()

    def daemon_cpu(self):
        return cpu_seconds(self.pid)

    def written(self):
        return self.below.written()

    def remove(self):
        super().remove()
        self.below.remove()


def family(pid):
    """A process and all that it has started, by their ids."""
    below = [
        int(child)
        for tasks in Path(f"/proc/{pid}/task").glob("*/children")
        for child in tasks.read_text().split()
    ]
    return [pid, *(one for child in below for one in family(child))]


class Foreground(FileSystem):
    """A peer whose daemon stays a child of ours. `start` gives its command line."""

    def mount(self):
        with open(self.work / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in self.start()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.work,
            )
        wait_until_mounted(self.dir, self.process)

    def umount(self):
        super().umount()
        self.process.wait(LIMIT)

    def daemon_cpu(self):
        return sum(cpu_seconds(pid) for pid in family(self.process.pid))

    def written(self):
        return sum(written_by(pid) for pid in family(self.process.pid))

    def remove(self):
        super().remove()
        if hasattr(self, "process"):
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Juicefs(Foreground):
    """Content in files of the host, names and attributes in Badger,
    which is faster than its SQLite."""

    def __init__(self, name, work, size, program):
        super().__init__(name, work, size)
        self.program, self.meta = program, f"badger://{self.work}/meta"
        # What is removed is gone, as elsewhere.
        sh(
            program,
            "format",
            "--storage",
            "file",
            "--bucket",
            f"{self.work}/blocks/",
            "--trash-days",
            "0",
            self.meta,
            "bench",
        )
        self.mount()

    def start(self):
        return [
            self.program,
            "mount",
            "--no-usage-report",
            "--cache-dir",
            self.work / "cache",
            self.meta,
            self.dir,
        ]


class Agentfs(Foreground):
    """All of it in one SQLite file, written by Turso's database."""

    def __init__(self, name, work, size, program):
        super().__init__(name, work, size)
        self.program = program
        sh(program, "init", "bench", cwd=self.work)
        self.mount()

    def start(self):
        return [
            self.program,
            "mount",
            "--foreground",
            self.work / ".agentfs" / "bench.db",
            self.dir,
        ]


class Memory(FileSystem):
    """A file system in memory behind the transport of KVFS: the ceiling."""

    keeps = False

    def __init__(self, name, work, size, program, environment):
        super().__init__(name, work, size)
        environment = dict(os.environ, **environment)
        self.process = subprocess.Popen(
            [program, str(self.dir)], stdout=subprocess.PIPE, text=True, env=environment
        )
        if self.process.stdout.readline() != "mounted\n":
            raise OSError(f"{program} does not mount")

    def daemon_cpu(self):
        return cpu_seconds(self.process.pid)

    def remove(self):
        super().remove()
        self.process.wait()


OPTIONS = {
    "kvfs": "transport=device,allow_other",
    "kvfs-uring": "transport=uring,allow_other",
    "kvfs-root": "transport=uring,nodefault_permissions",
    "kvfs-writeback": "writeback,allow_other",
}
MEMORY = {
    "memory": {"KVFS_TRANSPORT": "device"},
    "memory-uring": {"KVFS_TRANSPORT": "uring"},
    "memory-root": {"KVFS_TRANSPORT": "uring", "KVFS_PERMISSIONS": "none"},
}


PEERS = {"juicefs": Juicefs, "agentfs": Agentfs}


def installed(name):
    """A program on the path, or in the directory for programs
    that nothing but measurements needs."""
    own = Path.home() / ".cache/kvfs-tools" / name
    return shutil.which(name) or (str(own) if own.exists() else None)


def make(name, work, size, kvfs, memory):
    """The system of this name; an error says why it cannot be had here."""
    if name in Loop.MAKE:
        return Loop(name, work, size)
    if name == "bindfs":
        return Bindfs(name, work, size)
    if name in PEERS:
        program = installed(name)
        if not program:
            raise OSError("not installed")
        return PEERS[name](name, work, size, program)
    if name in MEMORY:
        if not memory:
            raise OSError("give --memory, the program memory_mount of bench/measure")
        return Memory(name, work, size, memory, MEMORY[name])
    return Kvfs(name, work, size, kvfs, OPTIONS[name])
