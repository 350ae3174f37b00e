//! Tests of `SORT` and `SORT_RO`: the keys that they read, the result that they store, and the
//! requests that they refuse.

use crate::served::{Raw, serve};
use kvdb_server::{Limits, ServerOptions};

const WRONGTYPE: &str = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
const SYNTAX: &str = "(error) ERR syntax error";
const NO_NUMBER: &str = "(error) ERR One or more scores can't be converted into double";

#[test]
fn elements_are_sorted_as_numbers_or_as_text() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("RPUSH l 10 9 -1 2.5 1e2", "(integer) 5"),
        ("SORT l", "[\"-1\" \"2.5\" \"9\" \"10\" \"1e2\"]"),
        ("SORT l DESC", "[\"1e2\" \"10\" \"9\" \"2.5\" \"-1\"]"),
        ("SORT l ALPHA", "[\"-1\" \"10\" \"1e2\" \"2.5\" \"9\"]"),
        ("SORT_RO l ALPHA DESC LIMIT 1 2", "[\"2.5\" \"1e2\"]"),
        ("SORT l LIMIT 3 10", "[\"10\" \"1e2\"]"),
        ("SORT l LIMIT -5 2", "[\"-1\" \"2.5\"]"),
        ("SORT l LIMIT 1 -1", "[\"2.5\" \"9\" \"10\" \"1e2\"]"),
        ("SORT l LIMIT 9 1", "[]"),
        ("RPUSH l word", "(integer) 6"),
        ("SORT l", NO_NUMBER),
        ("SORT l BY nothing", "[\"10\" \"9\" \"-1\" \"2.5\" \"1e2\" \"word\"]"),
        ("SORT l BY nothing DESC LIMIT 0 2", "[\"word\" \"1e2\"]"),
        ("SORT none", "[]"),
        ("SADD s 3 1 2", "(integer) 3"),
        ("SORT s DESC", "[\"3\" \"2\" \"1\"]"),
        ("ZADD z 3 a 1 b 2 c", "(integer) 3"),
        ("SORT z ALPHA", "[\"a\" \"b\" \"c\"]"),
        ("SORT z BY score DESC", "[\"a\" \"c\" \"b\"]"),
        ("SET k v", "OK"),
        ("SORT k", WRONGTYPE),
        ("HSET h f v", "(integer) 1"),
        ("SORT h", WRONGTYPE),
        ("SORT l LIMIT 1", SYNTAX),
        ("SORT l LIMIT a b", "(error) ERR value is not an integer or out of range"),
        ("SORT l BY", SYNTAX),
        ("SORT l NONSENSE", SYNTAX),
        ("SORT_RO l ALPHA STORE k", SYNTAX),
    ]);
}

#[test]
fn patterns_name_weights_and_what_is_answered() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("RPUSH l 1 2 3", "(integer) 3"),
        ("MSET w_1 30 w_3 10 w_2 20 name_1 one name_3 three", "OK"),
        ("HSET h_1 weight 1 name eins", "(integer) 2"),
        ("HSET h_2 weight 3 name zwei", "(integer) 2"),
        ("HSET h_3 weight 2", "(integer) 1"),
        ("SORT l BY w_*", "[\"3\" \"2\" \"1\"]"),
        ("SORT l BY w_* GET # GET name_*", "[\"3\" \"three\" \"2\" (nil) \"1\" \"one\"]"),
        ("SORT l BY h_*->weight GET h_*->name", "[\"eins\" (nil) \"zwei\"]"),
        ("SORT l BY none_* DESC", "[\"3\" \"2\" \"1\"]"),
        ("SORT l BY name_*", NO_NUMBER),
        ("SORT l BY name_* ALPHA", "[\"2\" \"1\" \"3\"]"),
        ("SORT l BY w_*->weight", "[\"1\" \"2\" \"3\"]"),
        ("SORT l GET h_*", "[(nil) (nil) (nil)]"),
        ("SORT l GET same", "[(nil) (nil) (nil)]"),
        ("SORT l BY w_* GET name_* STORE to", "(integer) 3"),
        ("LRANGE to 0 -1", "[\"three\" \"\" \"one\"]"),
        ("LPUSH to x", "(integer) 4"),
        ("RPUSH to y", "(integer) 5"),
        ("SORT l STORE l", "(integer) 3"),
        ("SORT none STORE to", "(integer) 0"),
        ("EXISTS to", "(integer) 0"),
        ("SET s 1 PX 100000", "OK"),
        ("SORT l DESC STORE s", "(integer) 3"),
        ("TTL s", "(integer) -1"),
        ("TYPE s", "list"),
        ("COMMAND GETKEYS SORT l BY w_* STORE to", "[\"l\" \"to\"]"),
    ]);
}

#[test]
fn what_is_sorted_takes_part_in_transactions() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    c.expect(&[
        ("RPUSH l 2 1", "(integer) 2"),
        ("MULTI", "OK"),
        ("SORT l STORE to", "QUEUED"),
        ("LRANGE to 0 -1", "QUEUED"),
        ("EXEC", "[(integer) 2 [\"1\" \"2\"]]"),
        ("SNAPSHOT CREATE s", "OK"),
        ("SNAPSHOT USE s SORT_RO l", "[\"1\" \"2\"]"),
    ]);
    // A weight that others change while a transaction sorts by it.
    let begin = |c: &mut Raw, options: &str| {
        let id = c.run(&format!("TXN BEGIN {options}")).replace("(integer) ", "");
        assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    };
    for isolation in ["SI", "SER"] {
        c.run("MSET w_1 1 w_2 2");
        begin(&mut c, isolation);
        assert_eq!(c.run("SORT l BY w_* STORE to"), "(integer) 2");
        begin(&mut other, &format!("{isolation} TIMEOUT 0.01"));
        let set = other.run("SET w_1 3");
        assert_eq!(set.starts_with("(error) LOCKED"), isolation == "SER", "{set}");
        other.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
        c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
        assert_eq!(c.run("LRANGE to 0 -1"), "[\"1\" \"2\"]");
    }
}

#[test]
fn what_is_gathered_is_bounded() {
    let limits = Limits { request: 1000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    for i in 0..20 {
        c.run(&format!("RPUSH l {i}"));
    }
    for command in ["SORT l", "SORT l BY none", "SORT l STORE to"] {
        let refused = c.run(command);
        assert!(refused.starts_with("(error) LIMIT "), "{command}: {refused}");
    }
    assert_eq!(c.run("EXISTS to"), "(integer) 0");
}

#[test]
fn elements_are_numbers_as_c_reads_them() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("RPUSH l 2 '' ' 1' \"\\x00\" 0x10", "(integer) 5"),
        ("SORT l", "[\"\" \"\\x00\" \" 1\" \"2\" \"0x10\"]"),
        ("RPUSH l ' '", "(integer) 6"),
        ("SORT l", "(error) ERR One or more scores can't be converted into double"),
    ]);
}
