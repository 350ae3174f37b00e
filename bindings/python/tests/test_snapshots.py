"""Snapshots, differences, send and receive."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from pathlib import Path

import kvfs
import pytest


def test_a_snapshot_keeps_keys_and_files(store: kvfs.Store) -> None:
    store["fruit"][b"apple"] = b"red"
    store.fs.write_text("note", "before")
    store.create_snapshot("monday")
    store["fruit"][b"apple"] = b"rotten"
    store["fruit"][b"pear"] = b"green"
    store.fs.write_text("note", "after")
    with store.open_snapshot("monday") as monday:
        assert dict(monday["fruit"]) == {b"apple": b"red"}
        assert monday.dictionaries() == ["fruit"]
        assert monday.fs.read_text("note") == "before"
        assert monday["missing"].get(b"k") is None
        with pytest.raises(kvfs.ReadOnly):
            monday["fruit"][b"apple"] = b"x"
        with pytest.raises(kvfs.ReadOnly):
            monday["fruit"].clear()
        with pytest.raises(OSError):
            monday.fs.write_text("note", "x")
        with pytest.raises(OSError):
            monday.fs.rmtree("note")
    with pytest.raises(kvfs.Closed):
        monday["fruit"][b"apple"]
    assert store["fruit"][b"apple"] == b"rotten"


def test_snapshots_are_listed_dropped_and_rolled_back_to(store: kvfs.Store) -> None:
    store["d"][b"k"] = b"1"
    store.fs.write_text("f", "1")
    store.create_snapshot("one")
    store["d"][b"k"] = b"2"
    store.fs.write_text("f", "22")
    store.create_snapshot("two")
    assert [s.name for s in store.snapshots()] == ["one", "two"]
    now = datetime.now(timezone.utc)
    assert all(abs(s.created - now) < timedelta(minutes=5) for s in store.snapshots())
    with pytest.raises(kvfs.Exists):
        store.create_snapshot("one")
    t = store.transaction()
    t["d"][b"k"] = b"lost"
    store.rollback("one")
    assert store["d"][b"k"] == b"1" and store.fs.read_text("f") == "1"
    with pytest.raises((kvfs.TransactionEnded, kvfs.Conflict)):
        t.commit()
    store.drop_snapshot("one")
    assert [s.name for s in store.snapshots()] == ["two"]
    for missing in (store.open_snapshot, store.drop_snapshot, store.rollback):
        with pytest.raises(kvfs.NotFound):
            missing("one")
    for wrong in ("", ".hidden", "/a", "a//b", "x" * 300, "a\nb"):
        with pytest.raises(kvfs.Invalid):
            store.create_snapshot(wrong)


def test_differences_name_every_key_that_changed(store: kvfs.Store) -> None:
    a, b = store["a"], store["b"]
    a.update((b"%04d" % i, b"same") for i in range(3000))
    b[b"gone"] = b"123"
    store.create_snapshot("before")
    a[b"0007"] = b"changed"
    a[b"new"] = b""
    del b[b"gone"]
    store.create_snapshot("after")
    a[b"later"] = b"x"
    expected = [
        kvfs.Change("a", b"0007", 4, 7),
        kvfs.Change("a", b"new", None, 0),
        kvfs.Change("b", b"gone", 3, None),
    ]
    assert list(store.changes("before", "after")) == expected
    assert list(store.changes("before", "after", dictionary="b")) == expected[2:]
    with_values = list(store.changes("before", "after", values=True))
    assert [(c.before, c.after) for c in with_values] == [
        (b"same", b"changed"),
        (None, b""),
        (b"123", None),
    ]
    assert [c.key for c in store.changes("before")] == [b"0007", b"later", b"new", b"gone"]
    with pytest.raises(kvfs.NotFound):
        list(store.changes("missing"))


def test_differences_of_files(store: kvfs.Store) -> None:
    store.fs.makedirs("dir")
    store.fs.write_text("dir/kept", "same")
    store.fs.write_text("dir/changed", "old")
    store.fs.write_text("gone", "12")
    store.create_snapshot("before")
    store.fs.write_text("dir/changed", "newer")
    store.fs.remove("gone")
    store.fs.symlink("dir", "link")
    changes = {c.path: (c.kind, c.size_before, c.size_after) for c in store.file_changes("before")}
    assert changes["dir/changed"] == ("file", 3, 5)
    assert changes["gone"] == ("file", 2, None)
    assert changes["link"] == ("symlink", None, 3)
    assert "dir/kept" not in changes


def test_send_and_receive(embedded: kvfs.Store, tmp_path: Path) -> None:
    embedded["d"].update((b"%d" % i, b"v" * i) for i in range(500))
    embedded.fs.write_text("file", "in the stream, too")
    embedded.create_snapshot("monday")
    whole = io.BytesIO()
    sent = embedded.send("monday", whole)
    assert sent.size == len(whole.getvalue()) and sent.tuples > 500
    embedded["d"][b"more"] = b"1"
    embedded.create_snapshot("tuesday")
    changes = io.BytesIO()
    embedded.send("tuesday", changes, base="monday")
    assert len(changes.getvalue()) < len(whole.getvalue()) / 4

    with kvfs.open(tmp_path / "copy.kvfs") as copy:
        whole.seek(0)
        assert copy.receive(whole) == kvfs.Received("monday", sent.tuples)
        assert dict(copy["d"]) == {b"%d" % i: b"v" * i for i in range(500)}
        assert copy.fs.read_text("file") == "in the stream, too"
        changes.seek(0)
        assert copy.receive(changes).snapshot == "tuesday"
        assert copy["d"][b"more"] == b"1"
        assert [s.name for s in copy.snapshots()] == ["monday", "tuesday"]
        # It is a store as any other: it can be written, and closed and opened.
        copy.fs.write_text("another", "x")
        copy["d"][b"own"] = b"2"
        changes.seek(0)
        with pytest.raises(kvfs.Exists):
            copy.receive(changes)
        assert copy["d"][b"own"] == b"2"
    with kvfs.open(tmp_path / "copy.kvfs") as copy:
        assert copy["d"][b"own"] == b"2" and copy.fs.read_text("another") == "x"


def test_a_stream_that_is_cut_off_changes_nothing_and_goes_on(
    embedded: kvfs.Store, tmp_path: Path
) -> None:
    embedded["d"].update((b"%d" % i, b"v" * 1000) for i in range(2000))
    embedded.create_snapshot("s")
    stream = io.BytesIO()
    embedded.send("s", stream)
    with kvfs.open(tmp_path / "copy.kvfs") as copy:
        with pytest.raises(kvfs.Error):
            copy.receive(io.BytesIO(stream.getvalue()[:-100]))
        assert copy.dictionaries() == [] and copy.snapshots() == []
        copy.receive(io.BytesIO(stream.getvalue()))
        assert len(copy["d"]) == 2000
        flipped = bytearray(stream.getvalue())
        flipped[len(flipped) // 2] ^= 1
        with kvfs.open(tmp_path / "third.kvfs") as third, pytest.raises(kvfs.Error):
            third.receive(io.BytesIO(flipped))


def test_what_is_open_ends_when_a_stream_is_received(embedded: kvfs.Store, tmp_path: Path) -> None:
    embedded["d"][b"k"] = b"v"
    embedded.create_snapshot("s")
    stream = io.BytesIO()
    embedded.send("s", stream)
    with kvfs.open(tmp_path / "copy.kvfs") as copy:
        file = copy.fs.open("open", "wb", 0)
        transaction = copy.transaction()
        stream.seek(0)
        copy.receive(stream, replace=True)
        with pytest.raises(kvfs.Closed):
            file.write(b"x")
        with pytest.raises(kvfs.TransactionEnded):
            transaction["d"][b"k"] = b"x"
        assert copy["d"][b"k"] == b"v" and copy.fs.listdir() == []


class Failing(io.RawIOBase):
    """A file that fails after some bytes, or gives what no file gives."""

    def __init__(self, data: bytes, answer: object) -> None:
        self.data = io.BytesIO(data)
        self.answer = answer

    def read(self, size: int = -1) -> bytes:
        part = self.data.read(size)
        if not part:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        return part

    def write(self, data: object) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_exceptions_of_the_file_object_are_the_callers(
    embedded: kvfs.Store, tmp_path: Path
) -> None:
    embedded["d"].update((b"%d" % i, b"v" * 1000) for i in range(100))
    embedded.create_snapshot("s")
    stream = io.BytesIO()
    embedded.send("s", stream)
    with pytest.raises(ZeroDivisionError, match="of the file"):
        embedded.send("s", Failing(b"", ZeroDivisionError("of the file")))
    with pytest.raises(ValueError):
        embedded.send("s", Failing(b"", 1 << 40))
    with pytest.raises(TypeError):
        embedded.send("s", Failing(b"", "text"))
    with pytest.raises(AttributeError):
        embedded.send("s", object())
    with kvfs.open(tmp_path / "copy.kvfs") as copy:
        half = stream.getvalue()[:50_000]
        for answer, kind in (
            (ZeroDivisionError("of the file"), ZeroDivisionError),
            ("text", TypeError),
            (b"x" * (1 << 21), ValueError),
        ):
            with pytest.raises(kind):
                copy.receive(Failing(half, answer))
        assert copy.snapshots() == []
        copy["d"][b"usable"] = b"yes"


def test_a_stream_goes_into_a_file_of_the_store_itself(embedded: kvfs.Store) -> None:
    embedded["d"].update((b"%d" % i, b"v" * 1000) for i in range(3000))
    embedded.create_snapshot("s")
    with embedded.fs.open("backup", "wb") as file:
        sent = embedded.send("s", file)
    assert embedded.fs.stat("backup").st_size == sent.size


def test_streams_are_for_embedded_stores(connected: kvfs.Store) -> None:
    with pytest.raises(kvfs.Unsupported, match="kvfs send"):
        connected.send("s", io.BytesIO())
    with pytest.raises(kvfs.Unsupported, match="kvfs receive"):
        connected.receive(io.BytesIO())
