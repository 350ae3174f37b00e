//! Tests clients of one server under the schedules of many seeds. They raise counters by `INCR`,
//! by `WATCH` with `MULTI`, under a lock that `SETNX` or `WATCH` takes, while a watched gate is
//! open, in joined transactions, as fields of a hash, and under a lock that expires. At the end
//! each counter must equal the number of increments that were acknowledged to clients, and no
//! increment may have passed the gate once it was closed. `KVFS_SEEDS=n` runs n seeds,
//! `KVFS_SEED=n` runs only seed n, and `KVFS_SEED_BASE=n` begins with seed n.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use env::{Random, Scheduled, schedule, thread};
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use zones::MemoryDevice;

use crate::client::Client;
use crate::commands;
use crate::limits::Limits;
use crate::reply::Reply;
use crate::session::Shared;

mod halves;
mod one_transaction;

const CLIENTS: u64 = 3;
const ATTEMPTS: u64 = 4;

/// The number of acknowledged increments of each counter.
type Raised = BTreeMap<&'static str, i64>;

struct Worker {
    id: u64,
    client: Client,
    random: Random,
    raised: Raised,
    /// The value of the gated counter when this client closed the gate.
    closed: Option<i64>,
}

impl Worker {
    fn ask(&mut self, words: &[&str]) -> Reply {
        ask(&mut self.client, words)
    }

    /// Runs a command that must not be refused.
    fn told(&mut self, words: &[&str]) -> Reply {
        match self.ask(words) {
            Reply::Error(error) => panic!("{words:?}: {error}"),
            reply => reply,
        }
    }

    fn number(&mut self, key: &str) -> i64 {
        number(&self.told(&["GET", key]))
    }

    /// Runs `EXEC`. Returns `false` if it was aborted because of other clients.
    fn exec(&mut self) -> bool {
        match self.ask(&["EXEC"]) {
            Reply::Array(replies) => {
                assert!(
                    !replies.iter().any(|reply| matches!(reply, Reply::Error(_))),
                    "{replies:?}"
                );
                true
            }
            Reply::Null => false,
            Reply::Error(error) if is_locked(&error) => false,
            other => panic!("EXEC says {other:?}"),
        }
    }

    fn raise(&mut self, counter: &'static str) {
        *self.raised.entry(counter).or_default() += 1;
    }

    fn increment(&mut self) {
        match self.ask(&["INCR", "a"]) {
            Reply::Integer(_) => self.raise("a"),
            Reply::Error(error) if is_locked(&error) => {}
            other => panic!("INCR says {other:?}"),
        }
    }

    /// Reads and sets a counter, unless another client has changed it in between.
    fn watch(&mut self) {
        self.told(&["WATCH", "a"]);
        let next = (self.number("a") + 1).to_string();
        self.told(&["MULTI"]);
        self.told(&["SET", "a", &next]);
        if self.exec() {
            self.raise("a");
        }
    }

    /// Takes a lock and then raises, in single commands, a counter that only the holder of the
    /// lock changes.
    fn lock(&mut self) {
        let id = self.id.to_string();
        let mine = if self.random.one_in(2) {
            self.told(&["SETNX", "lock", &id]) == Reply::Integer(1)
        } else {
            self.told(&["WATCH", "lock"]);
            let free = self.told(&["GET", "lock"]) == Reply::Null;
            self.told(&["MULTI"]);
            self.told(&["SET", "lock", &id]);
            if free {
                self.exec()
            } else {
                self.told(&["DISCARD"]);
                false
            }
        };
        if mine {
            let next = (self.number("locked") + 1).to_string();
            self.told(&["SET", "locked", &next]);
            self.raise("locked");
            assert_eq!(self.told(&["DEL", "lock"]), Reply::Integer(1), "the lock of {id}");
        }
    }

    /// Raises a counter if the gate is open, or closes the gate.
    fn pass(&mut self) {
        if self.random.one_in(4) {
            if self.told(&["SETNX", "gate", "closed"]) == Reply::Integer(1) {
                self.closed = Some(self.number("passed"));
            }
            return;
        }
        self.told(&["WATCH", "gate"]);
        let open = self.told(&["GET", "gate"]) == Reply::Null;
        self.told(&["MULTI"]);
        self.told(&["INCR", "passed"]);
        if !open {
            self.told(&["DISCARD"]);
        } else if self.exec() {
            self.raise("passed");
        }
    }

    /// Raises two counters in one `MULTI`, and reads both in another one.
    fn together(&mut self) {
        for command in ["INCR", "GET"] {
            self.told(&["MULTI"]);
            self.told(&[command, "left"]);
            self.told(&[command, "right"]);
            let Reply::Array(both) = self.told(&["EXEC"]) else { panic!("nothing was watched") };
            assert_eq!(number(&both[0]), number(&both[1]), "{command} of both");
        }
        self.raise("left");
        self.raise("right");
    }

    /// Adds a field to a hash for each increment, in single commands and in transactions. The
    /// field names of each client are unique, so the transactions do not conflict.
    fn fields(&mut self) {
        let field = format!("{}-{}", self.id, self.raised.get("fields").copied().unwrap_or(0));
        let joined = self.random.one_in(2).then(|| match self.told(&["TXN", "BEGIN", "SI"]) {
            Reply::Integer(id) => id.to_string(),
            other => panic!("TXN BEGIN says {other:?}"),
        });
        if let Some(id) = &joined {
            self.told(&["TXN", "JOIN", id]);
        }
        assert_eq!(self.told(&["HSET", "hash", &field, "v"]), Reply::Integer(1));
        let done = joined.is_none_or(|id| {
            let committed = !matches!(self.ask(&["TXN", "COMMIT", &id]), Reply::Error(_));
            self.told(&["TXN", "LEAVE"]);
            committed
        });
        if done {
            self.raise("fields");
        }
        // The length of the hash counts the fields of all clients, so it is never less than the
        // number of fields of this client.
        let Reply::Integer(len) = self.told(&["HLEN", "hash"]) else { panic!("no length") };
        assert!(len >= self.raised.get("fields").copied().unwrap_or(0));
    }

    /// Takes a lock that expires or is released. Only one client holds it at a time.
    fn lease(&mut self) {
        let id = self.id.to_string();
        if self.told(&["SET", "lease", &id, "NX", "PX", "60000"]) == Reply::Status("OK".into()) {
            assert_eq!(self.told(&["GET", "lease"]), Reply::Bulk(id.into_bytes()));
            let next = (self.number("leased") + 1).to_string();
            self.told(&["SET", "leased", &next]);
            self.raise("leased");
            let last = if self.random.one_in(2) { "DEL" } else { "PEXPIRE" };
            let words = [last, "lease", "0"];
            let words = if last == "DEL" { &words[..2] } else { &words[..] };
            assert_eq!(self.told(words), Reply::Integer(1));
        }
    }

    /// Raises a counter in a transaction, which may conflict with other clients.
    fn transaction(&mut self) {
        let begin = if self.random.one_in(2) { "SI" } else { "SER" };
        let id = match self.told(&["TXN", "BEGIN", begin]) {
            Reply::Integer(id) => id.to_string(),
            Reply::Bulk(id) => String::from_utf8(id).expect("a number"),
            Reply::Status(id) => id,
            other => panic!("TXN BEGIN says {other:?}"),
        };
        self.told(&["TXN", "JOIN", &id]);
        let raised = !matches!(self.ask(&["INCR", "a"]), Reply::Error(_));
        match self.ask(&["TXN", "COMMIT", &id]) {
            Reply::Error(_) => drop(self.ask(&["TXN", "ABORT", &id])),
            _ if raised => self.raise("a"),
            _ => {}
        }
        drop(self.ask(&["TXN", "LEAVE"]));
    }

    fn run(mut self) -> (Raised, Option<i64>) {
        for _ in 0..ATTEMPTS {
            match self.random.below(11) {
                0 => self.increment(),
                1 | 2 => self.watch(),
                3 => self.lock(),
                4 => self.together(),
                5 | 6 => self.pass(),
                7 | 8 => self.fields(),
                9 => self.lease(),
                _ => self.transaction(),
            }
        }
        (self.raised, self.closed)
    }
}

/// Returns whether a serializable transaction has held the key for the whole time that a command
/// waits. Under a schedule any wait may time out.
fn is_locked(error: &str) -> bool {
    error.starts_with("LOCKED ")
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Null => 0,
        Reply::Integer(number) => *number,
        Reply::Bulk(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("a number")
        }
        other => panic!("no number: {other:?}"),
    }
}

fn ask(client: &mut Client, words: &[&str]) -> Reply {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.call(&words).expect("a reply")
}

/// Returns the shared state of a server with a small store, whose threads are scheduled by a
/// seed.
fn shared_with(limits: Limits) -> Arc<Shared> {
    let open = OpenOptions {
        memory: 1 << 20,
        zero_journal: false,
        merge_threads: 1,
        ..OpenOptions::default()
    };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db =
        Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Scheduled), options).expect("a store");
    Arc::new(Shared::new(db, limits, None, false, commands::metrics()))
}

fn shared() -> Arc<Shared> {
    shared_with(Limits::default())
}

fn clients(seed: u64) -> Raised {
    let shared = shared();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let random = Random::new(seed.wrapping_mul(CLIENTS).wrapping_add(id));
            let worker = Worker {
                id,
                client: Client::of(shared.clone()),
                random,
                raised: Raised::new(),
                closed: None,
            };
            thread::Builder::new()
                .name(format!("client {id}"))
                .spawn(move || worker.run())
                .expect("a thread")
        })
        .collect();
    let (mut raised, mut closed) = (Raised::new(), None);
    for thread in threads {
        let (by_one, closed_by_one) = thread.join().expect("a client");
        for (counter, by) in by_one {
            *raised.entry(counter).or_default() += by;
        }
        closed = closed.or(closed_by_one);
    }
    let mut client = Client::of(shared);
    for (counter, by) in &raised {
        let command: [&[u8]; 2] = match *counter {
            "fields" => [b"HLEN", b"hash"],
            counter => [b"GET", counter.as_bytes()],
        };
        let holds = number(&client.call(&command).expect("a reply"));
        assert_eq!(holds, *by, "counter {counter}");
    }
    if let Some(closed) = closed {
        assert_eq!(
            raised.get("passed").copied().unwrap_or(0),
            closed,
            "some have passed the closed gate"
        );
    }
    raised
}

fn seeds(usual: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("KVFS_SEED") {
        return seed..seed + 1;
    }
    let base = number("KVFS_SEED_BASE").unwrap_or(0);
    base..base + number("KVFS_SEEDS").unwrap_or(usual)
}

#[test]
fn no_client_loses_what_another_has_raised_whatever_the_schedule() {
    let (mut points, mut all) = (0, Raised::new());
    for seed in seeds(200) {
        let done = schedule::run(seed, move || clients(seed))
            .unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
        points += done.points;
        for (counter, by) in done.value {
            *all.entry(counter).or_default() += by;
        }
    }
    println!("{points} scheduling points; raised: {all:?}");
}

/// Fills a queue by all commands that can fill it, while two consumers wait for elements without
/// a timeout.
fn queue(seed: u64) -> Vec<String> {
    let shared = shared();
    let consumers: Vec<_> = (0..2)
        .map(|number| {
            let mut client = Client::of(shared.clone());
            thread::Builder::new().name(format!("consumer {number}")).spawn(move || {
                let took = (0..ATTEMPTS).map(|_| {
                    match ask(&mut client, &["BLPOP", "none", "queue", "0"]) {
                        Reply::Array(pair) => pair[1].clone(),
                        other => panic!("BLPOP says {other:?}"),
                    }
                });
                took.collect::<Vec<_>>()
            })
        })
        .collect();
    let (mut client, mut random) = (Client::of(shared), Random::new(seed));
    for number in 0..2 * ATTEMPTS {
        let item = number.to_string();
        match random.below(4) {
            0 => {
                ask(&mut client, &["MULTI"]);
                ask(&mut client, &["RPUSH", "queue", &item]);
                ask(&mut client, &["EXEC"]);
            }
            1 => {
                ask(&mut client, &["RPUSH", "own", &item]);
                ask(&mut client, &["LMOVE", "own", "queue", "LEFT", "RIGHT"]);
            }
            2 => {
                let Reply::Integer(id) = ask(&mut client, &["TXN", "BEGIN"]) else {
                    panic!("no transaction")
                };
                ask(&mut client, &["TXN", "JOIN", &id.to_string()]);
                ask(&mut client, &["RPUSH", "queue", &item]);
                let lost = matches!(ask(&mut client, &["TXN", "COMMIT"]), Reply::Error(_));
                ask(&mut client, &["TXN", "LEAVE"]);
                if lost {
                    ask(&mut client, &["RPUSH", "queue", &item]);
                }
            }
            _ => drop(ask(&mut client, &["RPUSH", "queue", &item])),
        }
    }
    let mut took = Vec::new();
    for consumer in consumers {
        for item in consumer.expect("a thread").join().expect("a consumer") {
            let Reply::Bulk(item) = item else { panic!("no item: {item:?}") };
            took.push(String::from_utf8_lossy(&item).into_owned());
        }
    }
    took
}

#[test]
fn none_that_waits_for_an_element_is_left_asleep_whatever_the_schedule() {
    for seed in seeds(200) {
        let mut took = schedule::run(seed, move || queue(seed))
            .unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"))
            .value;
        took.sort();
        let all: Vec<String> = (0..2 * ATTEMPTS).map(|number| number.to_string()).collect();
        assert_eq!(took, all, "KVFS_SEED={seed}");
    }
}

/// A transaction repeatedly puts three keys of different types, while another client deletes them
/// by ranges that end at the last key or before it. Either all of the keys exist, or none.
fn emptied(seed: u64) -> u64 {
    let shared = shared_with(Limits { tuple: 10, ..Limits::default() });
    // This creates the types dictionary with some content.
    ask(&mut Client::of(shared.clone()), &["HSET", "b", "field", "v"]);
    let mut putting = Client::of(shared.clone());
    let putter = thread::Builder::new().name("putter".into()).spawn(move || {
        let mut put = 0;
        for _ in 0..ATTEMPTS {
            let Reply::Integer(id) = ask(&mut putting, &["TXN", "BEGIN"]) else {
                panic!("no transaction")
            };
            let id = id.to_string();
            ask(&mut putting, &["TXN", "JOIN", &id]);
            ask(&mut putting, &["SET", "a", "short"]);
            ask(&mut putting, &["HSET", "b", "field", "value"]);
            ask(&mut putting, &["SET", "z", "a-long-string"]);
            put += u64::from(ask(&mut putting, &["TXN", "COMMIT", &id]) != Reply::Null);
            ask(&mut putting, &["TXN", "LEAVE"]);
        }
        put
    });
    let mut client = Client::of(shared);
    let mut random = Random::new(seed);
    for _ in 0..ATTEMPTS {
        let words: &[&str] = match random.below(4) {
            0 => &["FLUSHDB"],
            1 => &["FLUSHALL"],
            2 => &["DELRANGE", "-", "+"],
            _ => &["DELRANGE", "a", "zz"],
        };
        let done = ask(&mut client, words);
        assert_eq!(done, Reply::Status("OK".into()), "{words:?}");
        for words in [&["MULTI"][..], &["EXISTS", "a", "b", "z"]] {
            ask(&mut client, words);
        }
        let Reply::Array(there) = ask(&mut client, &["EXEC"]) else { panic!("nothing is watched") };
        let all_or_none = [Reply::Integer(0), Reply::Integer(3)];
        assert!(all_or_none.contains(&there[0]), "after {words:?} there are {:?}", there[0]);
    }
    putter.expect("a thread").join().expect("a client")
}

#[test]
fn a_range_that_is_deleted_takes_all_of_a_transaction_or_nothing() {
    for seed in seeds(200) {
        schedule::run(seed, move || emptied(seed))
            .unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
    }
}
