"""A store for ``asyncio``: the same operations, awaited.

>>> import asyncio, kvfs.aio, tempfile
>>> async def main():
...     async with await kvfs.aio.open(tempfile.mkdtemp() + "/fruit.kvfs") as store:
...         fruit = store["fruit"]
...         await fruit.set(b"apple", b"red")
...         async with store.transaction() as t:
...             await t["fruit"].set(b"pear", b"green")
...         return [key async for key in fruit.keys()]
>>> asyncio.run(main())
[b'apple', b'pear']

Calls wait in threads, so that the event loop goes on: those of a store in up to eight at once,
those of a transaction in one, in the order in which they were made. A task that is cancelled goes
on at once; the call that it waited for is finished all the same, and a transaction that its block
has left is aborted behind it. What is not here is reached by ``call``, with any function of the
synchronous object: ``await store.call(lambda s: s.create_snapshot("monday"))``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Any, Generic, TypeVar

from . import _store
from ._keys import Dictionary, Estimate
from ._store import Isolation
from .errors import Retryable, Unsupported

__all__ = ["AsyncDictionary", "AsyncStore", "AsyncTransaction", "connect", "open"]

T = TypeVar("T")
S = TypeVar("S")

#: Calls of a store that wait at once.
_THREADS = 8
#: Keys that an iterator takes at once.
_PORTION = 1000


class _Threads:
    """Runs calls in threads of its own."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def finish(self, work: Callable[[], T]) -> T:
        """As ``run``; a task that is cancelled meanwhile waits for the end of it."""
        done = asyncio.ensure_future(self.run(work))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done():
                await asyncio.wait([done])
            # What it failed with is not what the task ends with.
            if not done.cancelled():
                done.exception()
            raise

    def end(self) -> None:
        self._pool.shutdown(wait=False)


class AsyncDictionary:
    """A dictionary of keys, in their order."""

    def __init__(self, threads: _Threads, dictionary: Dictionary) -> None:
        self._threads = threads
        #: The dictionary whose calls these are.
        self.dictionary = dictionary

    def __repr__(self) -> str:
        return f"<kvfs.aio of {self.dictionary!r}>"

    async def call(self, work: Callable[[Dictionary], T]) -> T:
        """What ``work`` gives, in a thread, for the dictionary."""
        return await self._threads.run(lambda: work(self.dictionary))

    async def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """The value of a key."""
        return await self.call(lambda d: d.get(key, default))

    async def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of keys, in their order."""
        wanted = list(keys)
        return await self.call(lambda d: d.get_many(wanted))

    async def contains(self, key: bytes) -> bool:
        """Whether there is such a key."""
        return await self.call(lambda d: key in d)

    async def count(self, start: bytes | None = None, stop: bytes | None = None) -> int:
        """How many keys there are from ``start`` up to ``stop``, without ``stop``."""
        return await self.call(lambda d: d.count(start, stop))

    async def set(self, key: bytes, value: bytes) -> None:
        """Sets a key."""
        await self.call(lambda d: d.__setitem__(key, value))

    async def update(self, other: Any) -> None:
        """Sets several keys, all at once."""
        await self.call(lambda d: d.update(other))

    async def delete(self, key: bytes) -> bool:
        """Deletes a key; whether it was there."""
        return await self.call(lambda d: d.delete(key))

    async def add(self, key: bytes, number: int = 1) -> None:
        """Adds to the number in a key without reading it."""
        await self.call(lambda d: d.add(key, number))

    async def delete_range(self, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Deletes the keys from ``start`` up to ``stop``, at the price of one."""
        await self.call(lambda d: d.delete_range(start, stop))

    async def delete_prefix(self, prefix: bytes) -> None:
        """Deletes the keys that begin with ``prefix``, at the price of one."""
        await self.call(lambda d: d.delete_prefix(prefix))

    async def first(self) -> tuple[bytes, bytes] | None:
        """The smallest key and its value."""
        return await self.call(lambda d: d.first())

    async def last(self) -> tuple[bytes, bytes] | None:
        """The largest key and its value."""
        return await self.call(lambda d: d.last())

    async def estimate(self, start: bytes | None = None, stop: bytes | None = None) -> Estimate:
        """About how much there is from ``start`` up to ``stop``."""
        return await self.call(lambda d: d.estimate(start, stop))

    async def rank(self, key: bytes) -> int:
        """How many keys come before ``key``."""
        return await self.call(lambda d: d.rank(key))

    async def select(self, number: int) -> bytes | None:
        """The key that ``number`` others come before."""
        return await self.call(lambda d: d.select(number))

    def keys(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> AsyncIterator[bytes]:
        """The keys from ``start`` up to ``stop``, without ``stop``."""
        return self._portions(lambda d: d.keys(start, stop, reverse=reverse))

    def items(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Keys and values from ``start`` up to ``stop``, without ``stop``."""
        return self._portions(lambda d: d.items(start, stop, reverse=reverse))

    def prefix(
        self, prefix: bytes, *, reverse: bool = False
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Keys and values of all keys that begin with ``prefix``."""
        return self._portions(lambda d: d.prefix(prefix, reverse=reverse))

    async def _portions(self, listed: Callable[[Dictionary], Iterable[T]]) -> AsyncIterator[T]:
        rest = await self.call(lambda d: iter(listed(d)))
        while portion := await self._threads.run(lambda: list(islice(rest, _PORTION))):
            for one in portion:
                yield one


class _Keyed(Generic[S]):
    """What has dictionaries: a store, a transaction."""

    _threads: _Threads
    _inner: S | None

    def _open(self) -> Any:
        if self._inner is None:
            raise RuntimeError("it is not entered: use it in `async with`")
        return self._inner

    def __getitem__(self, name: str) -> AsyncDictionary:
        """The dictionary of that name, which is made by the first write."""
        return AsyncDictionary(self._threads, self._open()[name])

    async def call(self, work: Callable[[S], T]) -> T:
        """What ``work`` gives, in a thread, for the synchronous object: files (``fs``), snapshots,
        whatever has no method here."""
        inner = self._open()
        return await self._threads.run(lambda: work(inner))

    async def dictionaries(self) -> list[str]:
        """The names of all dictionaries, sorted."""
        return await self.call(lambda inner: inner.dictionaries())  # type: ignore[attr-defined]


class AsyncTransaction(_Keyed[_store.Transaction]):
    """A transaction, for ``async with``: it begins with the block, commits at its end, and aborts
    when an exception leaves it, a cancellation among them."""

    def __init__(self, begin: Callable[[], _store.Transaction]) -> None:
        self._begin = begin
        self._inner = None
        self._threads = _Threads(1, "kvfs-transaction")

    @property
    def number(self) -> int:
        """Its number, by which others can join it while it is open."""
        return int(self._open().number)

    async def commit(self, *, sync: bool | None = None) -> None:
        """Makes its changes part of the store, all at once. A task that is cancelled meanwhile
        waits until it is known, and is cancelled then, whether or not it has committed."""
        inner = self._open()
        await self._threads.finish(lambda: inner.commit(sync=sync))

    async def abort(self) -> None:
        """Ends it without a trace."""
        inner = self._open()
        await self._threads.finish(lambda: inner.abort())

    async def __aenter__(self) -> AsyncTransaction:
        def begin() -> None:
            self._inner = self._begin()

        try:
            await self._threads.finish(begin)
        except BaseException:
            # It may have begun.
            if self._inner is not None:
                await self._threads.finish(self._inner.abort)
            self._threads.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        inner: _store.Transaction = self._open()
        try:
            # Behind the calls that are under way: there is one thread.
            await self._threads.finish(lambda: inner.__exit__(kind, error, trace))
        finally:
            self._threads.end()


class AsyncStore(_Keyed[_store.Store]):
    """An open store. See ``kvfs.aio.open``, ``kvfs.aio.connect``."""

    def __init__(self, store: _store.Store, threads: _Threads) -> None:
        self._threads = threads
        self._inner = store

    def __repr__(self) -> str:
        return f"<kvfs.aio of {self._inner!r}>"

    @property
    def store(self) -> _store.Store:
        """The store whose calls these are."""
        return self._open()  # type: ignore[no-any-return]

    def transaction(self, isolation: Isolation = "si", **options: Any) -> AsyncTransaction:
        """A transaction, with the options of ``Store.transaction``."""
        store: _store.Store = self._open()
        return AsyncTransaction(lambda: store.transaction(isolation, **options))

    def join(self, number: int, *, sync: bool | None = None) -> AsyncTransaction:
        """A transaction that was begun elsewhere, by its number."""
        store: _store.Store = self._open()
        return AsyncTransaction(lambda: store.join(number, sync=sync))

    async def run(
        self,
        work: Callable[[AsyncTransaction], Awaitable[T]],
        isolation: Isolation = "si",
        *,
        attempts: int = 100,
        **options: Any,
    ) -> T:
        """Awaits ``work`` with a transaction, commits it, and gives what ``work`` has given. On
        ``Conflict`` and ``Locked`` all of it is done again, ``attempts`` times at most."""
        if attempts < 1:
            raise ValueError(f"attempts is at least 1, not {attempts}")
        for attempt in range(attempts):
            try:
                async with self.transaction(isolation, **options) as t:
                    return await work(t)
            except Retryable:
                if attempt + 1 == attempts:
                    raise
            await asyncio.sleep(min(0.001 * 2 ** min(attempt, 6), 0.05))
        raise AssertionError("the last attempt has returned or raised")

    async def sync(self) -> None:
        """Waits until everything that was done before is on disk."""
        await self.call(lambda store: store.sync())

    async def close(self) -> None:
        """Makes everything durable and lets go of the store."""
        store: _store.Store = self._open()
        try:
            await self._threads.finish(store.close)
        finally:
            self._threads.end()

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _made(make: Callable[[], _store.Store]) -> AsyncStore:
    threads = _Threads(_THREADS, "kvfs")
    made: list[_store.Store] = []
    try:
        await threads.finish(lambda: made.append(make()))
    except BaseException:
        for store in made:
            await threads.finish(store.close)
        threads.end()
        raise
    return AsyncStore(made[0], threads)


async def open(path: str | bytes | os.PathLike[str], **options: Any) -> AsyncStore:
    """Opens the store in a file, or makes one, with the options of ``kvfs.open``. Transactions and
    snapshots that a server holds are not awaited: their calls wait in threads of the caller."""
    if options.get("txn") or options.get("snapshot") is not None:
        raise Unsupported("kvfs.aio opens stores: call kvfs.open with txn or snapshot in a thread")
    return await _made(lambda: _store.open(path, **options))


async def connect(
    where: str | bytes | os.PathLike[str] | None = None, **options: Any
) -> AsyncStore:
    """Connects to a store that is mounted, with the options of ``kvfs.connect``."""
    return await _made(lambda: _store.connect(where, **options))
