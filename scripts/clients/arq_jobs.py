"""arq: a worker of asyncio in this process."""

import asyncio
import time

from arq import Retry, create_pool, func
from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.jobs import Job, JobStatus
from arq.worker import Worker
from checks import HOST, PASSWORD, PORT, check

SETTINGS = RedisSettings(host=HOST, port=PORT, password=PASSWORD)


async def add(ctx, a, b):
    return a + b


async def third_time(ctx):
    if ctx["job_try"] < 3:
        raise Retry(defer=0.1)
    return ctx["job_try"]


async def fail(ctx):
    raise ValueError("no")


async def wait(ctx):
    await asyncio.sleep(60)


async def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (value := await condition()) and time.monotonic() < end:
        await asyncio.sleep(0.05)
    return value


async def error_of(job):
    try:
        await job.result(timeout=30)
    except BaseException as error:
        return type(error).__name__


async def main():
    pool = await create_pool(SETTINGS)
    worker = Worker(
        functions=[add, func(third_time, max_tries=5), fail, wait],
        redis_pool=pool,
        poll_delay=0.1,
        allow_abort_jobs=True,
        handle_signals=False,
        health_check_interval=1,
    )
    running = asyncio.create_task(worker.async_run())
    jobs = [await pool.enqueue_job("add", n, n) for n in range(100)]
    check(
        "100 jobs return their results",
        [await job.result(timeout=60) for job in jobs],
        [2 * n for n in range(100)],
    )
    check("a finished job says so", await jobs[0].status(), JobStatus.complete)
    info = await jobs[3].result_info()
    check(
        "what it was called with is kept",
        (info.function, info.args, info.success),
        ("add", (3, 3), True),
    )
    again = await pool.enqueue_job("third_time")
    check("a job is tried again", await again.result(timeout=30), 3)
    check(
        "an error is raised where the result is read",
        await error_of(await pool.enqueue_job("fail")),
        "ValueError",
    )
    begun = time.time()
    later = await pool.enqueue_job("add", 1, 2, _defer_by=1)
    check("a deferred job is deferred", await later.status(), JobStatus.deferred)
    check(
        "and is run when it is due",
        (await later.result(timeout=30), time.time() - begun >= 1),
        (3, True),
    )
    first = await pool.enqueue_job("add", 5, 5, _job_id="one", _defer_by=0.5)
    check(
        "a job of the same name is not queued twice",
        await pool.enqueue_job("add", 6, 6, _job_id="one"),
        None,
    )
    check("and the first one is run", await first.result(timeout=30), 10)
    long = await pool.enqueue_job("wait")

    async def runs():
        return await long.status() == JobStatus.in_progress

    await until(runs)
    check("a running job is aborted", await long.abort(timeout=30))
    check("a job that is not there says so", await Job("none", pool).status(), JobStatus.not_found)
    check("all results are listed", len(await pool.all_job_results()) >= 103)

    async def counted():
        return await pool.get(default_queue_name + ":health-check")

    check("the worker writes how it is", b"j_complete=" in await until(counted))
    check("nothing is queued", await pool.zcard(default_queue_name), 0)
    await worker.close()
    running.cancel()


asyncio.run(main())
