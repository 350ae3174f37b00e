"""What is timed: one function each."""

import os
import random

MIB = 1 << 20
NOISE = random.Random(3).randbytes(16 * MIB)


def fill(path, mib):
    """A file whose contents do not compress, written in order."""
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for n in range(mib):
        at = (n * 7919) % (15 * MIB)
        os.write(fd, NOISE[at : at + MIB])
    os.fsync(fd)
    os.close(fd)


def read_in_order(path):
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, MIB):
        pass
    os.close(fd)


def overwrite(path, count, size, seed):
    """So many bytes at random places, then one fsync: pages, or a few bytes anywhere."""
    fd, rng = os.open(path, os.O_RDWR), random.Random(seed)
    length = os.fstat(fd).st_size
    for _ in range(count):
        at = rng.randrange(length // size) * size if size >= 4096 else rng.randrange(length - size)
        os.pwrite(fd, rng.randbytes(size), at)
    os.fsync(fd)
    os.close(fd)


def make_small(top, count, size, fan=128):
    """Many small files, at most `fan` entries in a directory."""
    body = NOISE[:size]
    os.mkdir(top)
    for n in range(count):
        a, b = divmod(n, fan)
        c, d = divmod(a, fan)
        if b == 0:
            if d == 0:
                os.mkdir(f"{top}/{c}")
            os.mkdir(f"{top}/{c}/{d}")
        fd = os.open(f"{top}/{c}/{d}/{b}", os.O_CREAT | os.O_WRONLY, 0o644)
        if size:
            os.write(fd, body)
        os.close(fd)


def make_mailboxes(top, boxes, messages, seed):
    """Maildirs with so many messages each, in `cur`."""
    rng = random.Random(seed)
    for box in range(boxes):
        for part in ("tmp", "new", "cur"):
            os.makedirs(f"{top}/{box}/{part}")
        for n in range(messages):
            with open(f"{top}/{box}/cur/{n}:2,S", "wb", buffering=0) as f:
                f.write(NOISE[: rng.randrange(1000, 16000)])


def mail(top, boxes, messages, operations, seed):
    """Half of the operations deliver: written in `tmp`, fsync, renamed to `new`, fsync of that directory.
    A quarter marks a message by a rename, a quarter removes one; each with an fsync of its directory,
    as a server answers only when what it was asked for is durable."""
    rng = random.Random(seed)
    live = [[f"cur/{n}:2,S" for n in range(messages)] for _ in range(boxes)]

    def sync_directory(path):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    for n in range(operations):
        box, kind = rng.randrange(boxes), rng.random()
        at = f"{top}/{box}"
        if kind < 0.5 or not live[box]:
            fd = os.open(f"{at}/tmp/m{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            os.write(fd, NOISE[: rng.randrange(1000, 16000)])
            os.fsync(fd)
            os.close(fd)
            os.rename(f"{at}/tmp/m{n}", f"{at}/new/m{n}")
            sync_directory(f"{at}/new")
            live[box].append(f"new/m{n}")
            continue
        chosen = rng.randrange(len(live[box]))
        name = live[box][chosen]
        if kind < 0.75:
            target = f"cur/m{n}:2,FS"
            os.rename(f"{at}/{name}", f"{at}/{target}")
            live[box][chosen] = target
            sync_directory(f"{at}/cur")
        else:
            os.unlink(f"{at}/{name}")
            live[box][chosen] = live[box][-1]
            live[box].pop()
            sync_directory(f"{at}/{name.split('/')[0]}")


def shuffled(directories, each, seed):
    names = [(d, n) for d in range(directories) for n in range(each)]
    random.Random(seed).shuffle(names)
    return names


def names_create(top, directories, each, seed):
    for d in range(directories):
        os.makedirs(f"{top}/{d}")
    for d, n in shuffled(directories, each, seed):
        os.close(os.open(f"{top}/{d}/{n}", os.O_CREAT | os.O_WRONLY, 0o644))


def names_rename(top, directories, each, seed):
    for d, n in shuffled(directories, each, seed):
        os.rename(f"{top}/{d}/{n}", f"{top}/{(d * 7 + n) % directories}/r{d}-{n}")


def names_unlink(top, directories, each, seed):
    for d, n in shuffled(directories, each, seed):
        os.unlink(f"{top}/{(d * 7 + n) % directories}/r{d}-{n}")
