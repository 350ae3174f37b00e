//! Tests of the lease of the main branch. One client at a time changes the branch directly. A
//! client that has lost the lease can change nothing more, and synced data is never lost.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::{Machine, Random};
use kvdb::{Batch, DictionaryId, Durability, Kvdb, STORE_BRANCH, Scope, ServedView, Update};
use kvdb_wire::{
    Client, ClientOptions, Error, Failure, FailureCode, LeaseOptions, Outcome, Reply, Request,
    ServedTransaction, Server, ServerOptions, Tokens, TransactionKey,
};
use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT};
use sha2::{Digest, Sha256};
use zones::varint::put_u64;

use crate::served_transactions::{Raw, begin, one, put, store, text};
use crate::wire::{self, Cut, Proxy, Store, fill, tree};

fn leased(
    client: &Arc<Client>,
    takes: bool,
    label: &str,
) -> kvdb_wire::Result<Arc<ServedTransaction>> {
    let options = LeaseOptions { takes, label: label.into(), ..LeaseOptions::default() };
    ServedTransaction::lease(client, options).map(Arc::new)
}

fn value(store: &Store, dict: DictionaryId, key: &str) -> Option<String> {
    text(store.db.get(dict, key.as_bytes()).unwrap())
}

fn scope(of: &Arc<ServedTransaction>) -> Scope {
    Scope::Served(of.clone())
}

#[track_caller]
fn is_lost(done: kvdb::Result<()>) {
    let e = done.unwrap_err();
    assert!(matches!(e, kvdb::Error::Io(_)) && e.to_string().contains("lease"), "{e}");
}

#[test]
fn what_a_client_syncs_under_the_lease_is_part_of_the_main_branch() {
    let (store, dict) = store();
    let client = store.client();
    let lease = leased(&client, false, "laptop").unwrap();
    put(&scope(&lease), dict, "apple", "red");
    assert_eq!(text(scope(&lease).get(dict, b"apple").unwrap()).as_deref(), Some("red"));
    assert_eq!(value(&store, dict, "apple"), None, "it is gathered");
    scope(&lease).sync().unwrap();
    assert_eq!(value(&store, dict, "apple").as_deref(), Some("red"));
    assert!(store.db.transactions().is_empty());
    put(&scope(&lease), dict, "pear", "green");
    lease.give_back().unwrap();
    assert_eq!(value(&store, dict, "pear").as_deref(), Some("green"));
    is_lost(lease.renew());
}

#[test]
fn a_second_client_is_told_who_has_the_lease_and_one_that_takes_it_fences_the_first() {
    let (store, dict) = store();
    let (client, other) = (store.client(), store.client());
    let first = leased(&client, false, "the laptop").unwrap();
    put(&scope(&first), dict, "both", "of the first");
    scope(&first).sync().unwrap();
    let refused = leased(&other, false, "the desk").err().unwrap();
    match &refused {
        Error::Failed(Failure { code: FailureCode::Locked, what }) => {
            assert!(what.contains("the laptop"), "{what}");
        }
        other => panic!("{other}"),
    }
    let second = leased(&other, true, "the desk").unwrap();
    assert!(second.id().0 > first.id().0);
    put(&scope(&first), dict, "late", "of the first");
    is_lost(scope(&first).sync());
    is_lost(scope(&first).get(dict, b"unknown").map(drop));
    assert!(!first.writable());
    assert!(first.over().unwrap().contains("the desk"), "{:?}", first.over());
    is_lost(first.give_back());
    let third = leased(&client, true, "\u{1b}[2J").unwrap();
    is_lost(second.renew());
    assert!(second.over().unwrap().contains("\\u{1b}"), "{:?}", second.over());
    third.give_back().unwrap();
    let second = leased(&other, false, "the desk").unwrap();
    assert_eq!(
        text(scope(&second).get(dict, b"both").unwrap()).as_deref(),
        Some("of the first"),
        "it was synced"
    );
    put(&scope(&second), dict, "both", "of the second");
    second.give_back().unwrap();
    assert_eq!(value(&store, dict, "both").as_deref(), Some("of the second"));
    assert_eq!(value(&store, dict, "late"), None);
}

const FIRST: TransactionKey = [1; 16];
const SECOND: TransactionKey = [2; 16];

fn hold(key: TransactionKey, joins: bool, takes: bool) -> Request {
    Request::Hold { key, joins, takes, lease: 0, label: "someone".into() }
}

#[track_caller]
fn held(raw: &mut Raw, request: &Request) -> (u64, u64, u64) {
    match raw.ask(request) {
        Reply::Begun { transaction, id, batches, .. } => (transaction, id, batches),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn what_comes_late_in_an_epoch_that_is_over_is_refused_and_a_lease_that_was_lost_stays_lost() {
    let (store, dict) = store();
    let (mut first, mut second) = (Raw::greeted(&store), Raw::greeted(&store));
    let (before, ..) = held(&mut first, &hold(FIRST, false, false));
    first.does(&one(dict, before, 1, "of the first"));
    let (now, ..) = held(&mut second, &hold(SECOND, false, true));
    let get = Request::GetMany { view: before, dict, keys: vec![Bytes::from_static(b"key")] };
    for late in [
        one(dict, before, 2, "late"),
        // It was applied, but its client must not take it for its own any more.
        one(dict, before, 1, "of the first"),
        get,
        Request::Sync { transaction: before },
        Request::Lease { transaction: before },
        Request::Reserve { transaction: before, count: 1 },
        hold(FIRST, true, false),
        hold(FIRST, false, true),
        Request::Commit { key: FIRST, synced: true, batches: 1 },
    ] {
        let what = first.is_refused(&late, FailureCode::Fenced);
        assert!(what.contains("someone"), "{what}");
    }
    second.does(&one(dict, now, 1, "of the second"));
    assert_eq!(value(&store, dict, "key").as_deref(), Some("of the second"));
}

#[test]
fn batches_are_applied_once_and_the_end_of_a_lease_is_told_as_often_as_it_is_asked_for() {
    let (mut store, dict) = store();
    let mut raw = Raw::greeted(&store);
    let (number, epoch, batches) = held(&mut raw, &hold(FIRST, false, false));
    assert_eq!(batches, 0);
    raw.does(&one(dict, number, 1, "first"));
    raw.does(&one(dict, number, 2, "second"));
    raw.does(&one(dict, number, 1, "first"));
    raw.is_refused(&one(dict, number, 4, "too soon"), FailureCode::Invalid);
    raw.is_refused(&one(dict, number, 0, "no number"), FailureCode::Invalid);
    assert_eq!(value(&store, dict, "key").as_deref(), Some("second"));
    // The answer to the first request was lost, or its client has reconnected.
    let mut other = Raw::greeted(&store);
    let give_back = |batches| Request::Commit { key: FIRST, synced: true, batches };
    other.is_refused(&give_back(2), FailureCode::Invalid);
    assert_eq!(held(&mut other, &hold(FIRST, false, false)).1, epoch);
    assert_eq!(held(&mut other, &hold(FIRST, true, false)).2, 2);
    other.is_refused(&give_back(1), FailureCode::Invalid);
    other.does(&give_back(2));
    raw.does(&give_back(2));
    store.stop_serving();
    store.serve();
    let mut raw = Raw::greeted(&store);
    raw.does(&give_back(2));
    raw.is_refused(&hold(FIRST, true, false), FailureCode::Fenced);
    assert!(held(&mut raw, &hold(SECOND, false, false)).1 > epoch, "epochs outlive the server");
    raw.does(&give_back(2));
}

#[test]
fn a_transaction_of_the_main_branch_commits_when_the_lease_was_given_back() {
    let (store, dict) = store();
    let (client, other) = (store.client(), store.client());
    let transaction = begin(&other);
    put(&scope(&transaction), dict, "apple", "green");
    let lease = leased(&client, false, "the laptop").unwrap();
    put(&scope(&lease), dict, "pear", "red");
    let refused = transaction.commit(false).unwrap_err();
    assert!(matches!(refused, kvdb::Error::Locked(_)), "{refused}");
    assert!(refused.to_string().contains("the laptop"), "{refused}");
    assert_eq!(transaction.over(), None);
    lease.give_back().unwrap();
    assert_eq!(transaction.commit(false).unwrap(), Outcome::Committed);
    assert_eq!(value(&store, dict, "apple").as_deref(), Some("green"));
    assert_eq!(value(&store, dict, "pear").as_deref(), Some("red"));
}

#[test]
fn a_client_that_is_gone_keeps_the_lease_until_another_one_wants_to_write() {
    let (store, dict) = store();
    let (client, other) = (store.client(), store.client());
    let lease = Duration::from_millis(100);
    let options = LeaseOptions { lease, ..LeaseOptions::default() };
    let gone = Arc::new(ServedTransaction::lease(&client, options).unwrap());
    put(&scope(&gone), dict, "apple", "red");
    scope(&gone).sync().unwrap();
    // Its time passes.
    std::thread::sleep(lease * 3);
    put(&scope(&gone), dict, "pear", "red");
    scope(&gone).sync().unwrap();
    let transaction = begin(&other);
    put(&scope(&transaction), dict, "plum", "blue");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match transaction.commit(false) {
            Ok(outcome) => break assert_eq!(outcome, Outcome::Committed),
            Err(kvdb::Error::Locked(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(e) => panic!("{e}"),
        }
    }
    put(&scope(&gone), dict, "plum", "red");
    is_lost(scope(&gone).sync());
    for (key, expected) in [("apple", "red"), ("pear", "red"), ("plum", "blue")] {
        assert_eq!(value(&store, dict, key).as_deref(), Some(expected));
    }
}

fn add(scope: &Scope, dict: DictionaryId) -> kvdb::Result<()> {
    let mut batch = Batch::new();
    batch.update(dict, "count", Update::add(1));
    scope.apply(batch, Durability::Buffered)
}

#[test]
fn a_server_that_is_begun_again_goes_on_with_the_lease() {
    let (mut store, dict) = store();
    let client = store.client();
    let lease = leased(&client, false, "the laptop").unwrap();
    for _ in 0..10 {
        add(&scope(&lease), dict).unwrap();
        lease.send().unwrap();
        store.stop_serving();
        store.serve();
    }
    add(&scope(&lease), dict).unwrap();
    lease.give_back().unwrap();
    assert_eq!(value(&store, dict, "count").as_deref(), Some("11"));
}

#[test]
fn a_lease_ends_where_the_files_were_opened_without_it() {
    let (mut store, dict) = store();
    let client = store.client();
    let lease = leased(&client, false, "the laptop").unwrap();
    put(&scope(&lease), dict, "apple", "red");
    scope(&lease).sync().unwrap();
    store.stop_serving();
    drop(Fs::open(store.db.clone(), Arc::new(Machine::default()), wire::options()).unwrap());
    store.serve();
    put(&scope(&lease), dict, "pear", "red");
    is_lost(scope(&lease).sync());
    assert_eq!(value(&store, dict, "apple").as_deref(), Some("red"));
    assert_eq!(value(&store, dict, "pear"), None);
    leased(&client, false, "the laptop").unwrap().give_back().unwrap();
}

/// Returns values of the record of a lease that no server has written.
fn hostile_records() -> Vec<Vec<u8>> {
    let held = |epoch, batches| {
        let mut value = vec![4];
        put_u64(&mut value, epoch);
        value.push(0);
        value.extend_from_slice(&FIRST);
        [batches, 60_000, 1, 0].into_iter().for_each(|number| put_u64(&mut value, number));
        value
    };
    let mut all = vec![Vec::new(), vec![4], vec![0xff; 100], held(0, 0), held(u64::MAX, 0)];
    all.extend([held(1, u64::MAX), [held(1, 0), vec![0]].concat()]);
    let mut random = Random::new(1);
    for _ in 0..20 {
        let mut value = vec![0; 1 + random.below(60) as usize];
        random.fill(&mut value);
        // No record begins with it.
        value[0] = 5;
        all.push(value);
    }
    all
}

#[test]
fn a_record_that_makes_no_sense_is_that_of_a_lease_that_was_lost() {
    for record in hostile_records() {
        let (mut store, dict) = store();
        let mut raw = Raw::greeted(&store);
        let (_, epoch, _) = held(&mut raw, &hold(FIRST, false, false));
        store.stop_serving();
        let records = store.db.dictionary_in(STORE_BRANCH, "served-transactions").unwrap();
        let mut batch = Batch::new();
        batch.put(records, "lease", record);
        store.db.commit(batch, Durability::Buffered).unwrap();
        assert!(!kvdb_wire::is_lent(&store.db).unwrap());
        store.serve();
        let mut raw = Raw::greeted(&store);
        raw.is_refused(&hold(FIRST, true, false), FailureCode::Fenced);
        let (number, next, batches) = held(&mut raw, &hold(SECOND, false, false));
        assert!(next > epoch && batches == 0, "{next} after {epoch}");
        raw.does(&one(dict, number, 1, "of the second"));
        assert_eq!(value(&store, dict, "key").as_deref(), Some("of the second"));
    }
}

#[test]
fn a_lease_whose_connections_are_cut_at_any_byte_applies_each_batch_once() {
    const BATCHES: usize = 6;
    let other = |e: Error| kvdb::Error::Io(std::io::Error::other(e.to_string()));
    for cut in [Cut::Requests, Cut::Answers] {
        let (mut after, mut cuts, mut done) = (1, 0, 0);
        while after < 1500 {
            let (store, dict) = store();
            let proxy = Proxy::new(store.path(), cut, after);
            let mut synced = 0;
            let mut session = || -> kvdb::Result<()> {
                let client = proxy.client().map_err(other)?;
                let lease = leased(&client, false, "the laptop").map_err(other)?;
                for _ in 0..BATCHES {
                    add(&scope(&lease), dict)?;
                    scope(&lease).sync()?;
                    synced += 1;
                }
                lease.give_back()
            };
            let outcome = session();
            let found = value(&store, dict, "count").map_or(0, |count| count.parse().unwrap());
            // The answer to the last one may have been lost.
            assert!((synced..=synced + 1).contains(&found), "{found} of {synced}, {cut:?} {after}");
            if outcome.is_ok() {
                assert_eq!(found, BATCHES, "{cut:?} after {after}");
                done += 1;
            }
            cuts += proxy.cuts();
            after = after * 8 / 7 + 1;
        }
        assert!(cuts > 20 && done > 0, "{cuts} cuts, {done} done");
    }
}

#[test]
fn a_host_that_uses_its_main_branch_does_not_lend_it() {
    let db = Kvdb::in_memory();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (host, options) = (Arc::new(db.clone()), ServerOptions::default());
    let _server = Server::with_transactions(db, host, listener, options).unwrap();
    let client = wire::client(&path, Duration::from_secs(60)).unwrap();
    let refused = leased(&client, true, "the laptop").err().unwrap().to_string();
    assert!(refused.contains("does not lend"), "{refused}");
}

#[test]
fn a_client_takes_the_lease_if_its_line_says_so() {
    let lines = [("writer", "write"), ("laptop", "lease"), ("root", "admin")];
    let lines = lines.map(|(token, words)| {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits} {words}\n")
    });
    let tokens = Arc::new(Tokens::parse(&lines.concat()).unwrap());
    let db = Kvdb::in_memory();
    let host = Arc::new(db.clone());
    let server = Server::without_socket(db, Some(host), ServerOptions::default()).unwrap();
    let server = Arc::new(server);
    // The host refuses clients that may, because it does not lend its main branch.
    for (token, code) in [
        ("writer", FailureCode::NotAllowed),
        ("laptop", FailureCode::Invalid),
        ("root", FailureCode::Invalid),
    ] {
        let (server, tokens) = (server.clone(), tokens.clone());
        let connect = move |_| {
            let (near, far) = UnixStream::pair()?;
            server.serve_with(far.into(), &tokens).map_err(std::io::Error::other)?;
            Ok(near.into())
        };
        let options = ClientOptions { token: token.into(), ..ClientOptions::default() };
        let client = Client::connect(connect, options).unwrap();
        match leased(&client, true, "the laptop").err().unwrap() {
            Error::Failed(failure) => assert_eq!(failure.code, code, "{token}: {failure}"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn the_files_that_a_client_changes_under_the_lease_are_the_files_there() {
    let store = Store::writable();
    fill(&store.fs, 1, 0..200);
    let doomed = store.fs.mknod(ROOT, b"doomed", FileKind::File, 0o644, 0, Caller::default());
    let doomed = doomed.unwrap().ino;
    store.fs.write(doomed, 0, &[7; 100_000], Default::default()).unwrap();
    store.fs.sync_all().unwrap();
    store.fs.forget(doomed, 1);
    let before = tree(&store.fs);
    let client = store.client();
    let lease = leased(&client, false, "the laptop").unwrap();
    let (view, env) = (lease.clone(), Arc::new(Machine::default()));
    let fs = Fs::served_transaction(view, env, wire::options()).unwrap();
    assert_eq!(tree(&fs), before);
    fill(&fs, 2, 200..500);
    // A removed file goes with its content when it is closed, whichever file it was.
    let open = fs.lookup(ROOT, b"doomed").unwrap().ino;
    fs.unlink(ROOT, b"doomed").unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.read(open, 99_000, 9).unwrap().to_vec(), [7; 9]);
    fs.forget(open, 1);
    fs.sync_all().unwrap();
    let there = || {
        let options = FsOptions { read_only: true, ..wire::options() };
        Fs::open(store.db.clone(), Arc::new(Machine::default()), options).unwrap()
    };
    let after = tree(&fs);
    assert_eq!(tree(&there()), after, "it is there without a commit");
    fs.end_served(|| Ok((lease.give_back()?, true))).unwrap();
    assert_eq!(tree(&store.fs), after, "the host follows");
    let report = store.fs.verify().unwrap();
    assert_eq!(report.findings, []);
    assert_eq!(report.orphans, 0);
}
