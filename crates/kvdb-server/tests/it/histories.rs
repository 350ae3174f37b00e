//! Checks random histories of clients with `adya`. `WATCH`, `MULTI` and `EXEC`, single commands,
//! and serializable transactions of several commands, even with an `EXEC` inside, must be strictly
//! serializable together. A list of the checker is either a string that commands append to or a
//! Redis list that elements are pushed or moved to. A command that reads the whole value is a read.
//! Some transactions use two connections.
//!
//! `KVFS_TRANSACTIONS=n` runs n transactions instead of the usual few, `KVFS_SEED_BASE=n` begins
//! with another seed: each run says with which one the next continues.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::history::{Attempt, Did, End, Figures, check, extent};
use crate::served::{Raw, serve, show};
use env::Random;
use kvdb::Isolation;
use kvdb_server::{Reply, ServerOptions};

const THREADS: u64 = 4;
/// The number of transactions of a life.
const LIFE: u64 = 400;
const LISTS: u64 = 8;
/// This many of the lists are strings.
const STRINGS: u64 = 4;

/// The numbers in the answer to one of the commands that read a list.
fn list(reply: &Reply) -> Vec<u64> {
    let numbers = |text: &[u8]| -> Vec<u64> {
        let text = std::str::from_utf8(text).expect("a list");
        text.split_terminator(',').map(|n| n.parse().expect("a number")).collect()
    };
    match reply {
        Reply::Null => Vec::new(),
        Reply::Bulk(text) => numbers(text),
        // The reply of a range begins with the key.
        Reply::Array(all) => {
            let values = all.iter().filter_map(|value| match value {
                Reply::Bulk(value) if value.starts_with(b"l") => None,
                Reply::Bulk(value) => Some(numbers(value)),
                other => panic!("no value: {}", show(other)),
            });
            values.flatten().collect()
        }
        other => panic!("no list: {}", show(other)),
    }
}

fn append(key: u64, number: u64) -> String {
    match key < STRINGS {
        true => format!("APPEND l{key} {number},"),
        false => format!("RPUSH l{key} {number}"),
    }
}

fn read(key: u64, random: &mut Random) -> String {
    match (key < STRINGS, random.one_in(4)) {
        (true, true) => format!("RANGE l{key} l{key}~"),
        (true, false) => format!("GET l{key}"),
        (false, true) => format!("SORT_RO l{key} BY place"),
        (false, false) => format!("LRANGE l{key} 0 -1"),
    }
}

struct Client<'a> {
    c: Raw,
    /// The command also works in some transactions.
    other: Raw,
    numbers: &'a AtomicU64,
}

impl Client<'_> {
    fn call(&mut self, command: &str) -> Reply {
        self.c.send(format!("{command}\r\n").as_bytes());
        self.c.reply().expect("a reply")
    }

    /// `Err`: the store has refused it.
    fn ask(&mut self, command: &str) -> Result<Reply, ()> {
        match self.call(command) {
            Reply::Error(e)
                if ["LOCKED", "CONFLICT", "NOTXN"].iter().any(|code| e.starts_with(code)) =>
            {
                Err(())
            }
            Reply::Error(e) => panic!("{command}: {e}"),
            reply => Ok(reply),
        }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Reads and appends by `MULTI` and `EXEC`. Returns `Ok(false)` if a watched key has changed.
    fn exec(&mut self, random: &mut Random, did: &mut Vec<Did>) -> Result<bool, ()> {
        self.ask("MULTI")?;
        let mut queued = Vec::new();
        for _ in 0..1 + random.below(4) {
            let key = random.below(LISTS);
            queued.push(if random.one_in(2) {
                Did::Read(key, Vec::new())
            } else {
                Did::Append(key, self.number())
            });
        }
        for step in &queued {
            let reply = match step {
                Did::Read(key, _) => self.call(&read(*key, random)),
                Did::Append(key, number) => self.call(&append(*key, *number)),
            };
            assert_eq!(show(&reply), "QUEUED");
        }
        match self.ask("EXEC")? {
            Reply::Null => Ok(false),
            Reply::Array(replies) => {
                for (step, reply) in queued.into_iter().zip(replies) {
                    did.push(match (step, reply) {
                        (Did::Read(key, _), reply) => Did::Read(key, list(&reply)),
                        (append, Reply::Integer(_)) => append,
                        (step, reply) => panic!("{step:?}: {}", show(&reply)),
                    });
                }
                Ok(true)
            }
            other => panic!("EXEC: {}", show(&other)),
        }
    }

    fn watched(&mut self, random: &mut Random, did: &mut Vec<Did>) -> Result<bool, ()> {
        let key = random.below(LISTS);
        self.ask(&format!("WATCH l{key}"))?;
        let found = list(&self.ask(&read(key, random))?);
        did.push(Did::Read(key, found));
        self.exec(random, did)
    }

    /// A transaction of several commands.
    fn joined(&mut self, random: &mut Random, did: &mut Vec<Did>) -> Result<bool, ()> {
        let Reply::Integer(id) = self.ask("TXN BEGIN SER TIMEOUT 0.5 ATTACHED")? else {
            panic!("no number")
        };
        self.ask(&format!("TXN JOIN {id}"))?;
        let both = random.one_in(2);
        if both {
            std::mem::swap(&mut self.c, &mut self.other);
            self.ask(&format!("TXN JOIN {id}"))?;
        }
        for _ in 0..1 + random.below(3) {
            let key = random.below(LISTS);
            if both && random.one_in(2) {
                std::mem::swap(&mut self.c, &mut self.other);
            }
            match random.below(3) {
                0 => did.push(Did::Read(key, list(&self.ask(&read(key, random))?))),
                1 => {
                    let number = self.number();
                    self.ask(&append(key, number))?;
                    did.push(Did::Append(key, number));
                }
                _ => assert!(self.exec(random, did)?, "nothing was watched"),
            }
        }
        if random.one_in(10) {
            self.ask("TXN ABORT")?;
            return Ok(false);
        }
        self.ask("TXN COMMIT").map(|_| true)
    }

    fn attempt(&mut self, thread: u64, clock: &AtomicU64, random: &mut Random) -> Attempt {
        let mut did = Vec::new();
        let from = clock.fetch_add(1, Ordering::SeqCst);
        let (kind, done) = match random.below(9) {
            0 => {
                let key = random.below(LISTS);
                let number = self.number();
                let done = self.ask(&append(key, number));
                did.push(Did::Append(key, number));
                ("append", done.map(|_| true))
            }
            8 => {
                // An element can be taken from a key that only this thread pushes to.
                let (own, key) = (format!("own{thread}"), STRINGS + random.below(LISTS - STRINGS));
                let number = self.number();
                self.call(&format!("DEL {own}"));
                let done = self
                    .ask(&format!("RPUSH {own} {number}"))
                    .and_then(|_| self.ask(&format!("BLMOVE {own} l{key} LEFT RIGHT 0")));
                did.push(Did::Append(key, number));
                ("move", done.map(|_| true))
            }
            1 => {
                let names: Vec<String> = (0..STRINGS).map(|key| format!("l{key}")).collect();
                let Ok(Reply::Array(all)) = self.ask(&format!("MGET {}", names.join(" "))) else {
                    panic!("an array")
                };
                did.extend(all.iter().zip(0..).map(|(reply, key)| Did::Read(key, list(reply))));
                ("mget", Ok(true))
            }
            2 | 3 => ("joined", self.joined(random, &mut did)),
            4 => ("exec", self.exec(random, &mut did)),
            _ => ("watch", self.watched(random, &mut did)),
        };
        let to = clock.fetch_add(1, Ordering::SeqCst);
        if done.is_err() {
            // A transaction that is still open is aborted.
            self.call("TXN ABORT");
        }
        self.call("RESET");
        std::mem::swap(&mut self.c, &mut self.other);
        self.call("RESET");
        Attempt {
            thread,
            from,
            to,
            did,
            end: if done == Ok(true) { End::Committed } else { End::Failed },
            kind,
        }
    }
}

#[test]
fn what_clients_do_is_strictly_serializable() {
    let ((transactions, first), started) = (extent(4 * LIFE), Instant::now());
    let (mut figures, mut next) = (Figures::default(), first);
    while figures.done < transactions {
        let seed = next;
        next += 1;
        let served = serve(ServerOptions::default());
        let (clock, numbers) = (AtomicU64::new(0), AtomicU64::new(0));
        let worker = |thread| {
            let mut random = Random::new(seed * THREADS + thread);
            let mut client =
                Client { c: served.connect(), other: served.connect(), numbers: &numbers };
            (0..LIFE / THREADS)
                .map(|_| client.attempt(thread, &clock, &mut random))
                .collect::<Vec<_>>()
        };
        let worker = &worker;
        let attempts: Vec<Attempt> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || worker(thread))).collect();
            threads.into_iter().flat_map(|t| t.join().expect("it came to its end")).collect()
        });
        figures.add(&attempts);
        check(Isolation::Serializable, &attempts, &format!("clients, seed {seed}"));
    }
    figures.conclude(
        "clients",
        first..next,
        started,
        &["append", "move", "mget", "joined", "exec", "watch"],
    );
}
