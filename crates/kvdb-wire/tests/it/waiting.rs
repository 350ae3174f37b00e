//! Tests of a server that has disappeared. All calls wait for it together, once. After that they
//! fail at once, until the server answers again.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::hosts::acts_of_the_store;
use crate::wire::{self, Store};
use kvdb::{Kvdb, ServedView, Transaction};
use kvdb_wire::{
    BeginOptions, Client, Host, Outcome, Reach, ServedTransaction, Server, ServerOptions,
    SnapshotView,
};

/// Far less time than calls would take that wait one after the other.
const FAST: Duration = Duration::from_secs(5);

#[track_caller]
pub fn awaits(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads a key that was not read before.
fn ask(view: &dyn ServedView, key: u64) -> kvdb::Result<()> {
    let dict = view.dictionary("imap").unwrap();
    view.get_many(dict, &[&key.to_be_bytes()]).map(drop)
}

fn client(store: &Store, timeout: Duration) -> Arc<Client> {
    wire::client(&store.path(), timeout).unwrap()
}

/// Returns the time that this number of calls take, one after the other. All of them must fail.
#[track_caller]
fn time_to_fail(view: &dyn ServedView, calls: u64) -> Duration {
    let begun = Instant::now();
    for key in 0..calls {
        assert!(ask(view, key).is_err());
    }
    begun.elapsed()
}

#[test]
fn a_server_that_is_gone_costs_one_wait_and_is_found_again() {
    let timeout = Duration::from_secs(1);
    let mut store = Store::with_tree(1, 10);
    let client = client(&store, timeout);
    let view = SnapshotView::open(&client, "monday").unwrap();
    assert_eq!(client.reach(), Reach::Connected);
    store.stop_serving();
    let begun = Instant::now();
    std::thread::scope(|threads| {
        for _ in 0..10 {
            threads.spawn(|| assert!(ask(&view, 1).is_err()));
        }
    });
    assert!(begun.elapsed() >= timeout, "it was waited for");
    assert!(matches!(client.reach(), Reach::Gone(_)), "{:?}", client.reach());
    let failing = time_to_fail(&view, 100);
    assert!(failing < FAST, "100 calls have waited {failing:?}");
    store.serve();
    // The client finds the server without a call.
    awaits("the server is found", || client.reach() == Reach::Connected);
    ask(&view, 2).unwrap();
}

#[test]
fn a_server_that_comes_back_ends_the_wait() {
    for timeout in [Duration::from_secs(600), Duration::ZERO] {
        let mut store = Store::with_tree(1, 10);
        let client = client(&store, timeout);
        let view = SnapshotView::open(&client, "monday").unwrap();
        store.stop_serving();
        std::thread::scope(|threads| {
            let asks = threads.spawn(|| ask(&view, 1));
            awaits("it is waited for", || matches!(client.reach(), Reach::Waiting(_)));
            store.serve();
            asks.join().unwrap().unwrap();
        });
        assert_eq!(client.reach(), Reach::Connected);
    }
}

#[test]
fn calls_that_begin_while_a_server_is_waited_for_end_with_the_first_one() {
    let timeout = Duration::from_secs(2);
    let mut store = Store::with_tree(1, 10);
    let client = client(&store, timeout);
    let view = SnapshotView::open(&client, "monday").unwrap();
    store.stop_serving();
    std::thread::scope(|threads| {
        let first = threads.spawn(|| time_to_fail(&view, 1));
        let is_late =
            || matches!(client.reach(), Reach::Waiting(since) if since > timeout.mul_f32(0.75));
        awaits("most of the wait is over", is_late);
        let late = time_to_fail(&view, 1);
        assert!(late < timeout, "it has waited {late:?} more");
        assert!(first.join().unwrap() >= timeout);
    });
}

#[test]
fn a_server_that_answers_no_more_ends_all_that_wait_for_it_together() {
    let timeout = Duration::from_secs(3);
    let store = Store::with_tree(1, 10);
    let stalls = Arc::new(AtomicBool::new(false));
    let proxy = wire::Stalling::new(store.path(), stalls.clone());
    let client = wire::client(&proxy.path(), timeout).unwrap();
    let view = SnapshotView::open(&client, "monday").unwrap();
    stalls.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| assert!(ask(&view, 1).is_err()));
        // The wait is reported even though no connection has failed.
        awaits("it is waited for", || matches!(client.reach(), Reach::Waiting(_)));
        threads.spawn(|| assert!(ask(&view, 2).is_err()));
    });
    // The second call began a second later.
    assert!(begun.elapsed() < timeout + Duration::from_millis(900), "{:?}", begun.elapsed());
    stalls.store(false, Ordering::Relaxed);
    awaits("the server is found", || client.reach() == Reach::Connected);
    ask(&view, 3).unwrap();
}

/// A host whose commits wait until `goes_on` is set.
pub struct Slow {
    db: Kvdb,
    /// Number of the commits that have begun.
    pub commits: AtomicU64,
    pub goes_on: AtomicBool,
}

impl Slow {
    pub fn new(db: &Kvdb) -> Arc<Slow> {
        let (commits, goes_on) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Slow { db: db.clone(), commits, goes_on })
    }
}

impl Host for Slow {
    acts_of_the_store!(begin, abort);

    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        awaits("it goes on", || self.goes_on.load(Ordering::Relaxed));
        Host::commit(&self.db, transaction, synced)
    }
}

/// A server whose commits take long, and a change in a transaction of a client of it.
struct Slowly {
    host: Arc<Slow>,
    _server: Server,
    directory: tempfile::TempDir,
    dict: kvdb::DictionaryId,
}

impl Slowly {
    fn new() -> Slowly {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("fruit").unwrap().id();
        let directory = tempfile::tempdir().unwrap();
        let host = Slow::new(&db);
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let options = ServerOptions::default();
        let server = Server::with_transactions(db, host.clone(), listener, options).unwrap();
        Slowly { host, _server: server, directory, dict }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn changed(&self, client: &Arc<Client>) -> ServedTransaction {
        let one = ServedTransaction::begin(client, BeginOptions::default()).unwrap();
        let put = kvdb::ServedChange::Put(self.dict, "key".into(), "value".into());
        one.apply(vec![put]).unwrap();
        one
    }
}

#[test]
fn a_server_that_takes_long_over_a_request_is_not_gone() {
    let slowly = Slowly::new();
    let host = &slowly.host;
    let client = wire::client(&slowly.path(), Duration::from_millis(400)).unwrap();
    let one = slowly.changed(&client);
    let connections = client.counts().connections;
    std::thread::scope(|threads| {
        let commits = threads.spawn(|| one.commit(false));
        // The client probes for the server more than once, and finds it each time.
        awaits("it is asked again", || {
            assert!(!matches!(client.reach(), Reach::Gone(_)) && !commits.is_finished());
            client.counts().connections >= connections + 2
        });
        host.goes_on.store(true, Ordering::Relaxed);
        assert_eq!(commits.join().unwrap().unwrap(), Outcome::Committed);
    });
    assert_eq!(host.commits.load(Ordering::Relaxed), 1, "it has committed once");
    assert_eq!(host.db.get(slowly.dict, b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.reach(), Reach::Connected);
}

#[test]
fn a_server_that_vanishes_while_it_takes_long_is_waited_for_no_longer_than_others() {
    let slowly = Slowly::new();
    let stalls = Arc::new(AtomicBool::new(false));
    let proxy = wire::Stalling::new(slowly.path(), stalls.clone());
    let client = wire::client(&proxy.path(), Duration::from_millis(400)).unwrap();
    let one = slowly.changed(&client);
    let asked = || {
        let all = client.counts_by_request();
        all.iter().find(|(kind, _)| *kind == "COMMIT").map_or(0, |(_, counts)| counts.requests)
    };
    std::thread::scope(|threads| {
        let commits = threads.spawn(|| one.commit(false).is_err());
        // Each attempt takes twice as long as the one before: the fifth one more than six seconds.
        awaits("it is asked again", || {
            assert!(!commits.is_finished());
            asked() >= 5
        });
        stalls.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        assert!(commits.join().unwrap());
        assert!(begun.elapsed() < FAST, "{:?}", begun.elapsed());
        assert!(matches!(client.reach(), Reach::Gone(_)), "{:?}", client.reach());
    });
    slowly.host.goes_on.store(true, Ordering::Relaxed);
    stalls.store(false, Ordering::Relaxed);
}

#[test]
fn a_transaction_goes_on_after_its_server_was_gone_and_an_abort_does_not_wait_for_ever() {
    let mut store = Store::writable();
    store.db.open_dictionary("fruit").unwrap();
    let client = client(&store, Duration::from_millis(200));
    let begin = || {
        let durable = BeginOptions { durable: true, ..BeginOptions::default() };
        Arc::new(ServedTransaction::begin(&client, durable).unwrap())
    };
    let (first, second) = (begin(), begin());
    let dict = first.dictionary("fruit").unwrap();
    let put = |key: &'static str| kvdb::ServedChange::Put(dict, key.into(), "value".into());
    store.stop_serving();
    first.apply(vec![put("a")]).unwrap();
    assert!(first.sync().is_err());
    assert!(matches!(client.reach(), Reach::Gone(_)));
    let begun = Instant::now();
    for _ in 0..20 {
        first.apply(vec![put("b")]).unwrap();
        assert!(first.sync().is_err());
        assert!(second.abort().is_err());
    }
    assert!(begun.elapsed() < FAST, "{:?}", begun.elapsed());
    store.serve();
    awaits("the server is found", || client.reach() == Reach::Connected);
    second.abort().unwrap();
    first.sync().unwrap();
    assert_eq!(first.commit(true).unwrap(), kvdb_wire::Outcome::Committed);
    assert_eq!(store.db.get(dict, b"b").unwrap().as_deref(), Some(&b"value"[..]));
}
