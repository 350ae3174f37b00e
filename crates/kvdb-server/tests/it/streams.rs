//! Tests of streams: how entries are stored and shared, how clients wait for entries, and groups of
//! consumers. `beside_redis` tests that each reply equals that of Redis.

use crate::served::{Raw, Served, serve, serve_db, show, tuples};
use kvdb::Kvdb;
use kvdb_server::ServerOptions;

const WRONGTYPE: &str = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";

/// Waits until this many clients wait.
fn until_blocked(c: &mut Raw, clients: usize) {
    let line = format!("blocked_clients:{clients}\\r");
    while !c.run("INFO clients").contains(&line) {
        std::thread::yield_now();
    }
}

/// A client that waits, with this command.
fn waiting(served: &Served, other: &mut Raw, command: &str, clients: usize) -> Raw {
    let mut c = served.connect();
    c.send(format!("{command}\r\n").as_bytes());
    until_blocked(other, clients);
    c
}

fn reply(c: &mut Raw) -> String {
    show(&c.reply().expect("a reply"))
}

fn join(c: &mut Raw) {
    let id = c.run("TXN BEGIN");
    c.run(&format!("TXN JOIN {}", id.trim_start_matches("(integer) ")));
}

#[test]
fn entries_come_in_the_order_of_their_ids() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("XADD s 255-18446744073709551615 f 1", "\"255-18446744073709551615\""),
        ("XADD s 256-* f 2", "\"256-0\""),
        ("XADD s 256-* f 3 g 4", "\"256-1\""),
        (
            "XADD s 256-1 f 5",
            "(error) ERR The ID specified in XADD is equal or smaller than the target stream top \
             item",
        ),
        ("XLEN s", "(integer) 3"),
        ("XRANGE s (255-18446744073709551615 + COUNT 1", "[[\"256-0\" [\"f\" \"2\"]]]"),
        ("XREVRANGE s + - COUNT 1", "[[\"256-1\" [\"f\" \"3\" \"g\" \"4\"]]]"),
        ("XREAD COUNT 1 STREAMS s none 256 0", "[[\"s\" [[\"256-1\" [\"f\" \"3\" \"g\" \"4\"]]]]]"),
        ("XDEL s 256-0 7-7", "(integer) 1"),
        ("XTRIM s MAXLEN 1", "(integer) 1"),
        ("XRANGE s - +", "[[\"256-1\" [\"f\" \"3\" \"g\" \"4\"]]]"),
    ]);
    // An entry gets its own time, and no ID is used twice.
    let first = c.run("XADD s * f 6");
    let second = c.run("XADD s * f 7");
    assert!(first < second && first.len() > "\"1700000000000-0\"".len() - 1, "{first} {second}");
}

#[test]
fn a_stream_without_entries_is_still_one() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("XADD s 5-1 f v", "\"5-1\""),
        ("XDEL s 5-1", "(integer) 1"),
        ("EXISTS s", "(integer) 1"),
        ("XLEN s", "(integer) 0"),
        ("XRANGE s - +", "[]"),
        ("XADD s 5-* f v", "\"5-2\""),
        ("XADD s MAXLEN 0 6-1 f v", "\"6-1\""),
        ("XLEN s", "(integer) 0"),
        ("DEL s", "(integer) 1"),
        ("EXISTS s", "(integer) 0"),
    ]);
    assert_eq!(tuples(&db).1, 0, "nothing of it stays");
}

#[test]
fn long_streams_are_trimmed_exactly_or_in_hundreds() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for id in 1..=350 {
        c.run(&format!("XADD s {id} f {id}"));
    }
    c.expect(&[
        ("XTRIM s MAXLEN ~ 300", "(integer) 0"),
        ("XTRIM s MAXLEN ~ 100 LIMIT 150", "(integer) 100"),
        ("XRANGE s - + COUNT 1", "[[\"101-0\" [\"f\" \"101\"]]]"),
        ("XTRIM s MINID ~ 250", "(integer) 100"),
        ("XTRIM s MINID 250", "(integer) 49"),
        ("XRANGE s - + COUNT 1", "[[\"250-0\" [\"f\" \"250\"]]]"),
        ("XADD s MAXLEN = 2 351 f 351", "\"351-0\""),
        ("XRANGE s - +", "[[\"350-0\" [\"f\" \"350\"]] [\"351-0\" [\"f\" \"351\"]]]"),
        ("XADD s MINID 400 352 f 352", "\"352-0\""),
        ("XLEN s", "(integer) 0"),
    ]);
}

#[test]
fn commands_on_keys_know_streams() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for command in ["XADD s 1-1 f v", "XADD s 1-2 f w", "XGROUP CREATE s g 0", "SET string x"] {
        c.run(command);
    }
    let all = "[[\"1-1\" [\"f\" \"v\"]] [\"1-2\" [\"f\" \"w\"]]]";
    c.expect(&[
        ("TYPE s", "stream"),
        ("OBJECT ENCODING s", "\"stream\""),
        ("SCAN 0 TYPE stream", "[\"0\" [\"s\"]]"),
        ("GET s", WRONGTYPE),
        ("LPUSH s x", WRONGTYPE),
        ("SORT s", WRONGTYPE),
        ("XADD string * f v", WRONGTYPE),
        ("XREAD STREAMS s string 0 0", WRONGTYPE),
        ("XGROUP CREATE string g 0 MKSTREAM", WRONGTYPE),
        ("COPY s copied", "(integer) 1"),
        ("XADD copied 1-3 f x", "\"1-3\""),
        ("RENAME s renamed", "OK"),
        ("XRANGE renamed - +", all),
        ("XLEN copied", "(integer) 3"),
        (
            "XREADGROUP GROUP g c COUNT 1 STREAMS copied >",
            "[[\"copied\" [[\"1-1\" [\"f\" \"v\"]]]]]",
        ),
        ("XPENDING renamed g", "[(integer) 0 (nil) (nil) (nil)]"),
        ("EXPIRE renamed 1000", "(integer) 1"),
        ("XADD renamed 2-0 f y", "\"2-0\""),
        ("PERSIST renamed", "(integer) 1"),
        ("SET copied x", "OK"),
        ("PEXPIRE renamed 0", "(integer) 1"),
        ("XLEN renamed", "(integer) 0"),
        ("DBSIZE", "(integer) 2"),
    ]);
}

#[test]
fn all_who_wait_for_a_stream_are_told_of_an_entry() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    other.run("XADD s 1-1 f old");
    let mut all: Vec<Raw> = (1..=3)
        .map(|n| waiting(&served, &mut other, "XREAD BLOCK 0 STREAMS none s 0 $", n))
        .collect();
    // An entry of a transaction exists when the transaction is committed.
    join(&mut other);
    other.run("XADD s 1-2 f new");
    until_blocked(&mut served.connect(), 3);
    assert_eq!(other.run("TXN COMMIT"), "OK");
    for c in &mut all {
        assert_eq!(reply(c), "[[\"s\" [[\"1-2\" [\"f\" \"new\"]]]]]");
    }
    let mut c = served.connect();
    c.expect(&[
        ("XREAD BLOCK 1 STREAMS s $", "(nil)"),
        ("MULTI", "OK"),
        ("XREAD BLOCK 0 STREAMS s $", "QUEUED"),
        ("EXEC", "[(nil)]"),
        ("XREAD BLOCK -1 STREAMS s $", "(error) ERR timeout is negative"),
    ]);
}

/// Redis 7.0 replies with the stream that was filled first; a reader that asks for the new entries
/// of the others by `$` would miss those of the same transaction.
#[test]
fn who_waits_for_several_streams_gets_all_that_a_transaction_fills_in_the_order_of_the_keys() {
    for words in ["XREAD", "XREADGROUP GROUP g one"] {
        let served = serve(ServerOptions::default());
        let mut other = served.connect();
        for key in ["a", "b", "c"] {
            assert_eq!(other.run(&format!("XGROUP CREATE {key} g $ MKSTREAM")), "OK");
        }
        let new = if words == "XREAD" { "$ $ $" } else { "> > >" };
        let read = format!("{words} BLOCK 0 STREAMS a b c {new}");
        for (id, joined) in [("1-1", false), ("2-1", true)] {
            let mut reader = waiting(&served, &mut other, &read, 1);
            let (first, last) = (format!("XADD c {id} f 1"), format!("XADD a {id} f 2"));
            if joined {
                join(&mut other);
            } else {
                assert_eq!(other.run("MULTI"), "OK");
            }
            for command in [&first, &last] {
                assert!(!other.run(command).starts_with("(error)"), "{command}");
            }
            let end = other.run(if joined { "TXN COMMIT" } else { "EXEC" });
            assert!(!end.starts_with("(error)"), "{end}");
            let entry =
                |key: &str, value: u8| format!("[\"{key}\" [[\"{id}\" [\"f\" \"{value}\"]]]]");
            assert_eq!(reply(&mut reader), format!("[{} {}]", entry("a", 2), entry("c", 1)));
        }
    }
}

#[test]
fn each_entry_is_delivered_to_one_consumer_that_waits() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    other.run("XGROUP CREATE s g $ MKSTREAM");
    let read = |c: &str| format!("XREADGROUP GROUP g {c} COUNT 1 BLOCK 0 STREAMS s >");
    let mut a = waiting(&served, &mut other, &read("a"), 1);
    let mut b = waiting(&served, &mut other, &read("b"), 2);
    for command in ["MULTI", "XADD s 1-1 f x", "XADD s 1-2 f y", "EXEC"] {
        other.run(command);
    }
    let mut got = [reply(&mut a), reply(&mut b)];
    got.sort();
    let entry = |id: &str, value: &str| format!("[[\"s\" [[\"{id}\" [\"f\" \"{value}\"]]]]]");
    assert_eq!(got, [entry("1-1", "x"), entry("1-2", "y")]);
    let summary = "[(integer) 2 \"1-1\" \"1-2\" [[\"a\" \"1\"] [\"b\" \"1\"]]]";
    assert_eq!(other.run("XPENDING s g"), summary);
}

#[test]
fn what_is_not_acknowledged_is_delivered_again_or_claimed() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let both = "[[\"s\" [[\"1-1\" [\"f\" \"x\"]] [\"1-2\" [\"f\" \"y\"]]]]]";
    for command in ["XADD s 1-1 f x", "XADD s 1-2 f y", "XGROUP CREATE s g 0"] {
        c.run(command);
    }
    c.expect(&[
        ("XGROUP CREATE s g 0", "(error) BUSYGROUP Consumer Group name already exists"),
        ("XREADGROUP GROUP g a STREAMS s >", both),
        ("XREADGROUP GROUP g a STREAMS s >", "(nil)"),
        ("XREADGROUP GROUP g a STREAMS s 0", both),
        ("XREADGROUP GROUP g b STREAMS s 0", "[[\"s\" []]]"),
        ("XACK s g 1-1 9-9", "(integer) 1"),
        ("XCLAIM s g b 100000 1-2", "[]"),
        ("XCLAIM s g b 0 1-2", "[[\"1-2\" [\"f\" \"y\"]]]"),
        ("XREADGROUP GROUP g a STREAMS s 0", "[[\"s\" []]]"),
        ("XAUTOCLAIM s g c 0 - JUSTID", "[\"0-0\" [\"1-2\"] []]"),
        ("XDEL s 1-2", "(integer) 1"),
        ("XREADGROUP GROUP g c STREAMS s 0", "[[\"s\" [[\"1-2\" (nil)]]]]"),
        ("XAUTOCLAIM s g c 0 -", "[\"0-0\" [] [\"1-2\"]]"),
        ("XPENDING s g", "[(integer) 0 (nil) (nil) (nil)]"),
        ("XGROUP DESTROY s g", "(integer) 1"),
        (
            "XREADGROUP GROUP g a STREAMS s >",
            "(error) NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option",
        ),
    ]);
}

#[test]
fn a_transaction_has_all_of_its_changes_or_none() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    for command in ["XADD s 1-1 f x", "XGROUP CREATE s g 0", "XADD other 1-1 f x"] {
        b.run(command);
    }
    join(&mut a);
    let took = "[[\"s\" [[\"1-1\" [\"f\" \"x\"]]]]]";
    a.expect(&[
        ("XADD s 2-1 f y", "\"2-1\""),
        ("XREADGROUP GROUP g c COUNT 1 STREAMS s >", took),
        ("DEL other", "(integer) 1"),
    ]);
    b.expect(&[
        ("XLEN s", "(integer) 1"),
        ("XPENDING s g", "[(integer) 0 (nil) (nil) (nil)]"),
        ("XLEN other", "(integer) 1"),
    ]);
    assert_eq!(a.run("TXN ABORT"), "OK");
    b.expect(&[
        ("XLEN s", "(integer) 1"),
        ("XREADGROUP GROUP g c STREAMS s >", took),
        ("XLEN other", "(integer) 1"),
    ]);
}

#[test]
fn transactions_that_add_to_one_stream_conflict() {
    for (begun, first, second) in [
        ("XADD s 1-1 f v", "XADD s 2-1 f a", "XADD s 2-2 f b"),
        ("SET other x", "XADD s 2-1 f a", "XADD s 2-2 f b"),
        ("SET other x", "SET s x", "XADD s 2-2 f b"),
        ("XADD s 1-1 f v", "XGROUP CREATE s g 0", "XGROUP CREATE s g $"),
    ] {
        let served = serve(ServerOptions::default());
        let (mut a, mut b) = (served.connect(), served.connect());
        a.run(begun);
        for (c, command) in [(&mut a, first), (&mut b, second)] {
            join(c);
            assert!(!c.run(command).contains("error"), "{command}");
        }
        assert_eq!(a.run("TXN COMMIT"), "OK");
        let said = b.run("TXN COMMIT");
        assert!(said.starts_with("(error) CONFLICT"), "{first}, {second}: {said}");
    }
    // Transactions that acknowledge different entries do not.
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    for command in ["XADD s 1-1 f x", "XADD s 1-2 f y", "XGROUP CREATE s g 0"] {
        a.run(command);
    }
    a.run("XREADGROUP GROUP g c STREAMS s >");
    for (c, command) in [(&mut a, "XACK s g 1-1"), (&mut b, "XACK s g 1-2")] {
        join(c);
        assert_eq!(c.run(command), "(integer) 1");
    }
    assert_eq!((a.run("TXN COMMIT"), b.run("TXN COMMIT")), ("OK".into(), "OK".into()));
    a.run("TXN LEAVE");
    assert_eq!(a.run("XPENDING s g"), "[(integer) 0 (nil) (nil) (nil)]");
}

#[test]
fn what_a_transaction_did_to_streams_is_listed_undone_and_told() {
    let served = serve(ServerOptions::default());
    let (mut c, mut listens) = (served.connect(), served.connect());
    c.run("CONFIG SET notify-keyspace-events KEt");
    listens.run("PSUBSCRIBE __keyevent@0__:*");
    c.run("XADD s 1-1 f x");
    c.run("SNAPSHOT CREATE before");
    join(&mut c);
    c.run("XADD s MAXLEN 1 1-2 f y");
    c.run("XGROUP CREATE s g 0");
    let changes = c.run("TXN CHANGES");
    assert!(changes.contains("\"type\" \"s\" \"stream\" \"stream\""), "{changes}");
    assert_eq!(c.run("TXN COMMIT"), "OK");
    for event in ["xadd", "xadd", "xtrim", "xgroup-create"] {
        let said = reply(&mut listens);
        assert!(said.ends_with(&format!("__keyevent@0__:{event}\" \"s\"]")), "{event}: {said}");
    }
    c.run("TXN LEAVE");
    assert_eq!(c.run("XRANGE s - +"), "[[\"1-2\" [\"f\" \"y\"]]]");
    assert_eq!(c.run("SNAPSHOT ROLLBACK before"), "OK");
    assert_eq!(c.run("XRANGE s - +"), "[[\"1-1\" [\"f\" \"x\"]]]");
    assert_eq!(c.run("XINFO GROUPS s"), "[]");
}

#[test]
fn entries_and_names_that_are_too_long_are_refused() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let long = "x".repeat(9000);
    c.run("XADD s 1-1 f v");
    let refused = c.run(&format!("XGROUP CREATE s {long} 0"));
    assert!(refused.contains("longer than the limit of 8192"), "{refused}");
    c.run("XGROUP CREATE s g 0");
    let refused = c.run(&format!("XREADGROUP GROUP g {long} STREAMS s >"));
    assert!(refused.contains("longer than the limit of 8192"), "{refused}");
    let half = "x".repeat(3 << 20);
    let add = format!("*7\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n{0}{0}", {
        format!("$1\r\nf\r\n${}\r\n{half}\r\n", half.len())
    });
    c.send(add.as_bytes());
    assert!(reply(&mut c).starts_with("(error) LIMIT an entry of a stream takes more than"));
    assert_eq!(c.run("XLEN s"), "(integer) 1");
}

#[test]
fn who_waits_in_a_group_is_told_that_the_stream_or_the_group_is_gone() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    for (goes, why) in [
        ("DEL s", "UNBLOCKED"),
        ("SET s x", "UNBLOCKED"),
        ("RENAME s other", "UNBLOCKED"),
        ("FLUSHDB", "UNBLOCKED"),
        ("XGROUP DESTROY s g", "NOGROUP"),
    ] {
        other.run("DEL s");
        other.run("XGROUP CREATE s g $ MKSTREAM");
        let read = "XREADGROUP GROUP g c BLOCK 0 STREAMS s >";
        let mut c = waiting(&served, &mut other, read, 1);
        assert!(!other.run(goes).contains("error"), "{goes}");
        let said = reply(&mut c);
        assert!(said.starts_with(&format!("(error) {why} ")), "{goes}: {said}");
    }
}
