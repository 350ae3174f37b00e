"""The examples in the documents are what happens."""

from __future__ import annotations

import doctest
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kvfs
import kvfs.aio
import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture
def temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sessions make their stores: it is cleared afterwards."""
    monkeypatch.setattr(tempfile, "mkdtemp", lambda: str(tmp_path))


def test_the_session_of_the_readme(temporary_directory: None) -> None:
    done = doctest.testfile(str(HERE.parent / "README.md"), module_relative=False)
    assert done.failed == 0 and done.attempted >= 15


def test_the_session_of_the_package(temporary_directory: None) -> None:
    done = doctest.testmod(kvfs)
    assert done.failed == 0 and done.attempted >= 5


def test_the_session_of_asyncio(temporary_directory: None) -> None:
    done = doctest.testmod(kvfs.aio)
    assert done.failed == 0 and done.attempted >= 3


def test_the_example(store: kvfs.Store, capsys: pytest.CaptureFixture[str]) -> None:
    source = HERE.parents[2] / "examples" / "python" / "ledger.py"
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(source.read_text(), str(source), "exec"), names)
    main = names["main"]
    assert callable(main)
    main(store)
    assert capsys.readouterr().out.splitlines() == [
        "refused: bob has 15",
        "ann has 90",
        "bob has 15",
        "0001 ann pays 10 to bob",
    ]


def test_the_example_of_agents_in_forks(tmp_path: Path) -> None:
    """It asserts what it has done: that forks are apart, and that one is taken over."""
    source = HERE.parents[2] / "examples" / "python" / "hundred_agents.py"
    done = subprocess.run(
        [sys.executable, source, "6", tmp_path / "agents"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    shutil.rmtree(tmp_path / "agents")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "agent 3 of 6 is the best, with 24131\n"


def test_everything_public_is_described() -> None:
    missing = []
    for module, name in [(m, name) for m in (kvfs, kvfs.aio) for name in m.__all__]:
        thing = getattr(module, name)
        if not thing.__doc__:
            missing.append(name)
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and callable(value) and not value.__doc__:
                missing.append(f"{name}.{member}")
    assert missing == []
