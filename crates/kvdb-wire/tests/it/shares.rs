//! Tests of the share of a store that the transactions of all clients may use together. Changes
//! beyond it are refused, but removals are still accepted.

use crate::served_transactions::{begin, durable, put, store};
use crate::wire::Store;
use kvdb::{Batch, DictionaryId, Durability, Scope};
use kvdb_wire::Outcome;

/// Returns a store whose clients may change this number of megabytes together.
fn store_with_share(megabytes: u64) -> (Store, DictionaryId) {
    let (mut store, dict) = store();
    store.stop_serving();
    store.options.all_transactions_bytes = Some(megabytes << 20);
    store.serve();
    (store, dict)
}

/// Puts and syncs this number of megabytes, or as many as the server accepts.
pub fn fill(scope: &Scope, dict: DictionaryId, megabytes: u32) -> (u32, kvdb::Result<()>) {
    for i in 0..megabytes {
        let mut batch = Batch::new();
        batch.put(dict, [b"fill", &i.to_be_bytes()[..]].concat(), vec![7; 1 << 20]);
        let put = scope.apply(batch, Durability::Buffered).and_then(|()| scope.sync());
        if put.is_err() {
            return (i, put);
        }
    }
    (megabytes, Ok(()))
}

#[test]
fn all_transactions_together_take_no_more_than_their_share() {
    let (store, dict) = store_with_share(24);
    let all = [(); 3].map(|()| begin(&store.client()));
    let scopes = all.each_ref().map(|open| Scope::Served(open.clone()));
    let (first, done) = fill(&scopes[0], dict, 15);
    assert!(first == 15 && done.is_ok(), "{first}: {done:?}");
    let (second, refused) = fill(&scopes[1], dict, 15);
    assert!((6..10).contains(&second), "{second}");
    assert!(matches!(refused, Err(kvdb::Error::NoSpace)), "{refused:?}");
    let why = all[1].refused().expect("it is told why");
    assert!(why.contains("together"), "{why}");
    let (third, refused) = fill(&scopes[2], dict, 15);
    assert!(third < 2 && refused.is_err(), "{third}: {refused:?}");
    // An abort makes room for others, including the changes that were refused.
    all[0].abort().unwrap();
    scopes[1].sync().unwrap();
    assert_eq!(all[1].refused(), None);
    assert_eq!(all[1].commit(true).unwrap(), Outcome::Committed);
    let (third, done) = fill(&scopes[2], dict, 15);
    assert!(third == 15 && done.is_ok(), "{third}: {done:?}");
}

#[test]
fn what_removes_is_taken_where_the_share_of_all_is_used_up() {
    let (store, dict) = store_with_share(24);
    let big = begin(&store.client());
    let (taken, refused) = fill(&Scope::Served(big), dict, 40);
    assert!(taken > 20 && refused.is_err(), "{taken}: {refused:?}");
    let here = Scope::Mainline(store.db.clone());
    put(&here, dict, "old", "value");
    // Another transaction removes the old key, and puts the rest of its directory.
    let other = begin(&store.client());
    let scope = Scope::Served(other.clone());
    let mut batch = Batch::new();
    batch.put(dict, "directory", vec![7; 300]);
    batch.delete(dict, "old");
    scope.apply(batch, Durability::Buffered).unwrap();
    scope.sync().unwrap();
    // The refused changes can be removed again, and the rest is kept.
    let (_, refused) = fill(&scope, dict, 40);
    assert!(matches!(refused, Err(kvdb::Error::NoSpace)), "{refused:?}");
    let mut batch = Batch::new();
    batch.delete_range(dict, &b"fill"[..], &b"film"[..]);
    scope.apply(batch, Durability::Buffered).unwrap();
    scope.sync().unwrap();
    assert_eq!(scope.scan(dict, b"fill", b"film", 9).unwrap(), []);
    assert_eq!(other.commit(true).unwrap(), Outcome::Committed);
    assert_eq!(store.db.get(dict, b"old").unwrap(), None);
    assert_eq!(store.db.view().scan(dict, b"", b"", 9).unwrap().len(), 1);
}

#[test]
fn changes_that_were_refused_never_become_longer_than_a_unit_may_be() {
    let (store, dict) = store_with_share(8);
    let transaction = begin(&store.client());
    let scope = Scope::Served(transaction.clone());
    let (_, refused) = fill(&scope, dict, 40);
    assert!(matches!(refused, Err(kvdb::Error::NoSpace)), "{refused:?}");
    // The client holds as many unsent bytes as it may, and a change comes that would be accepted by
    // itself.
    let put = |name: &str, megabytes: u8| {
        let mut batch = Batch::new();
        for i in 0..megabytes {
            batch.put(dict, [b"fill", name.as_bytes(), &[i]].concat(), vec![7; 1 << 20]);
        }
        scope.apply(batch, Durability::Buffered)
    };
    for i in 0..12 {
        put(&format!("one {i}"), 1).unwrap();
    }
    let refused = put("long", 60).unwrap_err();
    assert!(matches!(refused, kvdb::Error::NoSpace), "{refused}");
    // The deletion reaches the server, and the transaction continues.
    let mut batch = Batch::new();
    batch.delete_range(dict, &b"fill"[..], &b"film"[..]);
    batch.put(dict, "kept", "value");
    scope.apply(batch, Durability::Buffered).unwrap();
    scope.sync().unwrap();
    assert_eq!(transaction.refused(), None);
    assert_eq!(transaction.commit(true).unwrap(), Outcome::Committed);
    assert_eq!(store.db.view().scan(dict, b"", b"", 9).unwrap().len(), 1);
}

#[test]
fn removals_that_put_take_no_more_than_an_eighth_beyond_the_share() {
    let (store, dict) = store_with_share(8);
    let transaction = begin(&store.client());
    let scope = Scope::Served(transaction);
    let mut taken = 0;
    let refused = (0..1000u32).find_map(|i| {
        let mut batch = Batch::new();
        for j in 0..100u8 {
            let key = [&i.to_be_bytes()[..], &[j]].concat();
            batch.delete(dict, [b"none", &key[..]].concat());
            batch.put(dict, key, vec![7; 900]);
        }
        let put = scope.apply(batch, Durability::Buffered).and_then(|()| scope.sync());
        taken += if put.is_ok() { 100 * 900 } else { 0 };
        put.err()
    });
    assert!(matches!(refused, Some(kvdb::Error::NoSpace)), "{refused:?}");
    assert!((6 << 20..10 << 20).contains(&taken), "{taken}");
}

#[test]
fn a_durable_transaction_counts_with_the_next_server_before_its_client_comes_back() {
    let (mut store, dict) = store_with_share(24);
    let (taken, done) = fill(&Scope::Served(durable(&store.client())), dict, 18);
    assert!(taken == 18 && done.is_ok(), "{taken}: {done:?}");
    store.stop_serving();
    store.serve();
    let (taken, refused) = fill(&Scope::Served(begin(&store.client())), dict, 18);
    assert!(taken < 8 && refused.is_err(), "{taken}: {refused:?}");
}
