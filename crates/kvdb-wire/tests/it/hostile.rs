//! Tests of clients and servers that violate the protocol, and of a network that repeats frames. No
//! other client is harmed, no operation runs without end, and no wrong data is accepted.

use crate::wire;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::wire::{Store, tree};
use bytes::Bytes;
use kvdb::{DictionaryId, Error, Scope, Space};
use kvdb_wire::{
    BeginOptions, Client, ClientOptions, Failure, FailureCode, LeaseOptions, Listed, Reply,
    Request, ServedTransaction, Server, ServerOptions, SnapshotView, Socket, VERSION, read_frame,
    write_frame,
};

fn hold(key: [u8; 16]) -> Request {
    Request::Hold { key, joins: false, takes: true, lease: 0, label: "laptop".into() }
}

/// A client that sends the messages that a test chooses.
struct Raw(UnixStream);

impl Raw {
    fn connect(store: &Store) -> Raw {
        Raw(UnixStream::connect(store.path()).unwrap())
    }

    fn greeted(store: &Store) -> Raw {
        let mut raw = Raw::connect(store);
        let welcome = raw.ask(&Request::Hello { version: VERSION, token: Bytes::new() });
        assert!(matches!(welcome, Ok(Reply::Welcome { version: VERSION, .. })), "{welcome:?}");
        raw
    }

    fn ask(&mut self, request: &Request) -> kvdb_wire::Result<Reply> {
        let (kind, body) = request.encode();
        write_frame(&mut self.0, 1, kind, &body)?;
        self.answer()
    }

    fn answer(&mut self) -> kvdb_wire::Result<Reply> {
        let frame = read_frame(&mut self.0)?;
        Reply::decode(frame.kind, &frame.body)
    }

    #[track_caller]
    fn is_refused(&mut self, request: &Request, with: FailureCode) {
        let answer = self.ask(request);
        assert!(
            matches!(&answer, Ok(Reply::Failed(Failure { code, .. })) if *code == with),
            "{answer:?}"
        );
    }
}

const MONDAY: fn() -> Request = || Request::View { snapshot: Some("monday".into()) };

#[test]
fn a_connection_begins_with_one_greeting() {
    let store = Store::with_tree(1, 10);
    let mut raw = Raw::connect(&store);
    raw.is_refused(&MONDAY(), FailureCode::NotAllowed);
    assert!(raw.ask(&MONDAY()).is_err(), "it has ended");
    let mut raw = Raw::greeted(&store);
    let again = Request::Hello { version: VERSION, token: Bytes::new() };
    raw.is_refused(&again, FailureCode::NotAllowed);
}

#[test]
fn a_client_of_another_version_is_told_and_left() {
    let store = Store::with_tree(1, 10);
    let mut raw = Raw::connect(&store);
    let answer = raw.ask(&Request::Hello { version: VERSION + 1, token: Bytes::new() });
    assert!(matches!(answer, Ok(Reply::Welcome { version: VERSION, .. })), "{answer:?}");
    assert!(raw.ask(&MONDAY()).is_err(), "it has ended");
}

#[test]
fn a_client_without_the_token_of_the_server_is_refused() {
    let store = Store::with_tree(1, 10);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let token = Bytes::from_static(b"secret");
    let options = ServerOptions { token: token.clone(), ..ServerOptions::default() };
    let _server = Server::begin(store.db.clone(), listener, options).unwrap();
    for (token, may) in
        [(&b"secret"[..], true), (b"", false), (b"secre", false), (b"secreT", false)]
    {
        let path = path.clone();
        let options =
            ClientOptions { token: Bytes::copy_from_slice(token), ..ClientOptions::default() };
        let client = Client::connect(move |time| Socket::connect_unix(&path, time), options);
        assert_eq!(client.is_ok(), may, "{token:?}");
    }
}

#[test]
fn bytes_that_are_no_request_end_their_connection_and_no_other() {
    let store = Store::with_tree(2, 30);
    let client = store.client();
    let there = wire::served(&client, "monday");
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[9, 0, 0, 0, 0, 0, 0, 0, 1, 2]] {
        let mut raw = Raw::greeted(&store);
        raw.0.write_all(bytes).unwrap();
        // The server would wait for the rest of a frame that is cut, so the stream ends here.
        raw.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(raw.answer().is_err());
    }
    let mut raw = Raw::greeted(&store);
    write_frame(&mut raw.0, 1, 99, b"").unwrap();
    assert!(raw.answer().is_err(), "a kind that is not known");
    assert!(!tree(&there).is_empty());
    assert_eq!(client.counts().connections, 1);
}

#[test]
fn a_server_stops_though_a_client_has_sent_half_a_frame() {
    let mut store = Store::with_tree(2, 10);
    let mut raw = Raw::greeted(&store);
    raw.0.write_all(&[100, 0, 0, 0, 1]).unwrap();
    store.stop_serving();
    assert!(raw.answer().is_err());
}

#[test]
fn a_connection_has_so_many_views_and_no_more() {
    let store = Store::with_tree(3, 10);
    let mut raw = Raw::greeted(&store);
    let mut last = 0;
    for _ in 0..256 {
        let Ok(Reply::Viewed { view, .. }) = raw.ask(&MONDAY()) else { panic!("not opened") };
        last = view;
    }
    raw.is_refused(&MONDAY(), FailureCode::Limit);
    assert!(matches!(raw.ask(&Request::Drop { view: last }), Ok(Reply::Done)));
    raw.is_refused(&Request::Drop { view: last }, FailureCode::NoView);
    assert!(matches!(raw.ask(&MONDAY()), Ok(Reply::Viewed { .. })));
}

#[test]
fn a_reader_can_change_nothing_by_any_request() {
    let store = Store::with_tree(3, 10);
    let mut raw = Raw::greeted(&store);
    for request in [
        Request::Begin {
            key: [7; 16],
            serializable: false,
            durable: false,
            joins: false,
            takes: false,
            holder: 1,
            lease: 0,
            branch: String::new(),
            label: String::new(),
        },
        Request::Apply { transaction: 1, batch: 1, changes: vec![] },
        Request::Commit { key: [7; 16], synced: true, batches: 0 },
        Request::Abort { key: [7; 16] },
        Request::Sync { transaction: 1 },
        Request::Lease { transaction: 1 },
        Request::Savepoint { transaction: 1, batch: 1 },
        Request::RollBack { transaction: 1, batch: 1, to: 1 },
        Request::Reserve { transaction: 1, count: 1 },
        Request::Review { transaction: 1, offset: 0, words: vec![] },
        hold([7; 16]),
        Request::Snapshot { key: [7; 16], branch: String::new(), name: "n".into(), synced: true },
        Request::Remove { clone: false, key: [7; 16], name: "monday".into() },
        Request::Clone { key: [7; 16], snapshot: "monday".into(), name: "n".into() },
    ] {
        raw.is_refused(&request, FailureCode::NotAllowed);
    }
    assert_eq!(store.db.snapshots().len(), 1);
}

#[test]
fn a_client_that_may_only_read_cannot_make_the_server_hold_long_frames() {
    // Keys of 3 MiB, in a view that is not open.
    let keys = vec![Bytes::from(vec![7; 32 << 10]); 96];
    let long = Request::GetMany { view: 9, dict: DictionaryId(1), keys };
    let keys = vec![Bytes::from(vec![7; 32 << 10]); 32];
    let usual = Request::GetMany { view: 9, dict: DictionaryId(1), keys };
    let reader = Store::with_tree(3, 10);
    let mut raw = Raw::greeted(&reader);
    raw.is_refused(&usual, FailureCode::NoView);
    assert!(raw.ask(&long).is_err(), "it has ended");
    let writer = Store::writable();
    Raw::greeted(&writer).is_refused(&long, FailureCode::NoView);
}

#[test]
fn a_client_that_takes_no_answers_is_cut_off() {
    let store = Store::with_tree(4, 200);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let options =
        ServerOptions { patience: Duration::from_millis(100), ..ServerOptions::default() };
    let _server = Server::begin(store.db.clone(), listener, options).unwrap();
    let mut raw = Raw(UnixStream::connect(&path).unwrap());
    raw.ask(&Request::Hello { version: VERSION, token: Bytes::new() }).unwrap();
    let Ok(Reply::Viewed { view, dictionaries, .. }) = raw.ask(&MONDAY()) else { panic!() };
    let dict = dictionaries.iter().find(|(_, name)| name == "dmap").unwrap().0;
    let request = Request::Iterate {
        view,
        dict,
        backward: false,
        keys_only: false,
        tuples: 4096,
        bytes: 4 << 20,
        start: Bytes::new(),
        end: Bytes::new(),
    };
    let (kind, body) = request.encode();
    raw.0.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = (0..1_000_000).find_map(|i| write_frame(&mut raw.0, i, kind, &body).err());
    // The error is a reset if the server has closed the connection before the next write.
    let cut = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset];
    assert!(
        matches!(&ended, Some(kvdb_wire::Error::Io(e)) if cut.contains(&e.kind())),
        "{ended:?}"
    );
}

/// Returns a client of a server whose answers `answer` determines.
fn scripted(answer: impl Fn(Request) -> Reply + Send + Sync + 'static) -> Arc<Client> {
    let answer = Arc::new(answer);
    let connect = move |_: Duration| {
        let (near, mut far) = UnixStream::pair()?;
        let answer = answer.clone();
        std::thread::spawn(move || {
            while let Ok(frame) = read_frame(&mut far) {
                let reply = match Request::decode(frame.kind, &frame.body) {
                    Ok(Request::Hello { .. }) => {
                        Reply::Welcome { version: VERSION, under_way: 4, views: 4 }
                    }
                    Ok(Request::View { .. }) => Reply::Viewed {
                        view: 1,
                        snapshot: [1; 16],
                        space: Space { total: 0, free: 0 },
                        dictionaries: vec![(DICT, "d".into())],
                    },
                    Ok(request) => answer(request),
                    Err(_) => break,
                };
                let (kind, body) = reply.encode();
                if write_frame(&mut far, frame.number, kind, &body).is_err() {
                    break;
                }
            }
        });
        Ok(Socket::from(near))
    };
    Client::connect(connect, ClientOptions::default()).unwrap()
}

const DICT: DictionaryId = DictionaryId(5);

fn scope(client: &Arc<Client>) -> Scope {
    Scope::Served(Arc::new(SnapshotView::open(client, "monday").unwrap()))
}

fn tuples(keys: &[&'static str], ended: bool) -> Reply {
    let tuples = keys.iter().map(|key| (Bytes::from(*key), Bytes::new())).collect();
    Reply::Tuples { ended, tuples }
}

#[test]
fn tuples_that_were_not_asked_for_are_not_believed_and_no_walk_is_endless() {
    for keys in [&["c", "b"][..], &["b", "b"], &["a"], &["x"], &["b", "c", "x"]] {
        let scope = scope(&scripted(move |_| tuples(keys, false)));
        let found = scope.scan(DICT, b"b", b"d", 100);
        assert!(matches!(found, Err(Error::Corrupt(_))), "{keys:?}: {found:?}");
        let mut cursor = scope.cursor(DICT, b"b", b"d").unwrap();
        assert!(matches!(cursor.next(), Err(Error::Corrupt(_))), "{keys:?}");
    }
    // An empty page that claims that there are more tuples.
    let empty = scope(&scripted(|_| tuples(&[], false)));
    assert!(matches!(empty.scan(DICT, b"b", b"d", 100), Err(Error::Corrupt(_))));
    assert!(matches!(empty.cursor(DICT, b"b", b"d").unwrap().next(), Err(Error::Corrupt(_))));
    // The same page repeatedly.
    let scope = scope(&scripted(|_| tuples(&["b", "c"], false)));
    let mut cursor = scope.cursor(DICT, b"b", b"d").unwrap();
    let steps: Vec<_> = (0..5).map(|_| cursor.next()).collect();
    assert!(steps.iter().any(|step| matches!(step, Err(Error::Corrupt(_)))), "{steps:?}");
}

#[test]
fn an_answer_to_something_else_is_an_error() {
    let client = scripted(|_| Reply::Done);
    assert!(scope(&client).get(DICT, b"k").is_err());
    let none = scripted(|_| Reply::Values(vec![]));
    assert!(scope(&none).get(DICT, b"k").is_err(), "which would be asked for again for ever");
    let many = scripted(|_| Reply::Values(vec![None; 9]));
    assert!(scope(&many).get(DICT, b"k").is_err());
}

#[test]
fn a_server_that_has_more_batches_than_can_be_counted_is_not_believed() {
    let client = scripted(|_| Reply::Begun {
        transaction: 1,
        id: 1,
        batches: u64::MAX,
        lease: 0,
        space: Space { total: 0, free: 0 },
        dictionaries: Vec::new(),
    });
    let begun = ServedTransaction::begin(&client, BeginOptions::default());
    assert!(matches!(begun, Err(kvdb_wire::Error::Unexpected)));
    let held = ServedTransaction::lease(&client, LeaseOptions::default());
    assert!(matches!(held, Err(kvdb_wire::Error::Unexpected)));
}

#[test]
fn a_list_without_end_does_not_fill_the_memory_of_a_client() {
    let next = AtomicU32::new(0);
    let client = scripted(move |_| {
        let first = next.fetch_add(1000, Ordering::Relaxed);
        let one = |n| Listed { name: format!("{n:0>1000}"), of: "o".repeat(1000), created: 0 };
        Reply::Listed { ended: false, all: (first..first + 1000).map(one).collect() }
    });
    let before = client.counts().requests;
    for list in [Client::snapshots, Client::clones] {
        assert!(matches!(list(&client), Err(kvdb_wire::Error::Unexpected)));
    }
    let pages = client.counts().requests - before;
    assert!((10..100).contains(&pages), "{pages}");
}

#[test]
fn a_server_that_stops_in_the_middle_fails_the_call_in_time() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = std::sync::Mutex::new(Some(near));
    let connect = move |_: Duration| {
        let near = near.lock().unwrap().take();
        near.map(Socket::from).ok_or_else(|| std::io::Error::other("the server is gone"))
    };
    let server = std::thread::spawn(move || {
        let frame = read_frame(&mut far).unwrap();
        let (kind, body) = Reply::Welcome { version: VERSION, under_way: 1, views: 1 }.encode();
        write_frame(&mut far, frame.number, kind, &body).unwrap();
        read_frame(&mut far).unwrap();
        far.write_all(&[200, 0, 0, 0, 1, 2]).unwrap();
        // The connection stays open until the client has stopped waiting.
        assert!(read_frame(&mut far).is_err());
    });
    let options = ClientOptions { timeout: Duration::from_millis(200), ..ClientOptions::default() };
    let client = Client::connect(connect, options).unwrap();
    let begun = Instant::now();
    assert!(SnapshotView::open(&client, "monday").is_err());
    assert!(begun.elapsed() < Duration::from_secs(20));
    server.join().unwrap();
}

#[test]
fn requests_and_answers_that_come_twice_change_nothing() {
    let store = Store::with_tree(5, 60);
    let path = store.path();
    let expected = tree(&wire::served(&store.client(), "monday"));
    let connect = move |_: Duration| {
        let (near, far) = UnixStream::pair()?;
        let server = UnixStream::connect(&path)?;
        for (mut from, mut to) in
            [(far.try_clone()?, server.try_clone()?), (server.try_clone()?, far.try_clone()?)]
        {
            std::thread::spawn(move || {
                while let Ok(frame) = read_frame(&mut from) {
                    for _ in 0..2 {
                        if write_frame(&mut to, frame.number, frame.kind, &frame.body).is_err() {
                            break;
                        }
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
        Ok(Socket::from(near))
    };
    let client = Client::connect(connect, ClientOptions::default()).unwrap();
    let there = wire::served(&client, "monday");
    assert_eq!(tree(&there), expected);
    assert_eq!(client.counts().connections, 1);
}

/// Returns a client of a server that answers until `is_dead` is set. After that the server accepts
/// connections, but does not answer.
fn dying(timeout: Duration) -> (Arc<Client>, Arc<AtomicBool>) {
    let is_dead = Arc::new(AtomicBool::new(false));
    let dead = is_dead.clone();
    let connect = move |_: Duration| {
        let (near, mut far) = UnixStream::pair()?;
        let dead = dead.clone();
        std::thread::spawn(move || {
            while let Ok(frame) = read_frame(&mut far) {
                let reply = match Request::decode(frame.kind, &frame.body) {
                    _ if dead.load(Ordering::Relaxed) => continue,
                    Ok(Request::Hello { .. }) => {
                        Reply::Welcome { version: VERSION, under_way: 64, views: 4 }
                    }
                    _ => Reply::Viewed {
                        view: 1,
                        snapshot: [1; 16],
                        space: Space { total: 0, free: 0 },
                        dictionaries: vec![(DICT, "d".into())],
                    },
                };
                let (kind, body) = reply.encode();
                write_frame(&mut far, frame.number, kind, &body).unwrap();
            }
        });
        Ok(Socket::from(near))
    };
    let options = ClientOptions { timeout, ..ClientOptions::default() };
    (Client::connect(connect, options).unwrap(), is_dead)
}

#[test]
fn a_dead_server_costs_all_that_wait_one_timeout_together() {
    let (client, is_dead) = dying(Duration::from_secs(1));
    let scope = scope(&client);
    is_dead.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    std::thread::scope(|threads| {
        for i in 0..16u8 {
            let scope = &scope;
            threads.spawn(move || assert!(scope.get(DICT, &[i]).is_err()));
        }
    });
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

/// Runs a function that must end soon.
fn ends<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(what()));
    is_done.recv_timeout(Duration::from_secs(30)).expect("it ends in time")
}

#[test]
fn a_server_that_answers_all_but_one_request_does_not_hold_its_caller() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = std::sync::Mutex::new(Some(near));
    let connect = move |_: Duration| {
        let near = near.lock().unwrap().take();
        near.map(Socket::from).ok_or_else(|| std::io::Error::other("the server is gone"))
    };
    std::thread::spawn(move || {
        let greeting = read_frame(&mut far).unwrap();
        let (kind, body) = Reply::Welcome { version: VERSION, under_way: 4, views: 1 }.encode();
        write_frame(&mut far, greeting.number, kind, &body).unwrap();
        // Answers to another request arrive without end.
        let (kind, body) = Reply::Done.encode();
        while write_frame(&mut far, 99, kind, &body).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let options = ClientOptions { timeout: Duration::from_millis(200), ..ClientOptions::default() };
    let client = Client::connect(connect, options).unwrap();
    ends(move || assert!(SnapshotView::open(&client, "monday").is_err()));
}

#[test]
fn a_server_whose_answer_trickles_does_not_hold_its_caller() {
    let connect = move |_: Duration| {
        let (near, mut far) = UnixStream::pair()?;
        std::thread::spawn(move || {
            let _ = far.write_all(&[0, 0, 1, 0, 1, 2, 3, 4]);
            while far.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Ok(Socket::from(near))
    };
    let options = ClientOptions { timeout: Duration::from_millis(200), ..ClientOptions::default() };
    ends(move || assert!(Client::connect(connect, options).is_err()));
}

#[test]
fn a_server_that_accepts_no_connection_does_not_hold_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // The queue has room for one connection.
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    ends(move || assert!(wire::client(&path, Duration::from_millis(200)).is_err()));
}

#[test]
fn a_page_that_is_refused_is_asked_for_again() {
    let is_bad = Arc::new(AtomicBool::new(true));
    let bad = is_bad.clone();
    let scope = scope(&scripted(move |_| match bad.load(Ordering::Relaxed) {
        true => tuples(&["c", "b"], true),
        false => tuples(&["b", "c"], true),
    }));
    assert!(matches!(scope.scan(DICT, b"b", b"d", 100), Err(Error::Corrupt(_))));
    is_bad.store(false, Ordering::Relaxed);
    assert_eq!(scope.scan(DICT, b"b", b"d", 100).unwrap().len(), 2);
}

#[test]
fn a_snapshot_whose_dictionaries_have_other_numbers_is_not_taken_for_the_same() {
    let opened = Arc::new(AtomicU32::new(0));
    let connect = move |_: Duration| {
        let (near, mut far) = UnixStream::pair()?;
        let opened = opened.clone();
        std::thread::spawn(move || {
            while let Ok(frame) = read_frame(&mut far) {
                let reply = match Request::decode(frame.kind, &frame.body) {
                    Ok(Request::Hello { .. }) => {
                        Reply::Welcome { version: VERSION, under_way: 4, views: 4 }
                    }
                    Ok(Request::View { .. }) => Reply::Viewed {
                        view: 1,
                        snapshot: [1; 16],
                        space: Space { total: 0, free: 0 },
                        dictionaries: vec![(
                            DictionaryId(opened.fetch_add(1, Ordering::Relaxed)),
                            "d".into(),
                        )],
                    },
                    // End the connection; the next one leads to another store.
                    _ if opened.load(Ordering::Relaxed) == 1 => break,
                    _ => Reply::Values(vec![Some(Bytes::from_static(b"of another one"))]),
                };
                let (kind, body) = reply.encode();
                write_frame(&mut far, frame.number, kind, &body).unwrap();
            }
        });
        Ok(Socket::from(near))
    };
    let client = Client::connect(connect, ClientOptions::default()).unwrap();
    let found = scope(&client).get(DictionaryId(0), b"k");
    assert!(matches!(found, Err(Error::NoSnapshot(_))), "{found:?}");
}

#[test]
fn the_main_branch_is_not_shown_to_clients() {
    let store = Store::with_tree(3, 10);
    let mut raw = Raw::greeted(&store);
    raw.is_refused(&Request::View { snapshot: None }, FailureCode::NotAllowed);
}

#[test]
fn a_connection_that_does_not_greet_is_ended_and_so_is_a_long_greeting() {
    let store = Store::with_tree(4, 10);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let options =
        ServerOptions { greeting: Duration::from_millis(200), ..ServerOptions::default() };
    let _server = Server::begin(store.db.clone(), listener, options).unwrap();
    let mut silent = Raw(UnixStream::connect(&path).unwrap());
    let mut trickling = Raw(UnixStream::connect(&path).unwrap());
    let ended = std::thread::spawn(move || ends(move || silent.answer().is_err()));
    // The beginning of a frame whose rest would take a minute.
    trickling.0.write_all(&[0xa0, 0x0f, 0, 0, 1, 2, 3, 4]).unwrap();
    ends(move || {
        while trickling.0.write_all(&[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert!(ended.join().unwrap());
    // A client that has been greeted may take its time.
    let mut raw = Raw(UnixStream::connect(&path).unwrap());
    raw.ask(&Request::Hello { version: VERSION, token: Bytes::new() }).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert!(matches!(raw.ask(&MONDAY()), Ok(Reply::Viewed { .. })));
    // A frame that is longer than a greeting may be is refused without waiting for its bytes.
    let mut long = Raw::connect(&store);
    long.0.write_all(&[0, 0x20, 0, 0, 1, 2, 3, 4]).unwrap();
    let begun = Instant::now();
    ends(move || assert!(long.answer().is_err()));
    assert!(begun.elapsed() < Duration::from_secs(5), "it is not the time that ends it");
}
