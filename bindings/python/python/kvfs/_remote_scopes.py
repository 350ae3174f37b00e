"""The keys and files of a store behind a socket, as seen outside of transactions, in one, or in a
snapshot: what ``_kvfs.Scope`` is for an embedded store."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from ._files import FileSystem
from ._mounted_files import MountedFiles
from ._resp import Connection
from .errors import (
    Closed,
    Disconnected,
    Error,
    Forked,
    Invalid,
    Retryable,
    TransactionEnded,
    make,
)

if TYPE_CHECKING:
    from ._remote import Database

# The limits of the socket: beyond them it would end the connection.
_MAX_KEY, _MAX_VALUE = 16 << 10, 4 << 20
# Commands whose replies are waited for together: few, so that neither side waits for the other.
_TOGETHER, _TOGETHER_BYTES = 256, 1 << 20


_LOCKS_NOTHING = 'only a serializable transaction locks: begin it with isolation="ser"'


def _key(given: Any) -> bytes:
    key = _bytes(given)
    if len(key) > _MAX_KEY:
        raise Invalid(f"a key has at most {_MAX_KEY} bytes on the socket, not {len(key)}")
    return key


def _value(given: Any) -> bytes:
    value = _bytes(given)
    if len(value) > _MAX_VALUE:
        raise Invalid(f"a value has at most {_MAX_VALUE} bytes on the socket, not {len(value)}")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    hint = ": encode it, as in key.encode()" if isinstance(value, str) else ""
    raise TypeError(f"keys and values are bytes, not {type(value).__name__}{hint}")


def _is_empty(start: bytes, stop: bytes | None) -> bool:
    return stop is not None and stop <= start


class _Range:
    """A walk over a range, in portions."""

    def __init__(
        self,
        scope: Scope,
        dictionary: str,
        start: bytes,
        stop: bytes | None,
        reverse: bool,
        values: bool,
    ) -> None:
        self._scope, self._dictionary = scope, dictionary
        self._start, self._stop = start, stop
        self._reverse, self._values = reverse, values
        self._done = _is_empty(start, stop)

    def take(self, most: int) -> list[Any]:
        if self._done:
            return []
        words = [b"RANGE", self._start, self._stop or b"", b"LIMIT", b"%d" % most, b"EXACT"]
        words += [b"REV"] if self._reverse else []
        words += [] if self._values else [b"NOVALUES"]
        reply = self._scope.call(self._dictionary, *words)
        listed: list[Any] = list(zip(reply[::2], reply[1::2])) if self._values else reply
        if len(listed) < most:
            self._done = True
            return listed
        last: bytes = listed[-1][0] if self._values else listed[-1]
        if self._reverse:
            self._stop = last
        else:
            self._start = last + b"\0"
        self._done = self._done or _is_empty(self._start, self._stop)
        return listed

    def skip(self, most: int) -> int:
        passed = 0
        while passed < most and (portion := self.take(min(most - passed, 4096))):
            passed += len(portion)
        return passed

    def close(self) -> None:
        self._done = True


class Scope:
    """The keys of the store: each call takes a connection for itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._database.connection() as connection:
            yield connection

    def call(self, dictionary: str, *words: bytes) -> Any:
        """Runs a command in a dictionary."""
        with self._connection() as connection:
            connection.use(dictionary)
            return connection.call(*words)

    def is_open(self) -> bool:
        return self._database.is_open()

    def close(self) -> None:
        """There is nothing to let go of."""

    def get(self, dictionary: str, key: bytes) -> bytes | None:
        return cast("bytes | None", self.call(dictionary, b"GET", _key(key)))

    def get_many(self, dictionary: str, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for at in range(0, len(keys), 1024):
            values += self.call(dictionary, b"MGET", *map(_key, keys[at : at + 1024]))
        return values

    def contains(self, dictionary: str, key: bytes) -> bool:
        return bool(self.call(dictionary, b"EXISTS", _key(key)))

    def put(self, dictionary: str, key: bytes, value: bytes) -> None:
        self.call(dictionary, b"SET", _key(key), _value(value))

    def delete(self, dictionary: str, key: bytes) -> bool:
        return bool(self.call(dictionary, b"DEL", _key(key)))

    def add(self, dictionary: str, key: bytes, number: int) -> None:
        if not -(1 << 63) <= number < 1 << 63:
            raise OverflowError(f"a number of 64 bits is added, not {number}")
        self.call(dictionary, b"INCRBY", _key(key), b"%d" % number)

    def write_part(self, dictionary: str, key: bytes, offset: int | None, data: bytes) -> None:
        if offset is None:
            self.call(dictionary, b"APPEND", _key(key), _value(data))
        else:
            self.call(dictionary, b"SETRANGE", _key(key), b"%d" % offset, _value(data))

    def lock(
        self, dictionary: str, start: bytes, stop: bytes | None, one: bool, shared: bool
    ) -> None:
        raise Invalid(_LOCKS_NOTHING)

    def lock_directory(self, path: bytes, shared: bool) -> None:
        raise Invalid(_LOCKS_NOTHING)

    def range(
        self, dictionary: str, start: bytes, stop: bytes | None, reverse: bool, values: bool
    ) -> _Range:
        stop = None if stop is None else _bytes(stop)
        return _Range(self, dictionary, _bytes(start), stop, reverse, values)

    def estimate(self, dictionary: str, start: bytes, stop: bytes | None) -> tuple[int, ...]:
        start, stop = _bytes(start), None if stop is None else _bytes(stop)
        if _is_empty(start, stop):
            return (0, 0, 0, 0)
        return tuple(self.call(dictionary, b"ESTIMATE", start, stop or b"", b"EXACT"))

    def rank(self, dictionary: str, key: bytes) -> int:
        key = _bytes(key)
        return 0 if not key else int(self.call(dictionary, b"COUNT", b"", key, b"EXACT"))

    def select(self, dictionary: str, number: int) -> bytes | None:
        words = [b"OFFSET", b"%d" % number, b"LIMIT", b"1", b"NOVALUES", b"EXACT"]
        if number >= 1 << 63:
            return None
        return next(iter(self.call(dictionary, b"RANGE", b"", b"", *words)), None)

    def count(self, dictionary: str, start: bytes, stop: bytes | None) -> int:
        start, stop = _bytes(start), None if stop is None else _bytes(stop)
        if _is_empty(start, stop):
            return 0
        return int(self.call(dictionary, b"COUNT", start, stop or b"", b"EXACT"))

    def dictionaries(self) -> list[str]:
        with self._connection() as connection:
            return sorted(name.decode() for name in connection.call(b"DICTS"))

    def apply(self, changes: list[tuple[str, str, Any, Any]], sync: bool | None) -> None:
        """Makes changes as one: a single command where that does, else a transaction."""
        commands = _commands(changes)
        if not commands:
            return
        if len(commands) == 1 and sync is None:
            dictionary, words = commands[0]
            self.call(dictionary, *words)
            return
        scope = self._database.begin(
            serializable=False,
            check_conflicts=False,
            label="",
            lock_timeout=10.0,
            retry_of=None,
            undoable=False,
        )
        try:
            scope.apply(changes, None)
            scope.commit(sync)
        except BaseException:
            with contextlib.suppress(Error):
                scope.abort()
            raise

    def forget_files(self) -> None:
        """Nothing of them is kept here."""

    def files_of(self, owner: object) -> FileSystem:
        return MountedFiles(self._database.mounted(), self._tree_command(()))

    def _tree_command(self, behind: tuple[bytes, ...]) -> Callable[..., Any]:
        def command(*words: bytes) -> Any:
            if words[0] == b"SYNC":
                return self._database.sync()
            with self._database.connection() as connection:
                return connection.call(*words, *behind)

        return command


def _commands(changes: list[tuple[str, str, Any, Any]]) -> list[tuple[str, tuple[bytes, ...]]]:
    """The commands that make these changes, with their dictionaries."""
    commands: list[tuple[str, tuple[bytes, ...]]] = []
    for what, dictionary, key, value in changes:
        if not isinstance(dictionary, str):
            raise TypeError(f"the name of a dictionary is a str, not {type(dictionary).__name__}")
        if what == "put":
            commands.append((dictionary, (b"SET", _key(key), _value(value))))
        elif what == "delete":
            commands.append((dictionary, (b"DEL", _key(key))))
        elif what == "delete_prefix":
            commands.append((dictionary, (b"DELPREFIX", _bytes(key))))
        elif what == "delete_range":
            start, stop = _bytes(key), None if value is None else _bytes(value)
            if not _is_empty(start, stop):
                commands.append((dictionary, (b"DELRANGE", start, stop or b"", b"EXACT")))
        else:
            raise Invalid(f"{what} is no change of a key")
    return commands


class Held(Scope):
    """A scope with a connection of its own: a transaction, or a snapshot."""

    def __init__(self, database: Database, connection: Connection, what: str) -> None:
        self._own: Connection | None = connection
        super().__init__(database)
        self._lock = threading.Lock()
        self._what = what
        database.hold(self)

    def _gone(self) -> Error:
        return Closed(f"{self._what} is closed: open it again")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        own = self._own
        if own is not None and own.pid != os.getpid():
            raise Forked(
                f"{self._what} is of process {own.pid}, which this one was forked off: use it there"
            )
        if not self._database.is_open():
            raise Closed("the store is closed: open it again")
        with self._lock:
            if self._own is None:
                raise self._gone()
            try:
                yield self._own
            except (Disconnected, KeyboardInterrupt):
                # Replies that were not read would be taken for others.
                self._let_go()
                raise

    def _let_go(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def __del__(self) -> None:
        # A transaction that was begun here ends with its connection. (A forked child has a copy of
        # the descriptor alone.)
        self._let_go()

    def is_open(self) -> bool:
        own = self._own
        return own is not None and own.pid == os.getpid()

    def close(self) -> None:
        own = self._own
        if own is not None and own.pid == os.getpid():
            with self._lock:
                self._let_go()


class SnapshotScope(Held):
    """The keys of a snapshot."""

    def __init__(self, database: Database, connection: Connection, name: str) -> None:
        super().__init__(database, connection, "the snapshot")
        self._name = name

    def apply(self, changes: list[tuple[str, str, Any, Any]], sync: bool | None) -> None:
        raise make("read_only", "the store takes no more writes: it is a snapshot", 30)

    def files_of(self, owner: object) -> FileSystem:
        directory = os.path.join(self._database.mounted(), ".kvfs", "snapshot", self._name)

        def command(*words: bytes) -> Any:
            raise OSError(30, "the file system is read-only")

        return MountedFiles(directory, command)


class TransactionScope(Held):
    """The keys as a transaction sees them."""

    def __init__(self, database: Database, connection: Connection, number: int) -> None:
        super().__init__(database, connection, "the transaction")
        self.number = number
        self._savepoints = 0
        self._own_name = secrets.token_hex(8).encode()

    def _gone(self) -> Error:
        return TransactionEnded(f"no transaction {self.number}: it has ended, or never was")

    def apply(self, changes: list[tuple[str, str, Any, Any]], sync: bool | None) -> None:
        commands = deque(_commands(changes))
        with self._connection() as connection:
            while commands:
                dictionary = commands[0][0]
                together: list[tuple[bytes, ...]] = []
                size = 0
                while (
                    commands
                    and commands[0][0] == dictionary
                    and len(together) < _TOGETHER
                    and size < _TOGETHER_BYTES
                ):
                    words = commands.popleft()[1]
                    together.append(words)
                    size += sum(map(len, words))
                connection.use(dictionary)
                for reply in connection.exchange(together):
                    if isinstance(reply, Exception):
                        raise reply

    def lock(
        self, dictionary: str, start: bytes, stop: bytes | None, one: bool, shared: bool
    ) -> None:
        if one:
            words = [b"KEY", _key(start)]
        else:
            start, stop = _bytes(start), None if stop is None else _bytes(stop)
            if _is_empty(start, stop):
                return
            words = [b"RANGE", start, stop or b""]
        self._lock_words(dictionary, words, shared)

    def lock_directory(self, path: bytes, shared: bool) -> None:
        self._lock_words("0", [b"DIR", path], shared)

    def _lock_words(self, dictionary: str, words: list[bytes], shared: bool) -> None:
        self.call(dictionary, b"TXN", b"LOCK", *words, *([b"SHARED"] if shared else []))

    def commit(self, sync: bool | None) -> None:
        sync = self._database.durable if sync is None else sync
        words = (b"TXN", b"COMMIT", b"SYNC") if sync else (b"TXN", b"COMMIT")
        with self._connection() as connection:
            try:
                connection.call(*words)
            except Error:
                # After a conflict it is over; for want of space, say, it is still open.
                if self._is_over(connection):
                    self._let_go()
                raise
            self._let_go()

    def _is_over(self, connection: Connection) -> bool:
        try:
            connection.call(b"TXN", b"STATUS", b"%d" % self.number)
        except (TransactionEnded, Retryable):
            return True
        return False

    def abort(self) -> bool:
        if self._own is None:
            return False
        with self._connection() as connection:
            try:
                connection.call(b"TXN", b"ABORT", b"%d" % self.number)
            except (TransactionEnded, Retryable):
                return False
            finally:
                self._let_go()
            return True

    def savepoint(self) -> bytes:
        with self._connection() as connection:
            self._savepoints += 1
            # Others that have joined the transaction have savepoints as well.
            name = b"python-%s-%d" % (self._own_name, self._savepoints)
            connection.call(b"TXN", b"SAVEPOINT", name)
            return name

    def rollback_to(self, savepoint: bytes) -> None:
        with self._connection() as connection:
            connection.call(b"TXN", b"ROLLBACK", savepoint)

    def files_of(self, owner: object) -> FileSystem:
        directory = os.path.join(self._database.mounted(), ".kvfs", "txn", str(self.number))
        return MountedFiles(directory, self._tree_command((b"TXN", b"%d" % self.number)))
