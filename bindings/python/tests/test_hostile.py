"""Arguments that no one should give."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import kvfs
import pytest
from kvfs._remote import Database


def test_wrong_types_are_type_errors(store: kvfs.Store) -> None:
    d: Any = store["d"]
    for wrong in ("text", 7, None, 1.5, [1, 2], (1,), {}, object()):
        with pytest.raises(TypeError):
            d[wrong]
        with pytest.raises(TypeError):
            d[wrong] = b"v"
        with pytest.raises(TypeError):
            d[b"k"] = wrong
        with pytest.raises(TypeError):
            d.delete(wrong)
        with pytest.raises(TypeError):
            wrong in d
        with pytest.raises(TypeError):
            d.prefix(wrong)
        with pytest.raises(TypeError):
            d.get_many([b"a", wrong])
        if wrong is not None:
            with pytest.raises(TypeError):
                list(d.keys(wrong))
            with pytest.raises(TypeError):
                list(d.keys(None, wrong))
        with pytest.raises(TypeError), store.batch() as batch:
            batch["d"][wrong] = b"v"
    for wrong_name in (7, None, b"bytes", 1.5):
        with pytest.raises(TypeError):
            store[wrong_name]
    with pytest.raises(TypeError):
        d.update(k=b"v")
    with pytest.raises(TypeError):
        d.add(b"k", "1")
    with pytest.raises(TypeError, match="encode"):
        d["text"]
    assert store.dictionaries() == []


def test_huge_keys_and_values_are_refused(store: kvfs.Store) -> None:
    d = store["d"]
    for key in (b"k" * 33_000, b"k" * (1 << 20)):
        with pytest.raises(kvfs.Invalid):
            d[key] = b"v"
        with pytest.raises(kvfs.Invalid):
            d.add(key)
    for value in (b"v" * (8 << 20), b"v" * (64 << 20)):
        with pytest.raises(kvfs.Invalid):
            d[b"k"] = value
        with pytest.raises(kvfs.Invalid):
            d.update({b"a": b"1", b"k": value})
    assert dict(d) == {}
    largest = b"v" * (4 << 20)
    d[b"k" * (16 << 10)] = largest
    assert d[b"k" * (16 << 10)] == largest
    with pytest.raises(OverflowError):
        d.add(b"n", 1 << 70)


def test_a_key_that_is_too_long_is_in_no_store(embedded: kvfs.Store) -> None:
    d = embedded["d"]
    long = b"\xff" * 40_000
    assert d.get(long) is None and long not in d and not d.delete(long)
    assert list(d.keys(long)) == list(d.prefix(long)) == []
    longest = b"\xff" * (32 << 10)
    d[longest] = b"v"
    assert list(d) == [longest]
    d.delete_range(b"a")
    assert not d
    d[b""] = b"the empty key"
    assert d[b""] == b"the empty key" and d.first() == (b"", b"the empty key")
    assert list(d.keys(reverse=True)) == [b""]
    d.delete_range(None, b"\0")
    assert not d


def test_wrong_names_of_dictionaries_are_refused(store: kvfs.Store) -> None:
    for name in ("", "x" * 129, "a\nb", "a\0b", "ü" * 65):
        with pytest.raises(kvfs.Invalid, match="dictionary"):
            store[name][b"k"] = b"v"
        with pytest.raises(kvfs.Invalid):
            store[name].get(b"k")
    with pytest.raises((kvfs.Invalid, UnicodeError)):
        store["\ud800"][b"k"] = b"v"
    store["ünï/.. *"][b"k"] = b"v"
    assert store.dictionaries() == ["ünï/.. *"]


def test_files_that_are_no_stores(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kvfs.open(tmp_path / "missing", create=False)
    with pytest.raises(FileNotFoundError):
        kvfs.open(tmp_path / "missing", read_only=True)
    with pytest.raises(FileNotFoundError):
        kvfs.open(tmp_path / "no" / "directory")
    with pytest.raises(IsADirectoryError):
        kvfs.open(tmp_path)
    for content in (b"", b"no store", os.urandom(1 << 20)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(kvfs.Error):
            kvfs.open(tmp_path / "other")
        assert (tmp_path / "other").read_bytes() == content
    for size in (0, 1, 1 << 20, -1, 1 << 70):
        with pytest.raises(kvfs.Invalid):
            kvfs.open(tmp_path / "small", size=size)
    with pytest.raises(kvfs.Invalid):
        kvfs.open("a\0b")
    with pytest.raises(TypeError):
        kvfs.open(7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other"]
    with pytest.raises(FileNotFoundError):
        kvfs.connect(tmp_path)
    with pytest.raises(FileNotFoundError):
        kvfs.connect(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        kvfs.connect(tmp_path / "other")
    with pytest.raises(kvfs.Invalid):
        kvfs.connect("a\0b")


def test_connecting_without_a_place_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFS_SOCKET", raising=False)
    with pytest.raises(kvfs.Invalid, match="kvfs run"):
        kvfs.connect()


def test_a_mount_without_a_socket_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = os.stat(tmp_path).st_dev
    record = tmp_path / f"{os.major(device)}:{os.minor(device)}.json"
    monkeypatch.setattr("kvfs._resp._records", lambda: os.fsencode(tmp_path))
    for text in ('{"socket": null, "mount_point": "/mnt"}', "{}", "[]", "null", "7", "no JSON"):
        record.write_text(text)
        with pytest.raises(FileNotFoundError, match="no store with a socket"):
            kvfs.connect(tmp_path)


def test_a_string_that_no_reply_has_room_for_is_told(
    connected: kvfs.Store,
) -> None:
    d = connected["d"]
    d.update({b"a": b"first", b"c": b"last"})
    # A string that is zeros but for its end takes little room.
    with connected._database.connection() as connection:
        connection.use("d")
        connection.call(b"SETRANGE", b"b", b"536870912", b"x")
    for ask in (
        lambda: list(d.items()),
        lambda: list(d.values()),
        lambda: d.get_many([b"a", b"b"]),
        lambda: d[b"b"],
    ):
        with pytest.raises(kvfs.Limit, match="in parts"):
            ask()
    assert list(d) == [b"a", b"b", b"c"]
    assert d[b"c"] == b"last"


def test_a_store_that_is_read_only(store_path: str) -> None:
    with kvfs.open(store_path) as store:
        store["d"][b"k"] = b"v"
        store.fs.write_text("f", "x")
    with kvfs.open(store_path, read_only=True) as a, kvfs.open(store_path, read_only=True) as b:
        for store in (a, b):
            assert store["d"][b"k"] == b"v" and store.fs.read_text("f") == "x"
            with pytest.raises(kvfs.ReadOnly):
                store["d"][b"k"] = b"w"
            with pytest.raises(kvfs.ReadOnly):
                store["new"][b"k"] = b"w"
            with pytest.raises(OSError) as refused:
                store.fs.write_text("f", "y")
            assert refused.value.errno == 30
            with pytest.raises(kvfs.Error):
                store.transaction()
            with pytest.raises(kvfs.Error):
                store.create_snapshot("s")


def test_a_full_store_says_so_and_deletes(tmp_path: Path) -> None:
    with kvfs.open(tmp_path / "full.kvfs", size=160 << 20, memory=32 << 20) as store:
        value = os.urandom(1 << 20)
        with pytest.raises(kvfs.NoSpace) as full:
            for i in range(1000):
                store["d"][b"%d" % i] = value
        assert full.value.errno == 28 and isinstance(full.value, OSError)
        count = len(store["d"])
        assert count > 5
        with pytest.raises(OSError) as no_file:
            for i in range(1000):
                store.fs.write_bytes(f"f{i}", value)
        assert no_file.value.errno == 28
        store["d"].clear()
        for _ in range(100):
            try:
                store["d"][b"again"] = value
                break
            except kvfs.NoSpace:
                store.sync()
        assert store["d"][b"again"] == value


def test_a_damaged_store_is_never_silently_wrong(store_path: str) -> None:
    with kvfs.open(store_path) as store:
        for i in range(200):
            store["d"][b"%03d" % i] = bytes([i]) * 50_000
    size = os.path.getsize(store_path)
    with open(store_path, "r+b") as file:
        for at in range(16 << 20, size, 200_000):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([(byte or b"\0")[0] ^ 0xFF]))
    try:
        with kvfs.open(store_path) as store:
            found = 0
            for i in range(200):
                try:
                    assert store["d"][b"%03d" % i] == bytes([i]) * 50_000
                    found += 1
                except kvfs.Corrupt as damage:
                    assert str(damage)
            assert found < 200
    except kvfs.Error as damage:
        assert str(damage)


def test_an_answer_that_an_exception_cuts_off_is_not_that_of_the_next_command(
    tmp_path: Path,
) -> None:
    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "daemon.sock"))
    listener.listen()
    cut = threading.Event()

    def serve(connection: socket.socket, first: bool) -> None:
        # The client may be gone by then.
        with connection, contextlib.suppress(OSError):
            while connection.recv(1 << 16):
                if first:
                    # Half an answer; the other half, when the handler has run.
                    connection.sendall(b"$5\r\nol")
                    os.kill(os.getpid(), signal.SIGUSR1)
                    cut.wait(20)
                    connection.sendall(b"d..\r\n")
                else:
                    connection.sendall(b":1\r\n")

    def accept() -> None:
        for first in (True, False):
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, first), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    database = Database(tmp_path / "daemon.sock", durable=False, timeout=20.0)
    before = signal.signal(signal.SIGUSR1, enough)
    try:
        with pytest.raises(Enough), database.connection() as connection:
            connection.call(b"GET", b"old")
        cut.set()
        with pytest.raises(kvfs.Disconnected):
            connection.call(b"EXISTS", b"new")
        with database.connection() as connection:
            assert connection.call(b"EXISTS", b"new") == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
        cut.set()
        listener.close()
