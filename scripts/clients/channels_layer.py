"""channels_redis: both layers of Django Channels."""

import asyncio

from channels.exceptions import ChannelFull
from channels_redis.core import RedisChannelLayer
from channels_redis.pubsub import RedisPubSubChannelLayer
from checks import URL, check
from redis.exceptions import ResponseError


async def nothing(layer, name):
    try:
        return await asyncio.wait_for(layer.receive(name), 0.3)
    except asyncio.TimeoutError:
        return None


async def both(layer, kind):
    mine = await layer.new_channel()
    theirs = await layer.new_channel()
    for n in range(50):
        await layer.send(mine, {"type": "n", "n": n})
    check(
        f"{kind}, messages come in order",
        [(await asyncio.wait_for(layer.receive(mine), 20))["n"] for _ in range(50)],
        list(range(50)),
    )
    await layer.group_add("room", mine)
    await layer.group_add("room", theirs)
    await layer.group_send("room", {"type": "hello"})
    check(
        f"{kind}, a group gets a message",
        [(await asyncio.wait_for(layer.receive(name), 20))["type"] for name in (mine, theirs)],
        ["hello"] * 2,
    )
    await layer.group_discard("room", theirs)
    await layer.group_send("room", {"type": "again"})
    check(
        f"{kind}, one that has left gets none",
        ((await asyncio.wait_for(layer.receive(mine), 20))["type"], await nothing(layer, theirs)),
        ("again", None),
    )
    waiting = asyncio.create_task(layer.receive(mine))
    await asyncio.sleep(0)
    await layer.send(mine, {"type": "woken", "bytes": b"\0\xff"})
    woken = await asyncio.wait_for(waiting, 20)
    check(f"{kind}, one that waits is woken", (woken["type"], woken["bytes"]), ("woken", b"\0\xff"))
    for size in (10_000, 100_000):
        try:
            await layer.send(mine, {"type": "large", "text": "x" * size})
            found = len((await asyncio.wait_for(layer.receive(mine), 20))["text"])
        except ResponseError as error:
            found = str(error)
        check(f"{kind}, a message of {size:,} bytes", found, size)


async def main():
    first = RedisChannelLayer(hosts=[f"{URL}/0"], capacity=100, expiry=30)
    await both(first, "core")
    for n in range(100):
        await first.send("narrow", {"n": n})
    try:
        await first.send("narrow", {"n": 100})
        full = False
    except ChannelFull:
        full = True
    check("core, a channel has a capacity", full)
    second = RedisChannelLayer(hosts=[f"{URL}/0"], capacity=100)
    check(
        "core, another process receives from a channel with a name",
        (await asyncio.wait_for(second.receive("narrow"), 20))["n"],
        0,
    )
    short = RedisChannelLayer(hosts=[f"{URL}/0"], expiry=1, prefix="short")
    await short.send("old", {"n": 1})
    await asyncio.sleep(1.5)
    check("core, a message expires", await nothing(short, "old"), None)
    secret = RedisChannelLayer(hosts=[f"{URL}/1"], symmetric_encryption_keys=["key"])
    await secret.send("s", {"n": 5})
    check("core, an encrypted message", await asyncio.wait_for(secret.receive("s"), 20), {"n": 5})
    await first.flush()
    check("core, all is flushed", await nothing(first, "narrow"), None)
    channels = RedisPubSubChannelLayer(hosts=[f"{URL}/0"])
    await both(channels, "channels")
    await channels.flush()
    for layer in (first, second, short, secret):
        await layer.close_pools()


asyncio.run(main())
