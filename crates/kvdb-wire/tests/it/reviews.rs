//! Tests of queries for the changes of a transaction, which the host of the files answers.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bytes::Bytes;
use kvdb::{DictionaryId, Kvdb, Scope, Transaction};
use kvdb_wire::{
    Client, ClientOptions, Failure, FailureCode, Host, Reply, Request, Server, ServerOptions,
    TransactionKey,
};

use crate::hosts::acts_of_the_store;
use crate::lease_waits::Gate;
use crate::once::{ask, connected};
use crate::served_transactions::{Raw, begin, one, put, request, store};
use crate::waiting::awaits;

fn words(all: &[&str]) -> Vec<Bytes> {
    all.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

#[test]
fn an_answer_that_is_longer_than_a_frame_comes_whole() {
    let (store, _) = store();
    let transaction = begin(&store.client());
    for count in [0_u32, 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 77] {
        let found = transaction.review(&words(&[&count.to_string()])).unwrap();
        let all: Vec<u8> = (0..count).map(|n| (n >> 12) as u8).collect();
        assert!(found == all, "{count}: {}", found.len());
    }
    let refused = transaction.review(&words(&["a", "b", "c"])).unwrap_err();
    assert!(refused.to_string().contains("one word or two"), "{refused}");
    // A question that no frame holds is not sent.
    let refused = transaction.review(&words(&["a"; 5000])).unwrap_err();
    assert!(matches!(refused, kvdb::Error::Limit(_)), "{refused}");
    assert_eq!(transaction.review(&words(&["3"])).unwrap(), [0; 3]);
}

#[test]
fn a_question_is_about_all_that_was_changed_before_it_and_about_one_transaction() {
    let (store, dict) = store();
    let client = store.client();
    let (mine, other) = (begin(&client), begin(&client));
    put(&Scope::Served(mine.clone()), dict, "apple", "red");
    let asked = words(&[&dict.0.to_string(), "apple"]);
    assert_eq!(mine.review(&asked).unwrap(), b"red");
    assert_eq!(other.review(&asked).unwrap(), b"");
    mine.abort().unwrap();
    assert!(matches!(mine.review(&asked), Err(kvdb::Error::NoTransaction(_))));
    // A connection on which it was not begun does not reach it.
    let mut raw = Raw::greeted(&store);
    let asked = Request::Review { transaction: 1, offset: 0, words: asked };
    raw.is_refused(&asked, FailureCode::NoView);
}

/// A host of keys that answers each question with nothing, after four megabytes were put.
struct Asked {
    db: Kvdb,
    dict: DictionaryId,
    /// Where commits wait.
    committing: Gate,
    /// Where answers wait.
    answering: Gate,
}

impl Host for Asked {
    acts_of_the_store!(begin, abort);

    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()> {
        self.committing.pass();
        Host::commit(&self.db, transaction, synced)
    }

    fn review(&self, transaction: &Transaction, _: &[Bytes]) -> kvdb::Result<Vec<u8>> {
        self.answering.pass();
        for n in 0..4_u8 {
            transaction.put(self.dict, [n], vec![n; 1 << 20])?;
        }
        Ok(Vec::new())
    }
}

/// A host of keys that answers each question with twice the number of the question, one byte each.
struct Counting {
    db: Kvdb,
    questions: AtomicU8,
    /// Answers stay the same while this is set.
    stays: AtomicBool,
}

impl Host for Counting {
    acts_of_the_store!(begin, commit, abort);

    fn review(&self, _: &Transaction, _: &[Bytes]) -> kvdb::Result<Vec<u8>> {
        let more = u8::from(!self.stays.load(Ordering::Relaxed));
        let number = self.questions.fetch_add(more, Ordering::Relaxed) + more;
        Ok(vec![number; 2])
    }
}

#[test]
fn parts_of_answers_that_differ_are_not_put_together() {
    let db = Kvdb::in_memory();
    let (questions, stays) = (AtomicU8::new(0), AtomicBool::new(false));
    let host = Arc::new(Counting { db: db.clone(), questions, stays });
    let server = Server::without_socket(db, Some(host.clone()), ServerOptions::default()).unwrap();
    let mut raw = connected(&server);
    let transaction = begun(&mut raw, [1; 16]);
    let mut from = |offset, word: &str| {
        ask(&mut raw, &Request::Review { transaction, offset, words: words(&[word]) })
    };
    let part = |bytes: &'static [u8]| Reply::Part { length: 2, bytes: Bytes::from_static(bytes) };
    assert_eq!(from(0, "files"), part(b"\x01\x01"));
    // The second answer has the length of the first.
    let Reply::Failed(refused) = from(1, "files") else { panic!("the halves of two answers") };
    assert_eq!(refused.code, FailureCode::Invalid);
    assert!(refused.what.contains("was changed while its changes were read"), "{refused}");
    assert_eq!(from(0, "files"), part(b"\x03\x03"));
    host.stays.store(true, Ordering::Relaxed);
    assert_eq!(from(1, "files"), part(b"\x03"));
    assert_eq!(from(1, "files"), part(b"\x03"), "a part may be asked for again");
    // The beginning was that of another question.
    assert!(matches!(from(1, "changes"), Reply::Failed(_)));
    // An earlier answer comes again, after the beginning of a later one.
    for (number, answer) in [(7, b"\x07\x07"), (8, b"\x08\x08")] {
        host.questions.store(number, Ordering::Relaxed);
        assert_eq!(from(0, "files"), part(answer));
    }
    host.questions.store(7, Ordering::Relaxed);
    assert!(matches!(from(1, "files"), Reply::Failed(_)), "the halves of two answers");
}

/// A host of keys whose answers take two parts. Every other question gets the answer before.
struct Alternating {
    db: Kvdb,
    questions: AtomicU8,
}

impl Host for Alternating {
    acts_of_the_store!(begin, commit, abort);

    fn review(&self, _: &Transaction, _: &[Bytes]) -> kvdb::Result<Vec<u8>> {
        let number = self.questions.fetch_add(1, Ordering::Relaxed) / 2 % 2;
        Ok(vec![number; (4 << 20) + 1])
    }
}

#[test]
fn an_answer_is_one_while_another_thread_asks_the_same() {
    let db = Kvdb::in_memory();
    let host = Arc::new(Alternating { db: db.clone(), questions: AtomicU8::new(0) });
    let server = Server::without_socket(db, Some(host), ServerOptions::default()).unwrap();
    let server = Arc::new(server);
    let serving = server.clone();
    let connect = move |_| {
        let (near, far) = UnixStream::pair()?;
        serving.serve(far.into()).map_err(std::io::Error::other)?;
        Ok(near.into())
    };
    let client = Client::connect(connect, ClientOptions::default()).unwrap();
    let transaction = begin(&client);
    let read = || {
        let mut whole = 0;
        for _ in 0..8 {
            match transaction.review(&words(&["files"])) {
                Ok(found) => {
                    assert_eq!(found[0], found[4 << 20], "the parts of two answers");
                    whole += 1;
                }
                Err(refused) => {
                    let refused = refused.to_string();
                    assert!(refused.contains("was changed while its changes"), "{refused}");
                }
            }
        }
        whole
    };
    let whole = std::thread::scope(|threads| {
        let other = threads.spawn(read);
        read() + other.join().unwrap()
    });
    assert!(whole > 0);
}

fn asked(options: ServerOptions) -> (Arc<Asked>, Server) {
    let db = Kvdb::in_memory();
    let dict = db.open_dictionary("fruit").unwrap().id();
    let (committing, answering) = (Gate::default(), Gate::default());
    let host = Arc::new(Asked { db: db.clone(), dict, committing, answering });
    let server = Server::without_socket(db, Some(host.clone()), options).unwrap();
    (host, server)
}

/// Begins a transaction, or continues with it. Returns its number on the connection.
#[track_caller]
fn begun(stream: &mut UnixStream, key: TransactionKey) -> u64 {
    match ask(stream, &request(key)) {
        Reply::Begun { transaction, .. } => transaction,
        answer => panic!("{answer:?}"),
    }
}

fn question(transaction: u64) -> Request {
    Request::Review { transaction, offset: 0, words: words(&["anything"]) }
}

#[test]
fn what_is_changed_by_a_question_counts_towards_the_share_of_all() {
    let share = Some(1 << 20);
    let (host, server) =
        asked(ServerOptions { all_transactions_bytes: share, ..ServerOptions::default() });
    let mut raw = connected(&server);
    let (first, second) = (begun(&mut raw, [1; 16]), begun(&mut raw, [2; 16]));
    assert_eq!(ask(&mut raw, &one(host.dict, second, 1, "value")), Reply::Done);
    assert!(matches!(ask(&mut raw, &question(first)), Reply::Part { length: 0, .. }));
    let refused = ask(&mut raw, &one(host.dict, second, 2, "value"));
    assert!(
        matches!(&refused, Reply::Failed(Failure { code: FailureCode::NoSpace, .. })),
        "{refused:?}"
    );
}

#[test]
fn a_question_about_a_transaction_that_commits_delays_none_about_others() {
    let (host, server) = asked(ServerOptions::default());
    let (slow, other) = ([1; 16], [2; 16]);
    let (mut first, mut second, mut third) =
        (connected(&server), connected(&server), connected(&server));
    begun(&mut first, slow);
    let (of_slow, of_other) = (begun(&mut second, slow), begun(&mut third, other));
    let questions = || {
        let all = server.counts_by_request();
        all.iter().find(|(kind, _)| *kind == "REVIEW").map_or(0, |(_, counts)| counts.requests)
    };
    std::thread::scope(|threads| {
        let closed = host.committing.close();
        let commit = Request::Commit { key: slow, synced: false, batches: 0 };
        let commits = threads.spawn(move || ask(&mut first, &commit));
        host.committing.awaits_calls(1);
        let waits = threads.spawn(move || ask(&mut second, &question(of_slow)));
        awaits("it is asked", || questions() == 1);
        assert!(matches!(ask(&mut third, &question(of_other)), Reply::Part { .. }));
        assert!(!commits.is_finished() && !waits.is_finished());
        drop(closed);
        assert_eq!(commits.join().unwrap(), Reply::Done);
        let refused = waits.join().unwrap();
        assert!(
            matches!(&refused, Reply::Failed(Failure { code: FailureCode::NoView, .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn a_transaction_does_not_end_while_an_answer_or_a_commit_takes_longer_than_its_lease() {
    for is_commit in [false, true] {
        let (host, server) = asked(ServerOptions::default());
        let mut raw = connected(&server);
        let mut short = |key| {
            let mut asked = request(key);
            let Request::Begin { lease, .. } = &mut asked else { unreachable!("it is one") };
            *lease = 100;
            match ask(&mut raw, &asked) {
                Reply::Begun { id, .. } => id,
                answer => panic!("{answer:?}"),
            }
        };
        let used = short([1; 16]);
        let mut other = connected(&server);
        let (gate, asks) = match is_commit {
            true => {
                let commit = Request::Commit { key: [1; 16], synced: false, batches: 0 };
                begun(&mut other, [1; 16]);
                (&host.committing, commit)
            }
            false => (&host.answering, question(begun(&mut other, [1; 16]))),
        };
        std::thread::scope(|threads| {
            let closed = gate.close();
            let answers = threads.spawn(move || ask(&mut other, &asks));
            gate.awaits_calls(1);
            // Its lease is as long, and begins later.
            let later = short([2; 16]);
            let is_open = |id| host.db.transactions().iter().any(|info| info.id.0 == id);
            awaits("the lease of the later one is over", || {
                // The store has no threads of its own: a step ends idle transactions.
                host.db.step().unwrap();
                !is_open(later)
            });
            assert!(is_open(used) && !answers.is_finished());
            drop(closed);
            match answers.join().unwrap() {
                Reply::Done => assert!(is_commit),
                Reply::Part { .. } => assert!(!is_commit),
                answer => panic!("{answer:?}"),
            }
        });
    }
}
