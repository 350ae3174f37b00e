//! Frames that arrive late, and clients that continue a transaction which another client has taken
//! over. The transaction belongs to the client that took it over last, and an ended transaction
//! stays ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Durability, Scope, ServedChange};
use kvdb_wire::{
    BeginOptions, FailureCode, Outcome, Reply, Request, ServedTransaction, TransactionKey,
};

use crate::served_transactions::{Raw, one, request, store};

const KEY: TransactionKey = [7; 16];

/// Returns the BEGIN of a durable transaction by this client.
fn durable(holder_is: u64, joins_it: bool, takes_it: bool) -> Request {
    let mut asked = request(KEY);
    let Request::Begin { durable, joins, takes, holder, .. } = &mut asked else {
        unreachable!("it is one")
    };
    (*durable, *joins, *takes, *holder) = (true, joins_it, takes_it, holder_is);
    asked
}

#[track_caller]
fn begun(raw: &mut Raw, request: &Request) -> u64 {
    match raw.ask(request) {
        Reply::Begun { transaction, .. } => transaction,
        answer => panic!("{answer:?}"),
    }
}

fn get(view: u64, dict: DictionaryId) -> Request {
    Request::GetMany { view, dict, keys: vec![Bytes::from_static(b"key")] }
}

#[test]
fn who_had_a_transaction_before_neither_reads_nor_ends_it() {
    let (store, dict) = store();
    let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
    let before = begun(&mut first, &durable(1, false, false));
    first.does(&one(dict, before, 1, "of the first"));
    let now = begun(&mut second, &durable(2, true, true));
    let commit = Request::Commit { key: KEY, synced: false, batches: 1 };
    for request in [get(before, dict), commit.clone(), Request::Abort { key: KEY }] {
        let what = first.is_refused(&request, FailureCode::NoView);
        assert!(what.contains("another client"), "{what}");
    }
    assert!(matches!(second.ask(&get(now, dict)), Reply::Values(_)));
    second.does(&commit);
    // The first client is notified of the commit that has taken place, too.
    first.does(&commit);
}

#[test]
fn a_transaction_is_ended_on_a_connection_that_it_was_taken_up_on() {
    let (store, dict) = store();
    let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
    let number = begun(&mut first, &durable(1, false, false));
    first.does(&one(dict, number, 1, "mine"));
    let commit = Request::Commit { key: KEY, synced: false, batches: 1 };
    second.is_refused(&commit, FailureCode::Invalid);
    second.is_refused(&Request::Abort { key: KEY }, FailureCode::Invalid);
    begun(&mut second, &durable(1, true, false));
    second.does(&commit);
}

#[test]
fn who_has_a_durable_transaction_is_known_to_the_next_server() {
    let (mut store, dict) = store();
    let (first, second) = (store.client(), store.client());
    let options = BeginOptions { durable: true, ..BeginOptions::default() };
    let one = Arc::new(ServedTransaction::begin(&first, options).unwrap());
    let put = |of: &Arc<ServedTransaction>, key: &'static str| {
        let mut batch = Batch::new();
        batch.put(dict, key, "there");
        Scope::Served(of.clone()).apply(batch, Durability::Buffered).unwrap();
        of.send()
    };
    put(&one, "first").unwrap();
    let two = Arc::new(ServedTransaction::take_up(&second, one.key()).unwrap());
    store.stop_serving();
    store.serve();
    // The first client reconnects first, and is refused nevertheless.
    let refused = put(&one, "late").unwrap_err();
    assert!(matches!(refused, kvdb::Error::NoTransaction(_)), "{refused}");
    put(&two, "second").unwrap();
    assert_eq!(two.commit(true).unwrap(), Outcome::Committed);
    let all = store.db.view().scan(dict, b"", b"", 9).unwrap();
    let keys: Vec<_> = all.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(keys, [&b"first"[..], b"second"]);
}

#[test]
fn a_batch_that_is_still_on_its_way_where_a_later_one_was_refused_is_not_applied() {
    let (mut store, dict) = store();
    store.stop_serving();
    store.options.all_transactions_bytes = Some(1 << 20);
    store.serve();
    let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
    let on_first = begun(&mut first, &durable(1, false, false));
    let on_second = begun(&mut second, &durable(1, true, false));
    let large = vec![ServedChange::Put(dict, "large".into(), vec![7; 2 << 20].into())];
    let large = Request::Apply { transaction: on_second, batch: 1, changes: large };
    second.is_refused(&large, FailureCode::NoSpace);
    let what = first.is_refused(&one(dict, on_first, 1, "old"), FailureCode::Invalid);
    assert!(what.contains("later connection"), "{what}");
    second.does(&one(dict, on_second, 1, "new"));
    second.does(&Request::Commit { key: KEY, synced: false, batches: 1 });
    assert_eq!(store.db.get(dict, b"key").unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_batch_is_not_applied_late_where_a_part_of_it_was_refused_on_a_later_connection() {
    for last in [false, true] {
        let (store, dict) = store();
        let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
        let on_first = begun(&mut first, &durable(1, false, false));
        let on_second = begun(&mut second, &durable(1, true, false));
        // The server has no parts before this one, as where others need their memory.
        let part = Request::ApplyPart {
            transaction: on_second,
            batch: 1,
            part: 1,
            last,
            changes: vec![ServedChange::Put(dict, "key".into(), "of parts".into())],
        };
        second.is_refused(&part, FailureCode::Again);
        let what = first.is_refused(&one(dict, on_first, 1, "old"), FailureCode::Invalid);
        assert!(what.contains("later connection"), "{what}");
        second.does(&one(dict, on_second, 1, "new"));
        second.does(&Request::Commit { key: KEY, synced: false, batches: 1 });
        assert_eq!(store.db.get(dict, b"key").unwrap().as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn a_refusal_holds_for_the_client_that_was_refused_alone() {
    let (mut store, dict) = store();
    store.stop_serving();
    store.options.all_transactions_bytes = Some(1 << 20);
    store.serve();
    let (mut other, mut first) = (Raw::greeted(&store), Raw::greeted(&store));
    let on_first = begun(&mut first, &durable(1, false, false));
    let large = vec![ServedChange::Put(dict, "large".into(), vec![7; 2 << 20].into())];
    let large = Request::Apply { transaction: on_first, batch: 1, changes: large };
    first.is_refused(&large, FailureCode::NoSpace);
    // Its connection is the older one.
    let on_other = begun(&mut other, &durable(2, true, true));
    other.does(&one(dict, on_other, 1, "of another one"));
}

#[test]
fn a_savepoint_that_was_refused_takes_no_number_when_it_comes_late() {
    let (store, dict) = store();
    let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
    let on_first = begun(&mut first, &durable(1, false, false));
    let on_second = begun(&mut second, &durable(1, true, false));
    let back = |transaction| Request::RollBack { transaction, batch: 1, to: 7 };
    second.is_refused(&back(on_second), FailureCode::Invalid);
    let late = Request::Savepoint { transaction: on_first, batch: 1 };
    first.is_refused(&late, FailureCode::Invalid);
    second.does(&one(dict, on_second, 1, "new"));
    assert!(matches!(second.ask(&get(on_second, dict)), Reply::Values(v) if v[0].is_some()));
}

#[test]
fn a_request_that_takes_up_comes_once() {
    let (store, _) = store();
    let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
    begun(&mut first, &durable(1, false, false));
    begun(&mut first, &durable(2, true, true));
    begun(&mut second, &durable(3, true, true));
    first.is_refused(&durable(2, true, true), FailureCode::NoView);
    begun(&mut second, &durable(3, true, true));
}

#[test]
fn what_began_a_transaction_that_is_over_begins_none_when_it_comes_late() {
    let (store, _) = store();
    let mut raw = Raw::greeted(&store);
    begun(&mut raw, &durable(1, false, false));
    raw.does(&Request::Abort { key: KEY });
    raw.is_refused(&durable(1, false, false), FailureCode::NoView);
    assert!(store.db.transactions().is_empty());
    // This transaction is ended by its lease.
    let mut asked = request([8; 16]);
    let Request::Begin { lease, .. } = &mut asked else { unreachable!("it is one") };
    *lease = 100;
    begun(&mut raw, &asked);
    while !store.db.transactions().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
        store.db.step().unwrap();
    }
    raw.is_refused(&asked, FailureCode::NoView);
    assert!(store.db.transactions().is_empty());
}
