"""A store that is mounted, behind the socket of its daemon.

``Database`` has the calls of the native ``_kvfs.Database``, and the scopes that it gives those of
``_kvfs.Scope``, so that what is above them need not know which it works on. The protocol is RESP,
that of Redis (docs/resp.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

from ._remote_scopes import Held, Scope, SnapshotScope, TransactionScope
from ._resp import Connection, found
from .errors import Closed, Conflict, Disconnected, Invalid, Unsupported

_IDLE_CONNECTIONS = 16

#: Keys that are named where a commit cannot be undone.
_NAMED = 3


def _name(text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"a name is a str, not {type(text).__name__}")
    return text.encode("utf-8", "surrogateescape")


class _Changes:
    """The keys that differ between two snapshots, of which the daemon gives the sizes."""

    def __init__(
        self, database: Database, before: str, after: str | None, only: str | None, values: bool
    ) -> None:
        words = [b"SNAPSHOT", b"CHANGES", _name(before)]
        words += [] if after is None else [_name(after)]
        with database.connection() as connection:
            listed = connection.call(*words)
        # Longer rows are of what is no string, and has no bytes: collections and deadlines.
        strings = [row for row in listed if len(row) == 4]
        changed = [(d.decode(), key, old, new) for d, key, old, new in strings]
        self._rest = deque(change for change in changed if only is None or change[0] == only)
        self._sides: list[Scope] = []
        if values:
            self._sides = [
                database.open_snapshot(before),
                database.mainline() if after is None else database.open_snapshot(after),
            ]

    def take(self, most: int) -> list[Any]:
        portion: list[Any] = []
        # Values may be large.
        most = min(most, 64) if self._sides else most
        while self._rest and len(portion) < most:
            dictionary, key, old, new = self._rest.popleft()
            values = [side.get(dictionary, key) for side in self._sides] or [None, None]
            portion.append((dictionary, key, old, new, *values))
        return portion

    def close(self) -> None:
        self._rest.clear()
        for side in self._sides:
            side.close()
        self._sides = []


def _words(options: list[tuple[str, str]]) -> list[bytes]:
    return [_name(word) for pair in options for word in pair]


def _fields(listed: list[Any]) -> dict[str, Any]:
    return {key.decode(): value for key, value in zip(listed[::2], listed[1::2])}


def _stands_against(commit: int, label: bytes, against: list[bytes]) -> str:
    names = [name.decode(errors="replace") for name in against]
    # The last one says that there may be more than are named.
    cut = names[-1] == "others"
    if cut:
        names.pop()
    least = "at least " if cut else ""
    more = " and others" if cut else ""
    if len(names) > _NAMED:
        more = f" and {least}{len(names) - _NAMED} more"
    shown = ", ".join(names[:_NAMED])
    what = f"commit {commit} ({label.decode(errors='replace')}) cannot be undone"
    return f"{what}: others have changed {shown}{more} since"


def _embedded_only(what: str, instead: str) -> Unsupported:
    return Unsupported(f"{what} is done with a store that is not mounted, or by `{instead}`")


class Database:
    """A store behind a socket. Connections are made as they are needed, and kept for the next."""

    def __init__(self, where: Any, *, durable: bool, timeout: float | None) -> None:
        self.durable = bool(durable)
        if timeout is not None and not timeout > 0:
            raise Invalid(f"timeout is a number of seconds, not {timeout}")
        self._timeout = timeout
        self._path, self._mount = found(where)
        self.where = os.fsdecode(self._path)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        # The daemon has answered once, so where it does not any more it is gone.
        self._reached = False
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._closed = False
        # One is made now, to see whether that works.
        with self.connection():
            pass

    # --- connections

    def _connect(self) -> Connection:
        if len(self._path) > 107:
            raise Invalid(f"the path of a socket has at most 107 bytes: {self.where}")
        try:
            connection = Connection(self._path, self._timeout)
        except (FileNotFoundError, ConnectionError) as error:
            if not self._reached:
                raise
            raise Disconnected(f"the store's daemon is gone: {error}") from None
        self._reached = True
        return connection

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection outside of transactions, for this thread."""
        pid = os.getpid()
        with self._lock:
            if self._closed:
                raise Closed("the store is closed: open it again")
            # A forked child makes its own: those of the parent are its parent's.
            self._idle = [c for c in self._idle if c.pid == pid]
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect()
            if self.durable:
                connection.call(b"DURABLE", b"yes")
        kept = False
        try:
            yield connection
            kept = True
        except (Disconnected, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:
            kept = True
            raise
        finally:
            with self._lock:
                kept = (
                    kept
                    and connection.whole
                    and not self._closed
                    and len(self._idle) < _IDLE_CONNECTIONS
                )
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()

    def hold(self, scope: Held) -> None:
        """Has a scope closed with the store."""
        with self._lock:
            self._held.add(scope)

    def mounted(self) -> str:
        """The directory that the store is mounted on."""
        if self._mount is None:
            raise Unsupported(
                "it is not known where the store is mounted: connect by the directory, "
                "not the socket"
            )
        return self._mount

    def is_open(self) -> bool:
        return not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            held = list(self._held)
        pid = os.getpid()
        for scope in held:
            scope.close()
        for connection in idle:
            if connection.pid == pid:
                connection.close()

    # --- the calls of the native one

    def mainline(self) -> Scope:
        return Scope(self)

    def begin(
        self,
        *,
        serializable: bool,
        check_conflicts: bool,
        label: str,
        lock_timeout: float,
        retry_of: int | None,
        undoable: bool,
        clone: str | None = None,
    ) -> TransactionScope:
        words = [b"TXN", b"BEGIN"]
        words += [] if clone is None else [b"OF", _name(clone)]
        words += [b"SER" if serializable else b"SI", b"ATTACHED"]
        words += [] if check_conflicts else [b"NOCHECK"]
        words += [b"UNDOABLE"] if undoable else []
        words += [b"LABEL", _name(label)] if label else []
        words += [b"TIMEOUT", repr(float(lock_timeout)).encode()]
        with self._own_connection() as connection:
            number = connection.call(*words)
            connection.call(b"TXN", b"JOIN", b"%d" % number)
        return TransactionScope(self, connection, number)

    def join(self, number: int) -> TransactionScope:
        with self._own_connection() as connection:
            connection.call(b"TXN", b"JOIN", b"%d" % int(number))
        return TransactionScope(self, connection, int(number))

    def commits(self) -> list[tuple[int, str, float, int]]:
        with self.connection() as connection:
            listed = [_fields(fields) for fields in connection.call(b"TXN", b"COMMITS")]
        return [
            (c["number"], c["label"].decode(), float(c["created"]), c["held_bytes"]) for c in listed
        ]

    def undo(self, commit: int | None) -> TransactionScope:
        words = [b"TXN", b"UNDO"]
        words += [] if commit is None else [b"%d" % int(commit)]
        with self._own_connection() as connection:
            number, commit, label, against = connection.call(*words, b"ATTACHED")
            if against:
                connection.call(b"TXN", b"ABORT", b"%d" % number)
                raise Conflict(_stands_against(commit, label, against))
            connection.call(b"TXN", b"JOIN", b"%d" % number)
        return TransactionScope(self, connection, number)

    @contextlib.contextmanager
    def _own_connection(self) -> Iterator[Connection]:
        """A connection for one scope alone, which is closed if the scope cannot be made."""
        if self._closed:
            raise Closed("the store is closed: open it again")
        connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise

    def snapshots(self) -> list[tuple[str, str, float, int, int]]:
        with self.connection() as connection:
            listed = [_fields(fields) for fields in connection.call(b"SNAPSHOT", b"LIST")]
        return [
            (
                s["name"].decode(),
                s["clone"].decode(),
                float(s["created"]),
                s["bytes"],
                s["unique_bytes"],
            )
            for s in listed
        ]

    def _snapshot(self, what: bytes, name: str) -> None:
        with self.connection() as connection:
            connection.call(b"SNAPSHOT", what, _name(name))

    def create_snapshot(self, name: str) -> None:
        self._snapshot(b"CREATE", name)

    def drop_snapshot(self, name: str) -> None:
        self._snapshot(b"DROP", name)

    def rollback(self, name: str) -> None:
        self._snapshot(b"ROLLBACK", name)

    def open_snapshot(self, name: str) -> SnapshotScope:
        with self._own_connection() as connection:
            connection.call(b"SNAPSHOT", b"USE", _name(name))
        return SnapshotScope(self, connection, name)

    def changes(
        self, before: str, after: str | None, dictionary: str | None, values: bool
    ) -> _Changes:
        return _Changes(self, before, after, dictionary, values)

    def file_changes(
        self, before: str, after: str | None
    ) -> list[tuple[bytes, str, int | None, int | None]]:
        words = [b"SNAPSHOT", b"FILES", _name(before)]
        words += [] if after is None else [_name(after)]
        with self.connection() as connection:
            listed = connection.call(*words)
        return [(path, kind.decode(), old, new) for path, kind, old, new, _ in listed]

    def push(self, address: str, take: bool) -> tuple[int, int, int, int, int]:
        if take:
            raise _embedded_only("replacing what is published", "kvfs push --take FILE ADDRESS")
        with self.connection() as connection:
            said = json.loads(connection.call(b"KVFS.PUSH", address.encode()))
        names = ("generation", "zones", "objects", "bytes", "live_bytes")
        generation, zones, objects, size, live = (said[name] for name in names)
        return generation, zones, objects, size, live

    def merge_fork(self, fork: Any, **_: Any) -> Any:
        raise _embedded_only("merging a fork", "kvfs merge FORK --into MOUNT")

    def send(self, name: str, base: str | None, file: Any) -> tuple[int, int, int]:
        raise _embedded_only("sending", "kvfs send MOUNT SNAPSHOT")

    def receive(self, file: Any, snapshot: str | None, replace: bool) -> tuple[str, int]:
        raise _embedded_only("receiving", "kvfs receive STORE")

    def sync(self) -> None:
        with self.connection() as connection:
            connection.call(b"SYNC")

    def create_dictionary(self, name: str, options: list[tuple[str, str]]) -> None:
        with self.connection() as connection:
            if options or _name(name) not in connection.call(b"DICTS"):
                connection.call(b"DICT", b"CREATE", _name(name), *_words(options))

    def set_dictionary(self, name: str, options: list[tuple[str, str]]) -> None:
        with self.connection() as connection:
            connection.call(b"DICT", b"SET", _name(name), *_words(options))

    def dictionary_options(self, name: str) -> list[tuple[str, str]]:
        with self.connection() as connection:
            listed = _fields(connection.call(b"DICT", b"INFO", _name(name)))
        # What the store does now with short values is no option.
        return [
            (option, value.decode()) for option, value in listed.items() if option != "short-values"
        ]

    def compact(self, name: str | None) -> None:
        with self.connection() as connection:
            if name is None:
                connection.call(b"COMPACT", b"STORE")
            else:
                connection.use(name)
                connection.call(b"COMPACT")

    def clones(self) -> list[tuple[str, str | None]]:
        with self.connection() as connection:
            listed = [_fields(fields) for fields in connection.call(b"CLONE", b"LIST")]
        return [
            (c["name"].decode(), None if c["snapshot"] is None else c["snapshot"].decode())
            for c in listed
        ]

    def create_clone(self, snapshot: str, name: str) -> None:
        with self.connection() as connection:
            connection.call(b"CLONE", b"CREATE", _name(snapshot), _name(name))

    def drop_clone(self, name: str) -> None:
        with self.connection() as connection:
            connection.call(b"CLONE", b"DROP", _name(name))

    def drop_dictionary(self, name: str) -> None:
        with self.connection() as connection:
            connection.call(b"DICT", b"DROP", _name(name))

    def transactions(self) -> list[tuple[int, str, bool, float, float, int]]:
        with self.connection() as connection:
            listed = [_fields(fields) for fields in connection.call(b"TXN", b"LIST")]
        return [
            (
                t["id"],
                t["label"].decode(),
                t["isolation"].lower() == b"ser",
                t["age_ms"] / 1000,
                t["idle_ms"] / 1000,
                t["changes"],
            )
            for t in listed
        ]

    def statistics(self) -> dict[str, Any]:
        with self.connection() as connection:
            return cast("dict[str, Any]", json.loads(connection.call(b"KVFS.STAT")))
