"""Stores that a server holds (``kvfs serve``), by its address: ``kvfs+unix:SOCKET`` on this
machine, ``kvfs+vsock://CID:PORT`` on its host, ``kvfs://HOST:PORT`` on the network."""

from __future__ import annotations

import atexit
import contextlib
import os
import posixpath
import stat as _stat
import weakref
from typing import Any

from . import _kvfs
from ._embedded_files import EmbeddedFiles
from ._files import FileSystem, Path, encoded, joined
from ._store import Snapshot, Transaction
from .errors import Error, Invalid, Unsupported

_AT_ONCE = 4 << 20

_OPEN: weakref.WeakSet[_Served] = weakref.WeakSet()


class ServedFiles(EmbeddedFiles):
    """The files of a view that a server holds. Whole trees are removed and copied by reference
    where the store is; here it is done name by name, and what is copied goes over the wire."""

    def rmtree(self, path: Path) -> None:
        """Removes whatever is at a path, with everything in it."""
        if _whole(path) == b"/":
            raise OSError(22, "the root directory stays", os.fsdecode(encoded(path)))
        if not _stat.S_ISDIR(self.lstat(path).st_mode):
            self.remove(path)
            return
        directories = []
        for directory, _, others in self.walk(path):
            directories.append(directory)
            for name in others:
                self.remove(joined(directory, name))
        for directory in reversed(directories):
            self.rmdir(directory)

    def copy(self, source: Path, target: Path) -> None:
        """Copies a file, or a directory with everything in it: bytes, permissions, times and
        extended attributes. Nothing may be at ``target``."""
        found = self.lstat(source)
        if (_whole(target) + b"/").startswith(_whole(source).rstrip(b"/") + b"/"):
            raise OSError(22, "nothing is copied into itself", os.fsdecode(encoded(target)))
        try:
            self.lstat(target)
        except FileNotFoundError:
            pass
        else:
            raise FileExistsError(17, "the name exists already", os.fsdecode(encoded(target)))
        waiting, copied = [(source, target, found)], []
        while waiting:
            old, new, found = waiting.pop()
            if _stat.S_ISLNK(found.st_mode):
                self.symlink(self.readlink(old), new)
                continue
            if _stat.S_ISDIR(found.st_mode):
                self.mkdir(new)
                for entry in self.scandir(old):
                    waiting.append((entry.path, joined(new, entry.name), entry.stat))
            elif _stat.S_ISREG(found.st_mode):
                self._copy_content(old, new)
            else:
                what = f"{os.fsdecode(encoded(old))} is neither a file, a directory nor a link"
                raise Unsupported(f"{what}: copy it where the store is")
            copied.append((old, new, found))
        # A directory after what is in it, which changes its times.
        for old, new, found in reversed(copied):
            for name in self.listxattr(old):
                self.setxattr(new, name, self.getxattr(old, name))
            self.chmod(new, found.st_mode)
            self.utime(new, (found.st_atime_ns, found.st_mtime_ns))

    def _copy_content(self, source: Path, target: Path) -> None:
        with self.open(source, "rb", 0) as whole, self.open(target, "xb", 0) as copy:
            while part := whole.read(_AT_ONCE):
                copy.write(part)


def _whole(path: Path) -> bytes:
    return posixpath.normpath(b"/" + encoded(path).lstrip(b"/"))


class _Served:
    """A native scope, with the files that belong to it."""

    def __init__(self, native: _kvfs.Scope) -> None:
        self._native = native
        self._files: FileSystem | None = None
        self._pid = os.getpid()
        _OPEN.add(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def files_of(self, owner: object) -> FileSystem:
        if self._files is None:
            self._files = ServedFiles(self._native.files())
        return self._files


def _text(word: Any) -> str | None:
    return None if word is None else os.fsdecode(os.fspath(word))


def address_of(word: Any) -> str | None:
    """The whole address of a server that a word is; ``None``: it is something else."""
    return _kvfs.server(os.fsdecode(os.fspath(word)))


def open_served(
    address: str,
    *,
    txn: bool,
    snapshot: str | None,
    clone: str | None,
    label: str,
    token: str | None,
    token_file: Any,
    ca: Any,
    cert: Any,
    cert_key: Any,
    timeout: float | None,
    memory: int | None,
) -> Transaction | Snapshot:
    """Begins a transaction of the store that a server holds, or opens a snapshot of it."""
    if txn == (snapshot is not None):
        raise Invalid(
            f"say what is opened of {address}: txn=True for a transaction, or snapshot='NAME'"
        )
    if snapshot is not None and (clone is not None or label):
        raise Invalid("a snapshot has a name alone: clone and label go with txn=True")
    if token is not None and not isinstance(token, str):
        raise TypeError(f"a token is a str, not {type(token).__name__}")
    native = _kvfs.open_served(
        address,
        snapshot=snapshot,
        branch=clone,
        label=label,
        token=token,
        token_file=_text(token_file),
        ca=_text(ca),
        cert=_text(cert),
        cert_key=_text(cert_key),
        timeout=None if timeout is None else float(timeout),
        memory=memory,
    )
    scope = _Served(native)
    return Transaction(scope, None) if snapshot is None else Snapshot(scope, snapshot)


@atexit.register
def _close_all() -> None:
    # The server would wait for the lease of a transaction that is just left.
    for scope in list(_OPEN):
        if scope._pid == os.getpid():
            with contextlib.suppress(Error):
                scope._native.close()
