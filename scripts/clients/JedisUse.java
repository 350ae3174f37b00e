// Jedis: values, pipelines, transactions, scripts, channels, streams, a pool.

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.params.XReadGroupParams;

public class JedisUse {
    static void check(String name, Object found, Object wanted) {
        boolean same = Objects.equals(found, wanted);
        System.out.println((same ? "ok " : "not ok ") + name
            + (same ? "" : ": " + found + " and not " + wanted));
    }

    public static void main(String[] words) throws Exception {
        String url = System.getenv("SERVER_URL");
        try (JedisPool pool = new JedisPool(url + "/0"); Jedis jedis = pool.getResource()) {
            jedis.flushAll();
            jedis.set("key", "v\u00e4\0l");
            check("a value is read back", jedis.get("key"), "v\u00e4\0l");
            check("a value that is there is kept", jedis.set("key", "x", SetParams.setParams().nx()),
                null);
            jedis.setex("brief", 60, "1");
            check("a value expires", jedis.ttl("brief") > 50, true);
            var pipeline = jedis.pipelined();
            for (int n = 0; n < 1000; n++) {
                pipeline.incrBy("sum", n);
            }
            List<Object> all = pipeline.syncAndReturnAll();
            check("a pipeline of a thousand", all.get(999), 499500L);
            jedis.hset("hash", Map.of("a", "1", "b", "2"));
            check("a hash", jedis.hgetAll("hash"), Map.of("a", "1", "b", "2"));
            for (int n = 0; n < 100; n++) {
                jedis.zadd("ranks", n / 2.0, "m" + n);
            }
            check("a sorted set", List.of(jedis.zrange("ranks", 3, 4), jedis.zrank("ranks", "m50"),
                jedis.zscore("ranks", "m7")), List.of(List.of("m3", "m4"), 50L, 3.5));
            var transaction = jedis.multi();
            transaction.set("t", "1");
            transaction.incr("t");
            check("a transaction", transaction.exec(), List.of("OK", 2L));
            jedis.watch("t");
            try (Jedis other = pool.getResource()) {
                other.set("t", "9");
            }
            transaction = jedis.multi();
            transaction.set("t", "3");
            check("a watched key that was changed", transaction.exec(), null);
            String sha = jedis.scriptLoad("return {KEYS[1], ARGV[1]}");
            check("a script", jedis.evalsha(sha, 1, "k", "a"), List.of("k", "a"));
            String said = "";
            try {
                jedis.lpush("key", "1");
            } catch (JedisDataException error) {
                said = error.getMessage();
            }
            check("an error of a command", said,
                "WRONGTYPE Operation against a key holding the wrong kind of value");
            channels(pool, jedis);
            streams(jedis);
            for (int n = 0; n < 300; n++) {
                jedis.set("scan:" + n, "1");
            }
            var seen = new HashSet<String>();
            String cursor = "0";
            do {
                var page = jedis.scan(cursor, new ScanParams().match("scan:*").count(7));
                seen.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals("0"));
            check("keys are iterated over", seen.size(), 300);
            var threads = new ArrayList<Thread>();
            for (int n = 0; n < 8; n++) {
                threads.add(new Thread(() -> {
                    for (int m = 0; m < 100; m++) {
                        try (Jedis mine = pool.getResource()) {
                            mine.incr("total");
                        }
                    }
                }));
            }
            for (Thread thread : threads) {
                thread.start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            check("no increment of eight threads is lost", jedis.get("total"), "800");
            jedis.select(1);
            check("another database is empty", jedis.dbSize(), 0L);
        }
        System.exit(0);
    }

    static void channels(JedisPool pool, Jedis jedis) throws Exception {
        var heard = new LinkedBlockingQueue<String>();
        var ready = new CountDownLatch(1);
        var listener = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
                ready.countDown();
            }

            @Override
            public void onMessage(String channel, String message) {
                heard.add(channel + ": " + message);
            }
        };
        var thread = new Thread(() -> {
            try (Jedis mine = pool.getResource()) {
                mine.subscribe(listener, "news");
            }
        });
        thread.start();
        ready.await(20, TimeUnit.SECONDS);
        jedis.publish("news", "hello");
        check("a channel", heard.poll(20, TimeUnit.SECONDS), "news: hello");
        listener.unsubscribe();
        thread.join(20_000);
        check("the listener ends", thread.isAlive(), false);
    }

    static void streams(Jedis jedis) {
        for (int n = 0; n < 10; n++) {
            jedis.xadd("stream", StreamEntryID.NEW_ENTRY, Map.of("n", "" + n));
        }
        jedis.xgroupCreate("stream", "group", new StreamEntryID(), false);
        var read = jedis.xreadGroup("group", "me", XReadGroupParams.xReadGroupParams().count(4),
            Map.of("stream", StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY));
        var entries = read.get(0).getValue();
        check("a group reads", entries.size(), 4);
        check("what is acknowledged", jedis.xack("stream", "group", entries.get(0).getID()), 1L);
        check("what is pending", jedis.xpending("stream", "group").getTotal(), 3L);
        check("what is to be read", jedis.xinfoGroups("stream").get(0).getPending(), 3L);
    }
}
