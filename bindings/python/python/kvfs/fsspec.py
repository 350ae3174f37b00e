"""The files of a store for fsspec, and so for pandas, pyarrow, dask and zarr.

    fs = fsspec.filesystem("kvfs", store=store)
    frame.to_parquet("kvfs:///tables/fruit.parquet", storage_options={"store": store})

``store`` is a ``kvfs.Store``, a transaction or a snapshot of one, or a path: of a store's file,
which is opened here, or of a mount or socket, which is connected to; or the address of a store in
object storage, ``dir:FOLDER/NAME`` or ``s3://BUCKET/NAME``, perhaps with ``@SNAPSHOT``, which is
read: as it is now, or with ``follow=SECONDS`` as it is published from then on; or the address of a
server that has a store, ``kvfs+unix:SOCKET``, ``kvfs+vsock://CID:PORT`` or ``kvfs://HOST:PORT``,
with ``snapshot=NAME``, and ``token`` and the other credentials of ``kvfs.open``. Without
``snapshot`` its files are read and written in transactions of the file system alone, which are
those of the server. What is done between ``fs.start_transaction()`` and ``fs.end_transaction()``,
or in ``with fs.transaction:``, is one transaction of the store.
"""

from __future__ import annotations

import os
import secrets
import stat as _stat
import threading
import weakref
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction as _Transaction
from fsspec.utils import stringify_path

from . import _served, _store
from ._files import FileSystem
from ._places import address_of
from .errors import Invalid, Unsupported

# Stores that were given by their path: a file can be opened once in a process.
_by_path: weakref.WeakValueDictionary[Any, _store.Store] = weakref.WeakValueDictionary()
_by_path_lock = threading.Lock()


def _store_at(path: str, follow: float | None) -> _store.Store:
    address = address_of(path)
    if address is not None:
        with _by_path_lock:
            store = _by_path.get((address, follow))
            if store is None or not store.is_open:
                store = _store.open(address, follow=follow)
                _by_path[address, follow] = store
            return store
    if follow is not None:
        raise Invalid(f"{path} is no address in object storage: leave out follow")
    path = os.path.realpath(path)
    with _by_path_lock:
        store = _by_path.get(path)
        if store is None or not store.is_open:
            is_store = not os.path.exists(path) or _stat.S_ISREG(os.stat(path).st_mode)
            if not is_store:
                store = _store.connect(path)
            elif not os.path.exists(path + ".sock"):
                store = _store.open(path)
            else:
                try:
                    store = _store.connect(path)
                except ConnectionRefusedError:
                    # A daemon that was killed has left its socket behind.
                    store = _store.open(path)
            _by_path[path] = store
        return store


#: Options of ``kvfs.open`` for the address of a server.
_OF_SERVERS = ("snapshot", "clone", "token", "token_file", "ca", "cert", "cert_key", "timeout")


class _ServedStore:
    """The store of a server, of which there are only transactions."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._address = address
        self._options = options

    def transaction(self, label: str = "") -> _store.Transaction:
        return _store.open(self._address, txn=True, label=label, **self._options)

    @property
    def fs(self) -> FileSystem:
        raise Unsupported(
            f"what {self._address} has is read and written in a transaction (with fs.transaction), "
            "or as it was in a snapshot: snapshot='NAME'"
        )


def _served_at(address: str, options: dict[str, Any]) -> Any:
    if options.get("snapshot") is None:
        options.pop("snapshot", None)
        return _ServedStore(address, options)
    return _store.open(address, **options)


class _StoreTransaction(_Transaction):  # type: ignore[misc]
    """A transaction of the store in place of files that are kept back."""

    fs: Any

    def start(self) -> None:
        begin = getattr(self.fs.store, "transaction", None)
        if begin is None:
            raise Unsupported("this file system is in a transaction, or of a snapshot, already")
        self.fs._inside = begin(label="fsspec")
        super().start()

    def complete(self, commit: bool = True) -> None:
        fs = self.fs
        inside, fs._inside = fs._inside, None
        try:
            if commit:
                inside.commit()
            else:
                inside.abort()
        finally:
            self.files.clear()
            fs._intrans = False
            fs._transaction = None
            self.fs = None


class KvfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a KVFS store, or of a transaction or snapshot of one.

    ``auto_mkdir``: directories on the way to what is written are made. pyarrow and others rely on
    it.
    """

    protocol = "kvfs"
    root_marker = "/"
    # One with another store would be taken for this one.
    cachable = False
    transaction_type = _StoreTransaction

    def __init__(
        self,
        store: Any = None,
        auto_mkdir: bool = True,
        follow: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(store=store, auto_mkdir=auto_mkdir, follow=follow, **options)
        asked = {name: options[name] for name in _OF_SERVERS if name in options}
        if store is None:
            raise ValueError(
                "give the store: fsspec.filesystem('kvfs', store=...), or "
                "storage_options={'store': ...}"
            )
        is_word = isinstance(store, (str, bytes, os.PathLike))
        server = _served.address_of(store) if is_word else None
        if asked and server is None:
            raise Invalid(f"{', '.join(asked)} goes with the address of a server")
        if server is not None and follow is None:
            store = _served_at(server, asked)
        elif is_word and server is None:
            store = _store_at(os.fsdecode(store), follow)
        elif follow is not None:
            raise Invalid("follow goes with an address in object storage, as dir:/srv/stores/work")
        #: The store, transaction or snapshot whose files these are.
        self.store = store
        self.auto_mkdir = auto_mkdir
        self._inside: Any = None

    @property
    def files(self) -> FileSystem:
        """The files as ``kvfs`` has them."""
        state = self.store if self._inside is None else self._inside
        return state.fs  # type: ignore[no-any-return]

    @property
    def fsid(self) -> str:
        return f"kvfs_{id(self.store):x}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for start in ("kvfs://", "kvfs:"):
            if path.startswith(start):
                path = path[len(start) :]
                break
        return "/" + path.strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return "kvfs://" + str(self._strip_protocol(name))

    def start_transaction(self) -> Any:
        begun = self.transaction_type(self)
        begun.start()
        self._transaction = begun
        return begun

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.files.makedirs(self._parent(path), exist_ok=True)

    # --- directories

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if self.files.exists(path):
            raise FileExistsError(17, "the name exists already", path)
        if create_parents:
            self.files.makedirs(path)
        else:
            self.files.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.files.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.files.rmdir(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        entries = list(self.files.scandir(path))
        if not detail:
            return [entry.path for entry in entries]
        return [self._described(entry.path, entry.stat) for entry in entries]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._described(path, self.files.lstat(path))

    def _described(self, path: str, found: os.stat_result) -> dict[str, Any]:
        link = _stat.S_ISLNK(found.st_mode)
        info: dict[str, Any] = {"name": path, "islink": link}
        if link:
            info["destination"] = self.files.readlink(path)
            try:
                found = self.files.stat(path)
            except OSError:
                # It leads nowhere, and is itself what there is.
                pass
        if _stat.S_ISDIR(found.st_mode):
            kind = "directory"
        else:
            kind = "file" if _stat.S_ISREG(found.st_mode) else "other"
        info.update(
            type=kind,
            size=0 if kind == "directory" else found.st_size,
            created=getattr(found, "st_birthtime", found.st_ctime),
            mtime=found.st_mtime,
            mode=found.st_mode,
            uid=found.st_uid,
            gid=found.st_gid,
            ino=found.st_ino,
            nlink=found.st_nlink,
        )
        return info

    def exists(self, path: str, **_: Any) -> bool:
        return self.files.exists(self._strip_protocol(path))

    def lexists(self, path: str, **_: Any) -> bool:
        try:
            self.files.lstat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path: str) -> bool:
        return self.files.isdir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.files.isfile(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        return self.files.islink(self._strip_protocol(path))

    # --- files

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if "r" not in mode:
            self._make_parent(path)
        buffering = block_size if isinstance(block_size, int) and block_size > 1 else -1
        file = self.files.open(path, mode if "b" in mode else mode + "b", buffering)
        if "r" in mode:
            # As fsspec's own files have it.
            file.size = self.files.stat(path).st_size
        return file

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        with self.files.open(self._strip_protocol(path), "rb", 0) as file:
            if start is None and end is None:
                return file.read()  # type: ignore[no-any-return]
            size = file.seek(0, os.SEEK_END)
            first, behind, _step = slice(start, end).indices(size)
            file.seek(first)
            parts = []
            while first < behind and (part := file.read(behind - first)):
                parts.append(part)
                first += len(part)
            return b"".join(parts)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.files.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.files.open(path, "wb" if truncate else "ab", 0).close()
        self.files.utime(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        files = self.files
        if files.isdir(source):
            files.makedirs(target, exist_ok=True)
            return
        self._make_parent(target)
        if files.isdir(target):
            raise IsADirectoryError(21, "is a directory", target)
        if not self.lexists(target):
            files.copy(source, target)
        elif not files.exists(source):
            raise FileNotFoundError(2, "no such file or directory", source)
        elif source != target:
            # Who reads the target at this time has one of both, whole.
            near = f"{self._parent(target).rstrip('/')}/.{secrets.token_hex(8)}.kvfs"
            files.copy(source, near)
            files.rename(near, target)

    def mv(
        self, path1: str, path2: str, recursive: bool = True, maxdepth: int | None = None, **_: Any
    ) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.files.isdir(target) and source != target:
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        self._make_parent(target)
        self.files.rename(source, target)

    def rm_file(self, path: str) -> None:
        self.files.remove(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in path if isinstance(path, list) else [path]:
            one = self._strip_protocol(one)
            for found in self.expand_path(one) if "*" in one or "?" in one or "[" in one else [one]:
                if not self.files.isdir(found) or self.files.islink(found):
                    self.files.remove(found)
                elif not recursive:
                    raise ValueError(f"{found} is a directory: say recursive=True to remove it")
                elif found == "/":
                    for name in self.files.listdir("/"):
                        self.files.rmtree("/" + name)
                else:
                    self.files.rmtree(found)

    def link(self, src: str, dst: str, **_: Any) -> None:
        self.files.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: str, dst: str, **_: Any) -> None:
        self.files.symlink(src, self._strip_protocol(dst))

    def chmod(self, path: str, mode: int) -> None:
        self.files.chmod(self._strip_protocol(path), mode)

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)
