"""Objects that are used after their end, twice, from other threads and in forked processes."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import kvfs
import pytest
from conftest import Mount, why_no_mount
from kvfs import _store


def test_a_closed_store_says_so(store: kvfs.Store) -> None:
    store["d"].update((b"%d" % i, b"") for i in range(1000))
    store.create_snapshot("s")
    d, snapshot, transaction = store["d"], store.open_snapshot("s"), store.transaction()
    iterator = iter(d.keys())
    next(iterator)
    store.close()
    store.close()
    assert not store.is_open and "closed" in repr(store)
    for call in (
        lambda: d[b"1"],
        lambda: d.update({b"1": b""}),
        lambda: list(d),
        lambda: list(iterator),
        lambda: snapshot["d"][b"1"],
        lambda: store.transaction(),
        lambda: store.sync(),
        lambda: store.create_snapshot("t"),
        lambda: store.dictionaries(),
        lambda: store.batch().__enter__()["d"].__setitem__(b"k", b"v") or store["d"].clear(),
    ):
        with pytest.raises(kvfs.Closed, match="closed"):
            call()
    with pytest.raises((kvfs.Closed, kvfs.TransactionEnded)):
        transaction["d"][b"1"] = b""
    with pytest.raises((kvfs.Closed, kvfs.TransactionEnded)):
        transaction.commit()
    snapshot.close()


def test_files_of_a_closed_store_say_so(embedded: kvfs.Store) -> None:
    fs, raw = embedded.fs, embedded.fs.open("f", "w+b", 0)
    buffered = fs.open("g", "wb")
    buffered.write(b"never written")
    embedded.close()
    with pytest.raises(kvfs.Closed):
        raw.write(b"x")
    with pytest.raises(kvfs.Closed):
        fs.listdir()
    with pytest.raises(kvfs.Closed):
        buffered.close()
    raw.close()


def test_a_closed_store_can_be_opened_at_once_whatever_still_refers_to_it(store_path: str) -> None:
    kept: list[object] = []
    for i in range(10):
        store = kvfs.open(store_path, memory=32 << 20)
        store["d"][b"%d" % i] = b"v"
        store.fs.write_text("f", str(i))
        kept += [store, iter(store["d"]), store.transaction(), store.fs.open("f")]
        next(kept[-3])
        store.close()
    with kvfs.open(store_path) as store:
        assert len(store["d"]) == 10 and store.fs.read_text("f") == "9"


def test_a_store_is_opened_once(embedded: kvfs.Store, store_path: str) -> None:
    with pytest.raises(kvfs.Busy, match="open in this process already"):
        kvfs.open(store_path)
    code = f"import kvfs\ntry: kvfs.open({store_path!r})\nexcept kvfs.Busy as e: print('busy')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "busy\n", done.stderr


def test_a_store_that_is_dropped_is_closed(store_path: str) -> None:
    store = kvfs.open(store_path)
    store["d"][b"k"] = b"v"
    store.fs.write_text("f", "x")
    del store
    gc.collect()
    with kvfs.open(store_path) as again:
        assert again["d"][b"k"] == b"v" and again.fs.read_text("f") == "x"


def test_a_store_that_is_open_at_the_end_of_the_program_is_closed(store_path: str) -> None:
    code = f"""
import kvfs
store = kvfs.open({store_path!r})
store["d"][b"k"] = b"v"
file = store.fs.open("f", "wb", 0)
file.write(b"x")
t = store.transaction()
t["d"][b"no"] = b"v"
listing = iter(store["d"].items())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with kvfs.open(store_path) as store:
        assert dict(store["d"]) == {b"k": b"v"} and store.fs.read_bytes("f") == b"x"


def test_a_store_that_cannot_be_closed_keeps_no_other_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    class Open:
        _pid = os.getpid()

        def __init__(self, failure: Exception | None) -> None:
            self.failure = failure

        def close(self) -> None:
            closed.append(self)
            if self.failure is not None:
                raise self.failure

    stores = [Open(kvfs.Closed("it")), Open(kvfs.NoSpace(28, "full")), Open(None)]
    monkeypatch.setattr(_store, "_OPEN", stores)
    with pytest.raises(kvfs.NoSpace):
        _store._close_all()
    assert closed == stores


def test_what_cannot_be_pickled_says_so(store: kvfs.Store) -> None:
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(store)
    with pytest.raises(TypeError):
        pickle.dumps(store["d"])


def in_a_forked_child(work: Callable[[], None]) -> None:
    """Runs `work` in a child, and passes its failure on."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            gc.collect()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    waiting = threading.Timer(60, os.kill, (child, 9))
    waiting.start()
    _, status = os.waitpid(child, 0)
    waiting.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_an_embedded_store_alone(
    embedded: kvfs.Store, store_path: str
) -> None:
    embedded["d"].update((b"%d" % i, b"v") for i in range(100))
    embedded.create_snapshot("s")
    everything = {
        "iterator": iter(embedded["d"].items()),
        "transaction": embedded.transaction(),
        "file": embedded.fs.open("f", "wb", 0),
        "snapshot": embedded.open_snapshot("s"),
        "changes": embedded.changes("s"),
    }
    next(everything["iterator"])
    everything["transaction"]["d"][b"mine"] = b"v"

    def in_child() -> None:
        for call in (
            lambda: embedded["d"][b"1"],
            lambda: embedded["d"].clear(),
            lambda: list(everything["iterator"]),
            lambda: everything["transaction"].commit(),
            lambda: everything["transaction"]["d"].clear(),
            lambda: everything["file"].write(b"x"),
            lambda: everything["snapshot"]["d"][b"1"],
            lambda: embedded.fs.listdir(),
            lambda: embedded.sync(),
            lambda: embedded.close(),
        ):
            with pytest.raises(kvfs.Forked, match="forked"):
                call()
        assert not embedded.is_open
        # Letting go of all of it writes nothing.
        everything.clear()

    in_a_forked_child(in_child)
    embedded["d"][b"after"] = b"v"
    everything["transaction"].commit()
    assert embedded["d"][b"mine"] == b"v" and len(embedded["d"]) == 102
    embedded.close()
    with kvfs.open(store_path) as again:
        assert len(again["d"]) == 102


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(connected: kvfs.Store) -> None:
    connected["d"][b"k"] = b"parent"
    transaction = connected.transaction()
    transaction["d"][b"t"] = b"1"

    def in_child() -> None:
        assert connected["d"][b"k"] == b"parent"
        connected["d"][b"k"] = b"child"
        with pytest.raises(kvfs.Forked):
            transaction["d"][b"t"]
        with pytest.raises(kvfs.Forked):
            transaction.abort()

    in_a_forked_child(in_child)
    assert connected["d"][b"k"] == b"child"
    transaction.commit()
    assert connected["d"][b"t"] == b"1"


def _in_process(point: str, number: int) -> None:
    with kvfs.connect(point) as store:
        store.run(lambda t: t["d"].add(b"n", number))


def test_processes_share_a_mounted_store(connected: kvfs.Store, mount: object) -> None:
    spawn = multiprocessing.get_context("spawn")
    point = str(mount.point)
    workers = [spawn.Process(target=_in_process, args=(point, n)) for n in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert connected["d"][b"n"] == b"6"


def test_threads_use_a_store_that_is_closed_under_them(store: kvfs.Store) -> None:
    wrong: list[BaseException] = []
    started = threading.Barrier(7)

    def use(which: int) -> None:
        started.wait()
        try:
            for i in range(1_000_000):
                match which % 3:
                    case 0:
                        store["d"][b"%d:%d" % (which, i % 100)] = b"v"
                    case 1:
                        for _ in store["d"].items():
                            pass
                    case _:
                        with store.transaction("ser" if i % 2 else "si", lock_timeout=1.0) as t:
                            t["d"][b"t%d:%d" % (which, i % 10)] = b"v"
        except (kvfs.Closed, kvfs.TransactionEnded, kvfs.Disconnected):
            pass
        except BaseException as failure:
            wrong.append(failure)

    workers = [threading.Thread(target=use, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    started.wait()
    while len(store["d"]) < 100:
        pass
    store.close()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert wrong == []


def test_a_call_that_waits_lets_other_threads_run(embedded: kvfs.Store) -> None:
    embedded["d"][b"k"] = b"0"
    older = embedded.transaction("ser")
    older["d"][b"k"] = b"1"
    waiting, seen = threading.Event(), []

    def younger() -> None:
        waiting.set()

        def work(t: kvfs.Transaction) -> bytes:
            return t["d"][b"k"]

        seen.append(embedded.run(work, "ser"))

    thread = threading.Thread(target=younger)
    thread.start()
    waiting.wait()
    # Were the interpreter's lock held by the thread that waits, this could not go on.
    for i in range(1000):
        older["d"][b"%d" % i] = b"x"
    older.commit()
    thread.join(60)
    assert seen == [b"1"]


def test_the_daemon_that_is_gone_is_told_of(mount: object) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = directory + "/s"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        for answer in (b"", b"?what\r\n", b"$5\r\nab", b"+" + b"x" * 100_000, b":x\r\n", b"*1\r\n"):

            def serve(answer: bytes = answer) -> None:
                peer, _ = listener.accept()
                peer.recv(1 << 16)
                peer.sendall(answer)
                peer.close()

            server = threading.Thread(target=serve)
            server.start()
            store = kvfs.connect(path)
            with pytest.raises(kvfs.Disconnected):
                store["0"][b"k"]
            server.join(60)
            store.close()

        def silent() -> None:
            peer, _ = listener.accept()
            peer.recv(1 << 16)
            done.wait(60)
            peer.close()

        done = threading.Event()
        server = threading.Thread(target=silent)
        server.start()
        with (
            kvfs.connect(path, timeout=0.05) as store,
            pytest.raises(kvfs.Disconnected, match="time"),
        ):
            store["0"][b"k"]
        done.set()
        server.join(60)
        listener.close()
    with pytest.raises(FileNotFoundError):
        kvfs.connect(path)


def test_a_daemon_that_is_gone_is_a_connection_error_on_old_and_new_connections() -> None:
    assert issubclass(kvfs.Disconnected, ConnectionError)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "s.kvfs.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            peer.recv(1 << 16)
            peer.sendall(b"$1\r\nv\r\n")
            listener.close()
            peer.close()

        server = threading.Thread(target=serve)
        server.start()
        with kvfs.connect(path) as store:
            assert store["0"][b"k"] == b"v"
            server.join(60)
            # The first time on the connection that there is, then on none.
            for _ in range(3):
                with pytest.raises(kvfs.Disconnected, match="gone|closed"):
                    store["0"][b"k"]


def test_what_is_open_when_the_daemon_is_killed_raises_disconnected(tmp_path: Path) -> None:
    if reason := why_no_mount():
        pytest.skip(reason)
    # The path of a socket is short.
    with tempfile.TemporaryDirectory() as directory:
        mount = Mount(Path(directory))
        try:
            store = kvfs.connect(mount.point)
            store["d"].update((b"%06d" % i, b"v" * 100) for i in range(20_000))
            store.create_snapshot("s")
            snapshot, transaction = store.open_snapshot("s"), store.transaction()
            transaction["d"][b"new"] = b"v"
            iterators = [
                iter(store["d"]),
                iter(store["d"].items()),
                iter(snapshot["d"].keys()),
                iter(transaction["d"].keys()),
                iter(store["d"].keys(reverse=True)),
            ]
            for iterator in iterators:
                next(iterator)
            pid = json.loads(mount.run("--json", "stat", mount.point))["daemon"]["pid"]
            watched = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([watched], [], [])
            os.close(watched)
            for iterator in iterators:
                # Neither an exception of another kind, nor an end that comes too early.
                with pytest.raises(kvfs.Disconnected) as raised:
                    for _ in iterator:
                        pass
                assert isinstance(raised.value, ConnectionError)
                assert isinstance(raised.value, kvfs.Error)
            with pytest.raises(kvfs.Disconnected):
                store["d"][b"000001"]
            with pytest.raises((kvfs.Disconnected, kvfs.TransactionEnded, kvfs.Closed)):
                transaction.commit()
            store.close()
        finally:
            mount.run("umount", "--force", mount.point)
