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

SYSTEMS = ("kvfs", "kvfs-uring", "ext4", "btrfs", "xfs")
# How requests reach the daemon.
TRANSPORTS = {"kvfs": "device", "kvfs-uring": "uring"}
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}
# Bytes of an inode, as mkfs makes them by default.
EXT4_INODE = 256
libc = ctypes.CDLL(None, use_errno=True)


def processor_seconds(pid):
    """User and system time of this process with its children, and of a daemon."""
    client = sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    if not pid:
        return client, 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return client, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Kernel:
    """ext4, btrfs or xfs with the options that mkfs and mount have by default."""

    pid = device = None

    def __init__(self, name, directory):
        self.name, self.dir, self.mounted = name, directory / "mnt", False
        self.dir.mkdir()

    def make(self, device):
        sh(*MAKE[self.name], device)

    def mount(self, device):
        sh("mount", "-t", self.name, device, self.dir)
        self.mounted, self.device = True, device

    def sync(self):
        """Waits until the whole file system is durable."""
        fd = os.open(self.dir, os.O_RDONLY)
        try:
            if libc.syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)

    def names_bytes(self):
        """How much of the device is in use while no file has contents: names and inodes. What mkfs
        laid out is in it; the inodes of ext4, which lie in tables made by mkfs, count when they are
        in use."""
        self.sync()
        if self.name == "btrfs":
            (device,) = Path("/sys/fs/btrfs").glob(f"*/devices/{Path(self.device).name}")
            # Both copies, where there are two.
            return int((device.parent.parent / "allocation/metadata/disk_used").read_text())
        now = os.statvfs(self.dir)
        inodes = (now.f_files - now.f_ffree) * EXT4_INODE if self.name == "ext4" else 0
        return (now.f_blocks - now.f_bfree) * now.f_frsize + inodes

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

    def names_bytes(self):
        """What the dictionaries of the file system take in runs, with their index nodes."""
        self.sync()
        sh(self.program, "compact", self.dir)
        dictionaries = json.loads(sh(self.program, "stat", "--json", self.dir))["dictionaries"]
        return sum(
            run["bytes"]
            for d in dictionaries
            if d["reserved"]
            for level in d["levels"]
            for run in level
        )

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
    if name not in TRANSPORTS:
        return Kernel(name, directory)
    return Kvfs(name, directory, program, f"{options},transport={TRANSPORTS[name]}")
