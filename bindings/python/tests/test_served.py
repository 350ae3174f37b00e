"""Stores that a server holds: `kvfs serve`, on a Unix socket and over TLS. No mount is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import kvfs
import pytest
from conftest import binary


class Served:
    """A store with a few files and keys, and its server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store.kvfs"
        with kvfs.open(self.store, memory=64 << 20) as store:
            store.fs.makedirs("/a/b")
            for i in range(20):
                store.fs.write_text(f"/a/file{i}", f"{i} " * i)
            store.fs.write_bytes("/a/b/large", bytes(range(256)) * 8192)
            store["fruit"].update({b"apple": b"red", b"fig": b"7", b"pear": b"green"})
            store.create_snapshot("monday")
            store.fs.write_text("/a/file1", "tuesday")
            store["fruit"][b"apple"] = b"yellow"
        self.process: subprocess.Popen[str] | None = None

    def serve(self, *words: object, listen: str | None = None) -> str:
        """Returns the end of what it says, which is where it listens."""
        at = listen or f"unix:{self.directory / 'socket'}"
        command = [binary() or "kvfs", "serve", str(self.store), *map(str, words), "--listen", at]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "is served at" in line, line
        return line.strip()

    @property
    def address(self) -> str:
        return f"kvfs+unix:{self.directory / 'socket'}"

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(by)
            self.process.wait(60)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@pytest.fixture
def place() -> Iterator[Served]:
    if binary() is None:
        pytest.skip("SKIPPED: no `kvfs` to serve with: set $KVFS")
    # The path of a socket is short.
    with tempfile.TemporaryDirectory() as directory:
        served = Served(Path(directory))
        try:
            yield served
        finally:
            served.end(signal.SIGKILL)


@pytest.fixture
def served(place: Served) -> Served:
    place.serve("--write")
    return place


def test_a_snapshot_is_read_and_never_written(served: Served) -> None:
    with kvfs.open(served.address, snapshot="monday") as monday:
        assert monday.name == "monday"
        assert monday.fs.read_text("/a/file1") == "1 "
        assert monday.fs.read_bytes("/a/b/large") == bytes(range(256)) * 8192
        assert monday.fs.listdir("/a") == sorted(["b", *(f"file{i}" for i in range(20))])
        fruit = monday["fruit"]
        assert monday.dictionaries() == ["fruit"]
        assert dict(fruit) == {b"apple": b"red", b"fig": b"7", b"pear": b"green"}
        assert list(fruit.items(b"b", reverse=True)) == [(b"pear", b"green"), (b"fig", b"7")]
        with pytest.raises(kvfs.ReadOnly):
            fruit[b"apple"] = b"blue"
        with pytest.raises(kvfs.ReadOnly):
            monday.fs.write_text("/new", "x")
    with pytest.raises(kvfs.Closed):
        monday.fs.read_text("/a/file1")
    with pytest.raises(kvfs.NotFound):
        kvfs.open(served.address, snapshot="friday")


def test_others_see_a_transaction_when_it_has_committed_and_not_before(served: Served) -> None:
    t = kvfs.open(served.address, txn=True)
    assert t.is_open
    t.fs.write_text("/made", "one")
    with t.fs.open("/made", "a") as made:
        made.write(" two")
    t.fs.rename("/a/file3", "/moved")
    t.fs.remove("/a/file4")
    t.fs.rmtree("/a/b")
    fruit = t["fruit"]
    fruit[b"plum"] = b"blue"
    fruit.add(b"fig", 5)
    assert fruit.delete(b"pear") and not fruit.delete(b"pear")
    assert fruit[b"fig"] == b"12"
    with kvfs.open(served.address, txn=True) as other:
        assert not other.fs.exists("/made") and other["fruit"][b"pear"] == b"green"
        other.abort()
    t.commit(sync=True)
    assert not t.is_open
    with pytest.raises(kvfs.TransactionEnded):
        t.fs.listdir("/")
    with pytest.raises(kvfs.TransactionEnded):
        t.commit()
    with kvfs.open(served.address, txn=True) as later:
        assert later.fs.read_text("/made") == "one two"
        assert later.fs.listdir("/") == ["a", "made", "moved"]
        assert not later.fs.exists("/a/file4") and not later.fs.exists("/a/b")
        assert dict(later["fruit"]) == {b"apple": b"yellow", b"fig": b"12", b"plum": b"blue"}
    served.end()
    with kvfs.open(served.store) as store:
        assert store.fs.read_text("/made") == "one two"
        assert store["fruit"][b"plum"] == b"blue"


def test_an_exception_leaves_nothing_of_a_block(served: Served) -> None:
    with pytest.raises(ZeroDivisionError), kvfs.open(served.address, txn=True) as t:
        t.fs.write_text("/made", "x")
        t["fruit"][b"plum"] = b"blue"
        t.fs.sync()
        1 / 0  # noqa: B018
    assert not t.is_open
    t = kvfs.open(served.address, txn=True)
    assert not t.fs.exists("/made") and b"plum" not in t["fruit"]
    t.abort()
    t.abort()
    with pytest.raises(kvfs.TransactionEnded):
        t["fruit"][b"plum"] = b"blue"


def test_of_two_that_change_one_file_the_second_is_in_conflict(served: Served) -> None:
    first = kvfs.open(served.address, txn=True, label="first")
    second = kvfs.open(served.address, txn=True, label="second")
    first.fs.write_text("/a/file5", "first")
    second.fs.write_text("/a/file5", "second")
    first.commit()
    with pytest.raises(kvfs.Conflict, match="file5"):
        second.commit()
    assert not second.is_open
    with kvfs.open(served.address, txn=True) as t:
        assert t.fs.read_text("/a/file5") == "first"


def test_a_tree_is_copied_by_its_bytes(served: Served) -> None:
    with kvfs.open(served.address, txn=True) as t:
        t.fs.symlink("file1", "/a/link")
        t.fs.setxattr("/a/file2", "user.kind", b"number")
        t.fs.chmod("/a/file2", 0o600)
        t.fs.copy("/a", "/copy")
        with pytest.raises(FileExistsError):
            t.fs.copy("/a", "/copy")
        with pytest.raises(OSError):
            t.fs.copy("/a", "/a/b/inside")
    with kvfs.open(served.address, txn=True) as t:
        assert t.fs.listdir("/copy") == t.fs.listdir("/a")
        assert t.fs.read_bytes("/copy/b/large") == t.fs.read_bytes("/a/b/large")
        assert t.fs.readlink("/copy/link") == "file1"
        assert t.fs.getxattr("/copy/file2", "user.kind") == b"number"
        old, new = t.fs.stat("/a/file2"), t.fs.stat("/copy/file2")
        assert (new.st_mode, new.st_mtime_ns) == (old.st_mode, old.st_mtime_ns)


def test_deep_trees_are_copied_and_removed_and_the_root_stays(served: Served) -> None:
    with kvfs.open(served.address, txn=True) as t:
        deep = "/deep"
        for _ in range(100):
            t.fs.mkdir(deep)
            deep += "/d"
        t.fs.copy("/deep", "/copy")
        assert t.fs.isdir("/copy" + "/d" * 99)
        t.fs.symlink("/a", "/copy/link")
        t.fs.rmtree("/copy")
        t.fs.rmtree("/deep")
        assert t.fs.listdir("/") == ["a"] and t.fs.exists("/a/file1")
        for root in ("/", "//", "/a/.."):
            with pytest.raises(OSError):
                t.fs.rmtree(root)
        t.fs.rmtree("/a/file1")
        with pytest.raises(FileNotFoundError):
            t.fs.rmtree("/a/file1")


def test_what_a_server_cannot_do_is_said_and_changes_nothing(served: Served) -> None:
    with kvfs.open(served.address, txn=True) as t:
        for refused in (
            t.savepoint,
            t["fruit"].estimate,
            t["fruit"].count,
            lambda: t["new"].update({b"a": b"1"}),
        ):
            with pytest.raises(kvfs.Unsupported):
                refused()
        for name in ("imap", "dmap", "nmap"):
            with pytest.raises(kvfs.Invalid, match="reserved"):
                t[name].get(b"x")
        with pytest.raises(kvfs.Invalid):
            t["fruit"][b"k" * 40000] = b""
        with pytest.raises(kvfs.Invalid):
            t["fruit"][b"k"] = bytes(8 << 20)
        t["fruit"][b"k"] = bytes(7 << 20)
        assert len(t["fruit"][b"k"]) == 7 << 20


def test_words_that_name_no_view_are_refused(served: Served, store_path: str) -> None:
    for wrong in ({}, {"txn": True, "snapshot": "monday"}, {"snapshot": "monday", "clone": "c"}):
        with pytest.raises(kvfs.Invalid):
            kvfs.open(served.address, **wrong)  # type: ignore[call-overload]
    for given in ({"txn": True}, {"snapshot": "monday"}, {"token": "x"}):
        with pytest.raises(kvfs.Invalid, match="no address of a server"):
            kvfs.open(store_path, **given)  # type: ignore[call-overload]
    for word in ("kvfs://nohost", "kvfs+tcp:localhost:1"):
        with pytest.raises(kvfs.Invalid, match="no address of a server"):
            kvfs.open(word, txn=True)
    with pytest.raises(kvfs.Invalid, match="leave out"):
        kvfs.open(served.address, txn=True, read_only=True)  # type: ignore[call-overload]
    assert not os.path.exists(store_path)


def test_a_server_that_lets_read_only_refuses_transactions(place: Served) -> None:
    place.serve()
    with kvfs.open(place.address, snapshot="monday") as monday:
        assert monday.fs.read_text("/a/file1") == "1 "
    with pytest.raises(PermissionError):
        kvfs.open(place.address, txn=True)


def test_a_server_that_is_gone_is_waited_for_and_then_told(served: Served) -> None:
    t = kvfs.open(served.address, txn=True, timeout=0.5)
    t.fs.write_text("/made", "x")
    served.end(signal.SIGKILL)
    with pytest.raises(kvfs.Disconnected):
        t.commit()
    t.abort()
    assert not t.is_open
    with pytest.raises(kvfs.Disconnected):
        kvfs.open(served.address, txn=True, timeout=0.5)


def test_a_process_that_forgets_its_transaction_leaves_none(served: Served) -> None:
    """It is ended at the end of the process, not a minute later with its lease."""
    program = "import kvfs, sys; t = kvfs.open(sys.argv[1], txn=True); t.fs.write_text('/x', 'x')"
    subprocess.run([sys.executable, "-c", program, served.address], check=True, timeout=60)
    served.end()
    with kvfs.open(served.store) as store:
        assert store.transactions() == [] and not store.fs.exists("/x")


def test_many_threads_write_in_one_transaction(served: Served) -> None:
    with kvfs.open(served.address, txn=True) as t:

        def work(number: int) -> None:
            for i in range(20):
                t.fs.write_text(f"/{number}-{i}", str(i) * 100)
                t["fruit"][b"%d-%d" % (number, i)] = b"x"

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with kvfs.open(served.address, txn=True) as t:
        assert len(t.fs.listdir("/")) == 161
        assert len(t["fruit"]) == 163


def test_fsspec_reads_snapshots_and_writes_in_transactions(served: Served) -> None:
    fsspec = pytest.importorskip("fsspec", reason="SKIPPED: fsspec is not installed")
    monday = fsspec.filesystem("kvfs", store=served.address, snapshot="monday")
    assert monday.cat_file("/a/file1") == b"1 "
    now = fsspec.filesystem("kvfs", store=served.address)
    with pytest.raises(kvfs.Unsupported):
        now.ls("/")
    with now.transaction:
        assert now.cat_file("/a/file1") == b"tuesday"
        now.pipe_file("/tables/one", b"1")
        now.cp_file("/tables/one", "/tables/two")
    with pytest.raises(ZeroDivisionError), now.transaction:
        now.rm("/tables", recursive=True)
        1 / 0  # noqa: B018
    with kvfs.open(served.address, txn=True) as t:
        assert t.fs.listdir("/tables") == ["one", "two"]
        assert fsspec.filesystem("kvfs", store=t).cat_file("/tables/two") == b"1"
    with pytest.raises(kvfs.Invalid):
        fsspec.filesystem("kvfs", store=str(served.store), snapshot="monday")


def test_a_child_that_was_forked_off_leaves_the_transaction_to_its_parent(served: Served) -> None:
    t = kvfs.open(served.address, txn=True)
    t.fs.write_text("/made", "x")
    child = os.fork()
    if child == 0:
        try:
            t.fs.listdir("/")
        except kvfs.Forked:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    t.commit()
    with kvfs.open(served.address, txn=True) as later:
        assert later.fs.read_text("/made") == "x"


@pytest.fixture
def over_tls(place: Served) -> Iterator[tuple[str, Path]]:
    """An address with its certificate, and a token that may write: `secret`."""
    if shutil.which("openssl") is None:
        pytest.skip("SKIPPED: no openssl to make a certificate with")
    cert, key = place.directory / "cert.pem", place.directory / "key.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    words += ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"]
    made = subprocess.run(
        ["openssl", *words, "-keyout", key, "-out", cert], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    key.chmod(0o600)
    tokens = place.directory / "tokens"
    tokens.write_text(f"{hashlib.sha256(b'secret').hexdigest()} write read=mon*\n")
    tokens.chmod(0o600)
    words = ["--write", "--cert", str(cert), "--key", str(key), "--tokens", str(tokens)]
    line = place.serve(*words, listen="tls:127.0.0.1:0")
    yield f"kvfs://localhost:{line.rpartition(':')[2]}", cert


def test_a_token_opens_what_its_line_says_over_the_network(
    over_tls: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, cert = over_tls
    with kvfs.open(address, txn=True, token="secret", ca=cert) as t:
        t.fs.write_text("/made", "over the network")
    with kvfs.open(address, snapshot="monday", token="secret", ca=cert) as monday:
        assert not monday.fs.exists("/made")
    with pytest.raises(kvfs.Invalid, match="token"):
        kvfs.open(address, txn=True, ca=cert)
    with pytest.raises(PermissionError):
        kvfs.open(address, txn=True, token="another", ca=cert)
    # The machine does not trust the certificate.
    with pytest.raises(kvfs.Disconnected):
        kvfs.open(address, txn=True, token="secret", timeout=0.5)
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o644)
    with pytest.raises(kvfs.Invalid, match="every user"):
        kvfs.open(address, txn=True, token_file=file, ca=cert)
    file.chmod(0o600)
    monkeypatch.setenv("KVFS_TOKEN_FILE", str(file))
    monkeypatch.setenv("KVFS_CA", str(cert))
    with kvfs.open(address, txn=True) as t:
        assert t.fs.read_text("/made") == "over the network"
