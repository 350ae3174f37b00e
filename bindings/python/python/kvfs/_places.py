"""Stores in object storage, by their addresses: opened, published, forked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, Union

from . import _kvfs
from .errors import Invalid

if TYPE_CHECKING:
    from ._store import Store

Word = Union[str, bytes, "os.PathLike[str]"]
Durability = Literal["local", "remote"]


@dataclass(frozen=True)
class Pushed:
    """What a publication took."""

    #: The generation that is published now.
    generation: int
    #: Zones of the store.
    zones: int
    #: Objects that were written.
    objects: int
    #: Their bytes.
    size: int
    #: Bytes of the store's live data.
    live_size: int


@dataclass(frozen=True)
class Fork:
    """A fork that was made, and is registered where it comes from."""

    #: Its number there, for ``drop_fork``.
    number: str
    #: The file.
    file: str
    #: The generation that it began as.
    generation: int
    #: When that was published.
    published: datetime


@dataclass(frozen=True)
class ForkInfo:
    """A fork as listed."""

    number: str
    label: str
    #: The generation that it began as.
    generation: int
    #: When it was made, by the clock of the place.
    made: datetime
    #: When it ends; ``None``: when it is dropped.
    expires: datetime | None


def _text(word: Any) -> str:
    text = os.fsdecode(os.fspath(word))
    if "\0" in text:
        raise Invalid(f"a path has no NUL: {text!r}")
    return text


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def address_of(word: Any) -> str | None:
    """The whole address that a word is; ``None``: it is a path."""
    return _kvfs.address(_text(word))


def open_there(
    address: str,
    *,
    write: bool,
    create: bool,
    take: bool,
    durability: Durability,
    publish_every: float,
    follow: float | None,
    cache: Any,
    cache_size: int | None,
    memory: int | None,
    durable: bool,
) -> _kvfs.Database:
    """Opens the store at an address."""
    directory = None if cache is None else _text(cache)
    if durability not in ("local", "remote"):
        raise Invalid(f"durability is 'local' or 'remote', not {durability!r}")
    if write:
        if follow is not None:
            raise Invalid("one who writes a store follows no other: leave out follow")
        return _kvfs.Database.write(
            address,
            directory=directory,
            make=create,
            take=bool(take),
            syncs_there=durability == "remote",
            every=float(publish_every),
            memory=memory,
            durable=durable,
            cache_size=cache_size,
        )
    if take or durability != "local" or durable:
        raise Invalid(
            f"{address} is opened to be read: take, durability and durable go with write=True"
        )
    return _kvfs.Database.read(
        address,
        directory=directory,
        follow=None if follow is None else float(follow),
        memory=memory,
        cache_size=cache_size,
    )


def push(store: Store, address: Word, *, take: bool = False) -> Pushed:
    """Publishes an open store at an address, where any machine reads and forks it.

    All that was committed before goes there: files, keys, snapshots, clones. What lies there
    already is not written again. A folder is made if it is not there. ``take``: also if the store
    was written at its address since, which is replaced.
    """
    return Pushed(*store._database.push(_text(address), bool(take)))


def fork(
    address: Word,
    file: Word,
    *,
    expires: float | timedelta | None = None,
    label: str | None = None,
) -> Fork:
    """Makes a file that is a store of one's own, and begins as the store at an address is, or, with
    ``@SNAPSHOT``, was. That costs four small requests, however large the store is: what is read is
    fetched then, and what is written is in the file alone. ``open`` opens it.

    The fork is registered there, so that what it refers to stays, until it ``expires`` (seconds) or
    ``drop_fork`` ends it. ``label`` says whose it is; without it, the name of this machine does.
    """
    path = _text(file)
    lifetime = expires.total_seconds() if isinstance(expires, timedelta) else expires
    lifetime = None if lifetime is None else float(lifetime)
    number, generation, published = _kvfs.fork(_text(address), path, expires=lifetime, label=label)
    return Fork(number, path, generation, _time(published))


def forks(address: Word) -> list[ForkInfo]:
    """The forks that are registered of the store at an address."""
    return [
        ForkInfo(
            number, label, generation, _time(made), None if expires is None else _time(expires)
        )
        for number, label, generation, made, expires in _kvfs.forks(_text(address))
    ]


def drop_fork(address: Word, number: str | Fork | ForkInfo) -> bool:
    """Ends a fork whose file is not needed any more; what it refers to may be deleted then.
    ``False``: there was none of that number."""
    number = number if isinstance(number, str) else number.number
    return _kvfs.drop_fork(_text(address), number)
