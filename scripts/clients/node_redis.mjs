// node-redis: values, pipelines, transactions, scripts, channels, streams, a cache at the client.
import { BasicClientSideCache, createClient, createClientPool, defineScript } from "redis";
import { check, errorOf, range, until, url } from "./checks.mjs";

for (const RESP of [2, 3]) {
  const client = await createClient({ url, RESP }).connect();
  await client.flushAll();
  const named = (name) => `RESP${RESP}, ${name}`;
  await client.set("key", "väl\0ue");
  check(named("a value is read back"), await client.get("key"), "väl\0ue");
  check(named("options of SET"), [await client.set("key", "x", { condition: "NX" }),
    await client.set("n", "1", { expiration: { type: "PX", value: 60000 }, GET: true }),
    (await client.pTTL("n")) > 50000], [null, null, true]);
  check(named("a pipeline of a thousand"),
    (await Promise.all(range(1000).map((n) => client.incrBy("sum", n)))).at(-1), 499500);
  await client.hSet("hash", { a: "1", b: "2" });
  check(named("a hash"), { ...(await client.hGetAll("hash")) }, { a: "1", b: "2" });
  await client.zAdd("ranks", range(100).map((n) => ({ value: `m${n}`, score: n / 2 })));
  check(named("a sorted set"), [await client.zRangeWithScores("ranks", 3, 4),
    await client.zScore("ranks", "m7"), await client.zRank("ranks", "m50")],
    [[{ value: "m3", score: 1.5 }, { value: "m4", score: 2 }], 3.5, 50]);
  check(named("a transaction"), await client.multi().set("t", "1").incr("t").get("t").exec(),
    ["OK", 2, "2"]);
  const other = await client.duplicate().connect();
  await client.watch("t");
  await other.set("t", "9");
  check(named("a watched key that was changed"),
    await errorOf(client.multi().set("t", "3").exec()), "One (or more) of the watched keys has been changed");
  check(named("a script"), await client.eval("return {KEYS[1], ARGV[1], 7}",
    { keys: ["k"], arguments: ["a"] }), ["k", "a", 7]);
  check(named("an error of a script"),
    (await errorOf(client.eval("return redis.error_reply('MINE no')"))), "MINE no");
  const heard = [];
  await other.subscribe("news", (message) => heard.push(message));
  await other.pSubscribe("n*", (message, channel) => heard.push(channel));
  await client.publish("news", "hello");
  check(named("channels"), await until(() => heard.length === 2 && heard), ["hello", "news"]);
  await other.unsubscribe();
  await other.pUnsubscribe();
  const ids = [];
  for (const n of range(10)) ids.push(await client.xAdd("stream", "*", { n: `${n}` }));
  await client.xGroupCreate("stream", "group", "0");
  const read = await client.xReadGroup("group", "me", { key: "stream", id: ">" }, { COUNT: 4 });
  const streams = Array.isArray(read) ? read : Object.entries(read).map(([name, messages]) =>
    ({ name, messages }));
  check(named("a group reads"), streams[0].messages.map((m) => m.message.n), ["0", "1", "2", "3"]);
  check(named("what is pending"), [(await client.xPending("stream", "group")).pending,
    await client.xAck("stream", "group", ids.slice(0, 3)),
    (await client.xPendingRange("stream", "group", "-", "+", 10)).map((p) => p.consumer)],
    [4, 3, ["me"]]);
  check(named("what is claimed"),
    (await client.xAutoClaim("stream", "group", "you", 0, "0")).messages.length, 1);
  const blocked = other.blPop("later", 10);
  await client.rPush("later", "x");
  // In RESP2 it is returned as bytes.
  const woken = await blocked;
  check(named("one that waits is woken"), [`${woken.key}`, `${woken.element}`], ["later", "x"]);
  const keys = [];
  for await (const found of client.scanIterator({ MATCH: "*", COUNT: 3 })) keys.push(...found);
  check(named("all keys are iterated over"), keys.sort(),
    ["hash", "key", "n", "ranks", "stream", "sum", "t"]);
  await client.geoAdd("places", [{ longitude: 13.4, latitude: 52.5, member: "Berlin" },
    { longitude: 2.35, latitude: 48.85, member: "Paris" }]);
  check(named("places"), [Math.round(await client.geoDist("places", "Berlin", "Paris", "km")),
    await client.geoSearch("places", { longitude: 13, latitude: 52 },
      { radius: 200, unit: "km" })], [877, ["Berlin"]]);
  check(named("another database"), [await client.select(1), await client.dbSize(),
    await client.select(0)], ["OK", 0, "OK"].map((v) => (v === "OK" ? undefined : v)));
  check(named("what a server is"), [/redis_version:/.test(await client.info()),
    (await client.clientInfo()).user, (await client.commandCount()) > 150,
    (await client.configGet("maxclients")).maxclients > 0, await client.role().then((r) => r.role)],
    [true, "default", true, true, "master"]);
  client.destroy();
  other.destroy();
}

const withScripts = await createClient({
  url,
  scripts: {
    add: defineScript({
      SCRIPT: "return redis.call('GET', KEYS[1]) + ARGV[1]",
      NUMBER_OF_KEYS: 1,
      parseCommand(parser, key, n) {
        parser.pushKey(key);
        parser.push(n.toString());
      },
      transformReply: (reply) => reply,
    }),
  },
}).connect();
await withScripts.set("number", "5");
check("a script by its hash", [await withScripts.add("number", 3), await withScripts.add("number",
  4)], [8, 9]);
const pool = await createClientPool({ url }, { maximum: 8 }).connect();
check("a pool of clients", (await Promise.all(range(100).map(() => pool.incr("pooled")))).sort(
  (a, b) => a - b).at(-1), 100);
const cache = new BasicClientSideCache({ ttl: 0, maxEntries: 0, evictPolicy: "LRU" });
const caching = await createClient({ url, RESP: 3, clientSideCache: cache }).connect();
await withScripts.set("cached", "1");
await caching.get("cached");
await caching.get("cached");
check("a value is read from the client's cache", cache.stats().hitCount, 1);
await withScripts.set("cached", "2");
check("until another client changes it",
  await until(async () => (await caching.get("cached")) === "2", 10));
process.exit(0);
