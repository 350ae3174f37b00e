"""Huey with each of its storages for Redis, and a consumer in threads of this process."""

import threading
import time

from checks import URL, check, raised, until
from huey import PriorityRedisHuey, RedisExpireHuey, RedisHuey, crontab
from huey.consumer import Consumer
from huey.exceptions import ResultTimeout, TaskException, TaskLockedException
from redis import Redis

lists = RedisHuey("lists", url=URL)
ranked = PriorityRedisHuey("ranked", url=URL)
attempts, order, ticks = {}, [], []


@lists.task()
def add(a, b):
    return a + b


@lists.task(retries=3)
def third_time(name):
    attempts[name] = attempts.get(name, 0) + 1
    if attempts[name] < 3:
        raise ValueError("not yet")
    return attempts[name]


@lists.task()
def fail():
    raise ValueError("no")


@lists.periodic_task(crontab())
def each_minute():
    ticks.append(1)


@ranked.task()
def note(word):
    order.append(word)


for word, priority in [("low", 1), ("high", 9), ("middle", 5)]:
    note(word, priority=priority)
while (task := ranked.dequeue()) is not None:
    ranked.execute(task)
check("tasks are taken by their priorities", order, ["high", "middle", "low"])

consumer = Consumer(
    lists,
    workers=4,
    worker_type="thread",
    initial_delay=0.05,
    backoff=1,
    max_delay=0.1,
    scheduler_interval=1,
    periodic=False,
    check_worker_health=False,
)
consumer.start()
answers = [add(n, n) for n in range(100)]
check(
    "100 tasks return their results",
    [a.get(blocking=True, timeout=60) for a in answers],
    [2 * n for n in range(100)],
)
check("a result is taken once", Redis.from_url(URL).hlen("huey.results.lists"), 0)
again = third_time("x")


def outcome():
    """Huey keeps the error of each attempt as a result until the next one has ended."""
    try:
        return again.get(blocking=True, timeout=30)
    except TaskException:
        again.reset()


check("a task is tried again", until(outcome), 3)
check(
    "an error is raised where the result is read",
    raised(TaskException, fail().get, blocking=True, timeout=30),
)
begun = time.time()
later = add.schedule((1, 2), delay=1)
check("a task for later is not run at once", later.get(), None)
check(
    "and is run when it is due",
    (later.get(blocking=True, timeout=30), time.time() - begun >= 1),
    (3, True),
)
never = add.schedule((5, 5), delay=2)
never.revoke()
check("a revoked task is not run", raised(ResultTimeout, never.get, blocking=True, timeout=4))
line = add.s(1, 1).then(add, 10).then(add, 100)
check(
    "a pipeline hands results on", lists.enqueue(line).get(blocking=True, timeout=30), [2, 12, 112]
)
check("a map returns all", add.map([(1, 1), (2, 2)]).get(blocking=True, timeout=30), [2, 4])


def locked():
    with lists.lock_task("one"):
        pass


with lists.lock_task("one"):
    check("a lock is held by one", raised(TaskLockedException, locked))
locked()
check("and given back", not lists.is_locked("one"))
lists.put("key", {"a": 1})
check(
    "a value is kept under a name",
    (lists.get("key", peek=True), lists.get("key"), lists.get("key")),
    ({"a": 1}, {"a": 1}, None),
)
check(
    "a value is put once", (lists.put_if_empty("k", 1), lists.put_if_empty("k", 2)), (True, False)
)
consumer.stop(graceful=True)
brief = RedisExpireHuey("brief", url=URL, expire_time=1)
twice = brief.task()(lambda: 7)
answer = twice()
brief.execute(brief.dequeue())
gone = lambda: not brief.storage.has_data_for_key(answer.id)
check(
    "a result that expires is there, and gone after its time",
    (answer.get(), gone(), until(gone)),
    (7, False, True),
)
check("the queue is empty", len(lists), 0)
check("no thread is left", until(lambda: threading.active_count() == 1))
