"""How dictionaries keep their tuples, parts of values, locks ahead of time, and clones: the same
for both kinds of stores."""

from __future__ import annotations

import kvfs
import pytest


def test_a_dictionary_has_the_options_that_it_was_made_with(store: kvfs.Store) -> None:
    log = store.create_dictionary("log", compression="zstd", separate_at=512)
    log[b"k"] = b"v" * 1000
    options = {
        "separate_at": "512",
        "stitch_at": "adaptive",
        "compression": "zstd",
        "value_compression": "none",
        "false_positives": "80",
        "merge": "none",
    }
    assert store.dictionary_options("log") == options
    with pytest.raises(kvfs.Error):
        store.create_dictionary("log", compression="lz4")
    store.set_dictionary("log", merge="add", stitch_at="never")
    refused: list[dict[str, str | int]] = [
        {"merge": "guess"},
        {"false_positives": 20_000},
        {"color": "red"},
    ]
    for wrong in refused:
        with pytest.raises(kvfs.Error):
            store.set_dictionary("log", **wrong)
    with pytest.raises(kvfs.Invalid):
        store.set_dictionary("log")
    assert store.dictionary_options("log") == {**options, "merge": "add", "stitch_at": "never"}
    with pytest.raises(kvfs.Error):
        store.dictionary_options("missing")
    for name in ("log", None):
        store.compact(name)
    assert log[b"k"] == b"v" * 1000


def test_a_part_of_a_value_is_written(store: kvfs.Store) -> None:
    d = store["d"]
    d[b"k"] = b"0123456789" * 500
    d.patch(b"k", 4990, b"abc")
    d.append(b"k", b"!")
    d.append(b"k", b"")
    assert d[b"k"] == b"0123456789" * 499 + b"abc3456789!"
    d.patch(b"new", 3, b"x")
    d.append(b"other", b"y")
    assert (d[b"new"], d[b"other"]) == (b"\0\0\0x", b"y")
    with pytest.raises(kvfs.Invalid):
        d.patch(b"k", -1, b"x")
    with store.transaction() as t:
        t["d"].append(b"other", b"z")
        assert t["d"][b"other"] == b"yz" and d[b"other"] == b"y"
    assert d[b"other"] == b"yz"


def test_a_value_takes_no_append_beyond_its_longest_length(embedded: kvfs.Store) -> None:
    d = embedded["d"]
    d.patch(b"k", (7 << 20) - 2, b"x")
    d.append(b"k", b"y")
    with pytest.raises(kvfs.Invalid):
        d.append(b"k", b"z")
    with embedded.transaction() as t, pytest.raises(kvfs.Invalid):
        t["d"].append(b"k", b"z")
    assert len(d[b"k"]) == 7 << 20


def test_a_serializable_transaction_locks_ahead_of_time(store: kvfs.Store) -> None:
    store["d"][b"k"] = b"v"
    store.fs.mkdir("/dir")
    with store.transaction("ser") as t, store.transaction("ser", lock_timeout=0.05) as other:
        t["d"].lock(b"k")
        t["d"].lock_range(b"l", b"m")
        t["d"].lock_range(b"n", shared=True)
        t.lock_directory("/dir", shared=True)
        other["d"].lock_range(b"n", shared=True)
        other.lock_directory("/dir", shared=True)
        with pytest.raises(FileNotFoundError):
            t.lock_directory("/none")
        with pytest.raises(kvfs.Locked):
            other["d"].lock(b"l")
        other.abort()
    with store.transaction() as t:
        for lock in (lambda: t["d"].lock(b"k"), lambda: t.lock_directory("/dir")):
            with pytest.raises(kvfs.Error):
                lock()


def test_a_transaction_works_in_a_clone(store: kvfs.Store) -> None:
    store["d"][b"k"] = b"store"
    store.create_snapshot("base")
    store.create_clone("base", "work")
    assert store.clones() == [kvfs.CloneInfo("work", "base")]
    with store.transaction(clone="work") as t:
        assert t["d"][b"k"] == b"store" and t.dictionaries() == ["d"]
        t["d"][b"k"] = b"clone"
        t["made"][b"there"] = b"1"
    assert store["d"][b"k"] == b"store" and store.dictionaries() == ["d"]
    with store.transaction(clone="work") as t:
        assert t["d"][b"k"] == b"clone" and t["made"][b"there"] == b"1"
    store.drop_clone("work")
    assert store.clones() == []
    with pytest.raises(kvfs.Error):
        store.transaction(clone="work")
