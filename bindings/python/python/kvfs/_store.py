"""Stores, transactions and snapshots: the same objects for a store that is embedded in this process
and for one that is mounted, behind its socket."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Literal, TypeVar, overload

from . import _kvfs
from ._files import FileSystem, Path, encoded
from ._keys import Batch, Dictionary
from ._places import Durability, address_of, open_there
from .errors import (
    Busy,
    Closed,
    Error,
    Invalid,
    Locked,
    MergeClash,
    MergeConflict,
    Retryable,
    TransactionEnded,
)

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")
Isolation = Literal["si", "ser"]
Choice = Literal["ours", "theirs", "both"]


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot as listed."""

    name: str
    #: When it was made.
    created: datetime
    #: Bytes of what it refers to, shared with others or not.
    size: int
    #: Bytes that dropping it alone gives back, as far as is known.
    unique_size: int
    #: The clone that it is of; ``None``: the store itself.
    clone: str | None


@dataclass(frozen=True)
class CloneInfo:
    """A clone as listed."""

    name: str
    #: The snapshot that it was made of; ``None``: that is not known any more.
    snapshot: str | None


@dataclass(frozen=True)
class TransactionInfo:
    """An open transaction as listed."""

    number: int
    label: str
    isolation: Isolation
    #: Seconds since it began.
    age: float
    #: Seconds since its last call.
    idle: float
    #: Changes made so far.
    changes: int


@dataclass(frozen=True)
class CommitInfo:
    """A commit that can be undone."""

    number: int
    #: That of its transaction.
    label: str
    #: When it was made.
    created: datetime
    #: Bytes that are kept for it alone.
    size: int


@dataclass(frozen=True)
class Change:
    """A key whose value is not the same in two states."""

    dictionary: str
    key: bytes
    #: Bytes of the value before; ``None``: the key was not there.
    size_before: int | None
    #: Bytes of the value after; ``None``: the key is not there any more.
    size_after: int | None
    #: The values themselves, where they were asked for.
    before: bytes | None = None
    after: bytes | None = None


@dataclass(frozen=True)
class FileChange:
    """A path at which two states are not alike."""

    #: From the root, without a slash in front.
    path: str
    kind: Literal["directory", "file", "symlink", "other"]
    #: Bytes before; ``None``: there was nothing.
    size_before: int | None
    #: Bytes after; ``None``: there is nothing any more.
    size_after: int | None


@dataclass(frozen=True)
class Sent:
    """What was sent."""

    chunks: int
    tuples: int
    #: Bytes of the stream.
    size: int


@dataclass(frozen=True)
class Received:
    """What was received."""

    snapshot: str
    tuples: int


_KINDS: dict[str, Any] = {"d": "directory", "f": "file", "l": "symlink", "o": "other"}


class _Keyed:
    """What has dictionaries and files: the store, a transaction, a snapshot."""

    _scope: Any

    def __getitem__(self, name: str) -> Dictionary:
        """The dictionary of that name, which is made by the first write."""
        return Dictionary(self, self._scope, name)

    def dictionary(self, name: str) -> Dictionary:
        """The dictionary of that name, which is made by the first write."""
        return self[name]

    def dictionaries(self) -> list[str]:
        """The names of all dictionaries, sorted."""
        return self._scope.dictionaries()  # type: ignore[no-any-return]

    @property
    def fs(self) -> FileSystem:
        """The files of the same state; over a socket, where this machine has the store mounted."""
        return self._scope.files_of(self)  # type: ignore[no-any-return]


class _Embedded:
    """A native scope, with the files that belong to it."""

    __slots__ = ("_files", "_native")

    def __init__(self, native: _kvfs.Scope) -> None:
        self._native = native
        self._files: FileSystem | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def forget_files(self) -> None:
        """What was open is closed: the next use opens it again."""
        self._files = None

    def files_of(self, owner: object) -> FileSystem:
        if self._files is None:
            from ._embedded_files import EmbeddedFiles

            self._files = EmbeddedFiles(self._native.files())
        return self._files


class Savepoint:
    """A state of a transaction to go back to. As a ``with`` block: an exception goes back to it."""

    def __init__(self, transaction: Transaction, native: Any) -> None:
        self._transaction = transaction
        self._native = native

    def rollback(self) -> None:
        """Undoes what the transaction has changed since then; the savepoint stays."""
        self._transaction._scope.rollback_to(self._native)

    def __enter__(self) -> Savepoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._transaction.is_open:
            self.rollback()


class Transaction(_Keyed):
    """A transaction over keys and files. As a ``with`` block it commits at the end, and aborts when
    an exception leaves the block."""

    def __init__(self, scope: Any, sync: bool | None) -> None:
        self._scope = scope
        self._sync = sync
        #: Its number, by which others can join it while it is open.
        self.number: int = scope.number

    def __repr__(self) -> str:
        return f"<kvfs.Transaction {self.number}{'' if self.is_open else ', ended'}>"

    @property
    def is_open(self) -> bool:
        """Whether it was neither committed nor aborted by this object."""
        return bool(self._scope.is_open())

    def commit(self, *, sync: bool | None = None) -> None:
        """Makes its changes part of the store, all at once. ``sync``: they are on disk then.

        It has ended then, also after ``Conflict``. After ``NoSpace`` and the like it is still open.
        """
        self._scope.commit(self._sync if sync is None else sync)

    def abort(self) -> None:
        """Ends it without a trace. One that has ended stays as it is."""
        self._scope.abort()

    def savepoint(self) -> Savepoint:
        """Marks the state that it has now."""
        return Savepoint(self, self._scope.savepoint())

    def lock_directory(self, path: Path, *, shared: bool = False) -> None:
        """Locks the names in a directory for the rest of a serializable transaction: against
        changes by others, and against their reads as well unless ``shared``. See
        ``Dictionary.lock`` for keys."""
        self._scope.lock_directory(encoded(path), bool(shared))

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            if self.is_open:
                try:
                    self.commit()
                except Error:
                    # One that cannot commit is of no use to who has left the block.
                    with contextlib.suppress(Error):
                        self.abort()
                    raise
            return
        # The exception of the block is what the caller must see.
        with contextlib.suppress(Error):
            self.abort()


class Snapshot(_Keyed):
    """The store as it was: nothing in it changes. It outlives the snapshot, until it is closed."""

    def __init__(self, scope: Any, name: str) -> None:
        self._scope = scope
        #: The snapshot's name.
        self.name = name

    def __repr__(self) -> str:
        return f"<kvfs.Snapshot {self.name!r}>"

    def close(self) -> None:
        """Lets go of it. The snapshot itself stays in the store."""
        self._scope.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()


class Store(_Keyed):
    """An open store: dictionaries of keys, and a file system. See ``kvfs.open``, ``kvfs.connect``.

    It may be used by any number of threads at once.
    """

    def __init__(self, database: Any, scope: Any, where: str) -> None:
        self._database = database
        self._scope = scope
        self._where = where
        self._pid = os.getpid()
        _OPEN.add(self)

    def __repr__(self) -> str:
        return f"<kvfs.Store {self._where!r}{'' if self.is_open else ', closed'}>"

    @property
    def is_open(self) -> bool:
        """Whether it can be used: it was not closed, and this process has opened it."""
        return bool(self._database.is_open())

    def close(self) -> None:
        """Makes everything durable and lets go of the store. Open transactions are aborted; what is
        open in it (files, iterators, snapshots) is closed. Closing it twice does nothing."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a store cannot be pickled: open or connect to it where it is needed")

    # --- changing

    def transaction(
        self,
        isolation: Isolation = "si",
        *,
        sync: bool | None = None,
        check_conflicts: bool = True,
        label: str = "",
        lock_timeout: float = 10.0,
        undoable: bool = False,
        clone: str | None = None,
    ) -> Transaction:
        """Begins a transaction over keys and files.

        ``isolation``: ``"si"``: it reads the store as it was when it began, and of two that change
        the same key the first to commit wins; the other gets ``Conflict``. ``"ser"``: as if it ran
        alone, by locks, for which it waits ``lock_timeout`` seconds at most before ``Locked``.
        ``sync``: its commit waits for the disk. ``check_conflicts=False``: the last commit wins
        (``"si"`` alone; files are read only then). ``undoable``: ``undo`` can take its commit back,
        for a day; the commit costs some milliseconds more. ``clone``: it reads and changes that
        clone instead of the store itself.
        """
        return self._begin(
            isolation, sync, check_conflicts, label, lock_timeout, None, undoable, clone
        )

    def _begin(
        self,
        isolation: Isolation,
        sync: bool | None,
        check_conflicts: bool,
        label: str,
        lock_timeout: float,
        retry_of: int | None,
        undoable: bool = False,
        clone: str | None = None,
    ) -> Transaction:
        if isolation not in ("si", "ser"):
            raise Invalid(f"isolation is 'si' or 'ser', not {isolation!r}")
        scope = self._database.begin(
            serializable=isolation == "ser",
            check_conflicts=bool(check_conflicts),
            label=label,
            lock_timeout=float(lock_timeout),
            retry_of=retry_of,
            undoable=bool(undoable),
            clone=clone,
        )
        return Transaction(_adapted(scope), sync)

    def join(self, number: int, *, sync: bool | None = None) -> Transaction:
        """A transaction that was begun elsewhere, by its number, such as that of ``kvfs run``
        (``$KVFS_TXN``). It stays open when the object is dropped; a ``with`` block ends it."""
        return Transaction(_adapted(self._database.join(number)), sync)

    def run(
        self,
        work: Callable[[Transaction], T],
        isolation: Isolation = "si",
        *,
        sync: bool | None = None,
        attempts: int = 100,
        label: str = "",
        lock_timeout: float = 10.0,
    ) -> T:
        """Calls ``work`` with a transaction, commits it, and gives what ``work`` has returned. On
        ``Conflict`` and ``Locked`` all of it is done again, ``attempts`` times at most."""
        if attempts < 1:
            raise Invalid(f"attempts is at least 1, not {attempts}")
        retry_of: int | None = None
        number: int | None = None
        for attempt in range(attempts):
            try:
                with self._begin(isolation, sync, True, label, lock_timeout, retry_of) as t:
                    number = t.number
                    return work(t)
            except Retryable as failure:
                if attempt + 1 == attempts:
                    raise
                # As old as the one that it takes the place of, so that it wins in the end.
                if isinstance(failure, Locked) and isolation == "ser":
                    retry_of = retry_of or number
            # Others have won: they need not meet the same ones again at the same moment.
            time.sleep(random.uniform(0, min(0.001 * 2 ** min(attempt, 6), 0.05)))
        raise AssertionError("the last attempt has returned or raised")

    def commits(self) -> list[CommitInfo]:
        """The commits that can be undone, the oldest first: the newest of those transactions that
        were begun as ``undoable``, those of ``kvfs run`` among them."""
        return [
            CommitInfo(number, label, datetime.fromtimestamp(created, timezone.utc), size)
            for number, label, created, size in self._database.commits()
        ]

    def undo(self, commit: int | None = None, *, sync: bool | None = None) -> Transaction:
        """Begins a transaction that undoes a commit, keys and files, when it is committed: the last
        one of ``commits``, or that of this number. What others have done since stays. It can be
        looked at before, changed, and undone in its turn.

        ``Conflict``: others have changed the same since, and nothing was begun. ``NotFound``: there
        is no such commit, or it is not kept any more.
        """
        if commit is not None and not 0 <= commit < 1 << 63:
            raise Invalid(f"the number of a commit is one of `commits`, not {commit}")
        return Transaction(_adapted(self._database.undo(commit)), sync)

    def batch(self, *, sync: bool | None = None) -> Batch:
        """Gathers changes of keys, and makes them as one at the end of the ``with`` block::

        with store.batch() as batch:
            batch["stock"][b"apples"] = b"97"
            del batch["orders"][b"16"]
        """
        return Batch(self._scope, sync)

    def sync(self) -> None:
        """Waits until everything that was done before is on disk."""
        self._database.sync()

    def create_dictionary(self, name: str, **options: str | int) -> Dictionary:
        """Makes a dictionary, durably; one that is there stays as it is, or is an error with
        options. These are the ones of ``kvfs dict create``, with underscores::

            store.create_dictionary("log", compression="zstd", false_positives=0)

        ``separate_at`` and ``stitch_at``: bytes, ``"adaptive"`` or ``"never"``; ``compression`` and
        ``value_compression``: ``"none"``, ``"lz4"`` or ``"zstd"``; ``false_positives``: of 10,000;
        ``merge``: ``"none"``, ``"add"``, ``"max"``, ``"min"`` or ``"union"``.
        """
        self._database.create_dictionary(name, _option_words(options))
        return self[name]

    def set_dictionary(self, name: str, **options: str | int) -> None:
        """Changes options of a dictionary, durably: what is there stays as it is until it is
        compacted."""
        if not options:
            raise Invalid("say which option gets another value: compression='zstd', for example")
        self._database.set_dictionary(name, _option_words(options))

    def dictionary_options(self, name: str) -> dict[str, str]:
        """All options of a dictionary, each with its value."""
        listed = self._database.dictionary_options(name)
        return {option.replace("-", "_"): value for option, value in listed}

    def compact(self, dictionary: str | None = None) -> None:
        """Merges all runs of a dictionary, or of the whole store, which gives the space of deleted
        data back. It reads and writes most of it."""
        self._database.compact(dictionary)

    def drop_dictionary(self, name: str) -> None:
        """Drops a dictionary and everything in it, durably."""
        self._database.drop_dictionary(name)

    # --- clones

    def create_clone(self, snapshot: str, name: str) -> None:
        """Makes a clone of a snapshot, durably: ``transaction(clone=name)`` works in it."""
        self._database.create_clone(snapshot, name)

    def clones(self) -> list[CloneInfo]:
        """All clones, by name."""
        return [CloneInfo(name, snapshot) for name, snapshot in self._database.clones()]

    def drop_clone(self, name: str) -> None:
        """Drops a clone and everything in it, durably; transactions in it end."""
        self._database.drop_clone(name)

    # --- snapshots

    def create_snapshot(self, name: str) -> None:
        """Keeps the store as it is now, keys and files, in the time of a sync."""
        self._database.create_snapshot(name)

    def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots, the oldest first."""
        return [
            SnapshotInfo(
                name, datetime.fromtimestamp(created, timezone.utc), size, unique, clone or None
            )
            for name, clone, created, size, unique in self._database.snapshots()
        ]

    def open_snapshot(self, name: str) -> Snapshot:
        """The store as it was when the snapshot was made, to be read."""
        return Snapshot(_adapted(self._database.open_snapshot(name)), name)

    def drop_snapshot(self, name: str) -> None:
        """Drops a snapshot; its space comes back in the background."""
        self._database.drop_snapshot(name)

    def rollback(self, name: str) -> None:
        """Gives the store the state of a snapshot, durably and as one step. Open transactions are
        aborted; newer snapshots stay."""
        self._database.rollback(name)

    def changes(
        self,
        before: str,
        after: str | None = None,
        *,
        dictionary: str | None = None,
        values: bool = False,
    ) -> Iterator[Change]:
        """The keys that differ from a snapshot to another, or to what there is now, in order. What
        both share is passed by unread. ``values``: the changes carry the values themselves."""
        listed = self._database.changes(before, after, dictionary, values)

        def each() -> Iterator[Change]:
            try:
                while portion := listed.take(1024):
                    for change in portion:
                        yield Change(*change)
            finally:
                listed.close()

        return each()

    def file_changes(self, before: str, after: str | None = None) -> list[FileChange]:
        """The files that differ from a snapshot to another, or to what there is now, by path."""
        return [
            FileChange(os.fsdecode(path), _KINDS.get(kind, "other"), old, new)
            for path, kind, old, new in self._database.file_changes(before, after)
        ]

    def merge_fork(
        self,
        fork: str | bytes | os.PathLike[str],
        *,
        settle: Choice | Mapping[str, Choice] | None = None,
        label: str = "",
        undoable: bool = False,
        sync: bool | None = None,
        cache: str | bytes | os.PathLike[str] | None = None,
    ) -> Transaction:
        """Begins a transaction that brings what a fork of this store has changed since it was made
        into the store, keys and files, when it is committed: a fork in a file that is not open, or
        one that is published, by its address. It can be looked at before, and changed.

        What both have changed raises ``MergeConflict``, unless ``settle`` says whose version is
        taken: ``"ours"``, ``"theirs"`` or ``"both"``, for all or by path and ``dictionary:key``.
        ``cache``: of a fork that is published, the directory for what is fetched. Embedded stores
        alone.
        """
        each = {"": settle} if isinstance(settle, str) else dict(settle or {})
        path = os.fspath(fork)
        scope, conflicts = self._database.merge_fork(
            path,
            directory=None if cache is None else os.fspath(cache),
            choices=[(os.fsencode(at), choice) for at, choice in each.items()],
            label=label,
            undoable=bool(undoable),
        )
        if scope is None:
            clashes = [MergeClash(os.fsdecode(at), key, a, b) for at, key, a, b in conflicts]
            named = ", ".join(f"{c.path} ({c.ours}, {c.theirs})" for c in clashes[:3])
            more = f" and {len(clashes) - 3} more" if len(clashes) > 3 else ""
            what = f"the store and {os.fsdecode(path)} have both changed {named}{more}"
            raise MergeConflict(f"{what}: say by settle whose version is taken", clashes)
        return Transaction(_adapted(scope), sync)

    def send(self, snapshot: str, file: BinaryIO, *, base: str | None = None) -> Sent:
        """Writes a snapshot to a binary file object, or what has changed since the snapshot
        ``base``, for ``receive`` of another store. Embedded stores alone."""
        return Sent(*self._database.send(snapshot, base, file))

    def receive(
        self, file: BinaryIO, *, snapshot: str | None = None, replace: bool = False
    ) -> Received:
        """Takes what ``send`` has written: the store becomes what was sent, and has a snapshot of
        it, as one step at the end of the stream. Embedded stores alone.

        A whole snapshot goes to an empty store, changes go to one that is as their base is, unless
        ``replace`` gives up what is there. Transactions are aborted, and what is open in the store
        is closed. After a stream that was cut off, the same one goes on with what has come.
        """
        try:
            return Received(*self._database.receive(file, snapshot, replace))
        finally:
            self._scope.forget_files()

    # --- looking at it

    def transactions(self) -> list[TransactionInfo]:
        """The open transactions, the oldest first."""
        return [
            TransactionInfo(number, label, "ser" if serializable else "si", age, idle, changes)
            for number, label, serializable, age, idle, changes in self._database.transactions()
        ]

    def statistics(self) -> dict[str, Any]:
        """Figures of the store. Over a socket they are those of ``kvfs stat --json``. A store that
        is written at its address says how ``publishing`` goes, one that follows, ``following``."""
        figures = dict(self._database.statistics())
        if isinstance(self._database, _kvfs.Database):
            for what, of_it in zip(
                ("publishing", "following"), self._database.there(), strict=True
            ):
                if of_it is not None:
                    figures[what] = json.loads(of_it)
        return figures


def _option_words(options: Mapping[str, str | int]) -> list[tuple[str, str]]:
    return [(option.replace("_", "-"), str(value)) for option, value in options.items()]


def _adapted(scope: Any) -> Any:
    return _Embedded(scope) if isinstance(scope, _kvfs.Scope) else scope


def _is_open_here(path: str | bytes) -> bool:
    """Whether a store of this process has the file open."""
    for store in list(_OPEN):
        try:
            if store.is_open and os.path.samefile(path, store._where):
                return True
        except OSError:
            # It is another store, whose file has lost its name.
            pass
    return False


def _is_written_here(address: str) -> bool:
    """Whether a store of this process writes the one at the address."""
    written = [store for store in list(_OPEN) if store._where == address and store.is_open]
    return any("publishing" in store.statistics() for store in written)


@overload
def open(
    path: str | bytes | os.PathLike[str],
    *,
    txn: Literal[True],
    clone: str | None = None,
    label: str = "",
    token: str | None = None,
    token_file: str | bytes | os.PathLike[str] | None = None,
    ca: str | bytes | os.PathLike[str] | None = None,
    cert: str | bytes | os.PathLike[str] | None = None,
    cert_key: str | bytes | os.PathLike[str] | None = None,
    timeout: float | None = 60.0,
    memory: int | None = None,
) -> Transaction: ...


@overload
def open(
    path: str | bytes | os.PathLike[str],
    *,
    snapshot: str,
    token: str | None = None,
    token_file: str | bytes | os.PathLike[str] | None = None,
    ca: str | bytes | os.PathLike[str] | None = None,
    cert: str | bytes | os.PathLike[str] | None = None,
    cert_key: str | bytes | os.PathLike[str] | None = None,
    timeout: float | None = 60.0,
    memory: int | None = None,
) -> Snapshot: ...


@overload
def open(
    path: str | bytes | os.PathLike[str],
    *,
    create: bool = True,
    size: int | None = None,
    read_only: bool = False,
    memory: int | None = None,
    durable: bool = False,
    write: bool = False,
    take: bool = False,
    durability: Durability = "local",
    publish_every: float = 10.0,
    follow: float | None = None,
    cache: str | bytes | os.PathLike[str] | None = None,
    cache_size: int | None = None,
) -> Store: ...


def open(
    path: str | bytes | os.PathLike[str],
    *,
    create: bool = True,
    size: int | None = None,
    read_only: bool = False,
    memory: int | None = None,
    durable: bool = False,
    write: bool = False,
    take: bool = False,
    durability: Durability = "local",
    publish_every: float = 10.0,
    follow: float | None = None,
    cache: str | bytes | os.PathLike[str] | None = None,
    cache_size: int | None = None,
    txn: bool = False,
    snapshot: str | None = None,
    clone: str | None = None,
    label: str = "",
    token: str | None = None,
    token_file: str | bytes | os.PathLike[str] | None = None,
    ca: str | bytes | os.PathLike[str] | None = None,
    cert: str | bytes | os.PathLike[str] | None = None,
    cert_key: str | bytes | os.PathLike[str] | None = None,
    timeout: float | None = 60.0,
) -> Store | Transaction | Snapshot:
    """Opens the store in a file, or makes one; or the store at an address in object storage,
    ``dir:FOLDER/NAME`` or ``s3://BUCKET/NAME``; or begins a transaction of a store that a server
    holds, or opens a snapshot of it, at ``kvfs+unix:SOCKET``, ``kvfs+vsock://CID:PORT`` or
    ``kvfs://HOST:PORT``.

    The store is this process' alone while it is open: a store that is mounted is reached with
    ``connect``.

    ``create``: a missing one is made. ``size``: bytes that a new one may grow to, otherwise as far
    as the host lets it. ``read_only``: nothing is written, and others may read it, too. ``memory``:
    bytes for buffers and caches, 320 MiB by default. ``durable``: every write is on disk when its
    call returns, in place of within a second.

    An address is opened to be read: any number of processes do so at once. What is read is fetched,
    and kept in ``cache`` (``~/.cache/kvfs``), up to ``cache_size`` bytes. ``@SNAPSHOT`` after it
    shows one of its snapshots. ``follow``: every so many seconds it is looked for what was
    published since, which is shown then.

    ``write``: the store itself is written, by one process of one machine at a time (``Busy``). What
    is committed is published every ``publish_every`` seconds, and when the store is closed; until
    then it is in a file in ``cache`` (``~/.local/share/kvfs``), from which the next one goes on.
    ``create``: an empty one is made if there is none. ``take``: the store is taken from a machine
    that is gone, without what that has not published. If it is not gone, it takes no more changes,
    and ``close`` there raises ``Displaced``. ``durability="remote"``: what waits for the disk
    (``sync=True``, ``durable``) waits until it is in object storage, too.

    Of a server, ``txn=True`` begins a transaction, of the main files or of a ``clone``, which
    others see as a whole when it has committed; ``snapshot`` opens the snapshot of this name, to be
    read. Only what is read and written goes over the wire. On the network, ``token`` or the first
    line of ``token_file``, or ``cert`` and ``cert_key``, say who asks, and ``ca`` has the
    certificates that are trusted; what is not given is taken from ``KVFS_TOKEN_FILE``,
    ``KVFS_TOKEN``, ``KVFS_CERT``, ``KVFS_CERT_KEY`` and ``KVFS_CA``. A server that is gone is
    waited for ``timeout`` seconds before ``Disconnected``; ``None``: for ever.
    """
    path = os.fspath(path)
    if b"\0" in os.fsencode(path):
        raise Invalid(f"a path has no NUL: {path!r}")
    for what, number in (("size", size), ("memory", memory), ("cache_size", cache_size)):
        if number is not None and not 0 <= number < 1 << 63:
            raise Invalid(f"{what} is a number of bytes, not {number}")
    from . import _served

    server = _served.address_of(path)
    others = (size, follow, cache, cache_size)
    if server is not None:
        if read_only or durable or write or take or any(other is not None for other in others):
            raise Invalid(
                f"{server} is a server, which has the store open: leave out all but txn, snapshot, "
                "clone, label, timeout, memory and the credentials"
            )
        return _served.open_served(
            server,
            txn=bool(txn),
            snapshot=snapshot,
            clone=clone,
            label=label,
            token=token,
            token_file=token_file,
            ca=ca,
            cert=cert,
            cert_key=cert_key,
            timeout=timeout,
            memory=memory,
        )
    credentials = (token, token_file, ca, cert, cert_key)
    if txn or label or any(word is not None for word in (snapshot, clone, *credentials)):
        raise Invalid(
            f"{os.fsdecode(path)} is no address of a server: txn, snapshot, clone, label and the "
            "credentials go with one, as kvfs+unix:SOCKET or kvfs://HOST:PORT"
        )
    address = address_of(path)
    if address is not None:
        if size is not None:
            raise Invalid("a store in object storage has no size: it takes what is written")
        if read_only and write:
            raise Invalid("a store is opened to be read or to be written, not both")
        try:
            there = open_there(
                address,
                write=bool(write),
                create=bool(create),
                take=take,
                durability=durability,
                publish_every=publish_every,
                follow=follow,
                cache=cache,
                cache_size=cache_size,
                memory=memory,
                durable=durable,
            )
        except Busy:
            if not (write and _is_written_here(address)):
                raise
            what = f"{address} is open in this process already: use that store, or close it"
            raise Busy(what) from None
        return Store(there, _Embedded(there.mainline()), address)
    if write or take or durability != "local" or follow is not None or cache is not None:
        raise Invalid(
            f"{os.fsdecode(path)} is a file: write, take, durability, follow and cache go with an "
            "address in object storage, as dir:/srv/stores/work"
        )
    make = create and not read_only and not os.path.exists(path)
    if os.path.isdir(path):
        what = "a store is a file; connect() takes the directory of a mount"
        raise IsADirectoryError(21, what, path)
    try:
        database = _kvfs.Database.open(
            path,
            make=make,
            size=size,
            read_only=read_only,
            memory=memory,
            durable=durable,
            cache_size=cache_size,
        )
    except Busy:
        if not _is_open_here(path):
            raise
        what = f"{os.fsdecode(path)} is open in this process already: use that store, or close it"
        raise Busy(what) from None
    except FileExistsError as other:
        what = f"{os.fsdecode(path)} is being made by another process: open it again"
        raise Busy(what) from other
    except OSError as failure:
        if isinstance(failure, Error) or failure.filename is not None:
            raise
        raise OSError(failure.errno, failure.strerror, path) from None
    return Store(database, _Embedded(database.mainline()), os.fsdecode(path))


def connect(
    where: str | bytes | os.PathLike[str] | None = None,
    *,
    durable: bool = False,
    timeout: float | None = None,
) -> Store:
    """Connects to a store that is mounted: by the directory that it is mounted on, or one inside,
    by its socket, or by its file.

    ``None``: the store that ``kvfs run`` has started this program for (``$KVFS_SOCKET``).
    ``durable``: every write is on disk when its call returns. ``timeout``: seconds to wait for a
    reply before ``Disconnected``; ``None``: for ever.
    """
    from . import _remote

    database = _remote.Database(where, durable=durable, timeout=timeout)
    return Store(database, database.mainline(), database.where)


@atexit.register
def _close_all() -> None:
    failure: Exception | None = None
    for store in list(_OPEN):
        if store._pid == os.getpid():
            try:
                store.close()
            except (Closed, TransactionEnded):
                pass
            except Exception as error:
                # The others are closed all the same.
                failure = failure or error
    if failure is not None:
        raise failure
