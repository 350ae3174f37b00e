//! Tests of subscriptions, messages and keyspace notifications. They arrive in order, after the
//! change is visible, and not at all if the change is not committed.

use std::io::Read;
use std::time::Duration;

use crate::served::{Raw, Served, serve, show};
use kvdb_server::{Client, Limits, Reply, ServerOptions};

/// The next message, without quotation marks.
#[track_caller]
fn message(c: &mut Raw) -> String {
    let reply = c.reply().expect("a message");
    let Reply::Array(parts) = &reply else { panic!("no message: {}", show(&reply)) };
    parts.iter().map(show).collect::<Vec<_>>().join(" ").replace('"', "")
}

/// The messages up to a final one that is sent after all of them.
#[track_caller]
fn messages(c: &mut Raw, other: &mut Raw) -> Vec<String> {
    other.run("PUBLISH end end");
    let mut all = Vec::new();
    loop {
        match message(c) {
            end if end == "message end end" => return all,
            // A subscriber of the pattern `*` receives it twice.
            end if end == "pmessage * end end" => {}
            message => all.push(message),
        }
    }
}

fn subscriber(served: &Served, pattern: &str) -> Raw {
    let mut c = served.connect();
    c.expect(&[
        ("SUBSCRIBE end", "[\"subscribe\" \"end\" (integer) 1]"),
        (&format!("PSUBSCRIBE {pattern}"), &format!("[\"psubscribe\" \"{pattern}\" (integer) 2]")),
    ]);
    c
}

/// The events that the server has sent, each as `name key`.
#[track_caller]
fn events(c: &mut Raw, other: &mut Raw) -> Vec<String> {
    let of = |message: String| {
        let words: Vec<&str> = message.split(' ').collect();
        let [_, _, channel, key] = words[..] else { panic!("no event: {message}") };
        let (_, name) = channel.split_once("__:").expect("a channel of events");
        format!("{name} {key}")
    };
    messages(c, other).into_iter().map(of).collect()
}

#[test]
fn messages_reach_those_who_have_subscribed() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut other) = (served.connect(), served.connect(), served.connect());
    a.send(b"SUBSCRIBE one two one\r\n");
    for want in ["one 1", "two 2", "one 2"] {
        let (name, count) = want.split_once(' ').expect("two words");
        assert_eq!(message(&mut a), format!("subscribe {name} (integer) {count}"));
    }
    b.expect(&[
        ("SUBSCRIBE one", "[\"subscribe\" \"one\" (integer) 1]"),
        ("PSUBSCRIBE o?e", "[\"psubscribe\" \"o?e\" (integer) 2]"),
    ]);
    other.expect(&[
        ("PUBLISH one hello", "(integer) 3"),
        ("PUBLISH two hello", "(integer) 1"),
        ("PUBLISH three hello", "(integer) 0"),
        ("PUBSUB CHANNELS", "[\"one\" \"two\"]"),
        ("PUBSUB CHANNELS t*", "[\"two\"]"),
        ("PUBSUB NUMSUB one three", "[\"one\" (integer) 2 \"three\" (integer) 0]"),
        ("PUBSUB NUMPAT", "(integer) 1"),
    ]);
    assert_eq!(message(&mut a), "message one hello");
    assert_eq!(message(&mut a), "message two hello");
    assert_eq!(message(&mut b), "message one hello");
    assert_eq!(message(&mut b), "pmessage o?e one hello");
    a.send(b"UNSUBSCRIBE\r\n");
    assert_eq!(message(&mut a), "unsubscribe one (integer) 1");
    assert_eq!(message(&mut a), "unsubscribe two (integer) 0");
    a.expect(&[
        ("UNSUBSCRIBE", "[\"unsubscribe\" (nil) (integer) 0]"),
        ("PUNSUBSCRIBE x", "[\"punsubscribe\" \"x\" (integer) 0]"),
        ("GET key", "(nil)"),
    ]);
    b.expect(&[("RESET", "RESET"), ("GET key", "(nil)")]);
    other.expect(&[("PUBLISH one hello", "(integer) 0"), ("PUBSUB CHANNELS", "[]")]);
}

#[test]
fn a_pattern_that_takes_too_long_to_compare_ends_its_own_connection_alone() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    let (mut slow, mut there) = (served.connect(), served.connect());
    there.send(b"PSUBSCRIBE a*\r\n");
    message(&mut there);
    slow.send(format!("PSUBSCRIBE *{}b*\r\n", "a".repeat(8000)).as_bytes());
    message(&mut slow);
    // Short channels are compared with it at once.
    other.expect(&[("PUBLISH aaaa one", "(integer) 1"), ("PUBSUB NUMPAT", "(integer) 2")]);
    assert_eq!(message(&mut there), "pmessage a* aaaa one");
    let channel = "a".repeat(16 << 10);
    assert_eq!(other.run(&format!("PUBLISH {channel} two")), "(integer) 1");
    assert!(message(&mut there).ends_with(" two"));
    assert!(slow.reply().is_err(), "it is disconnected, since it may have missed a message");
    let longer = format!("PUBLISH {channel}a three");
    assert_eq!(other.run(&longer), "(error) ERR a channel's name has up to 16384 bytes");
}

#[test]
fn patterns_of_megabytes_are_refused_where_they_take_too_long() {
    let served = serve(ServerOptions::default());
    let mut client = Client::connect(&served.path).expect("connected");
    let key = "a".repeat(100);
    client.call(&[b"SET", key.as_bytes(), b"v"]).expect("a reply");
    // Each byte of a name is compared with all of the class.
    let pattern = format!("*[{}]", "b".repeat(4 << 20));
    for words in ["KEYS", "SCAN 0 MATCH", "COMMAND LIST FILTERBY PATTERN"] {
        let mut words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        words.push(pattern.as_bytes());
        let refused = show(&client.call(&words).expect("a reply"));
        assert!(refused.starts_with("(error) LIMIT comparing a pattern"), "{refused}");
    }
    let all = show(&client.call(&[b"KEYS", b"*[a]*[a]"]).expect("a reply"));
    assert_eq!(all, format!("[\"{key}\"]"));
}

#[test]
fn channels_of_the_shard_are_apart_from_the_others() {
    let served = serve(ServerOptions::default());
    let (mut a, mut other) = (subscriber(&served, "*"), served.connect());
    a.send(b"SSUBSCRIBE one two\r\n");
    assert_eq!(message(&mut a), "ssubscribe one (integer) 1");
    assert_eq!(message(&mut a), "ssubscribe two (integer) 2");
    other.expect(&[
        ("SPUBLISH one of-the-shard", "(integer) 1"),
        ("PUBLISH one to-the-pattern", "(integer) 1"),
        ("SPUBLISH three none", "(integer) 0"),
        ("PUBSUB SHARDCHANNELS", "[\"one\" \"two\"]"),
        ("PUBSUB SHARDCHANNELS t*", "[\"two\"]"),
        ("PUBSUB SHARDNUMSUB one three", "[\"one\" (integer) 1 \"three\" (integer) 0]"),
        ("PUBSUB CHANNELS", "[\"end\"]"),
        ("PUBSUB NUMSUB one", "[\"one\" (integer) 0]"),
    ]);
    assert_eq!(message(&mut a), "smessage one of-the-shard");
    assert_eq!(message(&mut a), "pmessage * one to-the-pattern");
    // In a transaction they leave with the commit, and at a rollback to a savepoint not at all.
    let id = other.run("TXN BEGIN").replace("(integer) ", "");
    other.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        ("SPUBLISH one 1", "(integer) 1"),
        ("TXN SAVEPOINT s", "OK"),
        ("SPUBLISH one 2", "(integer) 1"),
        ("TXN ROLLBACK s", "OK"),
        ("PUBLISH end end", "(integer) 2"),
        ("TXN COMMIT", "OK"),
    ]);
    for want in ["smessage one 1", "message end end", "pmessage * end end"] {
        assert_eq!(message(&mut a), want);
    }
    a.send(b"SUNSUBSCRIBE two\r\nSUNSUBSCRIBE\r\nUNSUBSCRIBE end\r\n");
    assert_eq!(message(&mut a), "sunsubscribe two (integer) 1");
    assert_eq!(message(&mut a), "sunsubscribe one (integer) 0");
    assert_eq!(message(&mut a), "unsubscribe end (integer) 1");
    other.expect(&[("TXN LEAVE", "OK"), ("SPUBLISH one more", "(integer) 0")]);
}

#[test]
fn a_connection_that_ends_has_not_subscribed_any_more() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    let a = subscriber(&served, "*");
    assert_eq!(other.run("PUBLISH c m"), "(integer) 1");
    drop(a);
    // The server sees the end of a connection when it does.
    while other.run("PUBSUB NUMPAT") != "(integer) 0" {
        std::thread::yield_now();
    }
    assert_eq!(other.run("PUBLISH c m"), "(integer) 0");
}

#[test]
fn a_subscriber_of_resp2_asks_for_nothing_else() {
    let served = serve(ServerOptions::default());
    let mut a = subscriber(&served, "x");
    let refused = "(error) ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
                   are allowed in this context";
    a.expect(&[
        ("GET key", refused),
        ("PING", "[\"pong\" \"\"]"),
        ("PING again", "[\"pong\" \"again\"]"),
        ("QUIT", "OK"),
    ]);
    let mut b = served.connect();
    b.expect(&[
        ("MULTI", "OK"),
        ("SUBSCRIBE c", "(error) ERR 'subscribe' is not possible between MULTI and EXEC"),
        ("EXEC", "(error) EXECABORT Transaction discarded because of previous errors."),
    ]);
}

#[test]
fn a_subscriber_of_resp3_goes_on_with_its_work_and_hears_itself_behind_the_reply() {
    let served = serve(ServerOptions::default());
    let mut a = served.connect();
    a.run("HELLO 3");
    a.send(b"SUBSCRIBE c\r\n");
    let mut raw = [0; 30];
    a.0.read_exact(&mut raw).expect("a push");
    assert_eq!(&raw, b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    a.expect(&[("SET key value", "OK"), ("GET key", "\"value\""), ("PUBLISH c m", "(integer) 1")]);
    assert_eq!(message(&mut a), "message c m");
    a.expect(&[
        ("MULTI", "OK"),
        ("PUBLISH c 1", "QUEUED"),
        ("PUBLISH c 2", "QUEUED"),
        ("EXEC", "[(integer) 1 (integer) 1]"),
    ]);
    assert_eq!(message(&mut a), "message c 1");
    assert_eq!(message(&mut a), "message c 2");
}

#[test]
fn replies_that_are_not_wanted_do_not_come_and_messages_do() {
    let served = serve(ServerOptions::default());
    let (mut a, mut other) = (served.connect(), served.connect());
    a.send(b"CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\n");
    assert_eq!(show(&a.reply().expect("the reply to GET")), "\"1\"");
    a.send(b"CLIENT REPLY OFF\r\nSET a 2\r\nGET a\r\nNONSENSE\r\nSUBSCRIBE c\r\n");
    assert_eq!(message(&mut a), "subscribe c (integer) 1");
    assert_eq!(other.run("PUBLISH c m"), "(integer) 1");
    assert_eq!(message(&mut a), "message c m");
    a.send(b"UNSUBSCRIBE c\r\nCLIENT REPLY ON\r\n");
    assert_eq!(message(&mut a), "unsubscribe c (integer) 0");
    assert_eq!(show(&a.reply().expect("a reply")), "OK");
    assert_eq!(a.run("GET a"), "\"2\"");
}

#[test]
fn in_a_transaction_messages_and_events_leave_with_the_commit_or_not_at_all() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (subscriber(&served, "*"), served.connect());
    let mut other = served.connect();
    b.expect(&[
        ("CONFIG SET notify-keyspace-events EA", "OK"),
        ("MULTI", "OK"),
        ("PUBLISH c m", "QUEUED"),
        ("SET k v", "QUEUED"),
        ("DISCARD", "OK"),
    ]);
    assert_eq!(messages(&mut a, &mut other), Vec::<String>::new());
    b.expect(&[
        ("WATCH k", "OK"),
        ("MULTI", "OK"),
        ("PUBLISH c m", "QUEUED"),
        ("SET k v", "QUEUED"),
    ]);
    other.run("DEL k");
    other.run("SET k other");
    b.expect(&[("EXEC", "(nil)")]);
    assert_eq!(messages(&mut a, &mut other), ["pmessage * __keyevent@0__:set k"]);
    b.expect(&[
        ("MULTI", "OK"),
        ("SET k v", "QUEUED"),
        ("PUBLISH c m", "QUEUED"),
        ("LPUSH k no-list", "QUEUED"),
        ("USE photos", "QUEUED"),
        ("SET l v", "QUEUED"),
        ("USE 0", "QUEUED"),
    ]);
    assert_eq!(messages(&mut a, &mut other), Vec::<String>::new());
    b.run("EXEC");
    let want = [
        "pmessage * __keyevent@0__:set k",
        "pmessage * c m",
        "pmessage * __keyevent@photos__:set l",
    ];
    assert_eq!(messages(&mut a, &mut other), want);

    // A transaction of several connections, with a savepoint.
    let id = b.run("TXN BEGIN").replace("(integer) ", "");
    let join = format!("TXN JOIN {id}");
    let mut c = served.connect();
    b.expect(&[(&join, "OK"), ("INCR n", "(integer) 1"), ("TXN SAVEPOINT s", "OK")]);
    c.expect(&[
        (&join, "OK"),
        ("MULTI", "OK"),
        ("RPUSH list x", "QUEUED"),
        ("PUBLISH c undone", "QUEUED"),
        ("EXEC", "[(integer) 1 (integer) 1]"),
        ("TXN ROLLBACK s", "OK"),
        ("PUBLISH c kept", "(integer) 1"),
    ]);
    assert_eq!(messages(&mut a, &mut other), Vec::<String>::new());
    c.expect(&[("TXN COMMIT", "OK")]);
    assert_eq!(
        messages(&mut a, &mut other),
        ["pmessage * __keyevent@0__:incrby n", "pmessage * c kept"]
    );
    // An aborted transaction, and one with a conflict.
    for end in ["TXN ABORT", "TXN COMMIT"] {
        let id = b.run("TXN BEGIN").replace("(integer) ", "");
        b.expect(&[
            (&format!("TXN JOIN {id}"), "OK"),
            ("SET k mine", "OK"),
            ("PUBLISH c m", "(integer) 1"),
        ]);
        other.run("SETNX k x");
        other.run("APPEND k theirs");
        b.run(end);
        b.run("TXN LEAVE");
        let want = ["pmessage * __keyevent@0__:append k"];
        assert_eq!(messages(&mut a, &mut other), want, "{end}");
    }
}

#[test]
fn an_exec_that_fails_sends_nothing() {
    let limits = Limits { whole_replies: 1000, reply: 100, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let (mut a, mut c, mut other) = (subscriber(&served, "*"), served.connect(), served.connect());
    c.run(&format!("SET long {}", "x".repeat(600)));
    c.expect(&[
        ("CONFIG SET notify-keyspace-events EA", "OK"),
        ("MULTI", "OK"),
        ("SET k v", "QUEUED"),
        ("PUBLISH c m", "QUEUED"),
        ("GET long", "QUEUED"),
        ("GET long", "QUEUED"),
    ]);
    let failed = c.run("EXEC");
    assert!(failed.starts_with("(error) LIMIT the replies of this EXEC"), "{failed}");
    assert_eq!(messages(&mut a, &mut other), Vec::<String>::new());
    c.expect(&[("MULTI", "OK"), ("SET l v", "QUEUED"), ("EXEC", "[OK]"), ("GET k", "(nil)")]);
    assert_eq!(messages(&mut a, &mut other), ["pmessage * __keyevent@0__:set l"]);
}

#[test]
fn events_are_those_of_redis() {
    let served = serve(ServerOptions::default());
    let (mut a, mut c, mut other) =
        (subscriber(&served, "__keyevent*"), served.connect(), served.connect());
    c.run("SET before x");
    assert_eq!(events(&mut a, &mut other), Vec::<String>::new(), "off by default");
    assert_eq!(c.run("CONFIG SET notify-keyspace-events EAn"), "OK");
    assert_eq!(c.run("CONFIG GET notify-keyspace-events"), "[\"notify-keyspace-events\" \"AnE\"]");
    for (command, want) in [
        ("SET s 1", "new s, set s"),
        ("SET s 1", "set s"),
        ("SET s 2 NX", ""),
        ("SET s 1 XX EX 100", "set s, expire s"),
        ("MSET s 1 t 2", "set s, new t, set t"),
        ("MSETNX u 1 s 2", ""),
        ("MSETNX u 1 v 2", "new u, set u, new v, set v"),
        ("GETSET s 5", "set s"),
        ("SETRANGE s 3 x", "setrange s"),
        ("APPEND s y", "append s"),
        ("INCR t", "incrby t"),
        ("DECRBY t 2", "incrby t"),
        ("INCRBYFLOAT t 1.5", "incrbyfloat t"),
        ("SETBIT s 1 1", "setbit s"),
        ("BITFIELD s GET u8 0", ""),
        ("BITFIELD s SET u8 0 1", "setbit s"),
        ("BITOP OR x s t", "new x, set x"),
        ("BITOP OR x none none", "del x"),
        ("EXPIRE s 100", "expire s"),
        ("GETEX s PX 100000", "expire s"),
        ("GETEX s PERSIST", "persist s"),
        ("PERSIST s", ""),
        ("EXPIRE s -1", "del s"),
        ("SET s 1 PXAT 1", "set s, expire s, expired s"),
        ("RENAME t s", "new s, rename_from t, rename_to s"),
        ("COPY s t", "new t, copy_to t"),
        ("GETDEL t", "del t"),
        ("DEL s none u v", "del s, del u, del v"),
        ("HSET h f 1 g 2", "new h, hset h"),
        ("HSETNX h f 2", ""),
        ("HINCRBY h f 2", "hincrby h"),
        ("HINCRBYFLOAT h f 2", "hincrbyfloat h"),
        ("HDEL h none", ""),
        ("HDEL h f", "hdel h"),
        ("HDEL h g", "hdel h, del h"),
        ("SADD m a b c", "new m, sadd m"),
        ("SADD m a", ""),
        ("SREM m x", ""),
        ("SREM m a", "srem m"),
        ("SMOVE m n b", "srem m, new n, sadd n"),
        ("SPOP m", "spop m, del m"),
        ("SUNIONSTORE m n", "new m, sunionstore m"),
        ("SINTERSTORE m n none", "del m"),
        ("ZADD z 1 a 2 b 3 c", "new z, zadd z"),
        ("ZADD z XX 1 none", ""),
        ("ZADD z 1 a", ""),
        ("ZADD none XX 1 a", ""),
        ("ZINCRBY z 1 a", "zincr z"),
        ("ZREM z none", ""),
        ("ZREM z a", "zrem z"),
        ("ZRANGESTORE y z 0 -1", "new y, zrangestore y"),
        ("ZPOPMIN z", "zpopmin z"),
        ("ZPOPMAX z", "zpopmax z, del z"),
        ("ZREMRANGEBYRANK y 0 0", "zremrangebyrank y"),
        ("ZREMRANGEBYSCORE y 100 200", ""),
        ("ZUNIONSTORE z 1 y", "new z, zunionstore z"),
        ("ZDIFFSTORE z 1 none", "del z"),
        ("LPUSHX l a", ""),
        ("LPUSH l a b c", "new l, lpush l"),
        ("RPUSHX l d", "rpush l"),
        ("LSET l 0 x", "lset l"),
        ("LINSERT l BEFORE x y", "linsert l"),
        ("LREM l 0 none", ""),
        ("LREM l 0 y", "lrem l"),
        ("LTRIM l 0 2", "ltrim l"),
        ("LPOP l 1", "lpop l"),
        ("LMOVE l l LEFT RIGHT", "rpush l, lpop l"),
        ("RPOPLPUSH l k", "rpop l, new k, lpush k"),
        ("RPOPLPUSH l k", "rpop l, del l, lpush k"),
        ("RENAME k l", "new l, rename_from k, rename_to l"),
        ("RPOP l", "rpop l"),
        ("LPOP l 5", "lpop l, del l"),
        ("LPOP l", ""),
        ("SET ex x PX 100000", "new ex, set ex, expire ex"),
        ("HSET ex f v", ""),
    ] {
        c.run(command);
        assert_eq!(events(&mut a, &mut other).join(", "), want, "{command}");
    }
    // Events go to the channel of the key, and only those of the chosen kinds.
    c.run("CONFIG SET notify-keyspace-events Kl");
    let mut keys = subscriber(&served, "__keyspace*");
    c.run("SET s 1");
    c.run("RPUSH list 1");
    let want = ["pmessage __keyspace* __keyspace@0__:list rpush"];
    assert_eq!(messages(&mut keys, &mut other), want);
    assert_eq!(
        c.run("CONFIG SET notify-keyspace-events Q"),
        "(error) ERR CONFIG SET failed - argument 'notify-keyspace-events': a letter of it means no class of events"
    );
}

/// Random commands: the keys that events name are those of which `CHANGES` says that a commit has
/// changed them.
#[test]
fn events_name_the_keys_that_were_changed() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    c.run("CONFIG SET notify-keyspace-events EA");
    let mut a = subscriber(&served, "__keyevent*");
    let mut random = env::Random::new(66);
    let mut told = 0;
    for _ in 0..2000 {
        let (k, l) = (format!("k{}", random.below(6)), format!("k{}", random.below(6)));
        let (m, n) = (random.below(4), random.below(3));
        let command = match random.below(31) {
            0 => format!("SET {k} {m}"),
            1 => format!("SETNX {k} {m}"),
            2 => format!("MSET {k} {m} {l} {n}"),
            3 => format!("APPEND {k} {m}"),
            4 => format!("INCR {k}"),
            5 => format!("DEL {k} {l}"),
            6 => format!("RENAME {k} {l}"),
            7 => format!("COPY {k} {l} REPLACE"),
            8 => format!("EXPIRE {k} {}", random.below(2) * 1000),
            9 => format!("PERSIST {k}"),
            10 => format!("GETDEL {k}"),
            11 => format!("HSET {k} {m} {n}"),
            12 => format!("HSETNX {k} {m} {n}"),
            13 => format!("HDEL {k} {m} {n}"),
            14 => format!("SADD {k} {m} {n}"),
            15 => format!("SREM {k} {m}"),
            16 => format!("SPOP {k} {n}"),
            17 => format!("SMOVE {k} {l} {m}"),
            18 => format!("SUNIONSTORE {k} {k} {l}"),
            19 => format!("ZADD {k} XX {n} {m}"),
            20 => format!("ZADD {k} {n} {m}"),
            21 => format!("ZREM {k} {m}"),
            22 => format!("ZPOPMIN {k} {n}"),
            23 => format!("RPUSH {k} {m}"),
            24 => format!("LPOP {k} {n}"),
            25 => format!("LMOVE {k} {l} LEFT RIGHT"),
            26 => format!("LREM {k} 1 {m}"),
            27 => format!("LTRIM {k} {} {m}", n / 2),
            29 => format!("SORT {k} ALPHA STORE {l}"),
            28 => format!("SETBIT {k} {m} {}", n / 2),
            _ => format!("BLPOP {k} {l} 0.001"),
        };
        let position = c.run("CHANGES NOW").replace('"', "");
        c.run(&command);
        let keys = |mut keys: Vec<String>| {
            keys.sort();
            keys.dedup();
            keys
        };
        let of_events = events(&mut a, &mut other).into_iter();
        let of_events = keys(of_events.filter_map(|e| Some(e.split_once(' ')?.1.into())).collect());
        let changes = c.run(&format!("CHANGES SINCE {position}"));
        let words: Vec<&str> = changes.split(' ').collect();
        let of_changes = words
            .windows(2)
            .filter(|pair| pair[0] == "\"key\"")
            .map(|pair| pair[1].replace('"', ""));
        assert_eq!(of_events, keys(of_changes.collect()), "{command}: {changes}");
        told += of_events.len();
    }
    assert!(told > 500, "{told}");
}

#[test]
fn what_expires_is_told_of_when_it_is_removed() {
    let served = serve(ServerOptions::default());
    let (mut a, mut c) = (subscriber(&served, "__keyevent*"), served.connect());
    c.expect(&[
        ("CONFIG SET notify-keyspace-events Ex", "OK"),
        ("PSETEX s 20 v", "OK"),
        ("RPUSH l v", "(integer) 1"),
        ("PEXPIRE l 20", "(integer) 1"),
    ]);
    let mut expired = [message(&mut a), message(&mut a)];
    expired.sort();
    let event = |key| format!("pmessage __keyevent* __keyevent@0__:expired {key}");
    assert_eq!(expired, [event("l"), event("s")]);
    // Nothing is removed in the background. The write that replaces the key raises the event.
    c.expect(&[("DEBUG SET-ACTIVE-EXPIRE 0", "OK"), ("PSETEX s 5 v", "OK")]);
    while c.run("GET s") != "(nil)" {
        std::thread::yield_now();
    }
    c.expect(&[("SET s w", "OK")]);
    assert_eq!(message(&mut a), event("s"));
}

/// When an event arrives, its change is visible.
#[test]
fn events_come_behind_what_they_tell_of() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    other.run("CONFIG SET notify-keyspace-events E$");
    let mut a = subscriber(&served, "__keyevent*");
    let writing = {
        let mut c = served.connect();
        std::thread::spawn(move || {
            for i in 0..300 {
                match i % 3 {
                    0 => drop(c.run(&format!("SET k{i} {i}"))),
                    1 => {
                        c.run("MULTI");
                        c.run(&format!("SET k{i} {i}"));
                        c.run("EXEC");
                    }
                    _ => {
                        let id = c.run("TXN BEGIN").replace("(integer) ", "");
                        c.run(&format!("TXN JOIN {id}"));
                        c.run(&format!("SET k{i} {i}"));
                        c.run("TXN COMMIT");
                    }
                }
            }
        })
    };
    for i in 0..300 {
        assert_eq!(message(&mut a), format!("pmessage __keyevent* __keyevent@0__:set k{i}"));
        assert_eq!(other.run(&format!("GET k{i}")), format!("\"{i}\""));
    }
    writing.join().expect("it wrote");
}

#[test]
fn all_subscribers_of_a_channel_get_the_messages_in_one_order() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (subscriber(&served, "c"), subscriber(&served, "*"));
    std::thread::scope(|scope| {
        for publisher in 0..3 {
            let mut c = served.connect();
            scope.spawn(move || {
                (0..200).for_each(|i| drop(c.run(&format!("PUBLISH c {publisher}-{i}"))));
            });
        }
        let of = |c: &mut Raw| -> Vec<String> {
            let last = |message: String| message.rsplit(' ').next().unwrap_or_default().to_string();
            (0..600).map(|_| last(message(c))).collect()
        };
        let (of_a, of_b) = (of(&mut a), of(&mut b));
        assert_eq!(of_a, of_b);
        for publisher in 0..3 {
            let own = format!("{publisher}-");
            let own: Vec<_> = of_a.iter().filter(|payload| payload.starts_with(&own)).collect();
            let want: Vec<_> = (0..200).map(|i| format!("{publisher}-{i}")).collect();
            assert_eq!(own, want.iter().collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_no_publisher_waits_for_it() {
    let limits = Limits { mailbox: 100_000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut slow = subscriber(&served, "*");
    let (mut fast, mut other) = (subscriber(&served, "*"), served.connect());
    let payload = "x".repeat(10_000);
    // The bytes in the sockets are not counted, so reaching the limit takes a while.
    let mut sent = 0;
    while other.run(&format!("PUBLISH c {payload}")) == "(integer) 2" {
        assert_eq!(message(&mut fast), format!("pmessage * c {payload}"));
        sent += 1;
        assert!(sent < 10_000, "the subscriber that does not read is still there");
    }
    assert_eq!(message(&mut fast), format!("pmessage * c {payload}"));
    slow.0.get_mut().set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let mut rest = Vec::new();
    // Messages that had left before the end arrive, and then the stream ends.
    slow.0.read_to_end(&mut rest).ok();
    assert!(rest.len() < sent * payload.len());
}

#[test]
fn subscriptions_are_bounded() {
    let limits = Limits { subscriptions: 1000, key: 100, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    c.send(b"SUBSCRIBE a b c d e f g h\r\n");
    let replies: Vec<Reply> = (0..8).map(|_| c.reply().expect("a reply")).collect();
    assert_eq!(replies.iter().filter(|reply| matches!(reply, Reply::Array(_))).count(), 7);
    let Reply::Error(error) = &replies[7] else { panic!("{}", show(&replies[7])) };
    assert!(error.starts_with("LIMIT "), "{error}");
    let long = "x".repeat(101);
    assert_eq!(
        c.run(&format!("PSUBSCRIBE {long}")),
        "(error) ERR a channel's name has up to 100 bytes"
    );
}

#[test]
fn a_transaction_keeps_so_many_messages_and_no_more() {
    let limits = Limits { effects: 1000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let (mut a, mut c, mut other) = (subscriber(&served, "*"), served.connect(), served.connect());
    c.run("CONFIG SET notify-keyspace-events EA");
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    let long = "x".repeat(600);
    c.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        (&format!("PUBLISH c {long}"), "(integer) 1"),
        (
            &format!("PUBLISH c {long}"),
            "(error) LIMIT the messages of one transaction take more than 1000 bytes: publish them behind it",
        ),
    ]);
    // All writes succeed, but the events of some are dropped.
    (0..20).for_each(|i| assert_eq!(c.run(&format!("SET key-{i} v")), "OK"));
    assert_eq!(c.run("TXN COMMIT"), "OK");
    let mut told = messages(&mut a, &mut other);
    assert_eq!(told.pop().as_deref(), Some("pmessage * __keyevent@0__:lost 0  "));
    let told = told.len();
    assert!((2..20).contains(&told), "{told}");
    assert_eq!(c.run("DBSIZE"), "(integer) 20");
    assert!(c.run("INFO stats").contains(&format!("events_dropped:{}", 21 - told)));
}

#[test]
fn messages_come_to_a_client_that_wants_no_replies_and_waits() {
    let served = serve(ServerOptions::default());
    let (mut a, mut other) = (served.connect(), served.connect());
    a.0.get_ref().set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    a.run("HELLO 3");
    assert_eq!(a.run("SUBSCRIBE news"), "[\"subscribe\" \"news\" (integer) 1]");
    a.send(b"CLIENT REPLY OFF\r\nBLPOP queue 0\r\n");
    while !other.run("INFO clients").contains("blocked_clients:1\\r") {
        std::thread::yield_now();
    }
    assert_eq!(other.run("PUBLISH news one"), "(integer) 1");
    assert_eq!(message(&mut a), "message news one");
    assert_eq!(other.run("RPUSH queue taken"), "(integer) 1");
    // The next reply is that of this command.
    a.send(b"CLIENT REPLY ON\r\n");
    assert_eq!(show(&a.reply().expect("a reply")), "OK");
}
