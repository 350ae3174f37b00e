"""The files of an embedded store."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._files import DirEntry, FileSystem, Path, encoded, joined
from .errors import Closed

if TYPE_CHECKING:
    from . import _kvfs

# What one call reads and writes; more is taken in parts.
_AT_ONCE = 4 << 20
_LARGEST = (1 << 63) - 1


def _result(native: Any) -> os.stat_result:
    mode, ino, links, uid, gid, size, blocks, (atime, mtime, ctime, birth) = native
    seconds = 1_000_000_000
    return os.stat_result(
        (mode, ino, 0, links, uid, gid, size, atime // seconds, mtime // seconds, ctime // seconds),
        {
            "st_atime": atime / seconds,
            "st_mtime": mtime / seconds,
            "st_ctime": ctime / seconds,
            "st_atime_ns": atime,
            "st_mtime_ns": mtime,
            "st_ctime_ns": ctime,
            "st_birthtime": birth / seconds,
            "st_blocks": blocks,
            "st_blksize": 4096,
        },
    )


class RawFile(io.RawIOBase):
    """An open file without a buffer. It may be used by several threads."""

    def __init__(
        self, native: _kvfs.OpenFile, name: str, read: bool, write: bool, append: bool
    ) -> None:
        super().__init__()
        self._native = native
        self._read, self._write, self._append = read, write, append
        self._at = native.stat()[5] if append else 0
        self._position = threading.Lock()
        self.name = name
        mode = "ab" if append else "wb" if write else "rb"
        self.mode = mode + ("+" if read and write else "")

    def __repr__(self) -> str:
        return f"<kvfs file {self.name!r}, mode {self.mode!r}{', closed' if self.closed else ''}>"

    def _usable(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def readable(self) -> bool:
        self._usable()
        return self._read

    def writable(self) -> bool:
        self._usable()
        return self._write

    def seekable(self) -> bool:
        self._usable()
        return True

    def readinto(self, buffer: Any) -> int:
        self._usable()
        if not self._read:
            raise io.UnsupportedOperation("the file is open to write")
        room = memoryview(buffer).cast("B")
        with self._position:
            data = self._native.read(self._at, min(len(room), _AT_ONCE))
            self._at += len(data)
        room[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        self._usable()
        if not self._read:
            raise io.UnsupportedOperation("the file is open to write")
        parts = []
        with self._position:
            while data := self._native.read(self._at, _AT_ONCE):
                parts.append(data)
                self._at += len(data)
        return b"".join(parts)

    def write(self, data: Any) -> int:
        self._usable()
        if not self._write:
            raise io.UnsupportedOperation("the file is open to read")
        part = bytes(memoryview(data).cast("B")[:_AT_ONCE])
        with self._position:
            self._native.write(self._at, part, self._append)
            self._at = self._native.stat()[5] if self._append else self._at + len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._usable()
        with self._position:
            if whence == os.SEEK_SET:
                at = offset
            elif whence == os.SEEK_CUR:
                at = self._at + offset
            elif whence == os.SEEK_END:
                at = self._native.stat()[5] + offset
            else:
                raise ValueError(f"invalid whence: {whence}")
            if not 0 <= at <= _LARGEST:
                raise ValueError(f"a file has no position {at}")
            self._at = at
            return at

    def tell(self) -> int:
        self._usable()
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._usable()
        if not self._write:
            raise io.UnsupportedOperation("the file is open to read")
        size = self._at if size is None else size
        if not 0 <= size <= _LARGEST:
            raise ValueError(f"a file has no size {size}")
        self._native.truncate(size)
        return size

    def sync(self) -> None:
        """What was written is on disk when this returns (flush a buffer above it before)."""
        self._usable()
        self._native.sync()

    def stat(self) -> os.stat_result:
        """The attributes of the file."""
        self._usable()
        return _result(self._native.stat())

    def close(self) -> None:
        if not self.closed:
            super().close()
            # A forked child has nothing to give back.
            try:
                self._native.close()
            except Closed:
                pass


class EmbeddedFiles(FileSystem):
    """The files of a store that is open in this process."""

    def __init__(self, native: _kvfs.Files) -> None:
        self._native = native

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
    ) -> RawFile:
        native = self._native.open(encoded(path), write, create, exclusive, truncate, permissions)
        return RawFile(native, os.fsdecode(encoded(path)), read, write, append)

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        return _result(self._native.stat(encoded(path), follow_symlinks))

    def scandir(self, path: Path = "/") -> Iterator[DirEntry]:
        listed = self._native.list(encoded(path))

        def each() -> Iterator[DirEntry]:
            for name, native in sorted(listed):
                text = os.fsdecode(name)
                yield DirEntry(text, joined(path, text), _result(native))

        return each()

    def mkdir(self, path: Path, mode: int = 0o755) -> None:
        self._native.mkdir(encoded(path), mode)

    def rmdir(self, path: Path) -> None:
        self._native.rmdir(encoded(path))

    def remove(self, path: Path) -> None:
        self._native.unlink(encoded(path))

    def rmtree(self, path: Path) -> None:
        self._native.remove_tree(encoded(path))

    def rename(self, source: Path, target: Path, *, replace: bool = True) -> None:
        self._native.rename(encoded(source), encoded(target), replace)

    def copy(self, source: Path, target: Path) -> None:
        self._native.clone_tree(encoded(source), encoded(target))

    def link(self, source: Path, target: Path) -> None:
        self._native.link(encoded(source), encoded(target))

    def symlink(self, target: Path, path: Path) -> None:
        self._native.symlink(encoded(target), encoded(path))

    def readlink(self, path: Path) -> str:
        return os.fsdecode(self._native.readlink(encoded(path)))

    def chmod(self, path: Path, mode: int) -> None:
        self._native.chmod(encoded(path), mode & 0o7777)

    def chown(self, path: Path, uid: int | None = None, gid: int | None = None) -> None:
        self._native.chown(encoded(path), uid, gid)

    def utime(self, path: Path, ns: tuple[int, int] | None = None) -> None:
        atime, mtime = (None, None) if ns is None else ns
        self._native.utime(encoded(path), atime, mtime)

    def truncate(self, path: Path, size: int) -> None:
        if not 0 <= size <= _LARGEST:
            raise ValueError(f"a file has no size {size}")
        self._native.truncate(encoded(path), size)

    def getxattr(self, path: Path, name: str | bytes) -> bytes:
        return self._native.getxattr(encoded(path), encoded(name))

    def setxattr(self, path: Path, name: str | bytes, value: bytes) -> None:
        self._native.setxattr(encoded(path), encoded(name), value)

    def removexattr(self, path: Path, name: str | bytes) -> None:
        self._native.removexattr(encoded(path), encoded(name))

    def listxattr(self, path: Path) -> list[str]:
        names = self._native.listxattr(encoded(path)).split(b"\0")
        return [os.fsdecode(name) for name in names if name]

    def sync(self) -> None:
        self._native.sync()
