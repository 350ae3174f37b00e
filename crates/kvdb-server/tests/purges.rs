//! Memory stays bounded while collections much larger than the store's memory are deleted, copied,
//! stored and read whole, and while one of many small elements is restored. All of this is one
//! test, since memory is measured for the whole process.

#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/served/mod.rs"]
mod served;

use std::io::{BufRead, Read};

use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvdb_server::{Reply, ServerOptions};
use served::{Raw, serve_db};

/// The memory budget of the store, and the bytes that a command may take in addition.
const MEMORY: usize = 16 << 20;
const BESIDE: u64 = 48 << 20;
/// Elements, and bytes of each: 100 MiB.
const ELEMENTS: usize = 51_200;
const LENGTH: usize = 2048;
/// Elements of a few bytes, whose changes take many times their bytes.
const SMALL: usize = 400_000;

fn bytes_of(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find(|line| line.starts_with(what)).expect("a line of it");
    let digits = line.split_whitespace().nth(1).expect("a number");
    digits.parse::<u64>().expect("a number") << 10
}

/// Reads a reply and forgets it; returns how many strings and numbers it has.
fn pass(c: &mut Raw) -> usize {
    let mut line = String::new();
    c.0.read_line(&mut line).expect("a line");
    let (kind, rest) = line.trim_end().split_at(1);
    match kind {
        "*" | "~" => (0..rest.parse().expect("a number")).map(|_| pass(c)).sum(),
        "$" => {
            let mut left = rest.parse::<u64>().expect("a length") + 2;
            let mut piece = [0; 4096];
            while left > 0 {
                let some = left.min(4096) as usize;
                c.0.read_exact(&mut piece[..some]).expect("a piece");
                left -= some as u64;
            }
            1
        }
        ":" | "+" => 1,
        _ => panic!("{}", line.trim_end()),
    }
}

struct Purged {
    c: Raw,
}

impl Purged {
    /// Runs a command, and sees what memory it takes; returns how many elements the reply has.
    fn run(&mut self, command: &str) -> usize {
        let before = bytes_of("VmRSS:");
        std::fs::write("/proc/self/clear_refs", "5").expect("the most is forgotten");
        self.c.send(format!("{command}\r\n").as_bytes());
        let found = pass(&mut self.c);
        let more = bytes_of("VmHWM:").saturating_sub(before);
        println!("{command}: {} MiB more", more >> 20);
        assert!(more < BESIDE, "{command} takes {} MiB", more >> 20);
        found
    }
    fn number(&mut self, command: &str) -> usize {
        let said = self.c.run(command);
        said.trim_start_matches("(integer) ").parse().unwrap_or_else(|_| panic!("{said}"))
    }
    /// Runs a command that replies with this number.
    fn counts(&mut self, command: &str, number: usize) {
        let before = bytes_of("VmRSS:");
        std::fs::write("/proc/self/clear_refs", "5").expect("the most is forgotten");
        assert_eq!(self.number(command), number, "{command}");
        let more = bytes_of("VmHWM:").saturating_sub(before);
        println!("{command}: {} MiB more", more >> 20);
        assert!(more < BESIDE, "{command} takes {} MiB", more >> 20);
    }
}

/// Adds elements of a few bytes to a collection, and returns its payload.
fn payload_of_small(c: &mut Raw, command: &str) -> Vec<u8> {
    for start in (0..SMALL).step_by(25_000) {
        let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        for i in start..start + 25_000 {
            words.push(format!("{i:06}"));
            if command.starts_with("HSET") {
                words.push(String::new());
            }
        }
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|w| request += &format!("${}\r\n{w}\r\n", w.len()));
        c.send(request.as_bytes());
        pass(c);
    }
    c.send(b"DUMP small\r\n");
    match c.reply().expect("a reply") {
        Reply::Bulk(payload) => payload,
        other => panic!("{command}: {other:?}"),
    }
}

fn element(number: usize) -> String {
    format!("{number:08}{}", "e".repeat(LENGTH - 8))
}

#[test]
fn collections_beyond_memory_are_purged_and_copied_within_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = OpenOptions { memory: MEMORY, ..OpenOptions::default() };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create_path(dir.path().join("s.kvfs"), create).expect("made");
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    for start in (0..ELEMENTS).step_by(256) {
        let some = start..(start + 256).min(ELEMENTS);
        let elements: Vec<String> = some.clone().map(element).collect();
        let scored: Vec<String> = some.map(|i| format!("{i} {}", element(ELEMENTS - i))).collect();
        for command in [
            format!("SADD set {}", elements.join(" ")),
            format!("RPUSH list {}", elements.join(" ")),
            format!("ZADD zset {}", scored.join(" ")),
        ] {
            // An inline command is short.
            let words: Vec<&str> = command.split(' ').collect();
            let mut request = format!("*{}\r\n", words.len());
            words.iter().for_each(|w| request += &format!("${}\r\n{w}\r\n", w.len()));
            c.send(request.as_bytes());
            pass(&mut c);
        }
    }
    let mut p = Purged { c };
    let half = ELEMENTS / 2;
    for (command, elements) in [
        ("SMEMBERS set", ELEMENTS),
        ("SUNION set other", ELEMENTS),
        ("LRANGE list 0 -1", ELEMENTS),
        ("ZRANGE zset 0 -1", ELEMENTS),
        ("ZREVRANGE zset 0 -1 WITHSCORES", 2 * ELEMENTS),
        ("ZRANGEBYSCORE zset -inf +inf", ELEMENTS),
    ] {
        assert_eq!(p.run(command), elements, "{command}");
    }
    for (command, number) in [
        ("COPY set set2", 1),
        ("COPY list list2", 1),
        ("COPY zset zset2", 1),
        ("SUNIONSTORE set3 set set2", ELEMENTS),
        ("SINTERSTORE set4 set set2", ELEMENTS),
        ("SDIFFSTORE set5 set nothing", ELEMENTS),
        ("ZUNIONSTORE zset3 2 zset zset2", ELEMENTS),
        ("ZINTERSTORE zset4 2 zset zset2", ELEMENTS),
        ("ZRANGESTORE zset5 zset 0 -1", ELEMENTS),
        ("SCARD set3", ELEMENTS),
        ("ZCARD zset5", ELEMENTS),
        ("ZREMRANGEBYRANK zset 10 -11", ELEMENTS - 20),
        ("ZCARD zset", 20),
        ("ZREMRANGEBYSCORE zset2 (10 +inf", ELEMENTS - 11),
        ("ZCARD zset2", 11),
        ("DEL zset4", 1),
    ] {
        p.counts(command, number);
    }
    assert_eq!(p.run(&format!("ZPOPMIN zset3 {half}")), 2 * half);
    p.counts("ZCARD zset3", ELEMENTS - half);
    assert_eq!(p.run(&format!("ZPOPMAX zset3 {ELEMENTS}")), 2 * (ELEMENTS - half));
    p.counts("EXISTS zset3", 0);
    assert_eq!(p.run(&format!("SPOP set2 {half}")), half);
    p.counts("SCARD set2", ELEMENTS - half);
    assert_eq!(p.run(&format!("SPOP set3 {ELEMENTS}")), ELEMENTS);
    p.counts("EXISTS set3", 0);
    p.counts(&format!("LINSERT list BEFORE {} middle", element(half)), ELEMENTS + 1);
    assert_eq!(p.c.run(&format!("LINDEX list {half}")), "\"middle\"");
    assert_eq!(p.run(&format!("LPOP list {half}")), half);
    assert_eq!(p.c.run("LINDEX list 0"), "\"middle\"");
    assert_eq!(p.run(&format!("RPOP list {ELEMENTS}")), ELEMENTS + 1 - half);
    p.counts("EXISTS list", 0);
    assert_eq!(p.run("LTRIM list2 5 9"), 1);
    p.counts("LLEN list2", 5);
    for command in ["SADD small", "HSET small", "RPUSH small"] {
        let payload = payload_of_small(&mut p.c, command);
        assert!(payload.len() >= 10 * SMALL, "{}", payload.len());
        let begin =
            format!("*4\r\n$7\r\nRESTORE\r\n$5\r\nagain\r\n$1\r\n0\r\n${}\r\n", payload.len());
        let request = [begin.as_bytes(), &payload, b"\r\n"].concat();
        let before = bytes_of("VmRSS:");
        std::fs::write("/proc/self/clear_refs", "5").expect("the most is forgotten");
        p.c.send(&request);
        assert_eq!(pass(&mut p.c), 1);
        let more = bytes_of("VmHWM:").saturating_sub(before);
        println!("RESTORE after {command}: {} MiB more", more >> 20);
        assert!(more < BESIDE, "RESTORE after {command} takes {} MiB", more >> 20);
        let count = match command {
            "SADD small" => "SCARD again",
            "HSET small" => "HLEN again",
            _ => "LLEN again",
        };
        p.counts(count, SMALL);
        p.counts("DEL small again", 2);
    }
    // In a transaction, too.
    let id = p.number("TXN BEGIN");
    assert_eq!(p.c.run(&format!("TXN JOIN {id}")), "OK");
    p.counts("ZREMRANGEBYRANK zset5 0 399", 400);
    p.counts("ZCARD zset5", ELEMENTS - 400);
    // There a quarter of the memory is the most that one command changes.
    let refused = p.c.run("ZREMRANGEBYRANK zset5 0 25599");
    assert!(refused.starts_with("(error) LIMIT "), "{refused}");
    p.counts("ZCARD zset5", ELEMENTS - 400);
    assert_eq!(p.c.run(&format!("TXN COMMIT {id}")), "OK");
    p.counts("ZCARD zset5", ELEMENTS - 400);
}
