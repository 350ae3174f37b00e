"""kvfs.aio: the same store, awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kvfs
import kvfs.aio
import pytest

Opened = Callable[[], Any]


@pytest.fixture(params=["embedded", "connected"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the store within an event loop."""
    if request.param == "connected":
        request.getfixturevalue("connected")
        point = request.getfixturevalue("mount").point

    @asynccontextmanager
    async def open_it() -> AsyncIterator[kvfs.aio.AsyncStore]:
        if request.param == "connected":
            store = await kvfs.aio.connect(point)
        else:
            store = await kvfs.aio.open(tmp_path / "store.kvfs", memory=64 << 20)
        async with store:
            yield store

    return open_it


def run(opened: Opened, work: Callable[[kvfs.aio.AsyncStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened() as store:
            await work(store)

    asyncio.run(main())


def test_keys_are_read_and_written_in_their_order(opened: Opened) -> None:
    async def work(store: kvfs.aio.AsyncStore) -> None:
        d = store["d"]
        await asyncio.gather(*(d.set(b"%04d" % n, b"%d" % n) for n in range(2500)))
        assert await d.count() == 2500
        assert [key async for key in d.keys()] == [b"%04d" % n for n in range(2500)]
        backward = [item async for item in d.items(b"0010", b"0013", reverse=True)]
        assert backward == [(b"0012", b"12"), (b"0011", b"11"), (b"0010", b"10")]
        assert [key async for key, _ in d.prefix(b"249")] == [b"249%d" % n for n in range(10)]
        assert await d.get_many([b"0001", b"none"]) == [b"1", None]
        assert await d.get(b"none", b"else") == b"else"
        assert await d.contains(b"0001") and not await d.contains(b"none")
        assert await d.delete(b"0000") and not await d.delete(b"0000")
        await d.add(b"n", 5)
        await d.update({b"n2": b"x"})
        assert await d.first() == (b"0001", b"1")
        assert await d.last() == (b"n2", b"x")
        await d.delete_prefix(b"n")
        await d.delete_range(b"0002")
        assert [key async for key in d.keys()] == [b"0001"]
        assert "d" in await store.dictionaries()
        await store.sync()

    run(opened, work)


def test_a_transaction_commits_with_its_block_or_leaves_nothing(opened: Opened) -> None:
    async def work(store: kvfs.aio.AsyncStore) -> None:
        async with store.transaction(label="asynchronous") as t:
            await t["d"].set(b"k", b"1")
            await t.call(lambda inner: inner.fs.write_bytes("/file", b"both"))
            assert await store["d"].get(b"k") is None
            number = t.number
            assert await store.call(lambda s: s.join(number)["d"][b"k"]) == b"1"
        # A block that has joined one ends it, and who has begun it is told.
        with pytest.raises(kvfs.TransactionEnded):
            async with store.transaction() as t:
                await t["d"].set(b"k2", b"2")
                async with store.join(t.number) as joined:
                    await joined["d"].set(b"k3", b"3")
        assert await store["d"].get_many([b"k2", b"k3"]) == [b"2", b"3"]
        assert await store["d"].get(b"k") == b"1"
        assert await store.call(lambda s: s.fs.read_bytes("/file")) == b"both"
        with pytest.raises(ZeroDivisionError):
            async with store.transaction() as t:
                await t["d"].set(b"k", b"2")
                raise ZeroDivisionError
        assert await store["d"].get(b"k") == b"1"
        assert await store.call(lambda s: s.transactions()) == []

    run(opened, work)


def test_counters_that_collide_are_run_again(opened: Opened) -> None:
    async def work(store: kvfs.aio.AsyncStore) -> None:
        await store["d"].set(b"n", b"0")

        async def raise_it(t: kvfs.aio.AsyncTransaction) -> int:
            number = int(await t["d"].get(b"n") or b"0") + 1
            await t["d"].set(b"n", b"%d" % number)
            return number

        raised = await asyncio.gather(*(store.run(raise_it) for _ in range(20)))
        assert sorted(raised) == list(range(1, 21))
        assert await store["d"].get(b"n") == b"20"
        with pytest.raises(ValueError, match="attempts"):
            await store.run(raise_it, attempts=0)

    run(opened, work)


def test_a_task_that_is_cancelled_leaves_no_transaction(opened: Opened) -> None:
    async def work(store: kvfs.aio.AsyncStore) -> None:
        entered, leave = threading.Event(), threading.Event()

        def slow(_: kvfs.Dictionary) -> None:
            entered.set()
            assert leave.wait(60)

        async def task() -> None:
            async with store.transaction() as t:
                await t["d"].set(b"k", b"lost")
                await t["d"].call(slow)

        running = asyncio.create_task(task())
        while not entered.is_set():
            await asyncio.sleep(0)
        running.cancel()
        # Its call goes on, and the abort comes behind it; the loop goes on meanwhile.
        assert await store["d"].get(b"k") is None
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await store.call(lambda s: s.transactions()) == []
        assert await store["d"].get(b"k") is None

    run(opened, work)


def test_calls_that_wait_do_not_hold_up_the_loop(opened: Opened) -> None:
    async def work(store: kvfs.aio.AsyncStore) -> None:
        gate = threading.Event()
        waiting = asyncio.create_task(store.call(lambda _: gate.wait(60)))
        assert await store["d"].get(b"none") is None
        gate.set()
        assert await waiting

    run(opened, work)


def test_misuse_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(IsADirectoryError):
            await kvfs.aio.open(tmp_path)
        store = await kvfs.aio.open(tmp_path / "store.kvfs", memory=64 << 20)
        assert "store.kvfs" in repr(store) and "'d'" in repr(store["d"])
        with pytest.raises(RuntimeError, match="async with"):
            store.transaction()["d"]
        with pytest.raises(kvfs.Invalid):
            async with store.transaction("other"):  # type: ignore[arg-type]
                pass
        await store.close()
        with pytest.raises(kvfs.Closed):
            await (await kvfs.aio.open(tmp_path / "store.kvfs")).call(_close_and_use)

    asyncio.run(main())


def _close_and_use(store: kvfs.Store) -> None:
    store.close()
    store["d"][b"k"] = b"v"
