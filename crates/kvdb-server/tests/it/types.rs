//! Tests of hashes, sets, sorted sets, lists and bitmaps, command by command, in the notation of
//! `redis-cli`. The tests also check the costs of commands, and how transactions share collections.

use std::sync::Arc;

use crate::served::{serve, show};
use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvdb_server::{Client, Limits, Reply, ServerOptions};
use zones::{CrashDevice, MemoryDevice};

const WRONGTYPE: &str = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_INT: &str = "(error) ERR value is not an integer or out of range";
const SYNTAX: &str = "(error) ERR syntax error";

#[test]
fn hashes() {
    serve(ServerOptions::default()).connect().expect(&[
        ("HSET h b 2 a 1", "(integer) 2"),
        ("HSET h a 3 c 4 c 5", "(integer) 1"),
        ("HGET h a", "\"3\""),
        ("HGET h none", "(nil)"),
        ("HGET none a", "(nil)"),
        ("HMGET h a none c", "[\"3\" (nil) \"5\"]"),
        ("HGETALL h", "[\"a\" \"3\" \"b\" \"2\" \"c\" \"5\"]"),
        ("HKEYS h", "[\"a\" \"b\" \"c\"]"),
        ("HVALS h", "[\"3\" \"2\" \"5\"]"),
        ("HLEN h", "(integer) 3"),
        ("HEXISTS h a", "(integer) 1"),
        ("HEXISTS h x", "(integer) 0"),
        ("HSTRLEN h a", "(integer) 1"),
        ("HSETNX h a 9", "(integer) 0"),
        ("HSETNX h d 9", "(integer) 1"),
        ("HINCRBY h d 2", "(integer) 11"),
        ("HINCRBY h new -2", "(integer) -2"),
        ("HINCRBYFLOAT h d 0.5", "\"11.5\""),
        ("HINCRBY h d 1", "(error) ERR hash value is not an integer"),
        ("HINCRBY h a x", NOT_INT),
        ("HSET h a", "(error) ERR wrong number of arguments for 'hset' command"),
        ("HSET h a 1 b", "(error) ERR wrong number of arguments for 'hset' command"),
        ("HDEL h a a none new d", "(integer) 3"),
        ("HLEN h", "(integer) 2"),
        ("HSCAN h 0 COUNT 10", "[\"0\" [\"b\" \"2\" \"c\" \"5\"]]"),
        ("HSCAN h 0 MATCH b NOVALUES", "[\"0\" [\"b\"]]"),
        ("HSCAN h 99", "(error) ERR invalid cursor"),
        ("HRANDFIELD none", "(nil)"),
        ("HRANDFIELD h 0", "[]"),
        ("HRANDFIELD none 3 WITHVALUES", "[]"),
        ("HRANDFIELD h 1 VALUES", SYNTAX),
        ("OBJECT ENCODING h", "\"listpack\""),
        ("HDEL h b c", "(integer) 2"),
        ("EXISTS h", "(integer) 0"),
        ("TYPE h", "none"),
        ("HMSET h f v", "OK"),
        ("GET h", WRONGTYPE),
        ("SADD h m", WRONGTYPE),
        ("APPEND h m", WRONGTYPE),
        ("INCR h", WRONGTYPE),
        ("GETSET h m", WRONGTYPE),
        ("SET h v GET", WRONGTYPE),
        ("MGET h", "[(nil)]"),
        ("SET h v", "OK"),
        ("HGET h f", WRONGTYPE),
        ("HSET h f v", WRONGTYPE),
        ("HGETALL h", WRONGTYPE),
    ]);
}

#[test]
fn sets() {
    serve(ServerOptions::default()).connect().expect(&[
        ("SADD s b a b", "(integer) 2"),
        ("SADD s a c", "(integer) 1"),
        ("SMEMBERS s", "[\"a\" \"b\" \"c\"]"),
        ("SCARD s", "(integer) 3"),
        ("SISMEMBER s a", "(integer) 1"),
        ("SMISMEMBER s a x", "[(integer) 1 (integer) 0]"),
        ("SADD t b c d", "(integer) 3"),
        ("SINTER s t", "[\"b\" \"c\"]"),
        ("SUNION s t none", "[\"a\" \"b\" \"c\" \"d\"]"),
        ("SDIFF s t", "[\"a\"]"),
        ("SINTER s none", "[]"),
        ("SINTERCARD 2 s t", "(integer) 2"),
        ("SINTERCARD 2 s t LIMIT 1", "(integer) 1"),
        ("SINTERCARD 0 s", "(error) ERR numkeys should be greater than 0"),
        ("SINTERCARD 3 s t", "(error) ERR Number of keys can't be greater than number of args"),
        ("SINTERSTORE u s t", "(integer) 2"),
        ("SMEMBERS u", "[\"b\" \"c\"]"),
        ("SDIFFSTORE u s s", "(integer) 0"),
        ("EXISTS u", "(integer) 0"),
        ("SUNIONSTORE s s t", "(integer) 4"),
        ("SMOVE s t a", "(integer) 1"),
        ("SMOVE s t a", "(integer) 0"),
        ("SMEMBERS t", "[\"a\" \"b\" \"c\" \"d\"]"),
        ("SREM t a b x", "(integer) 2"),
        ("SREM t c", "(integer) 1"),
        ("SPOP t 10", "[\"d\"]"),
        ("SPOP t", "(nil)"),
        ("SPOP t -1", "(error) ERR value is out of range, must be positive"),
        ("EXISTS t", "(integer) 0"),
        ("SRANDMEMBER t", "(nil)"),
        ("SRANDMEMBER t 3", "[]"),
        ("SADD one m", "(integer) 1"),
        ("SRANDMEMBER one -3", "[\"m\" \"m\" \"m\"]"),
        ("SSCAN s 0", "[\"0\" [\"b\" \"c\" \"d\"]]"),
        ("SADD numbers 1 2", "(integer) 2"),
        ("OBJECT ENCODING numbers", "\"intset\""),
        ("SET string v", "OK"),
        ("SADD string m", WRONGTYPE),
        ("SINTER s string", WRONGTYPE),
        ("SMOVE s string b", WRONGTYPE),
        ("SMOVE none string b", "(integer) 0"),
    ]);
}

#[test]
fn sorted_sets() {
    serve(ServerOptions::default()).connect().expect(&[
        ("ZADD z 1 a 3 c 2 b", "(integer) 3"),
        ("ZADD z XX CH 5 a 7 new", "(integer) 1"),
        ("ZADD z NX 9 a", "(integer) 0"),
        ("ZADD z GT CH 4 a", "(integer) 0"),
        ("ZADD z LT CH 1 a", "(integer) 1"),
        ("ZADD z INCR 1.5 a", "\"2.5\""),
        ("ZADD z NX INCR 1 a", "(nil)"),
        ("ZINCRBY z -1.5 a", "\"1\""),
        ("ZSCORE z a", "\"1\""),
        ("ZSCORE z none", "(nil)"),
        ("ZMSCORE z a none", "[\"1\" (nil)]"),
        ("ZCARD z", "(integer) 3"),
        ("ZRANGE z 0 -1", "[\"a\" \"b\" \"c\"]"),
        ("ZRANGE z 0 -1 WITHSCORES", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\"]"),
        ("ZRANGE z 2 2", "[\"c\"]"),
        ("ZREVRANGE z 0 0", "[\"c\"]"),
        ("ZRANGE z -2 -1 REV", "[\"b\" \"a\"]"),
        ("ZRANGE z 5 9", "[]"),
        ("ZRANGE z (1 +inf BYSCORE", "[\"b\" \"c\"]"),
        ("ZRANGE z +inf 2 BYSCORE REV LIMIT 0 1", "[\"c\"]"),
        ("ZRANGE z 0 1 LIMIT 0 1", "(error) ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"),
        ("ZRANGEBYSCORE z -inf (3 WITHSCORES", "[\"a\" \"1\" \"b\" \"2\"]"),
        ("ZREVRANGEBYSCORE z 3 1 LIMIT 1 1", "[\"b\"]"),
        ("ZRANGEBYSCORE z x 1", "(error) ERR min or max is not a float"),
        ("ZCOUNT z 1 (3", "(integer) 2"),
        ("ZRANK z c", "(integer) 2"),
        ("ZREVRANK z c", "(integer) 0"),
        ("ZRANK z none", "(nil)"),
        ("ZADD l 0 a 0 b 0 c", "(integer) 3"),
        ("ZRANGEBYLEX l [b +", "[\"b\" \"c\"]"),
        ("ZREVRANGEBYLEX l + (a", "[\"c\" \"b\"]"),
        ("ZLEXCOUNT l - (c", "(integer) 2"),
        ("ZRANGEBYLEX l b +", "(error) ERR min or max not valid string range item"),
        ("ZUNION 2 z l WITHSCORES", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\"]"),
        ("ZINTERSTORE i 2 z l WEIGHTS 2 1 AGGREGATE MAX", "(integer) 3"),
        ("ZRANGE i 0 -1 WITHSCORES", "[\"a\" \"2\" \"b\" \"4\" \"c\" \"6\"]"),
        ("ZDIFF 2 z l", "[]"),
        ("ZDIFFSTORE i 2 z none", "(integer) 3"),
        ("ZINTERCARD 2 z l LIMIT 2", "(integer) 2"),
        ("ZRANGESTORE r z 0 1", "(integer) 2"),
        ("ZRANGE r 0 -1", "[\"a\" \"b\"]"),
        ("ZREMRANGEBYRANK i 0 0", "(integer) 1"),
        ("ZREMRANGEBYSCORE i 2 2", "(integer) 1"),
        ("ZRANGE i 0 -1", "[\"c\"]"),
        ("ZREMRANGEBYLEX l [a [b", "(integer) 2"),
        ("ZPOPMIN z", "[\"a\" \"1\"]"),
        ("ZPOPMAX z 5", "[\"c\" \"3\" \"b\" \"2\"]"),
        ("EXISTS z", "(integer) 0"),
        ("ZADD z 1 a 2", SYNTAX),
        ("ZADD z x a", "(error) ERR value is not a valid float"),
        ("ZADD z nan a", "(error) ERR value is not a valid float"),
        ("ZADD z NX XX 1 a", "(error) ERR XX and NX options at the same time are not compatible"),
        ("ZADD z GT LT 1 a", "(error) ERR GT, LT, and/or NX options at the same time are not compatible"),
        ("ZADD z inf a", "(integer) 1"),
        ("ZINCRBY z -inf a", "(error) ERR resulting score is not a number (NaN)"),
        ("ZSCAN z 0", "[\"0\" [\"a\" \"inf\"]]"),
        ("ZUNIONSTORE u 0 z", "(error) ERR at least 1 input key is needed for 'zunionstore' command"),
        ("ZUNIONSTORE u 2 z", SYNTAX),
        ("SET string v", "OK"),
        ("ZADD string 1 m", WRONGTYPE),
        ("ZUNION 2 z string", WRONGTYPE),
    ]);
}

#[test]
fn lists() {
    serve(ServerOptions::default()).connect().expect(&[
        ("RPUSH l b c", "(integer) 2"),
        ("LPUSH l a z", "(integer) 4"),
        ("LRANGE l 0 -1", "[\"z\" \"a\" \"b\" \"c\"]"),
        ("LRANGE l -2 -1", "[\"b\" \"c\"]"),
        ("LRANGE l 3 1", "[]"),
        ("LINDEX l 0", "\"z\""),
        ("LINDEX l -1", "\"c\""),
        ("LINDEX l 4", "(nil)"),
        ("LSET l 0 y", "OK"),
        ("LSET l 9 y", "(error) ERR index out of range"),
        ("LSET none 0 y", "(error) ERR no such key"),
        ("LINSERT l BEFORE a x", "(integer) 5"),
        ("LINSERT l AFTER c d", "(integer) 6"),
        ("LINSERT l AFTER none d", "(integer) -1"),
        ("LINSERT l BESIDE c d", SYNTAX),
        ("LRANGE l 0 -1", "[\"y\" \"x\" \"a\" \"b\" \"c\" \"d\"]"),
        ("LPOS l b", "(integer) 3"),
        ("RPUSH l b", "(integer) 7"),
        ("LPOS l b RANK -1", "(integer) 6"),
        ("LPOS l b COUNT 0", "[(integer) 3 (integer) 6]"),
        ("LPOS l b RANK 0", "(error) ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list"),
        ("LREM l -1 b", "(integer) 1"),
        ("LTRIM l 1 -2", "OK"),
        ("LRANGE l 0 -1", "[\"x\" \"a\" \"b\" \"c\"]"),
        ("LLEN l", "(integer) 4"),
        ("LMOVE l l LEFT RIGHT", "\"x\""),
        ("RPOPLPUSH l m", "\"x\""),
        ("LRANGE l 0 -1", "[\"a\" \"b\" \"c\"]"),
        ("LPOP l", "\"a\""),
        ("RPOP l 5", "[\"c\" \"b\"]"),
        ("RPOP l 5", "(nil)"),
        ("LPOP l", "(nil)"),
        ("EXISTS l", "(integer) 0"),
        ("LPUSHX l a", "(integer) 0"),
        ("RPUSHX m y", "(integer) 2"),
        ("LTRIM m 5 9", "OK"),
        ("EXISTS m", "(integer) 0"),
        ("SET string v", "OK"),
        ("LPUSH string m", WRONGTYPE),
        ("LPOP string -1", "(error) ERR value is out of range, must be positive"),
    ]);
}

#[test]
fn rows_of_bits() {
    serve(ServerOptions::default()).connect().expect(&[
        ("SETBIT k 7 1", "(integer) 0"),
        ("SETBIT k 7 0", "(integer) 1"),
        ("STRLEN k", "(integer) 1"),
        ("SETBIT k 100 1", "(integer) 0"),
        ("STRLEN k", "(integer) 13"),
        ("GETBIT k 100", "(integer) 1"),
        ("GETBIT k 1000000", "(integer) 0"),
        ("SETBIT k -1 1", "(error) ERR bit offset is not an integer or out of range"),
        ("SETBIT k 8796093022208 1", "(error) ERR bit offset is not an integer or out of range"),
        ("SETBIT k 1 2", "(error) ERR bit is not an integer or out of range"),
        ("SET k foobar", "OK"),
        ("BITCOUNT k", "(integer) 26"),
        ("BITCOUNT k 1 1", "(integer) 6"),
        ("BITCOUNT k 5 30 BIT", "(integer) 17"),
        ("BITCOUNT k 1", SYNTAX),
        ("BITCOUNT none", "(integer) 0"),
        (r#"SET p "\xff\xf0\x00""#, "OK"),
        ("BITPOS p 0", "(integer) 12"),
        ("BITPOS p 1 2", "(integer) -1"),
        ("BITPOS p 1 7 15 BIT", "(integer) 7"),
        (r#"SET p "\xff""#, "OK"),
        ("BITPOS p 0", "(integer) 8"),
        ("BITPOS p 0 0 -1", "(integer) -1"),
        ("BITPOS none 0", "(integer) 0"),
        ("BITPOS none 1", "(integer) -1"),
        ("SET a abc", "OK"),
        ("SET b ab", "OK"),
        ("BITOP AND c a b", "(integer) 3"),
        ("GET c", r#""ab\x00""#),
        ("BITOP NOT c a b", "(error) ERR BITOP NOT must be called with a single source key."),
        ("BITOP XOR c none", "(integer) 0"),
        ("EXISTS c", "(integer) 0"),
        ("BITFIELD f INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 5", "[(integer) 1 (integer) 3]"),
        ("BITFIELD f OVERFLOW FAIL INCRBY u2 102 1 GET u2 102", "[(nil) (integer) 3]"),
        ("BITFIELD f SET i8 #1 -1 GET u8 #1", "[(integer) 0 (integer) 255]"),
        ("BITFIELD grown OVERFLOW FAIL INCRBY u4 60 20", "[(nil)]"),
        ("STRLEN grown", "(integer) 8"),
        ("BITFIELD f GET u64 0", "(error) ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."),
        ("BITFIELD_RO f GET u2 102", "[(integer) 3]"),
        ("BITFIELD_RO f SET u2 0 1", "(error) ERR BITFIELD_RO only supports the GET subcommand"),
        ("SADD s m", "(integer) 1"),
        ("SETBIT s 1 1", WRONGTYPE),
        ("BITOP OR c s a", WRONGTYPE),
    ]);
}

#[test]
fn keys_of_every_type_have_the_commands_on_keys() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("SET string v", "OK"),
        ("HSET hash f v", "(integer) 1"),
        ("SADD set m", "(integer) 1"),
        ("ZADD zset 1 m", "(integer) 1"),
        ("RPUSH list e", "(integer) 1"),
        ("DBSIZE", "(integer) 5"),
        ("KEYS *", "[\"hash\" \"list\" \"set\" \"string\" \"zset\"]"),
        ("SCAN 0 TYPE zset", "[\"0\" [\"zset\"]]"),
        ("RANGE - +", "[\"string\" \"v\"]"),
        ("EXISTS hash set none", "(integer) 2"),
        ("RENAME hash other", "OK"),
        ("HGET other f", "\"v\""),
        ("RENAME other string", "OK"),
        ("TYPE string", "hash"),
        ("RENAMENX string set", "(integer) 0"),
        ("RENAMENX string hash", "(integer) 1"),
        ("RENAME none x", "(error) ERR no such key"),
        ("COPY hash copy", "(integer) 1"),
        ("HSET hash f changed", "(integer) 0"),
        ("HGET copy f", "\"v\""),
        ("COPY hash copy", "(integer) 0"),
        ("COPY hash copy REPLACE", "(integer) 1"),
        ("HGET copy f", "\"changed\""),
        ("COPY hash hash", "(error) ERR source and destination objects are the same"),
        ("OBJECT REFCOUNT hash", "(integer) 1"),
        ("OBJECT ENCODING none", "(nil)"),
        ("MEMORY USAGE none", "(nil)"),
        ("TOUCH hash zset none", "(integer) 2"),
        ("DELPREFIX h", "OK"),
        ("EXISTS hash", "(integer) 0"),
        ("HLEN hash", "(integer) 0"),
        ("DELRANGE l m", "OK"),
        ("KEYS *", "[\"copy\" \"set\" \"zset\"]"),
        ("UNLINK copy set zset", "(integer) 3"),
        ("DBSIZE", "(integer) 0"),
        ("HSET h f v", "(integer) 1"),
        ("USE other", "OK"),
        ("HSET h f w", "(integer) 1"),
        ("FLUSHDB", "OK"),
        ("EXISTS h", "(integer) 0"),
        ("USE 0", "OK"),
        ("HGET h f", "\"v\""),
        ("FLUSHALL", "OK"),
        ("DBSIZE", "(integer) 0"),
    ]);
    for name in ["0", "other"] {
        let types = served.db.dictionary(&format!(":types:{name}")).expect("made");
        let left = served.db.view().scan(types, b"", b"", 10).expect("read");
        assert_eq!(left, [], "beside {name}");
    }
}

#[test]
fn long_collections_are_paged_and_sent_in_pieces() {
    let limits = Limits { reply: 4096, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    for i in 0..200 {
        let fields: String = (0..20).map(|j| format!(" f{:05} v{j}", i * 20 + j)).collect();
        assert_eq!(c.run(&format!("HSET h{fields}")), "(integer) 20");
    }
    c.send(b"HGETALL h\r\n");
    let Reply::Array(all) = c.reply().expect("a reply") else { panic!("no array") };
    assert_eq!(all.len(), 8000);
    assert_eq!(all[0], Reply::Bulk(b"f00000".to_vec()));
    let (mut cursor, mut found) = ("0".to_string(), 0);
    loop {
        c.send(format!("HSCAN h {cursor} COUNT 300\r\n").as_bytes());
        let Reply::Array(page) = c.reply().expect("a reply") else { panic!("no page") };
        let [Reply::Bulk(next), Reply::Array(items)] = &page[..] else { panic!("no page") };
        found += items.len() / 2;
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, 4000);
    // Drawn elements are distinct members.
    for count in [1, 50, 3000, 5000] {
        c.send(format!("HRANDFIELD h {count}\r\n").as_bytes());
        let Reply::Array(drawn) = c.reply().expect("a reply") else { panic!("no array") };
        assert_eq!(drawn.len(), count.min(4000));
        let names: std::collections::HashSet<String> = drawn.iter().map(show).collect();
        assert_eq!(names.len(), drawn.len());
    }
    assert_eq!(c.run("DEL h"), "(integer) 1");
    assert_eq!(c.run("HGETALL h"), "[]");
}

fn store() -> Kvdb {
    let open = OpenOptions { memory: 16 << 20, zero_journal: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let device = Arc::new(MemoryDevice::new());
    Kvdb::create(device, Arc::new(Simulated::new(1)), options).expect("a store")
}

fn run(client: &mut Client, command: &str) -> String {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    show(&client.call(&words).expect("a reply"))
}

/// Bytes that a commit of these commands writes to the journal, about: the tuples that change.
fn changed(client: &mut Client, commands: &[&str]) -> Vec<String> {
    let id = run(client, "TXN BEGIN");
    let id = id.trim_start_matches("(integer) ").to_string();
    run(client, &format!("TXN JOIN {id}"));
    for command in commands {
        let reply = run(client, command);
        assert!(!reply.contains("error"), "{command}: {reply}");
    }
    let changes = run(client, "TXN STATUS");
    assert_eq!(run(client, "TXN COMMIT"), "OK");
    run(client, "TXN LEAVE");
    let words: Vec<String> = changes.split(' ').map(String::from).collect();
    let at = words.iter().position(|word| word.contains("\"changes\"")).expect("counted");
    vec![words[at + 2].clone()]
}

#[test]
fn a_hash_costs_what_is_touched_however_long_it_is() {
    let mut client = Client::local(store());
    for i in 0..400 {
        let fields: String = (0..50).map(|j| format!(" f{:05} v", i * 50 + j)).collect();
        run(&mut client, &format!("HSET long{fields}"));
    }
    run(&mut client, "HSET short f00000 v f00001 v f00002 v");
    assert_eq!(run(&mut client, "HLEN long"), "(integer) 20000");
    for touch in ["HSET {} new v", "HSET {} f00000 w", "HDEL {} f00001", "EXPIRE {} 100", "DEL {}"]
    {
        let costs =
            ["long", "short"].map(|hash| changed(&mut client, &[&touch.replace("{}", hash)]));
        assert_eq!(costs[0], costs[1], "{touch}");
    }
    assert_eq!(run(&mut client, "DBSIZE"), "(integer) 0");
}

#[test]
fn transactions_that_set_different_fields_both_commit() {
    let db = store();
    let mut clients = [Client::local(db.clone()), Client::local(db.clone()), Client::local(db)];
    let [a, b, plain] = &mut clients;
    run(plain, "HSET h old 1");
    run(plain, "SADD s old");
    run(plain, "ZADD z 1 old");
    for (client, name) in [(&mut *a, "a"), (&mut *b, "b")] {
        let id = run(client, "TXN BEGIN");
        run(client, &format!("TXN JOIN {}", id.trim_start_matches("(integer) ")));
        for command in ["HSET h", "SADD s", "ZADD z 2"] {
            let value = if command.starts_with('H') { " 1" } else { "" };
            assert_eq!(run(client, &format!("{command} {name}{value}")), "(integer) 1");
        }
    }
    // Another one, past both.
    run(plain, "HSET h plain 1");
    assert_eq!(run(a, "TXN COMMIT"), "OK");
    assert_eq!(run(b, "TXN COMMIT"), "OK");
    assert_eq!(run(plain, "HLEN h"), "(integer) 4");
    assert_eq!(run(plain, "HKEYS h"), "[\"a\" \"b\" \"old\" \"plain\"]");
    assert_eq!(run(plain, "SCARD s"), "(integer) 3");
    assert_eq!(run(plain, "ZCARD z"), "(integer) 3");
}

#[test]
fn transactions_that_would_make_a_key_two_things_conflict() {
    for (first, second, commits) in [
        ("HSET k f 1", "HSET k f 2", false),
        ("HSET k f 1", "HSET k g 2", false),
        ("SET k v", "HSET k f 1", false),
        ("HSET k f 1", "SET k v", false),
        ("SADD k m", "RPUSH k e", false),
    ] {
        let db = store();
        let (mut a, mut b) = (Client::local(db.clone()), Client::local(db.clone()));
        run(&mut a, "HSET other f 1");
        for (client, command) in [(&mut a, first), (&mut b, second)] {
            let id = run(client, "TXN BEGIN");
            run(client, &format!("TXN JOIN {}", id.trim_start_matches("(integer) ")));
            assert!(!run(client, command).contains("error"));
        }
        assert_eq!(run(&mut a, "TXN COMMIT"), "OK");
        let second_commits = run(&mut b, "TXN COMMIT");
        assert_eq!(second_commits == "OK", commits, "{first}, {second}: {second_commits}");
        assert_eq!(run(&mut a, "DBSIZE"), "(integer) 2", "{first}, {second}");
    }
    // Two transactions each remove one of the last two fields while they see the other.
    let db = store();
    let (mut a, mut b) = (Client::local(db.clone()), Client::local(db));
    run(&mut a, "HSET h x 1 y 2");
    for (client, field) in [(&mut a, "x"), (&mut b, "y")] {
        let id = run(client, "TXN BEGIN");
        run(client, &format!("TXN JOIN {}", id.trim_start_matches("(integer) ")));
        assert_eq!(run(client, &format!("HDEL h {field}")), "(integer) 1");
    }
    assert_eq!(run(&mut a, "TXN COMMIT"), "OK");
    assert_eq!(run(&mut b, "TXN COMMIT"), "OK");
    run(&mut a, "TXN LEAVE");
    assert_eq!(run(&mut a, "EXISTS h"), "(integer) 0", "no fields, no hash");
    assert_eq!(run(&mut a, "DBSIZE"), "(integer) 0");
    assert_eq!(run(&mut a, "SADD h m"), "(integer) 1");
    assert_eq!(run(&mut a, "TYPE h"), "set");
}

#[test]
fn what_is_too_much_is_refused() {
    let (request, value) = (64 << 10, 20_000);
    let limits = Limits { key: 100, element: 100, request, value, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    let long = "x".repeat(101);
    assert!(c.run(&format!("HSET h {long} v")).contains("longer than the limit of 100"));
    assert!(c.run(&format!("SADD {long} m")).contains("longer than the limit of 100"));
    for i in 0..40 {
        let members: String = (0..30).map(|j| format!(" {:090}", i * 30 + j)).collect();
        assert_eq!(c.run(&format!("SADD s{members}")), "(integer) 30");
    }
    for command in ["ZUNION 2 s s", "SRANDMEMBER s -1200"] {
        let reply = c.run(command);
        assert!(reply.starts_with("(error) LIMIT more than 65536 bytes"), "{command}: {reply}");
    }
    // The values of fields are gathered with their names, whether the reply has them or not.
    let value = "v".repeat(1500);
    for i in 0..50 {
        assert_eq!(c.run(&format!("HSET hash f{i:02} {value}")), "(integer) 1");
    }
    for command in ["HRANDFIELD hash 50", "HRANDFIELD hash 50 WITHVALUES"] {
        let reply = c.run(command);
        assert!(reply.starts_with("(error) LIMIT more than 65536 bytes"), "{command}: {reply}");
    }
    assert_eq!(c.run("HRANDFIELD hash 20").matches("\"f").count(), 20);
    // Results that are stored, or are read in an existing order, are not gathered.
    c.expect(&[
        ("SCARD s", "(integer) 1200"),
        ("SUNIONSTORE t s s", "(integer) 1200"),
        ("COPY t u", "(integer) 1"),
        ("SCARD u", "(integer) 1200"),
    ]);
    assert_eq!(c.run("SUNION s t").matches('"').count(), 2 * 1200);
    assert_eq!(c.run("SPOP u 1200").matches('"').count(), 2 * 1200);
    assert_eq!(c.run("EXISTS u"), "(integer) 0");
    assert_eq!(c.run("SINTERCARD 2 s s LIMIT 5"), "(integer) 5");
    for i in 0..2 {
        assert_eq!(c.run(&format!("SET l{i} {}", "y".repeat(15_000))), "OK");
    }
    assert!(c.run("LCS l0 l1").contains("Insufficient memory"));
}

#[test]
fn the_server_tells_clients_what_they_ask_for() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("COMMAND GETKEYS SET k v", "[\"k\"]"),
        ("COMMAND GETKEYS ZUNIONSTORE to 2 a b WEIGHTS 1 2", "[\"to\" \"a\" \"b\"]"),
        ("COMMAND GETKEYS PING", "(error) ERR The command has no key arguments"),
        ("COMMAND GETKEYS GET", "(error) ERR Invalid number of arguments specified for command"),
        ("COMMAND GETKEYS nosuch x", "(error) ERR Invalid command specified"),
        ("COMMAND LIST FILTERBY PATTERN zrevrangeby*", "[\"zrevrangebylex\" \"zrevrangebyscore\"]"),
        ("SLOWLOG GET", "[]"),
        ("SLOWLOG LEN", "(integer) 0"),
        ("HSET h f v", "(integer) 1"),
    ]);
    let info = c.run("INFO");
    for wanted in [
        "redis_version:7.",
        "used_memory:",
        "aof_enabled:1",
        "role:master",
        "expired_keys:0",
        "cmdstat_hset:calls=1",
    ] {
        assert!(info.contains(wanted), "{wanted}: {info}");
    }
    for hello in ["HELLO 2", "HELLO 3"] {
        c.run(hello);
        c.send(b"COMMAND\r\n");
        let Reply::Array(all) = c.reply().expect("a reply") else { panic!("no array") };
        assert_eq!(c.run("COMMAND COUNT"), format!("(integer) {}", all.len()));
        for command in all {
            let Reply::Array(fields) = command else { panic!("no description") };
            assert_eq!(fields.len(), 10);
        }
    }
}

#[test]
fn counts_and_scores_at_the_ends_of_their_types() {
    serve(ServerOptions::default()).connect().expect(&[
        ("ZADD z 1 a 2 b", "(integer) 2"),
        ("ZRANGEBYSCORE z -inf +inf LIMIT 0 -9223372036854775808", "[\"a\" \"b\"]"),
        ("ZRANGE z 0 3 BYSCORE LIMIT 1 -1", "[\"b\"]"),
        // Zero has one form, whatever it was multiplied with.
        ("ZADD b 0 b", "(integer) 1"),
        ("ZADD a 0 a", "(integer) 1"),
        ("ZUNION 2 b a WEIGHTS -1 1", "[\"a\" \"b\"]"),
        ("ZADD z 1e400 c", "(error) ERR value is not a valid float"),
        ("ZADD z 1e-400 c", "(error) ERR value is not a valid float"),
        ("ZADD z -0.0e-5 c", "(integer) 1"),
        ("ZADD z inf c", "(integer) 0"),
        ("ZSCORE z c", "\"inf\""),
        ("ZCOUNT z 1 +Infinity", "(integer) 3"),
    ]);
}

#[test]
fn places_of_bits_before_the_beginning_are_the_first_one() {
    serve(ServerOptions::default()).connect().expect(&[
        ("SET s a", "OK"),
        ("BITPOS s 0 -1 -100", "(integer) 0"),
        ("BITPOS s 1 -1 -100", "(integer) 1"),
        ("BITPOS s 1 -7 -100 BIT", "(integer) -1"),
        ("BITPOS s 1 -8 -100 BIT", "(integer) -1"),
        ("BITCOUNT s -1 -100", "(integer) 0"),
        ("BITCOUNT s -100 -1", "(integer) 3"),
    ]);
}

/// A dictionary and its types are two dictionaries of the store: one of the same name that is made
/// after a power cut has nothing of the old one, wherever the power failed.
#[test]
fn a_power_cut_within_a_drop_leaves_no_types_for_the_next_dictionary_of_the_name() {
    let open = || OpenOptions {
        memory: 4 << 20,
        threads: false,
        zero_journal: false,
        ..OpenOptions::default()
    };
    let (mut whole, mut gone) = (0, 0);
    for cut in 0..6 {
        let device = Arc::new(CrashDevice::new());
        let create = CreateOptions { open: open(), ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).expect("made");
        let mut client = Client::local(db.clone());
        let mut ask = |words: &[&[u8]]| client.call(words).expect("a reply");
        assert_eq!(ask(&[b"USE", b"d"]), Reply::Status("OK".into()));
        assert_eq!(ask(&[b"SET", b"string", b"old"]), Reply::Status("OK".into()));
        assert_eq!(ask(&[b"HSET", b"hash", b"field", b"old"]), Reply::Integer(1));
        db.flush().expect("flushed");
        device.cut_power_after(cut);
        let dropped = ask(&[b"DICT", b"DROP", b"d"]);
        device.cut_power();
        for seed in 0..8 {
            let image = Arc::new(device.crash(seed));
            let (again, _) =
                Kvdb::open(image, Arc::new(Simulated::new(1)), open()).expect("opened");
            let kept = again.dictionary("d").is_some();
            let mut client = Client::local(again);
            let mut ask = |words: &[&[u8]]| client.call(words).expect("a reply");
            assert_eq!(ask(&[b"USE", b"d"]), Reply::Status("OK".into()));
            assert_eq!(ask(&[b"SET", b"new", b"1"]), Reply::Status("OK".into()));
            let old = if kept { Reply::Bulk(b"old".to_vec()) } else { Reply::Null };
            assert_eq!(ask(&[b"GET", b"string"]), old, "cut {cut}, seed {seed}");
            assert_eq!(ask(&[b"HGET", b"hash", b"field"]), old, "cut {cut}, seed {seed}");
            if kept {
                whole += 1
            } else {
                gone += 1
            }
            assert!(!kept || dropped != Reply::Status("OK".into()), "what was said is so");
        }
    }
    assert!(whole > 0 && gone > 0, "the power has failed before and after: {whole}, {gone}");
}

#[test]
fn numbers_are_read_as_c_reads_them() {
    let served = serve(ServerOptions::default());
    served.connect().expect(&[
        ("HINCRBYFLOAT h f 0x1p-1", "\"0.5\""),
        ("HINCRBYFLOAT h f inf", "(error) ERR value is NaN or Infinity"),
        ("ZADD z 0x10 a -0x1.8p1 b", "(integer) 2"),
        ("ZSCORE z a", "\"16\""),
        ("ZSCORE z b", "\"-3\""),
        ("ZADD z 0x c", "(error) ERR value is not a valid float"),
        ("ZRANGEBYSCORE z ( 0x20", "[\"a\"]"),
        ("ZCOUNT z ( 100", "(integer) 1"),
        ("ZUNION 1 z WEIGHTS 0x2 WITHSCORES", "[\"b\" \"-6\" \"a\" \"32\"]"),
    ]);
}

#[test]
fn where_there_is_no_key_the_places_in_it_are_not_looked_at() {
    let served = serve(ServerOptions::default());
    served.connect().expect(&[
        ("GETEX none EX x", "(nil)"),
        ("GETEX none EX 0", "(nil)"),
        ("GETEX none NONSENSE 0", "(error) ERR syntax error"),
        ("BITCOUNT none 2", "(integer) 0"),
        ("BITPOS none 1 x", "(integer) -1"),
        ("BITPOS none 0 BIT", "(integer) 0"),
        ("LINDEX none x", "(nil)"),
    ]);
}
