#!/usr/bin/env python3
"""Runs random commands on a store's socket and on redis-server and compares what they answer.

    scripts/redis_fuzz.py SOCKET [--commands N] [--seed S]

`make redis-fuzz` runs it on a store in memory, and so does a test with fewer commands.

Every reply is compared, in RESP2 and in RESP3 in turn, and now and then all keys with their types,
their times to live and what they hold. The first difference of each command is printed with the
fewest commands that lead to it, and the exit code is 1. A difference that does not come again with
the same commands is none where one of its keys was to expire: both servers need not come to a
command on the same side of that moment. It is counted. Where redis-server is not installed nothing
is compared, which is said, and the exit code is 0.
"""

import argparse
import contextlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KEYS = [b"", b"a", b"b", b"c", b"k:1", b"k:2", "é".encode(), b"\x00\xff", b"{t}1", b"sp ace"]
FIELDS = [b"", b"f", b"g", b"1", "é".encode(), b"\x00", b"field:2"]
VALUES = [b"", b"0", b"1", b"-1", b"10", b"1.5", b"abc", b"xyz", "é".encode(), b"\xff\x00", b" 1",
          b"1 ", b"3.0e3", b"9223372036854775807", b"v" * 70, b"01", b"+1", b"-0", b"1e5", b"inf"]
NUMBERS = [b"0", b"1", b"-1", b"2", b"5", b"10", b"100", b"-7", b"9223372036854775807",
           b"-9223372036854775808", b"9223372036854775808", b"x", b"", b"1.0", b"+5", b"007"]
FLOATS = [b"0", b"1", b"-1", b"0.1", b"0.2", b"1.5", b"-2.25", b"3.0e3", b"1e-5", b"5.0e-7",
          b"0x1p3", b"0x10", b"-0x1.8p1", b"1e17", b"123456789.123456789", b"0.12345678901234567",
          b"1e-17", b"1e-18", b"0.1234567890123456789", b"1e400", b"inf", b"-inf", b"nan", b"",
          b"x", b" 1", b"1 ", b"1e", b".5", b"5.", b"+3", b"--1", b"infinity", b"1e20", b"1e30",
          b"9007199254740993", b"0x", b"0x1p-20", b"1e-300", b"4.9e-324", b"0.30000000000000004"]
SCORES = [b"0", b"1", b"2", b"3", b"-1", b"1.5", b"-2.5", b"10", b"inf", b"-inf", b"+inf", b"nan",
          b"x", b"1e3", b"0x10", b"3.0000000000000001", b"", b"1e300", b"0.1", b"17179869184"]
BOUNDS = [b"-inf", b"+inf", b"0", b"(0", b"1", b"(1", b"2", b"(2.5", b"10", b"x", b"(inf", b"("]
LEX = [b"-", b"+", b"[a", b"(a", b"[f", b"(g", b"[", b"(", b"x", b"[" + "é".encode(), b"[1"]
INDEXES = [b"0", b"1", b"-1", b"2", b"-2", b"3", b"10", b"-10", b"100", b"x", b"-100"]
COUNTS = [b"0", b"1", b"2", b"5", b"-1", b"x", b"100"]
TIMES = [b"1000", b"5000", b"100000", b"0", b"-1", b"x", b"9223372036854775807", b"20000", b""]
# A string may be longer than 512 MiB here, so no offset lies beyond that.
BITS = [b"0", b"1", b"7", b"8", b"15", b"100", b"-1", b"x", b"9223372036854775808"]
STREAMS = [b"s1", b"s2", b"a"]
ENTRIES = [b"0-0", b"0-1", b"1", b"1-1", b"1-2", b"2-0", b"2-7", b"3", b"5-5", b"8-1", b"9", b"13",
           b"20-2", b"40", b"x", b"-", b"", b"1-x", b"+"]
ADDED = [*ENTRIES, b"0-*", b"1-*", b"2-*", b"5-*", b"9-*", b"40-*", b"41-*", b"41-*", b"41-*"]
SPANS = [b"-", b"-", b"+", b"+", b"(1-1", b"1", b"(5-5", b"3", b"0", b"(-", b"x", b"(0-0", b"20",
         b"18446744073709551615", b"(18446744073709551615-18446744073709551615"]
GROUPS = [b"g", b"g", b"h", "é".encode(), b""]
CONSUMERS = [b"one", b"two", b""]
# Places all over the map, its edges, and some near one another.
EARTH = random.Random(7)
PLACES = [f"{EARTH.uniform(-180, 180):.6f}".encode() for _ in range(60)]
LONGITUDES = [*PLACES, b"0", b"180", b"-180", b"179.999", b"13.361389", b"13.4", b"181", b"x"]
LATITUDES = [*(b"%.6f" % (float(at) / 180 * 85) for at in PLACES), b"0", b"85.05112878", b"-85",
             b"38.115556", b"38.2", b"86", b""]
RADII = [b"0", b"1", b"100", b"166274.1517", b"1000", b"5000", b"20000", b"1e7", b"-1", b"inf",
         b"x", b"0.5"]
MEMBERS = [b"m%d" % i for i in range(40)]
KINDS = {"L": LONGITUDES, "A": LATITUDES, "R": RADII, "m": MEMBERS,
         "k": KEYS, "f": FIELDS, "v": VALUES, "n": NUMBERS, "x": FLOATS, "s": SCORES, "b": BOUNDS,
         "l": LEX, "i": INDEXES, "c": COUNTS, "t": TIMES, "o": BITS, "y": STREAMS, "e": ENTRIES,
         "a": ADDED, "r": SPANS, "g": GROUPS, "w": CONSUMERS}

# Ranges of names are those of one score: of several they are unspecified, so `lex` has one.
# What stands in brackets is there now and then; `%k` is one of the keys, and so on; `*` behind a
# word has it up to three times; `a|b` is one of both.
GRAMMAR = """
GET %k
SET %k %v [NX|XX] [GET] [KEEPTTL]
SET %k %v [EX|PX] [%t]
SETNX %k %v
SETEX %k %t %v
PSETEX %k %t %v
GETSET %k %v
GETDEL %k
GETEX %k [PERSIST]
GETEX %k EX|PX %t
MGET %k*
MSET %k %v %k %v
MSETNX %k %v %k %v
STRLEN %k
APPEND %k %v
GETRANGE %k %i %i
SUBSTR %k %i %i
SETRANGE %k %o %v
LCS %k %k [LEN]
LCS %k %k IDX [MINMATCHLEN] [%c] [WITHMATCHLEN]
INCR %k
DECR %k
INCRBY %k %n
DECRBY %k %n
INCRBYFLOAT %k %x
SETBIT %k %o 0|1
GETBIT %k %o
BITCOUNT %k [%i] [%i] [BIT|BYTE]
BITPOS %k 0|1 [%i] [%i] [BIT|BYTE]
BITOP AND|OR|XOR|NOT %k %k*
BITFIELD %k GET u8|i5|u4|i64|u64|x #1|0|3|100
BITFIELD %k SET u8|i5|u4|i64 #1|0|3 %n
BITFIELD %k [OVERFLOW] [WRAP|SAT|FAIL] INCRBY u8|i5|u4|i64 #1|0|3 %n
BITFIELD_RO %k GET u8|i5 0|#1
DEL %k*
UNLINK %k*
EXISTS %k*
TOUCH %k*
TYPE %k
RENAME %k %k
RENAMENX %k %k
COPY %k %k [REPLACE]
EXPIRE %k %t [NX|XX]
PEXPIRE %k %t [NX|XX]
EXPIREAT %k %t [NX|XX]
EXPIREAT %k 9999999997|9999999998|9999999999 [NX|XX|GT|LT]
PERSIST %k
TTL %k
PTTL %k
HSET %k %f %v [%f] [%v]
HMSET %k %f %v
HSETNX %k %f %v
HGET %k %f
HMGET %k %f*
HGETALL %k
HKEYS %k
HVALS %k
HLEN %k
HEXISTS %k %f
HSTRLEN %k %f
HDEL %k %f*
HINCRBY %k %f %n
HINCRBYFLOAT %k %f %x
SADD %k %f*
SREM %k %f*
SCARD %k
SISMEMBER %k %f
SMISMEMBER %k %f*
SMEMBERS %k
SPOP %k [%c]
SRANDMEMBER %k [%c]
SMOVE %k %k %f
SINTER %k*
SUNION %k*
SDIFF %k*
SINTERSTORE %k %k*
SUNIONSTORE %k %k*
SDIFFSTORE %k %k*
SINTERCARD 2 %k %k [LIMIT] [%c]
ZADD %k [NX|XX] [GT|LT] [CH] [INCR] %s %f
ZADD %k %s %f %s %f
ZINCRBY %k %s %f
ZREM %k %f*
ZCARD %k
ZSCORE %k %f
ZMSCORE %k %f*
ZRANK %k %f
ZREVRANK %k %f
ZCOUNT %k %b %b
ZADD lex 0 %f 0 %f
ZREM lex %f
ZLEXCOUNT lex %l %l
ZRANGE %k %i %i [REV] [WITHSCORES]
ZRANGE %k %b %b BYSCORE [REV] [LIMIT] [%i] [%i]
ZRANGE lex %l %l BYLEX [REV]
ZRANGESTORE %k %k %i %i [REV]
ZREVRANGE %k %i %i [WITHSCORES]
ZRANGEBYSCORE %k %b %b [WITHSCORES]
ZREVRANGEBYSCORE %k %b %b [LIMIT] [%i] [%c]
ZRANGEBYLEX lex %l %l
ZREVRANGEBYLEX lex %l %l
ZREMRANGEBYRANK %k %i %i
ZREMRANGEBYSCORE %k %b %b
ZREMRANGEBYLEX lex %l %l
ZPOPMIN %k [%c]
ZPOPMAX %k [%c]
ZMPOP 2 %k %k MIN|MAX [COUNT] [%c]
ZRANDMEMBER %k [%c]
ZUNION 2 %k %k [WEIGHTS] [%x] [%x] [AGGREGATE] [SUM|MIN|MAX] [WITHSCORES]
ZINTER 2 %k %k [AGGREGATE] [SUM|MIN|MAX] [WITHSCORES]
ZDIFF 2 %k %k [WITHSCORES]
ZUNIONSTORE %k 2 %k %k [WEIGHTS] [%s] [%s] [AGGREGATE] [SUM|MIN|MAX]
ZINTERSTORE %k 2 %k %k [AGGREGATE] [SUM|MIN|MAX]
ZDIFFSTORE %k 2 %k %k
ZINTERCARD 2 %k %k [LIMIT] [%c]
PFADD pf:1|pf:2|pf:3 %m*
PFADD %k %v*
PFADD pf:1 %v %x %m %f %L
PFCOUNT pf:1|pf:2|pf:3
PFCOUNT %k pf:1
PFMERGE pf:1|pf:2|pf:3 pf:1|pf:2|pf:3
PFMERGE pf:3 %k pf:1
GETRANGE pf:1|pf:2|pf:3 16 -1
GEOADD geo [NX|XX] [CH] %L %A %m
GEOADD geo %L %A %m %L %A %m %L %A %m
GEOADD %k %L %A %f
GEOPOS geo %m*
GEOPOS %k %f
GEOHASH geo %m*
GEOHASH %k %f
GEODIST geo %m %m [m|km|ft|mi|x]
GEOSEARCH geo FROMLONLAT %L %A BYRADIUS %R m|km|ft|mi [ASC|DESC] [WITHCOORD] [WITHDIST] [WITHHASH]
GEOSEARCH geo FROMMEMBER %m BYBOX %R %R km|mi [ASC|DESC] [WITHDIST]
GEOSEARCH geo FROMMEMBER %m BYRADIUS %R km COUNT 1|3|x WITHDIST
GEOSEARCH geo FROMMEMBER %m BYRADIUS %R km COUNT 1|3|x ANY WITHDIST
GEORADIUS geo %L %A %R km|mi|m [WITHDIST] [WITHHASH] [WITHCOORD] [DESC]
GEORADIUS geo %L %A %R km STORE|STOREDIST %k
GEORADIUS_RO %k %L %A %R km [ASC]
GEORADIUSBYMEMBER geo %m %R km|mi|m [WITHDIST] [ASC] [COUNT]
GEORADIUSBYMEMBER geo %m %R km|mi|m WITHDIST [ASC] COUNT %c
GEORADIUSBYMEMBER_RO %k %f %R km
GEOSEARCHSTORE %k geo FROMLONLAT %L %A BYBOX %R %R km|mi [STOREDIST]
LPUSH %k %v*
RPUSH %k %v*
LPUSHX %k %v
RPUSHX %k %v
LPOP %k [%c]
RPOP %k [%c]
LLEN %k
LRANGE %k %i %i
LINDEX %k %i
LSET %k %i %v
LREM %k %i %v
LTRIM %k %i %i
LINSERT %k BEFORE|AFTER %v %v
LMOVE %k %k LEFT|RIGHT LEFT|RIGHT
LMPOP 2 %k %k LEFT|RIGHT [COUNT] [%c]
RPOPLPUSH %k %k
LPOS %k %v [RANK] [%i] [COUNT] [%c] [MAXLEN] [%c]
SORT %k [LIMIT] [%i] [%i] [DESC]
XADD %y %a %f %v
XADD %y %a %f %v %f %v
XADD %y [NOMKSTREAM] MAXLEN [=] %c %a %f %v
XADD %y [NOMKSTREAM] [MINID] %e %a %f %v [%v]
XADD %k %a %f %v
XLEN %y
XLEN %k
XRANGE %y %r %r [COUNT] [%c]
XREVRANGE %y %r %r [COUNT] [%c]
XDEL %y %e*
XTRIM %y MAXLEN [=] %c [LIMIT] [%c]
XTRIM %y MINID %e
XSETID %y %e [ENTRIESADDED] [%c] [MAXDELETEDID] [%e]
XINFO STREAM %y [FULL] [COUNT] [%c]
XINFO GROUPS %y
XINFO CONSUMERS %y %g
XREAD [COUNT] [%c] STREAMS %y %e
XREAD COUNT 2 STREAMS s1 s2 %e %e|$|>
XGROUP CREATE %y %g %e|$ [MKSTREAM] [ENTRIESREAD] [%c]
XGROUP CREATE %y g 0 MKSTREAM
XGROUP SETID %y %g %e|$ [ENTRIESREAD] [%c]
XGROUP DESTROY %y %g
XGROUP CREATECONSUMER|DELCONSUMER %y %g %w
XREADGROUP GROUP %g %w [COUNT] [%c] [NOACK] STREAMS %y >
XREADGROUP GROUP g %w [COUNT] [%c] STREAMS s1 s2 %e|> %e|>|$
XACK %y %g %e*
XPENDING %y %g
XPENDING %y %g [IDLE] [0] %r %r %c [%w]
XCLAIM %y %g %w 0|100000000|x %e* [FORCE] [JUSTID] [RETRYCOUNT] [%c] [LASTID] [%e]
XCLAIM %y %g %w 0 %e* [TIME] [%c] [IDLE] [%c]
XAUTOCLAIM %y %g %w 0|100000000|x %r [COUNT] [%c] [JUSTID]
DEL %y
TYPE %y
RENAME %y %y
COPY %y %y
EXPIRE %y 1000
KEYS *|a*|k:?
DBSIZE
MULTI
EXEC
DISCARD
""".strip().splitlines()

# Their elements have another order here, or none.
SORTED = {"KEYS", "SMEMBERS", "SINTER", "SUNION", "SDIFF", "HKEYS", "HVALS"}
RANDOM = {"SPOP", "SRANDMEMBER", "ZRANDMEMBER"}
CLOSE = {"TTL", "PTTL"}


class Server:
    """A connection that sends commands and reads replies."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def send(self, commands):
        out = []
        for words in commands:
            out.append(b"*%d\r\n" % len(words))
            out.extend(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.socket.sendall(b"".join(out))

    def read(self):
        line = self.file.readline()[:-2]
        kind, text = line[:1], line[1:]
        if kind == b"-":
            return ("error", text)
        if kind in b"$=":
            if text == b"-1":
                return ("null",)
            data = self.file.read(int(text) + 2)[:-2]
            return ("bulk", data)
        if kind in b"*~%>":
            if text == b"-1":
                return ("null",)
            count = int(text) * (2 if kind == b"%" else 1)
            return ("list" + kind.decode(), [self.read() for _ in range(count)])
        return (kind.decode(), text)

    def call(self, *words):
        self.send([[w.encode() if isinstance(w, str) else w for w in words]])
        return self.read()


def made(rng, line):
    """A command of a line of the grammar."""
    words = []
    for word in line.split():
        times = 1
        if word.startswith("["):
            if rng.random() < 0.6:
                continue
            word = word[1:-1]
        if word.endswith("*") and word != "*" and word.startswith("%"):
            word, times = word[:-1], rng.randint(1, 3)
        for _ in range(times):
            choice = rng.choice(word.split("|"))
            known = KINDS.get(choice[1:]) if choice.startswith("%") else None
            words.append(rng.choice(known) if known else choice.encode())
    return words


def plain(reply):
    """A reply whose elements can be put in order."""
    return repr(reply)


def canonical(words, reply):
    """A reply without what may differ."""
    name = words[0].decode()
    kind = reply[0]
    if kind == "error":
        # Its code counts: sentences may differ, and so may which of two faults is told.
        code = reply[1].split(b" ")[0]
        return ("error", b"ERR" if code == b"WRONGTYPE" else code)
    if name == "HGETALL" and kind.startswith("list"):
        flat = reply[1]
        pairs = sorted(zip(map(plain, flat[::2]), map(plain, flat[1::2]), strict=True))
        return (kind, pairs)
    if kind == "bulk" and reply[1].startswith(b"HYLL"):
        # The number of elements in the header: here, PFCOUNT does not store it.
        return (kind, reply[1][:8] + reply[1][16:])
    if name in SORTED and kind.startswith("list"):
        return (kind, sorted(map(plain, reply[1])))
    if name in RANDOM:
        return (kind, len(reply[1]) if kind.startswith("list") else 0)
    if name.startswith("GEO") and b"COUNT" in words and b"ANY" not in words:
        return (kind, nearest(reply[1]) if kind.startswith("list") else reply[1:])
    if name.startswith("X"):
        return untimed(reply)
    if name.startswith("Z"):
        return (kind, shortest(reply[1])) if len(reply) > 1 else reply
    return reply


def nearest(elements):
    """The first members by distance. Those at one distance have no order, neither here nor in
    Redis, and a count may leave out any of the farthest."""
    far = elements[-1][1][1] if elements else None
    names = sorted((one[1][1], one[1][0]) for one in elements if one[1][1] != far)
    return [[one[1][1] for one in elements], names]


# Names after which there are numbers of nodes, or times.
MEASURED = {b"radix-tree-keys", b"radix-tree-nodes", b"idle"}


def untimed(part):
    """A reply about streams without the times in it, nor how they are kept."""
    if part[0] == ":":
        return (":", b"a time" if int(part[1]) > 10**12 else part[1])
    if len(part) < 2 or not part[0].startswith("list"):
        return part
    parts = [untimed(one) for one in part[1]]
    for at, one in enumerate(part[1][:-1]):
        if one[0] == "bulk" and one[1] in MEASURED:
            parts[at + 1] = ""
    if [one[0] for one in part[1]] == ["bulk", "bulk", ":", ":"]:
        # An entry that was delivered: its ID, to whom, how long ago, how often.
        parts[2] = ""
    return (part[0], parts)


def shortest(part):
    """A reply with its numbers as Redis shows them from 7.2 on: in the fewest digits."""
    if isinstance(part, (list, tuple)):
        return [shortest(one) for one in part]
    try:
        return repr(float(part))
    except (TypeError, ValueError):
        return part


def same(words, ours, theirs, queued=()):
    if ours == theirs:
        return True
    if words == [b"EXEC"] and ours[0] == theirs[0] == "list*":
        each = zip(queued, ours[1], theirs[1], strict=False)
        alike = len(ours[1]) == len(theirs[1]) == len(queued)
        return alike and all(same(*one) for one in each)
    a, b = canonical(words, ours), canonical(words, theirs)
    if words[0].decode() in CLOSE and a[0] == b[0] == ":":
        return abs(int(a[1]) - int(b[1])) <= 5000 and (int(a[1]) < 0) == (int(b[1]) < 0)
    return a == b


def content(server, key):
    """The type of a key, whether it expires, and what it holds, in an order of its own."""
    kind = server.call("TYPE", key)[1]
    expires = int(server.call("PTTL", key)[1])
    reads = {b"string": ["GET", key], b"list": ["LRANGE", key, "0", "-1"],
             b"set": ["SMEMBERS", key], b"hash": ["HGETALL", key],
             b"zset": ["ZRANGE", key, "0", "-1", "WITHSCORES"],
             b"stream": ["XINFO", "STREAM", key, "FULL", "COUNT", "0"]}
    words = [w.encode() if isinstance(w, str) else w for w in reads.get(kind, ["TYPE", key])]
    held = server.call(*words)
    return kind, expires, canonical(words, held)


def compare_all(ours, theirs):
    """What differs between the keys of both; `None`: nothing does."""
    listed = [sorted(element[1] for element in s.call("KEYS", "*")[1]) for s in (ours, theirs)]
    if listed[0] != listed[1]:
        return f"keys {listed[0]} here, {listed[1]} in Redis"
    for key in listed[0]:
        here, there = content(ours, key), content(theirs, key)
        if here[0] != there[0] or here[2] != there[2] or abs(here[1] - there[1]) > 5000:
            return f"{key!r}: {here} here, {there} in Redis"
    return None


@contextlib.contextmanager
def redis_server():
    """A redis-server, and the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="kvfs-fuzz") as directory:
        path = Path(directory) / "redis.sock"
        redis = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--save", "",
             "--appendonly", "no", "--dir", directory], stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while not path.exists():
                if time.monotonic() > until or redis.poll() is not None:
                    sys.exit("redis-server does not listen")
                time.sleep(0.05)
            yield path
        finally:
            redis.terminate()
            redis.wait()


def same_start(servers):
    """Makes both empty; what was written before does not count."""
    for server in servers:
        server.call("DISCARD")
        server.call("FLUSHALL")


def answered(server, commands):
    """The replies to these commands."""
    replies = []
    for at in range(0, len(commands), 60):
        some = commands[at : at + 60]
        server.send(some)
        replies.extend(server.read() for _ in some)
    return replies


def differing(both, version, commands):
    """How many of these commands it takes to the first reply that differs, or to other keys;
    `None`: nothing differs."""
    same_start(both)
    for server in both:
        server.call("HELLO", version)
    here, there = (answered(server, commands) for server in both)
    queued = []
    for at, (words, a, b) in enumerate(zip(commands, here, there, strict=True)):
        if not same(words, a, b, queued):
            return at + 1
        if b == ("+", b"QUEUED"):
            queued.append(words)
        elif words[0] in (b"EXEC", b"DISCARD"):
            queued = []
    for server in both:
        server.call("DISCARD")
    return len(commands) if compare_all(*both) else None


def shortened(both, version, commands):
    """The fewest commands that differ, as far as they are found in a minute; `None`: these do not
    differ again."""
    needed = differing(both, version, commands)
    if needed is None:
        return None
    commands = commands[:needed]
    until = time.monotonic() + 60
    size = max(1, len(commands) // 2)
    while time.monotonic() < until:
        at, shorter = 0, False
        while at < len(commands) and time.monotonic() < until:
            without = commands[:at] + commands[at + size :]
            needed = differing(both, version, without)
            if needed is None:
                at += size
            else:
                commands, shorter = without[:needed], True
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return commands


EXPIRES = re.compile(rb"P?EXPIRE(AT)?|P?SETEX|EX|PX|EXAT|PXAT")


def may_have_expired(words, history):
    """Whether a key of a command, or where it names none, any key was to expire."""
    keys = set(words[1:]) & {*KEYS, *STREAMS}
    limited = (w for w in history if any(EXPIRES.fullmatch(word) for word in w))
    return any(not keys or keys & set(w[1:]) for w in limited)


def fuzz(paths, seed, commands, most):
    rng = random.Random(seed)
    ours, theirs = both = [Server(path) for path in paths]
    found, history, count, compared, expired, version = {}, [], 0, 0, 0, "2"
    same_start(both)

    def note(name, words, here, there):
        """Notes a difference. Returns whether it was a matter of time."""
        if name in found:
            return False
        shortest = shortened(both, version, history)
        if shortest is None and may_have_expired(words, history):
            return True
        found[name] = (words, here, there, shortest)
        return False

    while count < commands and len(found) < most:
        if rng.random() < 0.001:
            same_start(both)
            version = rng.choice(["2", "3"])
            for server in both:
                server.call("HELLO", version)
            history = []
        batch = [made(rng, rng.choice(GRAMMAR)) for _ in range(rng.randint(1, 60))]
        # What is drawn differs, and so may all that follows until the key is removed.
        drawn = next((i for i, words in enumerate(batch) if words[0] == b"SPOP"), len(batch))
        batch = [*batch[: drawn + 1], [b"EXEC"], [b"PING"]]
        for server in both:
            server.send(batch)
        queued, drawn, differs = [], [], None
        for words in batch:
            name = words[0].decode()
            here, there = ours.read(), theirs.read()
            history.append(words)
            count += 1
            if not differs and not same(words, here, there, queued):
                differs = (name, words, here, there)
            if there == ("+", b"QUEUED"):
                queued.append(words)
            elif name in ("EXEC", "DISCARD"):
                queued = []
            if name == "SPOP":
                drawn.append(words[1])
        # An element that was drawn is another one there.
        if drawn:
            for server in both:
                server.call("DEL", *drawn)
            history.append([b"DEL", *drawn])
        if not differs and count - compared > 2000:
            compared = count
            difference = compare_all(ours, theirs)
            if difference:
                differs = ("all keys", [b"all keys"], difference, "")
        if differs:
            expired += note(*differs)
            same_start(both)
            history = []
    return count, found, expired


def shown(words):
    return " ".join(repr(word)[1:] for word in words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("socket", help="of a store that may be emptied")
    parser.add_argument("--commands", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--most", type=int, default=20, help="kinds of differences to look for")
    args = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("SKIPPED: redis-server is not installed, so nothing is compared")
        return 0
    print(f"seed {args.seed}", flush=True)
    with redis_server() as path:
        count, found, expired = fuzz((args.socket, path), args.seed, args.commands, args.most)
    for words, here, there, led in found.values():
        print(f"\n{shown(words)}\n    here:  {str(here)[:300]}\n    Redis: {str(there)[:300]}")
        if led is None:
            print("    which does not come again with the same commands")
        print("".join(f"    after {shown(w)}\n" for w in led or []), end="")
    print(f"{count} commands, {len(found)} kinds of differences, "
          f"{expired} keys that expired in between")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
