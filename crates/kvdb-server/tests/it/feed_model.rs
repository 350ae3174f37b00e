//! A copy that follows the store by `CHANGES` alone always equals the store. This holds after
//! random commands, transactions, reverted keys, clones, range deletions, expiry, streams and
//! rollbacks, and for any number of changes per request. `KVFS_SEEDS=n` runs n seeds,
//! `KVFS_SEED_BASE=n` sets the first seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::served::{Raw, Served, serve_db, show};
use env::{Random, Simulated};
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, ReceiveOptions};
use kvdb_server::{Limits, Reply, ServerOptions};
use zones::MemoryDevice;

/// The type and content of each key, by dictionary and key.
type Copy = BTreeMap<(String, String), String>;

const DICTIONARIES: [&str; 2] = ["0", "other"];

struct World {
    served: Served,
    clock: Arc<Simulated>,
    /// The connection that reads and follows.
    reader: Raw,
    /// Work on the store, or in a transaction.
    writers: [Raw; 2],
    position: String,
    copy: Copy,
    /// An event has happened that no list describes.
    unlisted: bool,
    /// The number of times that the copy was started again.
    begun_anew: u64,
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => show(other),
    }
}

fn key(r: &mut Random) -> String {
    format!("k{}", r.below(7))
}

/// A command of a writer.
fn command(r: &mut Random) -> String {
    let (a, b, n) = (key(r), key(r), r.below(4));
    let value = "v".repeat(r.below(12) as usize + 1);
    match r.below(40) {
        0..=3 => format!("SET {a} {value}{n}"),
        4 => format!("SET {a} {value} PX {}", r.below(30) + 1),
        5 => format!("APPEND {a} {value}"),
        6 => format!("SETRANGE {a} {} x{n}", r.below(9000)),
        7 => format!("INCR {a}"),
        8 | 9 => format!("DEL {a} {b}"),
        10 | 11 => format!("HSET {a} f{n} {value} g{n} 1"),
        12 => format!("HDEL {a} f{n} g{n}"),
        13 => format!("HINCRBY {a} g{n} 1"),
        14 | 15 => format!("SADD {a} m{n} {value}"),
        16 => format!("SPOP {a} {n}"),
        17 => format!("SMOVE {a} {b} m{n}"),
        18 => format!("SUNIONSTORE {a} {a} {b}"),
        19 | 20 => format!("ZADD {a} {n} m{n} 1 o"),
        21 => format!("ZREMRANGEBYSCORE {a} 0 {n}"),
        22 => format!("ZINCRBY {a} 1 m{n}"),
        23 | 24 => format!("RPUSH {a} {value} {n}"),
        25 => format!("LPOP {a} {n}"),
        26 => format!("LMOVE {a} {b} LEFT RIGHT"),
        27 => format!("LSET {a} 0 {value}"),
        28 => format!("LTRIM {a} 1 {n}"),
        29 | 30 => format!("RENAME {a} {b}"),
        31 => format!("COPY {a} {b} REPLACE"),
        32 => format!("PEXPIRE {a} {}", r.below(30) + 1),
        33 => format!("PERSIST {a}"),
        34 => format!("GETEX {a} PX {}", r.below(30) + 1),
        35 => format!("DELRANGE {a} {b}"),
        36 => format!("MSET {a} {value} {b} {n} {a} {n}"),
        37 => format!("BITOP NOT {a} {b}"),
        38 if n == 0 => "FLUSHDB".into(),
        39 if n == 0 => format!("DELPREFIX {a}"),
        _ => format!("SETBIT {a} {} 1", r.below(100)),
    }
}

impl World {
    fn say(&mut self, command: &str) -> String {
        self.reader.run(command)
    }

    /// Returns the current type and content of a key.
    fn read(&mut self, key: &str) -> Option<String> {
        let kind = self.say(&format!("TYPE {key}"));
        let content = match &kind[..] {
            "none" => return None,
            "string" => self.say(&format!("GET {key}")),
            "hash" => self.say(&format!("HGETALL {key}")),
            "set" => self.say(&format!("SMEMBERS {key}")),
            "zset" => self.say(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
            "list" => self.say(&format!("LRANGE {key} 0 -1")),
            other => panic!("{other}"),
        };
        let deadline = self.say(&format!("PEXPIRETIME {key}"));
        Some(format!("{kind} {content} {deadline}"))
    }

    fn keys(&mut self) -> Vec<String> {
        self.reader.send(b"KEYS *\r\n");
        let Reply::Array(keys) = self.reader.reply().expect("a reply") else { panic!("no list") };
        keys.iter().map(text).collect()
    }

    /// The whole content of the store.
    fn all(&mut self) -> Copy {
        let mut all = Copy::new();
        for dictionary in DICTIONARIES {
            assert_eq!(self.say(&format!("USE {dictionary}")), "OK");
            for key in self.keys() {
                let value = self.read(&key).expect("it was listed");
                all.insert((dictionary.into(), key), value);
            }
        }
        all
    }

    fn again(&mut self, dictionary: &str, key: &str) {
        let place = (dictionary.to_owned(), key.to_owned());
        match self.read(key) {
            Some(value) => drop(self.copy.insert(place, value)),
            None => drop(self.copy.remove(&place)),
        }
    }

    /// Updates the copy to the state of the store, and compares both.
    fn follow(&mut self, r: &mut Random) {
        // An expired key is listed when it is removed.
        while self.say("DEBUG SWEEP") != "(integer) 0" {}
        let mut looks = 0;
        loop {
            let request = format!("CHANGES SINCE {} COUNT {}\r\n", self.position, r.below(5) + 1);
            self.reader.send(request.as_bytes());
            let (next, rows) = match self.reader.reply().expect("a reply") {
                Reply::Array(parts) => {
                    let Reply::Array(rows) = &parts[1] else { panic!("{}", show(&parts[1])) };
                    (text(&parts[0]), rows.clone())
                }
                Reply::Error(error) if error.starts_with("NOFEED") => {
                    assert!(self.unlisted, "a list was lost: {error}");
                    self.position = self.say("CHANGES NOW").trim_matches('"').into();
                    self.copy = self.all();
                    self.begun_anew += 1;
                    continue;
                }
                other => panic!("{}", show(&other)),
            };
            let is_end = next == self.position && rows.is_empty();
            self.position = next;
            for row in &rows {
                let Reply::Array(row) = row else { panic!("{}", show(row)) };
                let words: Vec<String> = row.iter().map(text).collect();
                let (dictionary, first) = (&words[1], &words[3]);
                assert_eq!(self.say(&format!("USE {dictionary}")), "OK");
                if words[2] == "key" {
                    let kind = self.say(&format!("TYPE {first}"));
                    let told = if row[4] == Reply::Null { "none" } else { &words[4] };
                    assert_eq!(kind, told, "the type of {first}");
                    self.again(dictionary, first);
                } else {
                    let (end, mut within) = (&words[4], self.keys());
                    within.extend(self.copy.keys().map(|(_, key)| key.clone()));
                    within.retain(|key| key >= first && (end.is_empty() || key < end));
                    within.iter().for_each(|key| self.again(dictionary, key));
                }
            }
            if is_end {
                break;
            }
            looks += 1;
            assert!(looks < 10_000, "the list has no end");
        }
        self.unlisted = false;
        let (all, copy) = (self.all(), std::mem::take(&mut self.copy));
        let differs: Vec<_> =
            all.iter().filter(|(key, value)| copy.get(*key) != Some(value)).collect();
        let gone: Vec<_> = copy.keys().filter(|key| !all.contains_key(*key)).collect();
        assert!(differs.is_empty() && gone.is_empty(), "not told of {differs:?}, {gone:?}");
        self.copy = copy;
    }

    /// A command of a writer, which may fail by itself or because of the other writer.
    fn write(&mut self, r: &mut Random) {
        let command = command(r);
        let writer = &mut self.writers[r.below(2) as usize];
        match r.below(12) {
            0 => drop(writer.run(&format!("USE {}", DICTIONARIES[r.below(2) as usize]))),
            1 => {
                writer.run("MULTI");
                writer.run(&command);
                (0..r.below(3)).for_each(|_| drop(writer.run(&self::command(r))));
                writer.run("EXEC");
            }
            2 => {
                let begin = ["TXN BEGIN SI", "TXN BEGIN SI UNDOABLE"][r.below(2) as usize];
                let id = writer.run(begin).replace("(integer) ", "");
                writer.run(&format!("TXN JOIN {id}"));
                writer.run(&command);
            }
            3 => drop(writer.run(&format!("TXN REVERT KEY {}", key(r)))),
            4 => drop(writer.run("TXN SAVEPOINT s")),
            5 => drop(writer.run("TXN ROLLBACK s")),
            6 => {
                writer.run(["TXN COMMIT", "TXN COMMIT", "TXN ABORT"][r.below(3) as usize]);
                writer.run("TXN LEAVE");
            }
            7 => {
                writer.send(b"TXN UNDO\r\n");
                if let Reply::Array(begun) = writer.reply().expect("a reply") {
                    let id = show(&begun[0]).replace("(integer) ", "");
                    let Reply::Array(against) = &begun[3] else { panic!("{}", show(&begun[3])) };
                    let end = if against.is_empty() { "COMMIT" } else { "ABORT" };
                    writer.run(&format!("TXN {end} {id}"));
                }
            }
            _ => drop(writer.run(&command)),
        }
    }

    /// Does an operation on the store as a whole.
    fn whole(&mut self, r: &mut Random) {
        match r.below(6) {
            0 => {
                self.say("SNAPSHOT DROP s");
                self.say("SNAPSHOT CREATE s");
            }
            1 => {
                // Open transactions prevent it.
                for writer in &mut self.writers {
                    writer.run("TXN ABORT");
                    writer.run("TXN LEAVE");
                }
                self.unlisted |= self.say("SNAPSHOT ROLLBACK s") == "OK";
            }
            2 => {
                // Nothing that is done in a clone is listed.
                self.say("CLONE CREATE s c");
                for _ in 0..3 {
                    let command = command(r);
                    self.writers[0].run(&format!("CLONE USE c {command}"));
                }
                if r.one_in(2) {
                    self.say("CLONE DROP c");
                }
            }
            3 => self.served.db.flush().expect("flushed"),
            4 => {
                // A program that uses the library.
                let strings = self.served.db.open_dictionary("0").expect("there");
                strings.insert(key(r), "from the library").expect("put");
                let mut batch = kvdb::Batch::new();
                batch.delete_range(strings.id(), key(r), "k9");
                self.served.db.commit(batch, Durability::Buffered).expect("committed");
            }
            _ => {
                // A stream that another store receives changes nothing here.
                self.say("SNAPSHOT CREATE sent");
                let mut stream = Vec::new();
                let db = &self.served.db;
                if db.send("sent", None, &mut stream, None).is_ok() {
                    let other = Kvdb::in_memory();
                    let _ = other.receive(stream.as_slice(), &ReceiveOptions::default());
                }
                self.say("SNAPSHOT DROP sent");
            }
        }
    }
}

fn history(seed: u64) -> u64 {
    let mut r = Random::new(seed);
    let clock = Arc::new(Simulated::new(seed));
    let open = OpenOptions { memory: 4 << 20, zero_journal: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), clock.clone(), options).expect("a store");
    let tuple = [8, 256 << 10][r.below(2) as usize];
    let patched = [4, 16 << 10][r.below(2) as usize];
    let limits = Limits { tuple, patched, ..Limits::default() };
    let served = serve_db(db, ServerOptions { limits, ..ServerOptions::default() });
    let (mut reader, writers) = (served.connect(), [served.connect(), served.connect()]);
    assert_eq!(reader.run("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
    let position = reader.run("CHANGES").trim_matches('"').to_owned();
    let copy = Copy::new();
    let (unlisted, begun_anew) = (false, 0);
    let mut world = World { served, clock, reader, writers, position, copy, unlisted, begun_anew };
    for _ in 0..r.below(12) + 3 {
        for _ in 0..r.below(25) {
            match r.below(12) {
                0 => world.whole(&mut r),
                1 => world.clock.advance(Duration::from_millis(r.below(20))),
                _ => world.write(&mut r),
            }
        }
        world.follow(&mut r);
    }
    world.begun_anew
}

#[test]
fn a_copy_that_follows_is_the_same() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let base = number("KVFS_SEED_BASE").unwrap_or(0);
    let mut begun_anew = 0;
    for seed in base..base + number("KVFS_SEEDS").unwrap_or(60) {
        match std::panic::catch_unwind(|| history(seed)) {
            Ok(anew) => begun_anew += anew,
            Err(panic) => {
                eprintln!("KVFS_SEEDS=1 KVFS_SEED_BASE={seed} shows it again");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("begun anew {begun_anew} times");
}
