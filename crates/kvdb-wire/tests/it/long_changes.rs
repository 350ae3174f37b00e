//! Tests of changes that are longer than a frame, in transactions over the wire. Each is applied
//! exactly once and as a whole, or not at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::served_transactions::{durable, put, store, text};
use crate::wire::{Cut, Proxy};
use bytes::Bytes;
use env::Random;
use kvdb::{Batch, DictionaryId, Durability, Scope, ServedView, Update};
use kvdb_wire::ServedTransaction;

/// Returns one change of this number of values of two megabytes, which is longer than a frame.
fn long_change(dict: DictionaryId, values: u8) -> Batch {
    let mut batch = Batch::new();
    for i in 0..values {
        batch.put(dict, vec![b'l', i], vec![i; 2 << 20]);
    }
    batch
}

#[test]
fn of_a_change_that_is_longer_than_a_frame_all_is_there_or_nothing_wherever_its_client_is_lost() {
    let (store, dict) = store();
    let key = {
        let transaction = durable(&store.client());
        put(&Scope::Served(transaction.clone()), dict, "before", "is whole");
        transaction.sync().unwrap();
        transaction.key()
    };
    const VALUES: u8 = 7;
    let mut seen = [0, 0];
    // Cut the connection in the middle of the first part, of each further one, and after the last.
    for megabytes in [1, 3, 5, 7, 9, 11, 13, 20] {
        let proxy = Proxy::new(store.path(), Cut::Requests, megabytes << 20);
        // The client is lost together with the data that it has not sent.
        let client = proxy.client().unwrap();
        let lost = ServedTransaction::take_up(&client, key).unwrap();
        let scope = Scope::Served(Arc::new(lost));
        let sent = scope.apply(long_change(dict, VALUES), Durability::Buffered);
        let sent = sent.and_then(|()| scope.sync());
        // Another client takes the transaction up over a connection that is not cut.
        let other = ServedTransaction::take_up(&store.client(), key).unwrap();
        let scope = Scope::Served(Arc::new(other));
        let there = scope.scan(dict, b"l", b"m", 99).unwrap().len();
        assert!(there == 0 || there == VALUES.into(), "{there} after {megabytes} MiB");
        assert_eq!(there > 0, sent.is_ok(), "after {megabytes} MiB");
        seen[usize::from(there > 0)] += 1;
        assert_eq!(text(scope.get(dict, b"before").unwrap()).as_deref(), Some("is whole"));
        let mut batch = Batch::new();
        batch.delete_range(dict, &b"l"[..], &b"m"[..]);
        scope.apply(batch, Durability::Buffered).unwrap();
        scope.sync().unwrap();
    }
    assert!(seen[0] > 3 && seen[1] > 0, "{seen:?}");
}

/// Repeats an action until it succeeds.
#[track_caller]
fn persists(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "it does not succeed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_long_change_is_applied_once_over_connections_that_are_cut_in_it() {
    let (store, dict) = store();
    for seed in 0..6 {
        let mut random = Random::new(seed);
        // Each connection transmits a little more than one change, or not quite one.
        let cut = if seed % 2 == 0 { Cut::Requests } else { Cut::Answers };
        let after = match cut {
            Cut::Requests => (11 << 20) + random.below(4 << 20) as usize,
            Cut::Answers => 180 + random.below(60) as usize,
        };
        let proxy = Proxy::new(store.path(), cut, after);
        let transaction = durable(&proxy.client().unwrap());
        let scope = Scope::Served(transaction.clone());
        for value in 0..3u8 {
            let mut batch = long_change(dict, 5);
            batch.update(dict, &b"count"[..], Update::add(1));
            batch.put(dict, &b"last"[..], vec![value]);
            scope.apply(batch, Durability::Buffered).unwrap();
            persists(|| scope.sync().is_ok());
        }
        persists(|| transaction.commit(true).is_ok());
        assert!(proxy.cuts() > 0, "seed {seed}");
        let count = store.db.get(dict, b"count").unwrap().expect("it has counted");
        let counted = Update::add(0).apply(Some(&count));
        let expected = (0..3 * (seed + 1))
            .fold(None, |value: Option<Bytes>, _| Some(Update::add(1).apply(value.as_deref())));
        assert_eq!(Some(counted), expected, "seed {seed}");
        assert_eq!(store.db.get(dict, b"last").unwrap().as_deref(), Some(&[2][..]));
    }
}
