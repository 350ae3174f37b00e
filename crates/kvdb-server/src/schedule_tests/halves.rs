//! Checks that other connections never observe the state between the two steps of an operation:
//! the drop of a dictionary with its types, a savepoint with the number of effects before it, a
//! command that reads two keys. A copy to another dictionary changes its target under the lock of
//! the target.

use std::sync::Arc;

use env::{schedule, thread};
use kvdb::TransactionId;

use super::{ATTEMPTS, ask, number, seeds, shared};
use crate::client::Client;
use crate::notifications::Classes;
use crate::reply::Reply;
use crate::session::Shared;

/// Runs `other` concurrently with `work`.
fn beside(shared: &Arc<Shared>, other: impl FnOnce(Client) + Send + 'static, work: impl FnOnce()) {
    let client = Client::of(shared.clone());
    let thread = thread::Builder::new().name("other".into()).spawn(move || other(client));
    work();
    thread.expect("a thread").join().expect("it ends");
}

/// A command that has found a dictionary uses it under the locks of its keys. The dictionaries of
/// strings and of types both exist until the command has ended.
fn dropped() {
    let shared = shared();
    let mut client = Client::of(shared.clone());
    ask(&mut client, &["RPUSH", "list", "one"]);
    let drops = |mut other: Client| {
        assert_eq!(ask(&mut other, &["DICT", "DROP", "0"]), Reply::Status("OK".into()));
    };
    let there =
        |shared: &Shared| ["0", ":types:0"].map(|name| shared.db.dictionary(name).is_some());
    beside(&shared, drops, || {
        for _ in 0..ATTEMPTS {
            let held = shared.locks.all();
            let before = there(&shared);
            (0..20).for_each(|_| thread::yield_now());
            assert!(before == there(&shared) && before[0] == before[1], "a half was dropped");
            drop(held);
        }
    });
    assert_eq!(there(&shared), [false, false]);
}

#[test]
fn a_dictionary_goes_with_its_types_whatever_the_schedule() {
    for seed in seeds(100) {
        schedule::run(seed, dropped).unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
    }
}

/// One connection of a transaction puts keys, and another one sets savepoints and rolls back to
/// them. At the end there is exactly one event for each key that exists.
fn marked() {
    let shared = shared();
    shared.notifications.set(Classes::parse(b"K$").expect("a setting"));
    let mut client = Client::of(shared.clone());
    let id = number(&ask(&mut client, &["TXN", "BEGIN"]));
    let join = ["TXN", "JOIN", &id.to_string()].map(str::to_owned);
    let joined = |client: &mut Client| ask(client, &join.each_ref().map(String::as_str));
    joined(&mut client);
    let mut putting = Client::of(shared.clone());
    joined(&mut putting);
    let puts = move |_: Client| {
        for key in 0..2 * ATTEMPTS {
            ask(&mut putting, &["SET", &key.to_string(), "v"]);
        }
    };
    beside(&shared, puts, || {
        for _ in 0..ATTEMPTS {
            ask(&mut client, &["TXN", "SAVEPOINT", "here"]);
            ask(&mut client, &["TXN", "ROLLBACK", "here"]);
        }
    });
    let there = number(&ask(&mut client, &["DBSIZE"]));
    let state = shared.transaction_states.of(&shared.db, TransactionId(id as u64));
    let told = state.effects.lock().as_ref().map_or(0, |effects| effects.len());
    assert_eq!(told as i64, there, "events of what was taken back, or none of what was not");
}

#[test]
fn a_savepoint_keeps_the_events_before_it_whatever_the_schedule() {
    for seed in seeds(200) {
        schedule::run(seed, marked).unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
    }
}

/// Compares two strings that are always equal.
fn compared() {
    let shared = shared();
    let mut client = Client::of(shared.clone());
    ask(&mut client, &["MSET", "a", "xxxx", "b", "xxxx"]);
    let puts = |mut other: Client| {
        for value in ["yyyy", "xxxx"].iter().cycle().take(ATTEMPTS as usize) {
            ask(&mut other, &["MSET", "a", value, "b", value]);
        }
    };
    beside(&shared, puts, || {
        for _ in 0..ATTEMPTS {
            assert_eq!(ask(&mut client, &["LCS", "a", "b", "LEN"]), Reply::Integer(4));
        }
    });
}

#[test]
fn two_strings_are_compared_as_they_were_at_one_moment_whatever_the_schedule() {
    for seed in seeds(100) {
        schedule::run(seed, compared).unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
    }
}

/// Copies a key to another dictionary, alone and in a `MULTI`, while the lock of the target is
/// held from time to time.
fn copied() {
    let shared = shared();
    let mut client = Client::of(shared.clone());
    ask(&mut client, &["SET", "k", "0"]);
    ask(&mut client, &["SELECT", "1"]);
    ask(&mut client, &["HSET", "h", "f", "v"]);
    let one = shared.db.dictionary("1").expect("it was made");
    let copies = |mut other: Client| {
        for value in 1..=ATTEMPTS {
            let value = value.to_string();
            ask(&mut other, &["SET", "k", &value]);
            let copy = ["COPY", "k", "k", "DB", "1", "REPLACE"];
            if value.ends_with(['1', '3']) {
                assert_eq!(ask(&mut other, &copy), Reply::Integer(1));
                continue;
            }
            ask(&mut other, &["MULTI"]);
            ask(&mut other, &copy);
            assert_eq!(ask(&mut other, &["EXEC"]), Reply::Array(vec![Reply::Integer(1)]));
        }
    };
    let there = |shared: &Shared| shared.db.view().get(one, b"k").expect("read");
    beside(&shared, copies, || {
        for _ in 0..ATTEMPTS {
            let held = shared.locks.key(one, b"k");
            let before = there(&shared);
            (0..50).for_each(|_| thread::yield_now());
            assert_eq!(before, there(&shared), "the target changed under the lock of another");
            drop(held);
            (0..50).for_each(|_| thread::yield_now());
        }
    });
    assert_eq!(there(&shared).as_deref(), Some(ATTEMPTS.to_string().as_bytes()));
}

#[test]
fn a_key_is_copied_under_the_lock_of_its_target_whatever_the_schedule() {
    for seed in seeds(100) {
        schedule::run(seed, copied).unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
    }
}
