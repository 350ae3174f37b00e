"""Dictionaries behave like an ordered dict of bytes, embedded and mounted alike."""

from __future__ import annotations

import kvfs
import pytest


def test_a_dictionary_is_made_by_its_first_write(store: kvfs.Store) -> None:
    assert store.dictionaries() == []
    fruit = store["fruit"]
    assert fruit.get(b"apple") is None
    assert len(fruit) == 0 and not fruit and list(fruit) == []
    fruit.clear()
    fruit.delete(b"apple")
    assert store.dictionaries() == []
    fruit[b"apple"] = b"red"
    assert store.dictionaries() == ["fruit"]
    assert fruit and len(fruit) == 1


def test_get_set_delete_contains(store: kvfs.Store) -> None:
    d = store["d"]
    d[b"k"] = b""
    assert d[b"k"] == b"" and b"k" in d
    d[b"k"] = b"\0v\xff"
    assert d.get(b"k") == b"\0v\xff"
    assert d.get(b"other", b"none") == b"none"
    del d[b"k"]
    assert b"k" not in d
    with pytest.raises(KeyError) as missing:
        d[b"k"]
    assert missing.value.args == (b"k",)
    with pytest.raises(KeyError):
        del d[b"k"]
    assert d.delete(b"k") is False


def test_bytearrays_and_memoryviews_are_bytes(store: kvfs.Store) -> None:
    d = store["d"]
    d[bytearray(b"a")] = memoryview(b"xyz")[1:]
    assert d[b"a"] == b"yz"
    assert memoryview(b"a") in d


def test_ranges_are_ordered_half_open_and_reversible(store: kvfs.Store) -> None:
    d = store["d"]
    d.update({b"b": b"2", b"a": b"1", b"d": b"4", b"c": b"3"})
    assert list(d) == [b"a", b"b", b"c", b"d"]
    assert list(reversed(d)) == [b"d", b"c", b"b", b"a"]
    assert list(d.items(b"b", b"d")) == [(b"b", b"2"), (b"c", b"3")]
    assert list(d.items(b"b", b"d", reverse=True)) == [(b"c", b"3"), (b"b", b"2")]
    assert list(reversed(d.items(b"b", b"d"))) == [(b"c", b"3"), (b"b", b"2")]
    assert list(d.keys(b"bb")) == [b"c", b"d"]
    assert list(d.values(None, b"c")) == [b"1", b"2"]
    assert list(d.items(b"c", b"c")) == list(d.items(b"d", b"a")) == list(d.keys(None, b"")) == []
    assert len(d.keys(b"b")) == 3
    assert b"a" in d.keys() and b"a" not in d.keys(b"b")
    assert (b"a", b"1") in d.items() and (b"a", b"2") not in d.items()
    assert b"3" in d.values() and b"9" not in d.values()
    assert d.first() == (b"a", b"1") and d.last() == (b"d", b"4")
    # A listing may be gone through again.
    listing = d.keys(b"c")
    assert list(listing) == list(listing) == [b"c", b"d"]


def test_long_listings_come_whole(store: kvfs.Store) -> None:
    d = store["d"]
    keys = [b"%06d" % i for i in range(10_000)]
    d.update((key, key * 3) for key in keys)
    assert list(d) == keys
    assert list(d.keys(reverse=True)) == keys[::-1]
    assert list(d.items(keys[17], keys[-17])) == [(k, k * 3) for k in keys[17:-17]]
    assert len(d) == 10_000
    estimate = d.estimate()
    assert abs(estimate.keys - 10_000) <= estimate.keys_error


def test_ranks_are_exact_whatever_is_written(store: kvfs.Store) -> None:
    d = store["d"]
    assert (d.rank(b"a"), d.select(0), d.count()) == (0, None, 0)
    keys = [b"%05d" % i for i in range(0, 20_000, 2)]
    d.update((key, b"") for key in keys)
    for i in (0, 1, 4_999, 5_000, 9_998, 9_999):
        assert d.rank(keys[i]) == i and d.select(i) == keys[i]
    assert d.rank(keys[7] + b"x") == 8 and d.rank(b"z") == d.count() == 10_000
    assert d.select(10_000) is None and d.select((1 << 64) - 1) is None
    with pytest.raises(ValueError):
        d.select(-1)
    assert d.count(keys[10], keys[20]) == 10 and d.count(keys[20], keys[10]) == 0
    d.delete_range(keys[100], keys[200])
    del d[keys[0]]
    d[b"00001"] = b""
    assert d.select(0) == b"00001" and d.rank(keys[300]) == 200
    with store.transaction() as t:
        t["d"][b"!"] = b""
        assert (t["d"].rank(keys[300]), t["d"].select(0), d.select(0)) == (201, b"!", b"00001")
    assert d.select(0) == b"!" and d.count() == 9_901


def test_prefixes(store: kvfs.Store) -> None:
    d = store["d"]
    d.update(
        {b"a": b"", b"ab": b"", b"ab\xff": b"", b"ac": b"", b"\xff\xff": b"", b"\xff\xff1": b""}
    )
    assert [k for k, _ in d.prefix(b"ab")] == [b"ab", b"ab\xff"]
    assert [k for k, _ in d.prefix(b"\xff\xff")] == [b"\xff\xff", b"\xff\xff1"]
    assert [k for k, _ in d.prefix(b"a", reverse=True)] == [b"ac", b"ab\xff", b"ab", b"a"]
    assert len(d.prefix(b"")) == 6
    assert kvfs.prefix_end(b"a\xff") == b"b" and kvfs.prefix_end(b"\xff") is None
    d.delete_prefix(b"ab")
    assert list(d) == [b"a", b"ac", b"\xff\xff", b"\xff\xff1"]


def test_ranges_are_deleted(store: kvfs.Store) -> None:
    d = store["d"]
    d.update((bytes([i]), b"") for i in range(10))
    d.delete_range(b"\2", b"\4")
    assert list(d) == [bytes([i]) for i in (0, 1, 4, 5, 6, 7, 8, 9)]
    d.delete_range(b"\7")
    assert list(d) == [bytes([i]) for i in (0, 1, 4, 5, 6)]
    d.delete_range(b"\5", b"\5")
    d.delete_range(b"\6", b"\1")
    d.delete_range(b"", b"")
    assert len(d) == 5
    d.delete_range(None, b"\5")
    assert list(d) == [b"\5", b"\6"]
    d.clear()
    assert not d


def test_reading_and_writing_as_one_step(store: kvfs.Store) -> None:
    d = store["d"]
    assert d.setdefault(b"a", b"1") == b"1" == d.setdefault(b"a", b"2")
    assert d.pop(b"a") == b"1" and d.pop(b"a", b"gone") == b"gone"
    with pytest.raises(KeyError):
        d.pop(b"a")
    d.update({b"x": b"1", b"y": b"2"})
    assert d.popitem() == (b"y", b"2") and d.popitem() == (b"x", b"1")
    with pytest.raises(KeyError):
        d.popitem()
    d.add(b"n")
    d.add(b"n", -5)
    assert d[b"n"] == b"-4"
    d[b"text"] = b"no number"
    with pytest.raises(kvfs.Invalid):
        d.add(b"text")
    assert d[b"text"] == b"no number"
    d[b"n"] = b"%d" % ((1 << 63) - 1)
    with pytest.raises(kvfs.Invalid):
        d.add(b"n")


def test_many_at_once(store: kvfs.Store) -> None:
    d = store["d"]
    d.update((b"%d" % i, b"v%d" % i) for i in range(3000))
    keys = [b"%d" % i for i in range(0, 4000, 2)]
    assert d.get_many(keys) == [b"v%d" % i if i < 3000 else None for i in range(0, 4000, 2)]
    assert store["none"].get_many([b"a"]) == [None]


def test_it_is_a_mapping(store: kvfs.Store) -> None:
    from collections.abc import Mapping, MutableMapping

    d = store["d"]
    assert isinstance(d, Mapping) and isinstance(d, MutableMapping)
    d.update([(b"b", b"2")])
    d.update({b"a": b"1"})
    assert d == {b"a": b"1", b"b": b"2"} == dict(d)


def test_a_batch_is_made_as_one(store: kvfs.Store) -> None:
    store["stock"][b"apples"] = b"100"
    store["stock"][b"pears"] = b"7"
    with store.batch(sync=True) as batch:
        batch["stock"][b"apples"] = b"97"
        batch["orders"][b"17"] = b"3 apples"
        del batch["stock"][b"missing"]
        batch["stock"].delete_range(b"p", b"q")
        assert store["stock"][b"apples"] == b"100"
    assert dict(store["stock"]) == {b"apples": b"97"}
    assert store["orders"][b"17"] == b"3 apples"
    with pytest.raises(kvfs.Invalid):
        batch["stock"][b"x"] = b"late"
    with pytest.raises(ZeroDivisionError), store.batch() as batch:
        batch["stock"][b"apples"] = b"0"
        1 / 0
    assert store["stock"][b"apples"] == b"97"


def test_a_batch_with_something_wrong_in_it_changes_nothing(store: kvfs.Store) -> None:
    with pytest.raises(kvfs.Invalid), store.batch() as batch:
        batch["d"][b"good"] = b"1"
        batch["d"][b"x" * 40_000] = b"too long"
    assert b"good" not in store["d"]
    with pytest.raises(kvfs.Invalid), store.batch() as batch:
        batch["d"][b"good"] = b"1"
        batch["nmap"][b"root"] = b"of the file system"
    assert b"good" not in store["d"]


def test_dictionaries_are_made_listed_and_dropped(store: kvfs.Store) -> None:
    store.create_dictionary("empty")
    store.create_dictionary("empty")
    store["full"][b"k"] = b"v"
    assert store.dictionaries() == ["empty", "full"]
    store.drop_dictionary("full")
    assert store.dictionaries() == ["empty"] and b"k" not in store["full"]
    store["full"][b"k"] = b"again"
    assert store["full"][b"k"] == b"again"
    with pytest.raises(kvfs.NotFound):
        store.drop_dictionary("missing")


def test_the_file_systems_dictionaries_are_out_of_reach(store: kvfs.Store) -> None:
    for name in ("nmap", "imap", "dmap"):
        with pytest.raises(kvfs.Invalid, match="reserved"):
            store[name].get(b"k")
        with pytest.raises(kvfs.Invalid, match="reserved"):
            store[name][b"k"] = b"v"
        with pytest.raises(kvfs.Invalid, match="reserved"):
            list(store[name])
        with pytest.raises(kvfs.Invalid, match="reserved"):
            store[name].clear()
        with pytest.raises(kvfs.Error):
            store.drop_dictionary(name)
    store["d"][b"k"] = b"v"
    assert list(store["d"]) == [b"k"]


def test_an_iterator_of_an_embedded_store_shows_one_state(embedded: kvfs.Store) -> None:
    d = embedded["d"]
    d.update((b"%05d" % i, b"old") for i in range(5000))
    listing = iter(d.items())
    next(listing)
    d.clear()
    d.update((b"%05d" % i, b"new") for i in range(9000))
    assert [v for _, v in listing] == [b"old"] * 4999
