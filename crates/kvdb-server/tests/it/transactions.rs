//! Tests of the transactions of clients: `TXN`, and the `MULTI`, `EXEC`, `DISCARD` and `WATCH` of
//! Redis.

use crate::served;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::served::{Raw, Served, serve, serve_db, show};
use env::Simulated;
use kvdb::{CreateOptions, Durability, Isolation, Kvdb, OpenOptions};
use kvdb_server::{Reply, ServerOptions};
use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

const OVER: &str = "(error) NOTXN no transaction 1: it has ended, or never was";

fn begin(c: &mut Raw, words: &str) -> String {
    c.run(&format!("TXN BEGIN {words}")).trim_start_matches("(integer) ").to_string()
}

/// Waits until `done`. The test fails if that takes too long.
#[track_caller]
fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "it never happened");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_done_in_a_transaction_is_seen_there_alone_until_it_commits() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    outside.expect(&[("MSET a 1 b 2 n 5", "OK")]);
    inside.expect(&[
        ("TXN STATUS", "(nil)"),
        ("TXN BEGIN", "(integer) 1"),
        ("GET a", "\"1\""),
        ("TXN JOIN 1", "OK"),
        ("SET a 10", "OK"),
        ("DEL b", "(integer) 1"),
        ("INCR n", "(integer) 6"),
        ("APPEND s tail", "(integer) 4"),
        ("SETNX a 3", "(integer) 0"),
        ("MSET x 1 y 2", "OK"),
        ("DELRANGE x y", "OK"),
        ("MGET a b n s x y", r#"["10" (nil) "6" "tail" (nil) "2"]"#),
        ("KEYS *", r#"["a" "n" "s" "y"]"#),
        ("RANGE - + REV LIMIT 1", r#"["y" "2"]"#),
        ("SCAN 0 COUNT 100", r#"["0" ["a" "n" "s" "y"]]"#),
        ("DBSIZE", "(integer) 4"),
        ("EXISTS b a", "(integer) 1"),
    ]);
    outside.expect(&[
        ("MGET a b n s x y", r#"["1" "2" "5" (nil) (nil) (nil)]"#),
        ("SET later 1", "OK"),
    ]);
    inside.expect(&[("GET later", "(nil)"), ("TXN COMMIT", "OK"), ("GET later", "\"1\"")]);
    outside.expect(&[
        ("MGET a b n s x y", r#"["10" (nil) "6" "tail" (nil) "2"]"#),
        ("TXN LIST", "[]"),
    ]);
}

#[test]
fn a_dictionary_may_be_made_in_a_transaction() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    inside.expect(&[
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("USE new", "OK"),
        ("SET a 1", "OK"),
        ("KEYS *", "[\"a\"]"),
        ("MGET a b", "[\"1\" (nil)]"),
        ("SCAN 0", "[\"0\" [\"a\"]]"),
    ]);
    outside.expect(&[("USE new", "OK"), ("GET a", "(nil)")]);
    inside.expect(&[("TXN COMMIT SYNC", "OK")]);
    outside.expect(&[("GET a", "\"1\"")]);
}

#[test]
fn in_a_transaction_a_dictionary_that_others_have_dropped_is_gone_and_not_empty() {
    const GONE: &str = "(error) NODICT dictionary 'dd' was dropped after the transaction began";
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    inside.expect(&[
        ("USE dd", "OK"),
        ("SET k 1", "OK"),
        ("TXN BEGIN SI", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("GET k", "\"1\""),
    ]);
    outside.expect(&[("DICT DROP dd", "OK")]);
    inside.expect(&[("GET k", GONE), ("INCR k", GONE), ("SET k 2", GONE), ("EXISTS k", GONE)]);
    // A new dictionary of that name is not the one with which the transaction began.
    outside.expect(&[("USE dd", "OK"), ("GET k", "(nil)"), ("SET k 5", "OK")]);
    inside.expect(&[
        ("GET k", GONE),
        ("INCR k", GONE),
        ("USE dd", "OK"),
        ("GET k", GONE),
        ("USE other", "OK"),
        ("SET k 1", "OK"),
        ("TXN COMMIT", "OK"),
        ("USE dd", "OK"),
        ("GET k", "\"5\""),
    ]);
}

#[test]
fn an_increment_is_applied_to_a_number_that_others_have_set_and_conflicts_with_a_text() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    for command in ["INCR k", "INCRBY k 1"] {
        outside.expect(&[("SET k 5", "OK")]);
        let id = begin(&mut inside, "SI");
        inside.expect(&[(&format!("TXN JOIN {id}"), "OK"), (command, "(integer) 6")]);
        outside.expect(&[("SET k NEW", "OK")]);
        let reply = inside.run("TXN COMMIT");
        assert!(reply.starts_with("(error) CONFLICT "), "{command}: {reply}");
        outside.expect(&[("GET k", "\"NEW\""), ("SET k 5", "OK")]);
        let id = begin(&mut inside, "SI");
        inside.expect(&[(&format!("TXN JOIN {id}"), "OK"), (command, "(integer) 6")]);
        outside.expect(&[("SET k 40", "OK")]);
        inside.expect(&[("TXN COMMIT", "OK"), ("GET k", "\"41\"")]);
    }
}

#[test]
fn an_increment_conflicts_with_another_type_that_others_have_put_under_its_key() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    let ways: [(&str, &[&str], &str); 6] = [
        ("SET k 5", &["DEL k", "RPUSH k a"], "list"),
        ("DEL k", &["RPUSH k a"], "list"),
        ("DEL k", &["HSET k f 1", "HINCRBY k f 4"], "hash"),
        ("SET k 5", &["SET k x", "DEL k", "XADD k 1-1 f 1"], "stream"),
        ("SET k 5", &["SETRANGE k 5000000 x"], "string"),
        ("SET k 5 PX 100000000", &["DEL k", "SADD k a"], "set"),
    ];
    for words in ["SI", "DURABLE"] {
        for (before, others, kind) in ways {
            outside.run("DEL k");
            outside.run(before);
            let id = begin(&mut inside, words);
            inside.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
            assert!(inside.run("INCR k").starts_with("(integer) "), "{words}, {others:?}");
            for command in others {
                let reply = outside.run(command);
                assert!(!reply.starts_with("(error)"), "{command}: {reply}");
            }
            let reply = inside.run("TXN COMMIT");
            assert!(reply.starts_with("(error) CONFLICT "), "{words}, {others:?}: {reply}");
            outside.expect(&[
                ("TYPE k", kind),
                ("EXISTS k", "(integer) 1"),
                ("DEL k", "(integer) 1"),
            ]);
            outside.expect(&[("EXISTS k", "(integer) 0"), ("TYPE k", "none")]);
        }
    }
    // The other way round, and within one transaction.
    for others in ["INCR k", "SET k 7"] {
        outside.run("SET k 5");
        let id = begin(&mut inside, "SI");
        inside.expect(&[
            (&format!("TXN JOIN {id}"), "OK"),
            ("INCR k", "(integer) 6"),
            ("DEL k", "(integer) 1"),
            ("RPUSH k a", "(integer) 1"),
        ]);
        outside.run(others);
        let reply = inside.run("TXN COMMIT");
        assert!(reply.starts_with("(error) CONFLICT "), "{others}: {reply}");
        outside.expect(&[("TYPE k", "string")]);
    }
}

#[test]
fn a_transaction_adds_any_number_of_times_to_keys_that_keep_their_type() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    outside.expect(&[("SET k 5", "OK"), ("RPUSH other a", "(integer) 1")]);
    let id = begin(&mut inside, "SI");
    inside.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
    for sum in 6..106 {
        inside.expect(&[("INCR k", &format!("(integer) {sum}"))]);
    }
    outside.expect(&[("INCRBY k 100", "(integer) 105"), ("RPUSH other b", "(integer) 2")]);
    inside.expect(&[("TXN COMMIT", "OK"), ("GET k", "\"205\"")]);
}

#[test]
fn a_conflict_names_its_commit_without_a_label_and_with_one() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    outside.expect(&[("SET k 0", "OK")]);
    let words = ["", "LABEL mine", ""];
    for (n, said) in [" s ago)", ", \"mine\", ", " s ago)"].into_iter().enumerate() {
        let id = begin(&mut inside, "SI");
        inside.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("SET k mine", "OK")]);
        let other = begin(&mut outside, &format!("UNDOABLE {}", words[n]));
        outside.expect(&[
            (&format!("TXN JOIN {other}"), "OK"),
            // The commit is identified by the value that it has changed.
            (&format!("SET k theirs{n}"), "OK"),
            ("TXN COMMIT", "OK"),
            ("SET other 1", "OK"),
        ]);
        let reply = inside.run("TXN COMMIT");
        assert!(reply.contains(" (by commit ") && reply.contains(said), "{n}: {reply}");
        assert!(!reply.contains("\"\""), "{n}: an empty label is left out: {reply}");
    }
}

#[test]
fn a_string_and_a_collection_under_one_key_conflict_whatever_the_rule_of_the_dictionary() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    let kinds: &[&str] =
        &["SET k one", "APPEND k one", "SADD k one", "LPUSH k one", "RENAME moved k"];
    let is_string = |command: &str| command.starts_with("SET") || command.starts_with("APPEND");
    for rule in ["none", "union"] {
        // The types dictionary is missing at first, or was made by the command before.
        for (typed, mine, theirs) in [false, true].into_iter().flat_map(|typed| {
            kinds.iter().flat_map(move |mine| kinds.iter().map(move |theirs| (typed, mine, theirs)))
        }) {
            if is_string(mine) == is_string(theirs) {
                continue;
            }
            let what = format!("{rule}: {mine} | {theirs}, typed {typed}");
            outside.expect(&[("USE 0", "OK"), (&format!("DICT CREATE d merge {rule}"), "OK")]);
            outside.expect(&[("USE d", "OK")]);
            inside.expect(&[("USE d", "OK")]);
            if typed {
                outside.run("SADD other member");
            }
            if [mine, theirs].iter().any(|command| command.starts_with("RENAME")) {
                outside.run("SADD moved member");
            }
            let id = begin(&mut inside, "SI");
            let other = begin(&mut outside, "SI");
            inside.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
            outside.expect(&[(&format!("TXN JOIN {other}"), "OK")]);
            inside.run(mine);
            outside.run(theirs);
            assert_eq!(outside.run("TXN COMMIT"), "OK", "{what}");
            let reply = inside.run("TXN COMMIT");
            assert!(reply.contains("CONFLICT") && reply.contains("\"k\""), "{what}: {reply}");
            let kept = outside.run("TYPE k");
            assert_eq!(kept == "string", is_string(theirs), "{what}: {kept}");
            outside.expect(&[("USE 0", "OK"), ("DICT DROP d", "OK")]);
            inside.expect(&[("USE 0", "OK")]);
        }
    }
}

#[test]
fn lines_that_several_transactions_add_to_a_union_are_joined_next_to_collections() {
    let served = serve(ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    outside.expect(&[("DICT CREATE d merge union", "OK"), ("USE d", "OK")]);
    inside.expect(&[("USE d", "OK")]);
    for key in ["new", "typed"] {
        let id = begin(&mut inside, "SI");
        inside.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
        inside.expect(&[(&format!("SET {key} mine"), "OK")]);
        outside.expect(&[(&format!("SET {key} theirs"), "OK")]);
        inside.expect(&[("TXN COMMIT", "OK"), (&format!("GET {key}"), "\"theirs\\nmine\"")]);
        // The types dictionary exists from here on.
        outside.run("SADD other member");
    }
}

#[test]
fn an_abort_leaves_nothing() {
    let served = serve(ServerOptions::default());
    served.connect().expect(&[
        ("SET a 1", "OK"),
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("FLUSHALL", "OK"),
        ("DBSIZE", "(integer) 0"),
        ("TXN ABORT", "OK"),
        ("GET a", "\"1\""),
        ("TXN ABORT 1", OVER),
        ("TXN JOIN 1", OVER),
        ("TXN COMMIT 1", OVER),
        (
            "TXN COMMIT",
            "(error) ERR this connection is in no transaction: TXN JOIN one, or give its number",
        ),
    ]);
}

#[test]
fn any_number_of_connections_work_in_one_transaction() {
    let served = serve(ServerOptions::default());
    let id = begin(&mut served.connect(), "");
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let mut c = served.connect();
                c.run(&format!("TXN JOIN {id}"));
                for _ in 0..100 {
                    assert!(c.run("INCR n").starts_with("(integer)"));
                }
            });
        }
    });
    let mut c = served.connect();
    c.expect(&[("GET n", "(nil)")]);
    assert_eq!(c.run(&format!("TXN COMMIT {id}")), "OK");
    c.expect(&[("GET n", "\"400\"")]);
}

#[test]
fn who_is_in_a_transaction_that_others_have_ended_is_told_and_changes_nothing() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("TXN BEGIN", "(integer) 1"), ("TXN JOIN 1", "OK"), ("SET k 1", "OK")]);
    b.expect(&[("TXN COMMIT 1", "OK")]);
    a.expect(&[
        ("SET k 2", OVER),
        ("GET k", OVER),
        ("SET k 2", OVER),
        ("TXN LEAVE", "OK"),
        ("GET k", "\"1\""),
    ]);
}

/// The search for conflicts ends after some keys.
#[test]
fn a_conflict_of_many_keys_says_that_there_are_at_least_so_many() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let set = |count: u32| {
        let pairs = (0..count).map(|i| format!(" k{} 1", 100 + i));
        format!("MSET{}", pairs.collect::<String>())
    };
    for (id, count, more) in [(1, 6, " and 3 more meanwhile"), (2, 60, " and at least ")] {
        c.expect(&[
            ("TXN BEGIN SI", &format!("(integer) {id}")),
            (&format!("TXN JOIN {id}"), "OK"),
            (&set(count), "OK"),
            ("TXN LEAVE", "OK"),
            (&set(count), "OK"),
        ]);
        let said = c.run(&format!("TXN COMMIT {id}"));
        assert!(said.starts_with("(error) CONFLICT") && said.contains(more), "{said}");
    }
}

#[test]
fn of_two_that_change_a_key_the_first_to_commit_wins() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("USE stock", "OK"),
        ("SET apples 3", "OK"),
        ("TXN BEGIN SI", "(integer) 1"),
        ("TXN BEGIN SI", "(integer) 2"),
        ("TXN JOIN 1", "OK"),
        ("SET apples 2", "OK"),
        ("TXN JOIN 2", "OK"),
        ("SET apples 2", "OK"),
        ("TXN COMMIT 1", "OK"),
        (
            "TXN COMMIT",
            "(error) CONFLICT others have changed key \"apples\" of dictionary stock meanwhile; nothing was changed: begin again",
        ),
        ("TXN STATUS", "(nil)"),
        ("TXN COMMIT 2", "(error) NOTXN no transaction 2: it has ended, or never was"),
        ("GET apples", "\"2\""),
        ("TXN BEGIN NOCHECK", "(integer) 3"),
        ("TXN JOIN 3", "OK"),
        ("SET apples 9", "OK"),
        ("TXN LEAVE", "OK"),
        ("SET apples 8", "OK"),
        ("TXN COMMIT 3", "OK"),
        ("GET apples", "\"9\""),
    ]);
}

#[test]
fn savepoints_have_names() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET a 1", "OK"),
        ("TXN SAVEPOINT first", "OK"),
        ("SET a 2", "OK"),
        ("SET b 2", "OK"),
        ("TXN SAVEPOINT second", "OK"),
        ("DEL a", "(integer) 1"),
        ("TXN ROLLBACK second", "OK"),
        ("MGET a b", "[\"2\" \"2\"]"),
    ]);
    // Savepoints belong to the transaction, not to the connection.
    let mut d = served.connect();
    d.expect(&[
        (
            "TXN SAVEPOINT x",
            "(error) ERR this connection is in no transaction: TXN JOIN one, or give its number",
        ),
        ("TXN JOIN 1", "OK"),
        ("TXN ROLLBACK first", "OK"),
        ("TXN ROLLBACK second", "(error) ERR this transaction has no savepoint of that name"),
        ("TXN ROLLBACK first", "OK"),
        ("TXN COMMIT", "OK"),
        ("MGET a b", "[\"1\" (nil)]"),
    ]);
}

#[test]
fn two_transactions_that_count_one_key_both_commit() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut c) = (served.connect(), served.connect(), served.connect());
    c.expect(&[("SET n 10", "OK")]);
    a.expect(&[("TXN BEGIN", "(integer) 1"), ("TXN JOIN 1", "OK"), ("INCR n", "(integer) 11")]);
    b.expect(&[("TXN BEGIN", "(integer) 2"), ("TXN JOIN 2", "OK"), ("INCRBY n 5", "(integer) 15")]);
    c.expect(&[("DECR n", "(integer) 9")]);
    a.expect(&[
        ("TXN CHANGES", r#"[["0" "update" "n" (integer) 2]]"#),
        ("TXN COMMIT", "OK"),
        ("GET n", "\"10\""),
    ]);
    b.expect(&[("TXN COMMIT", "OK")]);
    c.expect(&[("GET n", "\"15\"")]);
    // A number that the transaction itself has set is not merged as a sum.
    a.expect(&[
        ("TXN BEGIN", "(integer) 3"),
        ("TXN JOIN 3", "OK"),
        ("SET n 1", "OK"),
        ("INCR n", "(integer) 2"),
    ]);
    c.expect(&[("INCR n", "(integer) 16")]);
    let refused = a.run("TXN COMMIT");
    assert!(refused.starts_with("(error) CONFLICT"), "{refused}");
    c.expect(&[("SET n one", "OK")]);
    a.expect(&[
        ("TXN BEGIN", "(integer) 4"),
        ("TXN JOIN 4", "OK"),
        ("INCR n", "(error) ERR value is not an integer or out of range"),
        ("TXN ABORT", "OK"),
    ]);
}

#[test]
fn a_transaction_locks_ahead_of_time() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[
        ("MSET a 1 b 2 c 3 d 4", "OK"),
        ("TXN LOCK KEY a", "(error) ERR TXN LOCK works in a transaction: join one"),
        ("TXN BEGIN SER", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("TXN LOCK KEY a", "OK"),
        ("TXN LOCK RANGE b c SHARED", "OK"),
        ("TXN LOCK RANGE b", "(error) ERR wrong number of arguments for 'txn' command"),
        ("TXN LOCK KEY a EXCLUSIVE", "(error) ERR syntax error"),
        ("TXN LOCK", "(error) ERR syntax error"),
    ]);
    let reply = a.run("TXN LOCK DIR /");
    assert!(reply.starts_with("(error)") && reply.contains("no files"), "{reply}");
    b.expect(&[("TXN BEGIN SER TIMEOUT 0.05", "(integer) 2"), ("TXN JOIN 2", "OK")]);
    b.expect(&[("GET b", "\"2\""), ("GET d", "\"4\""), ("SET d 5", "OK")]);
    for refused in ["GET a", "SET b 3"] {
        let reply = b.run(refused);
        assert!(reply.starts_with("(error) LOCKED"), "{refused}: {reply}");
    }
    a.expect(&[("TXN COMMIT", "OK"), ("TXN BEGIN SI", "(integer) 3"), ("TXN JOIN 3", "OK")]);
    let reply = a.run("TXN LOCK KEY a");
    assert_eq!(reply, "(error) ERR a transaction of snapshot isolation locks nothing");
}

#[test]
fn a_part_of_a_large_value_is_written_without_reading_it() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("SETRANGE k 1048575 v", "(integer) 1048576"),
        ("SETRANGE k 500000 abcd", "(integer) 1048576"),
        ("APPEND k end", "(integer) 1048579"),
        ("SETRANGE k 1048580 xy", "(integer) 1048582"),
        ("STRLEN k", "(integer) 1048582"),
        ("GETRANGE k 499999 500004", r#""\x00abcd\x00""#),
        ("GETRANGE k 1048575 -1", r#""vend\x00xy""#),
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("APPEND k more", "(integer) 1048586"),
        ("STRLEN k", "(integer) 1048586"),
        ("TXN ABORT", "OK"),
        ("STRLEN k", "(integer) 1048582"),
    ]);
}

#[test]
fn what_a_transaction_would_change_can_be_listed() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("MSET a 1 b 1 c 1", "OK"),
        ("TXN BEGIN SER LABEL 'the night run' IDLE 3600 TIMEOUT 0.5", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET a 22", "OK"),
        ("DEL b", "(integer) 1"),
        ("DELRANGE c d", "OK"),
        (
            "TXN CHANGES",
            r#"[["0" "put" "a" (integer) 2] ["0" "delete" "b"] ["0" "delete-range" "c" "d"]]"#,
        ),
        ("TXN FILES", "[]"),
        ("TXN BEGIN IDLE soon", "(error) ERR not a number of seconds"),
        ("TXN BEGIN LABEL", "(error) ERR syntax error"),
        ("TXN JOIN x", "(error) ERR a transaction is named by the number that TXN BEGIN gave"),
        ("TXN BEGIN", "(integer) 2"),
    ]);
    let Reply::Array(list) = ({
        c.send(b"TXN LIST\r\n");
        c.reply().expect("a reply")
    }) else {
        panic!("a list")
    };
    let shown: Vec<String> = list.iter().map(served::show).collect();
    assert_eq!(shown.len(), 2);
    assert!(
        shown[0].starts_with(
            r#"["id" (integer) 1 "within" (nil) "clone" "" "isolation" "ser" "label" "the night run" "age_ms" "#
        ),
        "{}",
        shown[0]
    );
    assert!(
        shown[1].starts_with(
            r#"["id" (integer) 2 "within" (nil) "clone" "" "isolation" "si" "label" "" "#
        ),
        "{}",
        shown[1]
    );
    assert!(c.run("TXN STATUS").contains("the night run"));
    assert!(
        c.run("TXN NONSENSE").starts_with("(error) ERR unknown subcommand 'NONSENSE'. TXN BEGIN")
    );
}

#[test]
fn a_transaction_outlives_its_connection_unless_it_is_attached_to_it() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for (words, id) in [("", "1"), ("ATTACHED", "2"), ("ATTACHED", "3")] {
        assert_eq!(begin(&mut c, words), id);
        c.run(&format!("TXN JOIN {id}"));
        c.run("SET k v");
    }
    c.expect(&[("TXN KEEP 3", "OK")]);
    drop(c);
    until(|| served.db.transactions().len() == 2);
    let mut c = served.connect();
    c.expect(&[
        ("TXN JOIN 2", "(error) NOTXN no transaction 2: it has ended, or never was"),
        ("TXN JOIN 3", "OK"),
        ("GET k", "\"v\""),
        ("TXN JOIN 1", "OK"),
        ("GET k", "\"v\""),
        ("RESET", "RESET"),
        ("GET k", "(nil)"),
    ]);
}

#[test]
fn transactions_of_the_program_and_of_clients_are_the_same() {
    let served = serve(ServerOptions::default());
    let dict = served.db.create_dictionary("0", Default::default()).expect("made");
    let t = served.db.begin(Isolation::Snapshot).expect("begun");
    t.put(dict, "a", "1").expect("put");
    let mut c = served.connect();
    assert_eq!(c.run(&format!("TXN JOIN {}", t.id())), "OK");
    c.expect(&[("GET a", "\"1\""), ("SET b 2", "OK")]);
    t.commit(Durability::Buffered).expect("committed");
    c.expect(&[("TXN LEAVE", "OK"), ("MGET a b", "[\"1\" \"2\"]")]);
}

#[test]
fn multi_gathers_and_exec_runs() {
    serve(ServerOptions::default()).connect().expect(&[
        ("EXEC", "(error) ERR EXEC without MULTI"),
        ("DISCARD", "(error) ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("MULTI", "(error) ERR MULTI calls can not be nested"),
        ("SET a 1", "QUEUED"),
        ("INCR a", "QUEUED"),
        ("GET a", "QUEUED"),
        ("KEYS *", "QUEUED"),
        ("EXEC", r#"[OK (integer) 2 "2" ["a"]]"#),
        ("MULTI", "OK"),
        ("EXEC", "[]"),
        ("MULTI", "OK"),
        ("SET a 9", "QUEUED"),
        ("DISCARD", "OK"),
        ("GET a", "\"2\""),
        ("MULTI", "OK"),
        ("SELECT 3", "QUEUED"),
        ("SET a three", "QUEUED"),
        ("EXEC", "[OK OK]"),
        ("GET a", "\"three\""),
        ("SELECT 0", "OK"),
        ("GET a", "\"2\""),
    ]);
}

#[test]
fn what_is_refused_between_multi_and_exec_keeps_all_of_it_from_being_run() {
    const ABORTED: &str = "(error) EXECABORT Transaction discarded because of previous errors.";
    serve(ServerOptions::default()).connect().expect(&[
        ("MULTI", "OK"),
        ("SET a 1", "QUEUED"),
        ("NOSUCH", "(error) ERR unknown command 'NOSUCH', with args beginning with: "),
        ("EXEC", ABORTED),
        ("MULTI", "OK"),
        ("SET a 1", "QUEUED"),
        ("SET a", "(error) ERR wrong number of arguments for 'set' command"),
        ("EXEC", ABORTED),
        ("MULTI", "OK"),
        ("SET a 1", "QUEUED"),
        ("TXN BEGIN", "(error) ERR 'txn' is not possible between MULTI and EXEC"),
        ("EXEC", ABORTED),
        ("GET a", "(nil)"),
        // A command that fails when it runs does not undo the others, as in Redis.
        ("MULTI", "OK"),
        ("SET a x", "QUEUED"),
        ("INCR a", "QUEUED"),
        ("SET b 1", "QUEUED"),
        ("EXEC", "[OK (error) ERR value is not an integer or out of range OK]"),
        ("MGET a b", "[\"x\" \"1\"]"),
    ]);
}

#[test]
fn exec_does_nothing_when_a_watched_key_has_changed() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("SET k 1", "OK"), ("WATCH k none", "OK"), ("MULTI", "OK"), ("SET k 2", "QUEUED")]);
    b.expect(&[("SET other 1", "OK")]);
    a.expect(&[
        ("EXEC", "[OK]"),
        ("WATCH k", "OK"),
        ("MULTI", "OK"),
        ("WATCH x", "(error) ERR WATCH inside MULTI is not allowed"),
    ]);
    // The same value again is a change.
    b.expect(&[("SET k 2", "OK")]);
    a.expect(&[("SET k 3", "QUEUED"), ("EXEC", "(nil)"), ("GET k", "\"2\"")]);
    // Its own change counts as well, and so do a change by a transaction and the creation of a key.
    a.expect(&[
        ("WATCH k", "OK"),
        ("SET k 4", "OK"),
        ("MULTI", "OK"),
        ("SET k 5", "QUEUED"),
        ("EXEC", "(nil)"),
    ]);
    a.expect(&[("WATCH none", "OK"), ("MULTI", "OK"), ("SET k 5", "QUEUED")]);
    let id = begin(&mut b, "");
    assert_eq!(b.run(&format!("TXN JOIN {id}")), "OK");
    b.expect(&[("SET none 1", "OK"), ("TXN COMMIT", "OK")]);
    a.expect(&[("EXEC", "(nil)"), ("GET k", "\"4\"")]);
    // A range that is deleted, too; and UNWATCH and DISCARD forget.
    a.expect(&[("WATCH k", "OK"), ("MULTI", "OK"), ("SET k 5", "QUEUED")]);
    b.expect(&[("FLUSHALL", "OK")]);
    a.expect(&[("EXEC", "(nil)"), ("WATCH k", "OK")]);
    b.expect(&[("SET k 1", "OK")]);
    a.expect(&[
        ("UNWATCH", "OK"),
        ("MULTI", "OK"),
        ("SET k 6", "QUEUED"),
        ("EXEC", "[OK]"),
        ("WATCH k", "OK"),
        ("MULTI", "OK"),
    ]);
    b.expect(&[("SET k 1", "OK")]);
    a.expect(&[("DISCARD", "OK"), ("MULTI", "OK"), ("SET k 7", "QUEUED"), ("EXEC", "[OK]")]);
    assert!(served.db.transactions().is_empty(), "nothing is left of any WATCH");
}

/// `TXN LIST` shows the number of a `WATCH`; it is of no use to other connections.
#[test]
fn no_other_connection_reaches_the_transaction_of_a_watch() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("SET k 1", "OK"), ("WATCH k", "OK")]);
    let id = served.db.transactions()[0].id;
    let refused = format!("(error) NOTXN no transaction {id}: it has ended, or never was");
    for command in ["JOIN", "STATUS", "FILES", "CHANGES", "KEEP", "COMMIT", "ABORT"] {
        assert_eq!(b.run(&format!("TXN {command} {id}")), refused, "{command}");
    }
    b.expect(&[("TXN STATUS", "(nil)"), ("SET other 1", "OK")]);
    a.expect(&[("MULTI", "OK"), ("SET k 2", "QUEUED"), ("EXEC", "[OK]"), ("GET k", "\"2\"")]);
}

#[test]
fn exec_works_in_a_joined_transaction() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut outside) = (served.connect(), served.connect(), served.connect());
    a.expect(&[
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET k 1", "OK"),
        ("WATCH k", "OK"),
        ("MULTI", "OK"),
        ("SET k 2", "QUEUED"),
    ]);
    outside.expect(&[("SET k out", "OK"), ("GET k", "\"out\"")]);
    a.expect(&[
        ("EXEC", "[OK]"),
        ("GET k", "\"2\""),
        ("WATCH k", "OK"),
        ("MULTI", "OK"),
        ("SET k 3", "QUEUED"),
    ]);
    b.expect(&[("TXN JOIN 1", "OK"), ("SET k 9", "OK")]);
    a.expect(&[("EXEC", "(nil)"), ("GET k", "\"9\""), ("MULTI", "OK"), ("SET k 10", "QUEUED")]);
    b.expect(&[("TXN ABORT", "OK")]);
    a.expect(&[("EXEC", OVER), ("GET k", OVER), ("RESET", "RESET"), ("GET k", "\"out\"")]);
}

#[test]
fn exec_in_a_joined_transaction_is_done_whole_or_not_at_all() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut c) = (served.connect(), served.connect(), served.connect());
    a.expect(&[
        ("MSET n 1 k 0", "OK"),
        ("TXN BEGIN SER", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET k held", "OK"),
    ]);
    b.expect(&[
        ("TXN BEGIN SER TIMEOUT 0.05", "(integer) 2"),
        ("TXN JOIN 2", "OK"),
        ("SET before 1", "OK"),
    ]);
    let commands = [
        ("MULTI", "OK"),
        ("USE other", "QUEUED"),
        ("SET o 1", "QUEUED"),
        ("USE 0", "QUEUED"),
        ("INCR n", "QUEUED"),
        ("DELRANGE be bf", "QUEUED"),
        ("SET k 2", "QUEUED"),
        ("SET behind 1", "QUEUED"),
    ];
    b.expect(&commands);
    let refused = b.run("EXEC");
    assert!(
        refused.starts_with("(error) LOCKED ")
            && refused.ends_with("; nothing of this EXEC was done"),
        "{refused}"
    );
    // The transaction is unchanged for all connections in it, and continues.
    c.expect(&[
        ("TXN JOIN 2", "OK"),
        ("MGET n before behind", r#"["1" "1" (nil)]"#),
        ("USE other", "OK"),
        ("GET o", "(nil)"),
    ]);
    c.expect(&[("TXN CHANGES", r#"[["0" "put" "before" (integer) 1]]"#)]);
    a.expect(&[("TXN COMMIT", "OK")]);
    b.expect(&commands);
    b.expect(&[("EXEC", "[OK OK OK (integer) 2 OK OK OK]"), ("TXN COMMIT", "OK")]);
    a.expect(&[
        ("MGET n before k behind", r#"["2" (nil) "2" "1"]"#),
        ("USE other", "OK"),
        ("GET o", "\"1\""),
    ]);
}

#[test]
fn in_a_joined_transaction_exec_sees_what_it_does_and_goes_on_after_wrong_commands() {
    let served = serve(ServerOptions::default());
    for isolation in ["SI", "SER"] {
        let (mut c, mut outside) = (served.connect(), served.connect());
        let id = begin(&mut c, isolation);
        assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
        c.expect(&[
            ("MSET a x b 1", "OK"),
            ("MULTI", "OK"),
            ("INCR a", "QUEUED"),
            ("INCR b", "QUEUED"),
            ("SET c 1", "QUEUED"),
            ("KEYS *", "QUEUED"),
            ("DEL a", "QUEUED"),
            ("MGET a b c", "QUEUED"),
            ("DBSIZE", "QUEUED"),
            (
                "EXEC",
                r#"[(error) ERR value is not an integer or out of range (integer) 2 OK ["a" "b" "c"] (integer) 1 [(nil) "2" "1"] (integer) 2]"#,
            ),
            ("KEYS *", r#"["b" "c"]"#),
        ]);
        outside.expect(&[("DBSIZE", "(integer) 0")]);
        c.expect(&[("TXN ABORT", "OK"), ("DBSIZE", "(integer) 0")]);
    }
}

#[test]
fn what_a_serializable_transaction_has_locked_is_waited_for() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut plain) = (served.connect(), served.connect(), served.connect());
    a.expect(&[
        ("MSET k 0 read 1 free 1", "OK"),
        ("TXN BEGIN SER", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET k 1", "OK"),
        ("GET read", "\"1\""),
        ("RANGE m q", r#"[]"#),
    ]);
    // A younger transaction does not get these locks in time, may read keys that are only read, and
    // continues.
    b.expect(&[("TXN BEGIN SER TIMEOUT 0.05", "(integer) 2"), ("TXN JOIN 2", "OK")]);
    for command in ["GET k", "SET k 2", "SET read 2", "SET n 1", "DELRANGE a z"] {
        let refused = b.run(command);
        assert!(refused.starts_with("(error) LOCKED "), "{command}: {refused}");
    }
    b.expect(&[("GET read", "\"1\""), ("SET free 2", "OK"), ("TXN COMMIT", "OK")]);
    // So does a client outside of any transaction: it reads committed data, and its writes wait.
    plain.expect(&[("GET k", "\"0\"")]);
    plain.send(b"SET k plain\r\n");
    plain.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).expect("set");
    assert!(plain.reply().is_err(), "it waits");
    plain.0.get_ref().set_read_timeout(None).expect("set");
    a.expect(&[("SET k 41", "OK"), ("TXN COMMIT", "OK")]);
    assert_eq!(served::show(&plain.reply().expect("a reply")), "OK");
    a.expect(&[("MGET k free", r#"["plain" "2"]"#)]);
}

#[test]
fn what_a_serializable_transaction_has_read_as_absent_stays_absent() {
    // The same holds where there is nothing to lock: no dictionary, or no dictionary of its types.
    let served = serve(ServerOptions::default());
    let (mut a, mut plain) = (served.connect(), served.connect());
    let reads: [(&[&str], &str); 6] = [
        (&["LRANGE l 0 -1"], "[]"),
        (&["GET l"], "(nil)"),
        (&["EXISTS l"], "(integer) 0"),
        (&["DEL l"], "(integer) 0"),
        (&["KEYS *"], "[]"),
        (&["MULTI", "LLEN l", "EXEC"], "[(integer) 0]"),
    ];
    let writes: [&[&str]; 3] =
        [&["RPUSH l x"], &["SET l x"], &["WATCH l", "MULTI", "RPUSH l x", "EXEC"]];
    for (n, (read, found)) in reads.iter().enumerate() {
        for (m, write) in writes.iter().enumerate() {
            for made in [false, true] {
                let choose = format!("USE d{n}{m}{made}");
                a.expect(&[(&choose, "OK")]);
                plain.expect(&[(&choose, "OK")]);
                if made {
                    plain.expect(&[("SET l 1", "OK"), ("DEL l", "(integer) 1")]);
                }
                let id = begin(&mut a, "SER");
                a.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
                let answers: Vec<_> = read.iter().map(|command| a.run(command)).collect();
                assert_eq!(answers.last().map(String::as_str), Some(*found), "{choose} {read:?}");
                let (last, before) = write.split_last().expect("commands");
                before.iter().for_each(|command| drop(plain.run(command)));
                plain.send(format!("{last}\r\n").as_bytes());
                plain.0.get_ref().set_read_timeout(Some(Duration::from_millis(50))).expect("set");
                let reply = plain.reply();
                assert!(reply.is_err(), "{choose}: {read:?}, then {write:?}: it waits");
                plain.0.get_ref().set_read_timeout(None).expect("set");
                a.expect(&[("TXN COMMIT", "OK")]);
                plain.reply().expect("a reply");
            }
        }
    }
}

#[test]
fn exec_that_waited_for_a_transaction_reads_what_that_has_committed() {
    let served = serve(ServerOptions::default());
    let (mut a, mut plain) = (served.connect(), served.connect());
    a.expect(&[
        ("SET k 0", "OK"),
        ("TXN BEGIN SER", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET k 41", "OK"),
    ]);
    plain.expect(&[("MULTI", "OK"), ("INCR k", "QUEUED")]);
    plain.send(b"EXEC\r\n");
    plain.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).expect("set");
    assert!(plain.reply().is_err(), "it waits");
    plain.0.get_ref().set_read_timeout(None).expect("set");
    a.expect(&[("TXN COMMIT", "OK")]);
    assert_eq!(served::show(&plain.reply().expect("a reply")), "[(integer) 42]");
}

#[test]
fn a_command_that_waited_for_a_transaction_reads_what_that_has_committed() {
    let served = serve(ServerOptions::default());
    let (mut a, mut plain) = (served.connect(), served.connect());
    let commands = [
        ("INCR k", "(integer) 42"),
        ("APPEND k 0", "(integer) 3"),
        ("GETSET k 7", "\"41\""),
        ("SETNX new mine", "(integer) 0"),
        ("MSETNX other 1 new mine", "(integer) 0"),
        ("DEL k new", "(integer) 2"),
        ("GETDEL k", "\"41\""),
    ];
    for (command, answer) in commands {
        a.expect(&[("SET k 0", "OK")]);
        let join = format!("TXN JOIN {}", begin(&mut a, "SER"));
        a.expect(&[(&join, "OK"), ("SET k 41", "OK"), ("SET new theirs", "OK")]);
        plain.send(format!("{command}\r\n").as_bytes());
        plain.0.get_ref().set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        assert!(plain.reply().is_err(), "{command} waits");
        plain.0.get_ref().set_read_timeout(None).expect("set");
        a.expect(&[("TXN COMMIT", "OK")]);
        assert_eq!(served::show(&plain.reply().expect("a reply")), answer, "{command}");
        a.run("DEL k new other");
    }
}

#[test]
fn an_older_serializable_transaction_takes_what_a_younger_one_holds() {
    let served = serve(ServerOptions::default());
    let (mut old, mut young) = (served.connect(), served.connect());
    old.expect(&[
        ("TXN BEGIN SER", "(integer) 1"),
        ("TXN BEGIN SER", "(integer) 2"),
        ("TXN JOIN 1", "OK"),
    ]);
    young.expect(&[
        ("TXN JOIN 2", "OK"),
        ("MSET k young other 1", "OK"),
        ("MULTI", "OK"),
        ("SET x 1", "QUEUED"),
    ]);
    old.expect(&[("SET k old", "OK")]);
    let told = young.run("EXEC");
    assert!(told.starts_with("(error) LOCKED transaction 2 was aborted: "), "{told}");
    old.expect(&[
        ("GET other", "(nil)"),
        ("TXN COMMIT", "OK"),
        ("MGET k other x", r#"["old" (nil) (nil)]"#),
    ]);
}

#[test]
fn savepoints_of_a_serializable_transaction_undo_and_keep_the_locks() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[
        ("TXN BEGIN SER", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("SET a 1", "OK"),
        ("TXN SAVEPOINT s", "OK"),
        ("MULTI", "OK"),
        ("SET a 2", "QUEUED"),
        ("SET b 2", "QUEUED"),
        ("EXEC", "[OK OK]"),
        ("MGET a b", r#"["2" "2"]"#),
        ("TXN ROLLBACK s", "OK"),
        ("MGET a b", r#"["1" (nil)]"#),
    ]);
    b.expect(&[("TXN BEGIN SER TIMEOUT 0.05", "(integer) 2"), ("TXN JOIN 2", "OK")]);
    assert!(b.run("SET b 3").starts_with("(error) LOCKED "));
    a.expect(&[("TXN COMMIT", "OK")]);
    b.expect(&[("SET b 3", "OK"), ("TXN COMMIT", "OK"), ("MGET a b", r#"["1" "3"]"#)]);
}

#[test]
fn a_connection_that_dies_in_multi_leaves_no_trace() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[("WATCH k", "OK"), ("MULTI", "OK"), ("SET k 1", "QUEUED")]);
    drop(c);
    until(|| served.db.transactions().is_empty());
    served.connect().expect(&[("GET k", "(nil)")]);
}

/// Two counters that clients always raise together, in every possible way. Readers never see them
/// differ.
#[test]
fn exec_is_atomic_and_isolated() {
    let served = serve(ServerOptions::default());
    let stop = AtomicBool::new(false);
    served.connect().expect(&[("MSET a 0 b 0", "OK")]);
    let pair = |served: &Served| -> (i64, i64) {
        let Reply::Array(items) = ({
            let mut c = served.connect();
            c.send(b"MGET a b\r\n");
            c.reply().expect("a reply")
        }) else {
            panic!("an array")
        };
        let number = |reply: &Reply| match reply {
            Reply::Bulk(text) => String::from_utf8_lossy(text).parse().expect("a number"),
            other => panic!("{other:?}"),
        };
        (number(&items[0]), number(&items[1]))
    };
    std::thread::scope(|threads| {
        let mut writers = Vec::new();
        for i in 0..3 {
            let served = &served;
            writers.push(threads.spawn(move || {
                let mut c = served.connect();
                for _ in 0..100 {
                    if i == 0 {
                        // Until it commits.
                        loop {
                            let id = begin(&mut c, "");
                            c.run(&format!("TXN JOIN {id}"));
                            c.run("INCR a");
                            c.run("INCR b");
                            if c.run("TXN COMMIT") == "OK" {
                                break;
                            }
                        }
                    } else {
                        c.expect(&[("MULTI", "OK"), ("INCR a", "QUEUED"), ("INCR b", "QUEUED")]);
                        let done = c.run("EXEC");
                        assert!(done.starts_with("[(integer)"), "{done}");
                    }
                }
            }));
        }
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (a, b) = pair(&served);
                assert_eq!(a, b);
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(pair(&served), (300, 300));
}

#[test]
fn a_command_that_must_be_taken_back_never_leaves_early() {
    let served = serve(ServerOptions {
        limits: kvdb_server::Limits { reply: 1000, ..Default::default() },
        ..Default::default()
    });
    let mut c = served.connect();
    for i in 0..50 {
        c.run(&format!("SET {i:02} {}", "v".repeat(100)));
    }
    c.expect(&[
        ("MULTI", "OK"),
        ("RANGE - +", "QUEUED"),
        ("SET 00 x", "QUEUED"),
        ("RANGE - + NOVALUES LIMIT 1", "QUEUED"),
    ]);
    let shown = c.run("EXEC");
    assert_eq!(shown.matches("\"vvv").count(), 50);
    assert!(shown.ends_with(" OK [\"00\"]]"), "{}", &shown[shown.len() - 50..]);
}

#[test]
fn replies_in_resp3() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.run("HELLO 3");
    a.expect(&[
        ("TXN BEGIN", "(integer) 1"),
        ("WATCH k", "OK"),
        ("MULTI", "OK"),
        ("GET k", "QUEUED"),
    ]);
    b.expect(&[("SET k 1", "OK")]);
    a.expect(&[("EXEC", "(nil)")]);
    assert!(a.run("TXN STATUS 1").starts_with("[\"id\" (integer) 1"));
}

/// A watched key that `EXEC` itself does not touch is looked at once more at its commit, at the
/// same moment as everything else.
#[test]
fn what_is_watched_is_checked_at_the_commit_of_exec() {
    let served = serve(ServerOptions::default());
    let (mut a, mut ser) = (served.connect(), served.connect());
    a.expect(&[
        ("MSET lock free k 0", "OK"),
        ("WATCH lock", "OK"),
        ("MULTI", "OK"),
        ("SET k 1", "QUEUED"),
    ]);
    // The commit of EXEC has to wait for a reader of the keys that it writes, and that reader takes
    // the lock.
    ser.expect(&[
        ("TXN BEGIN SER", "(integer) 2"),
        ("TXN JOIN 2", "OK"),
        ("GET k", "\"0\""),
        ("SET lock taken", "OK"),
    ]);
    a.send(b"EXEC\r\n");
    a.0.get_ref().set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    assert!(a.reply().is_err(), "it waits");
    a.0.get_ref().set_read_timeout(None).expect("set");
    ser.expect(&[("TXN COMMIT", "OK")]);
    assert_eq!(served::show(&a.reply().expect("a reply")), "(nil)");
    a.expect(&[("MGET lock k", r#"["taken" "0"]"#)]);
}

/// Keys that `EXEC` only reads do not change until its commit, as if it ran alone.
#[test]
fn what_exec_reads_is_checked_at_its_commit() {
    for (read, before, after) in [
        ("GET r", "\"0\"", "\"1\""),
        ("STRLEN r", "(integer) 1", "(integer) 1"),
        ("MGET r none", "[\"0\" (nil)]", "[\"1\" (nil)]"),
        ("RANGE r s", "[\"r\" \"0\"]", "[\"r\" \"1\" \"r2\" \"1\"]"),
        ("EXISTS r r2", "(integer) 1", "(integer) 2"),
        ("SETNX r 5", "(integer) 0", "(integer) 0"),
        ("SET r2 5 XX", "(nil)", "OK"),
        ("KEYS r*", "[\"r\"]", "[\"r\" \"r2\"]"),
    ] {
        let served = serve(ServerOptions::default());
        let (mut a, mut ser) = (served.connect(), served.connect());
        a.expect(&[
            ("MSET r 0 k 0", "OK"),
            ("MULTI", "OK"),
            (read, "QUEUED"),
            ("SET k 1", "QUEUED"),
        ]);
        ser.expect(&[
            ("TXN BEGIN SER", "(integer) 1"),
            ("TXN JOIN 1", "OK"),
            ("GET k", "\"0\""),
            ("MSET r 1 r2 1", "OK"),
        ]);
        a.send(b"EXEC\r\n");
        a.0.get_ref().set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        assert!(a.reply().is_err(), "{read}: it waits");
        a.0.get_ref().set_read_timeout(None).expect("set");
        ser.expect(&[("TXN COMMIT", "OK")]);
        let reply = served::show(&a.reply().expect("a reply"));
        assert_eq!(reply, format!("[{after} OK]"), "{read}, which was {before} before");
    }
}

/// The pattern of a lock: watch it, see that it is free, and work only if it still is.
#[test]
fn a_lock_taken_in_between_is_never_lost() {
    let served = serve(ServerOptions::default());
    const ROUNDS: usize = 300;
    let barrier = std::sync::Barrier::new(2);
    served.connect().expect(&[("MSET lock free work 0", "OK")]);
    let lost = std::thread::scope(|threads| {
        let taker = threads.spawn(|| {
            let mut c = served.connect();
            let mut lost = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                let id = begin(&mut c, "");
                c.run(&format!("TXN JOIN {id}"));
                c.run("SET lock taken");
                c.run("TXN COMMIT");
                // From here on no command is executed.
                let now = c.run("GET work");
                barrier.wait();
                lost += usize::from(c.run("GET work") != now);
                c.run("SET lock free");
                barrier.wait();
            }
            lost
        });
        threads.spawn(|| {
            let mut c = served.connect();
            for _ in 0..ROUNDS {
                c.run("WATCH lock");
                let free = c.run("GET lock") == "\"free\"";
                barrier.wait();
                c.run("MULTI");
                c.run("INCR work");
                c.run(if free { "EXEC" } else { "DISCARD" });
                barrier.wait();
                barrier.wait();
            }
        });
        taker.join().expect("it came to its end")
    });
    assert_eq!(lost, 0, "rounds in which the work was done though the lock was taken");
}

#[test]
fn a_watch_that_is_kept_for_too_long_counts_as_broken() {
    let limits = kvdb_server::Limits { watch_time: Duration::from_millis(1), ..Default::default() };
    let served = serve(ServerOptions { limits, ..Default::default() });
    let mut c = served.connect();
    c.expect(&[("WATCH k", "OK")]);
    until(|| {
        served.db.step().expect("a step");
        served.db.transactions().is_empty()
    });
    c.expect(&[
        ("MULTI", "OK"),
        ("SET k 1", "QUEUED"),
        ("EXEC", "(nil)"),
        ("MULTI", "OK"),
        ("SET k 1", "QUEUED"),
        ("EXEC", "[OK]"),
    ]);
}

#[test]
fn an_exec_that_is_wrong_itself_discards_what_was_gathered() {
    let served = serve(ServerOptions::default());
    served.connect().expect(&[
        ("MULTI", "OK"),
        ("SET a 1", "QUEUED"),
        (
            "EXEC now",
            "(error) EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
        ),
        ("EXEC", "(error) ERR EXEC without MULTI"),
        ("EXEC now", "(error) ERR wrong number of arguments for 'exec' command"),
        ("GET a", "(nil)"),
    ]);
}

/// The sync of a commit fails. Others see its changes and are notified, so the reply must not say
/// that nothing has happened.
#[test]
fn a_commit_whose_sync_fails_is_made_all_the_same() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let open = OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).expect("made");
    let served = serve_db(db, ServerOptions::default());
    let (mut inside, mut outside) = (served.connect(), served.connect());
    // The journal has its segment.
    outside.expect(&[("SET k 0", "OK"), ("SYNC", "OK")]);
    assert_eq!(outside.run("SUBSCRIBE news"), "[\"subscribe\" \"news\" (integer) 1]");
    let id = begin(&mut inside, "");
    assert_eq!(inside.run(&format!("TXN JOIN {id}")), "OK");
    inside.expect(&[("SET k 1", "OK"), ("PUBLISH news made", "(integer) 1")]);
    device.inject(Fault::always(Operation::Sync, FaultKind::Error));
    let said = inside.run("TXN COMMIT SYNC");
    assert!(said.starts_with("(error) NOTSYNCED committed and seen by all, but "), "{said}");
    inside.expect(&[("TXN STATUS", "(nil)"), ("GET k", "\"1\"")]);
    assert_eq!(show(&outside.reply().expect("it is told")), "[\"message\" \"news\" \"made\"]");
}
