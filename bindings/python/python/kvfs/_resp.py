"""A connection to the daemon of a mount: commands and replies in RESP, and where its socket is."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from typing import Any
from urllib.parse import unquote_to_bytes

from .errors import Disconnected, Invalid, make

_LONGEST_REPLY = 512 << 20

_CODES = {
    "NOSPACE": ("no_space", 28),
    "READONLY": ("read_only", 30),
    "NOTSYNCED": ("device", 5),
    "CORRUPT": ("corrupt", 5),
    "IOERR": ("device", 5),
    "CONFLICT": ("conflict", 0),
    "LOCKED": ("locked", 0),
    "NOTXN": ("ended", 0),
    "LIMIT": ("limit", 0),
    "NOSNAPSHOT": ("not_found", 0),
    "NODICT": ("not_found", 0),
    "RESERVED": ("invalid", 0),
    "EXISTS": ("exists", 0),
    "NOENT": ("file", 2),
    "NOTDIR": ("file", 20),
    "NOCOMMIT": ("not_found", 0),
}


def _refused(text: str) -> Exception:
    """The exception for an error reply."""
    code, _, rest = text.partition(" ")
    if code in _CODES:
        word, number = _CODES[code]
        return make(word, rest or text, number)
    return make("invalid", rest if code == "ERR" else text)


class Connection:
    """A connection to the daemon, for one thread at a time."""

    def __init__(self, path: bytes, timeout: float | None) -> None:
        self.pid = os.getpid()
        self.dictionary: str | None = "0"
        # No answer was cut off: what comes next belongs to the next command.
        self.whole = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
            size = struct.calcsize("3i")
            peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            _, user, _ = struct.unpack("3i", peer)
            if user not in (os.geteuid(), 0) and os.geteuid() != 0:
                # No other user's server is told keys.
                raise PermissionError(1, f"the server there runs as user {user}, not as you")
            self._replies = self._socket.makefile("rb", 64 << 10)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def call(self, *words: bytes) -> Any:
        """Runs a command; an error reply is raised, and so is one among several replies."""
        reply = self.exchange([words])[0]
        for one in reply if isinstance(reply, list) else (reply,):
            if isinstance(one, Exception):
                raise one
        return reply

    def exchange(self, commands: list[tuple[bytes, ...]]) -> list[Any]:
        """Runs commands, which are few, and gives their replies; errors are among them."""
        request = bytearray()
        for words in commands:
            request += b"*%d\r\n" % len(words)
            for word in words:
                request += b"$%d\r\n" % len(word)
                request += word
                request += b"\r\n"
        if not self.whole:
            self.close()
            raise Disconnected(
                "an exception has cut off an answer on this connection: what it was is not known"
            )
        # An exception of any kind may come from here on, from the handler of a signal for one: what
        # is left of the answer must not be taken for that of the next command.
        self.whole = False
        try:
            # A server that refuses a request answers and closes; its answer counts.
            unsent: OSError | None = None
            try:
                self._socket.sendall(request)
            except OSError as error:
                unsent = error
            try:
                replies = [self._reply() for _ in commands]
                self.whole = True
                return replies
            except (OSError, Disconnected) as error:
                raise unsent or error from None
        except TimeoutError:
            raise Disconnected(
                "the store's daemon gave no reply in time: whether it has done it is not known"
            ) from None
        except Disconnected:
            raise
        except OSError as error:
            raise Disconnected(f"the store's daemon is gone: {error}") from None

    def _reply(self, depth: int = 0) -> Any:
        line = self._replies.readline(64 << 10)
        if not line:
            raise Disconnected("the store's daemon has closed the connection")
        if not line.endswith(b"\r\n") or len(line) < 3 or depth > 8:
            raise Disconnected("the store's daemon gave a reply that makes no sense")
        kind, text = line[:1], line[1:-2]
        try:
            if kind == b"+":
                return text.decode()
            if kind == b"-":
                return _refused(text.decode(errors="replace"))
            if kind == b":":
                return int(text)
            if kind == b"_":
                return None
            if kind == b"$":
                size = int(text)
                if size < 0:
                    return None
                if size > _LONGEST_REPLY:
                    raise ValueError("a string that is too long")
                data = self._replies.read(size + 2)
                if len(data) != size + 2 or not data.endswith(b"\r\n"):
                    raise ValueError("a string without its end")
                return data[:-2]
            if kind == b"*":
                size = int(text)
                return None if size < 0 else [self._reply(depth + 1) for _ in range(size)]
            raise ValueError("an unknown kind")
        except ValueError as wrong:
            what = f"the store's daemon gave a reply that makes no sense: {wrong}"
            raise Disconnected(what) from None

    def use(self, dictionary: str) -> None:
        """Goes to a dictionary. By itself: what follows must not reach another one."""
        if self.dictionary != dictionary:
            name = dictionary.encode("utf-8", "surrogateescape")
            self.dictionary = None
            self.call(b"USE", name)
            self.dictionary = dictionary


# --- where the store is


def _records() -> bytes:
    """The directory in which daemons leave a record of what they serve."""
    if os.geteuid() == 0:
        return b"/run/kvfs"
    if runtime := os.environb.get(b"XDG_RUNTIME_DIR"):
        return os.path.join(runtime, b"kvfs")
    return os.path.join(os.environb.get(b"TMPDIR", b"/tmp"), b"kvfs-%d" % os.geteuid())


def found(where: Any) -> tuple[bytes, str | None]:
    """The path of the socket, and the directory that the store
    is mounted on where that is known."""
    mount: str | None = None
    if where is None:
        where = os.environ.get("KVFS_SOCKET")
        if where is None:
            raise Invalid(
                "say where the store is mounted, or run this program by `kvfs run` ($KVFS_SOCKET)"
            )
        mount = os.environ.get("KVFS_MOUNT")
    path = os.fsencode(where)
    if b"\0" in path:
        raise Invalid(f"a path has no NUL: {where!r}")
    attributes = os.stat(path)
    if stat.S_ISSOCK(attributes.st_mode):
        return path, mount
    device = b"%d:%d.json" % (os.major(attributes.st_dev), os.minor(attributes.st_dev))
    if stat.S_ISDIR(attributes.st_mode):
        try:
            with open(os.path.join(_records(), device), "rb") as file:
                record = json.load(file)
            # A mount whose socket could not be made has none.
            socket_path = unquote_to_bytes(record["socket"] or "")
            if socket_path:
                return socket_path, os.fsdecode(unquote_to_bytes(record["mount_point"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise FileNotFoundError(
            2, "no store with a socket is mounted there: mount it, or open its file", where
        )
    neighbour = path + b".sock"
    if os.path.exists(neighbour):
        return neighbour, None
    raise FileNotFoundError(2, "the store is not mounted: mount it, or open() its file", where)
