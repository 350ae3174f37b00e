"""The rows of docs/clients.md: programs and libraries, their versions, and what is run of them."""

import dataclasses
import re

from environments import Absent, Debian, Go, Java, Node, Python, PythonSuite

PYTHON, NODE, GO, JAVA = Python(), Node(), Go(), Java()
RUBY = Debian("Ruby", "ruby", "ruby")
PHP = Debian("PHP", "php", "php-cli")
# How Debian's packages of clients are called elsewhere.
CLIENTS = {"ruby-redis": "redis-rb", "php-redis": "phpredis", "php-predis": "predis"}


# The suite of redis-py: what concerns one server without modules, and no TLS.
TESTS = [
    f"test_{name}.py"
    for name in (
        "client commands connect connection_pool encoding hash keyspace_notifications lock "
        "monitor pipeline pubsub retry scripting"
    ).split()
]
SYNC_TESTS = " ".join(
    f"tests/{name}" for name in (*TESTS, "test_cache.py", "test_multiprocessing.py")
)
ASYNC_TESTS = " ".join(f"tests/test_asyncio/{name}" for name in TESTS)
ONE_SERVER = "not (redismod or onlycluster or ssl or replica or cp_integration)"
FOR_TESTS = [
    "pytest==8.4.2",
    "pytest-asyncio==1.2.0",
    "pytest-timeout==2.4.0",
    "coverage==7.10.7",
    "packaging==25.0",
    "cryptography==46.0.3",
    "numpy==2.3.4",
    "xxhash==3.6.0",
    "PyJWT==2.10.1",
]


@dataclasses.dataclass
class Row:
    name: str
    kind: object
    packages: list
    program: str
    run: str
    seconds: int = 120
    # The tests of a suite that are chosen, in pytest's words.
    marks: str = ""
    clients = CLIENTS

    @property
    def language(self):
        return {"JDK with Maven": "Java", ".NET SDK": "C#"}.get(
            self.kind.toolchain, self.kind.toolchain
        )

    @property
    def version(self):
        """The pinned version of the first package; Debian's packages have their own."""
        found = re.search(r"(?:==|:|.@v?)([^:@=]+)$", self.packages[0]) if self.packages else None
        return found.group(1) if found else ""


ROWS = [
    Row(
        "redis-py",
        PythonSuite(),
        ["redis==8.1.0", *FOR_TESTS],
        SYNC_TESTS,
        "its own suite, synchronous: what concerns one server without modules and TLS",
        seconds=600,
        marks=ONE_SERVER,
    ),
    Row(
        "redis-py asyncio",
        PythonSuite(),
        ["redis==8.1.0", *FOR_TESTS],
        ASYNC_TESTS,
        "its own suite of asyncio, likewise",
        seconds=600,
        marks=ONE_SERVER,
    ),
    Row(
        "celery",
        PYTHON,
        ["celery[redis]==5.7.0"],
        "celery_jobs.py",
        "a worker of four threads: 200 tasks, groups, a chord, retries, a countdown, "
        "a revoked task, results that are forgotten",
    ),
    Row(
        "rq",
        PYTHON,
        ["rq==2.12.0"],
        "rq_jobs.py",
        "two workers: 60 jobs, results in streams, dependencies, retries, scheduled jobs, "
        "a cancelled one, registries",
    ),
    Row(
        "huey",
        PYTHON,
        ["huey==3.5.4", "redis==8.1.0"],
        "huey_jobs.py",
        "a consumer of four threads: 100 tasks, pipelines, retries, delays, locks, "
        "priorities, revoked tasks",
    ),
    Row(
        "dramatiq",
        PYTHON,
        ["dramatiq[redis]==2.2.1"],
        "dramatiq_jobs.py",
        "a worker of four threads: 200 messages, results, pipelines and groups, retries, delays, "
        "dead letters, rate limiters",
    ),
    Row(
        "arq",
        PYTHON,
        ["arq==0.28.0"],
        "arq_jobs.py",
        "a worker: 100 jobs, results, retries, deferred jobs, unique jobs, an aborted one",
    ),
    Row(
        "django-redis",
        PYTHON,
        ["django-redis==7.0.0", "Django==5.2.9"],
        "django_cache.py",
        "three caches: values, counters, expiry, versions, patterns, locks, sessions, eight "
        "threads; Django's own backend",
    ),
    Row(
        "flask-limiter",
        PYTHON,
        ["flask-limiter==4.1.1", "limits==5.8.0", "redis==7.1.0"],
        "flask_limits.py",
        "an application with limits, by the three strategies of `limits`; six threads at one limit",
    ),
    Row(
        "channels-redis",
        PYTHON,
        ["channels-redis==4.3.0", "cryptography==46.0.3"],
        "channels_layer.py",
        "both layers of channels: order, groups, capacity, expiry, encryption",
    ),
    Row(
        "BullMQ",
        NODE,
        ["bullmq@6.7.0", "ioredis@5.8.2"],
        "bullmq_jobs.mjs",
        "300 jobs, retries, delays, flows, schedulers, priorities, rate limits, stalled jobs, "
        "events",
    ),
    Row(
        "Bull",
        NODE,
        ["bull@4.16.5"],
        "bull_jobs.mjs",
        "200 jobs, retries, delays, repeated jobs, priorities, progress",
    ),
    Row(
        "Bee-Queue",
        NODE,
        ["bee-queue@2.0.0"],
        "bee_jobs.mjs",
        "250 jobs, retries, delays, progress",
    ),
    Row(
        "node-redis",
        NODE,
        ["redis@6.3.1"],
        "node_redis.mjs",
        "all types, pipelines, transactions, scripts, channels, groups of streams, a pool, in both "
        "protocols; a cache at the client",
    ),
    Row(
        "ioredis",
        NODE,
        ["ioredis@6.0.0"],
        "ioredis_use.mjs",
        "all types, pipelines, transactions, scripts, channels, groups of streams, MONITOR, "
        "a connection that is killed",
    ),
    Row(
        "connect-redis",
        NODE,
        ["connect-redis@9.0.0", "redis@6.3.1", "express@5.2.1", "express-session@1.19.0"],
        "connect_sessions.mjs",
        "sessions of an Express application, over HTTP",
    ),
    Row(
        "go-redis",
        GO,
        ["github.com/redis/go-redis/v9@v9.17.3"],
        "go_redis.go",
        "all types, pipelines, watched keys, scripts, channels, groups of streams, a pool, in both "
        "protocols",
    ),
    Row(
        "asynq",
        GO,
        ["github.com/hibiken/asynq@v0.26.0"],
        "asynq_jobs.go",
        "ten workers: 200 tasks, retries, delays, unique tasks, groups, cancellation, two queues",
    ),
    Row(
        "redsync",
        GO,
        ["github.com/go-redsync/redsync/v4@v4.15.0", "github.com/redis/go-redis/v9@v9.17.3"],
        "redsync_locks.go",
        "locks: held by one, extended, expired; eight at one lock",
    ),
    Row(
        "rueidis",
        GO,
        ["github.com/redis/rueidis@v1.0.71", "github.com/redis/rueidis/rueidislock@v1.0.71"],
        "rueidis_cache.go",
        "a cache at the client (CLIENT TRACKING, by keys and by prefixes), locks, channels, "
        "pipelines, streams",
    ),
    Row(
        "Sidekiq",
        RUBY,
        ["ruby-sidekiq", "ruby-redis"],
        "sidekiq_jobs.rb",
        "ten threads: 300 jobs, two queues, retries, dead jobs, scheduled jobs, large ones",
    ),
    Row(
        "Rails cache",
        RUBY,
        ["ruby-activesupport", "ruby-redis"],
        "rails_cache.rb",
        "`RedisCacheStore`: values, many at once, counters, expiry, patterns, large values, eight "
        "threads",
    ),
    Row(
        "Laravel",
        PHP,
        [
            "php-illuminate-redis",
            "php-illuminate-cache",
            "php-illuminate-queue",
            "php-redis",
            "php-predis",
        ],
        "laravel_redis.php",
        "by each of both clients: commands, limiters, cache with tags and locks, a queue",
    ),
    Row(
        "Jedis",
        JAVA,
        ["redis.clients:jedis:7.1.0", "org.slf4j:slf4j-nop:1.7.36"],
        "JedisUse.java",
        "all types, pipelines, transactions, scripts, channels, groups of streams, a pool",
    ),
    Row(
        "Lettuce",
        JAVA,
        ["io.lettuce:lettuce-core:7.2.3.RELEASE", "org.slf4j:slf4j-nop:1.7.36"],
        "LettuceUse.java",
        "asynchronous commands, transactions, scripts, channels, groups of streams, in both "
        "protocols; a cache at the client",
    ),
    Row(
        "StackExchange.Redis",
        Absent(".NET SDK", "dotnet"),
        [],
        "",
        "nothing",
    ),
]

# The remarks on tests of a suite, by name and output; the first that fits counts.
REASONS = [
    (r"Try ACL HELP|no users here", "KVFS has no access lists and one user, `default`"),
    (r"'debug' is not possible", "`DEBUG` is not taken between `MULTI` and `EXEC`"),
    (r"Try DEBUG HELP", "a subcommand of `DEBUG` that is not there"),
    (
        r"test_client_kill(\[.*)?\n.*Connection closed",
        "all clients of a Unix socket have one address, and the test kills all of that address",
    ),
    (r"CONFIG SET - '([\w-]+)'", "a setting that is not there: `{0}`"),
    (r"argument 'requirepass'", "a server on the network does not let clients remove its password"),
    (r"argument '([\w-]+)'\) - can't set", "the setting `{0}` cannot be changed"),
    (r"hash-max-listpack-entries", "a setting that is not there: `hash-max-listpack-entries`"),
    (r"(?i)unknown command '(\w+)", "a command that is not there: `{0}`"),
    (r"(?i)for '([\w-]+)'\. Try (\w+)", "a subcommand that is not there: `{1} {0}`"),
    (r"COPY works within one dictionary", "keys are not copied to another database"),
    (r"test_command_list\b", "KVFS has fewer than 300 commands"),
    (r"field or member of \d+ bytes is longer", "fields and members have at most 7 MiB"),
    (r"key of \d+ bytes is longer", "keys have at most 16 KiB"),
]


def reason(test, why):
    for pattern, words in REASONS:
        if found := re.search(pattern, f"{test}\n{why}"):
            return words.format(*found.groups())
    return "`" + " ".join(why.split())[:110].replace("`", "'").replace("|", "\\|") + "`"
