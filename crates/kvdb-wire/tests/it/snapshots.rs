//! Tests of snapshots and clones that clients make, list and drop over the wire. Each request is
//! executed once, whatever happens to its answer, and only if the role of the client allows it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use env::{Machine, Simulated};
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, Scope};
use kvdb_wire::{
    BeginOptions, Client, ClientOptions, Error, Failure, FailureCode, Host, Reply, Request, Result,
    ServedTransaction, Server, ServerOptions, Socket, Tokens, VERSION, read_frame, write_frame,
};
use kvfs::Fs;
use sha2::{Digest, Sha256};
use zones::CrashDevice;

use crate::hosts::acts_of_the_store;
use crate::served_transactions::{begin, put, store};
use crate::wire::{self, Cut, Proxy, Store, fill, served, tree};

fn names(client: &Client) -> Vec<String> {
    client.snapshots().unwrap().into_iter().map(|one| one.name).collect()
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(answer: Result<T>, with: FailureCode) {
    assert!(
        matches!(&answer, Err(Error::Failed(Failure { code, .. })) if *code == with),
        "{answer:?}"
    );
}

/// Returns a connection whose messages the test chooses.
fn greeted(store: &Store) -> UnixStream {
    let mut stream = UnixStream::connect(store.path()).unwrap();
    let hello = Request::Hello { version: VERSION, token: Bytes::new() };
    assert!(matches!(ask(&mut stream, &hello), Reply::Welcome { .. }));
    stream
}

fn ask(stream: &mut UnixStream, request: &Request) -> Reply {
    let (kind, body) = request.encode();
    write_frame(stream, 1, kind, &body).unwrap();
    let frame = read_frame(stream).unwrap();
    Reply::decode(frame.kind, &frame.body).unwrap()
}

fn code_of(reply: Reply) -> FailureCode {
    match reply {
        Reply::Failed(failure) => failure.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_snapshot_has_all_that_was_written_where_the_store_is_and_is_listed_and_dropped() {
    let store = Store::writable();
    let client = store.client();
    assert_eq!(names(&client), [""; 0]);
    // The file system has not told the store of this yet.
    fill(&store.fs, 1, 0..40);
    client.make_snapshot("", "monday", true).unwrap();
    assert_eq!(tree(&served(&client, "monday")), tree(&store.fs));
    fill(&store.fs, 2, 40..60);
    client.make_snapshot("", "a-later-one", false).unwrap();
    assert_ne!(tree(&served(&client, "monday")), tree(&served(&client, "a-later-one")));
    let all = client.snapshots().unwrap();
    let listed: Vec<_> = all.iter().map(|one| (&*one.name, &*one.of)).collect();
    assert_eq!(listed, [("monday", ""), ("a-later-one", "")], "the oldest first");
    assert!(all[0].created > 0 && all[0].created <= all[1].created, "{all:?}");
    is_refused(client.make_snapshot("", "monday", true), FailureCode::Exists);
    client.drop_snapshot("monday").unwrap();
    assert_eq!(names(&client), ["a-later-one"]);
    is_refused(client.drop_snapshot("monday"), FailureCode::NoSnapshot);
    is_refused(client.make_snapshot("", ".own", true), FailureCode::Invalid);
    assert!(client.make_snapshot("no-such-clone", "of-none", true).is_err());
    assert_eq!(store.db.snapshots().len(), 1);
}

#[test]
fn a_request_that_comes_again_is_done_once_also_by_a_server_that_is_begun_again() {
    let mut store = Store::writable();
    let monday = |key| Request::Snapshot {
        key: [key; 16],
        branch: String::new(),
        name: "monday".into(),
        synced: true,
    };
    let remove = |key| Request::Remove { clone: false, key: [key; 16], name: "monday".into() };
    let mut raw = greeted(&store);
    assert_eq!(ask(&mut raw, &monday(1)), Reply::Done);
    let made = store.db.snapshot_label("monday");
    for _ in 0..2 {
        assert_eq!(ask(&mut raw, &monday(1)), Reply::Done);
        assert_eq!(code_of(ask(&mut raw, &monday(2))), FailureCode::Exists);
        store.stop_serving();
        store.serve();
        raw = greeted(&store);
    }
    assert_eq!(store.db.snapshot_label("monday"), made, "it is the first one");
    assert_eq!(ask(&mut raw, &remove(3)), Reply::Done);
    store.stop_serving();
    store.serve();
    raw = greeted(&store);
    assert_eq!(ask(&mut raw, &remove(3)), Reply::Done);
    assert_eq!(code_of(ask(&mut raw, &remove(4))), FailureCode::NoSnapshot);
    // Frames that come late neither make it again, nor drop what has its name by then.
    assert_eq!(ask(&mut raw, &monday(1)), Reply::Done);
    assert_eq!(store.db.snapshot_label("monday"), None);
    store.db.snapshot("monday").unwrap();
    assert_eq!(ask(&mut raw, &remove(3)), Reply::Done);
    assert!(store.db.snapshot_label("monday").is_some());
}

#[test]
fn an_answer_that_is_lost_at_any_byte_is_asked_for_again() {
    let store = Store::writable();
    let (mut cut, mut made) = (0, 0);
    for after in 15..55 {
        let proxy = Proxy::new(store.path(), Cut::Answers, after);
        let (paths, connections) = ([proxy.path(), store.path()], AtomicUsize::new(0));
        let connect = move |time| {
            // The first connection is cut, and the others are not.
            let number = connections.fetch_add(1, Ordering::Relaxed);
            Socket::connect_unix(&paths[number.min(1)], time)
        };
        let Ok(client) = Client::connect(connect, ClientOptions::default()) else { continue };
        let name = format!("after-{after}");
        client.make_snapshot("", &name, false).unwrap();
        made += 1;
        assert_eq!(names(&client).len(), made);
        cut += u64::from(client.counts().connections > 1);
    }
    assert!(cut >= 10, "{cut}");
    assert_eq!(store.db.snapshots().len(), made);
}

#[test]
fn a_drop_that_was_answered_is_not_done_again_after_a_crash_to_what_has_the_name_by_then() {
    let open = || OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() };
    let serve = |db: &Kvdb| {
        let (host, options) = (Arc::new(db.clone()), ServerOptions::default());
        let server = Server::without_socket(db.clone(), Some(host), options).unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        server.serve(far.into()).unwrap();
        let hello = Request::Hello { version: VERSION, token: Bytes::new() };
        assert!(matches!(ask(&mut near, &hello), Reply::Welcome { .. }));
        (server, near)
    };
    let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(1)));
    let options = CreateOptions { open: open(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
    db.snapshot("monday").unwrap();
    let remove = Request::Remove { clone: false, key: [1; 16], name: "monday".into() };
    let (server, mut near) = serve(&db);
    assert_eq!(ask(&mut near, &remove), Reply::Done);
    let image = device.durable();
    drop((near, server, db));
    let (db, _) = Kvdb::open(Arc::new(CrashDevice::over(image)), env, open()).unwrap();
    db.snapshot("monday").unwrap();
    let (_server, mut near) = serve(&db);
    assert_eq!(ask(&mut near, &remove), Reply::Done);
    assert!(db.snapshot_label("monday").is_some());
}

/// A host that makes and drops snapshots, and does not know that it has.
struct Forgetful {
    db: Kvdb,
}

impl Host for Forgetful {
    acts_of_the_store!(begin, commit, abort);

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> kvdb::Result<()> {
        self.db.snapshot_of(branch, name, durability)?;
        Err(kvdb::Error::Io(io::Error::other("lost")))
    }

    fn remove_snapshot(&self, name: &str) -> kvdb::Result<()> {
        self.db.drop_snapshot(name)?;
        Err(kvdb::Error::Io(io::Error::other("lost")))
    }
}

#[test]
fn a_request_that_was_cut_short_on_the_server_is_told_its_outcome() {
    let db = Kvdb::in_memory();
    let host = Arc::new(Forgetful { db: db.clone() });
    let server = Server::without_socket(db.clone(), Some(host), ServerOptions::default()).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    server.serve(far.into()).unwrap();
    let hello = Request::Hello { version: VERSION, token: Bytes::new() };
    assert!(matches!(ask(&mut near, &hello), Reply::Welcome { .. }));
    let name = String::from("monday");
    let make =
        Request::Snapshot { key: [1; 16], branch: String::new(), name: name.clone(), synced: true };
    let remove = Request::Remove { clone: false, key: [2; 16], name };
    for request in [make, remove] {
        assert_eq!(code_of(ask(&mut near, &request)), FailureCode::Other);
        assert_eq!(ask(&mut near, &request), Reply::Done);
    }
    assert!(db.snapshots().is_empty());
}

#[test]
fn a_request_with_the_key_of_a_transaction_is_refused_and_its_outcome_stays() {
    let (store, dict) = store();
    let transaction = begin(&store.client());
    put(&Scope::Served(transaction.clone()), dict, "apple", "red");
    transaction.commit(false).unwrap();
    let key = transaction.key();
    let mut raw = greeted(&store);
    let request = Request::Snapshot { key, branch: "".into(), name: "n".into(), synced: false };
    assert_eq!(code_of(ask(&mut raw, &request)), FailureCode::Invalid);
    let commit = Request::Commit { key, synced: false, batches: 1 };
    assert_eq!(ask(&mut raw, &commit), Reply::Done);
    assert!(store.db.snapshots().is_empty());
}

/// A store with the snapshot `base` and the clone `attempt-1`, and a server of it whose clients
/// show tokens.
struct Served {
    db: Kvdb,
    server: Arc<Server>,
    tokens: Arc<Tokens>,
}

impl Served {
    fn new(options: ServerOptions) -> Served {
        let lines = [
            ("reader", "read=base"),
            ("writer", "write"),
            ("guest", "write=attempt-* read=base"),
            ("maker", "write=attempt-* read=*"),
            ("root", "admin"),
        ];
        let lines = lines.map(|(token, words)| {
            let hash: [u8; 32] = Sha256::digest(token).into();
            let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digits} {words}\n")
        });
        let tokens = Arc::new(Tokens::parse(&lines.concat()).unwrap());
        let db = Kvdb::in_memory();
        db.open_dictionary("fruit").unwrap();
        db.snapshot("base").unwrap();
        db.clone_snapshot("base", "attempt-1").unwrap();
        let host = Arc::new(db.clone());
        let server = Server::without_socket(db.clone(), Some(host), options).unwrap();
        Served { db, server: Arc::new(server), tokens }
    }

    fn client(&self, token: &'static str) -> Arc<Client> {
        let (server, tokens) = (self.server.clone(), self.tokens.clone());
        let options = ClientOptions { token: token.into(), ..ClientOptions::default() };
        let connect = move |_| {
            let (near, far) = UnixStream::pair()?;
            server.serve_with(far.into(), &tokens).map_err(io::Error::other)?;
            Ok(near.into())
        };
        Client::connect(connect, options).unwrap()
    }
}

#[test]
fn a_client_makes_snapshots_of_the_branches_that_it_may_write_and_one_that_administers_drops_them()
{
    let served = Served::new(ServerOptions::default());
    let [reader, writer, guest, root] =
        ["reader", "writer", "guest", "root"].map(|token| served.client(token));
    for (client, branch) in
        [(&reader, ""), (&reader, "attempt-1"), (&writer, "attempt-1"), (&guest, "")]
    {
        is_refused(client.make_snapshot(branch, "n", false), FailureCode::NotAllowed);
    }
    writer.make_snapshot("", "of-main", false).unwrap();
    guest.make_snapshot("attempt-1", "of-clone", false).unwrap();
    assert_eq!(names(&reader), ["base"]);
    assert_eq!(names(&writer), ["base", "of-main"]);
    assert_eq!(names(&guest), ["base", "of-clone"]);
    assert_eq!(names(&root), ["base", "of-main", "of-clone"]);
    assert_eq!(root.snapshots().unwrap()[2].of, "attempt-1");
    for client in [&reader, &writer, &guest] {
        for name in ["of-main", "of-clone", "no-such"] {
            is_refused(client.drop_snapshot(name), FailureCode::NotAllowed);
        }
    }
    root.drop_snapshot("of-main").unwrap();
    assert_eq!(names(&root), ["base", "of-clone"]);
}

#[test]
fn a_clone_is_made_of_a_snapshot_written_in_transactions_and_dropped() {
    let store = Store::writable();
    let client = store.client();
    fill(&store.fs, 1, 0..20);
    // A clone of the present state.
    client.make_snapshot("", "now", true).unwrap();
    client.make_clone("now", "attempt").unwrap();
    let listed = client.clones().unwrap();
    let listed: Vec<_> = listed.iter().map(|one| (&*one.name, &*one.of)).collect();
    assert_eq!(listed, [("attempt", "now")]);
    is_refused(client.make_clone("now", "attempt"), FailureCode::Exists);
    is_refused(client.make_clone("none", "other"), FailureCode::NoSnapshot);
    let options = BeginOptions { branch: "attempt".into(), ..BeginOptions::default() };
    let transaction = Arc::new(ServedTransaction::begin(&client, options).unwrap());
    let env = Arc::new(Machine::default());
    let there = Fs::served_transaction(transaction, env, wire::options()).unwrap();
    assert_eq!(tree(&there), tree(&store.fs));
    // The main branch is no clone, and its transactions continue.
    let _main = begin(&client);
    is_refused(client.drop_clone(""), FailureCode::Invalid);
    assert_eq!(store.db.transactions().len(), 2);
    client.drop_clone("attempt").unwrap();
    assert!(client.clones().unwrap().is_empty());
    assert_eq!(store.db.transactions().len(), 1);
    assert!(client.drop_clone("attempt").is_err());
    assert_eq!(names(&client), ["now"], "its snapshot stays");
}

#[test]
fn a_clone_that_is_asked_for_again_is_made_and_dropped_once_also_by_a_server_that_is_begun_again() {
    let mut store = Store::writable();
    store.db.snapshot("base").unwrap();
    let (snapshot, name) = (String::from("base"), String::from("attempt"));
    let make =
        |key| Request::Clone { key: [key; 16], snapshot: snapshot.clone(), name: name.clone() };
    let remove = |key| Request::Remove { clone: true, key: [key; 16], name: name.clone() };
    let mut raw = greeted(&store);
    for (request, other, code) in
        [(make(1), make(2), FailureCode::Exists), (remove(3), remove(4), FailureCode::Other)]
    {
        assert_eq!(ask(&mut raw, &request), Reply::Done);
        store.stop_serving();
        store.serve();
        raw = greeted(&store);
        assert_eq!(ask(&mut raw, &request), Reply::Done);
        assert_eq!(code_of(ask(&mut raw, &other)), code);
    }
    // A frame that comes late does not make it again.
    assert_eq!(ask(&mut raw, &make(1)), Reply::Done);
    assert!(store.db.branches().is_empty());
}

#[test]
fn a_client_makes_and_drops_clones_that_it_may_write_of_snapshots_that_it_may_read() {
    let served = Served::new(ServerOptions { snapshots: 3, ..ServerOptions::default() });
    served.db.snapshot("secret").unwrap();
    let [reader, writer, guest, root] =
        ["reader", "writer", "guest", "root"].map(|token| served.client(token));
    for (client, snapshot, name) in [
        (&reader, "base", "attempt-2"),
        (&writer, "base", "attempt-2"),
        (&writer, "base", ""),
        (&guest, "secret", "attempt-2"),
        (&guest, "base", "other"),
    ] {
        is_refused(client.make_clone(snapshot, name), FailureCode::NotAllowed);
    }
    guest.make_clone("base", "attempt-2").unwrap();
    root.make_clone("secret", "other").unwrap();
    is_refused(guest.make_clone("base", "attempt-3"), FailureCode::Limit);
    let names = |client: &Client| -> Vec<String> {
        client.clones().unwrap().into_iter().map(|one| one.name).collect()
    };
    assert_eq!(names(&guest), ["attempt-1", "attempt-2"]);
    assert_eq!(names(&root), ["attempt-1", "attempt-2", "other"]);
    assert!(names(&reader).is_empty() && names(&writer).is_empty());
    for client in [&reader, &writer] {
        is_refused(client.drop_clone("attempt-1"), FailureCode::NotAllowed);
    }
    is_refused(guest.drop_clone("other"), FailureCode::NotAllowed);
    guest.drop_clone("attempt-1").unwrap();
    guest.make_clone("base", "attempt-3").unwrap();
    assert_eq!(names(&guest), ["attempt-2", "attempt-3"]);
}

#[test]
fn a_snapshot_that_rules_count_is_made_by_those_alone_who_administer_the_store() {
    let served = Served::new(ServerOptions::default());
    let (writer, root) = (served.client("writer"), served.client("root"));
    let counted = "auto-2026-11-24T22:04:36Z";
    is_refused(writer.make_snapshot("", counted, false), FailureCode::NotAllowed);
    is_refused(writer.make_snapshot("", &counted[4..], false), FailureCode::NotAllowed);
    writer.make_snapshot("", "auto-2026-11-24", false).unwrap();
    writer.make_snapshot("", "ö2026-11-24T22:04:36Z", false).unwrap();
    root.make_snapshot("", counted, false).unwrap();
    assert_eq!(names(&root).len(), 4);
}

#[test]
fn a_clone_that_has_a_limit_keeps_it_until_someone_drops_it_who_administers_the_store() {
    let served = Served::new(ServerOptions::default());
    let (guest, root) = (served.client("guest"), served.client("root"));
    for files in [false, true] {
        match files {
            false => served.db.limit_branch("attempt-1", Some(1 << 20)).unwrap(),
            true => served.db.limit_files("attempt-1", Some(1000)).unwrap(),
        }
        is_refused(guest.drop_clone("attempt-1"), FailureCode::Limit);
        assert_eq!(guest.clones().unwrap().len(), 1);
        root.drop_clone("attempt-1").unwrap();
        guest.make_clone("base", "attempt-1").unwrap();
    }
    guest.drop_clone("attempt-1").unwrap();
}

#[test]
fn a_clone_that_is_made_of_a_limited_one_has_its_limits_unless_who_makes_it_administers_the_store()
{
    let served = Served::new(ServerOptions::default());
    let (maker, root) = (served.client("maker"), served.client("root"));
    served.db.limit_branch("attempt-1", Some(1 << 20)).unwrap();
    served.db.limit_files("attempt-1", Some(1000)).unwrap();
    maker.make_snapshot("attempt-1", "of-clone", false).unwrap();
    maker.make_clone("of-clone", "attempt-2").unwrap();
    maker.make_clone("base", "attempt-3").unwrap();
    root.make_clone("of-clone", "other").unwrap();
    let limits = |name: &str| {
        let mut all = served.db.branches().into_iter();
        let info = all.find(|info| info.name == name).unwrap();
        (info.limit.map(|limit| limit.bytes), info.limit_of_files)
    };
    assert_eq!(limits("attempt-2"), (Some(1 << 20), Some(1000)));
    assert_eq!(limits("attempt-3"), (None, None), "what it has was never limited");
    assert_eq!(limits("other"), (None, None));
    is_refused(maker.drop_clone("attempt-2"), FailureCode::Limit);
}

#[test]
fn a_client_that_a_limit_holds_does_not_get_around_it_by_snapshots() {
    let served = Served::new(ServerOptions::default());
    let (maker, root) = (served.client("maker"), served.client("root"));
    maker.make_snapshot("attempt-1", "first", false).unwrap();
    maker.make_snapshot("attempt-1", "second", false).unwrap();
    served.db.limit_branch("attempt-1", Some(1 << 20)).unwrap();
    is_refused(maker.make_snapshot("attempt-1", "third", false), FailureCode::Limit);
    root.make_snapshot("attempt-1", "third", false).unwrap();
    for name in ["first", "second", "third"] {
        is_refused(maker.make_snapshot("attempt-1", "more", false), FailureCode::Limit);
        root.drop_snapshot(name).unwrap();
    }
    // It takes twice its limit at most, with one of them.
    maker.make_snapshot("attempt-1", "more", false).unwrap();
    is_refused(maker.make_snapshot("attempt-1", "again", false), FailureCode::Limit);
    served.db.limit_branch("attempt-1", None).unwrap();
    maker.make_snapshot("attempt-1", "again", false).unwrap();
}

#[test]
fn a_store_with_many_snapshots_gets_more_from_those_alone_who_administer_it() {
    let served = Served::new(ServerOptions { snapshots: 2, ..ServerOptions::default() });
    let (writer, root) = (served.client("writer"), served.client("root"));
    writer.make_snapshot("", "second", false).unwrap();
    is_refused(writer.make_snapshot("", "third", false), FailureCode::Limit);
    root.make_snapshot("", "third", false).unwrap();
    root.drop_snapshot("third").unwrap();
    root.drop_snapshot("second").unwrap();
    writer.make_snapshot("", "third", false).unwrap();
    assert_eq!(served.db.snapshots().len(), 2);
}

#[test]
fn a_list_of_more_snapshots_than_fit_an_answer_is_whole() {
    let served = Served::new(ServerOptions::default());
    let root = served.client("root");
    for i in 0..1030 {
        served.db.snapshot_of("", &format!("s{i}"), Durability::Buffered).unwrap();
    }
    let before = root.counts().requests;
    assert_eq!(names(&root).len(), 1031);
    assert_eq!(root.counts().requests - before, 2);
}
