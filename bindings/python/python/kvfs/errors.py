"""What can go wrong, as exceptions.

Everything that the store itself refuses is a :class:`Error`. What is wrong with a path is an
``OSError`` as from the ``os`` module: ``FileNotFoundError``, ``NotADirectoryError`` and so on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


class Error(Exception):
    """Base of the exceptions of a store."""


class Retryable(Error):
    """The same may succeed when the transaction is begun again; ``Store.run`` does so."""


class Conflict(Retryable):
    """Others have changed the same since the transaction began. It is over, nothing was changed."""


class Locked(Retryable):
    """A serializable transaction holds what is wanted and did not let go of it in time, or an older
    one took what this one held. Abort the transaction, and begin it again."""


class TransactionEnded(Error):
    """The transaction has ended: it was committed or aborted, perhaps elsewhere."""


class Closed(Error):
    """The store, or an object of it, was closed."""


class Forked(Closed):
    """The store was opened by the process that this one was forked off."""


class Busy(Error):
    """The store is open elsewhere: mounted, in another process, or on another machine."""


class Displaced(Error):
    """Another one writes the store at its address by now, or has written it since. What this one
    has not published stays in its local file."""


class MergeConflict(Error):
    """The store and the fork have changed the same, each in its own way. Nothing was begun."""

    def __init__(self, text: str, conflicts: list[MergeClash] | None = None) -> None:
        super().__init__(text)
        #: All of them: paths, and then keys.
        self.conflicts: list[MergeClash] = conflicts or []


@dataclass(frozen=True)
class MergeClash:
    """A path, or a key as ``dictionary:key``, that both sides have changed."""

    path: str
    #: It is a key, or a dictionary.
    key: bool
    #: What the store has done: made, changed, removed, moved, filled.
    ours: str
    #: What the fork has done.
    theirs: str


class NotAStore(Error):
    """The file is no store, or one of a version that this program does not read."""


class NotFound(Error, LookupError):
    """There is no such snapshot or dictionary, or no such commit that can be undone."""


class Exists(Error):
    """The name is taken."""


class Invalid(Error, ValueError):
    """What was asked for is not possible; nothing was changed."""


class Limit(Error):
    """It would pile up more than is allowed; nothing was changed."""


class Unsupported(Error):
    """It cannot be done through this kind of connection; the text says how it can."""


class Disconnected(Error, ConnectionError):
    """The daemon of the mount or the server of the store is gone, or gave a reply that makes no
    sense. Whether the last change was made is not known."""


class NoSpace(Error, OSError):
    """The store is full. Nothing was changed, and deleting still works."""


class ReadOnly(Error, OSError):
    """The store takes no writes: it was opened so, it is a snapshot, or it has failed."""


class Corrupt(Error, OSError):
    """Bytes on the device are not what was written there. `kvfs check` tells more."""


class DeviceError(Error, OSError):
    """The device under the store has failed."""


_BY_WORD: dict[str, type[Error]] = {
    "error": Error,
    "conflict": Conflict,
    "locked": Locked,
    "ended": TransactionEnded,
    "closed": Closed,
    "forked": Forked,
    "busy": Busy,
    "displaced": Displaced,
    "not_a_store": NotAStore,
    "not_found": NotFound,
    "exists": Exists,
    "invalid": Invalid,
    "limit": Limit,
    "unsupported": Unsupported,
    "no_space": NoSpace,
    "read_only": ReadOnly,
    "corrupt": Corrupt,
    "device": DeviceError,
    "disconnected": Disconnected,
}


def make(word: str, text: str, errno: int = 0, path: bytes | None = None) -> Exception:
    """The exception for a failure that the store reports by a word."""
    name = None if path is None else os.fsdecode(path)
    if word == "file":
        # OSError itself chooses FileNotFoundError and the like.
        return OSError(errno, text) if name is None else OSError(errno, text, name)
    kind = _BY_WORD.get(word, Error)
    if issubclass(kind, OSError) and errno != 0:
        return kind(errno, text) if name is None else kind(errno, text, name)
    return kind(text)
