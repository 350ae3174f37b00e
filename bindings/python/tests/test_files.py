"""Files by paths, embedded and mounted alike."""

from __future__ import annotations

import io
import os
import stat
import threading

import kvfs
import pytest


@pytest.fixture
def fs(store: kvfs.Store) -> kvfs.FileSystem:
    return store.fs


def test_files_are_opened_in_the_modes_of_python(fs: kvfs.FileSystem) -> None:
    with fs.open("a", "w") as file:
        assert file.write("one\ntwo\n") == 8
    with fs.open("/a") as file:
        assert list(file) == ["one\n", "two\n"]
    with fs.open("a", "a") as file:
        file.write("three\n")
    with fs.open(b"a", "rb") as file:
        assert file.seek(-6, os.SEEK_END) == 8
        assert file.read() == b"three\n" and file.tell() == 14
    with fs.open("a", "r+b") as file:
        file.write(b"ONE")
        file.seek(0)
        assert file.read(5) == b"ONE\nt"
        assert file.truncate(4) == 4
    assert fs.read_bytes("a") == b"ONE\n"
    with fs.open("a", "w+b", 0) as file:
        assert file.write(b"xyz") == 3 and file.read() == b""
        file.seek(1)
        room = bytearray(10)
        assert file.readinto(room) == 2 and room[:2] == b"yz"
        file.sync()
        assert file.stat().st_size == 3
    with pytest.raises(FileExistsError):
        fs.open("a", "x")
    with fs.open("b", "xb") as file:
        file.write(b"new")
    with fs.open("a", "rb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with fs.open("a", "wb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.read()
    with pytest.raises(ValueError):
        file.read()
    for mode in ("", "rw", "b", "rbt", "z", "rr", "r++"):
        with pytest.raises(ValueError):
            fs.open("a", mode)


def test_large_files_and_holes(fs: kvfs.FileSystem) -> None:
    data = bytes(range(256)) * 40_000
    fs.write_bytes("large", data)
    assert fs.read_bytes("large") == data
    with fs.open("large", "r+b") as file:
        file.seek(20_000_000)
        file.write(b"end")
    assert fs.stat("large").st_size == 20_000_003
    with fs.open("large", "rb") as file:
        file.seek(len(data))
        hole = file.read(20_000_000 - len(data))
        assert hole == bytes(len(hole)) and file.read() == b"end"
    fs.truncate("large", 5)
    assert fs.read_bytes("large") == data[:5]


def test_directories(fs: kvfs.FileSystem) -> None:
    fs.makedirs("a/b/c")
    fs.makedirs("a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("a/b/c")
    with pytest.raises(FileExistsError):
        fs.mkdir("/")
    fs.write_text("a/file", "x")
    fs.write_text("a/b/other", "y")
    assert fs.listdir() == ["a"] and fs.listdir("a") == ["b", "file"]
    assert [(e.name, e.path, e.is_dir(), e.is_file()) for e in fs.scandir("/a")] == [
        ("b", "/a/b", True, False),
        ("file", "/a/file", False, True),
    ]
    assert list(fs.walk("/a")) == [
        ("/a", ["b"], ["file"]),
        ("/a/b", ["c"], ["other"]),
        ("/a/b/c", [], []),
    ]
    with pytest.raises(OSError) as full:
        fs.rmdir("a/b")
    assert full.value.errno == 39
    fs.rmdir("a/b/c")
    with pytest.raises(IsADirectoryError):
        fs.remove("a/b")
    fs.rmtree("a")
    assert fs.listdir() == []
    for wrong in (fs.rmtree, fs.rmdir, fs.remove, fs.stat, fs.listdir):
        with pytest.raises(FileNotFoundError) as missing:
            wrong("missing")
        assert "missing" in str(missing.value)


def test_attributes(fs: kvfs.FileSystem) -> None:
    fs.write_text("f", "123")
    fs.chmod("f", 0o640)
    fs.utime("f", (1_500_000_001, 2_500_000_002))
    found = fs.stat("f")
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o640
    assert (found.st_size, found.st_nlink, found.st_uid) == (3, 1, os.geteuid())
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_500_000_001, 2_500_000_002)
    fs.utime("f", (-1, -1))
    assert fs.stat("f").st_mtime_ns == -1
    fs.chown("f", os.geteuid(), os.getegid())
    fs.setxattr("f", "user.colour", b"\0red")
    assert fs.getxattr("f", "user.colour") == b"\0red" and fs.listxattr("f") == ["user.colour"]
    fs.removexattr("f", "user.colour")
    assert fs.listxattr("f") == []
    with pytest.raises(OSError):
        fs.getxattr("f", "user.colour")
    assert fs.isfile("f") and not fs.isdir("f") and fs.isdir("/") and not fs.exists("g")


def test_links(fs: kvfs.FileSystem) -> None:
    fs.makedirs("dir")
    fs.write_text("dir/file", "x")
    fs.symlink("file", "dir/near")
    fs.symlink("dir/near", "far")
    fs.symlink("dir", "directory")
    fs.symlink("nowhere", "broken")
    fs.symlink("loop", "loop")
    assert fs.read_text("far") == "x" and fs.read_text("directory/near") == "x"
    assert fs.islink("far") and not fs.islink("dir") and fs.readlink("far") == "dir/near"
    assert stat.S_ISLNK(fs.lstat("far").st_mode) and fs.isfile("far")
    assert fs.listdir("directory") == ["file", "near"]
    assert not fs.exists("broken") and fs.islink("broken")
    fs.write_text("broken", "made through the link")
    assert fs.read_text("nowhere") == "made through the link"
    with pytest.raises(OSError) as loop:
        fs.read_text("loop")
    assert loop.value.errno == 40
    with pytest.raises(OSError):
        fs.readlink("dir")
    fs.link("dir/file", "second")
    assert fs.stat("second").st_nlink == 2
    fs.remove("dir/file")
    assert fs.read_text("second") == "x"


def test_renames_and_copies(fs: kvfs.FileSystem) -> None:
    fs.write_text("a", "a")
    fs.write_text("b", "b")
    with pytest.raises(FileExistsError):
        fs.rename("a", "b", replace=False)
    fs.rename("a", "b")
    assert fs.listdir() == ["b"] and fs.read_text("b") == "a"
    fs.rename("b", "c", replace=False)
    fs.makedirs("dir/sub")
    fs.rename("c", "dir/sub/c")
    fs.copy("dir", "copy")
    fs.write_text("dir/sub/c", "changed")
    assert fs.read_text("copy/sub/c") == "a"
    with pytest.raises(FileExistsError):
        fs.copy("dir", "copy")
    with pytest.raises(FileNotFoundError):
        fs.copy("missing", "other")
    with pytest.raises(OSError):
        fs.rename("dir", "dir/sub/inside")
    with pytest.raises(NotADirectoryError):
        fs.stat("dir/sub/c/below")


def test_a_file_without_a_name_stays_while_it_is_open(fs: kvfs.FileSystem) -> None:
    fs.write_text("f", "still here")
    with fs.open("f") as file:
        fs.remove("f")
        fs.write_text("f", "another")
        assert file.read() == "still here"


def test_names_of_any_bytes(fs: kvfs.FileSystem) -> None:
    name = os.fsdecode(b"\xff\xfe caf\xc3\xa9")
    fs.write_text(name, "x")
    assert fs.listdir() == [name] and fs.read_text(os.fsencode(name)) == "x"
    with pytest.raises((ValueError, UnicodeEncodeError)):
        fs.stat("\ud800")
    with pytest.raises(ValueError):
        fs.stat("a\0b")
    with pytest.raises(OSError) as long:
        fs.write_text("x" * 256, "x")
    assert long.value.errno == 36
    with pytest.raises(OSError):
        fs.write_text("", "x")
    for wrong in (None, 7, 1.5, ["a"]):
        with pytest.raises(TypeError):
            fs.stat(wrong)


def test_threads_share_a_file(fs: kvfs.FileSystem) -> None:
    with fs.open("log", "ab", 0) as log:

        def write(which: int) -> None:
            for i in range(100):
                log.write(b"%d:%03d\n" % (which, i))

        workers = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    lines = fs.read_bytes("log").splitlines()
    assert sorted(lines) == sorted(b"%d:%03d" % (w, i) for w in range(4) for i in range(100))


def test_what_is_synced_is_there(embedded: kvfs.Store, store_path: str) -> None:
    with embedded.fs.open("f", "wb") as file:
        file.write(b"x")
        file.flush()
        file.raw.sync()
    embedded.fs.sync()
    embedded.close()
    with kvfs.open(store_path) as again:
        assert again.fs.read_bytes("f") == b"x"
