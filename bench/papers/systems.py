"""The file systems that are compared: how each is made on a device, mounted and unmounted."""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

from disk import sh

SYSTEMS = ("kvfs", "ext4", "btrfs", "xfs")
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}
libc = ctypes.CDLL(None, use_errno=True)


def processor_seconds(pid):
    """User and system time of this process with its children, and of a daemon."""
    client = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if not pid:
        return client, 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return client, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Kernel:
    """ext4, btrfs or xfs with the options that mkfs and mount have by default."""

    pid = None

    def __init__(self, name, directory):
        self.name, self.dir, self.mounted = name, directory / "mnt", False
        self.dir.mkdir()

    def make(self, device):
        sh(*MAKE[self.name], device)

    def mount(self, device):
        sh("mount", "-t", self.name, device, self.dir)
        self.mounted = True

    def sync(self):
        """Waits until the whole file system is durable."""
        fd = os.open(self.dir, os.O_RDONLY)
        try:
            if libc.syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)

    def umount(self):
        sh("umount", self.dir)
        self.mounted = False

    def remove(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.dir)], capture_output=True)
            self.mounted = False
        self.dir.rmdir()


class Kvfs(Kernel):
    def __init__(self, name, directory, program, options):
        super().__init__(name, directory)
        self.program, self.options, self.pid, self.socket = program, options, None, None

    def make(self, device):
        sh(self.program, "create", device)

    def mount(self, device):
        words = [self.program, "mount", "--json", "-o", self.options, device, self.dir]
        said = json.loads(sh(*words, stdin=subprocess.DEVNULL))
        self.pid, self.socket, self.mounted = said["pid"], said["socket"], True

    def sync(self):
        """`syncfs` does not reach a FUSE daemon; `SAVE` on its socket promises the same."""
        super().sync()
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.socket)
            s.sendall(b"SAVE\r\n")
            if (said := s.recv(100)) != b"+OK\r\n":
                raise OSError(f"SAVE: {said.decode(errors='replace')}")

    def umount(self):
        sh(self.program, "umount", self.dir)
        self.mounted, self.pid = False, None

    def defrag(self):
        """Defragments, and waits until that has ended."""
        return sh(self.program, "defrag", self.dir)

    def remove(self):
        pid, self.pid = self.pid, None
        super().remove()
        if pid:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break
                time.sleep(1)


def make(name, directory, program, options):
    return Kvfs(name, directory, program, options) if name == "kvfs" else Kernel(name, directory)
