"""Stores in object storage by their addresses: read, followed, written, forked, merged."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import kvfs
import kvfs.aio
import pytest
from conftest import Mount
from test_ends import in_a_forked_child

MEMORY = 32 << 20


@pytest.fixture(autouse=True)
def directories_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local files lie where nothing else does, and go."""
    for variable, name in (("XDG_CACHE_HOME", "caches"), ("XDG_DATA_HOME", "data")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    yield
    for left in tmp_path.iterdir():
        if left.is_dir():
            shutil.rmtree(left)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"dir:{tmp_path}/share/work"


@pytest.fixture
def parent(store_path: str, address: str) -> Iterator[kvfs.Store]:
    """A store that is published, and has a snapshot."""
    with kvfs.open(store_path, memory=MEMORY) as store:
        store["d"][b"k"] = b"1"
        store.fs.makedirs("dir")
        store.fs.write_text("dir/f", "one")
        store.create_snapshot("monday")
        store["d"][b"k"] = b"2"
        store.fs.write_text("dir/f", "two")
        kvfs.push(store, address)
        yield store


def wait_until(holds: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < 60


def killed(code: str) -> None:
    """Runs a program that ends by SIGKILL."""
    code = f"import kvfs, os, signal\n{code}\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


def said_by(code: str) -> str:
    """What a program prints."""
    run = [sys.executable, "-c", f"import kvfs\n{code}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- reading


def test_a_published_store_is_read_by_its_address(parent: kvfs.Store, address: str) -> None:
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"2" and store.fs.read_text("dir/f") == "two"
        assert [s.name for s in store.snapshots()] == ["monday"]
        assert store.open_snapshot("monday")["d"][b"k"] == b"1"
        assert address in repr(store)
        with pytest.raises(kvfs.ReadOnly):
            store["d"][b"k"] = b"3"
        with pytest.raises(OSError):
            store.fs.write_text("dir/f", "three")
        # Any number of times at once.
        with kvfs.open(address, memory=MEMORY) as other:
            assert other["d"][b"k"] == b"2"
            kvfs.push(other, address + "-copy")
    with kvfs.open(address + "-copy", memory=MEMORY) as copy:
        assert copy["d"][b"k"] == b"2" and copy.fs.read_text("dir/f") == "two"


def test_what_was_published_since_is_shown_by_the_next_opening(
    parent: kvfs.Store, address: str
) -> None:
    with kvfs.open(address, memory=MEMORY) as store:
        parent["d"][b"k"] = b"3"
        assert kvfs.push(parent, address).generation == 2
        assert store["d"][b"k"] == b"2"
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"3"


def test_an_address_with_a_snapshot_shows_that(parent: kvfs.Store, address: str) -> None:
    with kvfs.open(f"{address}@monday", memory=MEMORY) as store:
        assert dict(store["d"]) == {b"k": b"1"} and store.fs.read_text("dir/f") == "one"
        assert store.dictionaries() == ["d"]
        with pytest.raises(kvfs.ReadOnly):
            store["d"][b"k"] = b"3"
        with pytest.raises(OSError):
            store.fs.write_text("dir/f", "three")
        with pytest.raises(kvfs.ReadOnly, match="without @monday"):
            store.transaction()
    with pytest.raises(kvfs.NotFound, match="tuesday"):
        kvfs.open(f"{address}@tuesday")
    with pytest.raises(kvfs.Invalid, match="leave out follow"):
        kvfs.open(f"{address}@monday", follow=1)
    with pytest.raises(kvfs.Invalid, match="leave out @monday"):
        kvfs.open(f"{address}@monday", write=True)


def test_a_store_that_follows_shows_what_is_published(parent: kvfs.Store, address: str) -> None:
    with kvfs.open(address, follow=0.02, memory=MEMORY) as store:
        d, held = store["d"], store.open_snapshot("monday")
        with store.fs.open("dir/f", "rb", 0) as file:
            assert file.read() == b"two"
            with parent.transaction() as t:
                t["d"][b"k"] = b"3"
                t.fs.write_text("dir/f", "three")
            parent.drop_snapshot("monday")
            kvfs.push(parent, address)
            wait_until(lambda: d[b"k"] == b"3")
            file.seek(0)
            assert file.read() == b"three"
        assert store.snapshots() == [] and held["d"][b"k"] == b"1"
        wait_until(lambda: store.statistics()["following"]["generation"] == 2)
        assert store.statistics()["following"]["of"] == address


# --- writing


def test_a_store_is_written_on_one_machine_and_on_another(address: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with kvfs.open(address, write=True, cache=here, memory=MEMORY) as store:
        store["d"][b"here"] = b"1"
        store.fs.write_text("f", "here")
        assert store.statistics()["publishing"]["written_at_address"]
    with kvfs.open(address, write=True, cache=there, memory=MEMORY) as store:
        assert dict(store["d"]) == {b"here": b"1"} and store.fs.read_text("f") == "here"
        store["d"][b"there"] = b"2"
    with kvfs.open(address, write=True, cache=here, memory=MEMORY) as store:
        assert dict(store["d"]) == {b"here": b"1", b"there": b"2"}
        store.fs.write_text("f", "here again")
    with kvfs.open(address, memory=MEMORY) as store:
        assert store.fs.read_text("f") == "here again"


def test_what_is_committed_is_published_by_itself(address: str) -> None:
    with (
        kvfs.open(address, write=True, publish_every=0.02, memory=MEMORY) as store,
        kvfs.open(address, follow=0.02, memory=MEMORY) as reader,
    ):
        store["d"][b"k"] = b"v"
        wait_until(lambda: reader["d"].get(b"k") == b"v")
        # At once, where that is wanted.
        store["d"][b"k"] = b"w"
        store.fs.write_text("f", "x")
        kvfs.push(store, address)
        with kvfs.open(address, memory=MEMORY) as other:
            assert other["d"][b"k"] == b"w" and other.fs.read_text("f") == "x"
        wait_until(lambda: reader["d"][b"k"] == b"w")


def test_a_store_that_is_open_for_writing_is_refused_elsewhere(
    address: str, tmp_path: Path
) -> None:
    with kvfs.open(address, write=True, memory=MEMORY) as store:
        with pytest.raises(kvfs.Busy, match="open in this process already"):
            kvfs.open(address, write=True, memory=MEMORY)
        elsewhere = {"cache": str(tmp_path / "there")}
        for options, says in (
            ({}, "in use by another process"),
            (elsewhere, "open for writing by"),
        ):
            code = f"kvfs.open({address!r}, write=True, **{options!r})"
            assert says in said_by(f"try: {code}\nexcept kvfs.Busy as busy: print(busy)")
        store["d"][b"k"] = b"v"
    with kvfs.open(address, write=True, cache=tmp_path / "there", memory=MEMORY) as store:
        assert store["d"][b"k"] == b"v"


def test_a_store_is_made_only_where_that_is_wanted(address: str) -> None:
    with pytest.raises(kvfs.NotFound):
        kvfs.open(address, write=True, create=False)
    with pytest.raises(kvfs.NotFound):
        kvfs.open(address)
    kvfs.open(address, write=True, memory=MEMORY).close()
    with kvfs.open(address, write=True, create=False, memory=MEMORY) as store:
        assert store.fs.listdir() == []


def test_what_a_killed_writer_had_not_published_is_there_on_its_machine(
    address: str, tmp_path: Path
) -> None:
    killed(f"""
store = kvfs.open({address!r}, write=True, publish_every=3600)
store["d"][b"k"] = b"published"
kvfs.push(store, {address!r})
store["d"].update({{b"k": b"local"}})
store.sync()
""")
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"published"
    with kvfs.open(address, write=True, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"local"
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"local"


def test_synced_commits_outlive_the_machine_where_durability_is_remote(
    address: str, tmp_path: Path
) -> None:
    killed(f"""
store = kvfs.open(
    {address!r}, write=True, publish_every=3600, durability="remote", durable=True,
    cache={str(tmp_path / "lost")!r},
)
for i in range(10):
    store["d"][b"%d" % i] = b"v"
with store.transaction(sync=True) as t:
    t["d"][b"t"] = b"v"
    t.fs.write_text("f", "x")
""")
    shutil.rmtree(tmp_path / "lost")
    with pytest.raises(kvfs.Busy):
        kvfs.open(address, write=True, memory=MEMORY)
    with kvfs.open(address, write=True, take=True, memory=MEMORY) as store:
        assert len(store["d"]) == 11 and store.fs.read_text("f") == "x"


def test_one_that_was_displaced_says_so_and_keeps_what_it_has(address: str, tmp_path: Path) -> None:
    displaced = kvfs.open(
        address, write=True, publish_every=3600, cache=tmp_path / "here", memory=MEMORY
    )
    displaced["d"][b"k"] = b"mine"
    taker = kvfs.open(address, write=True, take=True, cache=tmp_path / "there", memory=MEMORY)
    taker["d"][b"k"] = b"taken"
    displaced["d"][b"other"] = b"mine"
    (kept,) = (tmp_path / "here").glob("*.writer.kvfs")
    with pytest.raises(kvfs.Displaced, match="taken by another writer") as raised:
        displaced.close()
    assert str(kept) in str(raised.value) and not isinstance(raised.value, kvfs.Retryable)
    displaced.close()
    taker.close()
    with kvfs.open(address, memory=MEMORY) as store:
        assert dict(store["d"]) == {b"k": b"taken"}
    # It is not written by the address any more, and goes to another name.
    with pytest.raises(kvfs.Displaced, match=f"another name.*{kept}"):
        kvfs.open(address, write=True, cache=tmp_path / "here", memory=MEMORY)
    with kvfs.open(kept, memory=MEMORY) as store:
        kvfs.push(store, address + "-kept")
    with kvfs.open(address + "-kept", memory=MEMORY) as store:
        assert dict(store["d"]) == {b"k": b"mine", b"other": b"mine"}


def test_one_that_was_displaced_with_all_published_says_so_too(
    address: str, tmp_path: Path
) -> None:
    displaced = kvfs.open(
        address, write=True, publish_every=3600, cache=tmp_path / "here", memory=MEMORY
    )
    displaced["d"][b"k"] = b"v"
    kvfs.push(displaced, address)
    with kvfs.open(
        address, write=True, take=True, cache=tmp_path / "there", memory=MEMORY
    ) as taker:
        assert taker["d"][b"k"] == b"v"
        with pytest.raises(kvfs.Displaced, match="taken by another writer"):
            displaced.close()


def test_one_that_was_displaced_takes_no_more_changes(address: str, tmp_path: Path) -> None:
    displaced = kvfs.open(
        address, write=True, publish_every=0.02, cache=tmp_path / "here", memory=MEMORY
    )
    displaced["d"][b"k"] = b"v"
    kvfs.push(displaced, address)
    with kvfs.open(address, write=True, take=True, cache=tmp_path / "there", memory=MEMORY):

        def is_refused() -> bool:
            try:
                displaced["d"][b"k"] = b"w"
            except kvfs.ReadOnly as refused:
                assert "another file is the writer" in str(refused)
                return True
            return False

        wait_until(is_refused)
        # What it had is read on.
        assert displaced["d"].get(b"k") is not None
        assert displaced.statistics()["publishing"]["overtaken"]
    with pytest.raises(kvfs.Displaced):
        displaced.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_stores_at_addresses_alone(address: str) -> None:
    store = kvfs.open(address, write=True, publish_every=0.02, memory=MEMORY)
    store["d"][b"k"] = b"v"
    kvfs.push(store, address)
    everything = [store, kvfs.open(address, follow=0.02, memory=MEMORY)]

    def in_child() -> None:
        for opened in everything:
            with pytest.raises(kvfs.Forked):
                opened["d"][b"k"]
            with pytest.raises(kvfs.Forked):
                opened.close()
        everything.clear()

    in_a_forked_child(in_child)
    store["d"][b"k"] = b"w"
    wait_until(lambda: everything[1]["d"][b"k"] == b"w")
    for opened in everything:
        opened.close()


def test_a_store_that_is_dropped_or_left_open_is_published(address: str, tmp_path: Path) -> None:
    said_by(f"""
store = kvfs.open({address!r}, write=True, publish_every=3600)
store["d"][b"k"] = b"v"
store.fs.open("f", "wb", 0).write(b"x")
""")
    store = kvfs.open(address, write=True, cache=tmp_path / "there", memory=MEMORY)
    assert store["d"][b"k"] == b"v" and store.fs.read_bytes("f") == b"x"
    store["d"][b"k"] = b"w"
    del store
    with kvfs.open(address, memory=MEMORY) as reader:
        assert reader["d"][b"k"] == b"w"


# --- publishing


def test_only_what_is_new_is_published(parent: kvfs.Store, address: str) -> None:
    parent.fs.write_bytes("large", os.urandom(10 << 20))
    assert kvfs.push(parent, address).size > 10 << 20
    parent.fs.write_text("small", "x")
    pushed = kvfs.push(parent, address)
    assert pushed.generation == 3 and pushed.size < 9 << 20 and pushed.live_size > 10 << 20


def test_a_name_belongs_to_one_store(parent: kvfs.Store, address: str, tmp_path: Path) -> None:
    with kvfs.open(tmp_path / "other.kvfs", memory=MEMORY) as other:
        with pytest.raises(kvfs.Error, match="another store"):
            kvfs.push(other, address)
        assert kvfs.push(other, address + "2").generation == 1
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"2"


def test_what_was_written_at_the_address_is_replaced_only_when_that_is_asked_for(
    parent: kvfs.Store, address: str
) -> None:
    with kvfs.open(address, write=True, memory=MEMORY) as store:
        store["d"][b"k"] = b"at the address"
    with pytest.raises(kvfs.Displaced, match="was written at its address"):
        kvfs.push(parent, address)
    kvfs.push(parent, address, take=True)
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"2"


def test_a_mounted_store_is_published_by_its_daemon(
    connected: kvfs.Store, mount: Mount, address: str
) -> None:
    connected["d"][b"k"] = b"mounted"
    connected.fs.write_text("f", "x")
    assert kvfs.push(connected, address).generation == 1
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"mounted" and store.fs.read_text("f") == "x"
    with pytest.raises(kvfs.Unsupported):
        kvfs.push(connected, address, take=True)
    with pytest.raises(kvfs.Unsupported, match="kvfs merge"):
        connected.merge_fork(address)


# --- forks


def test_a_fork_begins_as_the_store_and_goes_its_own_way(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    made = kvfs.fork(address, tmp_path / "mine.kvfs", label="me")
    assert made.generation == 1 and made.file == str(tmp_path / "mine.kvfs")
    parent["d"][b"k"] = b"parent's"
    kvfs.push(parent, address)
    with kvfs.open(made.file, memory=MEMORY) as fork:
        assert fork["d"][b"k"] == b"2" and fork.fs.read_text("dir/f") == "two"
        fork["d"][b"k"] = b"mine"
        fork.fs.write_text("dir/f", "mine")
    with kvfs.open(made.file, read_only=True, memory=MEMORY) as fork:
        assert fork["d"][b"k"] == b"mine"
        with pytest.raises(kvfs.ReadOnly):
            fork["d"][b"k"] = b"x"
    assert parent["d"][b"k"] == b"parent's" and parent.fs.read_text("dir/f") == "two"
    with kvfs.open(address, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"parent's"


def test_a_fork_of_a_snapshot_begins_as_that(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    made = kvfs.fork(f"{address}@monday", tmp_path / "mine.kvfs")
    with kvfs.open(made.file, memory=MEMORY) as fork:
        assert fork["d"][b"k"] == b"1" and fork.fs.read_text("dir/f") == "one"
    with pytest.raises(kvfs.NotFound, match="@tuesday"):
        kvfs.fork(f"{address}@tuesday", tmp_path / "other.kvfs")
    assert not (tmp_path / "other.kvfs").exists()
    assert [fork.number for fork in kvfs.forks(address)] == [made.number]


def test_forks_are_listed_until_they_are_dropped(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    one = kvfs.fork(address, tmp_path / "1.kvfs", label="one", expires=timedelta(days=7))
    two = kvfs.fork(address, tmp_path / "2.kvfs", label="two", expires=3600)
    three = kvfs.fork(address, tmp_path / "3.kvfs")
    listed = {fork.number: fork for fork in kvfs.forks(address)}
    assert set(listed) == {one.number, two.number, three.number}
    assert listed[one.number].label == "one" and listed[three.number].label != ""
    assert listed[three.number].expires is None
    week, hour = listed[one.number], listed[two.number]
    assert week.expires is not None and week.expires - week.made == timedelta(days=7)
    assert hour.expires is not None and hour.expires - hour.made == timedelta(hours=1)
    assert kvfs.drop_fork(address, one) and kvfs.drop_fork(address, two.number)
    assert not kvfs.drop_fork(address, one)
    assert [fork.number for fork in kvfs.forks(address)] == [three.number]
    with pytest.raises(kvfs.Invalid, match="32"):
        kvfs.drop_fork(address, "x")


def test_a_fork_replaces_no_file(parent: kvfs.Store, address: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("text")
    with pytest.raises(kvfs.Exists):
        kvfs.fork(address, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "text" and kvfs.forks(address) == []


def test_what_a_fork_has_changed_is_merged_into_its_parent(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    made = kvfs.fork(address, tmp_path / "mine.kvfs")
    with kvfs.open(made.file, memory=MEMORY) as fork:
        fork["d"][b"new"] = b"fork's"
        fork.fs.write_text("dir/new", "fork's")
        with pytest.raises(kvfs.Busy):
            parent.merge_fork(made.file)
        kvfs.push(fork, address + "-mine")
    parent["d"][b"k"] = b"parent's"
    # It is looked at before, and may be given up.
    with parent.transaction() as other, pytest.raises(ZeroDivisionError):
        other["d"][b"another"] = b"v"
        with parent.merge_fork(made.file) as t:
            assert t["d"][b"new"] == b"fork's" and t.fs.read_text("dir/new") == "fork's"
            1 / 0
    assert parent["d"].get(b"new") is None and not parent.fs.exists("dir/new")
    with parent.merge_fork(address + "-mine", undoable=True, label="merge"):
        pass
    assert dict(parent["d"]) == {b"another": b"v", b"k": b"parent's", b"new": b"fork's"}
    assert parent.fs.read_text("dir/new") == "fork's"
    parent.undo().commit()
    assert parent["d"].get(b"new") is None and not parent.fs.exists("dir/new")


def test_what_both_have_changed_is_settled_or_nothing_is_merged(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    made = kvfs.fork(address, tmp_path / "mine.kvfs")
    for store in (parent, kvfs.open(made.file, memory=MEMORY)):
        whose = b"parent's" if store is parent else b"fork's"
        store["d"][b"k"] = whose
        store.fs.write_bytes("dir/f", whose)
    store.close()
    with pytest.raises(kvfs.MergeConflict, match="dir/f") as raised:
        parent.merge_fork(made.file)
    assert [(c.path, c.key, c.ours, c.theirs) for c in raised.value.conflicts] == [
        ("dir/f", False, "changed", "changed"),
        ("d:k", True, "changed", "changed"),
    ]
    assert parent.transactions() == []
    with pytest.raises(kvfs.MergeConflict) as raised:
        parent.merge_fork(made.file, settle={"dir": "theirs"})
    assert [c.path for c in raised.value.conflicts] == ["d:k"]
    with pytest.raises(kvfs.Invalid, match="ours, theirs or both"):
        parent.merge_fork(made.file, settle="mine")  # type: ignore[arg-type]
    with parent.merge_fork(made.file, settle={"": "theirs", "d:k": "ours"}):
        pass
    assert parent["d"][b"k"] == b"parent's" and parent.fs.read_bytes("dir/f") == b"fork's"


def test_a_store_is_no_fork_of_another_one(parent: kvfs.Store, tmp_path: Path) -> None:
    kvfs.open(tmp_path / "other.kvfs", memory=MEMORY).close()
    with pytest.raises(kvfs.Invalid, match="no fork"):
        parent.merge_fork(tmp_path / "other.kvfs")
    with pytest.raises(OSError):
        parent.merge_fork(tmp_path / "missing.kvfs")


# --- threads


def test_other_threads_run_while_one_waits_for_a_place(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    """The place is a folder whose locks others hold."""
    written = kvfs.open(address + "-2", write=True, publish_every=3600, memory=MEMORY)
    written["d"][b"k"] = b"v"
    reader = kvfs.open(address, memory=MEMORY)
    for call in (
        lambda: kvfs.open(address, memory=MEMORY).close(),
        lambda: kvfs.push(parent, address),
        lambda: kvfs.drop_fork(address, kvfs.fork(address, tmp_path / "mine.kvfs")),
        lambda: kvfs.forks(address),
        lambda: parent.merge_fork(address + "-none"),
        lambda: kvfs.open(address + "-3", write=True, memory=MEMORY).close(),
        lambda: kvfs.push(written, address + "-2"),
        lambda: written.close(),
    ):
        with contextlib.ExitStack() as held:
            locks = set()
            for path in (tmp_path / "share" / ".kvfs~locks").iterdir():
                file = held.enter_context(path.open("r+b"))
                fcntl.flock(file, fcntl.LOCK_EX)
                locks.add(f":{os.fstat(file.fileno()).st_ino} ")

            def waits(locks: set[str] = locks) -> bool:
                lines = Path("/proc/locks").read_text().splitlines()
                return any("->" in line and lock in line for line in lines for lock in locks)

            def quietly(call: Callable[[], object] = call) -> None:
                with contextlib.suppress(kvfs.NotFound):
                    call()

            thread = threading.Thread(target=quietly)
            thread.start()
            # Were the interpreter's lock held by the thread that waits, this could not go on.
            wait_until(waits)
            assert thread.is_alive() and reader["d"][b"k"] == b"2"
        thread.join(60)
        assert not thread.is_alive()
    reader.close()


# --- fsspec


def test_fsspec_reads_a_store_by_its_address(parent: kvfs.Store, address: str) -> None:
    fsspec = pytest.importorskip("fsspec", reason="SKIPPED: fsspec is not installed")
    with fsspec.open("kvfs:///dir/f", "rt", store=address) as file:
        assert file.read() == "two"
    with fsspec.open("kvfs:///dir/f", "rt", store=f"{address}@monday") as file:
        assert file.read() == "one"
    fs = fsspec.filesystem("kvfs", store=address)
    assert fs.find("/") == ["/dir/f"]
    assert pickle.loads(pickle.dumps(fs)).store is fs.store
    with pytest.raises(OSError):
        fs.pipe("/new", b"x")
    following = fsspec.filesystem("kvfs", store=address, follow=0.02)
    parent.fs.write_text("dir/g", "new")
    kvfs.push(parent, address)
    wait_until(lambda: following.exists("/dir/g"))
    assert not fs.exists("/dir/g")
    for opened in (fs, following):
        opened.store.close()
    with pytest.raises(kvfs.Invalid, match="leave out follow"):
        fsspec.filesystem("kvfs", store="file.kvfs", follow=1)


# --- what is wrong


@pytest.mark.parametrize(
    "word", ["dir:", "dir:/srv/", "dir:/srv/@x", "dir:/srv/work@", "s3://", "s3://bucket", "s3:///"]
)
def test_a_bad_address_says_how_one_is_written(
    word: str, parent: kvfs.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for call in (
        lambda: kvfs.open(word),
        lambda: kvfs.open(word, write=True),
        lambda: kvfs.push(parent, word),
        lambda: kvfs.fork(word, "mine.kvfs"),
        lambda: kvfs.forks(word),
    ):
        with pytest.raises(kvfs.Invalid):
            call()
    assert sorted(os.listdir(tmp_path)) == before


def test_a_path_is_no_address(parent: kvfs.Store, tmp_path: Path) -> None:
    for call in (
        lambda: kvfs.push(parent, tmp_path / "x"),
        lambda: kvfs.fork(tmp_path / "x", tmp_path / "y"),
        lambda: kvfs.forks("work"),
    ):
        with pytest.raises(kvfs.Invalid, match="dir:FOLDER/NAME"):
            call()
    with pytest.raises(kvfs.Invalid, match="name"):
        kvfs.push(parent, f"dir:{tmp_path}/share/a name with \n in it")


def test_a_place_or_store_that_is_not_there_is_not_found(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    for word in (f"dir:{tmp_path}/nowhere/work", address + "-none"):
        with pytest.raises(kvfs.NotFound):
            kvfs.open(word)
        with pytest.raises(kvfs.NotFound):
            kvfs.fork(word, tmp_path / "mine.kvfs")
    assert not (tmp_path / "nowhere").exists() and not (tmp_path / "mine.kvfs").exists()


def test_arguments_that_do_not_go_together_are_refused(
    parent: kvfs.Store, address: str, tmp_path: Path
) -> None:
    for options in (
        {"take": True},
        {"durability": "remote"},
        {"durable": True},
        {"write": True, "follow": 1},
        {"write": True, "read_only": True},
        {"write": True, "durability": "elsewhere"},
        {"write": True, "publish_every": 0},
        {"write": True, "size": 1 << 30},
        {"follow": -1},
        {"follow": float("nan")},
        {"cache_size": -1},
    ):
        with pytest.raises(kvfs.Invalid):
            kvfs.open(address, **options)  # type: ignore[arg-type]
    for options in ({"write": True}, {"take": True}, {"follow": 1}, {"cache": "x"}):
        with pytest.raises(kvfs.Invalid, match="is a file"):
            kvfs.open(tmp_path / "new.kvfs", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "new.kvfs").exists()
    with pytest.raises(kvfs.Invalid, match="expires"):
        kvfs.fork(address, tmp_path / "mine.kvfs", expires=-1)


def test_a_cache_is_not_written(parent: kvfs.Store, address: str, tmp_path: Path) -> None:
    kvfs.open(address, cache=tmp_path / "cache").close()
    (cached,) = (tmp_path / "cache").glob("*.kvfs")
    with pytest.raises(kvfs.Invalid, match="changes would be lost"):
        kvfs.open(cached)
    with kvfs.open(cached, read_only=True, memory=MEMORY) as store:
        assert store["d"][b"k"] == b"2"


def test_asyncio_opens_addresses_too(parent: kvfs.Store, address: str) -> None:
    async def read() -> bytes:
        async with await kvfs.aio.open(address, memory=MEMORY) as store:
            return await store["d"].get(b"k")

    assert asyncio.run(read()) == b"2"
