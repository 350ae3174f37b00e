//! Tests of hashes in which many fields have expired but are not removed yet. Commands skip these
//! fields without visiting them, and reply as if they did not exist.

use crate::expiry::{Clocked, clocked, run};
use crate::served::tuples;
use kvdb_server::Client;

/// Sets the fields of these numbers of a hash, which expire in 5 ms.
fn set_to_expire(c: &mut Clocked, key: &str, fields: std::ops::Range<u32>) {
    let (names, count) = (named(fields.clone()), fields.len());
    let pairs: Vec<String> = fields.map(|i| format!("f{i} v")).collect();
    assert_eq!(c.run(&format!("HSET {key} {}", pairs.join(" "))), format!("(integer) {count}"));
    let given = c.run(&format!("HPEXPIRE {key} 5 FIELDS {count} {names}"));
    assert_eq!(given.matches("(integer) 1").count(), count);
}

fn named(fields: std::ops::Range<u32>) -> String {
    fields.map(|i| format!("f{i}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_hash_of_which_many_fields_have_expired_is_read_and_changed_as_any_other() {
    let mut c = clocked();
    set_to_expire(&mut c, "h", 100..400);
    set_to_expire(&mut c, "gone", 100..400);
    c.expect(&[
        ("HSET h a v b v c v", "(integer) 3"),
        ("HPEXPIRE h 1000 FIELDS 1 c", "[(integer) 1]"),
        ("wait 6", ""),
        ("HLEN h", "(integer) 3"),
        ("HKEYS h", "[\"a\" \"b\" \"c\"]"),
        ("HSCAN h 0 NOVALUES", "[\"0\" [\"a\" \"b\" \"c\"]]"),
        ("EXISTS h gone", "(integer) 1"),
        ("DBSIZE", "(integer) 1"),
        ("KEYS *", "[\"h\"]"),
        ("TYPE gone", "none"),
        ("HLEN gone", "(integer) 0"),
        ("HDEL gone f100", "(integer) 0"),
        ("HSET h d v f150 v", "(integer) 2"),
        ("HLEN h", "(integer) 5"),
        ("HDEL h d f150 a f160", "(integer) 3"),
        ("HLEN h", "(integer) 2"),
        ("MULTI", "OK"),
        ("HLEN h", "QUEUED"),
        ("HDEL h b", "QUEUED"),
        ("HLEN h", "QUEUED"),
        ("HGETALL h", "QUEUED"),
        ("EXEC", "[(integer) 2 (integer) 1 (integer) 1 [\"c\" \"v\"]]"),
        ("HPERSIST h FIELDS 1 c", "[(integer) 1]"),
        ("HGETDEL h FIELDS 1 c", "[\"v\"]"),
        ("EXISTS h", "(integer) 0"),
        ("HLEN h", "(integer) 0"),
        ("HGETALL h", "[]"),
        ("DBSIZE", "(integer) 0"),
        ("HSETNX h new v", "(integer) 1"),
        ("HSET gone new v", "(integer) 1"),
        ("HLEN h", "(integer) 1"),
        ("HKEYS gone", "[\"new\"]"),
        ("DEBUG SWEEP", "(integer) 0"),
    ]);
    // Two heads, numbers of fields, owners and fields.
    assert_eq!(tuples(&c.db), (0, 8));
}

#[test]
fn a_page_passes_a_bounded_number_of_expired_fields() {
    let mut c = clocked();
    set_to_expire(&mut c, "h", 1000..4000);
    c.expect(&[("HSET h a v z v", "(integer) 2"), ("wait 6", "")]);
    let (mut cursor, mut pages, mut found) = ("0".to_owned(), 0, Vec::new());
    loop {
        let page = c.run(&format!("HSCAN h {cursor} COUNT 100 NOVALUES"));
        let words: Vec<String> = page.split('"').skip(1).step_by(2).map(str::to_owned).collect();
        pages += 1;
        found.extend_from_slice(&words[1..]);
        cursor = words[0].clone();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!((found, pages), (vec!["a".to_owned(), "z".to_owned()], 3));
}

#[test]
fn a_transaction_that_sees_a_hash_of_expired_fields_keeps_none_that_exists_from_others() {
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    set_to_expire(&mut c, "h", 100..400);
    c.expect(&[("HSET h stays v", "(integer) 1"), ("wait 6", "")]);
    let id = c.run("TXN BEGIN SER");
    let id = id.rsplit(' ').next().expect("a number").to_string();
    c.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("EXISTS h", "(integer) 1")]);
    assert_eq!(run(&mut other, "HSET h stays w"), "(integer) 0");
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK"), ("HGET h stays", "\"w\"")]);
}

#[test]
fn no_field_is_lost_among_many_deadlines_that_are_left_over() {
    let mut c = clocked();
    let mut other = Client::local(c.db.clone());
    let pairs: Vec<String> = (100..350).map(|i| format!("f{i} v")).collect();
    c.expect(&[
        (&format!("HSET h {}", pairs.join(" ")), "(integer) 250"),
        ("HEXPIRE h 100 FIELDS 1 f349", "[(integer) 1]"),
    ]);
    let id = c.run("TXN BEGIN SI");
    let id = id.rsplit(' ').next().expect("a number").to_string();
    assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    let given = c.run(&format!("HPEXPIRE h 10 FIELDS 100 {}", named(100..200)));
    assert_eq!(given.matches("(integer) 1").count(), 100);
    assert_eq!(run(&mut other, &format!("HDEL h {}", named(100..200))), "(integer) 100");
    c.expect(&[
        ("TXN COMMIT", "OK"),
        ("TXN LEAVE", "OK"),
        ("wait 11", ""),
        ("HLEN h", "(integer) 150"),
        // There would be fewer if each deadline belonged to one field.
        (&format!("HDEL h {}", named(200..260)), "(integer) 60"),
        ("HLEN h", "(integer) 90"),
        ("HSET h f200 v", "(integer) 1"),
        ("HGET h f349", "\"v\""),
        ("HLEN h", "(integer) 91"),
        ("DEBUG SWEEP", "(integer) 0"),
        ("HLEN h", "(integer) 91"),
        (&format!("HDEL h f200 {}", named(260..350)), "(integer) 91"),
        ("EXISTS h", "(integer) 0"),
    ]);
}
