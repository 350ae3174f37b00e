#!/usr/bin/env python3
"""Moves a document between two directories and updates an index of keys, as one transaction, with
redis-py and plain files.

    python3 transfer.py /mnt inbox/letter.txt archive

The transaction's view of the files is the directory /mnt/.kvfs/txn/<number>, so nothing but open()
and os.rename() is needed for them; its keys are those of a connection that has joined it.
"""

import os
import sys

import redis


class Conflict(Exception):
    """Others have changed the same: nothing was changed, begin again."""


class Transaction:
    """`with Transaction(store, "/mnt") as t:` commits at the end, and aborts on an exception."""

    def __init__(self, store, mount, isolation="SI"):
        self.connection = store.client()
        # Attached: it ends with this connection, whatever happens to this program.
        self.id = self.connection.execute_command("TXN", "BEGIN", isolation, "ATTACHED")
        self.connection.execute_command("TXN", "JOIN", self.id)
        self.files = os.path.join(mount, ".kvfs", "txn", str(self.id))

    def path(self, name):
        return os.path.join(self.files, name)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.connection.execute_command("TXN", "COMMIT", "SYNC")
            else:
                self.connection.execute_command("TXN", "ABORT")
        except redis.ResponseError as refused:
            if str(refused).startswith(("CONFLICT", "LOCKED")):
                raise Conflict(str(refused)) from None
            raise
        finally:
            self.connection.close()


def transfer(store, mount, document, directory):
    name = os.path.basename(document)
    with Transaction(store, mount) as t:
        os.makedirs(t.path(directory), exist_ok=True)
        os.rename(t.path(document), t.path(os.path.join(directory, name)))
        t.connection.set("place:" + name, directory)
        t.connection.incr("documents in " + directory)


def main():
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} MOUNT DOCUMENT DIRECTORY")
    mount, document, directory = sys.argv[1:]
    socket = os.environ.get("KVFS_SOCKET") or sys.exit(
        "say where the store's daemon listens: KVFS_SOCKET=my.kvfs.sock"
    )
    store = redis.Redis(unix_socket_path=socket, decode_responses=True)
    while True:
        try:
            return transfer(store, mount, document, directory)
        except Conflict:
            continue


if __name__ == "__main__":
    main()
