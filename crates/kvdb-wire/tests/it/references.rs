//! Tests of values that are put by reference over the wire: the client sends keys and no values.
//! The values are those that the transaction had before the batch, from its own dictionaries.

use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Durability, Reference, Scope, ServedChange};
use kvdb_wire::{
    BeginOptions, FailureCode, Outcome, Reply, Request, ServedTransaction, TransactionKey,
};

use crate::served_transactions::{Raw, begin, durable, put, request, store, text};
use crate::wire::{Cut, Proxy, Store};

fn refer(dict: DictionaryId, key: &str, of: &str) -> Reference {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Reference { dict, key: bytes(key), of: (dict, bytes(of)) }
}

fn refers(scope: &Scope, dict: DictionaryId, key: &str, of: &str) -> kvdb::Result<()> {
    scope.apply_with(Batch::new(), vec![refer(dict, key, of)], Durability::Buffered)
}

fn has(scope: &Scope, dict: DictionaryId, key: &str) -> Option<String> {
    text(scope.get(dict, key.as_bytes()).unwrap())
}

#[track_caller]
fn begun(raw: &mut Raw, key: TransactionKey) -> u64 {
    match raw.ask(&request(key)) {
        Reply::Begun { transaction, .. } => transaction,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_large_value_is_put_under_many_keys_and_is_not_sent() {
    let (store, dict) = store();
    let here = Scope::Mainline(store.db.clone());
    let value = "v".repeat(1 << 20);
    put(&here, dict, "from", &value);
    let client = store.client();
    let transaction = begin(&client);
    let scope = Scope::Served(transaction.clone());
    let before = client.counts();
    for i in 0..20 {
        refers(&scope, dict, &format!("to {i}"), "from").unwrap();
    }
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    let counts = client.counts();
    let bytes = counts.sent + counts.received - before.sent - before.received;
    assert!(bytes < 2000, "{bytes} bytes of 20 references");
    assert_eq!(counts.requests, before.requests + 2, "one batch, and the commit");
    for i in 0..20 {
        assert_eq!(has(&here, dict, &format!("to {i}")).as_ref(), Some(&value));
    }
}

#[test]
fn a_reference_has_what_was_changed_in_the_transaction_before_it_and_nothing_later() {
    let (store, dict) = store();
    let here = Scope::Mainline(store.db.clone());
    put(&here, dict, "from", "old");
    put(&here, dict, "gone", "value");
    let transaction = begin(&store.client());
    let scope = Scope::Served(transaction.clone());
    refers(&scope, dict, "to 1", "from").unwrap();
    put(&scope, dict, "from", "mine");
    refers(&scope, dict, "to 2", "from").unwrap();
    refers(&scope, dict, "to 3", "to 2").unwrap();
    put(&scope, dict, "from", "later");
    refers(&scope, dict, "gone", "no such key").unwrap();
    let mut batch = Batch::new();
    batch.put(dict, "both", "of the batch");
    batch.put(dict, "from", "last");
    let both = vec![refer(dict, "both", "from")];
    scope.apply_with(batch, both, Durability::Buffered).unwrap();
    let expected = [("to 1", "old"), ("to 2", "mine"), ("to 3", "mine"), ("both", "later")];
    for (key, value) in expected {
        assert_eq!(has(&scope, dict, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(has(&scope, dict, "gone"), None);
    assert_eq!(has(&here, dict, "to 1"), None, "others see nothing of it");
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    for (key, value) in expected {
        assert_eq!(has(&here, dict, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(has(&here, dict, "gone"), None);
    assert_eq!(has(&here, dict, "from").as_deref(), Some("last"));
}

#[test]
fn a_list_of_keys_has_none_that_a_reference_has_left_without_a_value() {
    let (store, dict) = store();
    let here = Scope::Mainline(store.db.clone());
    put(&here, dict, "from", "value");
    put(&here, dict, "gone", "value");
    let scope = Scope::Served(begin(&store.client()));
    for (key, of) in [("gone", "no such key"), ("never", "no such key"), ("to", "from")] {
        refers(&scope, dict, key, of).unwrap();
    }
    // The second list is answered from the first one.
    for _ in 0..2 {
        let mut cursor = scope.cursor(dict, b"", b"").unwrap().keys_only();
        let mut keys = Vec::new();
        while let Some(tuple) = cursor.next().unwrap() {
            keys.push(tuple.key);
        }
        assert_eq!(keys, ["from", "to"]);
    }
}

#[test]
fn a_rollback_undoes_a_reference() {
    let (store, dict) = store();
    put(&Scope::Mainline(store.db.clone()), dict, "from", "value");
    let transaction = begin(&store.client());
    let scope = Scope::Served(transaction.clone());
    refers(&scope, dict, "before", "from").unwrap();
    let point = transaction.savepoint().unwrap();
    refers(&scope, dict, "after", "from").unwrap();
    assert_eq!(has(&scope, dict, "after").as_deref(), Some("value"));
    transaction.roll_back(&point).unwrap();
    assert_eq!(has(&scope, dict, "after"), None);
    assert_eq!(has(&scope, dict, "before").as_deref(), Some("value"));
}

#[test]
fn a_batch_with_references_that_comes_again_is_applied_once() {
    let (store, dict) = store();
    put(&Scope::Mainline(store.db.clone()), dict, "from", "old");
    let (mut raw, mut other) = (Raw::greeted(&store), Raw::greeted(&store));
    let number = begun(&mut raw, [1; 16]);
    let put = |value: &'static str| ServedChange::Put(dict, "from".into(), value.into());
    let changes = vec![put("before"), ServedChange::Refer(refer(dict, "to", "from")), put("after")];
    let batch = |transaction| Request::Apply { transaction, batch: 1, changes: changes.clone() };
    raw.does(&batch(number));
    raw.does(&Request::Apply { transaction: number, batch: 2, changes: vec![put("later")] });
    let there = begun(&mut other, [1; 16]);
    other.does(&batch(there));
    other.does(&Request::Commit { key: [1; 16], synced: false, batches: 2 });
    let here = Scope::Mainline(store.db.clone());
    assert_eq!(has(&here, dict, "to").as_deref(), Some("old"), "as before the batch");
    assert_eq!(has(&here, dict, "from").as_deref(), Some("later"));
}

#[test]
fn a_session_with_references_that_is_cut_at_any_byte_is_applied_once_or_not_at_all() {
    let mut outcomes = [0, 0];
    for cut in [Cut::Requests, Cut::Answers] {
        let mut after = 40;
        while after < 1500 {
            for is_durable in [false, true] {
                let (store, dict) = store();
                put(&Scope::Mainline(store.db.clone()), dict, "from", "value");
                let proxy = Proxy::new(store.path(), cut, after);
                let outcome = session(&proxy, dict, is_durable);
                let here = Scope::Mainline(store.db.clone());
                let found: Vec<_> = (0..4).map(|i| has(&here, dict, &format!("to {i}"))).collect();
                let all =
                    ["value", "value 0", "value 1", "value 2"].map(|one| Some(String::from(one)));
                let is_all = found == all;
                match &outcome {
                    Ok(Outcome::Committed) => assert!(is_all, "{cut:?} after {after}: {found:?}"),
                    // The answer to the commit may have been lost.
                    Err(kvdb::Error::Io(_)) => {
                        assert!(is_all || found.iter().all(Option::is_none), "{found:?}");
                    }
                    other => panic!("{cut:?} after {after}: {other:?}"),
                }
                outcomes[usize::from(outcome.is_ok())] += 1;
            }
            after = after * 5 / 4;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
}

/// Puts the value of one key under others, and changes it after each.
fn session(proxy: &Proxy, dict: DictionaryId, durable: bool) -> kvdb::Result<Outcome> {
    let other = |e: kvdb_wire::Error| kvdb::Error::Io(std::io::Error::other(e));
    let client = proxy.client().map_err(other)?;
    let options = BeginOptions { durable, ..BeginOptions::default() };
    let transaction = ServedTransaction::begin(&client, options).map_err(other)?;
    let transaction = Arc::new(transaction);
    let scope = Scope::Served(transaction.clone());
    for i in 0..4 {
        refers(&scope, dict, &format!("to {i}"), "from")?;
        let mut batch = Batch::new();
        batch.put(dict, "from", format!("value {i}"));
        scope.apply(batch, Durability::Buffered)?;
        scope.sync()?;
    }
    transaction.commit(false)
}

#[test]
fn a_reference_reaches_no_dictionary_that_is_not_of_its_branch() {
    let (store, dict) = store();
    let mut raw = Raw::greeted(&store);
    let transaction = begun(&mut raw, [1; 16]);
    let all: Vec<DictionaryId> =
        store.db.dictionaries_in(kvdb::STORE_BRANCH).into_iter().map(|info| info.id).collect();
    assert!(all.len() >= 2, "the counter of files, and the records of transactions");
    let apply = |reference: Reference| {
        let changes = vec![ServedChange::Refer(reference)];
        Request::Apply { transaction, batch: 1, changes }
    };
    for other in all.into_iter().chain([DictionaryId(u32::MAX)]) {
        let from = Reference { of: (other, "from".into()), ..refer(dict, "to", "from") };
        raw.is_refused(&apply(from), FailureCode::NoDictionary);
        let to = Reference { dict: other, ..refer(dict, "to", "from") };
        raw.is_refused(&apply(to), FailureCode::NoDictionary);
    }
    raw.does(&apply(refer(dict, "to", "from")));
}

#[test]
fn a_serializable_transaction_locks_what_it_refers_to() {
    let (store, dict) = store();
    put(&Scope::Mainline(store.db.clone()), dict, "from", "value");
    let options = BeginOptions { serializable: true, ..BeginOptions::default() };
    let transaction = Arc::new(ServedTransaction::begin(&store.client(), options).unwrap());
    let scope = Scope::Served(transaction.clone());
    refers(&scope, dict, "to", "from").unwrap();
    transaction.send().unwrap();
    assert!(store.db.is_locked(dict, b"from"));
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    assert!(!store.db.is_locked(dict, b"from"));
}

#[test]
fn references_count_for_what_they_may_take_and_not_for_their_keys_alone() {
    let (mut store, dict) = store();
    let many = |count: usize| -> Vec<Reference> {
        (0..count).map(|i| refer(dict, &format!("to {i}"), "from")).collect()
    };
    let transaction = begin(&store.client());
    let scope = Scope::Served(transaction.clone());
    let refused = scope.apply_with(Batch::new(), many(20_000), Durability::Buffered);
    assert!(matches!(refused, Err(kvdb::Error::Limit(_))), "{refused:?}");
    drop((scope, transaction));
    // A value that was put by reference counts towards the limit of all transactions.
    limited(&mut store, 4 << 20);
    put(&Scope::Mainline(store.db.clone()), dict, "from", &"v".repeat(1 << 20));
    let transaction = durable(&store.client());
    let scope = Scope::Served(transaction.clone());
    scope.apply_with(Batch::new(), many(3), Durability::Buffered).unwrap();
    transaction.send().unwrap();
    scope.apply_with(Batch::new(), many(8), Durability::Buffered).unwrap();
    let refused = transaction.send();
    assert!(matches!(refused, Err(kvdb::Error::NoSpace)), "{refused:?}");
    assert_eq!(has(&Scope::Mainline(store.db.clone()), dict, "to 7"), None);
}

#[test]
fn references_to_values_that_are_too_long_together_are_sent_in_parts() {
    let (store, dict) = store();
    let here = Scope::Mainline(store.db.clone());
    let values = ["their".repeat(200_000), "mine".repeat(250_000)];
    put(&here, dict, "theirs", &values[0]);
    let transaction = begin(&store.client());
    let scope = Scope::Served(transaction.clone());
    put(&scope, dict, "mine", &values[1]);
    transaction.send().unwrap();
    // A client does not know how long they are, and a server copies those that are too young to
    // have a place: 80 MB at once.
    for (of, first) in [("theirs", 0), ("mine", 40)] {
        for i in first..first + 40 {
            refers(&scope, dict, &format!("to {i}"), of).unwrap();
        }
    }
    transaction.send().unwrap();
    put(&scope, dict, "mine", "later");
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    for i in [0, 19, 20, 39, 40, 59, 60, 79] {
        let value = &values[usize::from(i >= 40)];
        assert_eq!(has(&here, dict, &format!("to {i}")).as_ref(), Some(value), "{i}");
    }
}

#[test]
fn values_that_wait_for_their_places_get_them_before_they_are_referred_to() {
    // The bytes that are written for 40 values which are put under other keys, too.
    let written = |are_placed: bool| {
        let (store, dict) = store();
        let (here, value) = (Scope::Mainline(store.db.clone()), "v".repeat(20_000));
        (0..40).for_each(|i| put(&here, dict, &format!("from {i}"), &value));
        if are_placed {
            store.db.write_out().unwrap();
        }
        let transaction = begin(&store.client());
        let all = (0..40).map(|i| refer(dict, &format!("to {i}"), &format!("from {i}")));
        let scope = Scope::Served(transaction.clone());
        scope.apply_with(Batch::new(), all.collect(), Durability::Buffered).unwrap();
        assert_eq!(transaction.commit(true).unwrap(), Outcome::Committed);
        assert_eq!(has(&here, dict, "to 39").as_ref(), Some(&value));
        store.db.stats().io.iter().map(|(_, io)| io.write_bytes).sum::<u64>()
    };
    let (placed, waiting) = (written(true), written(false));
    assert!(waiting < placed + 400_000, "{waiting} bytes, and {placed} with places");
}

/// Begins the server again with this limit of the bytes of all transactions.
fn limited(store: &mut Store, bytes: u64) {
    store.stop_serving();
    store.options.all_transactions_bytes = Some(bytes);
    store.serve();
}
