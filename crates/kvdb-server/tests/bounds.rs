//! Tests of the limits of `docs/resp.md`: the data that clients can pile up in the server, and the
//! errors that they get at each limit.

#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/served/mod.rs"]
mod served;

use std::io::BufRead;

use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvdb_server::{Limits, Reply, ServerOptions};
use served::{Raw, Served, serve, serve_db, show};

fn limited(limits: Limits) -> Served {
    serve(ServerOptions { limits, ..ServerOptions::default() })
}

fn queue(c: &mut Raw, commands: &[&str]) -> String {
    assert_eq!(c.run("MULTI"), "OK");
    for command in commands {
        assert_eq!(c.run(command), "QUEUED", "{command}");
    }
    c.run("EXEC")
}

#[test]
fn replies_of_exec_that_are_too_much_are_an_error_and_nothing_is_done() {
    let served = limited(Limits { whole_replies: 10_000, reply: 1000, ..Limits::default() });
    let mut c = served.connect();
    let value = "v".repeat(1000);
    for i in 0..30 {
        assert_eq!(c.run(&format!("SET {i:02} {value}")), "OK");
    }
    let most = "(error) LIMIT the replies of this EXEC, with those of others, take more than 10000 bytes; nothing of it was done";
    for commands in [
        vec!["SET k 1", "RANGE - +"],
        vec!["SET k 1", "MGET 00 01 02 03 04 05 06 07 08 09 10 11"],
        {
            let mut gets = vec!["SET k 1"];
            gets.extend(["GET 00"; 15]);
            gets
        },
    ] {
        assert_eq!(queue(&mut c, &commands), most);
        assert_eq!(
            c.run("GET k"),
            "(nil)",
            "nothing of it was done, and the connection is as it was"
        );
    }
    assert_eq!(queue(&mut c, &["SET k 1", "RANGE 00 05"]).matches("vvv").count() / 333, 5);
    assert_eq!(c.run("GET k"), "\"1\"");
    // The same holds in a joined transaction, and for lists of changes.
    let id = c.run("TXN BEGIN").trim_start_matches("(integer) ").to_owned();
    assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    assert_eq!(queue(&mut c, &["SET k 2", "RANGE - +"]), most);
    assert_eq!(c.run("GET k"), "\"1\"");
    for i in 0..300 {
        c.run(&format!("SET {i:0100} 1"));
    }
    let refused = c.run("TXN CHANGES");
    assert!(refused.starts_with("(error) LIMIT "), "{}", &refused[..100.min(refused.len())]);
    c.expect(&[("PING", "PONG"), ("TXN COMMIT", "OK")]);
    c.expect(&[("SNAPSHOT CREATE now", "OK"), ("FLUSHALL", "OK")]);
    assert!(c.run("SNAPSHOT CHANGES now").starts_with("(error) LIMIT "));
    assert_eq!(c.run("PING"), "PONG");
}

#[test]
fn watches_have_a_limit() {
    let served = limited(Limits { watches: 3, requests: 10_000, ..Limits::default() });
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("WATCH a", "OK"), ("WATCH b", "OK")]);
    b.expect(&[("WATCH c", "OK")]);
    assert!(b.run("WATCH d").starts_with("(error) LIMIT 3 WATCH are in force"));
    a.expect(&[("UNWATCH", "OK")]);
    let keys: Vec<String> = (0..100).map(|i| i.to_string()).collect();
    assert!(
        b.run(&format!("WATCH {}", keys.join(" "))).starts_with("(error) LIMIT "),
        "its keys take memory as well"
    );
    b.expect(&[
        ("WATCH d", "OK"),
        ("DISCARD", "(error) ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("EXEC", "[]"),
    ]);
    for _ in 0..10 {
        b.expect(&[("WATCH x y", "OK"), ("MULTI", "OK"), ("EXEC", "[]")]);
    }
    drop((a, b));
}

#[test]
fn open_transactions_and_savepoints_have_a_limit() {
    // A store in memory has 64 MiB.
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for i in 1..=1024 {
        assert_eq!(c.run("TXN BEGIN ATTACHED"), format!("(integer) {i}"));
    }
    assert!(c.run("TXN BEGIN").starts_with("(error) LIMIT 1024 transactions are open"));
    // Commands that are internally transactions continue.
    c.expect(&[
        ("INCR n", "(integer) 1"),
        ("WATCH n", "OK"),
        ("MULTI", "OK"),
        ("INCR n", "QUEUED"),
        ("EXEC", "[(integer) 2]"),
    ]);
    c.expect(&[("TXN JOIN 7", "OK")]);
    for _ in 0..kvdb::MAX_SAVEPOINTS {
        assert_eq!(c.run("TXN SAVEPOINT s"), "OK");
    }
    assert!(
        c.run("TXN SAVEPOINT s").starts_with("(error) LIMIT the transaction has 1024 savepoints")
    );
    let long = c.run(&format!("TXN SAVEPOINT {}", "n".repeat(300)));
    assert_eq!(long, "(error) ERR a savepoint's name has up to 256 bytes");
    c.expect(&[("TXN ABORT", "OK"), ("TXN ABORT 8", "OK")]);
    assert!(c.run("TXN BEGIN").starts_with("(integer)"));
}

#[test]
fn what_is_queued_has_a_limit() {
    let served =
        limited(Limits { request: 20_000, requests: 60_000, arguments: 100, ..Limits::default() });
    let mut clients: Vec<Raw> = (0..10).map(|_| served.connect()).collect();
    let set = format!("SET k {}", "v".repeat(5000));
    let mut refused = 0;
    for c in &mut clients {
        assert_eq!(c.run("MULTI"), "OK");
        for _ in 0..3 {
            let reply = c.run(&set);
            assert!(
                reply == "QUEUED"
                    || reply.starts_with("(error) LIMIT too many large requests at once"),
                "{reply}"
            );
            refused += usize::from(reply != "QUEUED");
        }
    }
    assert!(refused > 10, "{refused}");
    for c in &mut clients {
        let reply = c.run("EXEC");
        assert!(reply == "[OK OK OK]" || reply.starts_with("(error) EXECABORT"), "{reply}");
    }
    // All memory was released, and a single client reaches its own limit.
    let mut c = served.connect();
    c.run("MULTI");
    let replies: Vec<String> = (0..4).map(|_| c.run(&set)).collect();
    assert_eq!(replies[..3], ["QUEUED"; 3]);
    assert!(
        replies[3].starts_with("(error) LIMIT more than 20000 bytes or 100 commands"),
        "{}",
        replies[3]
    );
    c.run("DISCARD");
    c.run("MULTI");
    for i in 0..=100 {
        assert_eq!(c.run("PING") == "QUEUED", i < 100);
    }
}

/// Bytes of memory that this process uses, from `/proc`: (now, at most since it was last asked).
fn resident() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).expect("a field");
        line.split_whitespace().nth(1).expect("a number").parse::<usize>().expect("a number") << 10
    };
    let found = (field("VmRSS:"), field("VmHWM:"));
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux");
    found
}

/// The three loads that once took gigabytes, one after the other, against one budget. Run in a
/// process of its own: see below.
fn loads() {
    const MEMORY: usize = 64 << 20;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = OpenOptions { memory: MEMORY, ..OpenOptions::default() };
    let db = Kvdb::create_path(
        dir.path().join("s.kvfs"),
        CreateOptions { open, ..CreateOptions::default() },
    )
    .expect("made");
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    let megabyte = "v".repeat(1 << 20);
    for i in 0..40 {
        let request = format!(
            "*3\r\n$3\r\nSET\r\n$4\r\nbig{}\r\n$1048576\r\n{megabyte}\r\n",
            (b'A' + i) as char
        );
        c.send(request.as_bytes());
        assert_eq!(show(&c.reply().expect("a reply")), "OK");
    }
    let (before, _) = resident();

    // Replies that must be complete before they are sent, for clients that do not read them.
    let mut clients: Vec<Raw> = (0..12).map(|_| served.connect()).collect();
    for c in &mut clients {
        c.expect(&[("MULTI", "OK"), ("RANGE big bih", "QUEUED"), ("SET k 1", "QUEUED")]);
        c.send(b"EXEC\r\n");
    }
    // No reply is read before all are complete, so each keeps its memory until then.
    for c in &mut clients {
        assert!(!c.0.fill_buf().expect("a reply begins").is_empty());
    }
    let (mut whole, mut refused) = (0, 0);
    for c in &mut clients {
        match c.reply().expect("a reply") {
            Reply::Error(e) if e.starts_with("LIMIT ") => refused += 1,
            Reply::Array(replies) => {
                assert!(matches!(&replies[0], Reply::Array(all) if all.len() == 80), "all of it");
                whole += 1;
            }
            reply => panic!("{}", show(&reply)),
        }
    }
    assert!(whole > 0 && refused > 0, "{whole} whole, {refused} refused");
    drop(clients);
    let (_, peak) = resident();
    println!(
        "replies: {} MiB, then at most {} MiB; {whole} whole, {refused} refused",
        before >> 20,
        peak >> 20
    );
    // The bound adds up the reply that this test reads itself, with the bytes that its allocator
    // keeps of it; the replies; and the store's memory, which fills at the same time.
    let most = before + 2 * (41 << 20) + Limits::default().whole_replies + MEMORY + (48 << 20);
    assert!(peak < most, "{} MiB, of {} MiB", peak >> 20, most >> 20);

    // Idle transactions, each with 400 KB; they stay open.
    let (before, _) = resident();
    let value = "x".repeat(1000);
    for i in 1..=300 {
        let id = c.run("TXN BEGIN").trim_start_matches("(integer) ").to_owned();
        assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
        for j in 0..400 {
            assert_eq!(c.run(&format!("SET txn:{i}:{j} {value}")), "OK");
        }
    }
    let held: u64 = served.db.transactions().iter().map(|t| t.memory).sum();
    let (_, peak) = resident();
    println!(
        "idle: {} MiB, then at most {} MiB; {} KiB in their memtables",
        before >> 20,
        peak >> 20,
        held >> 10
    );
    assert!(
        held < (MEMORY / 16 + 300 * (8 << 10) + (64 << 10)) as u64,
        "{held} bytes of changes in memory"
    );
    assert!(peak < before + MEMORY, "{} MiB", peak >> 20);
    c.run("TXN LEAVE");

    // Transactions that do nothing.
    let (before, _) = resident();
    let mut begun = 0;
    while c.run("TXN BEGIN").starts_with("(integer)") {
        begun += 1;
        assert!(begun < 20_000, "no limit");
    }
    let (_, peak) = resident();
    println!("begun: {} MiB, then at most {} MiB with {begun} more", before >> 20, peak >> 20);
    assert!(peak < before + MEMORY / 4, "{} MiB", peak >> 20);
    assert_eq!(c.run("SET k 1"), "OK");
}

/// Memory is measured in a process that does nothing else.
#[test]
fn memory_stays_bounded_under_what_clients_pile_up() {
    if std::env::var_os("KVFS_BOUNDS_CHILD").is_some() {
        return loads();
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("this test"));
    child
        .args(["--exact", "memory_stays_bounded_under_what_clients_pile_up", "--nocapture"])
        .env("KVFS_BOUNDS_CHILD", "1");
    let output = child.output().expect("it runs");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
