// Lettuce: asynchronous commands on one connection, channels, streams, a cache at the client.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.Consumer;
import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TrackingArgs;
import io.lettuce.core.XReadArgs;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.support.caching.CacheAccessor;
import io.lettuce.core.support.caching.ClientSideCaching;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class LettuceUse {
    static void check(String name, Object found, Object wanted) {
        boolean same = Objects.equals(found, wanted);
        System.out.println((same ? "ok " : "not ok ") + name
            + (same ? "" : ": " + found + " and not " + wanted));
    }

    public static void main(String[] words) throws Exception {
        for (ProtocolVersion version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            RedisClient client = RedisClient.create(System.getenv("SERVER_URL") + "/0");
            client.setOptions(ClientOptions.builder().protocolVersion(version).build());
            use(client, version + ", ");
            if (version == ProtocolVersion.RESP3) {
                cache(client);
            }
        }
        System.exit(0);
    }

    static void use(RedisClient client, String with) throws Exception {
        var connection = client.connect();
        var redis = connection.sync();
        redis.flushall();
        redis.set("key", "v\u00e4\0l", SetArgs.Builder.ex(60));
        check(with + "a value is read back", redis.get("key"), "v\u00e4\0l");
        check(with + "it expires", redis.ttl("key") > 50, true);
        var futures = new ArrayList<RedisFuture<Long>>();
        for (int n = 0; n < 1000; n++) {
            futures.add(connection.async().incrby("sum", n));
        }
        check(with + "a thousand without waiting", futures.get(999).get(20, TimeUnit.SECONDS),
            499500L);
        redis.hset("hash", Map.of("a", "1", "b", "2"));
        check(with + "a hash", redis.hgetall("hash"), Map.of("a", "1", "b", "2"));
        for (int n = 0; n < 100; n++) {
            redis.zadd("ranks", n / 2.0, "m" + n);
        }
        check(with + "a sorted set", List.of(redis.zrange("ranks", 3, 4),
            redis.zrank("ranks", "m50")), List.of(List.of("m3", "m4"), 50L));
        redis.multi();
        redis.set("t", "1");
        redis.incr("t");
        check(with + "a transaction", redis.exec().stream().toList(), List.of("OK", 2L));
        var other = client.connect();
        redis.watch("t");
        other.sync().set("t", "9");
        redis.multi();
        redis.set("t", "3");
        check(with + "a watched key that was changed", redis.exec().wasDiscarded(), true);
        List<Object> pair = redis.eval("return {KEYS[1], ARGV[1]}", ScriptOutputType.MULTI,
            new String[] {"k"}, "a");
        check(with + "a script", pair, List.of("k", "a"));
        var heard = new LinkedBlockingQueue<String>();
        var listening = client.connectPubSub();
        listening.addListener(new RedisPubSubAdapter<String, String>() {
            @Override
            public void message(String channel, String message) {
                heard.add(channel + ": " + message);
            }
        });
        listening.sync().subscribe("news");
        redis.publish("news", "hello");
        check(with + "a channel", heard.poll(20, TimeUnit.SECONDS), "news: hello");
        for (int n = 0; n < 10; n++) {
            redis.xadd("stream", Map.of("n", "" + n));
        }
        redis.xgroupCreate(XReadArgs.StreamOffset.from("stream", "0"), "group");
        var read = redis.xreadgroup(Consumer.from("group", "me"), XReadArgs.Builder.count(4),
            XReadArgs.StreamOffset.lastConsumed("stream"));
        // Lettuce returns one of them in RESP2.
        check(with + "a group reads", redis.xpending("stream", "group").getCount(), 4L);
        check(with + "what is acknowledged", redis.xack("stream", "group", read.get(0).getId()), 1L);
        check(with + "what is pending", redis.xpending("stream", "group").getCount(), 3L);
        var blocked = other.async().blpop(10, "later");
        redis.rpush("later", "x");
        check(with + "one that waits is woken", blocked.get(20, TimeUnit.SECONDS).getValue(), "x");
        for (int n = 0; n < 300; n++) {
            redis.set("scan:" + n, "1");
        }
        var seen = new HashSet<String>();
        KeyScanCursor<String> cursor = null;
        do {
            var some = ScanArgs.Builder.matches("scan:*").limit(7);
            cursor = cursor == null ? redis.scan(some) : redis.scan(cursor, some);
            seen.addAll(cursor.getKeys());
        } while (!cursor.isFinished());
        check(with + "keys are iterated over", seen.size(), 300);
        redis.geoadd("places", 13.4, 52.5, "Berlin");
        check(with + "places", redis.geohash("places", "Berlin").get(0).getValue(), "u33d8vmddt0");
        redis.clientKill(redis.clientList().lines().filter(l -> l.contains("cmd=blpop"))
            .map(l -> l.replaceAll(".* addr=(\\S+).*", "$1")).findFirst().orElse("none:1"));
        check(with + "a connection that was killed is made again", other.sync().ping(), "PONG");
    }

    static void cache(RedisClient client) throws Exception {
        var connection = client.connect();
        var other = client.connect().sync();
        Map<String, String> map = new ConcurrentHashMap<>();
        var frontend = ClientSideCaching.enable(CacheAccessor.forMap(map), connection,
            TrackingArgs.Builder.enabled());
        other.set("cached", "1");
        check("a value is in the client's cache", frontend.get("cached") + map.get("cached"), "11");
        other.set("cached", "2");
        for (int n = 0; n < 500 && map.containsKey("cached"); n++) {
            Thread.sleep(20);
        }
        check("until another client changes it", frontend.get("cached"), "2");
    }
}
