//! Tests of `TXN UNDO`, which undoes commits over the socket, for every kind of key.

use crate::served::{Raw, Served, serve, show};
use kvdb_server::{Reply, ServerOptions};

/// Runs commands in a transaction that can be undone, and commits it.
fn commit(c: &mut Raw, label: &str, commands: &[&str]) {
    let id = c.run(&format!("TXN BEGIN UNDOABLE LABEL {label}")).replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    for command in commands {
        let reply = c.run(command);
        assert!(!reply.starts_with("(error)"), "{command}: {reply}");
    }
    assert_eq!(c.run("TXN COMMIT"), "OK");
    c.run("TXN LEAVE");
}

/// Undoes the last commit; what stands against it, if anything does.
fn undo(c: &mut Raw) -> Vec<String> {
    c.send(b"TXN UNDO ATTACHED\r\n");
    let reply = c.reply().expect("a reply");
    let Reply::Array(begun) = &reply else { panic!("{}", show(&reply)) };
    let id = show(&begun[0]).replace("(integer) ", "");
    let Reply::Array(against) = &begun[3] else { panic!("{}", show(&reply)) };
    let end = if against.is_empty() { "COMMIT" } else { "ABORT" };
    assert_eq!(c.run(&format!("TXN {end} {id}")), "OK");
    against.iter().map(|name| show(name).trim_matches('"').replace("\\\"", "'")).collect()
}

fn served() -> (Served, Raw) {
    let served = serve(ServerOptions::default());
    let client = served.connect();
    (served, client)
}

#[test]
fn an_undo_keeps_the_deadlines_that_others_have_given_to_fields() {
    let (_served, mut c) = served();
    c.run("HSET h a 1 b 2 c 3");
    commit(&mut c, "one", &["HPEXPIREAT h 4102444800000 FIELDS 1 a"]);
    c.run("HPEXPIREAT h 4102444800001 FIELDS 1 b");
    assert!(undo(&mut c).is_empty());
    let both = "[(integer) -1 (integer) 4102444800001]";
    c.expect(&[("HPEXPIRETIME h FIELDS 2 a b", both)]);
    commit(&mut c, "two", &["DEL h"]);
    assert!(undo(&mut c).is_empty());
    c.expect(&[("HPEXPIRETIME h FIELDS 2 a b", both), ("HLEN h", "(integer) 3")]);
}

#[test]
fn every_kind_of_key_is_as_it_was() {
    let (_served, mut c) = served();
    for command in [
        "SET s before",
        "HSET h f 1 g 2",
        "SADD set a b",
        "ZADD z 1 a 2 b",
        "RPUSH l a b c",
        "SET e with PX 100000000",
        "SETRANGE long 5000000 x",
        "XADD st 1-1 f 1",
        "XADD st 2-1 f 2 g 3",
        "XADD gone 1-1 f 1",
        "XGROUP CREATE st group 0",
        "XREADGROUP GROUP group a COUNT 1 STREAMS st >",
        "SET other 1",
    ] {
        c.run(command);
    }
    let reads = [
        "GET s",
        "HGETALL h",
        "SMEMBERS set",
        "ZRANGE z 0 -1 WITHSCORES",
        "LRANGE l 0 -1",
        "PEXPIRETIME e",
        "STRLEN long",
        "XRANGE st - +",
        "XINFO STREAM st",
        "XINFO GROUPS st",
        "XRANGE gone - +",
        "XPENDING st group",
        "KEYS *",
        "TYPE made",
    ];
    let before: Vec<String> = reads.iter().map(|read| c.run(read)).collect();
    let changes = [
        "SET s after",
        "HDEL h f",
        "HSET h n 1",
        "DEL set",
        "SET set string",
        "ZINCRBY z 5 a",
        "LPOP l",
        "PERSIST e",
        "APPEND long y",
        "XADD st 3-1 f 4",
        "XDEL st 1-1",
        "XACK st group 1-1",
        "XREADGROUP GROUP group b STREAMS st >",
        "XGROUP CREATE st other $",
        "DEL gone",
        "RENAME l m",
        "HSET made f v",
        "DELRANGE o p",
    ];
    commit(&mut c, "work", &changes);
    c.run("SET since 1");
    assert_eq!(undo(&mut c), [] as [&str; 0]);
    c.run("DEL since");
    let after: Vec<String> = reads.iter().map(|read| c.run(read)).collect();
    assert_eq!(after, before);
    // Undoing the undo restores the changes.
    assert_eq!(undo(&mut c), [] as [&str; 0]);
    assert_eq!(c.run("GET s"), "\"after\"");
    assert_eq!(c.run("LRANGE m 0 -1"), c.run("LRANGE m 0 1"));
    assert_eq!(
        (c.run("XLEN st"), c.run("XLEN gone")),
        ("(integer) 2".into(), "(integer) 0".into())
    );
    assert!(c.run("XPENDING st group").contains("\"b\""));
}

#[test]
fn what_others_have_changed_since_is_named_by_its_key() {
    let (_served, mut c) = served();
    c.run("SET a 1");
    commit(&mut c, "strings", &["SET a 2", "SET b 2"]);
    c.run("SET a 3");
    assert_eq!(undo(&mut c), ["key 'a' of dictionary 0"]);
    assert_eq!(c.run("GET b"), "\"2\"");

    c.run("HSET h f 1");
    commit(&mut c, "hash", &["HSET h f 2"]);
    c.run("HSET h f 3");
    assert_eq!(undo(&mut c), ["key 'h' of dictionary 0"]);

    // The search ends after some keys.
    let set = |value: u32| (0..40).map(|i| format!("SET k{i} {value}")).collect::<Vec<_>>();
    let changes = set(1);
    commit(&mut c, "many", &changes.iter().map(String::as_str).collect::<Vec<_>>());
    set(2).iter().for_each(|command| _ = c.run(command));
    let against = undo(&mut c);
    assert_eq!((against.len(), against.last().map(String::as_str)), (17, Some("others")));
    set(1).iter().for_each(|command| _ = c.run(command));
    assert_eq!(undo(&mut c), [] as [&str; 0]);

    // The key has another type since then, so the two states have no tuple in common.
    c.run("HSET k f 1");
    commit(&mut c, "delete", &["DEL k"]);
    c.run("SET k string");
    assert_eq!(undo(&mut c), ["key 'k' of dictionary 0"]);
    assert_eq!(c.run("GET k"), "\"string\"");
    c.run("DEL k");
    assert_eq!(undo(&mut c), [] as [&str; 0]);
    assert_eq!(c.run("HGET k f"), "\"1\"");
}

#[test]
fn a_transaction_that_undoes_can_be_looked_at() {
    let (_served, mut c) = served();
    c.run("SET a 1");
    commit(&mut c, "work", &["SET a 22", "SET b 3"]);
    c.send(b"TXN UNDO\r\n");
    let Reply::Array(begun) = c.reply().expect("a reply") else { panic!("no list") };
    let id = show(&begun[0]).replace("(integer) ", "");
    assert_eq!(show(&begun[2]), "\"work\"");
    let changes = c.run(&format!("TXN CHANGES {id} BEFORE"));
    assert!(changes.contains("put") && changes.contains("delete"), "{changes}");
    assert_eq!(c.run("GET a"), "\"22\"");
    // Others commit before it does.
    c.run("SET b 4");
    assert!(c.run(&format!("TXN COMMIT {id}")).starts_with("(error) CONFLICT"));
    assert_eq!(c.run("GET a"), "\"22\"");
}

/// The undo would restore only a part of the changes: the elements without their number, for
/// example.
#[test]
fn an_undo_that_others_prevent_cannot_be_committed() {
    let (_served, mut c) = served();
    c.run("SADD s a");
    commit(&mut c, "work", &["SADD s b"]);
    c.run("SADD s c");
    c.send(b"TXN UNDO\r\n");
    let Reply::Array(begun) = c.reply().expect("a reply") else { panic!("no list") };
    let id = show(&begun[0]).replace("(integer) ", "");
    assert_eq!(show(&begun[3]), r#"["key \"s\" of dictionary 0"]"#);
    let refused = c.run(&format!("TXN COMMIT {id}"));
    assert!(refused.starts_with(&format!("(error) CONFLICT transaction {id} undoes")), "{refused}");
    assert_eq!(c.run(&format!("TXN ABORT {id}")), "OK");
    assert_eq!(c.run("SCARD s"), "(integer) 3");
    assert_eq!(c.run("SMEMBERS s"), r#"["a" "b" "c"]"#);
}

#[test]
fn commits_are_listed_and_what_makes_no_sense_is_refused() {
    let (_served, mut c) = served();
    assert!(c.run("TXN UNDO").starts_with("(error) NOCOMMIT no commit can be undone"));
    assert!(c.run("TXN UNDO 7").starts_with("(error) NOCOMMIT commit 7 cannot be undone"));
    for wrong in ["TXN UNDO x", "TXN UNDO 1 2", "TXN UNDO -1"] {
        assert_eq!(c.run(wrong), "(error) ERR syntax error", "{wrong}");
    }
    assert!(c.run("TXN COMMITS now").starts_with("(error)"));
    commit(&mut c, "one", &["SET a 1"]);
    commit(&mut c, "two", &["SET a 2"]);
    let listed = c.run("TXN COMMITS");
    let (one, two) = (listed.find("one").expect("there"), listed.find("two").expect("there"));
    assert!(one < two, "{listed}");
    // A commit without changes cannot be undone, nor can one that did not ask for it.
    commit(&mut c, "nothing", &["GET a"]);
    let id = c.run("TXN BEGIN LABEL plain").replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    c.run("SET a 3");
    assert_eq!(c.run("TXN COMMIT"), "OK");
    assert_eq!(c.run("TXN COMMITS"), listed);
}
