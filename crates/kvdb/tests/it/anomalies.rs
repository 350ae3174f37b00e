//! The anomalies of the Hermitage list, on keys. Each test shows whether an isolation level forbids
//! an anomaly, and by which error or wait.
//!
//! The store begins with x=10 and y=20, as Hermitage's table does. `script` describes how scripts
//! are read. The steps are
//!
//! - `T1 put k v`, `T1 delete k`, `T1 clear` (all keys), `T1 abort`
//! - `T1 get k -> v`, or `nothing`
//! - `T1 scan -> k=v k=v` (all keys), or `nothing`
//! - `T1 commit`, or `-> conflict k k` with the keys, or `-> conflict` over a range
//! - `-> locked`: refused for another's lock, because that one is older and took this one's,
//!   or held it for too long
//! - `plain put k v`, `plain ingest k v`, `plain get k`: what belongs to no transaction; it waits
//!   for no other here, but is refused

use crate::script;
use std::collections::BTreeMap;

use crate::script::{LONG, Stage, Step};
use bytes::Bytes;
use kvdb::{
    DictionaryId, Durability, Error, Isolation, Kvdb, Transaction, TransactionOptions,
    without_lock_waits,
};

use Isolation::{Serializable, Snapshot};

struct World {
    db: Kvdb,
    dict: DictionaryId,
    isolation: Isolation,
    transactions: BTreeMap<String, Transaction>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn tuples(tuples: Vec<(Bytes, Bytes)>) -> String {
    let all: Vec<String> = tuples.iter().map(|(k, v)| format!("{}={}", text(k), text(v))).collect();
    if all.is_empty() { "nothing".into() } else { all.join(" ") }
}

fn outcome(result: kvdb::Result<String>) -> String {
    match result {
        Ok(text) => text,
        Err(Error::Conflict { keys }) => {
            let keys: Vec<String> = keys.iter().map(|(_, key)| text(key)).collect();
            format!("conflict {}", keys.join(" ")).trim().to_owned()
        }
        Err(Error::Locked(_)) => "locked".into(),
        Err(e) => format!("error: {e}"),
    }
}

/// One step of a transaction.
fn step(t: &Transaction, dict: DictionaryId, verb: &str, args: &[String]) -> kvdb::Result<String> {
    let done = String::new();
    match (verb, args) {
        ("put", [key, value]) => t.put(dict, key.clone(), value.clone()).map(|()| done),
        ("delete", [key]) => t.delete(dict, key.clone()).map(|()| done),
        ("clear", []) => t.delete_range(dict, "", "zz").map(|()| done),
        ("get", [key]) => Ok(t.get(dict, key.as_bytes())?.map_or("nothing".into(), |v| text(&v))),
        ("scan", []) => t.scan(dict, b"", b"", usize::MAX).map(tuples),
        ("commit", []) => t.commit(Durability::Buffered).map(|()| done),
        ("abort", []) => {
            t.abort();
            Ok(done)
        }
        _ => panic!("no step: {verb} {args:?}"),
    }
}

/// Does a step that belongs to no transaction.
fn plain(db: &Kvdb, dict: DictionaryId, verb: &str, args: &[String]) -> kvdb::Result<String> {
    match (verb, args) {
        ("put", [key, value]) => without_lock_waits(|| {
            db.put(dict, key.as_bytes(), value.as_bytes(), Durability::Buffered)
        })
        .map(|()| String::new()),
        ("ingest", [key, value]) => {
            without_lock_waits(|| db.ingest(dict, [(key.clone(), value.clone())]))
                .map(|_| String::new())
        }
        ("get", [key]) => Ok(db.get(dict, key.as_bytes())?.map_or("nothing".into(), |v| text(&v))),
        _ => panic!("no step: {verb} {args:?}"),
    }
}

impl World {
    fn new(isolation: Isolation) -> World {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").unwrap().id();
        db.put(dict, b"x", b"10", Durability::Buffered).unwrap();
        db.put(dict, b"y", b"20", Durability::Buffered).unwrap();
        World { db, dict, isolation, transactions: BTreeMap::new() }
    }
}

impl Stage for World {
    fn begin(&mut self, who: &str) {
        let options = TransactionOptions {
            isolation: self.isolation,
            lock_timeout: LONG,
            ..TransactionOptions::default()
        };
        self.transactions.insert(who.into(), self.db.begin_with(options).unwrap());
    }

    fn step(&self, who: &str, verb: &str, args: &[String]) -> Step {
        let (db, dict, verb, args) = (self.db.clone(), self.dict, verb.to_owned(), args.to_vec());
        if who == "plain" {
            return Box::new(move || outcome(plain(&db, dict, &verb, &args)));
        }
        let t = self.transactions[who].clone();
        Box::new(move || outcome(step(&t, dict, &verb, &args)))
    }

    fn waits(&self, who: &str) -> bool {
        let id = self.transactions[who].id();
        self.db.transactions().iter().any(|info| info.id == id && info.waits_for.is_some())
    }

    fn now(&self) -> String {
        tuples(self.db.view().scan(self.dict, b"", b"", usize::MAX).unwrap())
    }
}

fn play(isolation: Isolation, script: &str) {
    script::play(&mut World::new(isolation), &format!("{isolation:?}"), script);
}

/// G0, dirty write: two transactions' writes of x and y are interleaved.
#[test]
fn g0_writes_of_two_transactions_do_not_interleave() {
    play(
        Snapshot,
        "begin T1 T2
         T1 put x 11
         T2 put x 12
         T1 put y 21
         T1 commit
         now x=11 y=21
         T2 put y 22
         T2 commit -> conflict x y
         now x=11 y=21",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 put x 11
         T2 put x 12 -> waits
         T1 put y 21
         T1 commit
         T2 goes on
         now x=11 y=21
         T2 put y 22
         T2 commit
         now x=12 y=22",
    );
    // The younger was first: the older takes over.
    play(
        Serializable,
        "begin T1 T2
         T2 put x 12
         T1 put x 11
         T2 put y 22 -> locked
         T1 put y 21
         T1 commit
         T2 commit -> locked
         now x=11 y=21",
    );
}

/// G1a, aborted read: a transaction reads a value that was never committed.
#[test]
fn g1a_what_is_aborted_is_never_read() {
    play(
        Snapshot,
        "begin T1 T2
         T1 put x 101
         T2 get x -> 10
         T2 scan -> x=10 y=20
         T1 abort
         T2 get x -> 10
         T2 commit
         now x=10 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 put x 101
         T2 get x -> waits
         T1 abort
         T2 goes on -> 10
         T2 scan -> x=10 y=20
         T2 commit
         now x=10 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T2 put x 101
         T1 scan -> x=10 y=20
         T2 commit -> locked
         T1 commit
         now x=10 y=20",
    );
}

/// G1b, intermediate read: a transaction reads a value that its writer replaced before it
/// committed.
#[test]
fn g1b_what_is_replaced_before_its_commit_is_never_read() {
    play(
        Snapshot,
        "begin T1 T2
         T1 put x 101
         T2 get x -> 10
         T1 put x 11
         T1 commit
         T2 get x -> 10
         T2 commit
         now x=11 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 put x 101
         T2 get x -> waits
         T1 put x 11
         T1 commit
         T2 goes on -> 11
         T2 commit",
    );
}

/// G1c, circular information flow: two transactions each read what the other wrote.
#[test]
fn g1c_two_transactions_do_not_both_see_each_other() {
    play(
        Snapshot,
        "begin T1 T2
         T1 put x 11
         T2 put y 22
         T1 get y -> 20
         T2 get x -> 10
         T1 commit
         T2 commit
         now x=11 y=22",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 put x 11
         T2 put y 22
         T1 get y -> 20
         T2 get x -> locked
         T1 commit
         T2 commit -> locked
         now x=11 y=20",
    );
}

/// OTV, observed transaction vanishes: a reader sees some writes of a transaction and not the
/// others.
#[test]
fn otv_a_transaction_is_seen_whole_or_not_at_all() {
    play(
        Snapshot,
        "begin T1 T2 T3
         T1 put x 11
         T1 put y 19
         T2 put x 12
         T1 commit
         T3 get x -> 10
         T2 put y 18
         T3 get y -> 20
         T2 commit -> conflict x y
         T3 get y -> 20
         T3 get x -> 10
         T3 commit
         now x=11 y=19",
    );
    play(
        Snapshot,
        "begin T1
         T1 put x 11
         T1 put y 19
         T1 commit
         begin T2 T3
         T2 put x 12
         T2 put y 18
         T3 get x -> 11
         T2 commit
         T3 get y -> 19
         T3 commit
         now x=12 y=18",
    );
    play(
        Serializable,
        "begin T1 T2 T3
         T1 put x 11
         T1 put y 19
         T2 put x 12 -> waits
         T1 commit
         T2 goes on
         T3 get x -> waits
         T2 put y 18
         T2 commit
         T3 goes on -> 12
         T3 get y -> 18
         T3 get x -> 12
         T3 commit
         now x=12 y=18",
    );
}

/// PMP, predicate-many-preceders: the result of a predicate changes while the transaction runs.
#[test]
fn pmp_a_range_stays_as_it_was_read() {
    play(
        Snapshot,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 put z 30
         T2 commit
         T1 scan -> x=10 y=20
         T1 get z -> nothing
         T1 commit
         now x=10 y=20 z=30",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 put z 30 -> waits
         T1 scan -> x=10 y=20
         T1 get z -> nothing
         T1 commit
         T2 goes on
         T2 commit
         now x=10 y=20 z=30",
    );
    // The reader is the younger transaction.
    play(
        Serializable,
        "begin T1 T2
         T2 scan -> x=10 y=20
         T1 put z 30
         T2 scan -> locked
         T1 commit
         now x=10 y=20 z=30",
    );
}

/// PMP with writes: one transaction changes a whole range and another one deletes it.
#[test]
fn pmp_a_range_is_not_deleted_from_under_its_writer() {
    play(
        Snapshot,
        "begin T1 T2
         T1 put x 20
         T1 put y 30
         T2 get y -> 20
         T2 clear
         T1 commit
         T2 commit -> conflict
         now x=20 y=30",
    );
    // A key that is put into a deleted range in between is a conflict as well.
    play(
        Snapshot,
        "begin T1 T2
         T1 clear
         T2 put z 30
         T2 commit
         T1 commit -> conflict
         now x=10 y=20 z=30",
    );
    play(
        Snapshot,
        "begin T1 T2
         T1 put z 30
         T2 clear
         T2 commit
         T1 commit -> conflict
         now nothing",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 put x 20
         T1 put y 30
         T2 clear -> waits
         T1 commit
         T2 goes on
         T2 scan -> nothing
         T2 commit
         now nothing",
    );
}

/// P4, lost update: two transactions read a value, and both write a value computed from it.
#[test]
fn p4_no_update_is_lost() {
    play(
        Snapshot,
        "begin T1 T2
         T1 get x -> 10
         T2 get x -> 10
         T1 put x 11
         T2 put x 12
         T1 commit
         T2 commit -> conflict x
         now x=11 y=20",
    );
    // The first to commit wins, not the first to begin; and a deletion is an update.
    play(
        Snapshot,
        "begin T1 T2
         T1 get x -> 10
         T2 delete x
         T2 commit
         T1 put x 11
         T1 commit -> conflict x
         now y=20",
    );
    // A value that was changed and changed back is a conflict nevertheless.
    play(
        Snapshot,
        "begin T1
         T1 get x -> 10
         plain put x 11
         plain put x 10
         T1 put x 12
         T1 commit -> conflict x
         now x=10 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T2 get x -> 10
         T1 put x 11
         T2 put x 12 -> locked
         T1 commit
         now x=11 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T2 get x -> 10
         T2 put x 12 -> waits
         T1 put x 11
         T2 goes on -> locked
         T1 commit
         now x=11 y=20",
    );
}

/// G-single, read skew: x is read before a transaction and y after it.
#[test]
fn g_single_a_reader_does_not_stand_on_both_sides_of_a_commit() {
    play(
        Snapshot,
        "begin T1 T2
         T1 get x -> 10
         T2 get x -> 10
         T2 get y -> 20
         T2 put x 12
         T2 put y 18
         T2 commit
         T1 get y -> 20
         T1 commit
         now x=12 y=18",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T2 get x -> 10
         T2 get y -> 20
         T2 put x 12 -> waits
         T1 get y -> 20
         T1 commit
         T2 goes on
         T2 put y 18
         T2 commit
         now x=12 y=18",
    );
    // The reader is the younger one: it reads before, and must not read after.
    play(
        Serializable,
        "begin T1 T2
         T2 get x -> 10
         T1 put x 12
         T1 put y 18
         T1 commit
         T2 get y -> locked
         now x=12 y=18",
    );
}

/// G-single with predicates: one transaction reads a range, and another one changes it.
#[test]
fn g_single_a_range_and_a_key_are_read_as_of_one_moment() {
    play(
        Snapshot,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 put x 12
         T2 delete y
         T2 commit
         T1 get x -> 10
         T1 get y -> 20
         T1 commit",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T2 clear -> waits
         T1 scan -> x=10 y=20
         T1 commit
         T2 goes on
         T2 commit
         now nothing",
    );
}

/// G-single with a write: a transaction deletes a key that was changed since it read the key.
#[test]
fn g_single_a_deletion_does_not_follow_a_read_of_something_older() {
    play(
        Snapshot,
        "begin T1 T2
         T1 get x -> 10
         T2 put x 12
         T2 put y 18
         T2 commit
         T1 delete y
         T1 commit -> conflict y
         now x=12 y=18",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T2 put y 18
         T2 put x 12 -> waits
         T1 delete y
         T2 goes on -> locked
         T1 commit
         now x=10",
    );
}

/// G2-item, write skew: each transaction writes a key that the other has read. Snapshot isolation
/// allows this anomaly and no other.
#[test]
fn g2_item_write_skew_is_for_snapshot_isolation_alone() {
    play(
        Snapshot,
        "begin T1 T2
         T1 get x -> 10
         T1 get y -> 20
         T2 get x -> 10
         T2 get y -> 20
         T1 put x 11
         T2 put y 21
         T1 commit
         T2 commit
         now x=11 y=21",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T1 get y -> 20
         T2 get x -> 10
         T2 get y -> 20
         T1 put x 11
         T2 put y 21 -> locked
         T1 commit
         T2 commit -> locked
         now x=11 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 get x -> 10
         T2 get y -> 20
         T2 put x 12 -> waits
         T1 commit
         T2 goes on
         T2 commit
         now x=12 y=20",
    );
}

/// G2, anti-dependency cycle: each transaction adds a key that the other's predicate would have
/// found.
#[test]
fn g2_phantoms_of_two_are_for_snapshot_isolation_alone() {
    play(
        Snapshot,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 scan -> x=10 y=20
         T1 put v 30
         T2 put w 42
         T1 commit
         T2 commit
         now v=30 w=42 x=10 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 scan -> x=10 y=20
         T1 put v 30
         T2 put w 42 -> locked
         T1 commit
         now v=30 x=10 y=20",
    );
}

/// G2 with two edges: a read-only transaction sees an impossible order of two others.
#[test]
fn g2_a_reader_makes_no_difference_to_serializable_writers() {
    play(
        Snapshot,
        "begin T1
         T1 scan -> x=10 y=20
         begin T2
         T2 put y 25
         T2 commit
         begin T3
         T3 scan -> x=10 y=25
         T3 commit
         T1 put x 0
         T1 commit
         now x=0 y=25",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 put y 25 -> waits
         begin T3
         T3 scan -> waits
         T1 put x 0
         T1 commit
         T2 goes on
         T2 commit
         T3 goes on -> x=0 y=25
         T3 commit
         now x=0 y=25",
    );
}

/// Writes outside of transactions are transactions of one step.
#[test]
fn plain_writes_respect_transactions() {
    play(
        Snapshot,
        "begin T1
         T1 get x -> 10
         T1 put y 21
         plain put x 11
         T1 get x -> 10
         T1 commit
         now x=11 y=21",
    );
    play(
        Snapshot,
        "begin T1
         T1 put x 12
         plain put x 11
         T1 commit -> conflict x
         now x=11 y=20",
    );
    // The keys that a serializable transaction has read do not change. Writers of other keys
    // continue.
    play(
        Serializable,
        "begin T1
         T1 get x -> 10
         plain put x 11 -> locked
         plain get x -> 10
         plain put y 21
         T1 get y -> 21
         T1 commit
         plain put x 11
         now x=11 y=21",
    );
    play(
        Serializable,
        "begin T1
         T1 scan -> x=10 y=20
         plain put z 30 -> locked
         plain ingest z 30 -> locked
         T1 put x 11
         plain get x -> 10
         T1 abort
         plain ingest z 30
         now x=10 y=20 z=30",
    );
}
