"""KVFS: an ordered, transactional key-value store that is a file system as well.

>>> import kvfs, tempfile
>>> store = kvfs.open(tempfile.mkdtemp() + "/fruit.kvfs")
>>> fruit = store["fruit"]
>>> fruit[b"apple"] = b"red"
>>> with store.transaction() as t:
...     t["fruit"][b"pear"] = b"green"
...     with t.fs.open("/basket.txt", "w") as basket:
...         print("apple, pear", file=basket)
>>> list(fruit.items(b"a", b"c"))
[(b'apple', b'red')]
>>> store.close()
"""

from ._files import DirEntry, FileSystem
from ._keys import Batch, BatchDictionary, Dictionary, Estimate, prefix_end
from ._places import Fork, ForkInfo, Pushed, drop_fork, fork, forks, push
from ._store import (
    Change,
    CloneInfo,
    CommitInfo,
    FileChange,
    Received,
    Savepoint,
    Sent,
    Snapshot,
    SnapshotInfo,
    Store,
    Transaction,
    TransactionInfo,
    connect,
    open,
)
from .errors import (
    Busy,
    Closed,
    Conflict,
    Corrupt,
    DeviceError,
    Disconnected,
    Displaced,
    Error,
    Exists,
    Forked,
    Invalid,
    Limit,
    Locked,
    MergeClash,
    MergeConflict,
    NoSpace,
    NotAStore,
    NotFound,
    ReadOnly,
    Retryable,
    TransactionEnded,
    Unsupported,
)

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchDictionary",
    "Busy",
    "Change",
    "CloneInfo",
    "Closed",
    "CommitInfo",
    "Conflict",
    "Corrupt",
    "DeviceError",
    "Dictionary",
    "DirEntry",
    "Disconnected",
    "Displaced",
    "Error",
    "Estimate",
    "Exists",
    "FileChange",
    "FileSystem",
    "Fork",
    "ForkInfo",
    "Forked",
    "Invalid",
    "Limit",
    "Locked",
    "MergeClash",
    "MergeConflict",
    "NoSpace",
    "NotAStore",
    "NotFound",
    "Pushed",
    "ReadOnly",
    "Received",
    "Retryable",
    "Savepoint",
    "Sent",
    "Snapshot",
    "SnapshotInfo",
    "Store",
    "Transaction",
    "TransactionEnded",
    "TransactionInfo",
    "Unsupported",
    "connect",
    "drop_fork",
    "fork",
    "forks",
    "open",
    "prefix_end",
    "push",
]
