//! Tests of the deadlines of hash fields, on a clock that the test advances. At its deadline a
//! field disappears for every reader. The hash disappears with its last field, and soon afterwards
//! both are removed from the store.

use std::time::Duration;

use crate::expiry::{clocked, run};
use crate::served::{show, tuples};
use kvdb_server::{Client, Reply};

#[test]
fn a_field_is_gone_after_its_deadline_for_every_command() {
    clocked().expect(&[
        ("HSET h a 1 b 2 c 3", "(integer) 3"),
        ("HPEXPIRE h 10 FIELDS 2 a b", "[(integer) 1 (integer) 1]"),
        ("HPTTL h FIELDS 3 a c none", "[(integer) 10 (integer) -1 (integer) -2]"),
        ("HTTL h FIELDS 1 a", "[(integer) 1]"),
        ("wait 10", ""),
        ("HGET h a", "\"1\""),
        ("HLEN h", "(integer) 3"),
        ("HGETALL h", "[\"a\" \"1\" \"b\" \"2\" \"c\" \"3\"]"),
        ("wait 1", ""),
        ("HGET h a", "(nil)"),
        ("HMGET h a b c", "[(nil) (nil) \"3\"]"),
        ("HEXISTS h a", "(integer) 0"),
        ("HSTRLEN h a", "(integer) 0"),
        ("HLEN h", "(integer) 1"),
        ("HGETALL h", "[\"c\" \"3\"]"),
        ("HKEYS h", "[\"c\"]"),
        ("HVALS h", "[\"3\"]"),
        ("HSCAN h 0", "[\"0\" [\"c\" \"3\"]]"),
        ("HRANDFIELD h", "\"c\""),
        ("HRANDFIELD h 10", "[\"c\"]"),
        ("HTTL h FIELDS 1 a", "[(integer) -2]"),
        ("HPERSIST h FIELDS 1 a", "[(integer) -2]"),
        ("HEXPIRE h 10 FIELDS 1 b", "[(integer) -2]"),
        ("HDEL h a", "(integer) 0"),
        ("TYPE h", "hash"),
        ("RPUSH list h", "(integer) 1"),
        ("SORT list BY nosort GET *->a GET *->c", "[(nil) \"3\"]"),
        ("DEL list", "(integer) 1"),
        // An expired field that is set again is new, and is counted once.
        ("HSETNX h a 9", "(integer) 1"),
        ("HINCRBY h b 5", "(integer) 5"),
        ("HPTTL h FIELDS 2 a b", "[(integer) -1 (integer) -1]"),
        ("HLEN h", "(integer) 3"),
        ("DEBUG SWEEP", "(integer) 0"),
        ("HGETALL h", "[\"a\" \"9\" \"b\" \"5\" \"c\" \"3\"]"),
        ("HDEL h a b", "(integer) 2"),
        ("HLEN h", "(integer) 1"),
        ("HDEL h c", "(integer) 1"),
        ("EXISTS h", "(integer) 0"),
    ]);
}

#[test]
fn a_hash_is_gone_with_its_last_field() {
    let mut c = clocked();
    c.expect(&[
        ("HSET h a 1 b 2", "(integer) 2"),
        ("HPEXPIRE h 5 FIELDS 1 a", "[(integer) 1]"),
        ("HPEXPIRE h 9 FIELDS 1 b", "[(integer) 1]"),
        ("wait 6", ""),
        ("EXISTS h", "(integer) 1"),
        ("HSET h a 3", "(integer) 1"),
        ("HLEN h", "(integer) 2"),
        ("HPEXPIRE h 1 FIELDS 1 a", "[(integer) 1]"),
        ("wait 4", ""),
        ("EXISTS h", "(integer) 0"),
        ("TYPE h", "none"),
        ("TTL h", "(integer) -2"),
        ("HLEN h", "(integer) 0"),
        ("HGET h a", "(nil)"),
        ("HMGET h a b", "[(nil) (nil)]"),
        ("HEXISTS h b", "(integer) 0"),
        ("HPEXPIRETIME h FIELDS 2 a b", "[(integer) -2 (integer) -2]"),
        ("KEYS *", "[]"),
        ("DBSIZE", "(integer) 0"),
        ("DEL h", "(integer) 0"),
        ("RENAME h x", "(error) ERR no such key"),
        ("COPY h x", "(integer) 0"),
        ("HSET h c 3", "(integer) 1"),
        ("HGETALL h", "[\"c\" \"3\"]"),
        ("DEBUG SWEEP", "(integer) 0"),
        ("HLEN h", "(integer) 1"),
    ]);
    // The head, the number of fields, the owner and the field.
    assert_eq!(tuples(&c.db), (0, 4));
    // The deletion of the last field that exists ends the hash, with those that have expired.
    c.expect(&[
        ("HSET h d 4", "(integer) 1"),
        ("HPEXPIRE h 5 FIELDS 1 d", "[(integer) 1]"),
        ("wait 6", ""),
        ("HDEL h c", "(integer) 1"),
        ("EXISTS h", "(integer) 0"),
        ("DEBUG SWEEP", "(integer) 0"),
    ]);
    assert_eq!(tuples(&c.db), (0, 0));
}

#[test]
fn the_sweeper_removes_fields_that_have_expired_and_nothing_else() {
    let mut c = clocked();
    for i in 0..300 {
        c.run(&format!("HSET h f{i:03} v"));
        c.run(&format!("HPEXPIRE h {} FIELDS 1 f{i:03}", 10 + i));
        c.run(&format!("HSET h{i:03} f v g w"));
        c.run(&format!("HPEXPIRE h{i:03} {} FIELDS 2 f g", 10 + i));
    }
    c.run("HSET h stays v later v moved v");
    c.run("HPEXPIRE h 5 FIELDS 2 later moved");
    c.run("HPERSIST h FIELDS 1 later");
    c.run("HPEXPIRE h 100000 FIELDS 1 moved");
    c.clock.advance(Duration::from_millis(110));
    assert_eq!(c.run("HLEN h"), "(integer) 203");
    assert_eq!(c.run("DBSIZE"), "(integer) 201");
    let before = tuples(&c.db);
    let mut steps = 0;
    while c.run("DEBUG SWEEP 50") != "(integer) 0" {
        steps += 1;
    }
    assert!(steps > 1, "in bounded steps");
    assert_eq!(c.run("HLEN h"), "(integer) 203");
    assert_eq!(c.run("DBSIZE"), "(integer) 201");
    let after = tuples(&c.db);
    // A field, its deadline and its place in the order; one of the two deadlines that named `h`;
    // of each other hash the head, the deadline, the number of fields, the owner and two fields.
    assert_eq!(before.1 - after.1, 100 * 3 + 1 + 100 * 10);
    assert_eq!(c.run("HMGET h stays later moved"), "[\"v\" \"v\" \"v\"]");
    c.clock.advance(Duration::from_secs(1000));
    while c.run("DEBUG SWEEP") != "(integer) 0" {}
    assert_eq!(c.run("HGETALL h"), "[\"later\" \"v\" \"stays\" \"v\"]");
    assert_eq!(tuples(&c.db), (0, 5), "the hash `h` with two fields");
}

#[test]
fn a_step_of_the_sweeper_removes_fields_of_a_bounded_number_of_bytes() {
    let mut c = clocked();
    let long = "x".repeat(16_000);
    for i in 0..10 {
        c.run(&format!("HSET h{i} stays v"));
        for j in 10..30 {
            c.run(&format!("HSET h{i} {long}{j} v"));
            c.run(&format!("HPEXPIRE h{i} 5 FIELDS 1 {long}{j}"));
        }
    }
    c.clock.advance(Duration::from_millis(6));
    let mut all = 0;
    loop {
        let reply = c.run("DEBUG SWEEP");
        let removed = reply.strip_prefix("(integer) ").and_then(|n| n.parse().ok());
        let removed: usize = removed.expect("a number");
        assert!(removed < 30, "{removed} at once");
        all += removed;
        if removed == 0 {
            break;
        }
    }
    assert_eq!(all, 200);
    // The heads, the numbers of fields, the owners and the fields that stay.
    assert_eq!(tuples(&c.db), (0, 40));
}

#[test]
fn deadlines_of_fields_are_given_and_taken_as_in_redis() {
    let mut c = clocked();
    let now = c.now();
    let at = |more: u64| format!("[(integer) {}]", now + more);
    c.expect(&[
        ("HEXPIRE none 10 FIELDS 2 a b", "[(integer) -2 (integer) -2]"),
        ("HPERSIST none FIELDS 1 a", "[(integer) -2]"),
        ("HTTL none FIELDS 1 a", "[(integer) -2]"),
        ("HSET h a 1 b 2", "(integer) 2"),
        ("HEXPIRE h 100 XX FIELDS 1 a", "[(integer) 0]"),
        ("HEXPIRE h 100 GT FIELDS 1 a", "[(integer) 0]"),
        ("HEXPIRE h 100 LT FIELDS 1 a", "[(integer) 1]"),
        ("HEXPIRE h 50 nx fields 3 a b none", "[(integer) 0 (integer) 1 (integer) -2]"),
        ("HEXPIRE h 50 GT FIELDS 1 a", "[(integer) 0]"),
        ("HEXPIRE h 100 LT FIELDS 1 a", "[(integer) 0]"),
        ("HEXPIRE h 50 LT FIELDS 1 a", "[(integer) 1]"),
        ("HEXPIRE h 200 GT FIELDS 1 a", "[(integer) 1]"),
        ("HEXPIRE h 20 XX FIELDS 1 a", "[(integer) 1]"),
        ("HTTL h FIELDS 2 a b", "[(integer) 20 (integer) 50]"),
        (&format!("HPEXPIREAT h {} FIELDS 1 a", now + 1500), "[(integer) 1]"),
        ("HPEXPIRETIME h FIELDS 1 a", &at(1500)),
        ("HEXPIRETIME h FIELDS 1 a", &format!("[(integer) {}]", (now + 1500).div_ceil(1000))),
        ("HTTL h FIELDS 1 a", "[(integer) 2]"),
        ("HPTTL h FIELDS 1 a", "[(integer) 1500]"),
        (&format!("HEXPIREAT h {} FIELDS 1 a", now / 1000 + 10), "[(integer) 1]"),
        ("HEXPIRETIME h FIELDS 1 a", &format!("[(integer) {}]", now / 1000 + 10)),
        ("HPERSIST h FIELDS 3 a none a", "[(integer) 1 (integer) -2 (integer) -1]"),
        ("HTTL h FIELDS 1 a", "[(integer) -1]"),
        ("HEXPIRE h 10 NX FIELDS 2 a a", "[(integer) 1 (integer) 0]"),
        ("HEXPIRE h 0 FIELDS 1 a", "[(integer) 2]"),
        ("HGETALL h", "[\"b\" \"2\"]"),
        ("HEXPIRE h 0 FIELDS 2 b b", "[(integer) 2 (integer) -2]"),
        ("EXISTS h", "(integer) 0"),
        ("HSET h a 1", "(integer) 1"),
        (
            "HEXPIRE h 10 FIELD 1 a",
            "(error) ERR Mandatory argument FIELDS is missing or not at the right position",
        ),
        (
            "HEXPIRE h 10 NX XX FIELDS 1 a",
            "(error) ERR Mandatory argument FIELDS is missing or not at the right position",
        ),
        ("HEXPIRE h 10 FIELDS 0 a", "(error) ERR Parameter `numFields` should be greater than 0"),
        (
            "HEXPIRE h 10 FIELDS 2 a",
            "(error) ERR The `numfields` parameter must match the number of arguments",
        ),
        ("HEXPIRE h -1 FIELDS 1 a", "(error) ERR invalid expire time, must be >= 0"),
        (
            "HEXPIRE h 99999999999999 FIELDS 1 a",
            "(error) ERR invalid expire time in 'hexpire' command",
        ),
        ("HEXPIRE h x FIELDS 1 a", "(error) ERR value is not an integer or out of range"),
        ("HTTL h FIELDS x a", "(error) ERR Number of fields must be a positive integer"),
        ("SET s v", "OK"),
        (
            "HTTL s FIELDS 1 a",
            "(error) WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        (
            "HEXPIRE s 10 FIELDS 1 a",
            "(error) WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ]);
}

#[test]
fn a_field_that_is_set_loses_its_deadline_and_one_that_is_counted_keeps_it() {
    clocked().expect(&[
        ("HSET h a 1 b 1 c 1", "(integer) 3"),
        ("HEXPIRE h 10 FIELDS 3 a b c", "[(integer) 1 (integer) 1 (integer) 1]"),
        ("HSET h a 2", "(integer) 0"),
        ("HINCRBY h b 1", "(integer) 2"),
        ("HINCRBYFLOAT h c 0.5", "\"1.5\""),
        ("HTTL h FIELDS 3 a b c", "[(integer) -1 (integer) 10 (integer) 10]"),
        ("HDEL h b", "(integer) 1"),
        ("HSET h b 1", "(integer) 1"),
        ("HTTL h FIELDS 1 b", "[(integer) -1]"),
        ("wait 10001", ""),
        ("HGETALL h", "[\"a\" \"2\" \"b\" \"1\"]"),
    ]);
}

#[test]
fn a_hash_keeps_the_deadlines_of_its_fields_under_another_key() {
    let mut c = clocked();
    c.expect(&[
        ("HSET h a 1 b 2", "(integer) 2"),
        ("HPEXPIRE h 5 FIELDS 1 a", "[(integer) 1]"),
        ("COPY h copy", "(integer) 1"),
        ("RENAME h renamed", "OK"),
        ("HPTTL copy FIELDS 1 a", "[(integer) 5]"),
        ("HPTTL renamed FIELDS 1 a", "[(integer) 5]"),
        ("wait 6", ""),
        ("HGETALL copy", "[\"b\" \"2\"]"),
        ("HGETALL renamed", "[\"b\" \"2\"]"),
        ("DEBUG SWEEP", "(integer) 2"),
        ("HLEN copy", "(integer) 1"),
        ("HLEN renamed", "(integer) 1"),
    ]);
    // Two heads, numbers of fields, owners and fields.
    assert_eq!(tuples(&c.db), (0, 8));
}

#[test]
fn fields_are_read_and_written_together_with_their_deadlines() {
    clocked().expect(&[
        ("HGETDEL h FIELDS 2 a b", "[(nil) (nil)]"),
        ("HGETEX h EX 10 FIELDS 1 a", "[(nil)]"),
        ("HSETEX h FXX FIELDS 1 a 1", "(integer) 0"),
        ("EXISTS h", "(integer) 0"),
        ("HSETEX h FNX EX 10 FIELDS 2 a 1 b 2", "(integer) 1"),
        ("HTTL h FIELDS 2 a b", "[(integer) 10 (integer) 10]"),
        ("HSETEX h FNX FIELDS 2 b 3 c 3", "(integer) 0"),
        ("HSETEX h FXX KEEPTTL FIELDS 1 a 4", "(integer) 1"),
        ("HSETEX h FIELDS 2 b 5 c 6", "(integer) 1"),
        ("HLEN h", "(integer) 3"),
        ("HGETEX h FIELDS 2 a none", "[\"4\" (nil)]"),
        ("HTTL h FIELDS 3 a b c", "[(integer) 10 (integer) -1 (integer) -1]"),
        ("HGETEX h PX 500 FIELDS 2 b b", "[\"5\" \"5\"]"),
        ("HGETEX h PERSIST FIELDS 1 a", "[\"4\"]"),
        ("HPTTL h FIELDS 2 a b", "[(integer) -1 (integer) 500]"),
        ("HGETDEL h FIELDS 2 a a", "[\"4\" (nil)]"),
        ("HLEN h", "(integer) 2"),
        ("HSETEX h EXAT 1 FIELDS 1 c 7", "(integer) 1"),
        ("HKEYS h", "[\"b\"]"),
        ("HGETDEL h FIELDS 1 b", "[\"5\"]"),
        ("EXISTS h", "(integer) 0"),
        // A time of 0 has passed.
        ("HSETEX h EX 0 FIELDS 1 none 1", "(integer) 1"),
        ("EXISTS h", "(integer) 0"),
        ("HSET h a 1 b 2", "(integer) 2"),
        ("HGETEX h PX 0 FIELDS 1 a", "[\"1\"]"),
        ("HSETEX h PX 0 FIELDS 2 b 3 c 4", "(integer) 1"),
        ("EXISTS h", "(integer) 0"),
        ("HGETEX h EX -1 FIELDS 1 a", "(error) ERR invalid expire time, must be >= 0"),
        (
            "HSETEX h PXAT 99999999999999 FIELDS 1 a 1",
            "(error) ERR invalid expire time in 'hsetex' command",
        ),
        ("HGETEX h FIELDS 0 a", "(error) ERR Number of fields must be a positive integer"),
        ("HSETEX h EX 5 KEEPTTL FIELDS 1 a 1", "(error) ERR syntax error"),
        ("HSETEX h FIELDS 2 a 1", "(error) ERR wrong number of arguments for 'hsetex' command"),
    ]);
}

#[test]
fn a_dump_has_the_deadlines_of_fields() {
    let mut c = clocked();
    let dump = |client: &mut Client, key: &str| match client.call(&[b"DUMP", key.as_bytes()]) {
        Ok(Reply::Bulk(payload)) => payload,
        other => panic!("DUMP {key}: {other:?}"),
    };
    c.expect(&[
        ("HSET h a 1 b 2", "(integer) 2"),
        ("HPEXPIRE h 10 FIELDS 1 a", "[(integer) 1]"),
        ("wait 5", ""),
    ]);
    let payload = dump(&mut c.client, "h");
    for (key, ttl) in [("again", "0"), ("expires", "1000")] {
        let words: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), ttl.as_bytes(), &payload];
        assert_eq!(show(&c.client.call(&words).expect("a reply")), "OK");
        assert_eq!(dump(&mut c.client, key), payload);
    }
    c.expect(&[
        ("HPTTL again FIELDS 2 a b", "[(integer) 5 (integer) -1]"),
        ("HPTTL expires FIELDS 2 a b", "[(integer) 5 (integer) -1]"),
        ("PTTL expires", "(integer) 1000"),
        ("wait 6", ""),
        ("HGETALL again", "[\"b\" \"2\"]"),
        ("HGETALL expires", "[\"b\" \"2\"]"),
        ("HSET plain b 2", "(integer) 1"),
    ]);
    assert_eq!(dump(&mut c.client, "again"), dump(&mut c.client, "plain"), "none is left");
    c.expect(&[
        ("DEBUG SWEEP", "(integer) 3"),
        ("HLEN again", "(integer) 1"),
        ("HLEN expires", "(integer) 1"),
    ]);
}

#[test]
fn the_sweeper_comes_for_a_field_whose_key_had_the_same_deadline() {
    let mut c = clocked();
    c.expect(&[
        ("HSET h a 1 b 2", "(integer) 2"),
        ("PEXPIRE h 5", "(integer) 1"),
        ("HPEXPIRE h 5 FIELDS 1 a", "[(integer) 1]"),
        ("PERSIST h", "(integer) 1"),
        ("wait 6", ""),
        ("HGETALL h", "[\"b\" \"2\"]"),
        ("DEBUG SWEEP", "(integer) 1"),
    ]);
    assert_eq!(tuples(&c.db), (0, 4), "the hash with one field");
    // A key that expires takes the deadlines of its fields along.
    c.expect(&[
        ("HPEXPIRE h 5 FIELDS 1 b", "[(integer) 1]"),
        ("PEXPIRE h 5", "(integer) 1"),
        ("wait 6", ""),
        ("DEBUG SWEEP", "(integer) 1"),
    ]);
    assert_eq!(tuples(&c.db), (0, 0));
}

#[test]
fn one_field_that_is_renewed_again_and_again_leaves_nothing_over() {
    let mut c = clocked();
    c.run("HSET h f v");
    for i in 0..100 {
        assert_eq!(c.run(&format!("HPEXPIRE h {} FIELDS 1 f", 1000 + i)), "[(integer) 1]");
    }
    // The head, the number of fields, the owner, the field, its deadline, its place in the order,
    // and the first deadline at which the sweeper comes.
    assert_eq!(tuples(&c.db), (0, 7));
    c.clock.advance(Duration::from_millis(1050));
    assert_eq!(c.run("DEBUG SWEEP"), "(integer) 0");
    assert_eq!(c.run("HGET h f"), "\"v\"");
    c.clock.advance(Duration::from_millis(50));
    assert_eq!(c.run("DEBUG SWEEP"), "(integer) 1");
    assert_eq!(tuples(&c.db), (0, 0));
}

#[test]
fn a_key_that_is_renewed_removed_or_renamed_leaves_no_deadlines_over() {
    let mut c = clocked();
    c.expect(&[("HSET h f v g w", "(integer) 2"), ("HPEXPIRE h 1000 FIELDS 1 f", "[(integer) 1]")]);
    for i in 0..100 {
        assert_eq!(c.run(&format!("PEXPIRE h {}", 5000 + i)), "(integer) 1");
    }
    // The head, the number of fields, the owner, two fields, the deadline of one, its place in the
    // order, and the deadlines of the field and of the key at which the sweeper comes.
    assert_eq!(tuples(&c.db), (0, 9));
    c.expect(&[("wait 1001", ""), ("DEBUG SWEEP", "(integer) 1"), ("PERSIST h", "(integer) 1")]);
    assert_eq!(tuples(&c.db), (0, 4));
    c.expect(&[("HPEXPIRE h 1000 FIELDS 1 g", "[(integer) 1]"), ("RENAME h other", "OK")]);
    assert_eq!(tuples(&c.db), (0, 7));
    c.run("DEL other");
    assert_eq!(tuples(&c.db), (0, 0));
    // The sweeper would have come for the second field at the deadline of the key.
    c.expect(&[
        ("HSET h a 1 b 2 c 3", "(integer) 3"),
        ("HPEXPIRE h 10 FIELDS 1 a", "[(integer) 1]"),
        ("HPEXPIRE h 20 FIELDS 1 b", "[(integer) 1]"),
        ("PEXPIRE h 10", "(integer) 1"),
        ("HPERSIST h FIELDS 1 a", "[(integer) 1]"),
        ("PEXPIRE h 500", "(integer) 1"),
        ("wait 21", ""),
        ("DEBUG SWEEP", "(integer) 1"),
        ("HGETALL h", "[\"a\" \"1\" \"c\" \"3\"]"),
    ]);
    assert_eq!(tuples(&c.db), (0, 6));
}

#[test]
fn a_snapshot_has_the_fields_that_it_had() {
    clocked().expect(&[
        ("HSET h a 1 b 2 c 3", "(integer) 3"),
        ("HPEXPIRE h 10 FIELDS 1 a", "[(integer) 1]"),
        ("HPEXPIRE h 100 FIELDS 1 b", "[(integer) 1]"),
        ("wait 11", ""),
        ("SNAPSHOT CREATE s", "OK"),
        ("wait 1000", ""),
        ("DEBUG SWEEP", "(integer) 2"),
        ("HGETALL h", "[\"c\" \"3\"]"),
        ("SNAPSHOT USE s HGETALL h", "[\"b\" \"2\" \"c\" \"3\"]"),
        ("SNAPSHOT USE s HLEN h", "(integer) 2"),
        ("SNAPSHOT USE s HPTTL h FIELDS 2 a b", "[(integer) -2 (integer) 89]"),
        ("CLONE CREATE s clone", "OK"),
        ("CLONE USE clone HGETALL h", "[\"c\" \"3\"]"),
        ("CLONE USE clone HEXPIRE h 10 FIELDS 1 c", "[(integer) 1]"),
        ("HTTL h FIELDS 1 c", "[(integer) -1]"),
    ]);
}

#[test]
fn transactions_commit_fields_and_their_deadlines_together() {
    for isolation in ["SI", "SER"] {
        let mut c = clocked();
        let mut other = Client::local(c.db.clone());
        c.expect(&[
            ("HSET h a 1 b 2", "(integer) 2"),
            ("HEXPIRE h 100 FIELDS 1 b", "[(integer) 1]"),
        ]);
        let id = c.run(&format!("TXN BEGIN {isolation}"));
        let id = id.rsplit(' ').next().expect("a number").to_string();
        c.expect(&[
            (&format!("TXN JOIN {id}"), "OK"),
            ("HEXPIRE h 10 FIELDS 1 a", "[(integer) 1]"),
            ("HTTL h FIELDS 2 a b", "[(integer) 10 (integer) 100]"),
            ("TXN SAVEPOINT here", "OK"),
            ("HPERSIST h FIELDS 2 a b", "[(integer) 1 (integer) 1]"),
            ("HSET h c 3", "(integer) 1"),
            ("HEXPIRE h 5 FIELDS 1 c", "[(integer) 1]"),
            ("TXN ROLLBACK here", "OK"),
            ("HTTL h FIELDS 3 a b c", "[(integer) 10 (integer) 100 (integer) -2]"),
        ]);
        if isolation == "SI" {
            assert_eq!(run(&mut other, "HTTL h FIELDS 1 a"), "[(integer) -1]", "not yet");
        }
        c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
        assert_eq!(
            run(&mut other, "HTTL h FIELDS 2 a b"),
            "[(integer) 10 (integer) 100]",
            "{isolation}"
        );
        c.clock.advance(Duration::from_millis(10_001));
        assert_eq!(run(&mut other, "HGETALL h"), "[\"b\" \"2\"]");
        assert_eq!(run(&mut other, "DEBUG SWEEP"), "(integer) 1");
    }
    clocked().expect(&[
        ("MULTI", "OK"),
        ("HSET h a 1 b 2", "QUEUED"),
        ("HPEXPIRE h 10 FIELDS 1 a", "QUEUED"),
        ("HPTTL h FIELDS 2 a b", "QUEUED"),
        ("HEXPIRE h 0 FIELDS 1 b", "QUEUED"),
        ("HLEN h", "QUEUED"),
        (
            "EXEC",
            "[(integer) 2 [(integer) 1] [(integer) 10 (integer) -1] [(integer) 2] (integer) 1]",
        ),
    ]);
}

#[test]
fn the_sweeper_comes_for_the_fields_of_a_key_that_was_reverted_in_a_transaction() {
    let mut c = clocked();
    c.expect(&[
        ("HSET h a 1 b 2", "(integer) 2"),
        ("HPEXPIRE h 10 FIELDS 1 a", "[(integer) 1]"),
        ("HSET other a 1 b 2", "(integer) 2"),
        ("HPEXPIRE other 10 FIELDS 1 a", "[(integer) 1]"),
    ]);
    let id = c.run("TXN BEGIN SI");
    let id = id.rsplit(' ').next().expect("a number").to_string();
    c.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        ("DEL h", "(integer) 1"),
        ("TXN REVERT KEY h", "OK"),
        ("HPERSIST other FIELDS 1 a", "[(integer) 1]"),
        ("PEXPIRE other 10", "(integer) 1"),
        ("PEXPIRE other 500", "(integer) 1"),
        ("TXN REVERT KEY other", "OK"),
        ("TXN COMMIT", "OK"),
        ("TXN LEAVE", "OK"),
        ("HPTTL h FIELDS 1 a", "[(integer) 10]"),
        ("HPTTL other FIELDS 1 a", "[(integer) 10]"),
        ("wait 11", ""),
        ("DEBUG SWEEP", "(integer) 2"),
        ("HGETALL h", "[\"b\" \"2\"]"),
        ("HGETALL other", "[\"b\" \"2\"]"),
    ]);
    // Two heads, numbers of fields, owners and fields.
    assert_eq!(tuples(&c.db), (0, 8));
}

#[test]
fn transactions_that_give_fields_of_one_hash_the_same_deadline_do_not_conflict() {
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    let at = c.now() + 100_000;
    c.expect(&[
        ("HSET h a 1 b 2 c 3", "(integer) 3"),
        ("HEXPIRE h 1000 FIELDS 1 c", "[(integer) 1]"),
    ]);
    for (client, field) in [(&mut c.client, "a"), (&mut other, "b")] {
        let id = run(client, "TXN BEGIN SI");
        let id = id.rsplit(' ').next().expect("a number");
        assert_eq!(run(client, &format!("TXN JOIN {id}")), "OK");
        let expire = format!("HPEXPIREAT h {at} FIELDS 1 {field}");
        assert_eq!(run(client, &expire), "[(integer) 1]");
    }
    for client in [&mut c.client, &mut other] {
        assert_eq!(run(client, "TXN COMMIT"), "OK");
        assert_eq!(run(client, "TXN LEAVE"), "OK");
    }
    c.expect(&[
        ("DEBUG SWEEP", "(integer) 0"),
        ("HPEXPIRETIME h FIELDS 2 a b", &format!("[(integer) {at} (integer) {at}]")),
        ("wait 100001", ""),
        ("DEBUG SWEEP", "(integer) 2"),
        ("HKEYS h", "[\"c\"]"),
    ]);
}

#[test]
fn a_field_that_a_transaction_renews_again_and_again_adds_little_to_the_index_of_deadlines() {
    let mut c = clocked();
    c.expect(&[
        ("HSET h a 1 b 2 c 3", "(integer) 3"),
        ("HPEXPIRE h 3600000 FIELDS 1 b", "[(integer) 1]"),
    ]);
    let (_, before) = tuples(&c.db);
    let id = c.run("TXN BEGIN SI");
    let id = id.rsplit(' ').next().expect("a number").to_string();
    c.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
    for _ in 0..200 {
        c.expect(&[("HPEXPIRE h 3600000 FIELDS 1 a", "[(integer) 1]"), ("wait 1", "")]);
    }
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
    // The deadline of the field, its entry in the order, and two times at which the hash is named.
    let (_, after) = tuples(&c.db);
    assert!(after - before <= 4, "{before} and {after}");
    c.expect(&[
        ("DEBUG SWEEP", "(integer) 0"),
        ("wait 3600001", ""),
        ("DEBUG SWEEP", "(integer) 2"),
        ("HKEYS h", "[\"c\"]"),
    ]);
}

#[test]
fn a_transaction_may_count_the_fields_of_a_hash_of_which_any_number_has_expired() {
    let mut c = clocked();
    let long = "x".repeat(16_000);
    c.run("HSET h stays v");
    for i in 100..700 {
        c.run(&format!("HSET h {long}{i} v"));
        c.run(&format!("HPEXPIRE h 5 FIELDS 1 {long}{i}"));
    }
    c.expect(&[
        ("wait 6", ""),
        ("MULTI", "OK"),
        ("HLEN h", "QUEUED"),
        ("HSET h new v", "QUEUED"),
        ("HKEYS h", "QUEUED"),
        ("EXEC", "[(integer) 1 (integer) 1 [\"new\" \"stays\"]]"),
    ]);
}

#[test]
fn a_field_may_be_deleted_while_a_transaction_gives_it_a_deadline() {
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    c.expect(&[("HSET h a 1 b 2", "(integer) 2"), ("HEXPIRE h 100 FIELDS 1 b", "[(integer) 1]")]);
    let id = c.run("TXN BEGIN SI");
    let id = id.rsplit(' ').next().expect("a number").to_string();
    c.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("HEXPIRE h 10 FIELDS 1 a", "[(integer) 1]")]);
    // The field is deleted, and the deadline that is left over has no meaning.
    assert_eq!(run(&mut other, "HDEL h a"), "(integer) 1");
    c.expect(&[
        ("TXN COMMIT", "OK"),
        ("TXN LEAVE", "OK"),
        ("HTTL h FIELDS 2 a b", "[(integer) -2 (integer) 100]"),
        ("HLEN h", "(integer) 1"),
        ("wait 10001", ""),
        ("HLEN h", "(integer) 1"),
        ("DEBUG SWEEP", "(integer) 0"),
        ("HLEN h", "(integer) 1"),
        ("HSET h a 3", "(integer) 1"),
        ("HTTL h FIELDS 1 a", "[(integer) -1]"),
    ]);
}
