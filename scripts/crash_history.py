"""A worker for crash_live.py that does a little of everything, one thing after the other, and knows
what may be left of it.

Whatever it does (names, hard and symbolic links, renames over files, holes punched and filled,
tree copies, keys alone, in batches, ranges and `MULTI`, transactions over both with savepoints
and others within them, durable ones, snapshots, clones, merges, rebases, rollbacks) is whole or
not there, and happens in its order. So after a kill the store holds the state after one of the
steps: at least the last one that was made durable, at most the last one that was begun.
Everything is compared: names, which of them are one file, contents, keys; each snapshot and each
clone, too."""

import errno
import hashlib
import os
import stat
from collections import Counter, deque


def content(token, size):
    block = hashlib.sha256(str(token).encode()).digest()
    return (block * (size // 32 + 1))[:size]


class State:
    """Names, keys, snapshots and clones. What it holds is never changed in place,
    so states share it."""

    def __init__(self, other=None):
        # Path below the worker's directory: ("f", file number), ("l", target), ("d",)
        self.names = dict(other.names) if other else {}
        # File number: content.
        self.files = dict(other.files) if other else {}
        self.keys = dict(other.keys) if other else {}
        # Name: what it shows. Of a clone, the state that it has.
        self.snapshots = dict(other.snapshots) if other else {}
        self.clones = dict(other.clones) if other else {}
        # Clone: the newest state that it has in common with the store.
        self.common = dict(other.common) if other else {}

    def tree(self):
        """What a walk finds: by path the kind, the content, and the least path of the same file."""
        least = {}
        for path in sorted(self.names):
            if self.names[path][0] == "f":
                least.setdefault(self.names[path][1], path)
        return {
            p: (k, self.files[v[0]], least[v[0]]) if k == "f" else (k, *v)
            for p, (k, *v) in self.names.items()
        }

    def shown(self):
        """All of it, as it is found."""
        views = lambda views: {name: (then.tree(), then.keys) for name, then in views.items()}
        return {
            "tree": self.tree(),
            "keys": self.keys,
            "snapshots": views(self.snapshots),
            "clones": views(self.clones),
        }


def merged(common, into, source):
    """`into` with what differs from `common` in `source`, or nothing where both have changed the
    same, or what one has made lies in what the other has removed."""

    def changed(of):
        return {
            (what, name)
            for what in ("names", "files", "keys")
            for a, b in [(getattr(common, what), getattr(of, what))]
            for name in a.keys() | b.keys()
            if a.get(name) != b.get(name)
        }

    theirs = changed(source)
    if theirs & changed(into):
        return None
    state = State(into)
    for what, name in theirs:
        mine, other = getattr(state, what), getattr(source, what)
        if name in other:
            mine[name] = other[name]
        else:
            mine.pop(name, None)
    sound = all(
        state.names.get(os.path.dirname(path)) == ("d",) for path in state.names if "/" in path
    ) and all(v[0] != "f" or v[1] in state.files for v in state.names.values())
    return state if sound else None


def walk(root):
    """What is found below `root`, in the form of the oracle's tree."""
    found, least = {}, {}
    for directory, directories, files in os.walk(root):
        for name in sorted(directories + files):
            path = os.path.join(directory, name)
            below = os.path.relpath(path, root)
            info = os.lstat(path)
            if stat.S_ISDIR(info.st_mode):
                found[below] = ("d",)
            elif stat.S_ISLNK(info.st_mode):
                found[below] = ("l", os.readlink(path))
            else:
                with open(path, "rb") as f:
                    found[below] = ("f", f.read(), info.st_ino)
    for path in sorted(found):
        if found[path][0] == "f":
            least.setdefault(found[path][2], path)
    return {p: ("f", v[1], least[v[2]]) if v[0] == "f" else v for p, v in found.items()}


class Historian:
    FILES, KEYS, SNAPSHOTS = 30, 40, 2

    def __init__(self, n):
        self.n, self.directory, self.key = n, f"history-{n}", f"history-{n}:"
        self.number = 0
        # The states since the last one that was durable for certain; the last one is how it is when
        # all has worked.
        self.states = [State()]
        # A durable transaction that was kept: number, name, content; and one of which that is not
        # known.
        self.kept, self.done = None, Counter()
        # What it did, for the reader of a difference.
        self.steps = deque(maxlen=12)
        # The whole store is rolled back only when nothing else is at work in it.
        self.alone = False

    # --- at work

    def run(self, rnd, mnt, sock, redis, stop):
        """Until the daemon is gone."""
        self.mnt, self.root = mnt, mnt / self.directory
        self.client, self.joined = redis(sock), redis(sock)
        steps = [
            (self.put, 12), (self.link, 4), (self.unlink, 6), (self.rename, 5),
            (self.symlink, 2), (self.make_directory, 2), (self.punch, 5), (self.overwrite, 4),
            (self.clone_tree, 3), (self.remove_tree, 2), (self.set_keys, 8),
            (self.delete_range, 3), (self.count, 3), (self.multi, 3), (self.transaction, 6),
            (self.durable, 2), (self.snapshot, 2), (self.drop_snapshot, 1), (self.clone, 1),
            (self.in_clone, 4), (self.merge, 3), (self.sync, 6),
        ]  # fmt: skip
        if self.alone:
            steps.append((self.rollback, 3))
        while not stop.is_set():
            step = rnd.choices([s for s, _ in steps], [w for _, w in steps])[0]
            self.steps.append(step.__name__)
            if step(rnd) is False:
                self.steps.pop()
            else:
                self.done[step.__name__] += 1

    def begin(self):
        """A state that is to come: to be changed before what makes it is begun."""
        state = State(self.states[-1])
        return state

    def will_be(self, state):
        self.states.append(state)

    def certain(self):
        del self.states[:-1]

    def new(self):
        self.number += 1
        return self.number

    def some(self, rnd, kind="f"):
        names = sorted(p for p, v in self.states[-1].names.items() if v[0] == kind)
        return rnd.choice(names) if names else None

    def place(self, rnd):
        """A path that may be there or not."""
        directories = [""] + sorted(
            p + "/"
            for p, v in self.states[-1].names.items()
            if v[0] == "d" and not p.startswith("copy")
        )
        return f"{rnd.choice(directories)}n{rnd.randrange(self.FILES)}"

    def put(self, rnd):
        """A new file with its content, over what was there."""
        path = self.place(rnd)
        state = self.begin()
        if state.names.get(path, ("f",))[0] == "d":
            return False
        number = self.new()
        data = content(f"{self.n} {number}", rnd.choice([0, 40, 300, 4096, 20_000, 70_000]))
        self.write(self.mnt / f"{self.directory}.new", data)
        # That was an fsync: all before is on disk.
        self.certain()
        state.names[path], state.files[number] = ("f", number), data
        self.will_be(state)
        os.rename(self.mnt / f"{self.directory}.new", self.root / path)

    @staticmethod
    def write(path, data):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, rnd):
        source, path = self.some(rnd), self.place(rnd)
        state = self.begin()
        if source is None or path in state.names:
            return False
        state.names[path] = state.names[source]
        self.will_be(state)
        os.link(self.root / source, self.root / path)

    def unlink(self, rnd):
        state = self.begin()
        directory = self.some(rnd, "d")
        if directory is not None and not any(p.startswith(directory + "/") for p in state.names):
            del state.names[directory]
            self.will_be(state)
            os.rmdir(self.root / directory)
            return
        # What lies in copies is no place for others, so it goes first.
        copies = sorted(p for p, v in state.names.items() if v[0] != "d" and p.startswith("copy"))
        path = (
            rnd.choice(copies)
            if copies and rnd.random() < 0.8
            else self.some(rnd, rnd.choice("ffl"))
        )
        if path is None:
            return False
        del state.names[path]
        self.will_be(state)
        os.unlink(self.root / path)

    def rename(self, rnd):
        source, path = self.some(rnd), self.place(rnd)
        state = self.begin()
        if (
            source is None
            or state.names.get(path, ("f",))[0] == "d"
            or state.names.get(path) == state.names[source]
        ):
            return False
        state.names[path] = state.names.pop(source)
        self.will_be(state)
        os.rename(self.root / source, self.root / path)

    def symlink(self, rnd):
        path = self.place(rnd)
        state = self.begin()
        if path in state.names:
            return False
        state.names[path] = ("l", f"nowhere/{self.new()}")
        self.will_be(state)
        os.symlink(state.names[path][1], self.root / path)

    def make_directory(self, rnd):
        path = f"d{rnd.randrange(3)}"
        state = self.begin()
        if path in state.names:
            return False
        state.names[path] = ("d",)
        self.will_be(state)
        os.mkdir(self.root / path)

    def change(self, rnd, work):
        """Changes a file where it is, and syncs it: the change is whole,
        and what comes behind it is not begun before it is on disk."""
        path = self.some(rnd)
        if path is None:
            return False
        state = self.begin()
        number = state.names[path][1]
        old = state.files[number]
        if len(old) < 5000:
            return False
        at = rnd.randrange(len(old) - 1)
        length = min(rnd.randrange(1, 30_000), len(old) - at)
        fd = os.open(self.root / path, os.O_RDWR)
        try:
            new, call = work(fd, at, length)
            state.files[number] = old[:at] + new + old[at + length :]
            self.will_be(state)
            call()
            os.fsync(fd)
        finally:
            os.close(fd)
        self.certain()

    def punch(self, rnd):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)

        def work(fd, at, length):
            def call():
                # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
                if libc.fallocate(fd, 3, ctypes.c_long(at), ctypes.c_long(length)):
                    raise OSError(ctypes.get_errno(), "fallocate")

            return bytes(length), call

        return self.change(rnd, work)

    def overwrite(self, rnd):
        def work(fd, at, length):
            # Within one page: a single request.
            length = min(length, 4096 - at % 4096)
            data = content(f"over {self.new()}", length)
            return data, lambda: os.pwrite(fd, data, at)

        def shortened(fd, at, length):
            new, call = work(fd, at, length)
            # `change` replaces `length` bytes: those behind the page stay.
            return new + os.pread(fd, length - len(new), at + len(new)), call

        return self.change(rnd, shortened)

    def clone_tree(self, rnd):
        source = rnd.choice([f"d{i}" for i in range(3)])
        state = self.begin()
        if source not in state.names or len(state.names) > 120:
            return False
        copy, files = f"copy{self.new()}", {}
        state.names[copy] = ("d",)
        for path, value in list(state.names.items()):
            if path.startswith(source + "/"):
                if value[0] == "f":
                    # Its own file, shared by what were several names of one.
                    if value[1] not in files:
                        files[value[1]] = self.new()
                        state.files[files[value[1]]] = state.files[value[1]]
                    value = ("f", files[value[1]])
                state.names[copy + path[len(source) :]] = value
        self.will_be(state)
        self.client.call("CLONETREE", f"/{self.directory}/{source}", f"/{self.directory}/{copy}")

    def remove_tree(self, rnd):
        tops = sorted(p for p, v in self.states[-1].names.items() if v[0] == "d" and "/" not in p)
        if not tops:
            return False
        top, state = rnd.choice(tops), self.begin()
        state.names = {
            p: v for p, v in state.names.items() if p != top and not p.startswith(top + "/")
        }
        self.will_be(state)
        self.client.call("RMTREE", f"/{self.directory}/{top}")

    def name_of_key(self, rnd):
        return f"{self.key}{rnd.randrange(self.KEYS):03}"

    def set_keys(self, rnd):
        state, words = self.begin(), ["MSET"]
        for _ in range(rnd.randrange(1, 6)):
            key, value = (
                self.name_of_key(rnd),
                content(f"{self.n} {self.new()}", rnd.choice([5, 100, 5000, 70_000])),
            )
            state.keys[key] = value
            words += [key, value]
        self.will_be(state)
        self.client.call(*words)

    def delete_range(self, rnd):
        start, end = sorted([self.name_of_key(rnd), self.name_of_key(rnd)])
        state = self.begin()
        state.keys = {k: v for k, v in state.keys.items() if not start <= k < end}
        self.will_be(state)
        self.client.call("DELRANGE", start, end)

    def count(self, rnd):
        key = f"{self.key}n"
        state = self.begin()
        state.keys[key] = b"%d" % (int(state.keys.get(key, b"0")) + 1)
        self.will_be(state)
        self.client.call("INCR", key)

    def multi(self, rnd):
        state = self.begin()
        a, b, value = self.name_of_key(rnd), self.name_of_key(rnd), b"multi %d" % self.new()
        state.keys.pop(a, None)
        state.keys[b] = value
        self.client.call("MULTI")
        self.client.call("DEL", a)
        self.client.call("SET", b, value)
        self.will_be(state)
        self.client.call("EXEC")

    def transaction(self, rnd):
        """Files and keys together, and a part of it undone."""
        state = self.begin()
        isolation = rnd.choice(["SI", "SER"])
        txn = self.client.call("TXN", "BEGIN", isolation).decode()
        view = self.mnt / ".kvfs" / "txn" / txn
        self.joined.call("TXN", "JOIN", txn)
        number, path, key = self.new(), f"n{rnd.randrange(self.FILES)}", self.name_of_key(rnd)
        if state.names.get(path, ("f",))[0] == "d":
            path = f"t{number}"
        data = content(f"txn {self.n} {number}", rnd.choice([40, 5000, 70_000]))

        def put(path, data):
            with open(view / f"{self.directory}.new", "wb") as f:
                f.write(data)
            os.rename(view / f"{self.directory}.new", view / self.directory / path)

        def within():
            """Another one within it, which is committed into it or aborted."""
            inner = self.client.call("TXN", "BEGIN", "WITHIN", txn).decode()
            nested, there = self.new(), self.mnt / ".kvfs" / "txn" / inner
            name, text = f"t{nested}", content(f"within {self.n} {nested}", 5000)
            with open(there / f"{self.directory}.new", "wb") as f:
                f.write(text)
            os.rename(there / f"{self.directory}.new", there / self.directory / name)
            self.joined.call("TXN", "JOIN", inner)
            self.joined.call("SET", f"{self.key}within", text)
            self.joined.call("TXN", "JOIN", txn)
            if rnd.random() < 0.3:
                self.client.call("TXN", "ABORT", inner)
                return
            self.client.call("TXN", "COMMIT", inner)
            state.names[name], state.files[nested] = ("f", nested), text
            state.keys[f"{self.key}within"] = text
            self.done["within"] += 1

        try:
            put(path, data)
            self.joined.call("SET", key, data[:5000])
            if isolation == "SI" and rnd.random() < 0.5:
                within()
            if rnd.random() < 0.5:
                self.joined.call("TXN", "SAVEPOINT", "here")
                put("undone", b"of no account")
                self.joined.call("DELRANGE", self.key, f"{self.key}~")
                self.joined.call("TXN", "ROLLBACK", "here")
            if rnd.random() < 0.2:
                self.client.call("TXN", "ABORT", txn)
                return
            state.names[path], state.files[number], state.keys[key] = (
                ("f", number),
                data,
                data[:5000],
            )
            synced = rnd.random() < 0.5
            self.will_be(state)
            self.client.call("TXN", "COMMIT", txn, *(["SYNC"] if synced else []))
            if synced:
                self.certain()
        except (RuntimeError, OSError) as e:
            # Another's claim on a directory that a serializable one has listed, say.
            refused = (
                str(e).startswith(("CONFLICT", "LOCKED", "NOTXN"))
                if isinstance(e, RuntimeError)
                else e.errno in (errno.EDEADLK, errno.ESTALE)
            )
            if not refused:
                raise
            if self.states[-1] is state:
                self.states.pop()
            self.done["refused"] += 1
            try:
                self.client.call("TXN", "ABORT", txn)
            except RuntimeError:
                pass  # it is over already
        finally:
            try:
                self.joined.call("TXN", "LEAVE")
            except RuntimeError:
                pass

    def durable(self, rnd):
        """A transaction that outlives the daemon."""
        if self.kept is not None:
            return False
        txn = self.client.call("TXN", "BEGIN", "SI", "DURABLE").decode()
        name, data = (
            f"kept{self.new()}",
            content(f"kept {self.number}", rnd.choice([40, 5000, 70_000])),
        )
        with open(self.mnt / ".kvfs" / "txn" / txn / self.directory / name, "wb") as f:
            f.write(data)
        self.client.call("TXN", "KEEP", txn)
        self.kept = (txn, name, data)

    def snapshot(self, rnd):
        state = self.begin()
        if len(state.snapshots) >= self.SNAPSHOTS:
            return False
        name = f"s-{self.n}-{self.new()}"
        frozen = State(state)
        frozen.snapshots, frozen.clones, frozen.common = {}, {}, {}
        state.snapshots[name] = frozen
        self.will_be(state)
        self.client.call("SNAPSHOT", "CREATE", name)
        self.certain()

    def drop_snapshot(self, rnd):
        state = self.begin()
        if not state.snapshots:
            return False
        # On disk at once, whatever waits: what came before must be there, too.
        self.sync(rnd)
        name = rnd.choice(sorted(state.snapshots))
        del state.snapshots[name]
        self.will_be(state)
        self.client.call("SNAPSHOT", "DROP", name)
        self.certain()

    def clone(self, rnd):
        state = self.begin()
        if not state.snapshots:
            return False
        self.sync(rnd)
        if len(state.clones) >= self.SNAPSHOTS:
            name = rnd.choice(sorted(state.clones))
            del state.clones[name]
            state.common.pop(name, None)
            self.will_be(state)
            self.client.call("CLONE", "DROP", name)
        else:
            snapshot, name = rnd.choice(sorted(state.snapshots)), f"c-{self.n}-{self.new()}"
            state.clones[name] = state.common[name] = state.snapshots[snapshot]
            self.will_be(state)
            self.client.call("CLONE", "CREATE", snapshot, name)
        self.certain()

    def in_clone(self, rnd):
        state = self.begin()
        if not state.clones:
            return False
        name, number = rnd.choice(sorted(state.clones)), self.new()
        inside = State(state.clones[name])
        state.clones[name] = inside
        path = self.place(rnd)
        parent = os.path.dirname(path)
        is_free = inside.names.get(path, ("f",))[0] != "d"
        if rnd.random() < 0.5 and is_free and (not parent or inside.names.get(parent) == ("d",)):
            there = self.mnt / ".kvfs" / "clone" / name
            data = content(f"clone {self.n} {number}", rnd.choice([40, 5000, 70_000]))
            self.write(there / f"{self.directory}.new", data)
            # That has committed what was written in the clone, and all before it.
            self.certain()
            inside.names[path], inside.files[number] = ("f", number), data
            self.will_be(state)
            os.rename(there / f"{self.directory}.new", there / self.directory / path)
            return
        key, value = self.name_of_key(rnd), b"clone %d" % number
        inside.keys[key] = value
        self.will_be(state)
        self.client.call("CLONE", "USE", name, "SET", key, value)

    def merge(self, rnd):
        """Brings what was changed in a clone into the store, or the other way round."""
        state = self.begin()
        if not state.clones:
            return False
        name, rebase = rnd.choice(sorted(state.clones)), rnd.random() < 0.3
        if name not in state.common:
            return False
        clone, words = state.clones[name], ["REBASE"] if rebase else []
        into, source = (clone, state) if rebase else (state, clone)
        result = merged(state.common[name], into, source)
        if result is None:
            return False
        frozen = State(source)
        frozen.snapshots, frozen.clones, frozen.common = {}, {}, {}
        state.common[name] = frozen
        if rebase:
            result.snapshots, result.clones, result.common = {}, {}, {}
            state.clones[name] = result
        else:
            state.names, state.files, state.keys = result.names, result.files, result.keys
        try:
            txn, _, _, conflicts, *_ = self.client.call("TXN", "MERGE", name, *words)
            if conflicts:
                # A directory was removed and another one made of its name, say.
                self.client.call("TXN", "ABORT", txn.decode())
                return False
            synced = rnd.random() < 0.5
            self.will_be(state)
            self.client.call("TXN", "COMMIT", txn.decode(), *(["SYNC"] if synced else []))
            if synced:
                self.certain()
        except RuntimeError as e:
            if not str(e).startswith(("CONFLICT", "LOCKED", "NOTXN")):
                raise
            if self.states[-1] is state:
                self.states.pop()
            self.done["refused"] += 1
            return False
        self.done["rebase"] += rebase

    def rollback(self, rnd):
        state = self.begin()
        if not state.snapshots:
            return False
        name = rnd.choice(sorted(state.snapshots))
        then = state.snapshots[name]
        state.names, state.files, state.keys = dict(then.names), dict(then.files), dict(then.keys)
        # What was merged since is not, and an earlier state counts.
        state.common = {}
        self.will_be(state)
        self.client.call("SNAPSHOT", "ROLLBACK", name)
        self.certain()
        # It ends the transactions that were begun before.
        self.kept = None

    def sync(self, rnd):
        self.client.call("SYNC")
        self.certain()

    # --- afterwards

    def verify(self, mnt, client, problems, where):
        def views(what, mine):
            names = sorted(
                row[1].decode()
                for row in client.call(what, "LIST")
                if row[1].decode().startswith(mine)
            )
            return {
                name: (
                    walk(mnt / ".kvfs" / what.lower() / name / self.directory),
                    self.range(client, what, "USE", name),
                )
                for name in names
            }

        found = {
            "tree": walk(mnt / self.directory),
            "keys": self.range(client),
            "snapshots": views("SNAPSHOT", f"s-{self.n}-"),
            "clones": views("CLONE", f"c-{self.n}-"),
        }
        match = next((s for s in reversed(self.states) if s.shown() == found), None)
        rolling_back = bool(self.steps) and self.steps[-1] == "rollback" and len(self.states) > 1
        if match is None:
            problems.append(
                f"{where}: {self.directory} is none of the {len(self.states)} states that "
                f"it may be: {self.nearest(found)}"
            )
            return
        self.states = [match]
        if self.kept and rolling_back and not (mnt / ".kvfs" / "txn" / self.kept[0]).exists():
            # A rollback was begun, and ends it.
            self.kept = None
        if self.kept:
            self.take_up(mnt, client, problems, where)

    def take_up(self, mnt, client, problems, where):
        """A durable transaction is there with what was kept; it commits."""
        txn, name, data = self.kept
        self.kept = None
        try:
            found = (mnt / ".kvfs" / "txn" / txn / self.directory / name).read_bytes()
        except OSError as e:
            problems.append(f"{where}: the durable transaction {txn} has no {name}: {e}")
            return
        if found != data:
            problems.append(
                f"{where}: {name} in the durable transaction {txn} has {len(found)} other bytes"
            )
            return
        client.call("TXN", "COMMIT", txn, "SYNC")
        state, number = State(self.states[-1]), self.new()
        state.names[name], state.files[number] = ("f", number), data
        self.states = [state]
        self.done["taken up"] += 1

    def range(self, client, *view):
        words = client.call(*view, "RANGE", self.key, f"{self.key}~")
        return {k.decode(): v for k, v in zip(words[::2], words[1::2])}

    def nearest(self, found):
        """How the state differs that differs least."""

        def difference(a, b, path=""):
            if isinstance(a, dict) and isinstance(b, dict):
                return [
                    d
                    for k in sorted(a.keys() | b.keys())
                    for d in difference(a.get(k), b.get(k), f"{path}/{k}")
                ]
            if (
                isinstance(a, tuple)
                and isinstance(b, tuple)
                and len(a) == len(b) == 2
                and isinstance(a[0], dict)
            ):
                return difference(a[0], b[0], f"{path} files") + difference(
                    a[1], b[1], f"{path} keys"
                )
            return [] if a == b else [f"{path}: {show(a)} expected, {show(b)} found"]

        def show(v):
            short = lambda x: f"{len(x)} bytes {x[:12]!r}" if isinstance(x, bytes) else str(x)[:60]
            return (
                "nothing"
                if v is None
                else " ".join(map(short, v))
                if isinstance(v, tuple)
                else short(v)
            )

        all_of_them = [difference(s.shown(), found) for s in self.states]
        at, least = min(enumerate(all_of_them), key=lambda d: len(d[1]))
        return (
            f"state {at} differs least: {least[:6]}; all differ in "
            f"{[len(d) for d in all_of_them]}; the last steps: {list(self.steps)}"
        )
