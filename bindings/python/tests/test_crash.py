"""A process that is killed leaves what it has committed durably, and whole transactions alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import kvfs
import pytest

CHILD = """
import kvfs, sys
store = kvfs.open(sys.argv[1], memory=32 << 20)
first = int(store["d"].get(b"last", b"-1")) + 1
for i in range(first, 1 << 30):
    with store.transaction(sync=True) as t:
        t["d"][b"%08d" % i] = b"x" * (i % 5000)
        t["d"][b"last"] = b"%d" % i
        t.fs.write_text("last", str(i))
    print(i, flush=True)
    with store.transaction() as t:
        t["half"][b"a"] = t["half"][b"b"] = b"%d" % i
"""

CHILD_BUFFERED = """
import kvfs, sys
store = kvfs.open(sys.argv[1], durable=True)
store["d"][b"k"] = b"durable"
store["d"].update({b"a": b"1", b"b": b"2"})
store["d"].add(b"n", 5)
print("done", flush=True)
sys.stdin.read()
"""


def test_what_was_committed_is_there_after_a_kill(store_path: str) -> None:
    chance = random.Random(int(os.environ.get("KVFS_SEED", "1")))
    done = -1
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, store_path], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        until = done + chance.randint(1, 30)
        for line in child.stdout:
            done = int(line)
            if done >= until:
                break
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        assert child.wait(60) == -signal.SIGKILL
        done = max([done, *map(int, rest)])
        with kvfs.open(store_path) as store:
            last = int(store["d"][b"last"])
            # The commit that was under way may have come through.
            assert done <= last <= done + 1
            assert store.fs.read_text("last") == str(last)
            keys = [k for k in store["d"] if k != b"last"]
            assert keys == [b"%08d" % i for i in range(last + 1)]
            assert len(store["d"][b"%08d" % last]) == last % 5000
            assert store["half"].get(b"a") == store["half"].get(b"b")
            done = last


def test_every_write_of_a_durable_store_is_there_after_a_kill(store_path: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD_BUFFERED, store_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "done\n"
    child.kill()
    child.wait(60)
    with kvfs.open(store_path) as store:
        assert dict(store["d"]) == {b"a": b"1", b"b": b"2", b"k": b"durable", b"n": b"5"}


@pytest.mark.parametrize("durable", [False, True])
def test_sync_is_a_promise(store_path: str, durable: bool) -> None:
    code = f"""
import kvfs, os
store = kvfs.open({store_path!r}, durable={durable})
store["d"][b"k"] = b"v"
store.fs.write_text("f", "x")
store.sync()
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -signal.SIGKILL
    with kvfs.open(store_path) as store:
        assert store["d"][b"k"] == b"v" and store.fs.read_text("f") == "x"
