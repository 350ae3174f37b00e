//! Tests that each request is executed once: which requests wait for a running copy of the same
//! request, which do not, and what a server finds after a crash.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use env::Simulated;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions};
use kvdb_wire::{
    FailureCode, Host, Reply, Request, Server, ServerOptions, Tokens, VERSION, read_frame,
    write_frame,
};
use sha2::{Digest, Sha256};
use zones::{CrashDevice, MemoryDevice};

use crate::hosts::acts_of_the_store;
use crate::waiting::awaits;

/// Returns a connection whose messages the test chooses. An answer that takes very long fails.
pub fn connected(server: &Server) -> UnixStream {
    greeted(|far| server.serve(far.into()).unwrap())
}

/// Returns a connection of a client that may do what these words say.
fn connected_as(server: &Server, words: &str) -> UnixStream {
    let hash: [u8; 32] = Sha256::digest("").into();
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let tokens = Arc::new(Tokens::parse(&format!("{digits} {words}\n")).unwrap());
    greeted(|far| server.serve_with(far.into(), &tokens).unwrap())
}

fn greeted(serve: impl FnOnce(UnixStream)) -> UnixStream {
    let (mut near, far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    serve(far);
    let hello = Request::Hello { version: VERSION, token: Bytes::new() };
    assert!(matches!(ask(&mut near, &hello), Reply::Welcome { .. }));
    near
}

pub fn ask(stream: &mut UnixStream, request: &Request) -> Reply {
    let (kind, body) = request.encode();
    write_frame(stream, 1, kind, &body).unwrap();
    let frame = read_frame(stream).unwrap();
    Reply::decode(frame.kind, &frame.body).unwrap()
}

fn snapshot(key: u8, name: &str) -> Request {
    Request::Snapshot { key: [key; 16], branch: String::new(), name: name.into(), synced: false }
}

/// A host whose snapshot of the name `slow` waits until `goes_on` is set.
struct Waits {
    db: Kvdb,
    /// Number of the snapshots of this name that have begun.
    begun: AtomicU64,
    goes_on: AtomicBool,
}

impl Host for Waits {
    acts_of_the_store!(begin, commit, abort);

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> kvdb::Result<()> {
        if name == "slow" {
            self.begun.fetch_add(1, Ordering::Relaxed);
            awaits("it goes on", || self.goes_on.load(Ordering::Relaxed));
        }
        self.db.snapshot_of(branch, name, durability)
    }

    fn remove_snapshot(&self, name: &str) -> kvdb::Result<()> {
        self.db.drop_snapshot(name)
    }
}

/// Lets the host continue, also if an assertion fails.
struct GoesOn<'a>(&'a Waits);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.goes_on.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_snapshot_that_takes_long_delays_its_copies_and_no_other_request() {
    let db = Kvdb::in_memory();
    let (begun, goes_on) = (AtomicU64::new(0), AtomicBool::new(false));
    let host = Arc::new(Waits { db: db.clone(), begun, goes_on });
    let options = ServerOptions::default();
    let server = Server::without_socket(db.clone(), Some(host.clone()), options).unwrap();
    let asked = || {
        let all = server.counts_by_request();
        all.iter().find(|(kind, _)| *kind == "SNAPSHOT").map_or(0, |(_, counts)| counts.requests)
    };
    let ask_slow = || ask(&mut connected(&server), &snapshot(1, "slow"));
    std::thread::scope(|threads| {
        let goes_on = GoesOn(&host);
        let first = threads.spawn(ask_slow);
        awaits("it is under way", || host.begun.load(Ordering::Relaxed) == 1);
        let copy = threads.spawn(ask_slow);
        awaits("the copy has arrived", || asked() == 2);
        let mut raw = connected(&server);
        assert_eq!(ask(&mut raw, &snapshot(2, "other")), Reply::Done);
        let remove = Request::Remove { clone: false, key: [3; 16], name: "other".into() };
        assert_eq!(ask(&mut raw, &remove), Reply::Done);
        assert!(!first.is_finished() && !copy.is_finished());
        drop(goes_on);
        assert_eq!(first.join().unwrap(), Reply::Done);
        assert_eq!(copy.join().unwrap(), Reply::Done);
    });
    assert_eq!(host.begun.load(Ordering::Relaxed), 1, "the copy is not done");
    assert!(db.snapshot_label("slow").is_some());
}

#[test]
fn of_two_requests_for_one_name_at_once_the_later_one_stays_refused() {
    let db = Kvdb::in_memory();
    let (begun, goes_on) = (AtomicU64::new(0), AtomicBool::new(false));
    let host = Arc::new(Waits { db: db.clone(), begun, goes_on });
    let options = ServerOptions::default();
    let server = Server::without_socket(db.clone(), Some(host.clone()), options).unwrap();
    let ask_slow = |key| ask(&mut connected(&server), &snapshot(key, "slow"));
    std::thread::scope(|threads| {
        let goes_on = GoesOn(&host);
        let both = [1, 2].map(|key| threads.spawn(move || ask_slow(key)));
        awaits("both are under way", || host.begun.load(Ordering::Relaxed) == 2);
        drop(goes_on);
        let answers = both.map(|one| one.join().unwrap());
        let done = answers.iter().filter(|answer| **answer == Reply::Done).count();
        assert_eq!(done, 1, "{answers:?}");
        // A refused request is refused again when it is repeated, and not reported as done.
        for (key, before) in [1, 2].into_iter().zip(answers) {
            assert_eq!(ask_slow(key), before);
        }
    });
}

/// A host that keeps what is on disk before and after its last act.
struct Watched {
    db: Kvdb,
    device: Arc<CrashDevice>,
    images: Mutex<Option<(MemoryDevice, MemoryDevice)>>,
}

impl Watched {
    fn around(&self, act: impl FnOnce() -> kvdb::Result<()>) -> kvdb::Result<()> {
        let before = self.device.durable();
        act()?;
        *self.images.lock().unwrap() = Some((before, self.device.durable()));
        Ok(())
    }
}

impl Host for Watched {
    acts_of_the_store!(begin, commit, abort);

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> kvdb::Result<()> {
        self.around(|| self.db.snapshot_of(branch, name, durability))
    }

    fn remove_snapshot(&self, name: &str) -> kvdb::Result<()> {
        self.around(|| self.db.drop_snapshot(name))
    }

    fn make_clone(&self, snapshot: &str, name: &str) -> kvdb::Result<()> {
        self.around(|| self.db.clone_snapshot(snapshot, name))
    }

    fn remove_clone(&self, name: &str) -> kvdb::Result<()> {
        self.around(|| self.db.drop_branch(name))
    }
}

fn open_options() -> OpenOptions {
    OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() }
}

/// Does a request on a store with the snapshots `base` and, if `is_there`, what the request is
/// about. Returns what is on disk before and after the act.
fn images_of(request: &Request, is_there: bool) -> (MemoryDevice, MemoryDevice) {
    let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(1)));
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env, options).unwrap();
    db.snapshot("base").unwrap();
    if is_there {
        db.snapshot("monday").unwrap();
        db.clone_snapshot("base", "attempt").unwrap();
    }
    let host = Arc::new(Watched { db: db.clone(), device, images: Mutex::default() });
    let options = ServerOptions::default();
    let server = Server::without_socket(db, Some(host.clone()), options).unwrap();
    assert_eq!(ask(&mut connected(&server), request), Reply::Done);
    let images = host.images.lock().unwrap().take();
    images.expect("the request is done")
}

/// Opens a store after a crash, and begins its server.
fn after_crash(image: MemoryDevice) -> (Kvdb, Server) {
    let env = Arc::new(Simulated::new(2));
    let device = Arc::new(CrashDevice::over(image));
    let (db, _) = Kvdb::open(device, env, open_options()).unwrap();
    let options = ServerOptions::default();
    let server = Server::without_socket(db.clone(), Some(Arc::new(db.clone())), options).unwrap();
    (db, server)
}

#[test]
fn after_a_crash_before_the_act_a_copy_is_not_taken_for_what_another_one_has_made() {
    let make_snapshot = |key| Request::Snapshot {
        key: [key; 16],
        branch: String::new(),
        name: "monday".into(),
        synced: true,
    };
    let make_clone =
        |key| Request::Clone { key: [key; 16], snapshot: "base".into(), name: "attempt".into() };
    for (own, other) in [(make_snapshot(1), make_snapshot(2)), (make_clone(1), make_clone(2))] {
        let (before, _) = images_of(&own, false);
        let (_db, server) = after_crash(before);
        let mut raw = connected(&server);
        assert_eq!(ask(&mut raw, &other), Reply::Done);
        let answer = ask(&mut raw, &own);
        assert!(
            matches!(&answer, Reply::Failed(failure) if failure.code == FailureCode::Exists),
            "{answer:?}"
        );
    }
}

#[test]
fn after_a_crash_before_the_act_a_copy_is_done() {
    let remove = |clone, name: &str| Request::Remove { clone, key: [1; 16], name: name.into() };
    for request in [remove(false, "monday"), remove(true, "attempt")] {
        let (before, _) = images_of(&request, true);
        let (db, server) = after_crash(before);
        assert_eq!(ask(&mut connected(&server), &request), Reply::Done);
        assert_eq!(db.snapshot_labels().len() + db.branches().len(), 2, "it is gone");
    }
}

#[test]
fn after_a_crash_after_the_act_a_copy_is_not_done_to_what_has_the_name_by_then() {
    let remove = |clone, name: &str| Request::Remove { clone, key: [1; 16], name: name.into() };
    for request in [remove(false, "monday"), remove(true, "attempt")] {
        let (_, after) = images_of(&request, true);
        let (db, server) = after_crash(after);
        match request {
            Request::Remove { clone: true, .. } => db.clone_snapshot("base", "attempt").unwrap(),
            _ => db.snapshot("monday").unwrap(),
        }
        assert_eq!(ask(&mut connected(&server), &request), Reply::Done);
        assert_eq!(db.snapshot_labels().len() + db.branches().len(), 3, "it stays");
    }
    let make = Request::Snapshot {
        key: [1; 16],
        branch: String::new(),
        name: "monday".into(),
        synced: true,
    };
    let (_, after) = images_of(&make, false);
    let (db, server) = after_crash(after);
    db.drop_snapshot("monday").unwrap();
    assert_eq!(ask(&mut connected(&server), &make), Reply::Done);
    assert_eq!(db.snapshot_label("monday"), None, "it is not made again");
}

#[test]
fn after_a_crash_before_it_was_limited_a_clone_of_a_limited_one_has_its_limits() {
    let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(1)));
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env, options).unwrap();
    db.snapshot("base").unwrap();
    db.clone_snapshot("base", "attempt-1").unwrap();
    db.limit_branch("attempt-1", Some(1 << 20)).unwrap();
    db.limit_files("attempt-1", Some(1000)).unwrap();
    db.snapshot_of("attempt-1", "of-clone", Durability::Synced).unwrap();
    let host = Arc::new(Watched { db: db.clone(), device, images: Mutex::default() });
    let server = Server::without_socket(db, Some(host.clone()), ServerOptions::default()).unwrap();
    let (snapshot, name) = (String::from("of-clone"), String::from("attempt-2"));
    let request = Request::Clone { key: [1; 16], snapshot, name };
    let words = "write=attempt-* read=of-*";
    assert_eq!(ask(&mut connected_as(&server, words), &request), Reply::Done);
    let (before, after) = host.images.lock().unwrap().take().expect("the request is done");
    let limits = |db: &Kvdb| {
        let mut all = db.branches().into_iter();
        let info = all.find(|info| info.name == "attempt-2")?;
        Some((info.limit.map(|limit| limit.bytes), info.limit_of_files))
    };
    for (image, there) in [(before, false), (after, true)] {
        let (db, server) = after_crash(image);
        assert_eq!(limits(&db).is_some(), there);
        let limited = Some((Some(1 << 20), Some(1000)));
        assert!(!there || limits(&db) == limited, "before any request: {:?}", limits(&db));
        assert_eq!(ask(&mut connected_as(&server, words), &request), Reply::Done);
        assert_eq!(limits(&db), limited);
    }
}
