//! The anomalies of the Hermitage list, on files, and on a file and a key together. Each test shows
//! whether an isolation level forbids an anomaly, and by which error or wait. `stage` defines the
//! form of a script and plays it.

mod stage;

use crate::world::{USER, World};
use kvdb::{Durability, Isolation, without_lock_waits};
use kvfs::{Fs, ROOT, SetAttr, ViewId, Views};
use stage::{play, play_as_written};

use Isolation::{Serializable, Snapshot};

const FILES: &str = "x=10 y=20";
const MIXED: &str = "x=10 #y=20";

/// G0, dirty write: two transactions' writes of x and y are interleaved.
#[test]
fn g0_writes_of_two_transactions_do_not_interleave() {
    for write in ["write", "hold"] {
        let script = "begin T1 T2
             T1 write x 11
             T2 write x 12
             T1 write y 21
             T1 commit
             now x=11 y=21
             T2 write y 22
             T2 commit -> conflict x y
             now x=11 y=21";
        play(Snapshot, &script.replace("write", write));
    }
    play(
        Serializable,
        "begin T1 T2
         T1 write x 11
         T2 write x 12 -> waits
         T1 write y 21
         T1 commit
         T2 goes on
         now x=11 y=21
         T2 write y 22
         T2 commit
         now x=12 y=22",
    );
    // The younger was first: the older takes over.
    play(
        Serializable,
        "begin T1 T2
         T2 write x 12
         T1 write x 11
         T2 write y 22 -> locked
         T1 write y 21
         T1 commit
         T2 commit -> over
         now x=11 y=21",
    );
    // A file that is only in memory is not locked against readers, but its writer has read it.
    play_as_written(
        Serializable,
        MIXED,
        "begin T1 T2
         T1 hold x 11
         T2 hold x 12
         T1 write #y 21
         T2 commit -> waits
         T1 commit
         T2 goes on -> locked
         now x=11 #y=21",
    );
}

/// G1a, aborted read: a transaction reads a value that was never committed.
#[test]
fn g1a_what_is_aborted_is_never_read() {
    for write in ["write", "hold"] {
        let script = "begin T1 T2
             T1 write x 101
             T1 make z 30
             T2 read x -> 10
             T2 scan -> x=10 y=20
             T1 abort
             T2 read x -> 10
             T2 read z -> nothing
             T2 commit
             now x=10 y=20";
        play(Snapshot, &script.replace("write", write));
    }
    play(
        Serializable,
        "begin T1 T2
         T1 write x 101
         T2 read x -> waits
         T1 abort
         T2 goes on -> 10
         T2 scan -> x=10 y=20
         T2 commit
         now x=10 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T2 write x 101
         T1 scan -> x=10 y=20
         T2 commit -> over
         T1 commit
         now x=10 y=20",
    );
    // Covers a created name, a removed one and a moved one.
    for (change, name, found) in
        [("make z 30", "z", "nothing"), ("remove x", "x", "10"), ("rename x z", "x", "10")]
    {
        play_as_written(
            Serializable,
            MIXED,
            &format!(
                "begin T1 T2
                 T1 {change}
                 T2 read {name} -> waits
                 T1 abort
                 T2 goes on -> {found}
                 T2 scan -> x=10 #y=20
                 T2 commit"
            ),
        );
    }
}

/// G1b, intermediate read: a transaction reads a value that its writer replaced before it
/// committed.
#[test]
fn g1b_what_is_replaced_before_its_commit_is_never_read() {
    play(
        Snapshot,
        "begin T1 T2
         T1 write x 101
         T2 read x -> 10
         T1 write x 11
         T1 commit
         T2 read x -> 10
         T2 commit
         now x=11 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 write x 101
         T2 read x -> waits
         T1 write x 11
         T1 commit
         T2 goes on -> 11
         T2 commit",
    );
    // A name that exists only in the middle of the transaction.
    play_as_written(
        Serializable,
        MIXED,
        "begin T1 T2
         T1 make z 30
         T2 list -> waits
         T1 rename z x
         T1 commit
         T2 goes on -> x
         T2 read x -> 30
         T2 commit",
    );
}

/// G1c, circular information flow: two transactions each read what the other wrote.
#[test]
fn g1c_two_transactions_do_not_both_see_each_other() {
    play(
        Snapshot,
        "begin T1 T2
         T1 write x 11
         T2 write y 22
         T1 read y -> 20
         T2 read x -> 10
         T1 commit
         T2 commit
         now x=11 y=22",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 write x 11
         T2 write y 22
         T1 read y -> 20
         T2 read x -> locked
         T1 commit
         T2 commit -> over
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
         T1 write x 11
         T1 write y 19
         T2 write x 12
         T1 commit
         T3 read x -> 10
         T2 write y 18
         T3 read y -> 20
         T2 commit -> conflict x y
         T3 read y -> 20
         T3 read x -> 10
         T3 commit
         now x=11 y=19",
    );
    play(
        Snapshot,
        "begin T1
         T1 write x 11
         T1 write y 19
         T1 commit
         begin T2 T3
         T2 write x 12
         T2 write y 18
         T3 read x -> 11
         T2 commit
         T3 read y -> 19
         T3 commit
         now x=12 y=18",
    );
    play(
        Serializable,
        "begin T1 T2 T3
         T1 write x 11
         T1 write y 19
         T2 write x 12 -> waits
         T1 commit
         T2 goes on
         T3 read x -> waits
         T2 write y 18
         T2 commit
         T3 goes on -> 12
         T3 read y -> 18
         T3 read x -> 12
         T3 commit
         now x=12 y=18",
    );
}

/// PMP, predicate-many-preceders: the result of a predicate changes while the transaction runs.
#[test]
fn pmp_a_listing_stays_as_it_was_read() {
    for z in ["z", "#z"] {
        play(
            Snapshot,
            &format!(
                "begin T1 T2
                 T1 scan -> x=10 y=20
                 T2 make {z} 30
                 T2 commit
                 T1 scan -> x=10 y=20
                 T1 read {z} -> nothing
                 T1 commit
                 now x=10 y=20 {z}=30"
            ),
        );
        play(
            Serializable,
            &format!(
                "begin T1 T2
                 T1 scan -> x=10 y=20
                 T2 make {z} 30 -> waits
                 T1 scan -> x=10 y=20
                 T1 read {z} -> nothing
                 T1 commit
                 T2 goes on
                 T2 commit
                 now x=10 y=20 {z}=30"
            ),
        );
        // The reader is the younger transaction.
        play(
            Serializable,
            &format!(
                "begin T1 T2
                 T2 scan -> x=10 y=20
                 T1 make {z} 30
                 T2 scan -> locked
                 T1 commit
                 now x=10 y=20 {z}=30"
            ),
        );
    }
    // The same with names alone, and with names that are removed.
    for (change, after) in [
        ("make z 30", "x=10 y=20 z=30"),
        ("remove x", "y=20"),
        ("rename x z", "y=20 z=10"),
        ("rename x y", "y=10"),
    ] {
        play_as_written(
            Snapshot,
            FILES,
            &format!(
                "begin T1 T2
                 T1 list -> x y
                 T2 {change}
                 T2 commit
                 T1 list -> x y
                 T1 scan -> x=10 y=20
                 T1 commit
                 now {after}"
            ),
        );
        play_as_written(
            Serializable,
            FILES,
            &format!(
                "begin T1 T2
                 T1 list -> x y
                 T2 {change} -> waits
                 T1 list -> x y
                 T1 commit
                 T2 goes on
                 T2 commit
                 now {after}"
            ),
        );
    }
    // A name that was looked up and does not exist.
    play_as_written(
        Serializable,
        FILES,
        "begin T1 T2
         T1 read z -> nothing
         T2 rename x z -> waits
         T1 read z -> nothing
         T1 commit
         T2 goes on
         T2 commit
         now y=20 z=10",
    );
}

/// PMP with writes: one transaction changes everything and another one removes it.
#[test]
fn pmp_nothing_is_removed_from_under_its_writer() {
    play(
        Snapshot,
        "begin T1 T2
         T1 write x 20
         T1 write y 30
         T2 read y -> 20
         T2 clear
         T1 commit
         T2 commit -> conflict
         now x=20 y=30",
    );
    play(
        Snapshot,
        "begin T1 T2
         T1 write x 20
         T1 write y 30
         T2 clear
         T2 commit
         T1 commit -> conflict x y
         now nothing",
    );
    // Keys are removed as a range, files one by one: a new key is a conflict, a new name is none.
    play_as_written(
        Snapshot,
        MIXED,
        "begin T1 T2
         T1 clear
         T2 make #z 30
         T2 commit
         T1 commit -> conflict
         now x=10 #y=20 #z=30",
    );
    play_as_written(
        Snapshot,
        MIXED,
        "begin T1 T2
         T1 clear
         T2 make z 30
         T2 commit
         T1 commit
         now z=30",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 write x 20
         T1 write y 30
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
    for write in ["write", "hold"] {
        let script = "begin T1 T2
             T1 read x -> 10
             T2 read x -> 10
             T1 write x 11
             T2 write x 12
             T1 commit
             T2 commit -> conflict x
             now x=11 y=20";
        play(Snapshot, &script.replace("write", write));
        // A value that was changed and changed back is a conflict nevertheless.
        let script = "begin T1
             T1 read x -> 10
             plain write x 11
             plain write x 10
             T1 write x 12
             T1 commit -> conflict x
             now x=10 y=20";
        play(Snapshot, &script.replace("write", write));
    }
    // The first to commit wins, not the first to begin; and a removal is an update.
    play(
        Snapshot,
        "begin T1 T2
         T1 read x -> 10
         T2 remove x
         T2 commit
         T1 write x 11
         T1 commit -> conflict x
         now y=20",
    );
    // A conflict on the key also aborts the change of the file, and the reverse.
    play(
        Snapshot,
        "begin T1 T2
         T1 write x 11
         T1 write y 21
         T2 write y 22
         T2 commit
         T1 commit -> conflict y
         now x=10 y=22",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 read x -> 10
         T2 read x -> 10
         T1 write x 11
         T2 write x 12 -> locked
         T1 commit
         now x=11 y=20",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 read x -> 10
         T2 read x -> 10
         T2 write x 12 -> waits
         T1 write x 11
         T2 goes on -> locked
         T1 commit
         now x=11 y=20",
    );
    play_as_written(
        Serializable,
        MIXED,
        "begin T1 T2
         T1 read x -> 10
         T2 read x -> 10
         T1 hold x 11
         T2 hold x 12
         T1 commit
         T2 commit -> over
         now x=11 #y=20",
    );
}

/// P4 on names: both transactions create the same name, or both move the same file.
#[test]
fn p4_no_name_is_lost() {
    play_as_written(
        Snapshot,
        MIXED,
        "begin T1 T2
         T1 read z -> nothing
         T2 read z -> nothing
         T1 make z 1
         T2 make z 2
         T2 write #y 22
         T1 commit
         T2 commit -> conflict file
         now x=10 #y=20 z=1",
    );
    play_as_written(
        Snapshot,
        MIXED,
        "begin T1 T2
         T1 rename x a
         T2 rename x b
         T2 write #y 22
         T1 commit
         T2 commit -> conflict file
         now a=10 #y=20",
    );
    // Replaced in two ways: by a rename over it, and by a write to it.
    play_as_written(
        Snapshot,
        FILES,
        "begin T1 T2
         T1 write x 11
         T2 rename y x
         T2 commit
         T1 commit -> conflict file
         now x=20",
    );
    play_as_written(
        Serializable,
        MIXED,
        "begin T1 T2
         T1 rename x a
         T2 rename x b -> waits
         T1 commit
         T2 goes on -> error: no such file or directory
         T2 make b 30
         T2 commit
         now a=10 b=30 #y=20",
    );
    play_as_written(
        Serializable,
        MIXED,
        "begin T1 T2
         T1 read z -> nothing
         T2 read z -> nothing
         T1 make z 1
         T2 make z 2 -> locked
         T1 commit
         now x=10 #y=20 z=1",
    );
}

/// G-single, read skew: x is read before a transaction and y after it.
#[test]
fn g_single_a_reader_does_not_stand_on_both_sides_of_a_commit() {
    play(
        Snapshot,
        "begin T1 T2
         T1 read x -> 10
         T2 read x -> 10
         T2 read y -> 20
         T2 write x 12
         T2 write y 18
         T2 commit
         T1 read y -> 20
         T1 commit
         now x=12 y=18",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 read x -> 10
         T2 read x -> 10
         T2 read y -> 20
         T2 write x 12 -> waits
         T1 read y -> 20
         T1 commit
         T2 goes on
         T2 write y 18
         T2 commit
         now x=12 y=18",
    );
    // The reader is the younger one: it reads before, and must not read after.
    play(
        Serializable,
        "begin T1 T2
         T2 read x -> 10
         T1 write x 12
         T1 write y 18
         T1 commit
         T2 read y -> locked
         now x=12 y=18",
    );
    // A step outside of any transaction counts as a transaction of one step.
    play(
        Snapshot,
        "begin T1
         T1 read x -> 10
         plain write x 12
         plain write y 18
         T1 read y -> 20
         T1 commit
         now x=12 y=18",
    );
}

/// G-single with predicates: one transaction lists names, and another one changes them.
#[test]
fn g_single_names_content_and_keys_are_read_as_of_one_moment() {
    play(
        Snapshot,
        "begin T1 T2
         T1 scan -> x=10 y=20
         T2 write x 12
         T2 remove y
         T2 commit
         T1 read x -> 10
         T1 read y -> 20
         T1 commit",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 read x -> 10
         T1 read y -> 20
         T2 clear -> waits
         T1 scan -> x=10 y=20
         T1 commit
         T2 goes on
         T2 commit
         now nothing",
    );
}

/// G-single with writes: a transaction that read x before another one's commit must not write y
/// after it, if the other one removed y because of x.
#[test]
fn g_single_a_writer_does_not_stand_on_both_sides_of_a_commit() {
    play(
        Snapshot,
        "begin T1 T2
         T1 read x -> 10
         T2 scan -> x=10 y=20
         T2 write x 12
         T2 write y 18
         T2 commit
         T1 remove y
         T1 commit -> conflict y
         now x=12 y=18",
    );
    play(
        Serializable,
        "begin T1 T2
         T1 read x -> 10
         T2 scan -> x=10 y=20
         T2 write x 12 -> waits
         T1 remove y
         T2 goes on -> locked
         T1 commit
         now x=10",
    );
}

/// G2-item, write skew on single files and keys: each transaction reads both, and each writes a
/// different one.
#[test]
fn g2_item_snapshots_allow_write_skew_and_locks_do_not() {
    play(
        Snapshot,
        "begin T1 T2
         T1 read x -> 10
         T1 read y -> 20
         T2 read x -> 10
         T2 read y -> 20
         T1 write x 11
         T2 write y 21
         T1 commit
         T2 commit
         now x=11 y=21",
    );
    for write in ["write", "hold"] {
        let script = "begin T1 T2
             T1 read x -> 10
             T1 read y -> 20
             T2 read x -> 10
             T2 read y -> 20
             T1 write x 11
             T2 commit -> over
             T1 commit
             now x=11 y=20";
        play(Serializable, script);
        let script = "begin T1 T2
             T1 read x -> 10
             T1 read y -> 20
             T2 read x -> 10
             T2 read y -> 20
             T1 write x 11
             T2 write y 21 -> locked
             T1 commit
             now x=11 y=20";
        if write == "write" {
            play(Serializable, script);
        }
    }
    play_as_written(
        Serializable,
        FILES,
        "begin T1 T2
         T1 read y -> 20
         T2 read x -> 10
         T1 hold x 11
         T2 hold y 21
         T1 commit
         T2 commit -> over
         now x=11 y=20",
    );
}

/// G2, write skew on predicates: both transactions list what exists, and add to it.
#[test]
fn g2_snapshots_allow_phantom_skew_and_locks_do_not() {
    for (v, w) in [("v", "w"), ("#v", "w"), ("v", "#w")] {
        play(
            Snapshot,
            &format!(
                "begin T1 T2
                 T1 scan -> x=10 y=20
                 T2 scan -> x=10 y=20
                 T1 make {v} 30
                 T2 make {w} 42
                 T1 commit
                 T2 commit
                 now {v}=30 {w}=42 x=10 y=20"
            ),
        );
        play(
            Serializable,
            &format!(
                "begin T1 T2
                 T1 scan -> x=10 y=20
                 T2 scan -> x=10 y=20
                 T1 make {v} 30
                 T2 make {w} 42 -> locked
                 T1 commit
                 now {v}=30 x=10 y=20"
            ),
        );
    }
    // The same with a name and a key: each transaction creates what the other has not found.
    let read = "begin T1 T2
         T1 read z -> nothing
         T2 read #z -> nothing";
    play_as_written(
        Snapshot,
        MIXED,
        &format!(
            "{read}
             T1 make #z 1
             T2 make z 2
             T1 commit
             T2 commit
             now x=10 #y=20 z=2 #z=1"
        ),
    );
    play_as_written(
        Serializable,
        MIXED,
        &format!(
            "{read}
             T1 make #z 1
             T2 make z 2 -> locked
             T1 commit
             now x=10 #y=20 #z=1"
        ),
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
         T2 write y 25
         T2 commit
         begin T3
         T3 scan -> x=10 y=25
         T3 commit
         T1 write x 0
         T1 commit
         now x=0 y=25",
    );
    play(
        Serializable,
        "begin T1
         T1 scan -> x=10 y=20
         begin T2
         T2 write y 25 -> waits
         T1 write x 0
         T1 commit
         T2 goes on
         T2 commit
         begin T3
         T3 scan -> x=0 y=25
         T3 commit
         now x=0 y=25",
    );
    // The reader begins while both are in progress.
    play(
        Serializable,
        "begin T1 T2 T3
         T1 scan -> x=10 y=20
         T2 write y 25 -> waits
         T3 read y -> waits
         T1 write x 0
         T1 commit
         T2 goes on
         T2 commit
         T3 goes on -> 25
         T3 read x -> 0
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
         T1 read x -> 10
         T1 write y 21
         plain write x 11
         T1 read x -> 10
         T1 commit
         now x=11 y=21",
    );
    play(
        Snapshot,
        "begin T1
         T1 write x 12
         plain hold x 11
         T1 commit -> conflict x
         now x=11 y=20",
    );
    // Data that a serializable transaction has read does not change. Writers of other data
    // continue.
    play(
        Serializable,
        "begin T1
         T1 read x -> 10
         plain write x 11 -> locked
         plain hold x 11 -> locked
         plain remove x -> locked
         plain read x -> 10
         plain write y 21
         T1 read y -> 21
         T1 commit
         plain write x 11
         now x=11 y=21",
    );
    for z in ["z", "#z"] {
        play(
            Serializable,
            &format!(
                "begin T1
                 T1 scan -> x=10 y=20
                 plain make {z} 30 -> locked
                 T1 write x 11
                 plain read x -> 10
                 T1 abort
                 plain make {z} 30
                 now x=10 y=20 {z}=30"
            ),
        );
    }
}

/// A file without a name gets the current group of its directory, even if the transaction had read
/// the directory before. No other transaction changes the directory until this one ends.
#[test]
fn a_temporary_file_inherits_the_group_that_its_directory_has() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    let set = |fs: &Fs, gid| {
        let set = SetAttr { mode: Some(0o2775), gid: Some(gid), ..SetAttr::default() };
        fs.setattr(ROOT, &set, USER).map(drop)
    };
    set(&w.fs, 10).unwrap();
    let options = kvdb::TransactionOptions { isolation: Serializable, ..Default::default() };
    let id = views.begin(options).unwrap();
    let view = views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(view.getattr(ROOT).unwrap().gid, 10);
    set(&w.fs, 20).unwrap();
    assert_eq!(view.tmpfile(ROOT, 0o600, USER).unwrap().gid, 20);
    assert!(without_lock_waits(|| set(&w.fs, 30)).is_err(), "the directory is locked");
    views.commit(id, Durability::Buffered).unwrap();
    set(&w.fs, 30).unwrap();
}
