"""fsspec's own suite, on an embedded store, in a transaction, and on a mount."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator

import kvfs
import pytest

fsspec = pytest.importorskip("fsspec", reason="SKIPPED: fsspec is not installed")
abstract = pytest.importorskip("fsspec.tests.abstract")

from kvfs.fsspec import KvfsFileSystem  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(params=["embedded", "transaction", "connected"])
    def fs(self, request: pytest.FixtureRequest) -> Iterator[KvfsFileSystem]:
        if request.param == "transaction":
            store = request.getfixturevalue("embedded")
            with store.transaction() as t:
                yield fsspec.filesystem("kvfs", store=t)
        else:
            yield fsspec.filesystem("kvfs", store=request.getfixturevalue(request.param))

    @pytest.fixture
    def fs_path(self) -> str:
        return "/abstract"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_a_socket_that_a_killed_daemon_has_left_is_none(store_path: str) -> None:
    with kvfs.open(store_path) as store:
        store.fs.write_text("f", "x")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(store_path + ".sock")
    fs = KvfsFileSystem(store=store_path, skip_instance_cache=True)
    assert fs.cat("/f") == b"x"
    fs.store.close()


@pytest.fixture
def fs(store: kvfs.Store) -> KvfsFileSystem:
    return fsspec.filesystem("kvfs", store=store)


def test_it_is_registered_under_its_protocol(store: kvfs.Store) -> None:
    assert fsspec.get_filesystem_class("kvfs") is KvfsFileSystem
    with fsspec.open("kvfs:///a/b.txt", "wt", store=store) as file:
        file.write("text")
    fs, path = fsspec.core.url_to_fs("kvfs://a/b.txt", store=store)
    assert path == "/a/b.txt" and fs.cat(path) == b"text"
    assert fs.unstrip_protocol("a/b.txt") == "kvfs:///a/b.txt"
    with fsspec.open("kvfs:///z.gz", "wb", compression="infer", store=store) as file:
        file.write(b"x" * 10_000)
    assert fs.size("z.gz") < 1000
    with fsspec.open("kvfs:///z.gz", "rb", compression="infer", store=store) as file:
        assert file.read() == b"x" * 10_000
    with pytest.raises(ValueError, match="store"):
        fsspec.filesystem("kvfs")


def test_a_store_is_given_by_its_path(store_path: str) -> None:
    fs = fsspec.filesystem("kvfs", store=store_path)
    fs.pipe("/f", b"x")
    other = pickle.loads(pickle.dumps(fs))
    assert other.cat("/f") == b"x"
    fs.store.close()
    with kvfs.open(store_path) as store:
        assert store.fs.read_bytes("f") == b"x"


def test_a_mount_is_given_by_its_directory(connected: kvfs.Store, mount: object) -> None:
    fs = fsspec.filesystem("kvfs", store=str(mount.point))
    fs.pipe("/f", b"x")
    assert connected.fs.read_bytes("f") == b"x"
    fs.store.close()


def test_what_is_done_in_its_transaction_appears_at_once(
    fs: KvfsFileSystem, store: kvfs.Store
) -> None:
    with fs.transaction:
        fs.pipe({"/a": b"1", "/dir/b": b"2"})
        assert fs.cat("/a") == b"1"
        assert not store.fs.exists("a")
        with fs.open("/c", "wb") as file:
            file.write(b"3")
    assert store.fs.listdir() == ["a", "c", "dir"] and fs.cat("/c") == b"3"
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.rm("/dir", recursive=True)
        1 / 0
    assert fs.cat("/dir/b") == b"2"
    fs.start_transaction()
    fs.pipe("/d", b"4")
    fs.end_transaction()
    assert fs.cat("/d") == b"4" and store.transactions() == []
    with store.transaction() as t:
        inside = fsspec.filesystem("kvfs", store=t)
        with pytest.raises(kvfs.Unsupported):
            inside.start_transaction()


def test_parts_of_files(fs: KvfsFileSystem) -> None:
    data = bytes(range(256))
    fs.pipe("/f", data)
    for start, end in ((0, 5), (5, None), (-10, None), (-10, -5), (None, 7), (300, None), (7, 3)):
        assert fs.cat_file("/f", start, end) == data[start:end]
    assert fs.cat_ranges(["/f"] * 2, [0, 100], [10, 110]) == [data[:10], data[100:110]]
    assert fs.head("/f", 4) == data[:4] and fs.tail("/f", 4) == data[-4:]
    assert fs.read_block("/f", 10, 5) == data[10:15]
    with fs.open("/f", "rb") as file:
        assert file.size == 256


def test_listing_finding_and_removing(fs: KvfsFileSystem) -> None:
    fs.pipe({"/x/a.txt": b"1", "/x/y/b.txt": b"22", "/x/c.csv": b""})
    assert fs.ls("/x", detail=False) == ["/x/a.txt", "/x/c.csv", "/x/y"]
    assert {i["name"]: (i["type"], i["size"]) for i in fs.ls("/x", detail=True)} == {
        "/x/a.txt": ("file", 1),
        "/x/c.csv": ("file", 0),
        "/x/y": ("directory", 0),
    }
    assert fs.find("/") == ["/x/a.txt", "/x/c.csv", "/x/y/b.txt"]
    assert fs.glob("/x/**/*.txt") == ["/x/a.txt", "/x/y/b.txt"]
    assert fs.du("/x") == 3
    fs.mv("/x/y", "/z")
    fs.cp("/z/b.txt", "/x/a.txt")
    assert fs.cat("/x/a.txt") == b"22" and fs.exists("/z/b.txt")
    assert fs.ls("/x", detail=False) == ["/x/a.txt", "/x/c.csv"]
    with pytest.raises(ValueError):
        fs.rm("/x")
    fs.rm("/x/*.csv")
    fs.rm(["/x", "/z"], recursive=True)
    assert fs.ls("/") == []
    with pytest.raises(FileNotFoundError):
        fs.ls("/x")
    with pytest.raises(FileNotFoundError):
        fs.rm("/x")
    assert fs.created("/").year >= 2024
