//! Tests of reviews of keys that are not plain strings. Collections are shown by their elements,
//! with deadlines, and reverting a key reverts all of it.

use crate::served::{Raw, Served, serve};
use kvdb::{Batch, Durability};
use kvdb_server::ServerOptions;

const DAY: &str = "4102444800000";

/// Begins a transaction and joins it.
#[track_caller]
fn begin(c: &mut Raw, isolation: &str) -> String {
    let id = c.run(&format!("TXN BEGIN {isolation}")).replace("(integer) ", "");
    assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    id
}

fn with_one_of_each() -> (Served, Raw) {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("HSET hash a 1 b 2 c 3", "(integer) 3"),
        ("SADD set a b", "(integer) 2"),
        ("ZADD zset 1 a 2 b", "(integer) 2"),
        ("RPUSH list x y", "(integer) 2"),
        ("MSET string old stays 1", "OK"),
    ]);
    (served, c)
}

#[test]
fn a_transactions_collections_and_deadlines_are_listed() {
    let (_served, mut c) = with_one_of_each();
    let id = begin(&mut c, "SI");
    c.expect(&[
        ("TXN CHANGES", "[]"),
        ("HSET hash a 1 b 22 d 4", "(integer) 1"),
        ("HDEL hash c", "(integer) 1"),
        ("SADD new m", "(integer) 1"),
        ("DEL set", "(integer) 1"),
        ("ZADD zset 9 a", "(integer) 0"),
        ("LPOP list", "\"x\""),
        ("PEXPIREAT stays 4102444800000", "(integer) 1"),
        ("SET list2 plain", "OK"),
        (
            "TXN CHANGES",
            &format!(
                "[[\"0\" \"put\" \"list2\" (integer) 5] \
                 [\"0\" \"type\" \"hash\" \"hash\" \"hash\" (integer) 1 (integer) 1 (integer) 1] \
                 [\"0\" \"type\" \"list\" \"list\" \"list\" (integer) 0 (integer) 1 (integer) 0] \
                 [\"0\" \"type\" \"new\" (nil) \"set\" (integer) 1 (integer) 0 (integer) 0] \
                 [\"0\" \"type\" \"set\" \"set\" (nil) (integer) 0 (integer) 2 (integer) 0] \
                 [\"0\" \"deadline\" \"stays\" (nil) (integer) {DAY} \"string\"] \
                 [\"0\" \"type\" \"zset\" \"zset\" \"zset\" (integer) 0 (integer) 0 (integer) 1]]"
            ),
        ),
    ]);
    let with_fields = c.run(&format!("TXN CHANGES {id} BEFORE FIELDS"));
    for part in [
        "[\"0\" \"put\" \"list2\" (integer) 5 (nil)]",
        "[[\"b\" (integer) 1 (integer) 2] [\"c\" (integer) 1 (nil)] [\"d\" (nil) (integer) 1]]",
        "[[\"x\" (integer) 1 (nil)]]",
        "[[\"a\" (integer) 0 (nil)] [\"b\" (integer) 0 (nil)]]",
        "[[\"a\" \"1\" \"9\"]]",
    ] {
        assert!(with_fields.contains(part), "{part} in {with_fields}");
    }
    c.expect(&[
        (
            "TXN CHANGES FIELD",
            "(error) ERR a transaction is named by the number that TXN BEGIN gave",
        ),
        (&format!("TXN CHANGES {id} FIELD"), "(error) ERR syntax error"),
    ]);
}

#[test]
fn a_field_with_another_deadline_has_changed() {
    let row = |first: &str, second: &str| {
        let of_hash = "\"hash\" \"hash\" (integer) 0 (integer) 0 (integer) 1";
        format!("[[\"0\" \"{first}\" \"{second}\" {of_hash}]]")
    };
    let changed = row("type", "hash");
    for isolation in ["SI", "SER"] {
        let (_served, mut c) = with_one_of_each();
        let id = begin(&mut c, isolation);
        let expire = format!("HPEXPIREAT hash {DAY} FIELDS 2 a none");
        c.expect(&[(&expire, "[(integer) 1 (integer) -2]"), ("TXN CHANGES", &changed)]);
        let fields = c.run(&format!("TXN CHANGES {id} FIELDS"));
        assert!(fields.contains("[[\"a\" (integer) 1 (integer) 1]]"), "{fields}");
        c.expect(&[
            // A field whose value has changed as well is counted once.
            ("HINCRBY hash a 7", "(integer) 8"),
            ("TXN CHANGES", &changed),
            ("TXN REVERT KEY hash", "OK"),
            ("TXN CHANGES", "[]"),
            ("HTTL hash FIELDS 1 a", "[(integer) -1]"),
            (&expire, "[(integer) 1 (integer) -2]"),
            ("TXN COMMIT", "OK"),
            ("TXN LEAVE", "OK"),
            ("HPEXPIRETIME hash FIELDS 2 a b", &format!("[(integer) {DAY} (integer) -1]")),
            ("SNAPSHOT CREATE monday", "OK"),
            ("HPERSIST hash FIELDS 1 a", "[(integer) 1]"),
            ("SNAPSHOT CHANGES monday", &row("hash", "type")),
            ("SNAPSHOT ROLLBACK monday", "OK"),
            ("HPEXPIRETIME hash FIELDS 1 a", &format!("[(integer) {DAY}]")),
        ]);
    }
}

#[test]
fn a_key_that_becomes_something_else_is_told_so() {
    let (_served, mut c) = with_one_of_each();
    begin(&mut c, "SER");
    c.expect(&[
        ("SET hash now-a-string", "OK"),
        ("DEL string", "(integer) 1"),
        ("SADD string m", "(integer) 1"),
        ("RENAME set moved", "OK"),
        (
            "TXN CHANGES BEFORE",
            "[[\"0\" \"put\" \"hash\" (integer) 12 (nil)] \
             [\"0\" \"delete\" \"string\" (integer) 3] \
             [\"0\" \"type\" \"hash\" \"hash\" \"string\" (integer) 0 (integer) 3 (integer) 0] \
             [\"0\" \"type\" \"moved\" (nil) \"set\" (integer) 2 (integer) 0 (integer) 0] \
             [\"0\" \"type\" \"set\" \"set\" (nil) (integer) 0 (integer) 2 (integer) 0] \
             [\"0\" \"type\" \"string\" \"string\" \"set\" (integer) 1 (integer) 0 (integer) 0]]",
        ),
    ]);
}

#[test]
fn snapshots_list_collections_and_deadlines() {
    let (_served, mut c) = with_one_of_each();
    c.expect(&[
        ("PEXPIREAT stays 4102444800000", "(integer) 1"),
        ("SNAPSHOT CREATE monday", "OK"),
        ("SNAPSHOT CHANGES monday", "[]"),
        ("HSET hash a changed", "(integer) 0"),
        ("DEL zset", "(integer) 1"),
        ("PERSIST stays", "(integer) 1"),
        ("USE other", "OK"),
        ("RPUSH l 1 2 3", "(integer) 3"),
        (
            "SNAPSHOT CHANGES monday",
            &format!(
                "[[\"0\" \"hash\" \"type\" \"hash\" \"hash\" (integer) 0 (integer) 0 (integer) 1] \
                 [\"0\" \"stays\" \"deadline\" (integer) {DAY} (nil) \"string\"] \
                 [\"0\" \"zset\" \"type\" \"zset\" (nil) (integer) 0 (integer) 2 (integer) 0] \
                 [\"other\" \"l\" \"type\" (nil) \"list\" (integer) 3 (integer) 0 (integer) 0]]"
            ),
        ),
        ("SNAPSHOT CREATE fields", "OK"),
        ("SNAPSHOT CHANGES fields fields", "[]"),
        ("SNAPSHOT CHANGES monday fields more", "(error) ERR syntax error"),
    ]);
    assert!(
        c.run("SNAPSHOT CHANGES monday FIELDS").contains("[[\"a\" (integer) 1 (integer) 7]]"),
        "the option"
    );
}

#[test]
fn a_reverted_key_takes_its_elements_and_its_deadline_along() {
    for isolation in ["SI", "SER"] {
        let (served, mut c) = with_one_of_each();
        c.expect(&[("PEXPIREAT hash 4102444800000", "(integer) 1")]);
        begin(&mut c, isolation);
        c.expect(&[
            ("HSET hash a 9 z 9", "(integer) 1"),
            ("PERSIST hash", "(integer) 1"),
            ("DEL set zset string", "(integer) 3"),
            ("SADD string m", "(integer) 1"),
            ("RENAME list elsewhere", "OK"),
            ("SET new 1", "OK"),
            ("HSET kept f v", "(integer) 1"),
        ]);
        for key in ["hash", "set", "zset", "string", "list", "elsewhere", "new", "none"] {
            assert_eq!(c.run(&format!("TXN REVERT KEY {key}")), "OK", "{key}");
        }
        c.expect(&[
            ("HGETALL hash", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\"]"),
            ("PEXPIRETIME hash", &format!("(integer) {DAY}")),
            ("TXN COMMIT", "OK"),
            ("TXN LEAVE", "OK"),
            ("HGETALL hash", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\"]"),
            ("HLEN hash", "(integer) 3"),
            ("SMEMBERS set", "[\"a\" \"b\"]"),
            ("ZRANGE zset 0 -1 WITHSCORES", "[\"a\" \"1\" \"b\" \"2\"]"),
            ("ZRANGEBYSCORE zset 2 2", "[\"b\"]"),
            ("LRANGE list 0 -1", "[\"x\" \"y\"]"),
            ("GET string", "\"old\""),
            ("EXISTS elsewhere new", "(integer) 0"),
            ("HGETALL kept", "[\"f\" \"v\"]"),
            ("TXN REVERT KEY hash", "(error) ERR this connection is in no transaction: TXN JOIN one, or give its number"),
            ("TXN REVERT", "(error) ERR wrong number of arguments for 'txn' command"),
            ("TXN REVERT FILE x", "(error) ERR syntax error"),
        ]);
        drop(served);
    }
}

#[test]
fn a_string_that_is_as_it_was_is_left_out_of_a_comparison() {
    for isolation in ["SI", "SER"] {
        let (_served, mut c) = with_one_of_each();
        c.expect(&[("PEXPIREAT stays 4102444800000", "(integer) 1"), ("SET n 5", "OK")]);
        begin(&mut c, isolation);
        c.expect(&[
            ("PERSIST stays", "(integer) 1"),
            ("SET string new", "OK"),
            ("INCR n", "(integer) 6"),
            ("SET made 1", "OK"),
        ]);
        let differs = c.run("TXN CHANGES BEFORE");
        for key in ["stays", "string", "n", "made"] {
            assert!(differs.contains(&format!("\"{key}\"")), "{key} in {differs}");
        }
        for key in ["stays", "string", "made"] {
            assert_eq!(c.run(&format!("TXN REVERT KEY {key}")), "OK", "{key}");
        }
        let made = "[[\"0\" \"delete\" \"made\" (nil)]]";
        assert!(c.run("TXN CHANGES BEFORE").contains("\"n\""), "it counts one more");
        c.expect(&[
            ("DECR n", "(integer) 5"),
            ("TXN CHANGES BEFORE", made),
            // The same bytes are put again.
            ("SET string old", "OK"),
            ("TXN CHANGES BEFORE", made),
        ]);
        assert!(c.run("TXN CHANGES").contains("\"put\" \"string\" (integer) 3"));
    }
}

#[test]
fn the_collections_of_an_older_program_are_found_among_the_heads() {
    let (served, mut c) = with_one_of_each();
    // An older program wrote no owners, and renamed without them.
    let types = served.db.dictionary(":types:0").expect("made");
    let view = served.db.view();
    let mut batch = Batch::new();
    for (key, _) in view.scan(types, b"e", b"f", 1000).expect("read") {
        match key[9] {
            3 if view.get(types, &key).expect("read").is_some_and(|of| of == "hash") => {
                batch.put(types, key, "renamed since");
            }
            3 => batch.delete(types, key),
            _ => {}
        }
    }
    served.db.commit(batch, Durability::Buffered).expect("committed");
    c.expect(&[("SNAPSHOT CREATE before", "OK")]);
    begin(&mut c, "SI");
    c.expect(&[("HSET hash a 2", "(integer) 0"), ("SADD set new", "(integer) 1")]);
    let want = "[\"0\" \"type\" \"hash\" \"hash\" \"hash\" (integer) 0 (integer) 0 (integer) 1] \
                [\"0\" \"type\" \"set\" \"set\" \"set\" (integer) 1 (integer) 0 (integer) 0]";
    assert_eq!(c.run("TXN CHANGES"), format!("[{want}]"));
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
    let told = c.run("SNAPSHOT CHANGES before");
    assert!(told.contains("\"set\" \"type\"") && told.contains("\"hash\" \"type\""), "{told}");
}

#[test]
fn a_review_that_would_not_fit_says_so() {
    let limits = kvdb_server::Limits { whole_replies: 64 << 10, ..Default::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    c.expect(&[("SNAPSHOT CREATE empty", "OK")]);
    for part in 0..40 {
        let fields: String = (0..50).map(|i| format!(" field:{part}:{i} value")).collect();
        assert_eq!(c.run(&format!("HSET h{fields}")), "(integer) 50");
    }
    let counted = "[[\"0\" \"h\" \"type\" (nil) \"hash\" (integer) 2000 (integer) 0 (integer) 0]]";
    assert_eq!(c.run("SNAPSHOT CHANGES empty"), counted, "the number fits");
    assert!(c.run("SNAPSHOT CHANGES empty FIELDS").starts_with("(error) LIMIT more than 65536"));
}

/// Strings of more than ten bytes are in pages.
fn with_long_strings() -> (Served, Raw) {
    let limits = kvdb_server::Limits { tuple: 10, ..Default::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    c.expect(&[
        ("HSET hash a 1 b 2", "(integer) 2"),
        ("SET long 0123456789ab", "OK"),
        ("SETRANGE sparse 20000 end", "(integer) 20003"),
        ("SET short abc", "OK"),
        ("SET moves a-long-string", "OK"),
        ("SET shrinks a-long-string", "OK"),
        ("SET goes a-long-string", "OK"),
        ("SET becomes a-long-string", "OK"),
        ("SET stays a-long-string", "OK"),
    ]);
    (served, c)
}

const CHANGE_LONG_STRINGS: [(&str, &str); 10] = [
    ("SET hash a-long-string", "OK"),
    ("SETRANGE long 2 XY", "(integer) 12"),
    ("SETRANGE sparse 3 begin", "(integer) 20003"),
    ("APPEND short defghijklmn", "(integer) 14"),
    ("RENAME moves moved", "OK"),
    ("SET shrinks brief", "OK"),
    ("DEL goes", "(integer) 1"),
    ("DEL becomes", "(integer) 1"),
    ("SADD becomes m", "(integer) 1"),
    ("PEXPIREAT stays 4102444800000", "(integer) 1"),
];

/// Returns the numbers of pages and of heads.
fn stored(served: &Served) -> (usize, usize) {
    let types = served.db.dictionary(":types:0").expect("made");
    let view = served.db.view();
    let count = |start: &[u8], end: &[u8]| view.scan(types, start, end, 1000).expect("read").len();
    (count(b"p", b"q"), count(b"k", b"l"))
}

#[test]
fn a_long_string_is_reviewed_as_a_string() {
    for isolation in ["SI", "SER"] {
        let (_served, mut c) = with_long_strings();
        c.expect(&[("SNAPSHOT CREATE before", "OK")]);
        begin(&mut c, isolation);
        c.expect(&CHANGE_LONG_STRINGS);
        let others = |[hash, becomes, stays]: [&str; 3]| {
            format!(
                "[\"0\" {becomes} \"string\" \"set\" (integer) 1 (integer) 0 (integer) 0] \
                 [\"0\" {hash} \"hash\" \"string\" (integer) 0 (integer) 2 (integer) 0] \
                 [\"0\" {stays} (nil) (integer) {DAY} \"string\"]]"
            )
        };
        let of_transaction =
            others(["\"type\" \"hash\"", "\"type\" \"becomes\"", "\"deadline\" \"stays\""]);
        let of_snapshots =
            others(["\"hash\" \"type\"", "\"becomes\" \"type\"", "\"stays\" \"deadline\""]);
        c.expect(&[
            (
                "TXN CHANGES",
                &format!(
                    "[[\"0\" \"delete\" \"becomes\"] [\"0\" \"delete\" \"goes\"] \
                     [\"0\" \"put\" \"shrinks\" (integer) 5] \
                     [\"0\" \"put\" \"hash\" (integer) 13] \
                     [\"0\" \"update\" \"long\" (integer) 12] \
                     [\"0\" \"put\" \"moved\" (integer) 13] [\"0\" \"delete\" \"moves\"] \
                     [\"0\" \"put\" \"short\" (integer) 14] \
                     [\"0\" \"update\" \"sparse\" (integer) 20003] {of_transaction}"
                ),
            ),
            (
                "TXN CHANGES BEFORE",
                &format!(
                    "[[\"0\" \"delete\" \"becomes\" (integer) 13] \
                     [\"0\" \"delete\" \"goes\" (integer) 13] \
                     [\"0\" \"put\" \"shrinks\" (integer) 5 (integer) 13] \
                     [\"0\" \"put\" \"hash\" (integer) 13 (nil)] \
                     [\"0\" \"update\" \"long\" (integer) 12 (integer) 12] \
                     [\"0\" \"put\" \"moved\" (integer) 13 (nil)] \
                     [\"0\" \"delete\" \"moves\" (integer) 13] \
                     [\"0\" \"put\" \"short\" (integer) 14 (integer) 3] \
                     [\"0\" \"update\" \"sparse\" (integer) 20003 (integer) 20003] {of_transaction}"
                ),
            ),
            ("TXN COMMIT", "OK"),
            ("TXN LEAVE", "OK"),
            (
                "SNAPSHOT CHANGES before",
                &format!(
                    "[[\"0\" \"short\" (integer) 3 (integer) 14] \
                     [\"0\" \"shrinks\" (integer) 13 (integer) 5] \
                     [\"0\" \"becomes\" (integer) 13 (nil)] \
                     [\"0\" \"goes\" (integer) 13 (nil)] [\"0\" \"hash\" (nil) (integer) 13] \
                     [\"0\" \"long\" (integer) 12 (integer) 12] \
                     [\"0\" \"moved\" (nil) (integer) 13] [\"0\" \"moves\" (integer) 13 (nil)] \
                     [\"0\" \"sparse\" (integer) 20003 (integer) 20003] {of_snapshots}"
                ),
            ),
        ]);
    }
}

#[test]
fn a_range_that_is_deleted_says_it_of_its_long_strings() {
    let (_served, mut c) = with_long_strings();
    begin(&mut c, "SI");
    c.expect(&[
        ("DELRANGE l n", "OK"),
        ("SET long another-long-one", "OK"),
        (
            "TXN CHANGES BEFORE",
            "[[\"0\" \"delete-range\" \"l\" \"long\"] \
             [\"0\" \"delete-range\" \"long\\x00\" \"n\"] \
             [\"0\" \"put\" \"long\" (integer) 16 (integer) 12]]",
        ),
    ]);
}

#[test]
fn a_reverted_key_takes_its_pages_along() {
    const KEYS: [&str; 10] = [
        "hash", "long", "sparse", "short", "moves", "moved", "shrinks", "goes", "becomes", "stays",
    ];
    for (isolation, backwards) in [("SI", false), ("SER", false), ("SI", true)] {
        let (served, mut c) = with_long_strings();
        let before = stored(&served);
        let sparse = c.run("GET sparse");
        begin(&mut c, isolation);
        c.expect(&CHANGE_LONG_STRINGS);
        let mut keys = KEYS;
        if backwards {
            keys.reverse();
        }
        for key in keys {
            assert_eq!(c.run(&format!("TXN REVERT KEY {key}")), "OK", "{key}");
        }
        let as_it_was = [
            ("HGETALL hash", "[\"a\" \"1\" \"b\" \"2\"]"),
            ("GET long", "\"0123456789ab\""),
            ("GET sparse", &sparse),
            ("GET short", "\"abc\""),
            ("GET moves", "\"a-long-string\""),
            ("EXISTS moved", "(integer) 0"),
            ("GET shrinks", "\"a-long-string\""),
            ("GET goes", "\"a-long-string\""),
            ("GET becomes", "\"a-long-string\""),
            ("GET stays", "\"a-long-string\""),
            ("PTTL stays", "(integer) -1"),
        ];
        c.expect(&as_it_was);
        assert!(!c.run("TXN CHANGES").contains("\"type\" \"becomes\""), "no collection is left");
        c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
        c.expect(&as_it_was);
        assert_eq!(stored(&served), before, "pages are left over, or missing");
        // Each has its own.
        c.expect(&[("APPEND moves more", "(integer) 17"), ("GET goes", "\"a-long-string\"")]);
    }
}

#[test]
fn a_long_string_that_was_renamed_does_not_share_its_pages() {
    let (served, mut c) = with_long_strings();
    begin(&mut c, "SI");
    c.expect(&[
        ("RENAME moves moved", "OK"),
        ("TXN REVERT KEY moves", "OK"),
        ("SETRANGE moved 0 THE", "(integer) 13"),
        ("TXN COMMIT", "OK"),
        ("TXN LEAVE", "OK"),
        ("GET moves", "\"a-long-string\""),
        ("GET moved", "\"THEong-string\""),
        ("DEL moved", "(integer) 1"),
        ("GET moves", "\"a-long-string\""),
    ]);
    drop(served);
}
