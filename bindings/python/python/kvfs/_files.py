"""Files by paths: what a file system can do, embedded or mounted.

A path is a ``str``, ``bytes`` or ``os.PathLike``, from the root of the store, with or without a
slash in front. As everywhere in Python, bytes that are no UTF-8 are surrogates in a ``str``.
"""

from __future__ import annotations

import io
import os
import stat as _stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

_BUFFER = 256 << 10


def encoded(path: Path) -> bytes:
    """The bytes of a path."""
    path = os.fsencode(path)
    if b"\0" in path:
        raise ValueError(f"a path has no NUL: {path!r}")
    return path


def joined(directory: Path, name: str) -> str:
    """The path of a name in a directory."""
    return os.fsdecode(encoded(directory)).rstrip("/") + "/" + name


@dataclass(frozen=True)
class DirEntry:
    """An entry of a directory."""

    name: str
    path: str
    stat: os.stat_result

    def is_dir(self) -> bool:
        """Whether it is a directory; a symbolic link is none."""
        return _stat.S_ISDIR(self.stat.st_mode)

    def is_file(self) -> bool:
        """Whether it is a regular file; a symbolic link is none."""
        return _stat.S_ISREG(self.stat.st_mode)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return _stat.S_ISLNK(self.stat.st_mode)


class FileSystem(ABC):
    """The files of a store, a transaction or a snapshot."""

    # --- what is done differently, embedded and mounted

    @abstractmethod
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
    ) -> io.RawIOBase: ...

    @abstractmethod
    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes of what is at a path."""

    @abstractmethod
    def scandir(self, path: Path = "/") -> Iterator[DirEntry]:
        """The entries of a directory, in the order of their names."""

    @abstractmethod
    def mkdir(self, path: Path, mode: int = 0o755) -> None:
        """Makes a directory."""

    @abstractmethod
    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Removes a file, or a symbolic link itself."""

    @abstractmethod
    def rmtree(self, path: Path) -> None:
        """Removes whatever is at a path, with everything in it, as one change."""

    @abstractmethod
    def rename(self, source: Path, target: Path, *, replace: bool = True) -> None:
        """Gives a file or directory another path. ``replace``: what is there goes."""

    @abstractmethod
    def copy(self, source: Path, target: Path) -> None:
        """Copies a file, or a directory with everything in it, by reference: both share the data,
        and it takes the time that the names take. Nothing may be at ``target``."""

    @abstractmethod
    def link(self, source: Path, target: Path) -> None:
        """Gives a file another name."""

    @abstractmethod
    def symlink(self, target: Path, path: Path) -> None:
        """Makes a symbolic link at ``path`` that leads to ``target``."""

    @abstractmethod
    def readlink(self, path: Path) -> str:
        """Where a symbolic link leads."""

    @abstractmethod
    def chmod(self, path: Path, mode: int) -> None:
        """Sets the permissions."""

    @abstractmethod
    def chown(self, path: Path, uid: int | None = None, gid: int | None = None) -> None:
        """Sets owner and group; ``None`` leaves them."""

    @abstractmethod
    def utime(self, path: Path, ns: tuple[int, int] | None = None) -> None:
        """Sets the times of the last access and change, nanoseconds since 1970; ``None``: now."""

    @abstractmethod
    def truncate(self, path: Path, size: int) -> None:
        """Cuts a file, or extends it by a hole."""

    @abstractmethod
    def getxattr(self, path: Path, name: str | bytes) -> bytes:
        """The value of an extended attribute."""

    @abstractmethod
    def setxattr(self, path: Path, name: str | bytes, value: bytes) -> None:
        """Sets an extended attribute."""

    @abstractmethod
    def removexattr(self, path: Path, name: str | bytes) -> None:
        """Removes an extended attribute."""

    @abstractmethod
    def listxattr(self, path: Path) -> list[str]:
        """The names of the extended attributes."""

    @abstractmethod
    def sync(self) -> None:
        """Waits until everything that was written before is on disk."""

    # --- what follows from that

    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file as the ``open`` of Python does; ``permissions`` are those of a new one.

        The raw file (``file.raw``, or ``file`` itself without buffering) has ``sync()`` in place of
        a descriptor for ``os.fsync``.
        """
        kinds, extras = set(mode) & set("rwax"), set(mode) - set("rwax")
        if len(kinds) != 1 or not extras <= set("bt+") or len(set(mode)) != len(mode):
            raise ValueError(f"invalid mode: {mode!r}")
        binary, updating = "b" in extras, "+" in extras
        if binary and "t" in extras:
            raise ValueError("a file is opened in binary or in text mode, not both")
        if binary and not (encoding is errors is newline is None):
            raise ValueError("a binary file has no encoding, errors or newline")
        if buffering == 0 and not binary:
            raise ValueError("a text file cannot be without a buffer")
        kind = kinds.pop()
        reads, writes = kind == "r" or updating, kind != "r" or updating
        raw = self._open_raw(
            path, reads, writes, kind != "r", kind == "x", kind == "w", kind == "a", permissions
        )
        try:
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else _BUFFER
            buffered: Any
            if reads and writes:
                buffered = io.BufferedRandom(raw, size)
            elif writes:
                buffered = io.BufferedWriter(raw, size)
            else:
                buffered = io.BufferedReader(raw, size)
            if binary:
                return buffered
            text = io.TextIOWrapper(
                buffered,
                encoding or "utf-8",
                errors,
                newline,
                line_buffering=buffering == 1,
            )
            text.mode = mode  # type: ignore[misc]
            return text
        except BaseException:
            raw.close()
            raise

    def lstat(self, path: Path) -> os.stat_result:
        """The attributes of what is at a path; a symbolic link is not followed."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: Path) -> bool:
        """Whether a path leads to something."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _has_type(self, path: Path, of: Any, follow: bool = True) -> bool:
        try:
            return bool(of(self.stat(path, follow_symlinks=follow).st_mode))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def isdir(self, path: Path) -> bool:
        """Whether a path leads to a directory."""
        return self._has_type(path, _stat.S_ISDIR)

    def isfile(self, path: Path) -> bool:
        """Whether a path leads to a regular file."""
        return self._has_type(path, _stat.S_ISREG)

    def islink(self, path: Path) -> bool:
        """Whether a symbolic link is at a path."""
        return self._has_type(path, _stat.S_ISLNK, False)

    def listdir(self, path: Path = "/") -> list[str]:
        """The names in a directory, in order."""
        return [entry.name for entry in self.scandir(path)]

    def walk(self, top: Path = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``, from the top down: path, names of directories, other names."""
        waiting = [os.fsdecode(encoded(top))]
        while waiting:
            path = waiting.pop()
            directories: list[str] = []
            others: list[str] = []
            for entry in self.scandir(path):
                (directories if entry.is_dir() else others).append(entry.name)
            yield path, directories, others
            waiting.extend(joined(path, name) for name in reversed(directories))

    def makedirs(self, path: Path, mode: int = 0o755, exist_ok: bool = False) -> None:
        """Makes a directory, and those on the way to it."""
        text = os.fsdecode(encoded(path)).rstrip("/")
        parent = text.rpartition("/")[0]
        if parent.strip("/") and not self.exists(parent):
            self.makedirs(parent, mode, True)
        try:
            self.mkdir(text or "/", mode)
        except FileExistsError:
            if not exist_ok or not self.isdir(text or "/"):
                raise

    def unlink(self, path: Path) -> None:
        """Removes a file, or a symbolic link itself."""
        self.remove(path)

    def read_bytes(self, path: Path) -> bytes:
        """All of a file."""
        with self.open(path, "rb") as file:
            return file.read()  # type: ignore[no-any-return]

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Makes a file of these bytes, or replaces the content of one."""
        with self.open(path, "wb") as file:
            file.write(data)

    def read_text(self, path: Path, encoding: str = "utf-8") -> str:
        """All of a text file."""
        return self.read_bytes(path).decode(encoding)

    def write_text(self, path: Path, text: str, encoding: str = "utf-8") -> None:
        """Makes a text file, or replaces the content of one."""
        self.write_bytes(path, text.encode(encoding))
