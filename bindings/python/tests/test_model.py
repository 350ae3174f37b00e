"""Random histories against a model: a sorted dict, with transactions, savepoints, snapshots,
rollbacks, batches and, embedded, closing and opening again. A failure names its seed."""

from __future__ import annotations

import os
import random
from typing import Any

import kvfs
import pytest

SEEDS = int(os.environ.get("KVFS_SEEDS", "4"))
STEPS = 250


def key(chance: random.Random) -> bytes:
    return bytes(chance.choice(b"\0ab\xff") for _ in range(chance.randint(1, 4)))


def value(chance: random.Random) -> bytes:
    return bytes([chance.randrange(256)]) * chance.choice([0, 1, 10, 300, 3000, 70_000])


def inside(model: dict[bytes, bytes], start: bytes | None, stop: bytes | None) -> list[bytes]:
    return sorted(k for k in model if k >= (start or b"") and (stop is None or k < stop))


def change(chance: random.Random, d: Any, model: dict[bytes, bytes]) -> None:
    k, v = key(chance), value(chance)
    match chance.randrange(9):
        case 0 | 1:
            d[k] = v
            model[k] = v
        case 2:
            assert d.delete(k) == (model.pop(k, None) is not None)
        case 3:
            start, stop = key(chance), chance.choice([None, key(chance)])
            d.delete_range(start, stop)
            for gone in inside(model, start, stop):
                del model[gone]
        case 4:
            d.delete_prefix(k)
            for gone in [other for other in model if other.startswith(k)]:
                del model[gone]
        case 5:
            more = {key(chance): value(chance) for _ in range(chance.randint(0, 8))}
            d.update(more)
            model.update(more)
        case 6:
            assert d.pop(k, None) == model.pop(k, None)
        case 7:
            assert d.setdefault(k, v) == model.setdefault(k, v)
        case 8 if model:
            last = max(model)
            assert d.popitem() == (last, model.pop(last))


def compare(chance: random.Random, d: Any, model: dict[bytes, bytes]) -> None:
    k = key(chance)
    assert d.get(k) == model.get(k)
    assert (k in d) == (k in model)
    start, stop = chance.choice([None, key(chance)]), chance.choice([None, key(chance)])
    reverse = chance.random() < 0.5
    expected = inside(model, start, stop)[:: -1 if reverse else 1]
    assert list(d.keys(start, stop, reverse=reverse)) == expected
    assert list(d.items(start, stop, reverse=reverse)) == [(e, model[e]) for e in expected]
    assert [p for p, _ in d.prefix(k)] == sorted(m for m in model if m.startswith(k))
    keys = [key(chance) for _ in range(5)]
    assert d.get_many(keys) == [model.get(one) for one in keys]
    assert len(d) == len(model)


class History:
    def __init__(self, seed: int, store: kvfs.Store, path: str | None) -> None:
        self.chance = random.Random(seed)
        self.store, self.path = store, path
        self.model: dict[bytes, bytes] = {}
        self.snapshots: dict[str, dict[bytes, bytes]] = {}

    def step(self, number: int) -> None:
        chance = self.chance
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                change(chance, self.store["d"], self.model)
            case 4:
                compare(chance, self.store["d"], self.model)
            case 5 | 6:
                self.transaction()
            case 7:
                with self.store.batch(sync=chance.random() < 0.2) as batch:
                    for _ in range(chance.randint(0, 6)):
                        k, v = key(chance), value(chance)
                        if chance.random() < 0.7:
                            batch["d"][k] = v
                            self.model[k] = v
                        else:
                            del batch["d"][k]
                            self.model.pop(k, None)
            case 8 if len(self.snapshots) < 4:
                name = f"s{number}"
                self.store.create_snapshot(name)
                self.snapshots[name] = dict(self.model)
            case 9 if self.snapshots:
                name = chance.choice(sorted(self.snapshots))
                then = self.snapshots[name]
                with self.store.open_snapshot(name) as snapshot:
                    compare(chance, snapshot["d"], then)
                changes = {
                    c.key: (c.before, c.after) for c in self.store.changes(name, values=True)
                }
                assert changes == {
                    k: (then.get(k), self.model.get(k))
                    for k in then.keys() | self.model.keys()
                    if then.get(k) != self.model.get(k)
                }
            case 10 if self.snapshots:
                name = chance.choice(sorted(self.snapshots))
                if chance.random() < 0.4:
                    self.store.rollback(name)
                    self.model = dict(self.snapshots[name])
                else:
                    self.store.drop_snapshot(name)
                    del self.snapshots[name]
            case 11 if self.path is not None and chance.random() < 0.3:
                self.store.close()
                self.store = kvfs.open(self.path, memory=32 << 20)

    def transaction(self) -> None:
        chance = self.chance
        outside, ours = dict(self.model), dict(self.model)
        commits = chance.random() < 0.7
        t = self.store.transaction(chance.choice(["si", "ser"]))
        try:
            for _ in range(chance.randint(0, 8)):
                if chance.random() < 0.2:
                    savepoint, then = t.savepoint(), dict(ours)
                    change(chance, t["d"], ours)
                    savepoint.rollback()
                    ours = then
                change(chance, t["d"], ours)
                if chance.random() < 0.3:
                    compare(chance, t["d"], ours)
        except BaseException:
            t.abort()
            raise
        if commits:
            t.commit()
            self.model = ours
        else:
            t.abort()
            assert dict(self.store["d"].items()) == outside


def run(seed: int, store: kvfs.Store, path: str | None) -> None:
    history = History(seed, store, path)
    try:
        for number in range(STEPS):
            try:
                history.step(number)
            except AssertionError as wrong:
                raise AssertionError(f"seed {seed}, step {number}: {wrong}") from wrong
        assert dict(history.store["d"].items()) == history.model
    finally:
        history.store.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_embedded_store_is_a_sorted_dict(store_path: str, seed: int) -> None:
    run(seed, kvfs.open(store_path, memory=32 << 20), store_path)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_mounted_store_is_a_sorted_dict(connected: kvfs.Store, seed: int) -> None:
    run(seed, connected, None)
