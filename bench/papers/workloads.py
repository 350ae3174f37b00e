"""What is timed: one function each."""

import os
import random
import time

MIB = 1 << 20
NOISE = random.Random(3).randbytes(16 * MIB)


def fill(path, mib, piece=MIB):
    """A file whose contents do not compress, written in order."""
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for n in range(mib):
        at = (n * 7919) % (15 * MIB)
        for start in range(at, at + MIB, piece):
            os.write(fd, NOISE[start : start + piece])
    os.fsync(fd)
    os.close(fd)


def read_in_order(path, piece=MIB):
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, piece):
        pass
    os.close(fd)


def read_at_random(path, count, seed):
    """Pages, one after the other."""
    fd, rng = os.open(path, os.O_RDONLY), random.Random(seed + 1)
    pages = os.fstat(fd).st_size // 4096
    for _ in range(count):
        os.pread(fd, 4096, rng.randrange(pages) * 4096)
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


def make_small_at_once(top, count, size, processes=4, parts=5):
    """`make_small` by several processes, which begin each part together. Gives how many files a
    second there were until each of the parts was over."""
    os.mkdir(top)
    each, rates, begun = count // processes // parts, [], time.monotonic()
    for part in range(parts):
        children = []
        for me in range(processes):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    make_small(f"{top}/{part}-{me}", each, size)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        if any([os.waitpid(child, 0)[1] for child in children]):
            raise OSError("one of several processes failed")
        rates.append(each * processes * (part + 1) / (time.monotonic() - begun))
    return {"files_per_s": rates}


def make_files(top, count, size):
    """Files by number."""
    os.mkdir(top)
    for n in range(count):
        with open(f"{top}/{n}", "wb", buffering=0) as f:
            f.write(NOISE[:size])


def move_durably(source, target, count, seed):
    """Files by number move, in no order, each with an fsync of the directory that it comes to."""
    order = random.Random(seed).sample(range(count), count)
    fd = os.open(target, os.O_RDONLY)
    for n in order:
        os.rename(f"{source}/{n}", f"{target}/{n}")
        os.fsync(fd)
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
    """Half of the operations deliver: written in `tmp`, fsync, renamed to `new`, fsync of that
    directory. A quarter marks a message by a rename, a quarter removes one; each with an fsync of
    its directory, as a server answers only when what it was asked for is durable."""
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
    """Names by directory and number; without a seed in order."""
    names = [(d, n) for d in range(directories) for n in range(each)]
    if seed is not None:
        random.Random(seed).shuffle(names)
    return names


def names_create(top, directories, each, seed, size=0):
    for d in range(directories):
        os.makedirs(f"{top}/{d}")
    for d, n in shuffled(directories, each, seed):
        fd = os.open(f"{top}/{d}/{n}", os.O_CREAT | os.O_WRONLY, 0o644)
        if size:
            os.write(fd, NOISE[:size])
        os.close(fd)


def names_rename(top, directories, each, seed):
    for d, n in shuffled(directories, each, seed):
        os.rename(f"{top}/{d}/{n}", f"{top}/{(d * 7 + n) % directories}/r{d}-{n}")


def names_unlink(top, directories, each, seed):
    """What `names_rename` has left."""
    for d, n in shuffled(directories, each, seed):
        os.unlink(f"{top}/{(d * 7 + n) % directories}/r{d}-{n}")


def names_remove(top, directories, each, seed):
    """What `names_create` has left."""
    for d, n in shuffled(directories, each, seed):
        os.unlink(f"{top}/{d}/{n}")


def directories_make(top, directories, each, seed):
    for d in range(directories):
        os.makedirs(f"{top}/{d}")
    for d, n in shuffled(directories, each, seed):
        os.mkdir(f"{top}/{d}/{n}")


def directories_remove(top, directories, each, seed):
    for d, n in shuffled(directories, each, seed):
        os.rmdir(f"{top}/{d}/{n}")


def list_each(top, seed):
    """Each directory in `top` once, in no order."""
    names = sorted(os.listdir(top))
    random.Random(seed).shuffle(names)
    for name in names:
        os.listdir(f"{top}/{name}")
