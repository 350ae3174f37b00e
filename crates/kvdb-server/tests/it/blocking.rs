//! Tests of commands that wait for an element. Whatever fills a key wakes them, in the order in
//! which they came, and an element never goes to a client that has disconnected.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::served::{Raw, Served, serve, show};
use kvdb_server::ServerOptions;

/// Waits until this many clients wait.
fn until_blocked(c: &mut Raw, clients: usize) {
    let line = format!("blocked_clients:{clients}\\r");
    while !c.run("INFO clients").contains(&line) {
        std::thread::yield_now();
    }
}

fn reply(c: &mut Raw) -> String {
    show(&c.reply().expect("a reply"))
}

/// A client that waits, with this command.
fn waiting(served: &Served, other: &mut Raw, command: &str, clients: usize) -> Raw {
    let mut c = served.connect();
    c.send(format!("{command}\r\n").as_bytes());
    until_blocked(other, clients);
    c
}

#[test]
fn what_is_there_is_taken_at_once() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("RPUSH l a b c d e f g h", "(integer) 8"),
        ("BLPOP none l 0", "[\"l\" \"a\"]"),
        ("BRPOP l 0", "[\"l\" \"h\"]"),
        ("BLMOVE l m LEFT RIGHT 0", "\"b\""),
        ("BRPOPLPUSH l m 0", "\"g\""),
        ("LRANGE m 0 -1", "[\"g\" \"b\"]"),
        ("BLMPOP 0 2 none l LEFT COUNT 2", "[\"l\" [\"c\" \"d\"]]"),
        ("LMPOP 2 none l RIGHT COUNT 5", "[\"l\" [\"f\" \"e\"]]"),
        ("LMPOP 2 none l LEFT", "(nil)"),
        ("ZADD z 1 a 2 b 3 c 4 d 5 e 6 f", "(integer) 6"),
        ("BZPOPMIN none z 0", "[\"z\" \"a\" \"1\"]"),
        ("BZPOPMAX z 0", "[\"z\" \"f\" \"6\"]"),
        ("BZMPOP 0 1 z MIN COUNT 2", "[\"z\" [[\"b\" \"2\"] [\"c\" \"3\"]]]"),
        ("ZMPOP 1 z MAX COUNT 5", "[\"z\" [[\"e\" \"5\"] [\"d\" \"4\"]]]"),
        ("ZMPOP 1 z MAX", "(nil)"),
        ("EXISTS l z", "(integer) 0"),
    ]);
}

#[test]
fn requests_that_are_wrong() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.run("SET s x");
    let wrongtype = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
    for (command, want) in [
        ("BLPOP l -1", "(error) ERR timeout is negative"),
        ("BLPOP l x", "(error) ERR timeout is not a float or out of range"),
        ("BLPOP l nan", "(error) ERR timeout is not a float or out of range"),
        ("BLPOP l 1e300", "(error) ERR timeout is out of range"),
        ("BLPOP l inf", "(error) ERR timeout is out of range"),
        ("BLPOP l", "(error) ERR wrong number of arguments for 'blpop' command"),
        ("BLPOP l s 0", wrongtype),
        ("BZPOPMIN s 0", wrongtype),
        ("BLMOVE s l LEFT LEFT 0", wrongtype),
        ("BLMOVE l m LEFT UP 0", "(error) ERR syntax error"),
        ("BLMPOP 0 0 l LEFT", "(error) ERR numkeys should be greater than 0"),
        ("BLMPOP 0 2 l LEFT", "(error) ERR syntax error"),
        ("BLMPOP 0 9223372036854775807 l LEFT", "(error) ERR syntax error"),
        ("BLMPOP 0 1 l LEFT COUNT 0", "(error) ERR count should be greater than 0"),
        ("BLMPOP 0 1 l LEFT COUNT", "(error) ERR syntax error"),
        ("BZMPOP 0 1 l LEFT", "(error) ERR syntax error"),
        ("LMPOP 1 s LEFT", wrongtype),
        ("ZMPOP 1 s MIN", wrongtype),
    ] {
        assert_eq!(c.run(command), want, "{command}");
    }
}

#[test]
fn whatever_fills_the_key_wakes_who_waits_for_it() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    let started = Instant::now();
    c.expect(&[
        ("RPUSH full x", "(integer) 1"),
        ("SADD set x", "(integer) 1"),
        ("ZADD scores 1 x", "(integer) 1"),
        ("RPUSH l x", "(integer) 1"),
        ("ZADD z 1 x", "(integer) 1"),
        ("SNAPSHOT CREATE before", "OK"),
        ("DEL l z", "(integer) 2"),
    ]);
    for fill in [
        &["LPUSH l x"][..],
        &["RPUSH l x"],
        &["MULTI", "RPUSH l y", "LSET l 0 x", "EXEC"],
        &["COPY full l"],
        &["COPY full other", "RENAME other l"],
        &["LMOVE full l LEFT LEFT", "RPUSH full x"],
        &["TXN JOIN", "RPUSH l x", "TXN COMMIT"],
        &["SNAPSHOT ROLLBACK before"],
    ] {
        let mut a = waiting(&served, &mut other, "BLPOP none l 0", 1);
        run_all(&mut c, fill);
        assert_eq!(reply(&mut a), "[\"l\" \"x\"]", "{fill:?}");
    }
    c.run("DEL z");
    for fill in [
        &["ZADD z 1 x"][..],
        &["ZINCRBY z 1 x"],
        &["ZUNIONSTORE z 1 scores"],
        &["ZRANGESTORE z scores 0 -1"],
        &["ZINTERSTORE z 1 set"],
        &["COPY scores other", "RENAME other z"],
        &["TXN JOIN", "MULTI", "ZADD z 1 x", "EXEC", "TXN COMMIT"],
        &["SNAPSHOT ROLLBACK before"],
    ] {
        let mut a = waiting(&served, &mut other, "BZPOPMIN none z 0", 1);
        run_all(&mut c, fill);
        assert_eq!(reply(&mut a), "[\"z\" \"x\" \"1\"]", "{fill:?}");
    }
    // None of them was found by periodic polling.
    assert!(started.elapsed() < Duration::from_secs(60));
}

fn run_all(c: &mut Raw, commands: &[&str]) {
    for command in commands {
        let command = match *command {
            "TXN JOIN" => format!("TXN JOIN {}", c.run("TXN BEGIN").replace("(integer) ", "")),
            command => command.to_string(),
        };
        let said = c.run(&command);
        assert!(!said.starts_with("(error)"), "{command}: {said}");
    }
}

#[test]
fn what_is_not_committed_wakes_no_waiter() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    let mut a = waiting(&served, &mut other, "BLPOP l 0", 1);
    run_all(&mut c, &["MULTI", "RPUSH l x", "DISCARD"]);
    run_all(&mut c, &["TXN JOIN", "RPUSH l x", "TXN ABORT"]);
    // Elements that a transaction adds and removes again wake no client.
    run_all(&mut c, &["MULTI", "RPUSH l x", "DEL l", "EXEC"]);
    run_all(&mut c, &["SET l string", "DEL l", "SADD l member", "DEL l", "ZADD l 1 m", "DEL l"]);
    until_blocked(&mut other, 1);
    c.run("RPUSH l real");
    assert_eq!(reply(&mut a), "[\"l\" \"real\"]");
}

#[test]
fn those_who_wait_for_a_key_are_served_in_the_order_in_which_they_came() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    let mut all: Vec<Raw> = (1..=6)
        .map(|n| {
            let command = match n % 3 {
                0 => "BLPOP other l 0",
                1 => "BRPOP l 0",
                _ => "BLMPOP 0 2 l other LEFT COUNT 1",
            };
            waiting(&served, &mut other, command, n)
        })
        .collect();
    // A client that waits for a sorted set with the same name is in another queue.
    let mut scores = waiting(&served, &mut other, "BZPOPMIN l 0", 7);
    c.run("MULTI");
    (1..=3).for_each(|n| drop(c.run(&format!("RPUSH l {n}"))));
    c.run("EXEC");
    // Three of them continue. The one that pops from the right gets the newest element.
    let taken: BTreeSet<String> = all.drain(..3).map(|mut a| reply(&mut a)).collect();
    assert_eq!(taken.len(), 3);
    until_blocked(&mut other, 4);
    for n in 4..=6 {
        c.run(&format!("RPUSH l {n}"));
        let said = reply(&mut all[0]);
        assert!(said.contains(&format!("\"{n}\"")), "{n}: {said}");
        all.remove(0);
    }
    c.run("ZADD l 1 m");
    assert_eq!(reply(&mut scores), "[\"l\" \"m\" \"1\"]");
    until_blocked(&mut other, 0);
}

#[test]
fn a_client_that_comes_later_does_not_go_first() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    for round in 0..50 {
        let mut first = waiting(&served, &mut other, "BLPOP l 0", 1);
        c.send(format!("RPUSH l {round}\r\nBLPOP l 0.001\r\n").as_bytes());
        assert_eq!(reply(&mut c), "(integer) 1");
        assert_eq!(reply(&mut c), "(nil)");
        assert_eq!(reply(&mut first), format!("[\"l\" \"{round}\"]"));
    }
}

#[test]
fn time_is_up_or_another_client_ends_the_wait() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    let begun = Instant::now();
    assert_eq!(c.run("BLPOP l 0.05"), "(nil)");
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(c.run("BLMOVE l m LEFT LEFT 0.01"), "(nil)");
    let id = c.run("CLIENT ID").replace("(integer) ", "");
    c.send(b"BLPOP l 0\r\n");
    until_blocked(&mut other, 1);
    assert!(other.run(&format!("CLIENT LIST ID {id}")).contains("flags=b "));
    other.expect(&[(&format!("CLIENT UNBLOCK {id}"), "(integer) 1")]);
    assert_eq!(reply(&mut c), "(nil)");
    other.expect(&[
        (&format!("CLIENT UNBLOCK {id}"), "(integer) 0"),
        ("CLIENT UNBLOCK 12345", "(integer) 0"),
    ]);
    c.send(b"BZPOPMIN l 0\r\n");
    until_blocked(&mut other, 1);
    other.expect(&[(&format!("CLIENT UNBLOCK {id} ERROR"), "(integer) 1")]);
    assert_eq!(reply(&mut c), "(error) UNBLOCKED client unblocked via CLIENT UNBLOCK");
    assert_eq!(c.run("PING"), "PONG");
}

#[test]
fn a_client_that_is_gone_takes_nothing() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    // One client disconnects, one is killed, and one has disconnected with unread data.
    let a = waiting(&served, &mut other, "BLPOP l 0", 1);
    let mut b = waiting(&served, &mut other, "CLIENT SETNAME b\r\nBLPOP l 0", 2);
    let d = waiting(&served, &mut other, "BLPOP l 0\r\nPING\r\nPING", 3);
    drop((a, d));
    until_blocked(&mut other, 1);
    let list = other.run("CLIENT LIST");
    let line = list.split("\\n").find(|line| line.contains("name=b ")).expect("it is shown");
    let id = line.trim_start_matches('"').split(' ').next().expect("a number").replace("id=", "");
    other.expect(&[(&format!("CLIENT KILL ID {id}"), "(integer) 1")]);
    until_blocked(&mut other, 0);
    assert_eq!(reply(&mut b), "OK");
    assert!(b.reply().is_err());
    c.expect(&[("RPUSH l x", "(integer) 1"), ("LLEN l", "(integer) 1")]);
}

#[test]
fn between_multi_and_exec_nothing_is_waited_for() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("MULTI", "OK"),
        ("BLPOP l 0", "QUEUED"),
        ("BLMOVE l m LEFT LEFT 0", "QUEUED"),
        ("BZPOPMIN z 0", "QUEUED"),
        ("RPUSH l x", "QUEUED"),
        ("BLMPOP 0 1 l LEFT", "QUEUED"),
        ("EXEC", "[(nil) (nil) (nil) (integer) 1 [\"l\" [\"x\"]]]"),
    ]);
    // A client does not wait either where nothing can change.
    c.expect(&[("SNAPSHOT CREATE s", "OK"), ("SNAPSHOT USE s", "OK")]);
    assert!(c.run("BLPOP l 0").starts_with("(error) READONLY "));
}

#[test]
fn in_a_transaction_others_of_it_are_waited_for() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut other) = (served.connect(), served.connect(), served.connect());
    let join = |c: &mut Raw, id: &str| assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    for isolation in ["SI", "SER"] {
        let id = other.run(&format!("TXN BEGIN {isolation}")).replace("(integer) ", "");
        join(&mut a, &id);
        join(&mut b, &id);
        a.send(b"BLPOP l 0\r\n");
        until_blocked(&mut other, 1);
        if isolation == "SI" {
            // A transaction does not see elements that are committed outside of it.
            assert_eq!(other.run("RPUSH l outside"), "(integer) 1");
            assert_eq!(other.run("DEL l"), "(integer) 1");
        }
        assert_eq!(b.run("RPUSH m x"), "(integer) 1");
        assert_eq!(b.run("LMOVE m l LEFT LEFT"), "\"x\"");
        assert_eq!(reply(&mut a), "[\"l\" \"x\"]");
        // When it ends, the wait does.
        a.send(b"BLPOP l 0\r\n");
        until_blocked(&mut other, 1);
        assert_eq!(b.run("TXN ABORT"), "OK");
        assert!(reply(&mut a).starts_with("(error) NOTXN "));
        a.run("TXN LEAVE");
    }
}

#[test]
fn messages_come_while_a_client_waits() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    let mut a = served.connect();
    a.run("HELLO 3");
    a.run("SUBSCRIBE c");
    a.send(b"BLPOP l 0\r\n");
    until_blocked(&mut other, 1);
    assert_eq!(other.run("PUBLISH c m"), "(integer) 1");
    assert_eq!(reply(&mut a), "[\"message\" \"c\" \"m\"]");
    other.run("RPUSH l x");
    assert_eq!(reply(&mut a), "[\"l\" \"x\"]");
}

#[test]
fn a_server_that_stops_ends_the_wait() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    let mut a = waiting(&served, &mut other, "BLPOP l 0", 1);
    served.server.stop();
    assert!(a.reply().is_err());
}

/// Producers and consumers of a queue in all ways at once: everything arrives once.
#[test]
fn everything_that_is_pushed_arrives_once() {
    const EACH: u64 = 200;
    let served = serve(ServerOptions { durable: true, ..ServerOptions::default() });
    let producer = |number: u64| {
        let mut c = served.connect();
        for i in 0..EACH {
            let item = format!("{number}-{i}");
            match i % 5 {
                0 => run_all(&mut c, &["MULTI", &format!("LPUSH jobs {item}"), "EXEC"]),
                1 => run_all(
                    &mut c,
                    &[&format!("LPUSH own{number} {item}"), &format!("RPOPLPUSH own{number} jobs")],
                ),
                2 => {
                    // A transaction may have a conflict with a consumer.
                    let id = c.run("TXN BEGIN").replace("(integer) ", "");
                    run_all(&mut c, &[&format!("TXN JOIN {id}"), &format!("LPUSH jobs {item}")]);
                    if c.run("TXN COMMIT").starts_with("(error)") {
                        c.run(&format!("LPUSH jobs {item}"));
                    }
                }
                _ => run_all(&mut c, &[&format!("LPUSH jobs {item}")]),
            }
        }
    };
    let consumer = |kind: u64| {
        let (mut c, mut got) = (served.connect(), Vec::new());
        let command = ["BRPOP jobs 2", "BRPOPLPUSH jobs done 2", "BLMPOP 2 1 jobs RIGHT COUNT 3"];
        loop {
            let said = c.run(command[kind as usize]);
            if said == "(nil)" {
                return got;
            }
            assert!(!said.starts_with("(error)"), "{said}");
            let items = said.split(['"', ' ', '[', ']']);
            got.extend(items.filter(|word| word.contains('-')).map(str::to_string));
        }
    };
    let (producer, consumer) = (&producer, &consumer);
    let got: Vec<String> = std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..3).map(|kind| scope.spawn(move || consumer(kind))).collect();
        (0..2).for_each(|number| drop(scope.spawn(move || producer(number))));
        consumers.into_iter().flat_map(|c| c.join().expect("it took")).collect()
    });
    let all: BTreeSet<&String> = got.iter().collect();
    assert_eq!(got.len(), all.len(), "one has come twice");
    assert_eq!(all.len() as u64, 2 * EACH);
}

#[test]
fn a_time_that_is_next_to_nothing_is_not_for_ever() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.0.get_ref().set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    c.expect(&[("BLPOP none 0.0000000001", "(nil)"), ("BZMPOP 1e-300 1 none MIN", "(nil)")]);
}

#[test]
fn who_waits_in_a_clone_hears_that_it_is_gone() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    other.expect(&[
        ("SET k v", "OK"),
        ("SNAPSHOT CREATE before", "OK"),
        ("CLONE CREATE before copy", "OK"),
    ]);
    let mut waiting: Vec<Raw> = Vec::new();
    for clients in 1..=2 {
        let mut c = served.connect();
        c.0.get_ref().set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        c.expect(&[("CLONE USE copy", "OK")]);
        c.send(b"BLPOP queue 0\r\n");
        until_blocked(&mut other, clients);
        waiting.push(c);
    }
    // A program may drop the clone as well.
    served.db.drop_branch("copy").expect("dropped");
    for c in &mut waiting {
        assert!(reply(c).starts_with("(error) NOSNAPSHOT "), "it waits for nothing");
    }
}

#[test]
fn of_keys_that_one_transaction_fills_the_first_one_is_taken() {
    let served = serve(ServerOptions::default());
    let mut other = served.connect();
    for (first, second) in [("a", "b"), ("b", "a")] {
        for _ in 0..5 {
            let mut waits = waiting(&served, &mut other, "BLPOP a b 0", 1);
            other.expect(&[
                ("MULTI", "OK"),
                (&format!("RPUSH {first} x"), "QUEUED"),
                (&format!("RPUSH {second} y"), "QUEUED"),
                (&format!("RPUSH {first} z"), "QUEUED"),
                ("EXEC", "[(integer) 1 (integer) 1 (integer) 2]"),
            ]);
            assert_eq!(reply(&mut waits), format!("[\"{first}\" \"x\"]"));
            other.expect(&[("DEL a b", "(integer) 2")]);
        }
    }
    // An element that an earlier transaction added and removed does not count.
    for _ in 0..20 {
        let mut waits = waiting(&served, &mut other, "BLPOP a b 0", 1);
        other.expect(&[
            ("MULTI", "OK"),
            ("RPUSH b x", "QUEUED"),
            ("DEL b", "QUEUED"),
            ("EXEC", "[(integer) 1 (integer) 1]"),
            ("MULTI", "OK"),
            ("RPUSH a x", "QUEUED"),
            ("RPUSH b y", "QUEUED"),
            ("EXEC", "[(integer) 1 (integer) 1]"),
        ]);
        assert_eq!(reply(&mut waits), "[\"a\" \"x\"]");
        other.expect(&[("DEL a b", "(integer) 1")]);
    }
}
