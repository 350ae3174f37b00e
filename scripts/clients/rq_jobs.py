"""RQ: workers, results in streams, dependencies, retries and the scheduler."""

import datetime
import multiprocessing
import time

from checks import URL, check, until
from redis import Redis
from rq import Queue, Retry, SimpleWorker
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry
from rq.results import Result

redis = Redis.from_url(URL)


def add(a, b):
    return a + b


def fail():
    raise ValueError("no")


def third_time(key):
    if redis.incr(key) < 3:
        raise ValueError("not yet")
    return "done"


def noted(key, word):
    redis.rpush(key, word)


def work(_):
    connection = Redis.from_url(URL)
    SimpleWorker(
        [Queue("high", connection=connection), Queue("low", connection=connection)],
        connection=connection,
    ).work(with_scheduler=True, logging_level="ERROR")


if __name__ == "__main__":
    # Functions of a program that is run are not found by workers under its name.
    import rq_jobs

    high, low = (Queue(name, connection=redis) for name in ("high", "low"))
    for n in range(3):
        low.enqueue(rq_jobs.noted, "order", "low")
        high.enqueue(rq_jobs.noted, "order", "high")
    SimpleWorker([high, low], connection=redis).work(burst=True, logging_level="ERROR")
    check(
        "a worker empties the first queue first",
        redis.lrange("order", 0, -1),
        [b"high"] * 3 + [b"low"] * 3,
    )
    workers = [multiprocessing.Process(target=work, args=(n,)) for n in range(2)]
    for process in workers:
        process.start()
    status = lambda job: job.get_status(refresh=True)

    def done(job):
        until(lambda: status(job) in (JobStatus.FINISHED, JobStatus.FAILED))
        return job

    jobs = [high.enqueue(rq_jobs.add, n, n) for n in range(60)]
    check(
        "60 jobs return their results",
        [done(job).return_value() for job in jobs],
        [2 * n for n in range(60)],
    )
    check("a result is in a stream", redis.type(Result.get_key(jobs[0].id)), b"stream")
    check(
        "the registry has what was finished",
        until(lambda: len(FinishedJobRegistry(queue=high)) >= 60),
    )
    failed = high.enqueue(rq_jobs.fail)
    check("a job that fails says so", status(done(failed)), JobStatus.FAILED)
    check("its error is kept", "ValueError: no" in failed.latest_result().exc_string)
    check(
        "it is in the registry of those that failed",
        failed.id in FailedJobRegistry(queue=high).get_job_ids(),
    )
    check("it is queued again", failed.requeue().id, failed.id)
    until(lambda: len(failed.results()) == 2)
    check("and each of its outcomes is kept", len(failed.results()), 2)
    again = low.enqueue(rq_jobs.third_time, "tries", retry=Retry(max=3))
    check("a job is tried again", until(lambda: again.return_value(refresh=True)), "done")
    slow = low.enqueue(time.sleep, 0.5)
    after = high.enqueue(rq_jobs.add, 1, 1, depends_on=slow)
    check("a job waits for another one", status(after), JobStatus.DEFERRED)
    check(
        "and is run after it", (done(after).return_value(), status(slow)), (2, JobStatus.FINISHED)
    )
    # RQ keeps such times in whole seconds.
    begun = time.time()
    later = high.enqueue_in(datetime.timedelta(seconds=2), rq_jobs.add, 3, 4)
    check("a job for later is scheduled", later.id in ScheduledJobRegistry(queue=high))
    check(
        "and is run when it is due",
        (done(later).return_value(), time.time() - begun >= 1),
        (7, True),
    )
    never = high.enqueue_in(datetime.timedelta(hours=1), rq_jobs.add, 3, 4)
    never.cancel()
    check("a cancelled job says so", status(never), JobStatus.CANCELED)
    never.delete()
    check("a deleted job is gone", Job.exists(never.id, connection=redis), False)
    several = [Queue.prepare_data(rq_jobs.add, (n, 1)) for n in range(10)]
    check(
        "jobs are queued in one pipeline",
        [done(job).return_value() for job in high.enqueue_many(several)],
        list(range(1, 11)),
    )
    check("the workers are known", until(lambda: len(SimpleWorker.all(connection=redis))), 2)
    for process in workers:
        process.terminate()
        process.join(10)
    check("workers that end say goodbye", until(lambda: not SimpleWorker.all(connection=redis)))
