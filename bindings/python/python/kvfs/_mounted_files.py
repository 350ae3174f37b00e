"""The files of a store that is mounted: those below its mount point, or in one of its views."""

from __future__ import annotations

import ctypes
import io
import os
import posixpath
from collections.abc import Iterator
from typing import Any, Callable

from ._files import DirEntry, FileSystem, Path, encoded, joined


class MountedFiles(FileSystem):
    """The files below a directory of a mount.

    ``command`` runs one of the commands of the socket that work on whole trees, with paths from the
    root of the file system. Paths cannot lead out of the directory by ``..``; a symbolic link that
    begins with a slash leads where it leads on this machine.
    """

    def __init__(self, directory: str, command: Callable[..., Any]) -> None:
        self._directory = os.fsencode(directory)
        self._command = command

    def _at(self, path: Path) -> bytes:
        inside = _inside(path)
        slash = b"/" if encoded(path).endswith(b"/") and inside != b"/" else b""
        return self._directory + inside + slash

    def _open_raw(
        self,
        path: Path,
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
        permissions: int,
    ) -> io.RawIOBase:
        flags = os.O_CLOEXEC | (os.O_RDWR if read and write else os.O_WRONLY if write else 0)
        for wanted, flag in (
            (create, os.O_CREAT),
            (exclusive, os.O_EXCL),
            (truncate, os.O_TRUNC),
            (append, os.O_APPEND),
        ):
            flags |= flag if wanted else 0
        mode = ("a" if append else "w" if write else "r") + ("+" if read and write else "")
        at = self._at(path)
        return _Descriptor(at, mode, opener=lambda name, _: os.open(name, flags, permissions))

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._at(path), follow_symlinks=follow_symlinks)

    def scandir(self, path: Path = "/") -> Iterator[DirEntry]:
        found = []
        with os.scandir(self._at(path)) as entries:
            for entry in entries:
                # The directory of the views is no file of the store; and a name may have gone.
                if _inside(path) == b"/" and entry.name == b".kvfs":
                    continue
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue

        def each() -> Iterator[DirEntry]:
            for name, stat in sorted(found, key=lambda entry: entry[0]):
                text = os.fsdecode(name)
                yield DirEntry(text, joined(path, text), stat)

        return each()

    def mkdir(self, path: Path, mode: int = 0o755) -> None:
        os.mkdir(self._at(path), mode)

    def rmdir(self, path: Path) -> None:
        os.rmdir(self._at(path))

    def remove(self, path: Path) -> None:
        os.remove(self._at(path))

    def rmtree(self, path: Path) -> None:
        # For its errors, and the names on the way are not followed by the command.
        os.lstat(self._at(path))
        self._command(b"RMTREE", _inside(path))

    def rename(self, source: Path, target: Path, *, replace: bool = True) -> None:
        if replace:
            os.rename(self._at(source), self._at(target))
            return
        # The only call that never replaces what another has put there in between.
        libc = ctypes.CDLL(None, use_errno=True)
        here, no_replace = -100, 1
        if libc.renameat2(here, self._at(source), here, self._at(target), no_replace) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fsdecode(encoded(source)))

    def copy(self, source: Path, target: Path) -> None:
        os.lstat(self._at(source))
        if os.path.lexists(self._at(target)):
            raise FileExistsError(17, "the name exists already", os.fsdecode(encoded(target)))
        self._command(b"CLONETREE", _inside(source), _inside(target))

    def link(self, source: Path, target: Path) -> None:
        os.link(self._at(source), self._at(target), follow_symlinks=False)

    def symlink(self, target: Path, path: Path) -> None:
        os.symlink(encoded(target), self._at(path))

    def readlink(self, path: Path) -> str:
        return os.fsdecode(os.readlink(self._at(path)))

    def chmod(self, path: Path, mode: int) -> None:
        os.chmod(self._at(path), mode)

    def chown(self, path: Path, uid: int | None = None, gid: int | None = None) -> None:
        os.chown(self._at(path), -1 if uid is None else uid, -1 if gid is None else gid)

    def utime(self, path: Path, ns: tuple[int, int] | None = None) -> None:
        os.utime(self._at(path), ns=ns) if ns else os.utime(self._at(path))

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(self._at(path), size)

    def getxattr(self, path: Path, name: str | bytes) -> bytes:
        return os.getxattr(self._at(path), name)

    def setxattr(self, path: Path, name: str | bytes, value: bytes) -> None:
        os.setxattr(self._at(path), name, value)

    def removexattr(self, path: Path, name: str | bytes) -> None:
        os.removexattr(self._at(path), name)

    def listxattr(self, path: Path) -> list[str]:
        return os.listxattr(self._at(path))

    def sync(self) -> None:
        self._command(b"SYNC")


class _Descriptor(io.FileIO):
    """An open file with the ``sync`` that one of an embedded store has."""

    def sync(self) -> None:
        """What was written is on disk when this returns."""
        os.fsync(self.fileno())

    def stat(self) -> os.stat_result:
        """The attributes of the file."""
        return os.fstat(self.fileno())


def _inside(path: Path) -> bytes:
    return posixpath.normpath(b"/" + encoded(path).lstrip(b"/"))
