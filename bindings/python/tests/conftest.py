"""Stores to test with: an embedded one, and a mounted one where this machine can mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kvfs
import pytest


def binary() -> str | None:
    """The command `kvfs`: $KVFS, or that of the search path."""
    return os.environ.get("KVFS") or shutil.which("kvfs")


class Mount:
    """A store that is mounted for a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store.kvfs"
        self.point = directory / "mnt"
        self.point.mkdir()
        self.run("create", self.store)
        self.run("mount", self.store, self.point)

    def run(self, *words: object) -> str:
        command = [binary() or "kvfs", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def end(self) -> None:
        self.run("umount", self.point)


def why_no_mount() -> str | None:
    if binary() is None:
        return "SKIPPED: no `kvfs` to mount with: set $KVFS"
    if not os.access("/dev/fuse", os.W_OK):
        return "SKIPPED: this machine has no /dev/fuse"
    return None


@pytest.fixture(autouse=True)
def no_stores_are_left(tmp_path: Path) -> Iterator[None]:
    """pytest keeps the directories of its last runs, and a store takes more than 100 MB."""
    yield
    for store in tmp_path.glob("*.kvfs"):
        store.unlink()


@pytest.fixture
def store_path(tmp_path: Path, no_stores_are_left: None) -> str:
    return str(tmp_path / "store.kvfs")


@pytest.fixture
def embedded(store_path: str) -> Iterator[kvfs.Store]:
    with kvfs.open(store_path, memory=64 << 20) as store:
        yield store


@pytest.fixture(scope="module")
def mount() -> Iterator[Mount]:
    if reason := why_no_mount():
        pytest.skip(reason)
    # The path of a socket is short.
    with tempfile.TemporaryDirectory() as directory:
        mounted = Mount(Path(directory))
        try:
            yield mounted
        finally:
            mounted.end()


@pytest.fixture
def connected(mount: Mount) -> Iterator[kvfs.Store]:
    with kvfs.connect(mount.point) as store:
        for name in store.dictionaries():
            store.drop_dictionary(name)
        for snapshot in store.snapshots():
            store.drop_snapshot(snapshot.name)
        for name in store.fs.listdir():
            store.fs.rmtree(name)
        yield store


@pytest.fixture(params=["embedded", "connected"])
def store(request: pytest.FixtureRequest) -> kvfs.Store:
    """The same tests for both kinds."""
    return request.getfixturevalue(request.param)
