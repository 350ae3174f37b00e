"""A modelled disk: a block device as slow as a hard disk or a SATA SSD, and what it counted."""

import shutil
import subprocess
from pathlib import Path

PROFILES = ("hdd", "hdd-tb", "sata-ssd")
# No program may take longer, seconds.
LIMIT = 900


def sh(*words, **more):
    more.setdefault("timeout", LIMIT)
    words = [str(word) for word in words]
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def build(source, directory):
    """Compiles slowdisk.c of the directory `source`."""
    code = Path(source) / "slowdisk.c"
    if not code.exists():
        raise OSError(f"SLOWDISK names {source}, where there is no slowdisk.c")
    flags = sh("pkg-config", "--cflags", "--libs", "fuse3").split()
    program = directory / "slowdisk"
    sh("gcc", "-O2", "-Wall", "-o", program, code, *flags, "-lpthread", "-lm")
    return program


class Loop:
    """A loop device on a file, which looks to the kernel as the disk of a profile does."""

    def __init__(self, file, profile, direct):
        self.device = sh(
            "losetup", f"--direct-io={'on' if direct else 'off'}", "-f", "--show", file
        ).strip()
        self.block = Path("/sys/block") / Path(self.device).name
        try:
            if direct and (self.block / "loop/dio").read_text().strip() != "1":
                raise OSError("the loop device does no direct I/O")
            (self.block / "queue/read_ahead_kb").write_text("128")
            rotates = profile.startswith("hdd")
            (self.block / "queue/rotational").write_text(str(int(rotates)))
            (self.block / "queue/scheduler").write_text("mq-deadline" if rotates else "none")
        except OSError:
            self.close()
            raise

    def close(self):
        sh("losetup", "-d", self.device)


class Image:
    """The contents of a disk, a sparse file on a tmpfs."""

    def __init__(self, directory, size):
        self.path, self.size = directory / "image", size
        with open(self.path, "wb") as f:
            f.truncate(size)

    def stored(self):
        """Bytes of it that were ever written, and not given back."""
        return self.path.stat().st_blocks * 512

    def remove(self):
        self.path.unlink(missing_ok=True)


class SlowDisk:
    """An image on the model, and a loop device over it."""

    def __init__(self, program, image, profile, directory):
        self.directory = directory / "disk"
        self.directory.mkdir()
        self.loop = None
        size = ["--size", image.size]
        sh(program, "--profile", profile, *size, "--backing", image.path, self.directory)
        try:
            self.loop = Loop(self.directory / "disk", profile, direct=True)
        except OSError:
            self.close()
            raise

    def counters(self):
        # The model writes the file anew for each read of it, so two reads at once may tear it.
        for _ in range(100):
            words = (self.directory / "stats").read_text().split()
            if words and len(words) % 2 == 0 and "seeks" in words[::2]:
                return {name: float(value) for name, value in zip(words[::2], words[1::2])}
        raise OSError(f"{self.directory / 'stats'}: has no whole list of counters")

    def reset(self):
        (self.directory / "stats").write_text("0")

    def close(self):
        if self.loop:
            self.loop.close()
        # The loop device lets go of its file a moment after it was detached.
        for _ in range(50):
            done = subprocess.run(["umount", str(self.directory)], capture_output=True)
            if done.returncode == 0:
                break
            subprocess.run(["sleep", "0.1"])
        else:
            subprocess.run(["umount", "-l", str(self.directory)], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)
