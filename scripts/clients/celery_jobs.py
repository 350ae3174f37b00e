"""Celery with its broker and its results on the server: a worker in a thread of this process."""

import threading
import time

from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from checks import URL, check, raised, until
from redis import Redis

app = Celery("jobs", broker=f"{URL}/0", backend=f"{URL}/1")
app.conf.update(
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    result_expires=600,
    broker_transport_options={"visibility_timeout": 60},
)
attempts, ran_at, lock = {}, {}, threading.Lock()


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def fail(words):
    raise ValueError(words)


@app.task(bind=True, max_retries=3)
def third_time(self, name):
    with lock:
        attempts[name] = attempts.get(name, 0) + 1
    if attempts[name] < 3:
        raise self.retry(countdown=0.1)
    return attempts[name]


@app.task
def when():
    return time.time()


@app.task(ignore_result=True)
def unanswered(name):
    ran_at[name] = time.time()


with start_worker(app, concurrency=4, pool="threads", perform_ping_check=False, loglevel="ERROR"):
    answers = [add.delay(n, n) for n in range(200)]
    check(
        "200 tasks return their results",
        [a.get(timeout=60) for a in answers],
        [2 * n for n in range(200)],
    )
    check("a result is kept with its state", AsyncResult(answers[0].id, app=app).state, "SUCCESS")
    answers[0].forget()
    check(
        "a result that is forgotten is pending",
        AsyncResult(answers[0].id, app=app).state,
        "PENDING",
    )
    many = group(add.s(n, 1) for n in range(20)).apply_async()
    check("a group returns its results in order", many.get(timeout=60), list(range(1, 21)))
    line = chain(add.s(1, 2), add.s(10), add.s(100)).apply_async()
    check("a chain hands results on", line.get(timeout=60), 113)
    end = chord((add.s(n, n) for n in range(10)), total.s()).apply_async()
    check("a chord waits for all of its group", end.get(timeout=60), 90)
    check(
        "an error of a task is raised where its result is read",
        raised(ValueError, fail.delay("no").get, timeout=60),
    )
    check("a task is tried again", third_time.delay("retry").get(timeout=60), 3)
    begun = time.time()
    later = when.apply_async(countdown=1).get(timeout=60)
    check("a task with a countdown waits for it", later - begun >= 1)
    revoked = when.apply_async(countdown=3)
    app.control.revoke(revoked.id)
    check("a revoked task is not run", raised(TaskRevokedError, revoked.get, timeout=60))
    unanswered.delay("x")
    check("a task without a result is run", bool(until(lambda: "x" in ran_at)))
    check(
        "the worker answers over the channels of the broker",
        until(lambda: [list(a.values())[0]["ok"] for a in app.control.ping(timeout=1)]),
        ["pong"],
    )
    check("nothing is left in the queue", Redis.from_url(f"{URL}/0").llen("celery"), 0)
