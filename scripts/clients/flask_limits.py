"""Flask-Limiter: an application whose routes are limited, by each strategy of `limits`."""

import threading

from checks import URL, check, until
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from limits.strategies import SlidingWindowCounterRateLimiter


def codes(strategy):
    app = Flask(strategy)
    limiter = Limiter(
        get_remote_address,
        app=app,
        storage_uri=URL,
        strategy=strategy,
        headers_enabled=True,
        key_prefix=strategy,
    )

    @app.route("/five")
    @limiter.limit("5 per minute")
    def five():
        return "x"

    @app.route("/shared")
    @limiter.shared_limit("3 per hour", scope="all")
    def shared():
        return "x"

    @app.route("/free")
    @limiter.exempt
    def free():
        return "x"

    client = app.test_client()
    answers = [client.get("/five") for _ in range(8)]
    check(
        f"{strategy}, a route is limited", [a.status_code for a in answers], [200] * 5 + [429] * 3
    )
    check(
        f"{strategy}, the rest is told",
        [a.headers["X-RateLimit-Remaining"] for a in answers[:6]],
        ["4", "3", "2", "1", "0", "0"],
    )
    check(
        f"{strategy}, a limit that is shared",
        [client.get("/shared").status_code for _ in range(4)],
        [200, 200, 200, 429],
    )
    check(
        f"{strategy}, a route without one",
        [client.get("/free").status_code for _ in range(10)],
        [200] * 10,
    )
    other = {"REMOTE_ADDR": "127.0.0.9"}
    check(
        f"{strategy}, another address has its own",
        client.get("/five", environ_base=other).status_code,
        200,
    )
    limiter.reset()
    check(f"{strategy}, limits are reset", client.get("/five").status_code, 200)


for strategy in ("fixed-window", "moving-window", "sliding-window-counter"):
    codes(strategy)

storage = storage_from_string(URL)
check("the storage is there", storage.check())
for kind in (FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter):
    limiter, item, name = kind(storage), RateLimitItemPerMinute(50), kind.__name__
    hits, lock = [], threading.Lock()

    def hit():
        for _ in range(20):
            found = limiter.hit(item, name)
            with lock:
                hits.append(found)

    threads = [threading.Thread(target=hit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(f"{name}, six threads get what there is", sum(hits), 50)
    brief = RateLimitItemPerSecond(1)
    limiter.hit(brief, f"{name}, brief")
    check(f"{name}, a window ends", until(lambda: limiter.hit(brief, f"{name}, brief"), 5))
    limiter.clear(item, name)
    check(f"{name}, a window is cleared", limiter.hit(item, name))
