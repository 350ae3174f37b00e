// ioredis: values, pipelines, transactions, scripts, channels, streams, reconnection.
import Redis from "ioredis";
import { check, errorOf, host, password, port, range, until } from "./checks.mjs";

const redis = new Redis({ host, port, password });
const other = redis.duplicate();
await redis.flushall();
check("a value is read back", [await redis.set("key", "väl\0ue"), await redis.get("key")],
  ["OK", "väl\0ue"]);
check("bytes", await redis.getBuffer("key"), Buffer.from("väl\0ue"));
check("options of SET", [await redis.set("key", "x", "NX"), await redis.set("n", 1, "PX", 60000),
  (await redis.pttl("n")) > 50000], [null, "OK", true]);
const pipeline = redis.pipeline();
range(1000).forEach((n) => pipeline.incrby("sum", n));
check("a pipeline of a thousand", (await pipeline.exec()).at(-1), [null, 499500]);
check("an error in a pipeline is that of one command",
  (await redis.pipeline().set("s", "x").incr("s").get("s").exec()).map(([error, value]) =>
    error ? error.message : value),
  ["OK", "ERR value is not an integer or out of range", "x"]);
await redis.hset("hash", { a: 1, b: 2 });
check("a hash", await redis.hgetall("hash"), { a: "1", b: "2" });
await redis.zadd("ranks", ...range(100).flatMap((n) => [n / 2, `m${n}`]));
check("a sorted set", [await redis.zrange("ranks", 3, 4, "WITHSCORES"),
  await redis.zscore("ranks", "m7"), await redis.zrevrank("ranks", "m50")],
  [["m3", "1.5", "m4", "2"], "3.5", 49]);
check("a transaction", await redis.multi().set("t", 1).incr("t").exec(), [[null, "OK"], [null, 2]]);
await redis.watch("t");
await other.set("t", 9);
check("a watched key that was changed", await redis.multi().set("t", 3).exec(), null);
redis.defineCommand("pair", { numberOfKeys: 1, lua: "return {KEYS[1], ARGV[1]}" });
check("a script as a command", [await redis.pair("k", "a"), await redis.pair("k", "b")],
  [["k", "a"], ["k", "b"]]);
await redis.script("FLUSH");
check("a script that was forgotten is sent again", await redis.pair("k", "c"), ["k", "c"]);
check("an error of a command", await errorOf(redis.lpush("key", 1)),
  "WRONGTYPE Operation against a key holding the wrong kind of value");
const heard = [];
const listener = redis.duplicate();
listener.on("message", (channel, message) => heard.push([channel, message]));
listener.on("pmessage", (pattern, channel, message) => heard.push([pattern, channel, message]));
await listener.subscribe("news");
await listener.psubscribe("n*");
check("channels", [await redis.publish("news", "hello"), await until(() => heard.length === 2 &&
  heard)], [2, [["news", "hello"], ["n*", "news", "hello"]]]);
listener.disconnect();
const ids = [];
for (const n of range(10)) ids.push(await redis.xadd("stream", "*", "n", n));
await redis.xgroup("CREATE", "stream", "group", 0);
const read = await redis.xreadgroup("GROUP", "group", "me", "COUNT", 4, "STREAMS", "stream", ">");
check("a group reads", read[0][1].map(([, fields]) => fields[1]), ["0", "1", "2", "3"]);
check("what is pending", [(await redis.xpending("stream", "group"))[0],
  await redis.xack("stream", "group", ...ids.slice(0, 3)),
  (await redis.xautoclaim("stream", "group", "you", 0, 0))[1].length], [4, 3, 1]);
const waiting = other.xread("BLOCK", 10000, "STREAMS", "stream", "$");
await until(async () => /cmd=xread/.test(await redis.client("LIST")));
await redis.xadd("stream", "*", "n", "last");
check("one that waits for a stream is woken", (await waiting)[0][1][0][1], ["n", "last"]);
const blocked = other.blpop("later", 10);
await redis.rpush("later", "x");
check("one that waits for a list is woken", await blocked, ["later", "x"]);
await redis.mset(...range(500).flatMap((n) => [`scan:${n}`, n]));
const found = [];
for await (const keys of redis.scanStream({ match: "scan:*", count: 50 })) found.push(...keys);
check("keys are scanned in a stream", new Set(found).size, 500);
const prefixed = new Redis({ host, port, password, keyPrefix: "p:", db: 1 });
await prefixed.set("a", 1);
check("a prefix and another database", [await prefixed.dbsize(), await prefixed.get("a"),
  await redis.exists("p:a")], [1, "1", 0]);
const automatic = new Redis({ host, port, password, enableAutoPipelining: true });
check("automatic pipelines", (await Promise.all(range(200).map(() => automatic.incr("auto"))))
  .at(-1), 200);
const id = await automatic.client("ID");
await redis.client("KILL", "ID", id);
check("a connection that was killed is made again", [await automatic.get("auto"),
  (await automatic.client("ID")) !== id], ["200", true]);
const watcher = await redis.monitor();
const lines = [];
watcher.on("monitor", (time, words) => lines.push(words));
await redis.set("watched", 1);
check("commands are monitored", await until(() => lines.find((words) => words[1] === "watched")),
  ["set", "watched", "1"]);
check("a wrong password is refused",
  await errorOf(new Redis({ host, port, password: "no", lazyConnect: true, retryStrategy: null })
    .connect().then(() => null)) !== null);
process.exit(0);
