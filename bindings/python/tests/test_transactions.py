"""Transactions over keys and files: isolation, ends, savepoints, retries."""

from __future__ import annotations

import gc
import threading
from typing import Any

import kvfs
import pytest


def test_a_block_commits_at_its_end(store: kvfs.Store) -> None:
    d = store["d"]
    with store.transaction() as t:
        t["d"][b"k"] = b"v"
        assert t["d"][b"k"] == b"v" and b"k" not in d
        assert [i.number for i in store.transactions()] == [t.number]
    assert d[b"k"] == b"v" and not t.is_open and store.transactions() == []


def test_an_exception_aborts(store: kvfs.Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as t:
        t["d"][b"k"] = b"v"
        1 / 0
    assert b"k" not in store["d"] and not t.is_open
    assert store.transactions() == []


def test_two_that_change_the_same_key_conflict(store: kvfs.Store) -> None:
    a, b = store.transaction(), store.transaction()
    a["d"][b"k"] = b"a"
    b["d"][b"k"] = b"b"
    a.commit()
    with pytest.raises(kvfs.Conflict, match="changed") as conflict:
        b.commit()
    assert isinstance(conflict.value, kvfs.Retryable)
    assert not b.is_open and store["d"][b"k"] == b"a"
    with pytest.raises(kvfs.TransactionEnded):
        b["d"][b"k"]
    with pytest.raises(kvfs.TransactionEnded):
        b.commit()
    b.abort()


def test_the_conflict_of_a_block_is_raised(store: kvfs.Store) -> None:
    with pytest.raises(kvfs.Conflict), store.transaction() as t:
        t["d"][b"k"] = b"mine"
        store["d"][b"k"] = b"theirs"
    assert store["d"][b"k"] == b"theirs"


def test_snapshot_isolation_reads_one_state(store: kvfs.Store) -> None:
    d = store["d"]
    d.update({b"a": b"1", b"b": b"1"})
    with store.transaction() as t:
        assert t["d"][b"a"] == b"1"
        d.update({b"a": b"2", b"b": b"2", b"c": b"2"})
        assert dict(t["d"]) == {b"a": b"1", b"b": b"1"}
        t["d"].delete_range(b"x", b"y")


def test_without_checks_the_last_commit_wins(store: kvfs.Store) -> None:
    a, b = store.transaction(check_conflicts=False), store.transaction(check_conflicts=False)
    a["d"][b"k"] = b"a"
    b["d"][b"k"] = b"b"
    a.commit()
    b.commit(sync=True)
    assert store["d"][b"k"] == b"b"


def test_serializable_ones_lock_what_they_read(store: kvfs.Store) -> None:
    store["d"][b"k"] = b"0"
    with store.transaction("ser") as older:
        assert older["d"][b"k"] == b"0"
        younger = store.transaction("ser", lock_timeout=0.05)
        with pytest.raises(kvfs.Locked):
            younger["d"][b"k"] = b"1"
        younger.abort()
        older["d"][b"k"] = b"2"
    assert store["d"][b"k"] == b"2"


def test_the_loser_of_two_serializable_ones_can_be_begun_again(store: kvfs.Store) -> None:
    store["d"][b"k"] = b"0"
    older, younger = store.transaction("ser"), store.transaction("ser")
    younger["d"][b"k"] = b"younger"
    # The older one takes what the younger one holds, which is over then, and says why.
    older["d"][b"k"] = b"older"
    for call in (
        lambda: younger["d"][b"k"],
        lambda: younger["d"].update({b"a": b"b"}),
        lambda: younger.commit(),
    ):
        with pytest.raises(kvfs.Locked):
            call()
    younger.abort()
    older.commit()
    assert store["d"][b"k"] == b"older"


def test_counters_do_not_conflict(store: kvfs.Store) -> None:
    a, b = store.transaction(), store.transaction()
    a["d"].add(b"n", 3)
    b["d"].add(b"n", 4)
    a.commit()
    b.commit()
    assert store["d"][b"n"] == b"7"


def test_savepoints_go_back(store: kvfs.Store) -> None:
    with store.transaction() as t:
        t["d"][b"a"] = b"1"
        t.fs.write_text("a", "1")
        first = t.savepoint()
        t["d"][b"a"] = b"2"
        t["d"][b"b"] = b"2"
        t.fs.write_text("a", "2")
        t.fs.write_text("b", "2")
        first.rollback()
        assert dict(t["d"]) == {b"a": b"1"}
        assert t.fs.listdir() == ["a"] and t.fs.read_text("a") == "1"
        with pytest.raises(ZeroDivisionError), t.savepoint():
            t["d"][b"c"] = b"3"
            1 / 0
        with t.savepoint():
            t["d"][b"d"] = b"4"
    assert dict(store["d"]) == {b"a": b"1", b"d": b"4"}
    assert store.fs.read_text("a") == "1"


def test_each_who_has_joined_goes_back_to_savepoints_of_their_own(store: kvfs.Store) -> None:
    first = store.transaction()
    second = store.join(first.number)
    first["d"][b"a"] = b"1"
    ours = first.savepoint()
    first["d"][b"a"] = b"2"
    theirs = second.savepoint()
    second["d"][b"a"] = b"3"
    theirs.rollback()
    assert first["d"][b"a"] == b"2"
    ours.rollback()
    assert first["d"][b"a"] == b"1"
    first.abort()


def test_a_transaction_that_cannot_begin_is_begun_again(
    store: kvfs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = kvfs.Store._begin
    failures = [kvfs.Locked("not yet")]

    def reluctant(self: kvfs.Store, *words: Any) -> kvfs.Transaction:
        if failures:
            raise failures.pop()
        return begin(self, *words)

    monkeypatch.setattr(kvfs.Store, "_begin", reluctant)
    assert store.run(lambda t: t.number, "ser") > 0
    assert failures == []


@pytest.mark.parametrize("isolation", ["si", "ser"])
def test_files_and_keys_commit_together(
    store: kvfs.Store, isolation: kvfs._store.Isolation
) -> None:
    with store.transaction(isolation, sync=True) as t:
        t.fs.makedirs("reports/2026")
        t.fs.write_text("reports/2026/may", "fair")
        t["index"][b"may"] = b"reports/2026/may"
        assert not store.fs.exists("reports")
        assert b"may" not in store["index"]
    assert store.fs.read_text(store["index"][b"may"]) == "fair"
    with pytest.raises(ZeroDivisionError), store.transaction(isolation) as t:
        t.fs.rmtree("reports")
        del t["index"][b"may"]
        assert not t.fs.exists("reports")
        1 / 0
    assert store.fs.read_text("reports/2026/may") == "fair" and b"may" in store["index"]


def test_run_takes_conflicts_on_itself(store: kvfs.Store) -> None:
    threads, rounds = 4, 15

    def add(t: kvfs.Transaction) -> int:
        value = int(t["d"].get(b"n", b"0")) + 1
        t["d"][b"n"] = b"%d" % value
        return value

    failures: list[BaseException] = []

    def work(isolation: kvfs._store.Isolation) -> None:
        try:
            for _ in range(rounds):
                store.run(add, isolation, attempts=1000)
        except BaseException as failure:
            failures.append(failure)

    for isolation in ("si", "ser"):
        store["d"].clear()
        workers = [threading.Thread(target=work, args=(isolation,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
            assert not worker.is_alive()
        assert failures == []
        assert store["d"][b"n"] == b"%d" % (threads * rounds)
    assert store.transactions() == []


def test_run_gives_up_and_passes_other_exceptions_on(store: kvfs.Store) -> None:
    calls = []

    def loses(t: kvfs.Transaction) -> None:
        calls.append(t.number)
        t["d"][b"k"] = b"mine"
        store["d"][b"k"] = b"theirs"

    with pytest.raises(kvfs.Conflict):
        store.run(loses, attempts=3)
    assert len(set(calls)) == 3

    def fails(t: kvfs.Transaction) -> None:
        t["d"][b"k"] = b"mine"
        raise RuntimeError("of the caller")

    with pytest.raises(RuntimeError, match="of the caller"):
        store.run(fails)
    assert store["d"][b"k"] == b"theirs"
    with pytest.raises(kvfs.Invalid):
        store.run(loses, attempts=0)


def test_one_that_is_dropped_is_aborted(store: kvfs.Store) -> None:
    t = store.transaction()
    t["d"][b"k"] = b"v"
    del t
    gc.collect()
    deadline = threading.Event()
    # Over a socket it ends when the daemon has seen the end of the connection.
    for _ in range(500):
        if not store.transactions():
            break
        deadline.wait(0.01)
    assert store.transactions() == [] and b"k" not in store["d"]


def test_one_is_joined_by_its_number(store: kvfs.Store) -> None:
    with store.transaction(label="shared") as t:
        t["d"][b"a"] = b"1"
        other = store.join(t.number)
        assert other["d"][b"a"] == b"1"
        other["d"][b"b"] = b"2"
        assert t["d"][b"b"] == b"2"
        [info] = store.transactions()
        assert (info.label, info.isolation) == ("shared", "si")
        assert info.age >= 0 and info.changes >= 2
    assert dict(store["d"]) == {b"a": b"1", b"b": b"2"}
    with pytest.raises(kvfs.TransactionEnded):
        other["d"][b"a"]
    with pytest.raises(kvfs.TransactionEnded):
        store.join(t.number)


def test_a_large_transaction_does_not_need_the_memory(embedded: kvfs.Store) -> None:
    value = bytes(range(256)) * 256
    with embedded.transaction() as t:
        for i in range(1200):
            t["d"][b"%d" % i] = value
    assert len(embedded["d"]) == 1200 and embedded["d"][b"1199"] == value


def test_wrong_arguments_are_refused(store: kvfs.Store) -> None:
    with pytest.raises(kvfs.Invalid, match="isolation"):
        store.transaction("dirty")
    with pytest.raises(kvfs.Error):
        store.transaction("ser", lock_timeout=-1.0)
    assert store.transactions() == []


def test_a_commit_is_undone_and_what_others_did_stays(store: kvfs.Store) -> None:
    d = store["d"]
    d.update({b"a": b"1", b"b": b"1"})
    store.fs.write_bytes("/kept", b"before")
    with store.transaction(undoable=True, label="a mistake") as t:
        t["d"][b"a"] = b"2"
        del t["d"][b"b"]
        t.fs.write_bytes("/kept", b"after")
        t.fs.write_bytes("/new", b"new")
    d[b"c"] = b"others"
    last = store.commits()[-1]
    assert last.label == "a mistake" and last.created.year > 2000
    with store.undo() as t:
        assert t["d"][b"a"] == b"1", "it can be looked at before"
        assert d[b"a"] == b"2", "nothing is done before its commit"
    assert dict(d) == {b"a": b"1", b"b": b"1", b"c": b"others"}
    assert store.fs.read_bytes("/kept") == b"before" and not store.fs.exists("/new")
    # The undoing can be undone, by the number of its commit.
    again = store.commits()[-1]
    assert again.number > last.number and "a mistake" in again.label
    store.undo(again.number).commit()
    assert dict(d) == {b"a": b"2", b"c": b"others"}
    assert store.fs.read_bytes("/kept") == b"after" and store.fs.exists("/new")


def test_what_others_have_changed_since_stands_against_an_undoing(store: kvfs.Store) -> None:
    with store.transaction(undoable=True, label="first") as t:
        t["d"][b"a"] = b"1"
    store["d"][b"a"] = b"others"
    with pytest.raises(kvfs.Conflict, match=r"\(first\) cannot be undone.*key \"a\"") as refused:
        store.undo()
    assert "of dictionary d since" in str(refused.value)
    assert store.transactions() == [] and store["d"][b"a"] == b"others"


@pytest.mark.parametrize("number", [-1, 1 << 63])
def test_what_is_no_number_of_a_commit_is_refused(store: kvfs.Store, number: int) -> None:
    with pytest.raises(kvfs.Invalid, match="number of a commit"):
        store.undo(number)


def test_only_commits_that_asked_for_it_can_be_undone(embedded: kvfs.Store) -> None:
    with pytest.raises(kvfs.NotFound, match="no commit can be undone"):
        embedded.undo()
    with embedded.transaction() as t:
        t["d"][b"a"] = b"1"
    with embedded.transaction(undoable=True) as t:
        t["d"][b"b"] = b"1"
    assert len(embedded.commits()) == 1
    with pytest.raises(kvfs.NotFound, match="commit 12345 cannot be undone"):
        embedded.undo(12345)
    embedded.undo().abort()
    assert embedded["d"][b"b"] == b"1"


def test_a_socket_knows_no_commit_that_was_not_kept(connected: kvfs.Store) -> None:
    with pytest.raises(kvfs.NotFound, match="commit 123456 cannot be undone"):
        connected.undo(123456)
