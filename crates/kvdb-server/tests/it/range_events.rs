//! Tests of the events of operations that change many keys at once: range deletions, rollbacks,
//! undone commits, and events that were dropped for lack of space. Every subscriber to a key, or to
//! a pattern that the key matches, is notified.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::served::{Raw, Served, clocked_store, serve, serve_db, show};
use env::Random;
use kvdb::Kvdb;
use kvdb_server::{Limits, Reply, ServerOptions};

/// The next message, without quotation marks.
#[track_caller]
fn message(c: &mut Raw) -> String {
    let reply = c.reply().expect("a message");
    let Reply::Array(parts) = &reply else { panic!("no message: {}", show(&reply)) };
    parts.iter().map(show).collect::<Vec<_>>().join(" ").replace('"', "")
}

/// The messages up to a final one that is sent after all of them, each without its kind and
/// pattern.
#[track_caller]
fn told(c: &mut Raw, other: &mut Raw) -> Vec<String> {
    static ENDS: AtomicU64 = AtomicU64::new(0);
    let end = ENDS.fetch_add(1, Ordering::Relaxed);
    other.run(&format!("PUBLISH end {end}"));
    let mut all = Vec::new();
    loop {
        let message = message(c);
        match message.strip_prefix("message end ") {
            Some(number) if *number == end.to_string() => return all,
            // For another client.
            Some(_) => continue,
            None => {}
        }
        let at = message.rfind("__key").expect("an event");
        all.push(message[at..].to_string());
    }
}

fn subscriber(served: &Served, words: &str) -> Raw {
    let mut c = served.connect();
    c.run("SUBSCRIBE end");
    c.run(words);
    c
}

/// A server that raises events. For a range it raises single events for at most this many keys.
fn with_events(events: usize) -> (Served, Raw) {
    with_events_of(Kvdb::in_memory(), events)
}

fn with_events_of(db: Kvdb, events: usize) -> (Served, Raw) {
    let limits = Limits { events, ..Limits::default() };
    let served = serve_db(db, ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    c.run("CONFIG SET notify-keyspace-events KEA");
    (served, c)
}

#[test]
fn the_keys_of_a_deleted_range_have_an_event_each() {
    let (served, mut c) = with_events(4);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    for (command, want) in [
        ("DELRANGE a c", "del a, del b, del bb"),
        ("DELPREFIX b", "del b, del bb"),
        ("DELRANGE x z", ""),
        ("DELRANGE c a", ""),
        ("FLUSHDB", "del a, del b, del bb, del c"),
        ("FLUSHALL", "del a, del b, del bb, del c"),
    ] {
        c.run("FLUSHALL");
        for put in ["SET a 1", "HSET b f v", "RPUSH bb x", "SETRANGE c 400000 x"] {
            c.run(put);
        }
        told(&mut a, &mut other);
        assert_eq!(c.run(command), "OK");
        let told = told(&mut a, &mut other);
        let told: Vec<&str> = told.iter().map(|m| &m["__keyevent@0__:".len()..]).collect();
        assert_eq!(told.join(", "), want, "{command}");
    }
}

#[test]
fn a_range_with_too_many_keys_has_one_event_that_reaches_all_whom_it_concerns() {
    let (served, mut c) = with_events(4);
    let mut other = served.connect();
    let subscribers = [
        ("SUBSCRIBE __keyspace@0__:user:7", "__keyspace@0__:user:7 delrange"),
        ("SUBSCRIBE __keyspace@0__:user:none", "__keyspace@0__:user:none delrange"),
        ("SUBSCRIBE __keyspace@0__:uses", ""),
        ("SUBSCRIBE __keyspace@1__:user:7", ""),
        ("PSUBSCRIBE __keyspace@0__:*", "__keyspace@0__:user: delrange"),
        ("PSUBSCRIBE __keyspace@0__:user:7*", "__keyspace@0__:user: delrange"),
        ("PSUBSCRIBE __keyspace@?__:u*", "__keyspace@0__:user: delrange"),
        ("PSUBSCRIBE __keyspace@0__:v*", ""),
        ("PSUBSCRIBE __keyspace@0__:user9*", ""),
        ("SUBSCRIBE __keyevent@0__:delrange", "__keyevent@0__:delrange 5 user: user;"),
    ];
    let mut clients: Vec<Raw> =
        subscribers.iter().map(|(words, _)| subscriber(&served, words)).collect();
    (0..9).for_each(|i| drop(c.run(&format!("SET user:{i} v"))));
    clients.iter_mut().for_each(|client| drop(told(client, &mut other)));
    assert_eq!(c.run("DELPREFIX user:"), "OK");
    for (client, (words, want)) in clients.iter_mut().zip(subscribers) {
        assert_eq!(told(client, &mut other).join(", "), want, "{words}");
    }
    // To the last key.
    (0..9).for_each(|i| drop(c.run(&format!("SADD set:{i} v"))));
    clients.iter_mut().for_each(|client| drop(told(client, &mut other)));
    assert_eq!(c.run("FLUSHDB"), "OK");
    assert_eq!(told(&mut clients[0], &mut other), ["__keyspace@0__:user:7 delrange"]);
    assert_eq!(told(&mut clients[9], &mut other), ["__keyevent@0__:delrange 0  "]);
    assert_eq!(told(&mut clients[7], &mut other), ["__keyspace@0__: delrange"]);
}

#[test]
fn what_has_expired_and_goes_with_a_range_has_expired() {
    let (clock, db) = clocked_store();
    let (served, mut c) = with_events_of(db, 4);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    c.expect(&[("DEBUG SET-ACTIVE-EXPIRE 0", "OK"), ("PSETEX k 1 v", "OK")]);
    clock.advance(Duration::from_millis(2));
    assert_eq!(c.run("GET k"), "(nil)");
    told(&mut a, &mut other);
    c.run("DELRANGE - +");
    assert_eq!(told(&mut a, &mut other), ["__keyevent@0__:expired k"]);
}

#[test]
fn in_a_transaction_a_deleted_range_is_told_of_with_the_commit_or_not_at_all() {
    let (served, mut c) = with_events(1);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    let prepare = |c: &mut Raw, a: &mut Raw, other: &mut Raw| {
        c.run("MSET a 1 b 2 c 3");
        told(a, other);
    };
    prepare(&mut c, &mut a, &mut other);
    c.expect(&[("MULTI", "OK"), ("DELRANGE a c", "QUEUED"), ("USE 1", "QUEUED")]);
    assert_eq!(told(&mut a, &mut other), Vec::<String>::new());
    c.expect(&[("EXEC", "[OK OK]"), ("USE 0", "OK")]);
    assert_eq!(told(&mut a, &mut other), ["__keyevent@0__:delrange 1 a c"]);

    prepare(&mut c, &mut a, &mut other);
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        ("DEL c", "(integer) 1"),
        ("TXN SAVEPOINT s", "OK"),
        ("DELPREFIX b", "OK"),
        ("TXN ROLLBACK s", "OK"),
        ("DELRANGE - b EXACT", "OK"),
        ("DELRANGE a b", "OK"),
    ]);
    assert_eq!(told(&mut a, &mut other), Vec::<String>::new());
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK"), ("KEYS *", "[\"b\"]")]);
    assert_eq!(told(&mut a, &mut other), ["__keyevent@0__:del c", "__keyevent@0__:del a"]);

    prepare(&mut c, &mut a, &mut other);
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("FLUSHALL", "OK"), ("TXN ABORT", "OK")]);
    assert_eq!(told(&mut a, &mut other), Vec::<String>::new());

    // Without a check it also removes keys that others put there later.
    c.run("TXN LEAVE");
    prepare(&mut c, &mut a, &mut other);
    let id = c.run("TXN BEGIN NOCHECK").replace("(integer) ", "");
    c.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("DELRANGE a b", "OK")]);
    other.run("SET aa v");
    told(&mut a, &mut other);
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK"), ("EXISTS a aa", "(integer) 0")]);
    assert_eq!(told(&mut a, &mut other), ["__keyevent@0__:delrange 1 a b"]);
}

#[test]
fn a_clone_tells_those_alone_who_listen_in_it() {
    let (served, mut c) = with_events(1);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    c.run("USE photos");
    c.run("MSET a 1 b 2");
    c.expect(&[("SNAPSHOT CREATE s", "OK"), ("CLONE CREATE s c", "OK")]);
    c.expect(&[("CLONE CREATE s c2", "OK")]);
    let within = |name: &str| {
        let mut client = served.connect();
        client.expect(&[(&format!("CLONE USE {name}"), "OK")]);
        client.run("PSUBSCRIBE __key*");
        client.run("SUBSCRIBE end");
        client
    };
    let (mut b, mut b2) = (within("c"), within("c2"));
    told(&mut a, &mut other);
    c.expect(&[
        ("CLONE USE c DEL a", "(integer) 1"),
        ("CLONE USE c FLUSHALL", "OK"),
        ("CLONE USE c SET later 1", "OK"),
        ("CLONE USE c DICT DROP photos", "OK"),
    ]);
    let want = [
        "__keyspace@photos__:a del",
        "__keyevent@photos__:del a",
        "__keyspace@photos__:b del",
        "__keyevent@photos__:del b",
        "__keyspace@photos__:later set",
        "__keyevent@photos__:set later",
        "__keyspace@photos__: delrange",
        "__keyevent@photos__:delrange 0  ",
    ];
    assert_eq!(told(&mut b, &mut other), want);
    // Dropping the clone removes all of its keys.
    c.expect(&[("CLONE USE c SET k 1", "OK"), ("CLONE DROP c", "OK")]);
    assert_eq!(told(&mut b, &mut other)[2..], want[6..]);
    assert_eq!(told(&mut a, &mut other), Vec::<String>::new(), "no key of the store has changed");
    c.expect(&[("SET a 2", "OK"), ("USE 0", "OK"), ("DICT DROP photos", "OK")]);
    let of_store = ["__keyevent@photos__:set a", "__keyevent@photos__:delrange 0  "];
    assert_eq!(told(&mut a, &mut other), of_store);
    for client in [&mut b, &mut b2] {
        assert_eq!(told(client, &mut other), Vec::<String>::new(), "nor one of another clone");
    }
}

#[test]
fn a_commit_to_a_clone_and_a_message_reach_whom_they_concern() {
    let (served, mut c) = with_events(4);
    c.expect(&[("SET k 1", "OK"), ("SNAPSHOT CREATE s", "OK"), ("CLONE CREATE s c", "OK")]);
    let (mut a, mut other) = (subscriber(&served, "SUBSCRIBE __keyspace@0__:k"), served.connect());
    let mut b = served.connect();
    b.run("CLONE USE c SUBSCRIBE __keyspace@0__:k");
    b.run("SUBSCRIBE end");
    c.expect(&[
        ("TXN BEGIN OF c", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET k 2", "OK"),
        ("TXN COMMIT", "OK"),
        ("TXN LEAVE", "OK"),
    ]);
    assert_eq!(told(&mut b, &mut other), ["__keyspace@0__:k set"]);
    assert_eq!(told(&mut a, &mut other), Vec::<String>::new());
    // A client that subscribes again gets the events of the branch that it uses then.
    b.run("SUBSCRIBE __keyspace@0__:k");
    // The confirmation comes after the ends that others have sent.
    told(&mut b, &mut other);
    c.expect(&[("CLONE USE c SET k 3", "OK"), ("SET k 4", "OK")]);
    for client in [&mut a, &mut b] {
        assert_eq!(told(client, &mut other), ["__keyspace@0__:k set"]);
    }
}

#[test]
fn a_rollback_is_told_to_every_dictionary() {
    let (served, mut c) = with_events(4);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __key*"), served.connect());
    let mut key = subscriber(&served, "SUBSCRIBE __keyspace@0__:k");
    c.run("SET k 1");
    c.run("SNAPSHOT CREATE s");
    c.run("SET k 2");
    c.run("USE later");
    c.run("SET l 1");
    c.run("CLONE CREATE s c");
    c.run("SNAPSHOT CREATE of-clone OF c");
    told(&mut a, &mut other);
    told(&mut key, &mut other);
    let mut within = served.connect();
    within.expect(&[("CLONE USE c", "OK")]);
    within.run("SUBSCRIBE end");
    within.run("SUBSCRIBE __keyspace@0__:k");
    c.expect(&[("SNAPSHOT ROLLBACK of-clone", "OK")]);
    assert_eq!(told(&mut a, &mut other), Vec::<String>::new(), "no key of the store has changed");
    assert_eq!(told(&mut within, &mut other), ["__keyspace@0__:k rollback"]);
    c.expect(&[
        ("SNAPSHOT DROP of-clone", "OK"),
        ("CLONE DROP c", "OK"),
        ("SNAPSHOT ROLLBACK s", "OK"),
    ]);
    let want = ["0", "later"].map(|dictionary| {
        let by_key = format!("__keyspace@{dictionary}__: rollback");
        [by_key, format!("__keyevent@{dictionary}__:rollback 0  ")]
    });
    assert_eq!(told(&mut a, &mut other), want.concat());
    assert_eq!(told(&mut key, &mut other), ["__keyspace@0__:k rollback"]);
    c.expect(&[("USE 0", "OK"), ("GET k", "\"1\"")]);
}

#[test]
fn what_a_commit_changes_back_is_told_of_with_it() {
    let (served, mut c) = with_events(4);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    for many in [false, true] {
        c.run("FLUSHALL");
        c.run("MSET old 1 gone 1");
        c.run("HSET hash f 1");
        let id = c.run("TXN BEGIN UNDOABLE").replace("(integer) ", "");
        c.run(&format!("TXN JOIN {id}"));
        for command in ["SET old 2", "DEL gone", "HSET hash f 2", "RPUSH list x"] {
            c.run(command);
        }
        if many {
            c.run("SET fifth 1");
        }
        c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
        told(&mut a, &mut other);
        for end in ["ABORT", "COMMIT"] {
            c.send(b"TXN UNDO\r\n");
            let reply = c.reply().expect("a reply");
            let Reply::Array(begun) = &reply else { panic!("{}", show(&reply)) };
            let id = show(&begun[0]).replace("(integer) ", "");
            assert_eq!(told(&mut a, &mut other), Vec::<String>::new());
            assert_eq!(c.run(&format!("TXN {end} {id}")), "OK");
            let mut told = told(&mut a, &mut other);
            told.sort();
            let want: &[&str] = match (end, many) {
                ("ABORT", _) => &[],
                (_, true) => &["__keyevent@0__:lost 0  "],
                (_, false) => &[
                    "__keyevent@0__:undo gone",
                    "__keyevent@0__:undo hash",
                    "__keyevent@0__:undo list",
                    "__keyevent@0__:undo old",
                ],
            };
            assert_eq!(told, want, "{end}, many: {many}");
        }
        assert_eq!(c.run("MGET old gone"), "[\"1\" \"1\"]");
    }
}

#[test]
fn a_key_that_is_reverted_is_told_of() {
    let (served, mut c) = with_events(4);
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    c.run("SET k 1");
    let id = c.run("TXN BEGIN NOCHECK").replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    c.expect(&[("SET k 2", "OK"), ("TXN REVERT KEY k", "OK")]);
    // Without a check the commit undoes later changes of others.
    other.run("SET k 3");
    told(&mut a, &mut other);
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK"), ("GET k", "\"1\"")]);
    assert_eq!(told(&mut a, &mut other), ["__keyevent@0__:set k", "__keyevent@0__:revert k"]);
}

#[test]
fn events_that_found_no_room_are_told_as_lost() {
    let limits = Limits { effects: 1000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let (mut a, mut c, mut other) =
        (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect(), served.connect());
    let mut key = subscriber(&served, "SUBSCRIBE __keyspace@0__:k19");
    c.run("CONFIG SET notify-keyspace-events KE$");
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    c.expect(&[("SET k v", "OK"), ("TXN SAVEPOINT s", "OK")]);
    (0..20).for_each(|i| assert_eq!(c.run(&format!("SET k{i} v")), "OK"));
    c.expect(&[("USE other", "OK"), ("SET k v", "OK"), ("TXN ROLLBACK s", "OK")]);
    // Events that were dropped after the savepoint count as never raised.
    c.expect(&[("USE 0", "OK"), ("SET l v", "OK"), ("TXN SAVEPOINT t", "OK")]);
    (0..20).for_each(|i| assert_eq!(c.run(&format!("SET k{i} v")), "OK"));
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
    let events = told(&mut a, &mut other);
    assert_eq!(events[..2], ["__keyevent@0__:set k", "__keyevent@0__:set l"]);
    assert_eq!(events.last().map(String::as_str), Some("__keyevent@0__:lost 0  "));
    assert!(events.len() < 22 && !events.iter().any(|event| event.contains("other")));
    assert_eq!(told(&mut key, &mut other), ["__keyspace@0__:k19 lost"]);
}

#[test]
fn a_transaction_that_has_outlived_its_server_tells_all() {
    let (served, mut c) = with_events(4);
    c.run("USE photos");
    c.run("SET seen 1");
    let id = c.run("TXN BEGIN DURABLE").replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    c.run("SET seen 2");
    drop(c);
    let db = served.db.clone();
    served.server.stop();
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    c.run("CONFIG SET notify-keyspace-events KEA");
    let (mut a, mut other) = (subscriber(&served, "PSUBSCRIBE __keyevent*"), served.connect());
    c.expect(&[(&format!("TXN COMMIT {id}"), "OK")]);
    assert_eq!(told(&mut a, &mut other), ["__keyevent@photos__:lost 0  "]);
}

/// Runs some commands on a few keys in a transaction, which is committed or not.
fn transaction(c: &mut Raw, random: &mut Random) {
    let options = ["", " UNDOABLE", " UNDOABLE", " NOCHECK"][random.below(4) as usize];
    let id = c.run(&format!("TXN BEGIN{options}")).replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    for part in 0..2 {
        (0..random.below(5)).for_each(|_| drop(c.run(&command(random))));
        if part == 0 && random.one_in(3) {
            c.run("TXN SAVEPOINT s");
            (0..random.below(5)).for_each(|_| drop(c.run(&command(random))));
            assert_eq!(c.run("TXN ROLLBACK s"), "OK");
        }
        if random.one_in(4) {
            assert_eq!(c.run(&format!("TXN REVERT KEY k{}", random.below(KEYS))), "OK");
        }
    }
    let end = if random.one_in(4) { "TXN ABORT" } else { "TXN COMMIT" };
    assert_eq!(c.run(end), "OK");
    c.run("TXN LEAVE");
}

const KEYS: u64 = 6;

fn command(random: &mut Random) -> String {
    let (k, l) = (format!("k{}", random.below(KEYS)), format!("k{}", random.below(KEYS)));
    let n = random.below(3);
    match random.below(22) {
        0..3 => format!("SET {k} {n}"),
        3 => format!("SET {k} a-long-string-{n}"),
        4 => format!("APPEND {k} {n}"),
        5 => format!("DEL {k} {l}"),
        6 => format!("RENAME {k} {l}"),
        7 => format!("COPY {k} {l} REPLACE"),
        8 => format!("HSET {k} {n} {n} field {n}"),
        9 => format!("HDEL {k} {n} field"),
        10 => format!("SADD {k} {n}"),
        11 => format!("SPOP {k}"),
        12 => format!("ZADD {k} {n} {n}"),
        13 => format!("RPUSH {k} {n}"),
        14 => format!("LPOP {k} 2"),
        15 => format!("LMOVE {k} {l} LEFT RIGHT"),
        16 => format!("SORT {k} ALPHA STORE {l}"),
        17 => format!("DELRANGE {k} {l}"),
        18 => format!("DELRANGE {k} +"),
        19 => format!("DELPREFIX {}", if n == 0 { "k" } else { &k }),
        20 if n == 0 => "FLUSHDB".into(),
        20 if n == 1 => "FLUSHALL".into(),
        _ => format!("MSET {k} 1 {l} 2"),
    }
}

/// A client that caches keys, and drops those that events name, never keeps an outdated value,
/// however the key was changed.
#[test]
fn a_cache_that_drops_what_events_name_is_never_stale() {
    // Few events, so that ranges have one, and some are lost.
    let limits = Limits { events: 2, effects: 1000, tuple: 10, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let (mut c, mut other) = (served.connect(), served.connect());
    c.run("CONFIG SET notify-keyspace-events KA");
    let mut a = subscriber(&served, "PSUBSCRIBE __keyspace@0__:*");
    let mut random = Random::new(69);
    let mut cache: BTreeMap<String, String> = BTreeMap::new();
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    c.run("SNAPSHOT CREATE s");
    for round in 0..1500 {
        let what = match random.below(12) {
            0..5 => {
                let command = command(&mut random);
                c.run(&command);
                command
            }
            5..9 => {
                transaction(&mut c, &mut random);
                "a transaction".into()
            }
            9 => {
                c.send(b"TXN UNDO\r\n");
                if let Reply::Array(begun) = c.reply().expect("a reply") {
                    let clear = begun[3] == Reply::Array(Vec::new());
                    let end = if clear { "TXN COMMIT" } else { "TXN ABORT" };
                    let id = show(&begun[0]).replace("(integer) ", "");
                    assert_eq!(c.run(&format!("{end} {id}")), "OK");
                }
                "an undo".into()
            }
            10 if random.one_in(3) => {
                assert_eq!(c.run("SNAPSHOT ROLLBACK s"), "OK");
                "a rollback".into()
            }
            10 => {
                c.expect(&[("SNAPSHOT DROP s", "OK"), ("SNAPSHOT CREATE s", "OK")]);
                "a snapshot".into()
            }
            _ => {
                c.run("MULTI");
                let commands: Vec<String> = (0..3).map(|_| command(&mut random)).collect();
                commands.iter().for_each(|command| drop(c.run(command)));
                c.run("EXEC");
                commands.join("; ")
            }
        };
        for event in told(&mut a, &mut other) {
            let (key, event) = event["__keyspace@0__:".len()..].split_once(' ').expect("an event");
            *named.entry(event.into()).or_default() += 1;
            match event {
                "delrange" | "rollback" | "lost" => cache.retain(|cached, _| &**cached < key),
                _ => drop(cache.remove(key)),
            }
        }
        for key in (0..KEYS).map(|n| format!("k{n}")) {
            let holds = c.run(&format!("DUMP {key}"));
            let cached = cache.entry(key.clone()).or_insert_with(|| holds.clone());
            assert_eq!(*cached, holds, "{key} in round {round}: {what}");
        }
    }
    for event in ["del", "delrange", "rollback", "lost", "undo", "revert", "sortstore"] {
        assert!(named.contains_key(event), "{event} is not among {named:?}");
    }
}
