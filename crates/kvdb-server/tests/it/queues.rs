//! Tests of lists as queues. The ends of a list are known, so a pop does not walk over elements
//! that were removed before.

use crate::served::{Raw, serve_db};
use kvdb::{Batch, Durability, Kvdb};
use kvdb_server::ServerOptions;

/// The numbers of a list's elements, and its bounds; the store has one list.
fn numbers(db: &Kvdb) -> (Vec<u64>, Vec<u64>) {
    let types = db.dictionary(":types:0").expect("made with the list");
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
    let all = db.view().scan(types, b"e", b"f", 1 << 20).expect("read");
    let of = |part: u8| all.iter().filter(move |(key, _)| key[9] == part);
    (of(1).map(|t| number(&t.0[10..])).collect(), of(4).map(|t| number(&t.1)).collect())
}

fn is_tight(db: &Kvdb, after: &str) {
    let (elements, bounds) = numbers(db);
    let ends = elements.first().zip(elements.last()).map(|(first, last)| vec![*first, *last]);
    assert_eq!(bounds, ends.unwrap_or_default(), "after {after}");
}

fn say(client: &mut Raw, db: &Kvdb, command: &str) -> String {
    let said = client.run(command);
    is_tight(db, command);
    said
}

#[test]
fn the_bounds_of_a_queue_are_its_outermost_elements() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    let mut say = |command: &str| say(&mut client, &db, command);
    for n in 0..20 {
        say(&format!("LPUSH q l{n}"));
        say(&format!("RPUSH q r{n} s{n}"));
        say(["RPOP q", "LPOP q", "RPOP q 3", "LMOVE q q RIGHT LEFT", "RPOPLPUSH q q"][n % 5]);
    }
    say("LINSERT q BEFORE r19 x");
    say("LTRIM q 2 -3");
    say("LSET q 0 first");
    assert_eq!(say("LPOP q"), "\"first\"");
    // Removes from the end at which the search begins, and from both if the search has seen all
    // elements.
    say("RPUSH q gone gone");
    say("LREM q -2 gone");
    say("LPUSH q gone gone");
    say("RPUSH q gone");
    assert_eq!(say("LREM q 0 gone"), "(integer) 3");
    assert_eq!(say("MULTI"), "OK");
    client_queue(&mut say);
    assert_eq!(say("LTRIM q 1 0"), "OK");
    assert_eq!(numbers(&db), (Vec::new(), Vec::new()));
    assert_eq!(say("RPUSH q again"), "(integer) 1");
    assert_eq!(say("LRANGE q 0 -1"), "[\"again\"]");
}

fn client_queue(say: &mut impl FnMut(&str) -> String) {
    for command in ["RPOP q", "LPUSH q in", "LPUSH q exec", "RPOP q"] {
        assert_eq!(say(command), "QUEUED");
    }
    say("EXEC");
    assert_eq!(say("LINDEX q 0"), "\"exec\"");
}

#[test]
fn what_a_transaction_or_a_rollback_leaves_is_bounded_as_well() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    for command in ["RPUSH q a b c d", "SNAPSHOT CREATE four", "RPOP q", "LPOP q", "RPUSH q e"] {
        say(&mut client, &db, command);
    }
    assert!(client.run("TXN BEGIN").starts_with("(integer)"));
    for command in ["LPUSH q x", "RPOP q 2"] {
        client.run(command);
    }
    assert_eq!(client.run("LRANGE q 0 -1"), "[\"x\" \"b\"]");
    is_tight(&db, "nothing yet");
    say(&mut client, &db, "TXN COMMIT");
    assert_eq!(say(&mut client, &db, "LRANGE q 0 -1"), "[\"x\" \"b\"]");
    say(&mut client, &db, "SNAPSHOT ROLLBACK four");
    assert_eq!(say(&mut client, &db, "LRANGE q 0 -1"), "[\"a\" \"b\" \"c\" \"d\"]");
    say(&mut client, &db, "RENAME q r");
    assert_eq!(say(&mut client, &db, "RPOPLPUSH r r"), "\"d\"");
    say(&mut client, &db, "LPUSH r z");
    assert_eq!(client.run("COPY r copy"), "(integer) 1");
    for command in ["RPOP copy", "LPUSH copy y", "DEL r"] {
        client.run(command);
    }
    assert_eq!(say(&mut client, &db, "LRANGE copy 0 -1"), "[\"y\" \"z\" \"d\" \"a\" \"b\"]");
}

#[test]
fn a_list_of_an_older_program_has_no_bounds_and_works() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    client.run("RPUSH q a b c d e");
    let types = db.dictionary(":types:0").expect("made with the list");
    let mut batch = Batch::new();
    for (key, value) in db.view().scan(types, b"", b"", 100).expect("read") {
        if key[0] == b'k' {
            assert_eq!(value[0], 3, "the version of a head with bounds");
            batch.put(types, key, [&[1], &value[1..]].concat());
        } else if key[9] == 4 {
            batch.delete(types, key);
        }
    }
    db.commit(batch, Durability::Buffered).expect("committed");
    client.expect(&[
        ("LPOP q", "\"a\""),
        ("RPOP q", "\"e\""),
        ("LPUSH q x", "(integer) 4"),
        ("RPUSH q y", "(integer) 5"),
        ("LMOVE q q LEFT RIGHT", "\"x\""),
        ("LINSERT q AFTER y z", "(integer) 6"),
        ("LREM q 0 c", "(integer) 1"),
        ("LRANGE q 0 -1", "[\"b\" \"d\" \"y\" \"z\" \"x\"]"),
        ("EXPIRE q 100", "(integer) 1"),
        ("LTRIM q 1 -2", "OK"),
        ("LRANGE q 0 -1", "[\"d\" \"y\" \"z\"]"),
    ]);
    assert_eq!(numbers(&db).1, [0u64; 0], "none are given to it later");
    client.expect(&[("LPOP q 3", "[\"d\" \"y\" \"z\"]"), ("RPUSH q new", "(integer) 1")]);
    is_tight(&db, "the next list of this name");
}

#[test]
fn bounds_that_mean_nothing_are_errors() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    client.run("RPUSH q a b c");
    let types = db.dictionary(":types:0").expect("made with the list");
    let set = |value: &[u8]| {
        let all = db.view().scan(types, b"e", b"f", 100).expect("read");
        let mut batch = Batch::new();
        for (key, _) in all.into_iter().filter(|(key, _)| key[9] == 4) {
            batch.put(types, key, value.to_vec());
        }
        db.commit(batch, Durability::Buffered).expect("committed");
    };
    set(b"short");
    for command in ["LPOP q", "RPUSH q d", "LRANGE q 0 -1", "LPOS q b", "LTRIM q 1 1"] {
        let said = client.run(command);
        assert!(said.contains("the bound of a list does not decode"), "{command}: {said}");
    }
    // The left bound is above the right one, or both are the largest numbers, so no element lies
    // between them.
    for value in [u64::MAX, 0] {
        set(&value.to_be_bytes());
        for command in
            ["LRANGE q 0 -1", "LINDEX q 0", "LPOS q b", "RPUSH q d", "LPUSH q e", "DEL q"]
        {
            let said = client.run(command);
            assert!(!said.contains("panic") && !said.is_empty(), "{command}: {said}");
        }
        client.run("RPUSH q a b c");
    }
    client.expect(&[("PING", "PONG")]);
}

#[test]
fn a_list_with_a_gap_at_its_end_goes_on_behind_it() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    client.expect(&[("RPUSH q a b c", "(integer) 3"), ("LREM q 1 c", "(integer) 1")]);
    let (elements, bounds) = numbers(&db);
    assert!(elements.last() < bounds.last(), "LREM has left a gap: {elements:?}, {bounds:?}");
    client.expect(&[
        ("RPUSH q d", "(integer) 3"),
        ("LREM q 1 d", "(integer) 1"),
        ("LINSERT q AFTER b e", "(integer) 3"),
        ("LREM q 1 e", "(integer) 1"),
        ("LMOVE q q LEFT RIGHT", "\"a\""),
        ("RPUSH q f", "(integer) 3"),
        ("LRANGE q 0 -1", "[\"b\" \"a\" \"f\"]"),
        ("LREM q -1 b", "(integer) 1"),
        ("LPUSH q g", "(integer) 3"),
        ("LREM q -1 g", "(integer) 1"),
        ("LPOP q", "\"a\""),
        ("LPOP q", "\"f\""),
        ("EXISTS q", "(integer) 0"),
        ("RPUSH q h", "(integer) 1"),
    ]);
    is_tight(&db, "a list that begins again");
}

#[test]
fn a_list_with_a_gap_at_its_end_is_rotated() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    client.expect(&[("RPUSH q a b c", "(integer) 3"), ("LREM q 1 c", "(integer) 1")]);
    let (elements, bounds) = numbers(&db);
    assert!(elements.last() < bounds.last(), "LREM has left a gap: {elements:?}, {bounds:?}");
    client.expect(&[
        ("RPOPLPUSH q q", "\"b\""),
        ("LRANGE q 0 -1", "[\"b\" \"a\"]"),
        ("LMOVE q q RIGHT RIGHT", "\"a\""),
        ("RPOPLPUSH q q", "\"a\""),
        ("LRANGE q 0 -1", "[\"a\" \"b\"]"),
        ("LRANGE q 1 5", "[\"b\"]"),
    ]);
    is_tight(&db, "both ends have moved");
}

#[test]
fn a_move_to_a_key_of_another_type_takes_nothing() {
    let db = Kvdb::in_memory();
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    client.expect(&[("RPUSH q a b", "(integer) 2"), ("SET s v", "OK")]);
    for command in ["RPOPLPUSH q s", "LMOVE q s LEFT RIGHT"] {
        let said = client.run(command);
        assert!(said.contains("WRONGTYPE"), "{command}: {said}");
    }
    client.expect(&[("LRANGE q 0 -1", "[\"a\" \"b\"]"), ("MULTI", "OK")]);
    client.expect(&[("RPOPLPUSH q s", "QUEUED"), ("RPUSH q c", "QUEUED")]);
    let said = client.run("EXEC");
    assert!(said.contains("WRONGTYPE") && said.contains("(integer) 3"), "{said}");
    client.expect(&[("LRANGE q 0 -1", "[\"a\" \"b\" \"c\"]"), ("GET s", "\"v\"")]);
    is_tight(&db, "what was refused");
}
