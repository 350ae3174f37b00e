//! Tests of requests that take long while a client asks for the lease of the main branch or holds
//! it. They delay only the requests that depend on them.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvdb::{Isolation, Kvdb, Transaction, TransactionOptions};
use kvdb_wire::{FailureCode, Host, Reply, Request, Server, ServerOptions, TransactionKey};

use crate::hosts::acts_of_the_store;
use crate::once::{ask, connected};
use crate::served_transactions::request;
use crate::waiting::awaits;

/// A place where the host waits while it is closed.
#[derive(Default)]
pub struct Gate {
    is_closed: AtomicBool,
    /// The number of calls that have reached it.
    come: AtomicU64,
}

impl Gate {
    pub fn pass(&self) {
        self.come.fetch_add(1, Ordering::Relaxed);
        awaits("it goes on", || !self.is_closed.load(Ordering::Relaxed));
    }

    /// Closes it until the result is dropped, also where an assertion fails.
    pub fn close(&self) -> Closed<'_> {
        self.is_closed.store(true, Ordering::Relaxed);
        Closed(self)
    }

    pub fn awaits_calls(&self, calls: u64) {
        awaits("it has come", || self.come.load(Ordering::Relaxed) == calls);
    }
}

pub struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.is_closed.store(false, Ordering::Relaxed);
    }
}

/// A host of keys that lends its main branch.
struct Lends {
    db: Kvdb,
    lending: Gate,
    /// The place where serializable transactions begin.
    beginning: Gate,
    /// The place where inode numbers are reserved under the lease.
    numbers: Gate,
}

impl Host for Lends {
    fn begin(&self, options: TransactionOptions) -> kvdb::Result<Transaction> {
        if options.isolation == Isolation::Serializable {
            self.beginning.pass();
        }
        Host::begin(&self.db, options)
    }

    acts_of_the_store!(commit, abort);

    fn lend(&self, since: Option<u64>) -> kvdb::Result<u64> {
        self.lending.pass();
        Ok(since.unwrap_or(1))
    }

    fn reserve_numbers_of_main(&self, _: u32) -> kvdb::Result<std::ops::Range<u64>> {
        self.numbers.pass();
        Ok(1..2)
    }
}

fn lends(options: ServerOptions) -> (Arc<Lends>, Server) {
    let db = Kvdb::in_memory();
    let host = Arc::new(Lends {
        db: db.clone(),
        lending: Gate::default(),
        beginning: Gate::default(),
        numbers: Gate::default(),
    });
    let server = Server::without_socket(db, Some(host.clone()), options).unwrap();
    (host, server)
}

const HOLDER: TransactionKey = [1; 16];

fn hold(key: TransactionKey, lease: u32) -> Request {
    Request::Hold { key, joins: false, takes: false, lease, label: "someone".into() }
}

fn is_begun(reply: &Reply) -> bool {
    matches!(reply, Reply::Begun { .. })
}

fn begin_in(key: TransactionKey, branch_is: &str) -> Request {
    let mut asked = request(key);
    let Request::Begin { branch, .. } = &mut asked else { unreachable!("it is one") };
    *branch = branch_is.into();
    asked
}

#[test]
fn transactions_are_aborted_and_clones_committed_while_a_client_waits_for_the_lease() {
    let (host, server) = lends(ServerOptions::default());
    host.db.open_dictionary("fruit").unwrap();
    host.db.snapshot("base").unwrap();
    host.db.clone_snapshot("base", "attempt").unwrap();
    std::thread::scope(|threads| {
        let closed = host.lending.close();
        let holds = threads.spawn(|| ask(&mut connected(&server), &hold(HOLDER, 0)));
        host.lending.awaits_calls(1);
        let mut raw = connected(&server);
        let (main, clone) = ([2; 16], [3; 16]);
        assert!(is_begun(&ask(&mut raw, &begin_in(main, ""))));
        assert!(is_begun(&ask(&mut raw, &begin_in(clone, "attempt"))));
        assert_eq!(ask(&mut raw, &Request::Abort { key: main }), Reply::Done);
        let commit = Request::Commit { key: clone, synced: false, batches: 0 };
        assert_eq!(ask(&mut raw, &commit), Reply::Done);
        assert!(!holds.is_finished());
        drop(closed);
        assert!(is_begun(&holds.join().unwrap()));
    });
}

/// The lock in which it waited was that of all begins, and it can wait for the lease.
#[test]
fn a_transaction_that_waits_when_it_begins_delays_its_copies_and_no_others() {
    let (host, server) = lends(ServerOptions { transactions: 2, ..ServerOptions::default() });
    let mut slow = request([2; 16]);
    let Request::Begin { serializable, .. } = &mut slow else { unreachable!("it is one") };
    *serializable = true;
    let begins = || ask(&mut connected(&server), &slow);
    std::thread::scope(|threads| {
        let closed = host.beginning.close();
        let first = threads.spawn(begins);
        host.beginning.awaits_calls(1);
        let copy = threads.spawn(begins);
        let mut raw = connected(&server);
        let other = [3; 16];
        assert!(is_begun(&ask(&mut raw, &request(other))));
        let refused = ask(&mut raw, &request([4; 16]));
        assert!(
            matches!(&refused, Reply::Failed(failure) if failure.code == FailureCode::Limit),
            "the one that waits has its place: {refused:?}"
        );
        assert_eq!(ask(&mut raw, &Request::Abort { key: other }), Reply::Done);
        assert!(!first.is_finished() && !copy.is_finished());
        drop(closed);
        let begun = [first, copy].map(|one| match one.join().unwrap() {
            Reply::Begun { id, .. } => id,
            answer => panic!("{answer:?}"),
        });
        assert_eq!(begun[0], begun[1]);
    });
    assert_eq!(host.beginning.come.load(Ordering::Relaxed), 1, "the copy begins none");
}

#[test]
fn a_lease_does_not_end_while_a_request_of_its_client_takes_longer_than_that() {
    const LEASE: u32 = 100;
    let (host, server) = lends(ServerOptions::default());
    let mut holder = connected(&server);
    let Reply::Begun { transaction, .. } = ask(&mut holder, &hold(HOLDER, LEASE)) else {
        panic!("it is free")
    };
    let mut other = connected(&server);
    let begun = [2; 16];
    assert!(is_begun(&ask(&mut other, &request(begun))));
    std::thread::scope(|threads| {
        let closed = host.numbers.close();
        let reserves = || ask(&mut holder, &Request::Reserve { transaction, count: 1 });
        let served = threads.spawn(reserves);
        host.numbers.awaits_calls(1);
        // Its time passes.
        std::thread::sleep(Duration::from_millis(3 * u64::from(LEASE)));
        for asked in [hold([3; 16], 0), Request::Commit { key: begun, synced: false, batches: 0 }] {
            let refused = ask(&mut other, &asked);
            assert!(
                matches!(&refused, Reply::Failed(failure) if failure.code == FailureCode::Locked),
                "{refused:?}"
            );
        }
        assert!(!served.is_finished());
        drop(closed);
        assert!(matches!(served.join().unwrap(), Reply::Reserved { .. }));
    });
    assert_eq!(ask(&mut holder, &Request::Sync { transaction }), Reply::Done);
}

#[test]
fn a_transaction_does_not_end_while_its_commit_waits_for_a_client_that_gets_the_lease() {
    let (host, server) = lends(ServerOptions::default());
    let short = |stream: &mut UnixStream, key| {
        let mut asked = request(key);
        let Request::Begin { lease, .. } = &mut asked else { unreachable!("it is one") };
        *lease = 100;
        match ask(stream, &asked) {
            Reply::Begun { id, .. } => id,
            answer => panic!("{answer:?}"),
        }
    };
    let commits = || {
        let all = server.counts_by_request();
        all.iter().find(|(kind, _)| *kind == "COMMIT").map_or(0, |(_, counts)| counts.requests)
    };
    let is_open = |id| host.db.transactions().iter().any(|info| info.id.0 == id);
    let (mut first, mut second) = (connected(&server), connected(&server));
    let used = short(&mut first, [2; 16]);
    std::thread::scope(|threads| {
        let closed = host.lending.close();
        let holds = threads.spawn(|| ask(&mut connected(&server), &hold(HOLDER, 0)));
        host.lending.awaits_calls(1);
        let commit = Request::Commit { key: [2; 16], synced: false, batches: 0 };
        let waits = threads.spawn(move || ask(&mut first, &commit));
        awaits("it has come", || commits() == 1);
        let later = short(&mut second, [3; 16]);
        awaits("the time of the later one is over", || {
            // The store has no threads of its own: a step ends idle transactions.
            host.db.step().unwrap();
            !is_open(later)
        });
        assert!(is_open(used) && !waits.is_finished());
        drop(closed);
        assert!(is_begun(&holds.join().unwrap()));
        let refused = waits.join().unwrap();
        assert!(
            matches!(&refused, Reply::Failed(failure) if failure.code == FailureCode::Locked),
            "{refused:?}"
        );
        assert!(is_open(used), "it can be committed after the lease");
    });
}
