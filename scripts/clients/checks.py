"""How the Python programs of this folder say what holds: a line for each check."""

import os
import time

URL = os.environ["SERVER_URL"]
HOST = os.environ["SERVER_HOST"]
PORT = int(os.environ["SERVER_PORT"])
PASSWORD = os.environ["SERVER_PASSWORD"]


def check(name, found, wanted=True):
    if found == wanted:
        print(f"ok {name}", flush=True)
    else:
        print(f"not ok {name}: {found!r} and not {wanted!r}", flush=True)


def until(condition, seconds=30):
    """The value of `condition` as soon as it is true, or the last one after that time."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def raised(kind, call, *arguments, **named):
    """Whether a call raises an error of that kind."""
    try:
        call(*arguments, **named)
    except kind:
        return True
    return False
