//! Tests of `CHANGES`, which lists the keys that were committed since a position, however they were
//! changed.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::served::{Raw, serve, serve_db, show};
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions};
use kvdb_server::{Limits, Reply, ServerOptions};

/// The rows after a position without their numbers, and the position after them.
#[track_caller]
fn since(c: &mut Raw, position: &str, options: &str) -> (Vec<String>, String) {
    c.send(format!("CHANGES SINCE {position} {options}\r\n").as_bytes());
    rows(&c.reply().expect("a reply"))
}

#[track_caller]
fn rows(reply: &Reply) -> (Vec<String>, String) {
    let Reply::Array(parts) = reply else { panic!("{}", show(reply)) };
    let (Reply::Bulk(next), Reply::Array(rows)) = (&parts[0], &parts[1]) else {
        panic!("{}", show(reply))
    };
    let row = |row: &Reply| {
        let Reply::Array(parts) = row else { panic!("{}", show(row)) };
        assert!(matches!(parts[0], Reply::Integer(_)), "{}", show(row));
        let words: Vec<String> = parts[1..].iter().map(show).collect();
        words.join(" ").replace('"', "")
    };
    (rows.iter().map(row).collect(), String::from_utf8_lossy(next).into_owned())
}

/// The rows of the next reply.
#[track_caller]
fn rows_of(c: &mut Raw) -> Vec<String> {
    rows(&c.reply().expect("a reply")).0
}

fn now(c: &mut Raw) -> String {
    c.run("CHANGES NOW").trim_matches('"').to_string()
}

#[test]
fn keys_are_listed_whatever_they_are() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    assert_eq!(c.run("SET before 1"), "OK");
    let start = now(&mut c);
    assert_eq!(since(&mut c, &start, ""), (vec![], start.clone()));
    c.expect(&[
        ("SET a 1", "OK"),
        ("HSET h f v", "(integer) 1"),
        ("HSET h f w g v", "(integer) 1"),
        ("EXPIRE a 1000", "(integer) 1"),
        ("RENAME h moved", "OK"),
        ("DEL a", "(integer) 1"),
        ("USE other", "OK"),
        ("RPUSH l 1", "(integer) 1"),
        ("LPOP l", "\"1\""),
        ("DELRANGE x y", "OK"),
    ]);
    let (rows, next) = since(&mut c, &start, "");
    let want = [
        "0 key a (nil)",
        // The row has the current name of the key, which is listed again with the rename.
        "0 key h (nil)",
        "0 key moved hash",
        "0 key moved hash",
        "0 key a (nil)",
        "0 key h (nil)",
        "0 key moved hash",
        "0 key a (nil)",
        "other key l (nil)",
        "other key l (nil)",
        "other range x y",
    ];
    assert_eq!(rows, want);
    assert_eq!(since(&mut c, &next, "").0, Vec::<String>::new());
    // The collection is known by its key, though its head has not changed.
    c.expect(&[("USE 0", "OK"), ("HSET moved f again", "(integer) 0")]);
    assert_eq!(since(&mut c, &next, "").0, ["0 key moved hash"]);
    c.expect(&[("FLUSHALL", "OK")]);
    let (rows, _) = since(&mut c, &next, "");
    assert!(rows.iter().any(|row| row.starts_with("0 range ")), "{rows:?}");
}

#[test]
fn a_long_string_is_named_once_whatever_of_it_was_changed() {
    let limits = Limits { tuple: 10, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    assert_eq!(c.run("SETRANGE long 20000 end"), "(integer) 20003");
    let start = now(&mut c);
    c.expect(&[
        ("SETRANGE long 5000 patch", "(integer) 20003"),
        ("APPEND long more", "(integer) 20007"),
        ("SET long a-new-long-string", "OK"),
        ("SET short abc", "OK"),
        ("APPEND short defghijklmn", "(integer) 14"),
        ("EXPIRE short 1000", "(integer) 1"),
        ("RENAME short moved", "OK"),
        ("SET moved abc", "OK"),
        ("DEL long", "(integer) 1"),
    ]);
    let want = [
        "0 key long (nil)",
        "0 key long (nil)",
        "0 key long (nil)",
        "0 key short (nil)",
        "0 key short (nil)",
        "0 key short (nil)",
        "0 key moved string",
        "0 key short (nil)",
        "0 key moved string",
        "0 key long (nil)",
    ];
    assert_eq!(since(&mut c, &start, "").0, want);
}

#[test]
fn a_clone_has_a_list_of_its_own() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    c.expect(&[("SET k 1", "OK"), ("SNAPSHOT CREATE s", "OK")]);
    c.expect(&[("CLONE CREATE s one", "OK"), ("CLONE CREATE s two", "OK")]);
    let of_store = now(&mut other);
    c.expect(&[("CLONE USE one", "OK")]);
    let of_one = now(&mut c);
    c.expect(&[
        ("SET in-one 1", "OK"),
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("HSET h f v", "(integer) 1"),
        ("TXN COMMIT", "OK"),
        ("CLONE USE one", "OK"),
    ]);
    other.expect(&[("SET in-store 1", "OK"), ("CLONE USE two SET in-two 1", "OK")]);
    let want = ["0 key in-one string", "0 key h hash"];
    let (rows, next) = since(&mut c, &of_one, "");
    assert_eq!(rows, want);
    assert_eq!(since(&mut c, &next, "").0, Vec::<String>::new());
    assert_eq!(since(&mut other, &of_store, "").0, ["0 key in-store string"]);
    // A position in the store's list has no meaning in the clone's list.
    let elsewhere = c.run(&format!("CHANGES SINCE {of_store}"));
    assert!(elsewhere.starts_with("(error) NOFEED "), "{elsewhere}");
    // A wait for the clone's next commit does not end with one of the store.
    c.send(format!("CHANGES SINCE {next} BLOCK 0\r\n").as_bytes());
    other.expect(&[("SET in-store 2", "OK"), ("CLONE USE one SET last 1", "OK")]);
    assert_eq!(rows_of(&mut c), ["0 key last string"]);
    // The list ends with the clone, and does not belong to a later clone with the same name.
    let last = now(&mut c);
    other.expect(&[("CLONE DROP one", "OK"), ("CLONE CREATE s one", "OK")]);
    let gone = c.run(&format!("CHANGES SINCE {last}"));
    assert!(gone.starts_with("(error) NOFEED "), "{gone}");
    other.expect(&[("CLONE DROP one", "OK")]);
    assert!(c.run("CHANGES").starts_with("(error) "), "there is no such clone");
    // After a rollback of a clone everything in it may have changed, and the store's list
    // continues.
    other.expect(&[("SNAPSHOT CREATE of-two OF two", "OK"), ("CLONE USE two", "OK")]);
    let before = now(&mut other);
    other.expect(&[("SNAPSHOT ROLLBACK of-two", "OK")]);
    assert!(other.run(&format!("CHANGES SINCE {before}")).starts_with("(error) NOFEED "));
    other.expect(&[("CLONE LEAVE", "OK")]);
    let store = ["0 key in-store string", "0 key in-store string"];
    assert_eq!(since(&mut other, &of_store, "").0, store);
}

#[test]
fn all_lists_share_one_bound_and_the_oldest_commit_is_left_out() {
    let limits = Limits { feed: 4000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    c.expect(&[("SET k 1", "OK"), ("SNAPSHOT CREATE s", "OK"), ("CLONE CREATE s one", "OK")]);
    let of_store = now(&mut c);
    let quiet = c.run("CLONE USE one CHANGES NOW").replace('"', "");
    for i in 0..100 {
        assert_eq!(c.run(&format!("SET k{i} v")), "OK");
    }
    assert!(c.run(&format!("CHANGES SINCE {of_store}")).starts_with("(error) NOFEED "));
    // No change of the clone was left out.
    let still = c.run(&format!("CLONE USE one CHANGES SINCE {quiet}"));
    assert!(still.ends_with(" []]"), "{still}");
}

#[test]
fn commits_are_whole_and_come_in_pages() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    let start = now(&mut c);
    c.expect(&[
        ("TXN BEGIN", "(integer) 1"),
        ("TXN JOIN 1", "OK"),
        ("MSET t1 1 t2 2", "OK"),
        ("SADD t3 m", "(integer) 1"),
    ]);
    other.expect(&[("SET between 1", "OK"), ("MULTI", "OK"), ("SET e1 1", "QUEUED")]);
    other.expect(&[("SET e2 1", "QUEUED"), ("EXEC", "[OK OK]")]);
    // Uncommitted changes are not listed.
    let (rows, _) = since(&mut other, &start, "");
    assert_eq!(rows, ["0 key between string", "0 key e1 string", "0 key e2 string"]);
    c.expect(&[("TXN COMMIT", "OK"), ("TXN LEAVE", "OK")]);
    // Changes made without the server.
    let dict = served.db.dictionary("0").expect("made");
    served.db.put(dict, b"library", b"1", Durability::Buffered).expect("put");
    let (mut all, mut at, mut pages) = (Vec::new(), start, 0);
    loop {
        let (rows, next) = since(&mut c, &at, "COUNT 1");
        if rows.is_empty() {
            break;
        }
        pages += 1;
        all.extend(rows);
        at = next;
    }
    let want = [
        "0 key between string",
        "0 key e1 string",
        "0 key e2 string",
        "0 key t1 string",
        "0 key t2 string",
        "0 key t3 set",
        "0 key library string",
    ];
    assert_eq!((all, pages), (want.map(String::from).to_vec(), 4));
}

#[test]
fn what_is_not_kept_any_more_is_said() {
    let limits = Limits { feed: 2000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = served.connect();
    let gone = |reply: String| {
        assert!(reply.starts_with("(error) NOFEED "), "{reply}");
        assert!(reply.contains("SNAPSHOT CHANGES"), "{reply}");
    };
    let start = now(&mut c);
    for i in 0..100 {
        assert_eq!(c.run(&format!("SET k{i} v")), "OK");
    }
    gone(c.run(&format!("CHANGES SINCE {start}")));
    gone(c.run("CHANGES SINCE 0"));
    gone(c.run("CHANGES SINCE 18446744073709551615"));
    // A plain number is a position in this list.
    let newest = now(&mut c);
    let (number, _) = newest.split_once('-').expect("two parts");
    assert_eq!(c.run("SET one more"), "OK");
    assert_eq!(since(&mut c, number, "").0, ["0 key one string"]);
    // After a rollback, or after a dictionary was dropped, everything may have changed.
    assert_eq!(c.run("SNAPSHOT CREATE s"), "OK");
    let before = now(&mut c);
    assert_eq!(c.run("SNAPSHOT ROLLBACK s"), "OK");
    gone(c.run(&format!("CHANGES SINCE {before}")));
    c.expect(&[("USE dropped", "OK"), ("SET k v", "OK")]);
    let before = now(&mut c);
    assert_eq!(c.run("DICT DROP dropped"), "OK");
    gone(c.run(&format!("CHANGES SINCE {before}")));
}

#[test]
fn a_position_of_an_earlier_opening_is_none_of_the_next() {
    let (device, env) = (
        std::sync::Arc::new(zones::MemoryDevice::new()),
        std::sync::Arc::new(env::Simulated::new(7)),
    );
    let open = OpenOptions { memory: 8 << 20, ..OpenOptions::default() };
    let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).expect("a store");
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    let start = now(&mut c);
    assert_eq!(c.run("SET k v"), "OK");
    drop(c);
    served.server.stop();
    served.db.close().expect("closed");
    drop(served.db);
    let db = Kvdb::open(device, env, open).expect("opens").0;
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    assert!(c.run(&format!("CHANGES SINCE {start}")).starts_with("(error) NOFEED "));
}

#[test]
fn a_reader_that_waits_hears_of_the_next_commit() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    let start = now(&mut c);
    let begun = Instant::now();
    assert_eq!(since(&mut c, &start, "BLOCK 50"), (vec![], start.clone()));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    for (block, key) in [(0, "first"), (600_000, "second")] {
        let position = now(&mut other);
        c.send(format!("PING\r\nCHANGES SINCE {position} BLOCK {block}\r\n").as_bytes());
        // An earlier request is answered first.
        assert_eq!(show(&c.reply().expect("a reply")), "PONG");
        assert_eq!(other.run(&format!("SADD {key} m")), "(integer) 1");
        assert_eq!(rows(&c.reply().expect("a reply")).0, [format!("0 key {key} set")]);
    }
    // Between MULTI and EXEC nothing waits.
    let position = now(&mut c);
    c.expect(&[("MULTI", "OK")]);
    assert_eq!(c.run(&format!("CHANGES SINCE {position} BLOCK 0")), "QUEUED");
    assert_eq!(c.run("EXEC"), format!("[[\"{position}\" []]]"));
    // A client that waits forever keeps neither the server nor its connection alive.
    c.send(format!("CHANGES SINCE {position} BLOCK 0\r\n").as_bytes());
    let mut gone = served.connect();
    gone.send(format!("CHANGES SINCE {position} BLOCK 0\r\n").as_bytes());
    drop(gone);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !other.run("INFO clients").contains("connected_clients:2") {
        assert!(Instant::now() < deadline, "{}", other.run("INFO clients"));
    }
    drop(other);
    served.server.stop();
    c.0.get_mut().flush().expect("nothing to do");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let served = serve(ServerOptions::default());
    served.connect().expect(&[
        ("CHANGES SINCE", "(error) ERR syntax error"),
        ("CHANGES LATER", "(error) ERR syntax error"),
        ("CHANGES NOW 1", "(error) ERR syntax error"),
        ("CHANGES SINCE 0 COUNT", "(error) ERR syntax error"),
        ("CHANGES SINCE 0 COUNT 0", "(error) ERR value is not an integer or out of range"),
        ("CHANGES SINCE 0 BLOCK -1", "(error) ERR value is not an integer or out of range"),
        ("CHANGES SINCE 0 WAIT 1", "(error) ERR syntax error"),
    ]);
    for wrong in ["x", "-1", "+1", "1-", "1-x", "18446744073709551616", "1-2-3"] {
        let reply = served.connect().run(&format!("CHANGES SINCE {wrong}"));
        assert!(reply.starts_with("(error) ERR a position is what CHANGES"), "{wrong}: {reply}");
    }
}

#[test]
fn a_wait_for_changes_is_not_slow_and_messages_come_meanwhile() {
    let served = serve(ServerOptions::default());
    let (mut a, mut other) = (served.connect(), served.connect());
    a.run("HELLO 3");
    a.expect(&[
        ("CONFIG SET slowlog-log-slower-than 500000", "OK"),
        ("SUBSCRIBE news", "[\"subscribe\" \"news\" (integer) 1]"),
    ]);
    let position = a.run("CHANGES NOW").replace('"', "");
    a.send(format!("CHANGES SINCE {position} BLOCK 1500\r\n").as_bytes());
    let list = "CLIENT LIST";
    while !other.run(list).contains("cmd=changes ") {
        std::thread::yield_now();
    }
    other.run("PUBLISH news one");
    assert_eq!(show(&a.reply().expect("a message")), "[\"message\" \"news\" \"one\"]");
    let nothing = show(&a.reply().expect("a reply"));
    assert!(nothing.ends_with(" []]"), "{nothing}");
    assert_eq!(other.run("SLOWLOG LEN"), "(integer) 0");
}

#[test]
fn a_settled_position_is_that_of_now_and_waits_in_no_script() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let start = now(&mut c);
    assert_eq!(c.run("SET k v"), "OK");
    let settled = c.run("CHANGES SETTLED").replace('"', "");
    assert_eq!(since(&mut c, &start, ""), (vec!["0 key k string".into()], settled.clone()));
    assert_eq!(settled, now(&mut c));
    assert_eq!((c.run("MULTI"), c.run("CHANGES SETTLED")), ("OK".into(), "QUEUED".into()));
    let refused = c.run("EXEC");
    assert!(refused.contains("CHANGES SETTLED waits"), "{refused}");
}
