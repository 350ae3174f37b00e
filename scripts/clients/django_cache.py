"""django-redis as the cache of Django, with its locks, patterns and sessions."""

import threading
import time

import django
from checks import URL, check, raised, until
from django.conf import settings

CLIENT = {"CLIENT_CLASS": "django_redis.client.DefaultClient"}
settings.configure(
    SECRET_KEY="x" * 50,
    CACHES={
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{URL}/1",
            "KEY_PREFIX": "site",
            "OPTIONS": CLIENT,
        },
        "small": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{URL}/2",
            "OPTIONS": CLIENT
            | {
                "SERIALIZER": "django_redis.serializers.json.JSONSerializer",
                "COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor",
            },
        },
        "own": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"{URL}/3"},
    },
    INSTALLED_APPS=["django.contrib.sessions"],
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
)
django.setup()

from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402
from django.core.cache import caches  # noqa: E402

for name in ("default", "small", "own"):
    cache = caches[name]
    value = {"words": ["a", "b"] * 500, "number": 1}
    cache.set("key", value)
    check(f"{name}, a value is read back", cache.get("key"), value)
    check(f"{name}, a key that is not there is the default", cache.get("none", 7), 7)
    check(
        f"{name}, add keeps what is there",
        (cache.add("key", 1), cache.add("new", 1)),
        (False, True),
    )
    cache.set_many({f"many{n}": n for n in range(300)}, timeout=60)
    check(
        f"{name}, many are read at once",
        cache.get_many([f"many{n}" for n in range(0, 300, 7)]),
        {f"many{n}": n for n in range(0, 300, 7)},
    )
    cache.set("count", 1)
    check(f"{name}, numbers are counted", (cache.incr("count", 4), cache.decr("count")), (5, 4))
    check(f"{name}, a number that is not there is an error", raised(ValueError, cache.incr, "no"))
    cache.set("brief", 1, timeout=1)
    check(
        f"{name}, a value expires",
        (cache.get("brief"), until(lambda: cache.get("brief") is None)),
        (1, True),
    )
    check(
        f"{name}, a time is set again", (cache.touch("new", 60), cache.touch("none")), (True, False)
    )
    cache.delete_many(["many1", "many2"])
    check(
        f"{name}, keys are deleted",
        (cache.get("many1"), cache.delete("many3"), "many3" in cache),
        (None, True, False),
    )
    check(
        f"{name}, a function fills what is missing",
        (cache.get_or_set("filled", lambda: 9), cache.get("filled")),
        (9, 9),
    )
    cache.set("versioned", 1, version=1)
    cache.incr_version("versioned")
    check(
        f"{name}, a version is raised",
        (cache.get("versioned"), cache.get("versioned", version=2)),
        (None, 1),
    )
cache = caches["default"]
check(
    "keys are found by a pattern",
    sorted(cache.keys("many1*"))[:3],
    ["many10", "many100", "many101"],
)
check("and iterated over", len(list(cache.iter_keys("many*", itersize=10))), 297)
check("and deleted", cache.delete_pattern("many2*"), 110)
check("the time to live is told", (cache.ttl("key") > 250, cache.ttl("none")), (True, 0))
check(
    "a key is kept for ever, and expires again",
    (cache.persist("key"), cache.ttl("key"), cache.expire("key", 5), 0 < cache.ttl("key") <= 5),
    (True, None, True, True),
)
with cache.lock("lock", timeout=10):
    check("a lock is held by one", cache.lock("lock", blocking=False).acquire(), False)
check("and given back", cache.lock("lock", timeout=5, blocking=False).acquire())
check(
    "a set",
    (cache.sadd("set", 1, 2, 3), sorted(cache.smembers("set")), cache.scard("set")),
    (3, [1, 2, 3], 3),
)
session = SessionStore()
session["user"] = 42
session.set_expiry(60)
session.save()
check("a session is read back", SessionStore(session.session_key)["user"], 42)
session.delete()
check("and deleted", SessionStore(session.session_key).exists(session.session_key), False)
cache.set("total", 0)
threads = [
    threading.Thread(target=lambda: [cache.incr("total") for _ in range(100)]) for _ in range(8)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
check("no increment of eight threads is lost", cache.get("total"), 800)
begun = time.time()
cache.clear()
check("a cache is cleared", (cache.get("key"), len(cache.keys("*"))), (None, 0))
check("and the others are not", caches["small"].get("key") is not None)
