//! Tests of each command in the notation of `redis-cli`: a command, and the reply that Redis sends.
//! For a command of our own the expected reply is the documented one.

use crate::served;
use crate::served::{serve, show};
use kvdb_server::{Limits, Reply, ServerOptions};

const NOT_INT: &str = "(error) ERR value is not an integer or out of range";
const SYNTAX: &str = "(error) ERR syntax error";

#[test]
fn values() {
    serve(ServerOptions::default()).connect().expect(&[
        ("GET a", "(nil)"),
        ("SET a 1", "OK"),
        ("GET a", "\"1\""),
        ("get A", "(nil)"),
        ("SET a 2 NX", "(nil)"),
        ("SET a 2 XX", "OK"),
        ("SET b 2 XX", "(nil)"),
        ("SET b 2 NX", "OK"),
        ("SET a 3 GET", "\"2\""),
        ("SET c 3 GET", "(nil)"),
        ("SET c 4 NX GET", "\"3\""),
        ("GET c", "\"3\""),
        ("SET d 4 XX GET", "(nil)"),
        ("EXISTS d", "(integer) 0"),
        ("SET a 1 NX XX", SYNTAX),
        ("SET a 1 NIX", SYNTAX),
        ("SET a 1 KEEPTTL", "OK"),
        ("GETEX a", "\"1\""),
        ("GETEX a PERSIST", "\"1\""),
        ("TTL a", "(integer) -1"),
        ("TTL none", "(integer) -2"),
        ("PERSIST a", "(integer) 0"),
        ("SETNX a 9", "(integer) 0"),
        ("SETNX e 9", "(integer) 1"),
        ("GETSET e 10", "\"9\""),
        ("GETSET f 1", "(nil)"),
        ("GETDEL f", "\"1\""),
        ("GETDEL f", "(nil)"),
        ("GETDEL f", "(nil)"),
        ("SET empty ''", "OK"),
        ("GET empty", "\"\""),
        ("STRLEN empty", "(integer) 0"),
        ("EXISTS empty", "(integer) 1"),
        (r#"SET "\x00\xff" "\r\n""#, "OK"),
        (r#"GET "\x00\xff""#, r#""\r\n""#),
        ("GET", "(error) ERR wrong number of arguments for 'get' command"),
        ("GET a b", "(error) ERR wrong number of arguments for 'get' command"),
        ("SET a", "(error) ERR wrong number of arguments for 'set' command"),
        ("NOSUCH a b", "(error) ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' "),
        (
            "PFSELFTEST counts a 1",
            "(error) ERR unknown command 'PFSELFTEST', with args beginning with: 'counts' 'a' '1' ",
        ),
    ]);
}

#[test]
fn many_values_at_once() {
    serve(ServerOptions::default()).connect().expect(&[
        ("MGET a b", "[(nil) (nil)]"),
        ("MSET a 1 b 2", "OK"),
        ("MGET a x b a", "[\"1\" (nil) \"2\" \"1\"]"),
        ("MSET a 1 b", "(error) ERR wrong number of arguments for 'mset' command"),
        ("MSET a 5 a 6", "OK"),
        ("GET a", "\"6\""),
        ("MSETNX c 1 a 2", "(integer) 0"),
        ("EXISTS c", "(integer) 0"),
        ("MSETNX c 1 d 2", "(integer) 1"),
        ("EXISTS a b c d a x", "(integer) 5"),
        ("TOUCH a x", "(integer) 1"),
        ("DEL a a x", "(integer) 1"),
        ("UNLINK b c", "(integer) 2"),
        ("DEL", "(error) ERR wrong number of arguments for 'del' command"),
        ("TYPE d", "string"),
        ("TYPE a", "none"),
    ]);
}

#[test]
fn parts_of_values() {
    serve(ServerOptions {
        limits: Limits { value: 100, ..Limits::default() },
        ..Default::default()
    })
    .connect()
    .expect(&[
        ("APPEND a Hello", "(integer) 5"),
        ("APPEND a ' World'", "(integer) 11"),
        ("GETRANGE a 0 4", "\"Hello\""),
        ("GETRANGE a -5 -1", "\"World\""),
        ("GETRANGE a 5 2", "\"\""),
        ("GETRANGE a 0 x", NOT_INT),
        ("SUBSTR a 0 0", "\"H\""),
        ("GETRANGE none 0 -1", "\"\""),
        ("SETRANGE a 6 Redis", "(integer) 11"),
        ("GET a", "\"Hello Redis\""),
        ("SETRANGE b 3 x", "(integer) 4"),
        ("GET b", r#""\x00\x00\x00x""#),
        ("SETRANGE b -1 x", "(error) ERR offset is out of range"),
        ("SETRANGE b x x", NOT_INT),
        ("SETRANGE none 5 ''", "(integer) 0"),
        ("EXISTS none", "(integer) 0"),
        ("SETRANGE a 5 ''", "(integer) 11"),
        ("SETRANGE a 99 x", "(integer) 100"),
        (
            "SETRANGE a 100 x",
            "(error) ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        ),
        (
            "SETRANGE a 9223372036854775807 x",
            "(error) ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        ),
        ("APPEND a x", "(error) ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("STRLEN a", "(integer) 100"),
    ]);
}

#[test]
fn counters() {
    serve(ServerOptions::default()).connect().expect(&[
        ("INCR n", "(integer) 1"),
        ("INCRBY n 9", "(integer) 10"),
        ("DECR n", "(integer) 9"),
        ("DECRBY n 10", "(integer) -1"),
        ("INCRBY n -5", "(integer) -6"),
        ("GET n", "\"-6\""),
        ("SET n 9223372036854775806", "OK"),
        ("INCR n", "(integer) 9223372036854775807"),
        ("INCR n", "(error) ERR increment or decrement would overflow"),
        ("GET n", "\"9223372036854775807\""),
        ("DECRBY n -9223372036854775808", "(error) ERR decrement would overflow"),
        ("INCRBY n 1.5", NOT_INT),
        ("INCRBY n 9223372036854775808", NOT_INT),
        ("SET s ten", "OK"),
        ("INCR s", NOT_INT),
        ("SET s ' 1'", "OK"),
        ("INCR s", NOT_INT),
        ("SET s ''", "OK"),
        ("INCR s", NOT_INT),
        ("SET f 10.50", "OK"),
        ("INCRBYFLOAT f 0.1", "\"10.6\""),
        ("INCRBYFLOAT f -5", "\"5.6\""),
        ("SET f 5.0e3", "OK"),
        ("INCRBYFLOAT f 2.0e2", "\"5200\""),
        ("INCRBYFLOAT g 0.1", "\"0.1\""),
        ("INCRBYFLOAT g 0.2", "\"0.3\""),
        ("INCRBYFLOAT g 0x1p3", "\"8.3\""),
        ("INCRBYFLOAT g -8", "\"0.3\""),
        ("INCRBYFLOAT many 1e-18", "\"0\""),
        ("INCRBYFLOAT many 123456789.123456789", "\"123456789.12345678899873747\""),
        ("INCRBYFLOAT g x", "(error) ERR value is not a valid float"),
        ("INCRBYFLOAT g inf", "(error) ERR increment would produce NaN or Infinity"),
        ("SET h 1e4932", "OK"),
        ("INCRBYFLOAT h 1e4932", "(error) ERR increment would produce NaN or Infinity"),
    ]);
}

#[test]
fn keys_of_a_range_are_counted_and_left_out() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for i in 0..1000 {
        assert_eq!(c.run(&format!("SET k{i:03} v{i}")), "OK");
    }
    // The first case counts by ranks. The second one walks, since the keys have different types.
    for plain in [true, false] {
        c.expect(&[
            ("RANGE k100 k900 OFFSET 300 LIMIT 2 NOVALUES", "[\"k400\" \"k401\"]"),
            ("RANGE k100 k900 OFFSET 300 LIMIT 1", "[\"k400\" \"v400\"]"),
            ("RANGE k100 k900 REV OFFSET 300 LIMIT 2 NOVALUES", "[\"k599\" \"k598\"]"),
            ("RANGE - + REV OFFSET 999 NOVALUES", "[\"k000\"]"),
            ("RANGE - + OFFSET 999 NOVALUES", "[\"k999\"]"),
            ("RANGE - + OFFSET 1000", "[]"),
            ("RANGE - + REV OFFSET 1000", "[]"),
            ("RANGE k100 k200 OFFSET 100", "[]"),
            ("RANGE k100 k200 OFFSET 9223372036854775807", "[]"),
            ("RANGE k100 k200 OFFSET -1", "(error) ERR OFFSET is out of range"),
            ("RANGE k100 k200 OFFSET", SYNTAX),
            ("COUNT k100 k200", "(integer) 100"),
            ("COUNT k990 +", "(integer) 10"),
            ("COUNT - +", "(integer) 1000"),
        ]);
        if plain {
            c.expect(&[
                ("SET k1005 gone", "OK"),
                ("PEXPIREAT k1005 1", "(integer) 1"),
                ("RPUSH k3005 a", "(integer) 1"),
                ("EXPIRE k500 1000", "(integer) 1"),
            ]);
        }
    }
    let id = c.run("TXN BEGIN").trim_start_matches("(integer) ").to_owned();
    assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    c.expect(&[
        ("SET k0000 v", "OK"),
        ("COUNT - +", "(integer) 1001"),
        ("RANGE - + OFFSET 1 LIMIT 1 NOVALUES", "[\"k0000\"]"),
    ]);
    assert_eq!(served.connect().run("COUNT - +"), "(integer) 1000");
}

#[test]
fn ranges_of_keys() {
    serve(ServerOptions::default()).connect().expect(&[
        ("RANGE - +", "[]"),
        ("MSET a 1 b 2 c 3 d 4 e 5", "OK"),
        ("RANGE - +", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\" \"d\" \"4\" \"e\" \"5\"]"),
        ("RANGE '' ''", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\" \"d\" \"4\" \"e\" \"5\"]"),
        ("RANGE b d", "[\"b\" \"2\" \"c\" \"3\"]"),
        ("RANGE b d REV", "[\"c\" \"3\" \"b\" \"2\"]"),
        ("RANGE - + LIMIT 2", "[\"a\" \"1\" \"b\" \"2\"]"),
        ("RANGE - + REV LIMIT 1", "[\"e\" \"5\"]"),
        ("RANGE - + LIMIT 1 rev", "[\"e\" \"5\"]"),
        ("RANGE c + NOVALUES", "[\"c\" \"d\" \"e\"]"),
        ("RANGE - + LIMIT 0", "[]"),
        ("RANGE d b", "[]"),
        ("RANGE b b", "[]"),
        ("RANGE - + LIMIT", SYNTAX),
        ("RANGE - + LIMIT x", NOT_INT),
        ("RANGE - + LIMIT -1", "(error) ERR LIMIT is out of range"),
        ("RANGE - + UP", SYNTAX),
        ("RANGE -", "(error) ERR wrong number of arguments for 'range' command"),
        ("MSET + plus - minus", "OK"),
        ("RANGE + - EXACT", "[\"+\" \"plus\"]"),
        ("RANGE '' + EXACT", "[]"),
        ("DELRANGE + a EXACT", "OK"),
        ("DELRANGE + a EXACTLY", SYNTAX),
        ("DBSIZE", "(integer) 5"),
        ("DELRANGE b d", "OK"),
        ("DELRANGE d b", "OK"),
        ("KEYS *", "[\"a\" \"d\" \"e\"]"),
        ("DELRANGE e +", "OK"),
        ("DELRANGE x +", "OK"),
        ("KEYS *", "[\"a\" \"d\"]"),
        ("DELRANGE - d", "OK"),
        ("KEYS *", "[\"d\"]"),
        ("MSET p:1 v p:2 v q v", "OK"),
        ("ESTIMATE p: q", "[(integer) 2 (integer) 0 (integer) 8 (integer) 0]"),
        ("ESTIMATE - + EXACTLY", SYNTAX),
        ("COUNT - +", "(integer) 4"),
        ("COUNT p: q", "(integer) 2"),
        ("COUNT q p:", "(integer) 0"),
        ("COUNT - + EXACT", "(integer) 0"),
        ("COUNT - + EXACTLY", SYNTAX),
        ("DELPREFIX p:", "OK"),
        ("EXISTS p:1 p:2 q", "(integer) 1"),
        ("DELPREFIX ''", "OK"),
        ("DBSIZE", "(integer) 0"),
        ("DELRANGE - +", "OK"),
        ("DBSIZE", "(integer) 0"),
        ("DELRANGE - +", "OK"),
    ]);
}

#[test]
fn patterns_and_flushing() {
    serve(ServerOptions::default()).connect().expect(&[
        ("MSET hello 1 hallo 2 hxllo 3 user:1 4 user:2 5", "OK"),
        ("KEYS h?llo", "[\"hallo\" \"hello\" \"hxllo\"]"),
        ("KEYS h[ae]llo", "[\"hallo\" \"hello\"]"),
        ("KEYS h[^e]llo", "[\"hallo\" \"hxllo\"]"),
        ("KEYS user:*", "[\"user:1\" \"user:2\"]"),
        ("KEYS user:1", "[\"user:1\"]"),
        ("KEYS *2", "[\"user:2\"]"),
        ("KEYS nothing*", "[]"),
        ("SELECT 1", "OK"),
        ("KEYS *", "[]"),
        ("SET other 1", "OK"),
        ("FLUSHDB", "OK"),
        ("DBSIZE", "(integer) 0"),
        ("SELECT 0", "OK"),
        ("DBSIZE", "(integer) 5"),
        ("FLUSHDB NOW", SYNTAX),
        ("FLUSHALL ASYNC", "OK"),
        ("DBSIZE", "(integer) 0"),
    ]);
}

/// The cursor and the keys of one page of `SCAN`.
fn page(c: &mut served::Raw, command: &str) -> (String, Vec<String>) {
    c.send(format!("{command}\r\n").as_bytes());
    let text = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?} is no text"),
    };
    match c.reply().expect("a reply") {
        Reply::Array(parts) => match &parts[..] {
            [cursor, Reply::Array(keys)] => (text(cursor), keys.iter().map(text).collect()),
            other => panic!("{other:?} is no page"),
        },
        other => panic!("{other:?} is no page"),
    }
}

#[test]
fn scan_pages() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for i in 0..25 {
        c.run(&format!("SET key:{i:02} v"));
        c.run(&format!("SET other:{i:02} v"));
    }
    let pages = |c: &mut served::Raw, options: &str| {
        let (mut cursor, mut keys, mut pages) = ("0".to_string(), Vec::new(), 0);
        loop {
            let found;
            (cursor, found) = page(c, &format!("SCAN {cursor} {options}"));
            keys.extend(found);
            pages += 1;
            if cursor == "0" {
                return (keys, pages);
            }
        }
    };
    let (keys, n) = pages(&mut c, "");
    assert_eq!((keys.len(), n), (50, 5));
    assert!(keys.is_sorted(), "in order, so none comes twice");
    let (keys, n) = pages(&mut c, "MATCH key:* COUNT 25");
    assert_eq!((keys.len(), n), (25, 1), "the literal start of a pattern bounds what is looked at");
    let (keys, n) = pages(&mut c, "COUNT 10 MATCH *:1?");
    assert_eq!((keys.len(), n), (20, 5));
    assert_eq!(pages(&mut c, "COUNT 1000 TYPE hash").0.len(), 0);
    assert_eq!(pages(&mut c, "COUNT 1000 TYPE string").0.len(), 50);
    c.expect(&[
        ("SCAN x", "(error) ERR invalid cursor"),
        ("SCAN -1", "(error) ERR invalid cursor"),
        ("SCAN 7", "(error) ERR invalid cursor: not known, or forgotten as the oldest of too many; start again at 0"),
        ("SCAN 0 COUNT 0", SYNTAX),
        ("SCAN 0 COUNT x", NOT_INT),
        ("SCAN 0 COUNT", SYNTAX),
        ("SCAN 0 SORT up", SYNTAX),
    ]);
}

#[test]
fn a_scan_returns_every_key_that_stays_while_others_come_and_go() {
    let served = serve(ServerOptions::default());
    let (mut c, mut writer) = (served.connect(), served.connect());
    for i in 0..100 {
        c.run(&format!("SET k{i:03} stays"));
    }
    let (mut cursor, mut seen) = ("0".to_string(), Vec::new());
    for round in 0.. {
        let found;
        (cursor, found) = page(&mut c, &format!("SCAN {cursor} COUNT 7"));
        seen.extend(found.into_iter().filter(|k| k.len() == 4));
        if cursor == "0" {
            break;
        }
        // The key that the cursor stands at may itself be deleted.
        writer.run(&format!("SET k{:03}x new", (round * 37) % 100));
        writer.run(&format!("DEL k{:03}x", (round * 37 + 7) % 100));
    }
    assert_eq!(seen, (0..100).map(|i| format!("k{i:03}")).collect::<Vec<_>>());
}

#[test]
fn dictionaries() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("DICTS", "[]"),
        ("SELECT 3", "OK"),
        ("GET a", "(nil)"),
        ("DICTS", "[]"),
        ("SET a three", "OK"),
        ("USE photos", "OK"),
        ("SET a photo", "OK"),
        ("DICTS", "[\"3\" \"photos\"]"),
        ("USE 3", "OK"),
        ("GET a", "\"three\""),
        ("SELECT -1", "(error) ERR DB index is out of range"),
        ("SELECT 2147483648", "(error) ERR DB index is out of range"),
        ("SELECT x", NOT_INT),
        ("SELECT 03", NOT_INT),
        ("USE ''", "(error) ERR a dictionary's name is 1 to 128 bytes long"),
        (r#"USE "a\nb""#, "(error) ERR a dictionary's name is without control characters"),
        (r#"USE "\xff""#, "(error) ERR a dictionary's name is UTF-8 text"),
        ("GET a", "\"three\""),
        ("RESET", "RESET"),
        ("GET a", "(nil)"),
    ]);
    served.connect().expect(&[("GET a", "(nil)"), ("USE photos", "OK"), ("GET a", "\"photo\"")]);
}

#[test]
fn the_connection_and_the_server() {
    let served = serve(ServerOptions {
        info: Some(std::sync::Arc::new(|| "{\"runs\":3}".to_string())),
        ..Default::default()
    });
    let mut c = served.connect();
    c.expect(&[
        ("PING", "PONG"),
        ("PING hi", "\"hi\""),
        ("PING a b", "(error) ERR wrong number of arguments for 'ping' command"),
        ("ECHO hi", "\"hi\""),
        ("HELLO 4", "(error) NOPROTO unsupported protocol version"),
        ("HELLO x", "(error) ERR Protocol version is not an integer or out of range"),
        ("HELLO 2 WHAT", "(error) ERR Syntax error in HELLO option 'WHAT'"),
        ("CLIENT SETNAME tester", "OK"),
        ("CLIENT GETNAME", "\"tester\""),
        ("CLIENT SETNAME 'a b'", "(error) ERR Client names cannot contain spaces, newlines or special characters."),
        ("CLIENT SETINFO LIB-NAME lib", "OK"),
        ("CLIENT SETINFO LIB-VER 1", "OK"),
        ("CLIENT KILL x", "(error) ERR No such client"),
        ("CLIENT NONE", "(error) ERR unknown subcommand or wrong number of arguments for 'NONE'. Try CLIENT HELP."),
        ("CONFIG GET save", "[\"save\" \"\"]"),
        ("CONFIG GET proto-max-bulk-len", "[\"proto-max-bulk-len\" \"32505856\"]"),
        ("CONFIG GET nosuch", "[]"),
        ("CONFIG SET save 1", "(error) ERR CONFIG SET failed (possibly related to argument 'save') - can't set immutable config"),
        ("DURABLE", "\"no\""),
        ("DURABLE yes", "OK"),
        ("DURABLE", "\"yes\""),
        ("SET a 1", "OK"),
        ("CONFIG SET durable no", "OK"),
        ("DURABLE", "\"no\""),
        ("DURABLE maybe", "(error) ERR argument must be 'yes' or 'no'"),
        ("SYNC", "OK"),
        ("SAVE", "OK"),
        ("WAIT 0 100", "(integer) 0"),
        ("WAITAOF 1 0 0", "[(integer) 1 (integer) 0]"),
        ("COMMAND INFO get nosuch", "[[\"get\" (integer) 2 [readonly fast] (integer) 1 (integer) 1 (integer) 1 [@read @string @fast] [] [[\"flags\" [RO access] \"begin_search\" [\"type\" \"index\" \"spec\" [\"index\" (integer) 1]] \"find_keys\" [\"type\" \"range\" \"spec\" [\"lastkey\" (integer) 0 \"keystep\" (integer) 1 \"limit\" (integer) 0]]]] []] (nil)]"),
        ("CONFIG RESETSTAT", "OK"),
    ]);
    let hello = c.run("HELLO 3");
    assert!(hello.contains("\"proto\" (integer) 3"), "{hello}");
    c.expect(&[("GET none", "(nil)"), ("SET a 1", "OK")]);
    let info = c.run("INFO");
    for part in [
        "# Server",
        "# Clients",
        "connected_clients:1",
        "cmdstat_get:calls=1",
        "dictionary_1:0",
        "json:{\\\"runs\\\":3}",
    ] {
        assert!(info.contains(part), "{part} in {info}");
    }
    assert!(!c.run("INFO clients").contains("# Server"));
    let stat = c.run("KVFS.STAT");
    assert!(stat.contains("\\\"store\\\":{\\\"runs\\\":3}}"), "{stat}");
    assert!(stat.contains("\\\"get\\\":{\\\"calls\\\":1,"), "{stat}");
    assert!(c.run("KVFS.CHECK").starts_with("(error) ERR there are no files"));
    let zones = c.run("KVFS.ZONES");
    assert!(zones.contains("\\\"zones_per_cell\\\":1,"), "{zones}");
    assert!(zones.contains("\\\"cells\\\":[[1,0,0,0,\\\"superblock\\\",null],["), "{zones}");
    let one = c.run("KVFS.ZONES 1");
    assert_eq!(one.matches("],[").count(), 0, "{one}");
    for wrong in ["KVFS.ZONES 0", "KVFS.ZONES -1", "KVFS.ZONES x", "KVFS.ZONES 65537"] {
        assert!(c.run(wrong).starts_with("(error) ERR write a number of cells"), "{wrong}");
    }
    assert!(c.run("KVFS.ZONES 1 2").starts_with("(error) ERR wrong number of arguments"));
    let count: usize =
        c.run("COMMAND COUNT").trim_start_matches("(integer) ").parse().expect("a number");
    assert_eq!(c.run("COMMAND LIST").split(' ').count(), count);
    assert_eq!(c.run("QUIT"), "OK");
    assert!(c.reply().is_err(), "the server closed the connection");
}

#[test]
fn a_long_answer_is_whole_and_one_moment() {
    // The gather buffer is small, so that these answers are counted first and then streamed.
    let served = serve(ServerOptions {
        limits: Limits { reply: 1000, ..Limits::default() },
        ..Default::default()
    });
    let mut c = served.connect();
    for i in 0..500 {
        c.run(&format!("SET k{i:04} {}", "v".repeat(i % 90 + 1)));
    }
    let forward = c.run("RANGE - + NOVALUES");
    let mut keys: Vec<&str> = forward.trim_matches(['[', ']']).split(' ').collect();
    assert_eq!(keys.len(), 500);
    assert!(keys.is_sorted());
    assert_eq!(c.run("KEYS *"), forward);
    assert_eq!(c.run("KEYS *7").split(' ').count(), 50);
    let backward = c.run("RANGE - + REV NOVALUES");
    keys.reverse();
    assert_eq!(backward.trim_matches(['[', ']']).split(' ').collect::<Vec<_>>(), keys);
    assert_eq!(c.run("RANGE - + LIMIT 300").split(' ').count(), 600);
    assert_eq!(c.run("RANGE k0100 k0400").split(' ').count(), 600);
    let mut get = "MGET".to_string();
    (0..500).for_each(|i| get += &format!(" k{i:04}"));
    let reply = c.run(&get);
    assert_eq!(reply.split(' ').count(), 500);
    assert_eq!(c.run("PING"), "PONG");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let mut requests = b"DURABLE yes\r\n".to_vec();
    for i in 0..1000 {
        requests.extend_from_slice(
            format!("INCR n\r\n*2\r\n$4\r\nECHO\r\n$4\r\n{i:04}\r\n").as_bytes(),
        );
    }
    c.send(&requests);
    assert_eq!(show(&c.reply().expect("a reply")), "OK");
    for i in 0..1000 {
        assert_eq!(show(&c.reply().expect("a reply")), format!("(integer) {}", i + 1));
        assert_eq!(show(&c.reply().expect("a reply")), format!("\"{i:04}\""));
    }
}

#[test]
fn dictionaries_say_and_change_how_they_keep_tuples() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let usual = r#"["separate-at" "adaptive" "short-values" "inside" "stitch-at" "adaptive" "compression" "none" "value-compression" "none" "false-positives" "80" "merge" "none"]"#;
    c.expect(&[
        ("DICT LIST", "[]"),
        ("DICT INFO", "(error) NODICT there is no dictionary '0'"),
        ("DICT CREATE log stitch-at never COMPRESSION zstd", "OK"),
        ("DICT CREATE log", "(error) ERR such a dictionary exists: DICT SET changes it"),
        ("DICT LIST", r#"["log"]"#),
        ("USE log", "OK"),
        ("SET a 1", "OK"),
        ("DICT SET log separate-at 64 stitch-at 4096 false-positives 0 merge UNION", "OK"),
        (
            "DICT INFO",
            r#"["separate-at" "64" "stitch-at" "4096" "compression" "zstd" "value-compression" "none" "false-positives" "0" "merge" "union"]"#,
        ),
        ("COMPACT", "OK"),
        ("COMPACT a b", "OK"),
        ("COMPACT - +", "OK"),
        ("COMPACT STORE", "OK"),
        ("GET a", "\"1\""),
        ("DICT CREATE plain", "OK"),
        ("DICT INFO plain", usual),
        ("DICT SET plain separate-at 2048", "OK"),
        ("DICT SET plain separate-at Adaptive", "OK"),
        ("DICT INFO plain", usual),
        ("DICT DROP plain", "OK"),
        ("DICT DROP plain", "(error) NODICT there is no dictionary 'plain'"),
        ("DICT LIST", r#"["log"]"#),
    ]);
    let missing = c.run("DICT SET nowhere separate-at 1");
    assert_eq!(missing, "(error) NODICT there is no dictionary 'nowhere'");
    // A command with a wrong argument returns an error and changes nothing.
    for wrong in [
        "DICT SET log separate-at -1",
        "DICT SET log separate-at 2147483648",
        "DICT SET log stitch-at soon",
        "DICT SET log compression gzip",
        "DICT SET log false-positives 10001",
        "DICT SET log separate-at 1 colour red",
        "DICT SET log merge sum",
        "DICT SET log separate-at",
        "DICT SET log",
        "DICT CREATE other stitch-at x",
        "DICT",
        "DICT EXPLODE",
        "COMPACT a",
        "COMPACT a b c",
    ] {
        let reply = c.run(wrong);
        assert!(reply.starts_with("(error) ERR "), "{wrong}: {reply}");
    }
    c.expect(&[
        (
            "DICT INFO log",
            r#"["separate-at" "64" "stitch-at" "4096" "compression" "zstd" "value-compression" "none" "false-positives" "0" "merge" "union"]"#,
        ),
        ("DICT LIST", r#"["log"]"#),
    ]);
}
