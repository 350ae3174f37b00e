"""What a case is made of: groups of steps, and the sizes that they share."""

import subprocess
from typing import Callable, NamedTuple

from disk import LIMIT


class Sizes(NamedTuple):
    disk: int  # GiB
    tree: int  # files
    commits: int
    changes: int  # files a commit
    moves: int  # operations of the random aging
    big: int  # MiB, overwritten
    pokes: int  # overwrites of 4 bytes
    pages: int  # overwrites of 4 KiB
    stream: int  # MiB, written and read in order
    unlinks: tuple  # MiB
    small: int  # files of 200 bytes
    mail: int  # operations
    names: int  # names in each of 100 directories
    kvdb: int  # MiB
    file: int  # MiB, read and overwritten in pieces of 4 KiB
    reads: int  # reads of 4 KiB
    toku: int  # files of 200 bytes that four processes make
    listed: int  # directories with five files each
    copied: int  # files of 4 KiB in each of 20 directories
    loops: int  # of each process of a personality, percent of what is set for it


FULL = Sizes(
    8,
    6000,
    200,
    100,
    12000,
    2048,
    1000,
    5000,
    1024,
    (256, 1024),
    20000,
    1000,
    200,
    512,
    512,
    1000,
    100000,
    2000,
    200,
    100,
)
QUICK = Sizes(
    4,
    1000,
    20,
    50,
    1000,
    256,
    125,
    625,
    128,
    (32, 128),
    2000,
    100,
    20,
    32,
    64,
    125,
    4000,
    200,
    20,
    10,
)


class Step(NamedTuple):
    name: str
    # Takes the file system; may return figures of its own, by name.
    run: Callable
    # What the report divides the counts by: files, operations, or bytes of the user.
    files: int = 0
    bytes: int = 0
    # Everything is durable when its time ends; the others see to that themselves, or write nothing.
    sync: bool = False
    # Outside of its time it is found out how much more room names take than before it.
    space: bool = False
    only: str = ""


class Group(NamedTuple):
    name: str
    prepare: Callable
    # Takes the file system as prepared, since some counts are of what is there.
    steps: Callable


def program(*words, answers=(0,), **more):
    words = [str(w) for w in words]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=LIMIT,
        **more,
    )
    if done.returncode not in answers:
        raise OSError(
            f"{words[0]}: {done.stderr.decode(errors='replace').strip().splitlines()[-1:]}"
        )
