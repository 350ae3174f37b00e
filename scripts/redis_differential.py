#!/usr/bin/env python3
"""Random commands to a KVFS server and to a real redis-server: every reply must be the same.

    scripts/redis_differential.py SOCKET [--commands N] [--seed N] [--redis PATH]

SOCKET is the socket of a KVFS server (a mounted store's) whose keys may be deleted. A redis-server
is started for the run, on a socket in a temporary directory. Where none is installed, the script
says so and ends with 0. What is documented to differ is not asked for, or compared as a set.
"""

import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def call(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(w), w) for w in words]
        self.socket.sendall(b"".join(parts))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return "error: " + rest.decode(errors="replace")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self.file.read(int(rest) + 2)
            return data[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise ConnectionError(f"a reply of unknown kind: {line!r}")


KEYS = [f"k{i}" for i in range(12)]
FIELDS = [f"f{i}" for i in range(6)] + ["", "10", "9", "-1"]
WORDS = ["", "a", "ab", "foobar", "10", "-3", "3.5", "hello world", "x" * 70]
NUMBERS = [0, 1, 2, -1, -2, 5, 10, 100, -100]
SCORES = ["0", "1", "2", "-1", "1.5", "3", "inf", "-inf", "10", "x"]
BOUNDS = ["-inf", "+inf", "(1", "(2", "0", "1", "2", "3", "10", "(x"]
LEX = ["-", "+", "[f1", "(f1", "[f3", "(f4", "f"]
UNORDERED = {
    "smembers",
    "sinter",
    "sunion",
    "sdiff",
    "hkeys",
    "hvals",
    "keys",
    "hgetall",
}


def pick(r, values, least=1, most=3):
    return [r.choice(values) for _ in range(r.randint(least, most))]


def command(r):
    k, f, w, n = (
        (lambda: r.choice(KEYS)),
        (lambda: r.choice(FIELDS)),
        (lambda: r.choice(WORDS)),
        (lambda: r.choice(NUMBERS)),
    )
    s, b, x = (lambda: r.choice(SCORES)), (lambda: r.choice(BOUNDS)), (lambda: r.choice(LEX))
    time_option = lambda: r.choice([[], ["EX", 1000], ["PX", 1000000], ["KEEPTTL"], ["EX", 0]])
    limit = lambda: r.choice([[], [], ["LIMIT", r.randint(-1, 2), r.randint(-1, 3)]])
    scores = lambda: r.choice([[], ["WITHSCORES"]])
    several = lambda: ["2", k(), k()]
    weights = lambda: r.choice([[], ["WEIGHTS", 2, 3], ["AGGREGATE", "MAX"], ["AGGREGATE", "MIN"]])
    makers = [
        lambda: ["set", k(), w(), *r.choice([[], ["NX"], ["XX"], ["GET"]]), *time_option()],
        lambda: ["get", k()],
        lambda: ["getdel", k()],
        lambda: ["getset", k(), w()],
        lambda: ["getex", k(), *r.choice([[], ["PERSIST"], ["EX", 100]])],
        lambda: ["append", k(), w()],
        lambda: ["strlen", k()],
        lambda: ["setrange", k(), r.randint(0, 20), w()],
        lambda: ["getrange", k(), n(), n()],
        lambda: ["incrby", k(), n()],
        lambda: ["incr", k()],
        lambda: ["mget", k(), k(), k()],
        lambda: ["mset", k(), w(), k(), w()],
        lambda: ["msetnx", k(), w(), k(), w()],
        lambda: ["setnx", k(), w()],
        lambda: ["setbit", k(), r.randint(0, 100), r.randint(0, 1)],
        lambda: ["getbit", k(), r.randint(0, 100)],
        lambda: ["bitcount", k(), *r.choice([[], [n(), n()], [n(), n(), "BIT"]])],
        lambda: [
            "bitpos",
            k(),
            r.randint(0, 1),
            *r.choice([[], [n()], [n(), n()], [n(), n(), "BIT"]]),
        ],
        lambda: ["bitop", r.choice(["and", "or", "xor"]), k(), k(), k()],
        lambda: ["bitop", "not", k(), k()],
        lambda: [
            "bitfield",
            k(),
            "overflow",
            r.choice(["wrap", "sat", "fail"]),
            "incrby",
            r.choice(["u4", "i8", "i5", "u63", "i64"]),
            r.choice(["0", "#1", "7"]),
            n(),
            "get",
            "u8",
            "3",
            "set",
            "i7",
            "#2",
            n(),
        ],
        lambda: ["lcs", k(), k(), *r.choice([[], ["LEN"]])],
        lambda: ["del", *pick(r, KEYS)],
        lambda: ["unlink", k()],
        lambda: ["exists", *pick(r, KEYS)],
        lambda: ["touch", *pick(r, KEYS)],
        lambda: ["type", k()],
        lambda: ["rename", k(), k()],
        lambda: ["renamenx", k(), k()],
        lambda: ["copy", k(), k(), *r.choice([[], ["REPLACE"]])],
        lambda: ["keys", r.choice(["*", "k1*", "k?", "[k]2"])],
        lambda: ["dbsize"],
        lambda: [
            "expire",
            k(),
            r.choice([100, 1000, -1, "x"]),
            *r.choice([[], ["NX"], ["XX"], ["GT"], ["LT"]]),
        ],
        lambda: ["persist", k()],
        lambda: ["ttl", k()],
        lambda: ["expiretime", k()],
        lambda: ["hset", k(), f(), w(), f(), w()],
        lambda: ["hset", k(), f(), w()],
        lambda: ["hsetnx", k(), f(), w()],
        lambda: ["hget", k(), f()],
        lambda: ["hmget", k(), f(), f()],
        lambda: ["hdel", k(), *pick(r, FIELDS)],
        lambda: ["hlen", k()],
        lambda: ["hexists", k(), f()],
        lambda: ["hstrlen", k(), f()],
        lambda: ["hgetall", k()],
        lambda: ["hkeys", k()],
        lambda: ["hvals", k()],
        lambda: ["hincrby", k(), f(), n()],
        lambda: ["hincrbyfloat", k(), f(), "0.5"],
        lambda: ["sadd", k(), *pick(r, FIELDS)],
        lambda: ["srem", k(), *pick(r, FIELDS)],
        lambda: ["scard", k()],
        lambda: ["sismember", k(), f()],
        lambda: ["smismember", k(), f(), f()],
        lambda: ["smembers", k()],
        lambda: ["smove", k(), k(), f()],
        lambda: [r.choice(["sinter", "sunion", "sdiff"]), *pick(r, KEYS)],
        lambda: [r.choice(["sinterstore", "sunionstore", "sdiffstore"]), k(), *pick(r, KEYS)],
        lambda: ["sintercard", *several(), *r.choice([[], ["LIMIT", 1]])],
        lambda: [
            "zadd",
            k(),
            *r.choice([[], ["NX"], ["XX"], ["GT"], ["LT", "CH"], ["CH"]]),
            s(),
            f(),
            s(),
            f(),
        ],
        lambda: ["zadd", k(), "INCR", s(), f()],
        lambda: ["zincrby", k(), s(), f()],
        lambda: ["zrem", k(), *pick(r, FIELDS)],
        lambda: ["zcard", k()],
        lambda: ["zscore", k(), f()],
        lambda: ["zmscore", k(), f(), f()],
        lambda: [r.choice(["zrank", "zrevrank"]), k(), f()],
        lambda: ["zcount", k(), b(), b()],
        # By name where all scores are the same; what else comes is not specified.
        lambda: ["zadd", "lex", 0, f(), 0, f()],
        lambda: ["zrem", "lex", f()],
        lambda: ["zlexcount", "lex", x(), x()],
        lambda: [r.choice(["zrangebylex", "zrevrangebylex"]), "lex", x(), x(), *limit()],
        lambda: ["zremrangebylex", "lex", x(), x()],
        lambda: [r.choice(["zrange", "zrevrange"]), k(), n(), n(), *scores()],
        lambda: ["zrange", k(), b(), b(), "BYSCORE", *limit(), *scores()],
        lambda: ["zrange", k(), b(), b(), "BYSCORE", "REV", *limit(), *scores()],
        lambda: ["zrangebyscore", k(), b(), b(), *scores(), *limit()],
        lambda: ["zrevrangebyscore", k(), b(), b(), *scores(), *limit()],
        lambda: ["zrangestore", k(), k(), n(), n()],
        lambda: ["zremrangebyrank", k(), n(), n()],
        lambda: ["zremrangebyscore", k(), b(), b()],
        lambda: [r.choice(["zpopmin", "zpopmax"]), k(), *r.choice([[], [0], [2]])],
        lambda: [r.choice(["zunion", "zinter"]), *several(), *weights(), *scores()],
        lambda: ["zdiff", *several(), *scores()],
        lambda: [r.choice(["zunionstore", "zinterstore"]), k(), *several(), *weights()],
        lambda: ["zdiffstore", k(), *several()],
        lambda: ["zintercard", *several()],
        lambda: [r.choice(["lpush", "rpush"]), k(), *pick(r, WORDS)],
        lambda: [r.choice(["lpushx", "rpushx"]), k(), w()],
        lambda: [r.choice(["lpop", "rpop"]), k(), *r.choice([[], [0], [2]])],
        lambda: ["llen", k()],
        lambda: ["lrange", k(), n(), n()],
        lambda: ["lindex", k(), n()],
        lambda: ["lset", k(), n(), w()],
        lambda: ["lrem", k(), n(), w()],
        lambda: ["ltrim", k(), n(), n()],
        lambda: ["linsert", k(), r.choice(["before", "after"]), w(), w()],
        lambda: ["lmove", k(), k(), r.choice(["left", "right"]), r.choice(["left", "right"])],
        lambda: ["rpoplpush", k(), k()],
        lambda: [
            "lpos",
            k(),
            w(),
            *r.choice([[], ["RANK", -1], ["COUNT", 0], ["COUNT", 1, "MAXLEN", 2]]),
        ],
    ]
    return r.choice(makers)()


def comparable(words, reply):
    name = words[0].lower()
    if name in UNORDERED and isinstance(reply, list):
        if name == "hgetall":
            return sorted(zip(reply[::2], reply[1::2]))
        return sorted(reply)
    return reply


def compare(kvfs, redis, count, seed):
    r = random.Random(seed)
    recent, errors, differences = [], 0, 0
    for i in range(count):
        if i % 5000 == 0:
            kvfs.call("flushall")
            redis.call("flushall")
        words = command(r)
        recent = (recent + [words])[-12:]
        ours = comparable(words, kvfs.call(*words))
        theirs = comparable(words, redis.call(*words))
        errors += isinstance(theirs, str)
        if ours != theirs:
            differences += 1
            print(f"command {i} of seed {seed}: {words}\n  kvfs:  {ours!r}\n  redis: {theirs!r}")
            if differences >= 20:
                break
            kvfs.call("flushall")
            redis.call("flushall")
    print(f"seed {seed}: {i + 1} commands, {errors} of them errors, {differences} differences")
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("socket")
    parser.add_argument("--commands", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redis", default=shutil.which("redis-server"))
    arguments = parser.parse_args()
    if not arguments.redis:
        print("skipped: there is no redis-server to compare with")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "redis.sock")
        server = subprocess.Popen(
            [
                arguments.redis,
                "--port",
                "0",
                "--unixsocket",
                path,
                "--save",
                "",
                "--dir",
                directory,
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + 30
            while True:
                try:
                    redis = Connection(path)
                    break
                except OSError:
                    if time.monotonic() > until or server.poll() is not None:
                        print("redis-server does not start")
                        return 1
                    time.sleep(0.02)
            kvfs = Connection(arguments.socket)
            return 1 if compare(kvfs, redis, arguments.commands, arguments.seed) else 0
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
