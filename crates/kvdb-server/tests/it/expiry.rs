//! Tests of the deadlines of keys, on a clock that the test advances. At its deadline a key
//! disappears for every reader, and soon afterwards it is removed from the store.

use crate::served;
use std::sync::Arc;
use std::time::Duration;

use crate::served::{clocked_store, serve, show, tuples};
use env::{Env, Simulated};
use kvdb::{Durability, Kvdb};
use kvdb_server::{Client, ServerOptions};

pub struct Clocked {
    pub clock: Arc<Simulated>,
    pub db: Kvdb,
    pub client: Client,
}

pub fn clocked() -> Clocked {
    let (clock, db) = clocked_store();
    Clocked { clock, client: Client::local(db.clone()), db }
}

pub fn run(client: &mut Client, command: &str) -> String {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    show(&client.call(&words).expect("a reply"))
}

impl Clocked {
    pub fn run(&mut self, command: &str) -> String {
        run(&mut self.client, command)
    }
    pub fn expect(&mut self, steps: &[(&str, &str)]) {
        for (i, (command, want)) in steps.iter().enumerate() {
            match command.strip_prefix("wait ") {
                Some(millis) => {
                    self.clock.advance(Duration::from_millis(millis.parse().expect("millis")))
                }
                None => assert_eq!(self.run(command), *want, "step {i}: {command}"),
            }
        }
    }
    pub fn now(&self) -> u64 {
        self.clock.wall().as_millis() as u64
    }
}

#[test]
fn a_key_is_gone_behind_its_deadline_for_every_command() {
    clocked().expect(&[
        ("SET a 1 EX 10", "OK"),
        ("TTL a", "(integer) 10"),
        ("PTTL a", "(integer) 10000"),
        ("SET b 1", "OK"),
        ("TTL b", "(integer) -1"),
        ("HSET h f v", "(integer) 1"),
        ("PEXPIRE h 10000", "(integer) 1"),
        ("wait 9999", ""),
        ("GET a", "\"1\""),
        ("HGET h f", "\"v\""),
        ("DBSIZE", "(integer) 3"),
        ("PTTL a", "(integer) 1"),
        // Within the millisecond of the deadline it may not have lived for all of its time.
        ("wait 1", ""),
        ("GET a", "\"1\""),
        ("HGET h f", "\"v\""),
        ("DBSIZE", "(integer) 3"),
        ("KEYS *", "[\"a\" \"b\" \"h\"]"),
        ("DEBUG SWEEP", "(integer) 0"),
        ("PTTL a", "(integer) 0"),
        ("wait 1", ""),
        ("GET a", "(nil)"),
        ("MGET a b", "[(nil) \"1\"]"),
        ("EXISTS a b h", "(integer) 1"),
        ("STRLEN a", "(integer) 0"),
        ("TYPE a", "none"),
        ("TYPE h", "none"),
        ("HGET h f", "(nil)"),
        ("HLEN h", "(integer) 0"),
        ("HGETALL h", "[]"),
        ("TTL a", "(integer) -2"),
        ("KEYS *", "[\"b\"]"),
        ("SCAN 0", "[\"0\" [\"b\"]]"),
        ("RANGE - +", "[\"b\" \"1\"]"),
        ("RANGE - + REV", "[\"b\" \"1\"]"),
        ("DBSIZE", "(integer) 1"),
        ("RANDOMKEY", "\"b\""),
        ("DEL a h", "(integer) 0"),
        ("RENAME a c", "(error) ERR no such key"),
        ("COPY h c", "(integer) 0"),
        ("PERSIST a", "(integer) 0"),
        ("EXPIRE a 10", "(integer) 0"),
        ("APPEND a x", "(integer) 1"),
        ("TTL a", "(integer) -1"),
        ("SADD h member", "(integer) 1"),
        ("TYPE h", "set"),
        ("TTL h", "(integer) -1"),
    ]);
}

#[test]
fn what_writes_an_expired_key_begins_anew() {
    let mut c = clocked();
    for write in [
        "INCRBY k 5",
        "APPEND k 5",
        "SETRANGE k 0 5",
        "SET k 5 NX",
        "SETNX k 5",
        "SET k 5 KEEPTTL",
        "GETSET k 5",
        "MSET k 5",
        "MSETNX k 5",
        "INCRBYFLOAT k 5",
    ] {
        c.expect(&[("SET k 7 PX 5", "OK"), ("wait 6", "")]);
        let reply = c.run(write);
        assert!(!reply.contains("error"), "{write}: {reply}");
        c.expect(&[("GET k", "\"5\""), ("TTL k", "(integer) -1"), ("DEL k", "(integer) 1")]);
        assert_eq!(tuples(&c.db), (0, 0), "nothing is left behind by {write}");
    }
    c.expect(&[
        ("SET k 7 PX 5", "OK"),
        ("wait 6", ""),
        ("SET k 5 XX", "(nil)"),
        ("GETDEL k", "(nil)"),
        ("GETEX k EX 5", "(nil)"),
        ("GET k", "(nil)"),
    ]);
}

#[test]
fn deadlines_are_given_and_taken_as_in_redis() {
    let mut c = clocked();
    let now = c.now();
    c.expect(&[
        ("SET k v", "OK"),
        ("EXPIRE k 100", "(integer) 1"),
        ("EXPIRE k 50 NX", "(integer) 0"),
        ("EXPIRE k 50 GT", "(integer) 0"),
        ("EXPIRE k 50 LT", "(integer) 1"),
        ("EXPIRE k 60 XX", "(integer) 1"),
        ("EXPIRE k 60 XX GT", "(integer) 0"),
        ("PERSIST k", "(integer) 1"),
        ("PERSIST k", "(integer) 0"),
        ("EXPIRE k 60 XX", "(integer) 0"),
        ("EXPIRE k 60 GT", "(integer) 0"),
        ("EXPIRE k 60 LT", "(integer) 1"),
        ("SET k v", "OK"),
        ("TTL k", "(integer) -1"),
        ("SET k v PX 1500", "OK"),
        ("TTL k", "(integer) 2"),
        ("SET k v KEEPTTL", "OK"),
        ("PTTL k", "(integer) 1500"),
        ("APPEND k w", "(integer) 2"),
        ("PTTL k", "(integer) 1500"),
        ("GETSET k v", "\"vw\""),
        ("TTL k", "(integer) -1"),
        ("SETEX k 10 v", "OK"),
        ("TTL k", "(integer) 10"),
        ("PSETEX k 10 v", "OK"),
        ("PTTL k", "(integer) 10"),
        ("GETEX k EX 20", "\"v\""),
        ("TTL k", "(integer) 20"),
        ("GETEX k PERSIST", "\"v\""),
        ("TTL k", "(integer) -1"),
        ("EXPIRE k -1", "(integer) 1"),
        ("EXISTS k", "(integer) 0"),
        ("EXPIRE k 10", "(integer) 0"),
        ("SET k v EXAT 1", "OK"),
        ("EXISTS k", "(integer) 0"),
        ("SET k v", "OK"),
        ("EXPIRE k x", "(error) ERR value is not an integer or out of range"),
        ("EXPIRE k 9223372036854775807", "(error) ERR invalid expire time in 'expire' command"),
        (
            "EXPIRE k 1 NX XX",
            "(error) ERR NX and XX, GT or LT options at the same time are not compatible",
        ),
        ("EXPIRE k 1 GT LT", "(error) ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE k 1 AB", "(error) ERR Unsupported option AB"),
        ("SET k v EX 0", "(error) ERR invalid expire time in 'set' command"),
        ("SET k v EX 9223372036854775807", "(error) ERR invalid expire time in 'set' command"),
        ("SET k v EX 1 PX 1", "(error) ERR syntax error"),
        ("SET k v EX 1 KEEPTTL", "(error) ERR syntax error"),
        ("SET k v EX", "(error) ERR syntax error"),
        ("SETEX k 0 v", "(error) ERR invalid expire time in 'setex' command"),
        ("PSETEX k -1 v", "(error) ERR invalid expire time in 'psetex' command"),
        ("GETEX k EX 0", "(error) ERR invalid expire time in 'getex' command"),
        ("TTL k", "(integer) -1"),
    ]);
    let at = (now / 1000 + 100).to_string();
    c.expect(&[
        (&format!("EXPIREAT k {at}"), "(integer) 1"),
        ("EXPIRETIME k", &format!("(integer) {at}")),
        ("PEXPIRETIME k", &format!("(integer) {at}000")),
        (&format!("PEXPIREAT k {at}500"), "(integer) 1"),
        ("PEXPIRETIME k", &format!("(integer) {at}500")),
        ("EXPIRETIME none", "(integer) -2"),
        ("RENAME k l", "OK"),
        ("PEXPIRETIME l", &format!("(integer) {at}500")),
        ("COPY l k", "(integer) 1"),
        ("PEXPIRETIME k", &format!("(integer) {at}500")),
        ("SET m 1", "OK"),
        ("RENAME m l", "OK"),
        ("TTL l", "(integer) -1"),
    ]);
}

#[test]
fn the_sweeper_removes_what_has_expired_and_nothing_else() {
    let mut c = clocked();
    for i in 0..300 {
        c.run(&format!("SET s{i:03} v PX {}", 10 + i));
        c.run(&format!("HSET h{i:03} f v g w"));
        c.run(&format!("PEXPIRE h{i:03} {}", 10 + i));
    }
    c.run("SET stays v");
    c.run("SET later v PX 5");
    c.run("PERSIST later");
    c.run("SET moved v PX 5");
    c.run("PEXPIRE moved 100000");
    c.clock.advance(Duration::from_millis(110));
    assert_eq!(c.run("DBSIZE"), "(integer) 403");
    let before = tuples(&c.db);
    assert_eq!(c.run("DEBUG SWEEP 50"), "(integer) 50", "in bounded steps");
    while c.run("DEBUG SWEEP 50") != "(integer) 0" {}
    assert_eq!(c.run("DBSIZE"), "(integer) 403");
    let after = tuples(&c.db);
    assert_eq!(before.0 - after.0, 100, "strings");
    // A head and a deadline for a string; the same, a length, the owner and two fields for a hash.
    assert_eq!(before.1 - after.1, 100 * 2 + 100 * 6, "what stood beside them");
    assert_eq!(c.run("MGET stays later moved"), "[\"v\" \"v\" \"v\"]");
    c.clock.advance(Duration::from_secs(1000));
    while c.run("DEBUG SWEEP") != "(integer) 0" {}
    assert_eq!(tuples(&c.db), (2, 0), "`stays` and `later`");
}

#[test]
fn a_watched_key_that_expires_has_changed() {
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    c.expect(&[
        ("SET lock me PX 100", "OK"),
        ("WATCH lock", "OK"),
        ("wait 50", ""),
        ("MULTI", "OK"),
        ("SET mine 1", "QUEUED"),
        ("EXEC", "[OK]"),
        ("WATCH lock", "OK"),
        ("MULTI", "OK"),
        ("SET mine 2", "QUEUED"),
        ("wait 51", ""),
        ("EXEC", "(nil)"),
        ("GET mine", "\"1\""),
        // A key that had expired before `WATCH` does not exist, so its removal is not a change.
        ("WATCH lock", "OK"),
    ]);
    run(&mut other, "DEBUG SWEEP");
    c.expect(&[("MULTI", "OK"), ("SET mine 3", "QUEUED"), ("EXEC", "[OK]")]);
    // A deadline is a change as well, the first one of a dictionary too.
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    c.expect(&[("SET k v", "OK"), ("WATCH k", "OK")]);
    run(&mut other, "EXPIRE k 10");
    c.expect(&[("MULTI", "OK"), ("SET mine 1", "QUEUED"), ("EXEC", "(nil)")]);
    for (change, want) in [
        ("PERSIST k", "(nil)"),
        ("EXPIRE k 10", "(nil)"),
        ("HSET h f 1", "[OK]"),
        ("TTL k", "[OK]"),
    ] {
        c.expect(&[("WATCH k", "OK")]);
        run(&mut other, change);
        c.expect(&[("MULTI", "OK"), ("SET mine 1", "QUEUED"), ("EXEC", want)]);
    }
    for change in ["HSET h f 2", "HSET h g 2", "HDEL h g", "EXPIRE h 10", "DEL h", "SET h 1"] {
        c.expect(&[("WATCH h", "OK")]);
        run(&mut other, change);
        c.expect(&[("MULTI", "OK"), ("SET mine 1", "QUEUED"), ("EXEC", "(nil)")]);
    }
}

#[test]
fn one_exec_sees_one_moment() {
    let mut c = clocked();
    c.expect(&[
        ("SET k v PX 10", "OK"),
        ("MULTI", "OK"),
        ("PTTL k", "QUEUED"),
        ("SET l v PX 10", "QUEUED"),
        ("PTTL l", "QUEUED"),
        ("EXPIRE k 0", "QUEUED"),
        ("GET k", "QUEUED"),
        ("EXEC", "[(integer) 10 OK (integer) 10 (integer) 1 (nil)]"),
    ]);
}

#[test]
fn a_snapshot_has_the_keys_that_it_had() {
    let mut c = clocked();
    c.expect(&[
        ("SET k v PX 100", "OK"),
        ("SET gone v PX 10", "OK"),
        ("HSET h f v", "(integer) 1"),
        ("PEXPIRE h 100", "(integer) 1"),
        ("wait 11", ""),
        ("SNAPSHOT CREATE s", "OK"),
        ("wait 1000", ""),
        ("DEBUG SWEEP", "(integer) 3"),
        ("GET k", "(nil)"),
        ("SNAPSHOT USE s GET k", "\"v\""),
        ("SNAPSHOT USE s GET gone", "(nil)"),
        ("SNAPSHOT USE s HGET h f", "\"v\""),
        ("SNAPSHOT USE s PTTL k", "(integer) 89"),
        ("SNAPSHOT USE s KEYS *", "[\"h\" \"k\"]"),
        ("SNAPSHOT USE s EXPIRE k 10", "(error) READONLY a snapshot does not change: SNAPSHOT LEAVE first, or make a clone of it"),
        // A clone continues to live, and its keys expire.
        ("CLONE CREATE s c", "OK"),
        ("CLONE USE c GET k", "(nil)"),
        ("CLONE USE c SET k v EX 10", "OK"),
        ("CLONE USE c TTL k", "(integer) 10"),
        ("SNAPSHOT ROLLBACK s", "OK"),
        ("GET k", "(nil)"),
        ("DBSIZE", "(integer) 0"),
        ("SET k v EX 5", "OK"),
        ("TTL k", "(integer) 5"),
    ]);
}

#[test]
fn transactions_commit_value_and_deadline_together() {
    for isolation in ["SI", "SER"] {
        let mut c = clocked();
        let mut other = Client::local(c.db.clone());
        c.expect(&[("SET old v", "OK"), ("EXPIRE old 100", "(integer) 1")]);
        let id = c.run(&format!("TXN BEGIN {isolation}"));
        let id = id.rsplit(' ').next().expect("a number").to_string();
        c.expect(&[
            (&format!("TXN JOIN {id}"), "OK"),
            ("SET k v EX 10", "OK"),
            ("TTL k", "(integer) 10"),
            ("HSET h f v", "(integer) 1"),
            ("EXPIRE h 20", "(integer) 1"),
            ("TXN SAVEPOINT here", "OK"),
            ("PERSIST k", "(integer) 1"),
            ("HSET h g w", "(integer) 1"),
            ("HLEN h", "(integer) 2"),
            ("TXN ROLLBACK here", "OK"),
            ("HLEN h", "(integer) 1"),
            ("TTL k", "(integer) 10"),
        ]);
        if isolation == "SI" {
            assert_eq!(run(&mut other, "GET k"), "(nil)", "nothing is seen before the commit");
            assert_eq!(run(&mut other, "HLEN h"), "(integer) 0");
        }
        c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
        assert_eq!(run(&mut other, "TTL k"), "(integer) 10");
        assert_eq!(run(&mut other, "HGETALL h"), "[\"f\" \"v\"]");
        assert_eq!(run(&mut other, "TTL h"), "(integer) 20");
        c.clock.advance(Duration::from_millis(10_001));
        assert_eq!(run(&mut other, "EXISTS k h old"), "(integer) 2");
    }
}

#[test]
fn a_value_keeps_its_bytes_for_other_doors() {
    let mut c = clocked();
    c.expect(&[("SET k value EX 10", "OK"), ("USE :types:0", "(error) ERR dictionary ':types:0' has the deadlines and collections of another one: name that"), ("DICTS", "[\"0\"]")]);
    let dict = c.db.open_dictionary("0").expect("there");
    assert_eq!(dict.get("k").expect("read").as_deref(), Some(b"value".as_slice()));
    // The server reads values that a program puts, even under keys that the server never had.
    dict.insert("plain", "from outside").expect("put");
    assert_eq!(c.run("GET plain"), "\"from outside\"");
    c.expect(&[("DICT DROP 0", "OK"), ("GET k", "(nil)")]);
    assert_eq!(c.db.dictionary(":types:0"), None, "dropped with its dictionary");
}

#[test]
fn the_server_removes_what_has_expired_by_itself() {
    // The deadline cannot pass before the command has put the key: then it would never be there.
    let (clock, db) = clocked_store();
    let served = served::serve_db(db, kvdb_server::ServerOptions::default());
    let mut c = served.connect();
    assert_eq!(c.run("SET k v PX 1"), "OK");
    let dict = served.db.dictionary("0").expect("made");
    assert!(served.db.get(dict, b"k").expect("read").is_some(), "not due yet");
    clock.advance(Duration::from_millis(2));
    // No command reads the key, so only the sweeper removes it.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while served.db.get(dict, b"k").expect("read").is_some() {
        assert!(std::time::Instant::now() < until, "it is still there");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_eq!(c.run("GET k"), "(nil)");
    // The removal is counted when the step has ended.
    while !c.run("INFO stats").contains("expired_keys:1") {
        assert!(std::time::Instant::now() < until, "it is not counted");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_watch_sees_the_first_deadline_of_a_dictionary_that_is_no_longer_selected() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("SET k v", "OK"), ("WATCH k", "OK"), ("USE elsewhere", "OK")]);
    b.expect(&[("EXPIRE k 100", "(integer) 1")]);
    a.expect(&[("MULTI", "OK"), ("SET x 1", "QUEUED"), ("EXEC", "(nil)"), ("GET x", "(nil)")]);
    // The same holds for a joined transaction.
    a.expect(&[("USE third", "OK"), ("SET k v", "OK")]);
    let id = a.run("TXN BEGIN");
    let join = format!("TXN JOIN {}", id.trim_start_matches("(integer) "));
    a.expect(&[(&join, "OK"), ("WATCH k", "OK"), ("USE elsewhere", "OK")]);
    b.expect(&[(&join, "OK"), ("USE third", "OK"), ("EXPIRE k 100", "(integer) 1")]);
    a.expect(&[("MULTI", "OK"), ("SET x 1", "QUEUED"), ("EXEC", "(nil)"), ("GET x", "(nil)")]);
}

#[test]
fn a_deadline_beyond_all_times_is_told_as_it_is() {
    clocked().expect(&[
        ("SET k v PXAT 9223372036854775807", "OK"),
        ("PEXPIRETIME k", "(integer) 9223372036854775807"),
        ("EXPIRETIME k", "(integer) 9223372036854776"),
    ]);
}

#[test]
fn a_dictionary_that_cannot_be_swept_does_not_keep_the_others() {
    let mut c = clocked();
    c.expect(&[
        ("USE broken", "OK"),
        ("SET k v PX 10", "OK"),
        ("USE whole", "OK"),
        ("SET k v PX 10", "OK"),
        ("wait 20", ""),
    ]);
    let types = c.db.dictionary(":types:broken").expect("there are deadlines");
    c.db.put(types, b"kk", b"no head", Durability::Buffered).expect("put");
    assert!(c.run("DEBUG SWEEP").starts_with("(error) CORRUPT "));
    let whole = c.db.dictionary("whole").expect("it is there");
    assert_eq!(c.db.get(whole, b"k").expect("read"), None, "it has expired and is removed");
}

#[test]
fn a_field_gets_its_deadline_by_exec_in_a_transaction_and_is_removed_when_it_has_passed() {
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    c.expect(&[
        ("HSET h a 1 b 2 c 3", "(integer) 3"),
        ("HPEXPIRE h 10 FIELDS 1 a", "[(integer) 1]"),
    ]);
    let id = c.run("TXN BEGIN SI");
    let id = id.rsplit(' ').next().expect("a number").to_string();
    c.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        ("MULTI", "OK"),
        ("HPEXPIRE h 20 FIELDS 1 b", "QUEUED"),
        ("EXEC", "[[(integer) 1]]"),
        ("wait 11", ""),
    ]);
    // The sweeper comes for the first field before the transaction is committed.
    assert_eq!(run(&mut other, "DEBUG SWEEP"), "(integer) 1");
    c.expect(&[
        ("TXN COMMIT", "OK"),
        ("TXN LEAVE", "OK"),
        ("wait 10", ""),
        ("HGETALL h", "[\"c\" \"3\"]"),
        ("DEBUG SWEEP", "(integer) 1"),
    ]);
    // The head, the number of fields, the owner, and the field that stays.
    assert_eq!(tuples(&c.db), (0, 4));
}
