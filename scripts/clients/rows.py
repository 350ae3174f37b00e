"""The rows of docs/clients.md: programs and libraries, their versions, and what is run of them."""

import dataclasses
import re

from environments import Debian, Go, Java, Node, Python

PYTHON, NODE, GO, JAVA = Python(), Node(), Go(), Java()
RUBY = Debian("Ruby", "ruby", "ruby")
PHP = Debian("PHP", "php", "php-cli")
# How Debian's packages of clients are called elsewhere.
CLIENTS = {"ruby-redis": "redis-rb", "php-redis": "phpredis", "php-predis": "predis"}


@dataclasses.dataclass
class Row:
    name: str
    kind: object
    packages: list
    program: str
    run: str
    seconds: int = 180
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
]

# What is said of a test of a suite, by its name and its output; the first that fits counts.
REASONS = []


def reason(test, why):
    for pattern, words in REASONS:
        if re.search(pattern, f"{test}\n{why}"):
            return words
    return "`" + " ".join(why.split())[:110].replace("`", "'").replace("|", "\\|") + "`"
