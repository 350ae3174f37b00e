//! Tests of `DUMP` and `RESTORE`. A restored key equals the dumped one, and a string that is not a
//! valid payload is refused.

use crate::served::{Served, serve, show};
use env::Random;
use kvdb_server::{Client, Limits, Reply, ServerOptions};

fn call(c: &mut Client, words: &[&[u8]]) -> String {
    show(&c.call(words).expect("a reply"))
}

fn payload(c: &mut Client, key: &str) -> Vec<u8> {
    match c.call(&[b"DUMP", key.as_bytes()]).expect("a reply") {
        Reply::Bulk(payload) => payload,
        other => panic!("DUMP {key}: {}", show(&other)),
    }
}

/// A server with a key of each kind, `tuple` bytes of a string in one tuple.
fn filled(tuple: usize) -> (Served, Client, Vec<&'static str>) {
    let limits = Limits { tuple, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    for command in [
        "SET string some-text",
        "SETRANGE long 9000 x",
        "HSET hash f 1 g 2 h 3",
        "SADD set a b c",
        "ZADD sorted 1 b -2.5 a inf c",
        "RPUSH list b a b",
        "XADD stream 1-1 f v g w",
        "XADD stream 2-0 f v",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group consumer COUNT 1 STREAMS stream >",
    ] {
        assert!(!c.run(command).starts_with("(error)"), "{command}");
    }
    let client = Client::connect(&served.path).expect("connected");
    (served, client, vec!["string", "long", "hash", "set", "sorted", "list", "stream"])
}

#[test]
fn a_key_of_every_kind_is_put_again_in_another_store() {
    for tuple in [10, 256 << 10] {
        let (_from, mut c, keys) = filled(tuple);
        assert_eq!(call(&mut c, &[b"DUMP", b"none"]), "(nil)");
        for key in &keys {
            let (_to, mut other, _) = filled(1 << 20);
            let payload = payload(&mut c, key);
            let again: [&[u8]; 4] = [b"RESTORE", b"again", b"0", &payload];
            assert_eq!(call(&mut other, &again), "OK", "{key}");
            assert_eq!(self::payload(&mut other, "again"), payload, "{key}");
            assert_eq!(
                call(&mut other, &again),
                "(error) BUSYKEY Target key name already exists.",
                "{key}"
            );
            assert_eq!(call(&mut other, &[b"TTL", b"again"]), "(integer) -1");
            // Restores in place of each kind of key.
            for there in &keys {
                let replaced = [&again[..1], &[there.as_bytes()], &again[2..], &[&b"REPLACE"[..]]];
                assert_eq!(call(&mut other, &replaced.concat()), "OK", "{key} for {there}");
                assert_eq!(self::payload(&mut other, there), payload, "{key} for {there}");
            }
        }
    }
}

#[test]
fn what_was_put_again_can_be_changed() {
    let (_served, mut c, keys) = filled(10);
    for key in keys {
        let payload = payload(&mut c, key);
        let restore: [&[u8]; 5] = [b"RESTORE", key.as_bytes(), b"0", &payload, b"REPLACE"];
        assert_eq!(call(&mut c, &restore), "OK");
    }
    for (command, want) in [
        ("APPEND string !", "(integer) 10"),
        ("HSET hash i 4", "(integer) 1"),
        ("HLEN hash", "(integer) 4"),
        ("SADD set a d", "(integer) 1"),
        ("SCARD set", "(integer) 4"),
        ("ZADD sorted 0 d", "(integer) 1"),
        ("ZRANGE sorted 0 -1", "[\"a\" \"d\" \"b\" \"c\"]"),
        ("LPUSH list first", "(integer) 4"),
        ("RPUSH list last", "(integer) 5"),
        ("LRANGE list 0 -1", "[\"first\" \"b\" \"a\" \"b\" \"last\"]"),
        ("DEL string long hash set sorted list", "(integer) 6"),
    ] {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        assert_eq!(call(&mut c, &words), want, "{command}");
    }
}

#[test]
fn a_deadline_is_given_with_the_payload() {
    let (_served, mut c, _) = filled(1000);
    let payload = payload(&mut c, "list");
    let mut restore = |key: &str, ttl: &str, options: &str| {
        let mut words: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), &payload];
        words.extend(options.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes));
        call(&mut c, &words)
    };
    assert_eq!(restore("a", "100000", ""), "OK");
    assert_eq!(restore("b", "33000000000000", "ABSTTL IDLETIME 5 FREQ 255"), "OK");
    // The key has expired in transit, so it does not exist or is removed.
    assert_eq!(restore("c", "1", "ABSTTL"), "OK");
    assert_eq!(restore("b", "1", "ABSTTL"), "(error) BUSYKEY Target key name already exists.");
    assert_eq!(restore("set", "1", "ABSTTL REPLACE"), "OK");
    const INTEGER: &str = "(error) ERR value is not an integer or out of range";
    for (ttl, options, want) in [
        ("-1", "", "(error) ERR Invalid TTL value, must be >= 0"),
        ("x", "", INTEGER),
        ("9223372036854775807", "", "(error) ERR invalid expire time in 'restore' command"),
        ("0", "IDLETIME -1", "(error) ERR Invalid IDLETIME value, must be >= 0"),
        ("0", "FREQ 256", "(error) ERR Invalid FREQ value, must be >= 0 and <= 255"),
        ("0", "FREQ x", INTEGER),
        ("0", "FREQ", "(error) ERR syntax error"),
        ("0", "NONSENSE", "(error) ERR syntax error"),
    ] {
        assert_eq!(restore("new", ttl, options), want, "{ttl} {options}");
    }
    assert_eq!(call(&mut c, &[b"EXISTS", b"a", b"b", b"c", b"set", b"new"]), "(integer) 2");
    assert_eq!(call(&mut c, &[b"PEXPIRETIME", b"b"]), "(integer) 33000000000000");
    let left = c.call(&[b"PTTL", b"a"]).expect("a reply");
    assert!(matches!(left, Reply::Integer(1..=100_000)), "{left:?}");
}

#[test]
fn what_is_no_payload_changes_nothing() {
    let (_served, mut c, keys) = filled(10);
    let mut random = Random::new(14);
    let all: Vec<Vec<u8>> = keys.iter().map(|key| payload(&mut c, key)).collect();
    for _ in 0..500 {
        let mut payload = all[random.below(all.len() as u64) as usize].clone();
        match random.below(3) {
            0 => payload.truncate(random.below(payload.len() as u64) as usize),
            1 => payload.insert(random.below(payload.len() as u64) as usize, 0x80),
            _ => {
                let at = random.below(payload.len() as u64) as usize;
                payload[at] ^= 1 << random.below(8);
            }
        }
        let refused = call(&mut c, &[b"RESTORE", b"new", b"0", &payload]);
        assert_eq!(refused, "(error) ERR DUMP payload version or checksum are wrong");
    }
    assert_eq!(call(&mut c, &[b"EXISTS", b"new"]), "(integer) 0");
}

#[test]
fn what_is_longer_than_an_argument_is_no_payload() {
    let limits = Limits { argument: 1000, tuple: 100, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    c.run("SETRANGE fits 992 x");
    c.run("SETRANGE long 993 x");
    (0..100).for_each(|i| drop(c.run(&format!("SADD set member-{i}"))));
    for key in ["long", "set"] {
        let refused = c.run(&format!("DUMP {key}"));
        assert!(refused.starts_with("(error) LIMIT what the key holds takes more"), "{refused}");
    }
    let mut client = Client::connect(&served.path).expect("connected");
    let payload = payload(&mut client, "fits");
    assert_eq!(payload.len(), 1000);
    assert_eq!(call(&mut client, &[b"RESTORE", b"again", b"0", &payload]), "OK");
    // Names have the limit that they have in commands.
    let limits = Limits { element: 8, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut other = Client::connect(&served.path).expect("connected");
    c.run("DEL set");
    c.run("SADD set long-member");
    let payload = self::payload(&mut client, "set");
    let refused = call(&mut other, &[b"RESTORE", b"set", b"0", &payload]);
    assert!(refused.starts_with("(error) ERR field or member of 11 bytes"), "{refused}");
}

#[test]
fn a_key_is_copied_to_the_dictionary_of_a_number() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    c.expect(&[
        ("HSET h f v g w", "(integer) 2"),
        ("HEXPIRE h 100000 FIELDS 1 f", "[(integer) 1]"),
        ("SET s text EX 100000", "OK"),
        ("RPUSH l a b c", "(integer) 3"),
        ("ZADD z 2 b 1 c", "(integer) 2"),
        ("COPY none h DB 1", "(integer) 0"),
        ("COPY h h DB 1", "(integer) 1"),
        ("COPY s t DB 1", "(integer) 1"),
        ("COPY l l DB 1", "(integer) 1"),
        ("COPY z z DB 1", "(integer) 1"),
        ("COPY l z DB 1", "(integer) 0"),
        ("COPY s l REPLACE DB 1", "(integer) 1"),
        ("COPY s s DB 0", "(error) ERR source and destination objects are the same"),
        ("COPY s u DB 0", "(integer) 1"),
        ("COPY s u DB x", "(error) ERR value is not an integer or out of range"),
        ("COPY s u DB -1", "(error) ERR DB index is out of range"),
        ("COPY s u DB", "(error) ERR syntax error"),
        ("EXISTS h s l z u", "(integer) 5"),
        ("SELECT 1", "OK"),
        ("HGETALL h", "[\"f\" \"v\" \"g\" \"w\"]"),
        ("HTTL h FIELDS 2 f g", "[(integer) 100000 (integer) -1]"),
        ("MGET t l", "[\"text\" \"text\"]"),
        ("PERSIST t", "(integer) 1"),
        ("ZRANGE z 0 -1 WITHSCORES", "[\"c\" \"1\" \"b\" \"2\"]"),
        ("DBSIZE", "(integer) 4"),
        ("SELECT 0", "OK"),
        // Restores in transactions, into dictionaries that did not exist.
        ("MULTI", "OK"),
        ("SET new v", "QUEUED"),
        ("COPY new new DB 2", "QUEUED"),
        ("EXEC", "[OK (integer) 1]"),
    ]);
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        ("COPY new new DB 3", "(integer) 1"),
        ("GET new", "\"v\""),
    ]);
    other.expect(&[("SELECT 2", "OK"), ("GET new", "\"v\"")]);
    other.expect(&[("SELECT 3", "OK"), ("GET new", "(nil)")]);
    c.expect(&[("TXN COMMIT", "OK")]);
    other.expect(&[("GET new", "\"v\"")]);
}
