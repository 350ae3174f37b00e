//! Tests of transactions of keys over the wire. A client sees its own changes at once, and others
//! see them after its commit. Changes are applied once, under all faults of the connection and the
//! server.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::wire::{Cut, Proxy, Store};
use bytes::Bytes;
use env::Random;
use kvdb::{Batch, DictionaryId, Durability, Reference, Scope, ServedChange, Update};
use kvdb_wire::{
    BeginOptions, Client, Failure, FailureCode, Outcome, Reply, Request, ServedTransaction,
    SnapshotView, TransactionKey, VERSION, read_frame, write_frame,
};

/// Returns a store with a dictionary, whose clients may write.
pub fn store() -> (Store, DictionaryId) {
    let store = Store::writable();
    let dict = store.db.open_dictionary("fruit").unwrap().id();
    (store, dict)
}

pub fn begin(client: &Arc<Client>) -> Arc<ServedTransaction> {
    Arc::new(ServedTransaction::begin(client, BeginOptions::default()).unwrap())
}

pub fn durable(client: &Arc<Client>) -> Arc<ServedTransaction> {
    let options = BeginOptions { durable: true, ..BeginOptions::default() };
    Arc::new(ServedTransaction::begin(client, options).unwrap())
}

pub fn put(scope: &Scope, dict: DictionaryId, key: &str, value: &str) {
    let mut batch = Batch::new();
    batch.put(dict, key.to_owned(), value.to_owned());
    scope.apply(batch, Durability::Buffered).unwrap();
}

fn add(scope: &Scope, dict: DictionaryId, key: &str) -> kvdb::Result<()> {
    let mut batch = Batch::new();
    batch.update(dict, key.to_owned(), Update::add(1));
    scope.apply(batch, Durability::Buffered)
}

pub fn text(value: Option<Bytes>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Waits until the store has this number of transactions.
#[track_caller]
fn awaits_transactions(store: &Store, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.db.transactions().len() != count {
        assert!(Instant::now() < deadline, "{:?}", store.db.transactions());
        // The store has no threads of its own: a step ends idle transactions.
        store.db.step().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_changed_is_seen_here_at_once_and_by_others_when_it_has_committed() {
    let (store, dict) = store();
    let client = store.client();
    let transaction = begin(&client);
    let scope = Scope::Served(transaction.clone());
    let before = client.counts().requests;
    put(&scope, dict, "apple", "red");
    assert_eq!(text(scope.get(dict, b"apple").unwrap()).as_deref(), Some("red"));
    assert_eq!(client.counts().requests, before, "it is gathered, and read from there");
    assert_eq!(store.db.get(dict, b"apple").unwrap(), None);
    assert_eq!(transaction.commit(true).unwrap(), Outcome::Committed);
    assert_eq!(client.counts().requests, before + 2, "its changes, and the commit");
    assert_eq!(text(store.db.get(dict, b"apple").unwrap()).as_deref(), Some("red"));
    assert!(matches!(scope.get(dict, b"apple"), Err(kvdb::Error::NoTransaction(_))));
    assert!(store.db.transactions().is_empty());
}

type Model = BTreeMap<Bytes, Bytes>;

/// Makes the same change in the transaction and the model, or compares their contents.
fn step(random: &mut Random, scope: &Scope, dict: DictionaryId, model: &mut Model) {
    // They begin with the same eight bytes, so that some are read ahead.
    let key = |random: &mut Random| Bytes::from(format!("fruit/00{:03}", random.below(60)));
    let mut batch = Batch::new();
    match random.below(13) {
        0..5 => {
            let value = Bytes::from(vec![b'v'; random.below(300) as usize]);
            let key = key(random);
            batch.put(dict, key.clone(), value.clone());
            model.insert(key, value);
        }
        5 => {
            let key = key(random);
            batch.delete(dict, key.clone());
            model.remove(&key);
        }
        6 => {
            let (a, b) = (key(random), key(random));
            batch.delete_range(dict, a.clone(), b.clone());
            model.retain(|key, _| *key < a || *key >= b);
        }
        7 => {
            let key = key(random);
            let update = Update::append(b"+").unwrap();
            let value = update.apply(model.get(&key).map(|value| &value[..]));
            batch.update(dict, key.clone(), update);
            model.insert(key, value);
        }
        8 => return scope.sync().unwrap(),
        12 => {
            let (of, key) = (key(random), key(random));
            match model.get(&of).cloned() {
                Some(value) => drop(model.insert(key.clone(), value)),
                None => drop(model.remove(&key)),
            }
            let references = vec![Reference { dict, key, of: (dict, of) }];
            return scope.apply_with(batch, references, Durability::Buffered).unwrap();
        }
        9 => {
            let key = key(random);
            return assert_eq!(scope.get(dict, &key).unwrap(), model.get(&key).cloned());
        }
        _ => {
            let (a, b) = (key(random), key(random));
            let inside = model.iter().filter(|(key, _)| **key >= a && **key < b);
            let mut expected: Vec<_> =
                inside.map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_eq!(scope.scan(dict, &a, &b, usize::MAX).unwrap(), expected);
            let mut cursor = scope.cursor(dict, &a, &b).unwrap();
            cursor.seek_to_end().unwrap();
            let mut found = Vec::new();
            while let Some(tuple) = cursor.prev().unwrap() {
                found.push((tuple.key.clone(), tuple.value().unwrap()));
            }
            expected.reverse();
            return assert_eq!(found, expected);
        }
    }
    scope.apply(batch, Durability::Buffered).unwrap();
}

#[test]
fn a_transaction_over_the_wire_reads_as_one_that_is_here() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (store, dict) = store();
        let mut model = Model::new();
        let here = Scope::Mainline(store.db.clone());
        (0..100).for_each(|_| step(&mut random, &here, dict, &mut model));
        let client = store.client();
        let transaction = if seed % 2 == 0 { begin(&client) } else { durable(&client) };
        let scope = Scope::Served(transaction.clone());
        let mut savepoint = None;
        for _ in 0..400 {
            match (random.below(40), &savepoint) {
                (0, _) => {
                    savepoint = Some((transaction.savepoint().unwrap(), model.clone()));
                }
                (1, Some((point, then))) => {
                    transaction.roll_back(point).unwrap();
                    model = then.clone();
                }
                _ => step(&mut random, &scope, dict, &mut model),
            }
        }
        assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed, "seed {seed}");
        let all = store.db.view().scan(dict, b"", b"", usize::MAX).unwrap();
        assert_eq!(all, model.into_iter().collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn of_two_that_change_one_key_the_second_is_told_of_the_conflict_and_is_open_still() {
    let (store, dict) = store();
    let client = store.client();
    let (first, second) = (begin(&client), begin(&client));
    put(&Scope::Served(first.clone()), dict, "apple", "red");
    let scope = Scope::Served(second.clone());
    put(&scope, dict, "apple", "green");
    assert_eq!(first.commit(false).unwrap(), Outcome::Committed);
    for _ in 0..2 {
        let Outcome::Conflict { what, keys } = second.commit(false).unwrap() else { panic!() };
        assert!(what.contains("apple"), "{what}");
        assert_eq!((keys[0].dict, &keys[0].key[..]), (dict, &b"apple"[..]));
    }
    assert_eq!(text(store.db.get(dict, b"apple").unwrap()).as_deref(), Some("red"));
    assert_eq!(text(scope.get(dict, b"apple").unwrap()).as_deref(), Some("green"));
    second.abort().unwrap();
    assert!(store.db.transactions().is_empty());
}

#[test]
fn a_client_that_drops_its_transaction_aborts_it_and_one_that_is_gone_has_it_end_by_its_lease() {
    let (store, dict) = store();
    let client = store.client();
    let scope = Scope::Served(begin(&client));
    put(&scope, dict, "apple", "red");
    scope.sync().unwrap();
    drop(scope);
    awaits_transactions(&store, 0);
    let options = BeginOptions { lease: Duration::from_millis(200), ..BeginOptions::default() };
    let transaction = Arc::new(ServedTransaction::begin(&client, options).unwrap());
    put(&Scope::Served(transaction.clone()), dict, "apple", "red");
    transaction.send().unwrap();
    assert_eq!(store.db.transactions().len(), 1);
    awaits_transactions(&store, 0);
    assert!(matches!(transaction.renew(), Err(kvdb::Error::NoTransaction(_))));
    assert!(matches!(transaction.commit(false), Err(kvdb::Error::NoTransaction(_))));
    assert_eq!(store.db.get(dict, b"apple").unwrap(), None);
}

#[test]
fn a_transaction_whose_client_says_that_it_is_there_outlives_its_lease() {
    let (store, _) = store();
    let options = BeginOptions { lease: Duration::from_millis(1500), ..BeginOptions::default() };
    let transaction = ServedTransaction::begin(&store.client(), options).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        kvdb::ServedView::sync_at_interval(&transaction).unwrap();
        store.db.step().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
}

#[test]
fn changes_that_later_ones_replace_are_not_sent() {
    let (store, dict) = store();
    let client = store.client();
    let transaction = begin(&client);
    let scope = Scope::Served(transaction.clone());
    let before = client.counts().sent;
    for i in 0..1000 {
        put(&scope, dict, "directory", &format!("{i:0100}"));
        put(&scope, dict, &format!("name {i}"), "node");
    }
    transaction.send().unwrap();
    let sent = client.counts().sent - before;
    assert!(sent < 40_000, "{sent} bytes of 1,000 names and one directory");
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    let directory = store.db.get(dict, b"directory").unwrap().unwrap();
    assert_eq!(directory, format!("{:0100}", 999));
    assert_eq!(store.db.view().scan(dict, b"name", b"namf", 2000).unwrap().len(), 1000);
}

#[test]
fn what_ends_with_its_client_waits_a_moment_to_be_sent_with_more() {
    let (store, dict) = store();
    let (client, other) = (store.client(), store.client());
    let (passing, lasting) = (begin(&client), durable(&other));
    put(&Scope::Served(passing.clone()), dict, "apple", "red");
    put(&Scope::Served(lasting.clone()), dict, "pear", "green");
    let (before, before_other) = (client.counts().requests, other.counts().requests);
    kvdb::ServedView::sync_at_interval(&*passing).unwrap();
    assert_eq!(client.counts().requests, before, "it waits");
    kvdb::ServedView::sync_at_interval(&*lasting).unwrap();
    assert!(other.counts().requests > before_other, "it is to outlive this client");
    let deadline = Instant::now() + Duration::from_secs(60);
    while client.counts().requests == before {
        assert!(Instant::now() < deadline, "it is sent");
        kvdb::ServedView::sync_at_interval(&*passing).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    put(&Scope::Served(passing.clone()), dict, "apple", "green");
    Scope::Served(passing.clone()).sync().unwrap();
    assert_eq!(client.counts().requests, before + 2, "a sync does not wait");
}

#[test]
fn a_durable_transaction_is_taken_up_by_its_key_by_another_client_of_another_server() {
    let (mut store, dict) = store();
    let client = store.client();
    let transaction = durable(&client);
    let scope = Scope::Served(transaction.clone());
    put(&scope, dict, "apple", "red");
    scope.sync().unwrap();
    let key = transaction.key();
    drop((scope, transaction, client));
    store.stop_serving();
    store.serve();
    let client = store.client();
    let wrong = ServedTransaction::take_up(&client, [7; 16]).err().unwrap();
    assert!(
        matches!(wrong, kvdb_wire::Error::Failed(Failure { code: FailureCode::NoView, .. })),
        "{wrong}"
    );
    let transaction = Arc::new(ServedTransaction::take_up(&client, key).unwrap());
    let scope = Scope::Served(transaction.clone());
    assert_eq!(text(scope.get(dict, b"apple").unwrap()).as_deref(), Some("red"));
    put(&scope, dict, "pear", "green");
    assert_eq!(transaction.commit(true).unwrap(), Outcome::Committed);
    assert_eq!(store.db.view().scan(dict, b"", b"", 9).unwrap().len(), 2);
}

/// Otherwise a batch of one client would be taken for the other client's batch of the same number.
#[test]
fn of_two_clients_that_go_on_with_one_transaction_the_later_one_has_it() {
    let (store, dict) = store();
    let (first, other) = (store.client(), store.client());
    let one = durable(&first);
    let scope = |of: &Arc<ServedTransaction>| Scope::Served(of.clone());
    put(&scope(&one), dict, "both", "before");
    one.send().unwrap();
    let two = Arc::new(ServedTransaction::take_up(&other, one.key()).unwrap());
    put(&scope(&one), dict, "of the first", "lost");
    let refused = one.send().unwrap_err();
    assert!(matches!(refused, kvdb::Error::NoTransaction(_)), "{refused}");
    assert!(one.over().unwrap().contains("another client"), "{:?}", one.over());
    put(&scope(&two), dict, "of the second", "kept");
    two.send().unwrap();
    assert_eq!(two.commit(true).unwrap(), Outcome::Committed);
    let of = |key: &str| text(store.db.get(dict, key.as_bytes()).unwrap());
    assert_eq!(of("both").as_deref(), Some("before"));
    assert_eq!((of("of the first"), of("of the second").as_deref()), (None, Some("kept")));
}

#[test]
fn a_server_that_is_begun_again_between_batches_goes_on_with_a_durable_transaction() {
    let (mut store, dict) = store();
    let client = store.client();
    let transaction = durable(&client);
    let scope = Scope::Served(transaction.clone());
    for _ in 0..10 {
        add(&scope, dict, "count").unwrap();
        transaction.send().unwrap();
        store.stop_serving();
        store.serve();
    }
    assert_eq!(text(scope.get(dict, b"count").unwrap()).as_deref(), Some("10"));
    assert_eq!(transaction.commit(true).unwrap(), Outcome::Committed);
    assert_eq!(text(store.db.get(dict, b"count").unwrap()).as_deref(), Some("10"));
    // A transaction that is not durable ends with its server.
    let transaction = begin(&client);
    let scope = Scope::Served(transaction.clone());
    add(&scope, dict, "count").unwrap();
    store.stop_serving();
    store.serve();
    assert!(matches!(transaction.send(), Err(kvdb::Error::NoTransaction(_))));
    assert!(transaction.over().is_some());
    assert_eq!(text(store.db.get(dict, b"count").unwrap()).as_deref(), Some("10"));
}

#[test]
fn a_durable_transaction_whose_commit_came_to_nothing_is_taken_up() {
    let (mut store, dict) = store();
    let client = store.client();
    let transaction = durable(&client);
    let scope = Scope::Served(transaction.clone());
    put(&scope, dict, "apple", "mine");
    scope.sync().unwrap();
    let mut batch = Batch::new();
    batch.put(dict, "apple", "of another one");
    store.db.commit(batch, Durability::Buffered).unwrap();
    assert!(matches!(transaction.commit(true).unwrap(), Outcome::Conflict { .. }));
    store.stop_serving();
    store.serve();
    // The transaction continues with the number that it had, for its client and for another one.
    put(&scope, dict, "pear", "more");
    transaction.send().unwrap();
    assert!(matches!(transaction.commit(true).unwrap(), Outcome::Conflict { .. }));
    let key = transaction.key();
    drop((scope, transaction, client));
    store.stop_serving();
    store.serve();
    let transaction = Arc::new(ServedTransaction::take_up(&store.client(), key).unwrap());
    let scope = Scope::Served(transaction.clone());
    for (name, value) in [(&b"apple"[..], "mine"), (b"pear", "more")] {
        assert_eq!(text(scope.get(dict, name).unwrap()).as_deref(), Some(value));
    }
    assert!(matches!(transaction.commit(true).unwrap(), Outcome::Conflict { .. }));
    transaction.abort().unwrap();
    let again = ServedTransaction::take_up(&store.client(), key).err().unwrap();
    assert!(again.to_string().contains("without a commit"), "{again}");
}

#[test]
fn a_session_that_is_cut_at_any_byte_is_applied_once_or_not_at_all() {
    const BATCHES: usize = 6;
    let mut outcomes = BTreeMap::new();
    for cut in [Cut::Requests, Cut::Answers] {
        let mut after = 1;
        let mut cuts = 0;
        while after < 1500 {
            for is_durable in [false, true] {
                let (store, dict) = store();
                let proxy = Proxy::new(store.path(), cut, after);
                let session = || -> kvdb::Result<Outcome> {
                    let client = proxy.client().map_err(other)?;
                    let options = BeginOptions { durable: is_durable, ..BeginOptions::default() };
                    let begun = ServedTransaction::begin(&client, options).map_err(other)?;
                    let transaction = Arc::new(begun);
                    let scope = Scope::Served(transaction.clone());
                    for _ in 0..BATCHES {
                        add(&scope, dict, "count")?;
                        scope.sync()?;
                    }
                    transaction.commit(false)
                };
                let outcome = session();
                let found = text(store.db.get(dict, b"count").unwrap());
                match &outcome {
                    Ok(Outcome::Committed) => {
                        assert_eq!(found, Some(BATCHES.to_string()), "{cut:?} after {after}");
                    }
                    // The answer to the commit may have been lost.
                    Err(kvdb::Error::Io(_)) => {
                        assert!(found.is_none() || found == Some(BATCHES.to_string()), "{found:?}");
                    }
                    other => panic!("{cut:?} after {after}: {other:?}"),
                }
                *outcomes.entry(outcome.is_ok()).or_insert(0) += 1;
                cuts += proxy.cuts();
            }
            after = after * 8 / 7 + 1;
        }
        assert!(cuts > 50, "{cuts} cuts");
    }
    assert!(outcomes.values().all(|count| *count > 10) && outcomes.len() == 2, "{outcomes:?}");
}

fn other(error: kvdb_wire::Error) -> kvdb::Error {
    kvdb::Error::Io(std::io::Error::other(error))
}

/// A client that sends the messages that a test chooses.
pub struct Raw(UnixStream);

impl Raw {
    pub fn greeted(store: &Store) -> Raw {
        let mut raw = Raw(UnixStream::connect(store.path()).unwrap());
        let welcome = raw.ask(&Request::Hello { version: VERSION, token: Bytes::new() });
        assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
        raw
    }

    pub fn ask(&mut self, request: &Request) -> Reply {
        let (kind, body) = request.encode();
        write_frame(&mut self.0, 1, kind, &body).unwrap();
        let frame = read_frame(&mut self.0).unwrap();
        Reply::decode(frame.kind, &frame.body).unwrap()
    }

    #[track_caller]
    pub fn does(&mut self, request: &Request) {
        assert_eq!(self.ask(request), Reply::Done);
    }

    #[track_caller]
    pub fn is_refused(&mut self, request: &Request, with: FailureCode) -> String {
        match self.ask(request) {
            Reply::Failed(Failure { code, what }) if code == with => what,
            answer => panic!("{answer:?}"),
        }
    }

    #[track_caller]
    fn begin(&mut self, key: TransactionKey) -> (u64, u64) {
        match self.ask(&request(key)) {
            Reply::Begun { transaction, batches, .. } => (transaction, batches),
            answer => panic!("{answer:?}"),
        }
    }
}

pub fn request(key: TransactionKey) -> Request {
    Request::Begin {
        key,
        serializable: false,
        durable: false,
        joins: false,
        takes: false,
        holder: 1,
        lease: 0,
        branch: String::new(),
        label: String::new(),
    }
}

pub fn one(dict: DictionaryId, transaction: u64, batch: u64, value: &'static str) -> Request {
    let change = ServedChange::Put(dict, "key".into(), value.into());
    Request::Apply { transaction, batch, changes: vec![change] }
}

#[test]
fn a_batch_that_comes_again_or_late_is_applied_once_and_none_is_left_out() {
    let (store, dict) = store();
    let (mut raw, mut other) = (Raw::greeted(&store), Raw::greeted(&store));
    let (number, batches) = raw.begin([1; 16]);
    assert_eq!(batches, 0);
    raw.does(&one(dict, number, 1, "first"));
    raw.does(&one(dict, number, 2, "second"));
    // On another connection, as after a cut, it is the same transaction.
    let (there, batches) = other.begin([1; 16]);
    assert_eq!(batches, 2);
    other.does(&one(dict, there, 1, "late"));
    other.does(&one(dict, there, 2, "again"));
    other.is_refused(&one(dict, there, 4, "too soon"), FailureCode::Invalid);
    other.is_refused(&one(dict, there, 0, "no number"), FailureCode::Invalid);
    let commit = |batches| Request::Commit { key: [1; 16], synced: false, batches };
    other.is_refused(&commit(3), FailureCode::Invalid);
    other.does(&commit(2));
    assert_eq!(text(store.db.get(dict, b"key").unwrap()).as_deref(), Some("second"));
    raw.is_refused(&one(dict, number, 3, "after the commit"), FailureCode::NoView);
    assert_eq!(store.db.transactions().len(), 0);
}

#[test]
fn a_commit_that_is_asked_for_again_tells_the_first_outcome_also_of_another_server() {
    let (mut store, dict) = store();
    let mut raw = Raw::greeted(&store);
    let (number, _) = raw.begin([2; 16]);
    raw.does(&one(dict, number, 1, "mine"));
    let commit = Request::Commit { key: [2; 16], synced: true, batches: 1 };
    raw.does(&commit);
    let mut batch = Batch::new();
    batch.put(dict, "key", "of another one");
    store.db.commit(batch, Durability::Buffered).unwrap();
    raw.does(&commit);
    store.stop_serving();
    store.serve();
    let mut raw = Raw::greeted(&store);
    raw.does(&commit);
    assert_eq!(text(store.db.get(dict, b"key").unwrap()).as_deref(), Some("of another one"));
    let abort = |key| Request::Abort { key };
    let what = raw.is_refused(&abort([2; 16]), FailureCode::NoView);
    assert!(what.contains("has committed"), "{what}");
    // The request that began the transaction arrives again, late: it begins no other one.
    raw.is_refused(&request([2; 16]), FailureCode::NoView);
    assert_eq!(store.db.transactions().len(), 0);
    // A transaction that never existed, and one that was aborted.
    raw.is_refused(
        &Request::Commit { key: [3; 16], synced: true, batches: 0 },
        FailureCode::NoView,
    );
    raw.begin([4; 16]);
    raw.does(&abort([4; 16]));
    raw.does(&abort([4; 16]));
    raw.is_refused(
        &Request::Commit { key: [4; 16], synced: true, batches: 0 },
        FailureCode::NoView,
    );
}

#[test]
fn a_connection_and_a_server_have_so_many_transactions_and_no_more() {
    let (store, _) = store();
    let key = |i: usize| {
        let mut key = [9; 16];
        key[..8].copy_from_slice(&i.to_le_bytes());
        key
    };
    let mut raw = Raw::greeted(&store);
    for i in 0..16 {
        raw.begin(key(i));
    }
    raw.is_refused(&request(key(16)), FailureCode::Limit);
    // To begin one of them again does not count as another one.
    raw.begin(key(3));
    raw.does(&Request::Abort { key: key(3) });
    raw.begin(key(16));
    let mut others: Vec<Raw> = (0..16).map(|_| Raw::greeted(&store)).collect();
    let begun = (17..1000).take_while(|i| {
        let other = &mut others[(i / 15) % 16];
        matches!(other.ask(&request(key(*i))), Reply::Begun { .. })
    });
    assert_eq!(begun.count(), 240);
    assert_eq!(store.db.transactions().len(), 256);
}

#[test]
fn a_view_knows_the_names_of_its_dictionaries_and_of_no_others() {
    let (store, _) = store();
    store.snapshot("monday");
    store.db.open_dictionary("tools").unwrap();
    let files = ["dmap", "imap", "nmap"];
    let is_of_user = |name: &String| !files.contains(&&**name);
    let client = store.client();
    let monday = SnapshotView::open(&client, "monday").unwrap().dictionary_names();
    let now = begin(&client).dictionary_names();
    assert_eq!(monday.into_iter().filter(is_of_user).collect::<Vec<_>>(), ["fruit"]);
    assert_eq!(now.into_iter().filter(is_of_user).collect::<Vec<_>>(), ["fruit", "tools"]);
}

#[test]
fn a_client_reaches_no_dictionary_that_is_not_of_its_branch() {
    let (store, dict) = store();
    let mut raw = Raw::greeted(&store);
    let (number, _) = raw.begin([1; 16]);
    let all: Vec<DictionaryId> =
        store.db.dictionaries_in(kvdb::STORE_BRANCH).into_iter().map(|info| info.id).collect();
    assert!(all.len() >= 2, "the counter of files, and the records of transactions");
    for other in all.into_iter().chain([DictionaryId(u32::MAX)]) {
        raw.is_refused(&one(other, number, 1, "mine"), FailureCode::NoDictionary);
        let keys = vec![Bytes::from_static(b"key")];
        let get = Request::GetMany { view: number, dict: other, keys };
        raw.is_refused(&get, FailureCode::NoDictionary);
    }
    raw.does(&one(dict, number, 1, "mine"));
    raw.is_refused(&Request::Lease { transaction: number + 1 }, FailureCode::NoView);
    raw.is_refused(
        &Request::RollBack { transaction: number, batch: 2, to: 1 },
        FailureCode::Invalid,
    );
    raw.is_refused(
        &Request::Begin {
            key: [2; 16],
            serializable: true,
            durable: true,
            joins: false,
            takes: false,
            holder: 1,
            lease: 0,
            branch: String::new(),
            label: String::new(),
        },
        FailureCode::Invalid,
    );
}

/// These branches contain the logs and the records of others' transactions.
#[test]
fn no_client_begins_in_a_branch_of_the_store_itself() {
    let (store, _) = store();
    durable(&store.client());
    let mut raw = Raw::greeted(&store);
    for branch in [".store", ".transactions"] {
        let mut asked = request([5; 16]);
        let Request::Begin { branch: of, .. } = &mut asked else { unreachable!("it is one") };
        *of = branch.into();
        raw.is_refused(&asked, FailureCode::NotAllowed);
    }
}

#[test]
fn a_client_that_floods_has_its_changes_refused_and_hurts_no_other() {
    let (mut store, dict) = store();
    store.stop_serving();
    store.options.transaction_bytes = Some(24 << 20);
    store.serve();
    let client = store.client();
    let transaction = begin(&client);
    let scope = Scope::Served(transaction.clone());
    let value = Bytes::from(vec![7; 1 << 20]);
    let refused = (0..100u32).find_map(|i| {
        let mut batch = Batch::new();
        batch.put(dict, i.to_be_bytes().to_vec(), value.clone());
        scope.apply(batch, Durability::Buffered).err()
    });
    assert!(matches!(refused, Some(kvdb::Error::NoSpace)), "{refused:?}");
    // Other clients can still write.
    let other = begin(&store.client());
    put(&Scope::Served(other.clone()), dict, "apple", "red");
    assert_eq!(other.commit(true).unwrap(), Outcome::Committed);
    assert!(transaction.commit(false).is_err(), "what it has is not all that was written");
    transaction.abort().unwrap();
    assert_eq!(store.db.view().scan(dict, b"", b"", 9).unwrap().len(), 1);
}

#[test]
fn serializable_ones_lock_what_they_read_over_the_wire() {
    let (store, dict) = store();
    let client = store.client();
    let options = BeginOptions { serializable: true, ..BeginOptions::default() };
    let reader = Arc::new(ServedTransaction::begin(&client, options).unwrap());
    let scope = Scope::Served(reader.clone());
    assert_eq!(scope.get(dict, b"key").unwrap(), None);
    assert!(store.db.is_locked(dict, b"key"));
    assert!(!store.db.is_locked(dict, b"other"));
    scope.scan(dict, b"o", b"p", 9).unwrap();
    assert!(store.db.is_locked(dict, b"other"));
    put(&scope, dict, "key", "mine");
    assert_eq!(reader.commit(false).unwrap(), Outcome::Committed);
    assert!(!store.db.is_locked(dict, b"key"));
}

#[test]
fn many_threads_write_in_one_transaction() {
    let (store, dict) = store();
    let client = store.client();
    let transaction = begin(&client);
    std::thread::scope(|threads| {
        for thread in 0..8u32 {
            let scope = Scope::Served(transaction.clone());
            threads.spawn(move || {
                for i in 0..300 {
                    let key = format!("{thread} {i}");
                    put(&scope, dict, &key, "value");
                    add(&scope, dict, "count").unwrap();
                    if i % 50 == 0 {
                        scope.sync().unwrap();
                    }
                    assert_eq!(text(scope.get(dict, key.as_bytes()).unwrap()).unwrap(), "value");
                    if i % 100 == 0 {
                        let prefix = format!("{thread} ");
                        let end = format!("{thread}!");
                        let (start, end) = (prefix.as_bytes(), end.as_bytes());
                        let own = scope.scan(dict, start, end, usize::MAX).unwrap();
                        assert_eq!(own.len(), i + 1);
                    }
                }
            });
        }
    });
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    assert_eq!(text(store.db.get(dict, b"count").unwrap()).as_deref(), Some("2400"));
    assert_eq!(store.db.view().scan(dict, b"", b"", usize::MAX).unwrap().len(), 2401);
    assert!(client.counts().requests < 200, "{} requests", client.counts().requests);
}

#[test]
fn keys_near_one_another_are_read_together_unless_reading_locks_them() {
    let (store, dict) = store();
    let here = Scope::Mainline(store.db.clone());
    for i in 0..10 {
        put(&here, dict, &format!("fruit/00{i}"), "red");
    }
    let client = store.client();
    for (serializable, requests) in [(false, [1, 1, 0, 0, 0]), (true, [1; 5])] {
        let options = BeginOptions { serializable, ..BeginOptions::default() };
        let transaction = Arc::new(ServedTransaction::begin(&client, options).unwrap());
        let scope = Scope::Served(transaction.clone());
        for (key, requests) in ["001", "002", "003", "0035", "009"].into_iter().zip(requests) {
            let before = client.counts().requests;
            let value = text(scope.get(dict, format!("fruit/{key}").as_bytes()).unwrap());
            let is_there = key.len() == 3;
            assert_eq!(value.as_deref(), is_there.then_some("red"), "{key}");
            assert_eq!(client.counts().requests - before, requests, "{key}, {serializable}");
        }
    }
}

#[test]
fn what_was_read_ahead_is_not_seen_over_later_changes_nor_after_they_are_undone() {
    let (store, dict) = store();
    let here = Scope::Mainline(store.db.clone());
    for i in 0..10 {
        put(&here, dict, &format!("fruit/00{i}"), "red");
    }
    let client = store.client();
    let transaction = begin(&client);
    let scope = Scope::Served(transaction.clone());
    let get = |i: u32| text(scope.get(dict, format!("fruit/00{i}").as_bytes()).unwrap());
    let point = transaction.savepoint().unwrap();
    put(&scope, dict, "fruit/003", "green");
    // The second one brings the others, from a server that does not have the change.
    (0..2).for_each(|i| assert_eq!(get(i).as_deref(), Some("red")));
    put(&scope, dict, "fruit/004", "blue");
    let mut batch = Batch::new();
    batch.delete_range(dict, "fruit/005", "fruit/007");
    batch.delete(dict, "fruit/008");
    batch.update(dict, "fruit/007", Update::append(b"dish").unwrap());
    scope.apply(batch, Durability::Buffered).unwrap();
    let all = |scope: &Scope| {
        let found = scope.scan(dict, b"fruit/00", b"fruit/01", usize::MAX).unwrap();
        found.into_iter().map(|(_, value)| text(Some(value)).unwrap()).collect::<Vec<_>>()
    };
    let expected = ["red", "red", "red", "green", "blue", "reddish", "red"];
    for _ in 0..2 {
        assert_eq!(get(3).as_deref(), Some("green"));
        assert_eq!(get(4).as_deref(), Some("blue"));
        assert_eq!((get(5), get(6), get(8)), (None, None, None));
        assert_eq!(get(7).as_deref(), Some("reddish"));
        assert_eq!(all(&scope), expected);
        transaction.send().unwrap();
    }
    transaction.roll_back(&point).unwrap();
    (0..9).for_each(|i| assert_eq!(get(i).as_deref(), Some("red"), "{i}"));
    assert_eq!(all(&scope).len(), 10);
}
