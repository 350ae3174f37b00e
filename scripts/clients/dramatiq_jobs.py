"""Dramatiq: a worker in this process, results, rate limiters and dead letters."""

import threading
import time

import dramatiq
from checks import URL, check, raised, until
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import (
    BucketRateLimiter,
    ConcurrentRateLimiter,
    RateLimitExceeded,
    WindowRateLimiter,
)
from dramatiq.rate_limits.backends import RedisBackend as LimitsBackend
from dramatiq.results import ResultFailure, Results, ResultTimeout
from dramatiq.results.backends import RedisBackend
from redis import Redis

broker = RedisBroker(url=f"{URL}/0")
broker.add_middleware(Results(backend=RedisBackend(url=f"{URL}/1")))
dramatiq.set_broker(broker)
attempts, lock, dead = {}, threading.Lock(), []


@dramatiq.actor(store_results=True)
def add(a, b):
    return a + b


@dramatiq.actor(store_results=True, min_backoff=50, max_backoff=100, max_retries=5)
def third_time(name):
    with lock:
        attempts[name] = attempts.get(name, 0) + 1
    if attempts[name] < 3:
        raise ValueError("not yet")
    return attempts[name]


@dramatiq.actor(store_results=True, max_retries=0)
def fail():
    raise ValueError("no")


@dramatiq.actor(store_results=True)
def when():
    return time.time()


worker = dramatiq.Worker(broker, worker_threads=4, worker_timeout=100)
worker.start()
messages = [add.send(n, n) for n in range(200)]
check(
    "200 messages return their results",
    [m.get_result(block=True, timeout=60_000) for m in messages],
    [2 * n for n in range(200)],
)
check("a message is tried again", third_time.send("x").get_result(block=True, timeout=30_000), 3)
failed = fail.send()
check(
    "an error is raised where the result is read",
    raised(ResultFailure, failed.get_result, block=True, timeout=30_000),
)
server = Redis.from_url(f"{URL}/0")
check(
    "a message that failed is a dead letter",
    until(
        lambda: server.zscore("dramatiq:default.XQ", failed.options["redis_message_id"]) is not None
    ),
)
begun = time.time()
later = when.send_with_options(delay=1000)
check(
    "a result that is not there is not waited for longer than asked",
    raised(ResultTimeout, later.get_result, block=True, timeout=200),
)
check(
    "a message with a delay waits for it", later.get_result(block=True, timeout=30_000) - begun >= 1
)
line = (add.message(1, 2) | add.message(10) | add.message(100)).run()
check("a pipeline hands results on", line.get_result(block=True, timeout=30_000), 113)
many = dramatiq.group(add.message(n, 1) for n in range(20)).run()
check(
    "a group returns its results",
    list(many.get_results(block=True, timeout=30_000)),
    list(range(1, 21)),
)
broker.join("default", timeout=30_000)
check("the queue is empty", server.hlen("dramatiq:default.msgs"), 0)
worker.stop()

backend = LimitsBackend(url=f"{URL}/2")


def taken(limiter, times):
    """How many of so many attempts are admitted."""
    admitted = 0
    for _ in range(times):
        try:
            with limiter.acquire():
                admitted += 1
        except RateLimitExceeded:
            pass
    return admitted


check(
    "a limiter by buckets admits its number",
    taken(BucketRateLimiter(backend, "bucket", limit=5, bucket=60_000), 8),
    5,
)
check(
    "a limiter by a window admits its number",
    taken(WindowRateLimiter(backend, "window", limit=4, window=60), 8),
    4,
)
one = ConcurrentRateLimiter(backend, "one", limit=1)
with one.acquire():
    check("a mutex is held by one", taken(one, 3), 0)
check("and given back", taken(one, 1), 1)
