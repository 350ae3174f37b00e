//! What is done in two steps is never seen between them: a dictionary that is dropped with its
//! types.

use std::sync::Arc;

use env::{schedule, thread};

use super::{ATTEMPTS, ask, seeds, shared};
use crate::client::{Client, Reply};
use crate::session::Shared;

/// Lets `other` run beside `work`.
fn beside(shared: &Arc<Shared>, other: impl FnOnce(Client) + Send + 'static, work: impl FnOnce()) {
    let client = Client::of(shared.clone());
    let thread = thread::Builder::new().name("other".into()).spawn(move || other(client));
    work();
    thread.expect("a thread").join().expect("it ends");
}

/// A command that has found a dictionary works with it under the locks of its keys: strings and
/// types are both there until it has ended.
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
