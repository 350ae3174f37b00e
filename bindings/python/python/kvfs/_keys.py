"""Dictionaries: ordered key spaces of a store, which behave like a ``dict`` of bytes with an order.

The objects here know nothing of where the store is. They work on a *scope*, which is the store
itself, a transaction or a snapshot, embedded (``_kvfs.Scope``) or behind a socket
(``_remote.Scope``).
"""

from __future__ import annotations

from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from .errors import Invalid

if TYPE_CHECKING:
    from ._store import Transaction

T = TypeVar("T")
_MISSING: Any = object()

# The first portion of a listing is small, for those who want one key; later ones are larger.
_FIRST, _LARGEST = 16, 4096


@dataclass(frozen=True)
class Estimate:
    """About how much lies in a range of keys; no tuple was read for it."""

    keys: int
    #: By how many ``keys`` may be off.
    keys_error: int
    #: Bytes of keys and values.
    size: int
    #: By how many ``size`` may be off.
    size_error: int


class _Listing:
    """A range of a dictionary: iterated, it is read as it is at that moment."""

    def __init__(
        self,
        dictionary: Dictionary,
        start: bytes | None,
        stop: bytes | None,
        reverse: bool,
    ) -> None:
        self._mapping = dictionary
        self._start = b"" if start is None else start
        self._stop = stop
        self._reverse = reverse

    def _portions(self, values: bool, turned: bool = False) -> Iterator[list[Any]]:
        d = self._mapping
        listed = d._scope.range(
            d.name, self._start, self._stop, self._reverse is not turned, values
        )
        size = _FIRST
        try:
            while portion := listed.take(size):
                yield portion
                size = min(4 * size, _LARGEST)
        finally:
            listed.close()

    def __len__(self) -> int:
        d = self._mapping
        listed = d._scope.range(d.name, self._start, self._stop, False, False)
        counted = 0
        try:
            # In parts, so that an interrupt is heard.
            while passed := listed.skip(65536):
                counted += passed
        finally:
            listed.close()
        return counted

    def __bool__(self) -> bool:
        d = self._mapping
        listed = d._scope.range(d.name, self._start, self._stop, False, False)
        try:
            return bool(listed.take(1))
        finally:
            listed.close()

    def _covers(self, key: object) -> bool:
        if not isinstance(key, (bytes, bytearray, memoryview)):
            return False
        key = bytes(key)
        return key >= self._start and (self._stop is None or key < self._stop)


class Keys(_Listing, KeysView[bytes]):
    """The keys of a range, in order. Values are not read."""

    def __iter__(self) -> Iterator[bytes]:
        for portion in self._portions(False):
            yield from portion

    def __reversed__(self) -> Iterator[bytes]:
        for portion in self._portions(False, True):
            yield from portion

    def __contains__(self, key: object) -> bool:
        return self._covers(key) and key in self._mapping


class Items(_Listing, ItemsView[bytes, bytes]):
    """The keys of a range with their values, in order."""

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for portion in self._portions(True):
            yield from portion

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        for portion in self._portions(True, True):
            yield from portion

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        key, value = item
        return self._covers(key) and bool(self._mapping.get(key) == value)


class Values(_Listing, ValuesView[bytes]):
    """The values of a range, in the order of their keys."""

    def __iter__(self) -> Iterator[bytes]:
        for portion in self._portions(True):
            for _, value in portion:
                yield value

    def __reversed__(self) -> Iterator[bytes]:
        for portion in self._portions(True, True):
            for _, value in portion:
                yield value

    def __contains__(self, value: object) -> bool:
        return any(value == other for other in self)


class Dictionary(MutableMapping[bytes, bytes]):
    """An ordered key space: a ``dict`` of bytes, sorted by its keys.

    It is made by the first write. Every change is atomic. Outside of a transaction it is visible to
    others when the call returns, and on disk within a second, or at once in a store that was opened
    with ``durable=True``.
    """

    __slots__ = ("_owner", "_scope", "name")

    def __init__(self, owner: Any, scope: Any, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a dictionary is a str, not {type(name).__name__}")
        self._owner = owner
        self._scope = scope
        #: The name of the dictionary.
        self.name = name

    def __repr__(self) -> str:
        return f"<kvfs.Dictionary {self.name!r} of {self._owner!r}>"

    # --- one key

    def __getitem__(self, key: bytes) -> bytes:
        value = self._scope.get(self.name, key)
        if value is None:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    @overload
    def get(self, key: bytes, /) -> bytes | None: ...
    @overload
    def get(self, key: bytes, /, default: bytes | T) -> bytes | T: ...
    def get(self, key: bytes, /, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        value = self._scope.get(self.name, key)
        return default if value is None else value

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The value of each of ``keys``, in their order: cheaper than one by one."""
        return self._scope.get_many(self.name, list(keys))  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        return bool(self._scope.contains(self.name, key))

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._scope.put(self.name, key, value)

    def __delitem__(self, key: bytes) -> None:
        if not self._scope.delete(self.name, key):
            raise KeyError(key)

    def delete(self, key: bytes) -> bool:
        """Deletes ``key`` if it is there; whether it was."""
        return bool(self._scope.delete(self.name, key))

    def add(self, key: bytes, number: int = 1) -> None:
        """Adds ``number`` to the number that the value of ``key`` is, in decimal.

        A missing one is 0. Two transactions that add to one key both commit.
        """
        self._scope.add(self.name, key, number)

    def append(self, key: bytes, data: bytes) -> None:
        """Writes ``data`` at the end of the value of ``key``, which is not read for it. ``Invalid``
        if that makes it longer than a value may be."""
        if data:
            self._scope.write_part(self.name, key, None, data)

    def patch(self, key: bytes, offset: int, data: bytes) -> None:
        """Writes ``data`` into the value of ``key`` from byte ``offset`` on. The value is not read
        for it; a shorter one gets zeros up to there."""
        if not 0 <= offset < 1 << 63:
            raise Invalid(f"a part of a value begins at a byte of it, not {offset}")
        if data:
            self._scope.write_part(self.name, key, offset, data)

    # --- locks

    def lock(self, key: bytes, *, shared: bool = False) -> None:
        """Locks ``key`` for the rest of a serializable transaction, whether it is there or not:
        against changes by others, and against their reads as well unless ``shared``."""
        self._scope.lock(self.name, key, None, True, bool(shared))

    def lock_range(
        self, start: bytes | None = None, stop: bytes | None = None, *, shared: bool = False
    ) -> None:
        """Locks the keys from ``start`` up to ``stop``, without ``stop``, as ``lock`` does."""
        self._scope.lock(self.name, start or b"", stop, False, bool(shared))

    # --- several keys

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys())

    def __reversed__(self) -> Iterator[bytes]:
        return reversed(self.keys())

    def __len__(self) -> int:
        """How many keys there are: all of them are read for it. See ``estimate``."""
        return len(self.keys())

    def __bool__(self) -> bool:
        return bool(self.keys())

    def keys(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Keys:
        """The keys from ``start`` up to ``stop``, without ``stop``; ``reverse``: the last first."""
        return Keys(self, start, stop, reverse)

    def values(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Values:
        """The values of the keys from ``start`` up to ``stop``, without ``stop``."""
        return Values(self, start, stop, reverse)

    def items(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Items:
        """Keys and values from ``start`` up to ``stop``, without ``stop``.

        An iterator of an embedded store shows one state, whatever is written while it goes on. Over
        a socket that holds in a transaction and in a snapshot; outside of them each portion (of
        4096 keys at most) is a state of its own.
        """
        return Items(self, start, stop, reverse)

    def prefix(self, prefix: bytes, *, reverse: bool = False) -> Items:
        """Keys and values of all keys that begin with ``prefix``."""
        return Items(self, prefix, prefix_end(prefix), reverse)

    def first(self) -> tuple[bytes, bytes] | None:
        """The smallest key and its value; ``None`` when there is no key."""
        return next(iter(self.items()), None)

    def last(self) -> tuple[bytes, bytes] | None:
        """The largest key and its value; ``None`` when there is no key."""
        return next(iter(self.items(reverse=True)), None)

    def estimate(self, start: bytes | None = None, stop: bytes | None = None) -> Estimate:
        """About how many keys and bytes lie in a range, in the time of two lookups."""
        return Estimate(*self._scope.estimate(self.name, start or b"", stop))

    def rank(self, key: bytes) -> int:
        """How many keys come before ``key``, which need not be there. The first call counts the
        dictionary; later ones take microseconds, whatever was written in between."""
        rank: int = self._scope.rank(self.name, key)
        return rank

    def select(self, number: int) -> bytes | None:
        """The key that ``number`` others come before; ``None`` when there are not so many. It costs
        what ``rank`` costs."""
        if not 0 <= number < 1 << 64:
            raise ValueError(f"a number of keys is not {number}")
        found: bytes | None = self._scope.select(self.name, number)
        return found

    def count(self, start: bytes | None = None, stop: bytes | None = None) -> int:
        """How many keys there are from ``start`` up to ``stop``, without ``stop``, exactly. It
        costs what ``rank`` costs."""
        count: int = self._scope.count(self.name, start or b"", stop)
        return count

    def delete_range(self, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Deletes all keys from ``start`` up to ``stop``, without ``stop``, at the price of one."""
        change = ("delete_range", self.name, start or b"", stop)
        self._scope.apply([change], None)

    def delete_prefix(self, prefix: bytes) -> None:
        """Deletes all keys that begin with ``prefix``, at the price of one."""
        self._scope.apply([("delete_prefix", self.name, prefix, None)], None)

    def clear(self) -> None:
        """Deletes all keys, at the price of one."""
        self.delete_prefix(b"")

    def update(self, other: Any = (), /, **keywords: Any) -> None:
        """Sets the keys of a mapping, or of pairs of key and value: all of them as one change."""
        if keywords:
            raise TypeError("keys are bytes, which keyword arguments are not")
        pairs = other.items() if isinstance(other, Mapping) else other
        self._scope.apply([("put", self.name, key, value) for key, value in pairs], None)

    # --- reading and writing as one step

    @overload
    def pop(self, key: bytes, /) -> bytes: ...
    @overload
    def pop(self, key: bytes, /, default: bytes | T) -> bytes | T: ...
    def pop(self, key: bytes, /, default: Any = _MISSING) -> Any:
        """Deletes ``key`` and gives its value; ``default`` when it is not there."""

        def take(d: Dictionary) -> Any:
            value = d.get(key)
            if value is not None:
                d.delete(key)
            return value

        value = self._atomically(take)
        if value is not None:
            return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[bytes, bytes]:
        """Deletes the largest key, and gives it with its value."""

        def take(d: Dictionary) -> tuple[bytes, bytes] | None:
            item = d.last()
            if item is not None:
                d.delete(item[0])
            return item

        item = self._atomically(take)
        if item is None:
            raise KeyError("the dictionary is empty")
        return item

    def setdefault(self, key: bytes, default: bytes | None = None, /) -> bytes:
        """The value of ``key``, which is set to ``default`` if it is not there."""
        if default is None:
            raise TypeError("setdefault() takes a value: None is none")

        def set_default(d: Dictionary) -> bytes:
            value = d.get(key)
            if value is None:
                d[key] = default
                return bytes(default)
            return value

        return self._atomically(set_default)

    def _atomically(self, work: Callable[[Dictionary], T]) -> T:
        """Reads and writes as one step: here, in a transaction, or in one of its own."""
        run = getattr(self._owner, "run", None)
        if run is None:
            return work(self)

        def in_transaction(t: Transaction) -> T:
            return work(t[self.name])

        return run(in_transaction)  # type: ignore[no-any-return]


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key behind all that begin with ``prefix``; ``None`` when there is none."""
    if not isinstance(prefix, (bytes, bytearray, memoryview)):
        raise TypeError(f"a prefix is bytes, not {type(prefix).__name__}")
    trimmed = bytes(prefix).rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


class Batch:
    """Changes that are made as one: all of them, or none. See ``Store.batch``."""

    def __init__(self, scope: Any, sync: bool | None) -> None:
        self._scope = scope
        self._sync = sync
        self._changes: list[tuple[str, str, bytes, bytes | None]] | None = []

    def __getitem__(self, dictionary: str) -> BatchDictionary:
        return BatchDictionary(self, dictionary)

    def __len__(self) -> int:
        return len(self._changes or ())

    def _note(self, what: str, dictionary: str, key: bytes, value: bytes | None) -> None:
        if self._changes is None:
            raise _made_already()
        # Copied, for the caller may go on with a bytearray.
        copied = None if value is None else _copied(value)
        self._changes.append((what, dictionary, _copied(key), copied))

    def apply(self) -> None:
        """Makes the changes; a ``with`` block does so at its end."""
        changes, self._changes = self._changes, None
        if changes is None:
            raise _made_already()
        self._scope.apply(changes, self._sync)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self._changes is not None:
            self.apply()
        self._changes = None


def _made_already() -> Invalid:
    return Invalid("the batch was made already: begin another one")


def _copied(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"keys and values are bytes, not {type(value).__name__}")


class BatchDictionary:
    """A dictionary in a batch: it is written, not read."""

    __slots__ = ("_batch", "name")

    def __init__(self, batch: Batch, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a dictionary is a str, not {type(name).__name__}")
        self._batch = batch
        self.name = name

    def __setitem__(self, key: bytes, value: bytes) -> None:
        # This is done in place, as a batch may have many changes.
        if type(key) is not bytes:
            key = _copied(key)
        if type(value) is not bytes:
            value = _copied(value)
        changes = self._batch._changes
        if changes is None:
            raise _made_already()
        changes.append(("put", self.name, key, value))

    def __delitem__(self, key: bytes) -> None:
        """Deletes ``key``, whether or not it is there."""
        self._batch._note("delete", self.name, key, None)

    def delete_range(self, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Deletes all keys from ``start`` up to ``stop``, without ``stop``."""
        self._batch._note("delete_range", self.name, start or b"", stop)

    def delete_prefix(self, prefix: bytes) -> None:
        """Deletes all keys that begin with ``prefix``."""
        self._batch._note("delete_prefix", self.name, prefix, None)
