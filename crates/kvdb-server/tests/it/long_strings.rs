//! Tests of strings that are too long for one tuple, command by command, in the notation of
//! `redis-cli`. Long strings behave like short ones. The tests also check what it costs to use a
//! part of a string, how transactions share a string, and how the list of changes shows it.

use std::sync::Arc;
use std::time::Duration;

use crate::served::{Raw, Served, clocked_store, pages_soon, serve, serve_db, show, tuples};
use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions, ReceiveOptions};
use kvdb_server::{Client, Limits, Reply, ServerOptions};
use zones::MemoryDevice;

const WRONGTYPE: &str = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
const TOO_LONG: &str = "(error) ERR string exceeds maximum allowed size (proto-max-bulk-len)";
const PAGE: usize = 4096;

/// A transaction that the connection works in.
fn begin(c: &mut Raw, how: &str) {
    let id = c.run(&format!("TXN BEGIN {how}"));
    let id = id.strip_prefix("(integer) ").expect("a number").to_owned();
    assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
}

#[test]
fn a_long_string_is_a_string() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SET k 0123456789", "OK"),
        ("APPEND k ab", "(integer) 12"),
        ("GET k", "\"0123456789ab\""),
    ]);
    assert_eq!(tuples(&served.db), (0, 2), "a head and a page, and no tuple of its own");
    c.expect(&[
        ("TYPE k", "string"),
        ("OBJECT ENCODING k", "\"raw\""),
        ("STRLEN k", "(integer) 12"),
        ("EXISTS k", "(integer) 1"),
        ("GETRANGE k 2 4", "\"234\""),
        ("GETRANGE k -2 -1", "\"ab\""),
        ("GETRANGE k 8 100", "\"89ab\""),
        ("GETRANGE k 12 20", "\"\""),
        ("GETRANGE k 5 2", "\"\""),
        ("SETRANGE k 1 xyz", "(integer) 12"),
        ("SETRANGE k 13 end", "(integer) 16"),
        ("GET k", r#""0xyz456789ab\x00end""#),
        ("SETRANGE k 3 ''", "(integer) 16"),
        ("APPEND k ''", "(integer) 16"),
        ("GETSET k short", r#""0xyz456789ab\x00end""#),
    ]);
    assert_eq!(tuples(&served.db), (1, 0), "what is short is one tuple");
    c.expect(&[
        ("SET k a-long-string GET", "\"short\""),
        ("SETNX k no", "(integer) 0"),
        ("SETNX new another-long-one", "(integer) 1"),
        ("SET k a-longer-string XX", "OK"),
        ("SET k a-longer-string NX", "(nil)"),
        ("MGET k new none", "[\"a-longer-string\" \"another-long-one\" (nil)]"),
        ("MSET k the-first-of-two l the-second-of-two s 1", "OK"),
        ("MSETNX k 1 m 2", "(integer) 0"),
        ("MSETNX m a-string-of-many n 2", "(integer) 1"),
        ("KEYS *", "[\"k\" \"l\" \"m\" \"n\" \"new\" \"s\"]"),
        ("DBSIZE", "(integer) 6"),
        ("SCAN 0 TYPE string", "[\"0\" [\"k\" \"l\" \"m\" \"n\" \"new\" \"s\"]]"),
        (
            "RANGE k n",
            "[\"k\" \"the-first-of-two\" \"l\" \"the-second-of-two\" \"m\" \"a-string-of-many\"]",
        ),
        ("RANGE k z REV LIMIT 3", "[\"s\" \"1\" \"new\" \"another-long-one\" \"n\" \"2\"]"),
        ("RANGE k m NOVALUES", "[\"k\" \"l\"]"),
        ("GETDEL l", "\"the-second-of-two\""),
        ("GET l", "(nil)"),
        ("DEL k m n s new", "(integer) 5"),
    ]);
    assert_eq!(tuples(&served.db), (0, 0), "nothing is left over");
}

#[test]
fn names_and_deadlines_of_long_strings() {
    let (clock, db) = clocked_store();
    let served = serve_db(db, pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SET k a-long-string EX 100", "OK"),
        ("TTL k", "(integer) 100"),
        ("APPEND k !", "(integer) 14"),
        ("TTL k", "(integer) 100"),
        ("RENAME k l", "OK"),
        ("GET k", "(nil)"),
        ("TTL l", "(integer) 100"),
        ("GET l", "\"a-long-string!\""),
        ("COPY l m", "(integer) 1"),
        ("SETRANGE m 0 A", "(integer) 14"),
        ("MGET l m", "[\"a-long-string!\" \"A-long-string!\"]"),
        ("TTL m", "(integer) 100"),
        ("COPY l m", "(integer) 0"),
        ("SET short s", "OK"),
        ("COPY short m REPLACE", "(integer) 1"),
        ("GET m", "\"s\""),
        ("COPY l m REPLACE", "(integer) 1"),
        ("RENAMENX l m", "(integer) 0"),
        ("RENAME short m", "OK"),
        ("GET m", "\"s\""),
        ("TTL m", "(integer) -1"),
        ("PERSIST l", "(integer) 1"),
        ("TTL l", "(integer) -1"),
        ("GET l", "\"a-long-string!\""),
        // A short string with a deadline that grows keeps it.
        ("SET s 1 EX 100", "OK"),
        ("SETRANGE s 20 end", "(integer) 23"),
        ("TTL s", "(integer) 100"),
        ("SET s another-long-string KEEPTTL", "OK"),
        ("TTL s", "(integer) 100"),
        ("SET s short KEEPTTL", "OK"),
        ("TTL s", "(integer) 100"),
        ("GETEX l PX 1", "\"a-long-string!\""),
    ]);
    clock.advance(Duration::from_millis(2));
    assert_eq!(c.run("EXISTS l"), "(integer) 0");
    // An expired string does not exist, even if its pages have not been removed yet.
    c.expect(&[("DEBUG SET-ACTIVE-EXPIRE 0", "OK"), ("SET l a-long-string PX 1", "OK")]);
    clock.advance(Duration::from_millis(2));
    assert_eq!(c.run("STRLEN l"), "(integer) 0");
    c.expect(&[
        ("GETRANGE l 0 -1", "\"\""),
        ("APPEND l begins-anew", "(integer) 11"),
        ("TTL l", "(integer) -1"),
        ("DEL l s m", "(integer) 3"),
    ]);
    assert_eq!(tuples(&served.db), (0, 0), "nothing is left over");
}

#[test]
fn long_strings_are_no_numbers_and_no_collections() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SET k 000000000001", "OK"),
        ("INCR k", "(error) ERR value is not an integer or out of range"),
        ("INCRBYFLOAT k 1", "(error) ERR value is not a valid float"),
        ("HSET k f v", WRONGTYPE),
        ("SADD k m", WRONGTYPE),
        ("LPUSH k e", WRONGTYPE),
        ("ZADD k 1 m", WRONGTYPE),
        ("LLEN k", WRONGTYPE),
        ("HSET h f v", "(integer) 1"),
        ("APPEND h a-long-string", WRONGTYPE),
        ("SETRANGE h 100 x", WRONGTYPE),
        ("SET h a-long-string", "OK"),
        ("GET h", "\"a-long-string\""),
        ("HGET h f", WRONGTYPE),
        ("DEL h", "(integer) 1"),
        ("HSET h f v", "(integer) 1"),
        ("RENAME h k", "OK"),
        ("HGET k f", "\"v\""),
        ("LCS k k", "(error) ERR The specified keys must contain string values"),
    ]);
}

#[test]
fn ranges_of_keys_take_their_long_strings_along() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    for name in ["a", "b", "c"] {
        assert_eq!(c.run(&format!("SET {name} the-long-string-{name}")), "OK");
    }
    c.expect(&[
        ("DELRANGE a c", "OK"),
        ("KEYS *", "[\"c\"]"),
        ("SET cc another-long-string", "OK"),
        ("DELPREFIX cc", "OK"),
        ("KEYS *", "[\"c\"]"),
    ]);
    assert_eq!(tuples(&served.db), (0, 2));
    c.expect(&[("FLUSHDB", "OK"), ("KEYS *", "[]")]);
    assert_eq!(tuples(&served.db), (0, 0));
}

#[test]
fn bits_of_long_strings() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SETBIT k 100000000 1", "(integer) 0"),
        ("STRLEN k", "(integer) 12500001"),
        ("SETBIT k 100000000 1", "(integer) 1"),
        ("GETBIT k 100000000", "(integer) 1"),
        ("GETBIT k 99999999", "(integer) 0"),
        ("GETBIT k 400000000", "(integer) 0"),
        ("SETBIT k 7 1", "(integer) 0"),
        ("BITCOUNT k", "(integer) 2"),
        ("BITCOUNT k 1 -1", "(integer) 1"),
        ("BITCOUNT k 7 99999999 BIT", "(integer) 1"),
        ("BITPOS k 1", "(integer) 7"),
        ("BITPOS k 1 1", "(integer) 100000000"),
        ("BITPOS k 0", "(integer) 0"),
        ("BITPOS k 1 1 12499999", "(integer) -1"),
        ("BITFIELD k SET u8 99999992 255 GET u16 99999992", "[(integer) 0 (integer) 65408]"),
        ("BITFIELD_RO k GET u8 #12499999", "[(integer) 255]"),
        ("BITFIELD k INCRBY u8 0 1 GET u1 200000000", "[(integer) 2 (integer) 0]"),
        ("STRLEN k", "(integer) 12500001"),
        ("GETRANGE k 0 1", r#""\x02\x00""#),
        (
            "BITFIELD k SET u8 0 1 SET u8 8000000000000 1",
            "(error) LIMIT the fields lie too far apart for one command",
        ),
        ("BITFIELD k GET u8 0", "[(integer) 2]"),
        ("SET l the-other-string", "OK"),
        ("BITOP XOR m l l", "(integer) 16"),
        ("BITCOUNT m", "(integer) 0"),
        ("STRLEN m", "(integer) 16"),
        ("BITOP NOT short none", "(integer) 0"),
    ]);
    // The first string of a dictionary that gets too long for one tuple.
    c.expect(&[("USE other", "OK"), ("SET a 12345678", "OK"), ("SET b abcdefghi", "OK")]);
    c.expect(&[("APPEND a 9", "(integer) 9"), ("BITOP OR c a b", "(integer) 9")]);
    assert_eq!(served.db.dictionary(":types:other"), None);
    c.expect(&[("SET c abcdefghijk", "OK"), ("BITOP OR d a c", "(integer) 11")]);
    assert!(served.db.dictionary(":types:other").is_some());
}

#[test]
fn a_string_has_up_to_a_tebibyte() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let most = 1u64 << 40;
    c.expect(&[
        (&format!("SETRANGE k {} end", most - 3), &format!("(integer) {most}")),
        (&format!("SETRANGE k {} end", most - 2), TOO_LONG),
        ("APPEND k x", TOO_LONG),
        ("SETRANGE k 9223372036854775807 x", TOO_LONG),
        ("SETRANGE k -1 x", "(error) ERR offset is out of range"),
        ("STRLEN k", &format!("(integer) {most}")),
        ("GETRANGE k -5 -1", r#""\x00\x00end""#),
        ("GETRANGE k 500000000000 500000000002", r#""\x00\x00\x00""#),
        ("SETBIT k 8796093022208 1", "(error) ERR bit offset is not an integer or out of range"),
        ("SETBIT k 8796093022207 1", "(integer) 0"),
        ("GETRANGE k -3 -1", "\"ene\""),
        (
            "GET k",
            "(error) LIMIT the string has 1099511627776 bytes, and a reply at most 536870912: read it in parts, GETRANGE",
        ),
        (
            "GETDEL k",
            "(error) LIMIT 1099511627776 bytes of a string are more than a command takes at once, which is 33554432: read it in parts, GETRANGE",
        ),
        ("MGET k", "[(error) LIMIT the string has 1099511627776 bytes, and a reply at most 536870912: read it in parts, GETRANGE]"),
        ("EXISTS k", "(integer) 1"),
        ("SET z 1", "OK"),
    ]);
    let listed = c.run("RANGE k zz");
    assert!(listed.starts_with("[\"k\" (error) LIMIT") && listed.ends_with("\"z\" \"1\"]"));
    assert_eq!(tuples(&served.db), (1, 2), "what was not written takes no room");
    c.expect(&[("DEL k", "(integer) 1"), ("STRLEN k", "(integer) 0")]);
    assert_eq!(tuples(&served.db), (1, 0));
}

#[test]
fn long_replies_are_sent_while_they_are_read() {
    let limits = Limits { reply: 4096, whole_replies: 100_000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut client = Client::connect(&served.path).expect("connected");
    let piece: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
    for i in 1..=8 {
        let len = client.call(&[b"APPEND", b"k", &piece]).expect("a reply");
        assert_eq!(len, Reply::Integer(i << 20));
    }
    let whole = piece.repeat(8);
    assert_eq!(client.call(&[b"GET", b"k"]).expect("a reply"), Reply::Bulk(whole.clone()));
    let part = client.call(&[b"GETRANGE", b"k", b"1000000", b"-1000001"]).expect("a reply");
    assert_eq!(part, Reply::Bulk(whole[1_000_000..whole.len() - 1_000_000].to_vec()));
    let listed = client.call(&[b"RANGE", b"", b""]).expect("a reply");
    assert_eq!(listed, Reply::Array(vec![Reply::Bulk(b"k".to_vec()), Reply::Bulk(whole)]));
    // A reply that must be complete before it is sent has a limit.
    let mut c = served.connect();
    c.expect(&[("MULTI", "OK"), ("SET l 1", "QUEUED"), ("GET k", "QUEUED")]);
    assert!(c.run("EXEC").starts_with("(error) LIMIT the replies of this EXEC"));
    c.expect(&[("EXISTS l", "(integer) 0"), ("STRLEN k", "(integer) 8388608")]);
}

fn server_on(device: Arc<MemoryDevice>, memory: usize) -> Served {
    let open = OpenOptions { memory, zero_journal: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).expect("a store");
    serve_db(db, ServerOptions::default())
}

/// `KVFS_LONG=1024` makes it 1 GiB.
#[test]
fn a_part_costs_what_it_names() {
    let mib = std::env::var("KVFS_LONG").ok().and_then(|mib| mib.parse().ok()).unwrap_or(64u64);
    let served = server_on(Arc::new(MemoryDevice::new()), 64 << 20);
    let mut client = Client::connect(&served.path).expect("connected");
    let mut ask = |words: &[&[u8]]| client.call(words).expect("a reply");
    let piece: Vec<u8> = (0..4u32 << 20).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
    for _ in 0..mib / 4 {
        assert!(matches!(ask(&[b"APPEND", b"k", &piece]), Reply::Integer(_)));
    }
    served.db.compact(served.db.dictionary(":types:0").expect("made")).expect("compacted");
    served.db.flush().expect("flushed");
    let io = || served.db.stats().io;
    let pages = || io().of(zones::Purpose::Pages).read_bytes;
    // The command reads the index once, and the page.
    let (rounds, step) = (50u64, (mib << 20) / 50);
    let (before, of_pages) = (io().total(), pages());
    for i in 0..rounds {
        let (at, end) = ((i * step).to_string(), (i * step + 3).to_string());
        let got = ask(&[b"GETRANGE", b"k", at.as_bytes(), end.as_bytes()]);
        let from = (i * step) as usize % piece.len();
        assert_eq!(got, Reply::Bulk(piece[from..from + 4].to_vec()));
    }
    assert_eq!(io().total().write_bytes, before.write_bytes, "reading writes nothing");
    let read =
        ((io().total().read_bytes - before.read_bytes) / rounds, (pages() - of_pages) / rounds);
    assert!(read.1 <= 2 * PAGE as u64, "{} bytes of pages read for four", read.1);
    // The command writes a record, and does not read the page.
    let (before, of_pages) = (io().total(), pages());
    for i in 0..rounds {
        let at = (i * step + 5000).to_string();
        assert_eq!(
            ask(&[b"SETRANGE", b"k", at.as_bytes(), b"abcd"]),
            Reply::Integer((mib << 20) as i64)
        );
        served.db.sync().expect("synced");
    }
    let written = (io().total().write_bytes - before.write_bytes) / rounds;
    assert!(written <= 8 << 10, "{written} bytes written for four");
    assert_eq!(pages(), of_pages, "no page is read");
    println!("{mib} MiB: {read:?} bytes read for four, of pages, and {written} written");
    for i in 0..rounds {
        let (at, end) = ((i * step + 4999).to_string(), (i * step + 5004).to_string());
        let Reply::Bulk(got) = ask(&[b"GETRANGE", b"k", at.as_bytes(), end.as_bytes()]) else {
            panic!("no string");
        };
        let from = (i * step + 4999) as usize % piece.len();
        assert_eq!((got[0], &got[1..5], got[5]), (piece[from], &b"abcd"[..], piece[from + 5]));
    }
    // Asking for the length, appending, and deleting the string do not read its pages.
    let (before, of_pages) = (io().total(), pages());
    assert_eq!(ask(&[b"STRLEN", b"k"]), Reply::Integer((mib << 20) as i64));
    assert_eq!(ask(&[b"APPEND", b"k", b"more"]), Reply::Integer((mib << 20) as i64 + 4));
    assert_eq!(ask(&[b"RENAME", b"k", b"l"]), Reply::Status("OK".into()));
    assert_eq!(ask(&[b"SET", b"l", b"short"]), Reply::Status("OK".into()));
    served.db.sync().expect("synced");
    assert_eq!(pages(), of_pages);
    assert!(io().total().write_bytes - before.write_bytes <= 16 << 10);
}

#[test]
fn of_two_transactions_that_change_one_string_the_first_to_commit_wins() {
    let served = serve(pages_soon());
    let (mut a, mut b) = (served.connect(), served.connect());
    let changes = [
        "SETRANGE k 0 x",
        "SETRANGE k 20000 x",
        "APPEND k x",
        "SET k short",
        "SET k a-long-string-again",
        "DEL k",
        "RENAME k other",
        "SETRANGE k 50000 x",
    ];
    for first in changes {
        for second in changes {
            a.expect(&[("FLUSHDB", "OK"), ("SETRANGE k 30000 0123456789", "(integer) 30010")]);
            begin(&mut a, "SI");
            begin(&mut b, "SI");
            assert!(!a.run(first).starts_with("(error)") && !b.run(second).starts_with("(error)"));
            assert_eq!(a.run("TXN COMMIT"), "OK", "{first}");
            let lost = b.run("TXN COMMIT");
            assert!(lost.starts_with("(error) CONFLICT"), "{first}, {second}: {lost}");
        }
    }
    // Two transactions that create the same key conflict as well, whatever the lengths.
    for (first, second) in [
        ("SET k short", "SET k a-long-string"),
        ("SET k a-long-string", "SET k short"),
        ("SET k a-long-string", "SET k another-long-one"),
        ("APPEND k a-long-string", "HSET k f v"),
    ] {
        assert_eq!(a.run("FLUSHDB"), "OK");
        begin(&mut a, "SI");
        begin(&mut b, "SI");
        assert!(!a.run(first).starts_with("(error)") && !b.run(second).starts_with("(error)"));
        assert_eq!(b.run("TXN COMMIT"), "OK", "{second}");
        assert!(a.run("TXN COMMIT").starts_with("(error) CONFLICT"), "{first}, {second}");
    }
    // Serializable transactions wait for each other.
    a.expect(&[("FLUSHDB", "OK"), ("SET k a-long-string", "OK")]);
    begin(&mut a, "SER");
    begin(&mut b, "SER TIMEOUT 0");
    assert_eq!(a.run("SETRANGE k 0 A"), "(integer) 13");
    assert!(b.run("GETRANGE k 5 8").starts_with("(error) LOCKED"));
    a.expect(&[("TXN COMMIT", "OK")]);
    b.expect(&[("TXN ABORT", "OK"), ("GET k", "\"A-long-string\"")]);
}

#[test]
fn transactions_take_long_strings_back() {
    let served = serve(pages_soon());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("SET k a-long-string", "OK"), ("SNAPSHOT CREATE s", "OK")]);
    begin(&mut a, "SI");
    a.expect(&[
        ("SETRANGE k 10000 end", "(integer) 10003"),
        ("TXN SAVEPOINT p", "OK"),
        ("SET k short", "OK"),
        ("SET new another-long-string", "OK"),
        ("TXN ROLLBACK p", "OK"),
        ("STRLEN k", "(integer) 10003"),
        ("EXISTS new", "(integer) 0"),
    ]);
    b.expect(&[("GET k", "\"a-long-string\"")]);
    a.expect(&[("TXN ABORT", "OK"), ("GET k", "\"a-long-string\"")]);
    begin(&mut a, "DURABLE");
    a.expect(&[("SETRANGE k 2 LONG", "(integer) 13"), ("TXN COMMIT SYNC", "OK")]);
    b.expect(&[
        ("GET k", "\"a-LONG-string\""),
        ("SNAPSHOT USE s GET k", "\"a-long-string\""),
        ("SNAPSHOT USE s GETRANGE k 2 5", "\"long\""),
        ("SNAPSHOT USE s APPEND k x", "(error) READONLY a snapshot does not change: SNAPSHOT LEAVE first, or make a clone of it"),
        ("CLONE CREATE s c", "OK"),
        ("CLONE USE c SETRANGE k 0 X", "(integer) 13"),
        ("CLONE USE c GET k", "\"X-long-string\""),
        ("CLONE USE c APPEND fresh a-long-string", "(integer) 13"),
        ("GET k", "\"a-LONG-string\""),
        ("SNAPSHOT ROLLBACK s", "OK"),
        ("GET k", "\"a-long-string\""),
    ]);
}

#[test]
fn watch_notices_every_change_of_a_long_string() {
    let served = serve(pages_soon());
    let (mut a, mut b) = (served.connect(), served.connect());
    for change in ["SETRANGE k 5 x", "APPEND k x", "SET k a-long-string", "DEL k", "EXPIRE k 100"] {
        for inside in [false, true] {
            a.expect(&[("SET k a-long-string", "OK")]);
            if inside {
                begin(&mut a, "SI");
            }
            a.expect(&[("WATCH k", "OK")]);
            if inside {
                a.run(change);
            } else {
                b.run(change);
            }
            a.expect(&[("MULTI", "OK"), ("SET seen 1", "QUEUED"), ("EXEC", "(nil)")]);
            a.expect(&[
                ("WATCH k", "OK"),
                ("MULTI", "OK"),
                ("SET seen 1", "QUEUED"),
                ("EXEC", "[OK]"),
            ]);
            if inside {
                a.expect(&[("TXN ABORT", "OK")]);
            }
        }
    }
}

/// `EXEC` holds the locks of some keys when it turns out that a string gets too long for one tuple,
/// and the dictionary of types is not made under these.
#[test]
fn strings_may_get_long_within_exec() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    for (i, command) in
        ["APPEND k 456", "SETRANGE k 10 xyz", "SETBIT k 90 1", "BITFIELD k SET u8 80 1"]
            .iter()
            .enumerate()
    {
        let dictionary = format!("USE fresh{i}");
        c.expect(&[(&dictionary, "OK"), ("SET k 0123456789", "OK"), ("MULTI", "OK")]);
        c.expect(&[("SET before 1", "QUEUED"), (command, "QUEUED"), ("STRLEN k", "QUEUED")]);
        let done = c.run("EXEC");
        assert!(!done.contains("error"), "{command}: {done}");
        c.expect(&[("TYPE k", "string"), ("GET before", "\"1\"")]);
        assert!(served.db.dictionary(&format!(":types:fresh{i}")).is_some());
    }
    c.expect(&[
        ("USE x", "OK"),
        ("MULTI", "OK"),
        ("SET k a-long-string", "QUEUED"),
        ("USE y", "QUEUED"),
        ("SET k another-long-string", "QUEUED"),
        ("GET k", "QUEUED"),
        ("EXEC", "[OK OK OK \"another-long-string\"]"),
    ]);
}

#[test]
fn a_long_string_is_one_change_of_its_key() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SETRANGE grown 20000 end", "(integer) 20003"),
        ("SET gets-long short", "OK"),
        ("SET gets-short a-long-string", "OK"),
        ("SET goes a-long-string", "OK"),
        ("SET same a-long-string", "OK"),
        ("SNAPSHOT CREATE s", "OK"),
    ]);
    begin(&mut c, "SI");
    c.expect(&[
        ("SETRANGE grown 0 begin", "(integer) 20003"),
        ("APPEND grown more", "(integer) 20007"),
        ("APPEND gets-long -is-long", "(integer) 13"),
        ("SET gets-short short", "OK"),
        ("DEL goes", "(integer) 1"),
        ("SET new a-new-long-string", "OK"),
        (
            "TXN CHANGES",
            "[[\"0\" \"put\" \"gets-short\" (integer) 5] [\"0\" \"delete\" \"goes\"] \
             [\"0\" \"put\" \"gets-long\" (integer) 13] [\"0\" \"update\" \"grown\" (integer) 20007] \
             [\"0\" \"put\" \"new\" (integer) 17]]",
        ),
        ("TXN COMMIT", "OK"),
        (
            "SNAPSHOT CHANGES s",
            "[[\"0\" \"gets-long\" (integer) 5 (integer) 13] \
             [\"0\" \"gets-short\" (integer) 13 (integer) 5] \
             [\"0\" \"goes\" (integer) 13 (nil)] \
             [\"0\" \"grown\" (integer) 20003 (integer) 20007] \
             [\"0\" \"new\" (nil) (integer) 17]]",
        ),
    ]);
}

#[test]
fn long_strings_go_with_a_stream() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SETRANGE k 20000 end", "(integer) 20003"),
        ("SNAPSHOT CREATE a", "OK"),
        ("SETRANGE k 10000 middle", "(integer) 20003"),
        ("SNAPSHOT CREATE b", "OK"),
    ]);
    let copy = serve(pages_soon());
    for (snapshot, base) in [("a", None), ("b", Some("a"))] {
        let mut stream = Vec::new();
        served.db.send(snapshot, base, &mut stream, None).expect("sent");
        copy.db.receive(stream.as_slice(), &ReceiveOptions::default()).expect("received");
    }
    copy.connect().expect(&[
        ("SNAPSHOT USE b GETRANGE k 9999 10006", r#""\x00middle\x00""#),
        ("SNAPSHOT USE a GETRANGE k 9999 10006", r#""\x00\x00\x00\x00\x00\x00\x00\x00""#),
        ("SNAPSHOT USE b STRLEN k", "(integer) 20003"),
    ]);
}

#[test]
fn a_long_tuple_moves_to_pages_when_a_part_of_it_changes() {
    let served = serve(ServerOptions::default());
    let dict = served.db.open_dictionary("0").expect("made");
    dict.insert("k", vec![b'v'; 1 << 20]).expect("put");
    let mut c = served.connect();
    c.expect(&[("GETRANGE k 999 1003", "\"vvvvv\""), ("STRLEN k", "(integer) 1048576")]);
    assert_eq!(tuples(&served.db), (1, 0));
    c.expect(&[
        ("SETRANGE k 1000 abc", "(integer) 1048576"),
        ("GETRANGE k 999 1003", "\"vabcv\""),
        ("STRLEN k", "(integer) 1048576"),
    ]);
    assert_eq!(tuples(&served.db), (0, 1 + 256));
    c.expect(&[("APPEND k x", "(integer) 1048577"), ("GETRANGE k -2 -1", "\"vx\"")]);
    assert_eq!(tuples(&served.db), (0, 1 + 257));
}

#[test]
fn a_string_of_16_kib_moves_to_pages_when_a_small_part_of_it_changes() {
    let served = serve(ServerOptions::default());
    let mut client = Client::connect(&served.path).expect("connected");
    let mut ask = |words: &[&[u8]]| client.call(words).expect("a reply");
    let of = |len: usize| vec![b'v'; len];
    for key in [&b"below"[..], b"whole", b"expires", b"at"] {
        ask(&[b"SET", key, &of((16 << 10) - if key == b"below" { 3 } else { 0 })]);
    }
    assert_eq!(ask(&[b"EXPIRE", b"expires", b"1000"]), Reply::Integer(1));
    // A string below 16 KiB, and one of which more than half is written, stay tuples.
    assert_eq!(ask(&[b"SETRANGE", b"below", b"7", b"ab"]), Reply::Integer(16381));
    assert_eq!(ask(&[b"SETRANGE", b"whole", b"1", &of(8193)]), Reply::Integer(16384));
    assert_eq!(ask(&[b"APPEND", b"new", &of(20_000)]), Reply::Integer(20_000));
    assert_eq!(tuples(&served.db).0, 5);
    for (key, words) in [
        (&b"below"[..], &[&b"APPEND"[..], b"below", b"xyz"][..]),
        (b"whole", &[b"SETRANGE", b"whole", b"8192", &of(8192)]),
        (b"expires", &[b"SETBIT", b"expires", b"5", b"1"]),
        (b"at", &[b"BITFIELD", b"at", b"SET", b"u8", b"0", b"118"]),
        (b"new", &[b"APPEND", b"new", b""]),
        (b"sparse", &[b"SETBIT", b"sparse", b"1000000", b"1"]),
    ] {
        let before = tuples(&served.db).0;
        let reply = ask(words);
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        let moved = usize::from(key != b"new" && key != b"sparse");
        assert_eq!(before - tuples(&served.db).0, moved, "{}", key.escape_ascii());
    }
    assert_eq!(ask(&[b"GET", b"below"]), {
        let mut value = of(16381);
        value[7..9].copy_from_slice(b"ab");
        value.extend_from_slice(b"xyz");
        Reply::Bulk(value)
    });
    assert_eq!(ask(&[b"GET", b"whole"]), Reply::Bulk(of(16384)));
    assert_eq!(ask(&[b"STRLEN", b"sparse"]), Reply::Integer(125_001));
    assert_eq!(ask(&[b"BITCOUNT", b"sparse"]), Reply::Integer(1));
    assert!(matches!(ask(&[b"TTL", b"expires"]), Reply::Integer(1..=1000)));
}

#[test]
fn a_damaged_head_is_an_error_of_its_key() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[("SET k a-long-string", "OK"), ("SET l another-long-string", "OK")]);
    let types = served.db.open_dictionary(":types:0").expect("made");
    let head = types.get("kk").expect("read").expect("there");
    for cut in 0..head.len() {
        types.insert("kk", head.slice(..cut)).expect("put");
        for command in ["GET k", "STRLEN k", "APPEND k x", "GETRANGE k 0 1", "DEL k", "KEYS *"] {
            let reply = c.run(command);
            assert!(reply.starts_with("(error) CORRUPT the head"), "{command}: {reply}");
        }
    }
    assert_eq!(c.run("GET l"), "\"another-long-string\"");
    assert_eq!(show(&Reply::Null), "(nil)");
}
