//! Tests of the limits on the connections of a server. Clients that share a token also share its
//! part of the connections and transactions, and leave the rest to others.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvdb::{DictionaryId, Kvdb, Scope};
use kvdb_wire::{
    BeginOptions, Client, ClientOptions, Error, FailureCode, Host, Outcome, Reach, Result,
    ServedTransaction, Server, ServerOptions, Tokens,
};
use kvfs::{Caller, FileKind, ROOT};
use sha2::{Digest, Sha256};

use crate::shares::fill;
use crate::waiting::{Slow, awaits};
use crate::wire::{self, Store};

/// A server of the clients of two tokens, `flood` and `other`.
struct Served {
    server: Arc<Server>,
    tokens: Arc<Tokens>,
    dict: DictionaryId,
}

impl Served {
    /// `words` are what the line of `flood` says in addition.
    fn new(words: &str, options: ServerOptions) -> Served {
        let db = Kvdb::in_memory();
        Served::over(db.clone(), Arc::new(db), words, options)
    }

    /// Returns a server whose commits wait, with their host.
    fn slow(words: &str, options: ServerOptions) -> (Served, Arc<Slow>) {
        let db = Kvdb::in_memory();
        let host = Slow::new(&db);
        (Served::over(db, host.clone(), words, options), host)
    }

    fn over(db: Kvdb, host: Arc<dyn Host>, words: &str, options: ServerOptions) -> Served {
        let lines = [("flood", words), ("other", "")].map(|(token, words)| {
            let hash: [u8; 32] = Sha256::digest(token).into();
            let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digits} write {words}\n")
        });
        let tokens = Arc::new(Tokens::parse(&lines.concat()).unwrap());
        let dict = db.open_dictionary("fruit").unwrap().id();
        let server = Server::without_socket(db, Some(host), options).unwrap();
        Served { server: Arc::new(server), tokens, dict }
    }

    fn client(&self, token: &'static str) -> Result<Arc<Client>> {
        self.client_with(token, ClientOptions::default().timeout, &Arc::default())
    }

    /// The client connects no more once `is_cut` is set.
    fn client_with(
        &self,
        token: &'static str,
        timeout: Duration,
        is_cut: &Arc<AtomicBool>,
    ) -> Result<Arc<Client>> {
        let is_cut = is_cut.clone();
        let (server, tokens) = (self.server.clone(), self.tokens.clone());
        let options = ClientOptions { token: token.into(), timeout, ..ClientOptions::default() };
        let connect = move |_| {
            if is_cut.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = UnixStream::pair()?;
            server.serve_with(far.into(), &tokens).map_err(io::Error::other)?;
            Ok(near.into())
        };
        Client::connect(connect, options)
    }
}

fn begin(client: &Arc<Client>) -> Result<ServedTransaction> {
    ServedTransaction::begin(client, BeginOptions::default())
}

/// Makes as many as the server lets, and returns them with the error of the one after.
#[track_caller]
fn as_many_as_possible<T>(mut make: impl FnMut() -> Result<T>) -> (Vec<T>, Error) {
    let mut made = Vec::new();
    while made.len() < 100 {
        match make() {
            Ok(one) => made.push(one),
            Err(e) => return (made, e),
        }
    }
    panic!("there is no limit");
}

#[track_caller]
fn persists<T>(mut make: impl FnMut() -> Result<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match make() {
            Ok(made) => return made,
            Err(e) => assert!(Instant::now() < deadline, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_token_that_begins_as_many_transactions_as_it_can_leaves_room_for_others() {
    let served = Served::new("", ServerOptions { transactions: 8, ..ServerOptions::default() });
    let (flood, other) = (served.client("flood").unwrap(), served.client("other").unwrap());
    let (mut open, refused) = as_many_as_possible(|| begin(&flood));
    assert_eq!(open.len(), 6, "three quarters");
    let Error::Failed(failure) = &refused else { panic!("{refused:?}") };
    assert_eq!(failure.code, FailureCode::Limit);
    assert!(failure.what.contains("of this token"), "{refused}");
    // The transactions that are open continue, also with another client of the token.
    let key = open[0].key();
    let _again = ServedTransaction::take_up(&served.client("flood").unwrap(), key).unwrap();
    let (others, refused) = as_many_as_possible(|| begin(&other));
    assert_eq!(others.len(), 2, "what is left: {refused}");
    assert!(!refused.to_string().contains("of this token"), "{refused}");
    // One that has ended makes room for another one.
    open.pop().unwrap().abort().unwrap();
    begin(&flood).unwrap();
    assert_eq!(others[0].commit(false).unwrap(), Outcome::Committed);
}

#[test]
fn a_token_that_connects_as_often_as_it_can_leaves_room_for_others() {
    let served = Served::new("", ServerOptions { connections: 8, ..ServerOptions::default() });
    let (mut clients, refused) = as_many_as_possible(|| served.client("flood"));
    assert_eq!(clients.len(), 6, "three quarters");
    assert!(matches!(&refused, Error::NoPlace(what) if what.contains("token")), "{refused:?}");
    let other = persists(|| served.client("other"));
    begin(&other).unwrap();
    // A connection that has ended makes room for another one.
    clients.pop();
    persists(|| served.client("flood"));
}

#[test]
fn more_readers_than_usual_each_read_their_file_of_a_snapshot() {
    let readers = ServerOptions::default().connections + 32;
    let name = |reader: usize| format!("file{reader}").into_bytes();
    let mut store = Store::new();
    for name in (0..readers).map(name) {
        let made = store.fs.mknod(ROOT, &name, FileKind::File, 0o644, 0, Caller::default());
        store.fs.write(made.unwrap().ino, 0, &name, Default::default()).unwrap();
    }
    store.snapshot("monday");
    store.stop_serving();
    store.options.connections = readers;
    store.serve();
    let mut clients: Vec<_> = (0..readers).map(|_| store.client()).collect();
    std::thread::scope(|threads| {
        for (reader, client) in clients.iter().enumerate() {
            threads.spawn(move || {
                let files = wire::served(client, "monday");
                let file = files.lookup(ROOT, &name(reader)).unwrap();
                assert_eq!(files.read(file.ino, 0, 100).unwrap().to_vec(), name(reader));
            });
        }
    });
    let one_more = || wire::client(&store.path(), Duration::from_secs(60));
    let refused = one_more().map(drop).unwrap_err();
    let expected = format!("the server has {readers} connections");
    assert!(matches!(&refused, Error::NoPlace(what) if what.contains(&expected)), "{refused:?}");
    // A connection that has ended makes room for another one.
    clients.pop();
    persists(one_more);
}

#[test]
fn connections_without_a_place_that_say_nothing_do_not_harm_those_that_have_one() {
    let mut store = Store::with_tree(3, 10);
    store.stop_serving();
    store.options.connections = 1;
    // Longer than the test waits, so that not this time ends any of them.
    store.options.greeting = Duration::from_secs(600);
    store.serve();
    let client = store.client();
    let mut silent: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(store.path()).unwrap()).collect();
    assert!(!wire::tree(&wire::served(&client, "monday")).is_empty());
    // At most 16 wait for their greetings; the others are closed at once.
    let ended = |stream: &mut UnixStream| {
        let soon = Some(Duration::from_millis(1));
        stream.set_read_timeout(soon).unwrap();
        matches!(io::Read::read(stream, &mut [0]), Ok(0))
    };
    awaits("the others are closed", || {
        silent.retain_mut(|stream| !ended(stream));
        silent.len() <= 16
    });
    assert_eq!(client.counts().connections, 1);
    // A server that stops does not wait for them.
    let begun = Instant::now();
    store.stop_serving();
    assert!(begun.elapsed() < Duration::from_secs(5), "it has waited for greetings");
}

#[test]
fn a_line_says_how_many_places_its_clients_have() {
    let served = Served::new("most=2", ServerOptions::default());
    let (clients, _) = as_many_as_possible(|| served.client("flood"));
    assert_eq!(clients.len(), 2);
    let (open, refused) = as_many_as_possible(|| begin(&clients[0]));
    assert_eq!(open.len(), 2, "{refused}");
    let other = served.client("other").unwrap();
    let others: Vec<_> = (0..5).map(|_| begin(&other).unwrap()).collect();
    assert_eq!(others.len(), 5);
}

#[test]
fn a_client_that_connects_again_while_the_server_works_for_it_finds_a_place() {
    let (served, host) = Served::slow("most=1", ServerOptions::default());
    let client = served.client_with("flood", Duration::from_secs(1), &Arc::default()).unwrap();
    let one = begin(&client).unwrap();
    let connections = client.counts().connections;
    std::thread::scope(|threads| {
        let commits = threads.spawn(|| one.commit(false));
        // Each attempt ends the connection of the one before, on whose request the server works.
        awaits("it is asked again", || {
            assert!(!matches!(client.reach(), Reach::Gone(_)) && !commits.is_finished());
            client.counts().connections >= connections + 2
        });
        host.goes_on.store(true, Ordering::Relaxed);
        assert_eq!(commits.join().unwrap().unwrap(), Outcome::Committed);
    });
    assert_eq!(host.commits.load(Ordering::Relaxed), 1, "it has committed once");
}

#[test]
fn a_connection_that_ends_while_all_of_its_threads_are_busy_leaves_its_place() {
    let (served, host) = Served::slow("most=2", ServerOptions::default());
    let is_cut = Arc::new(AtomicBool::new(false));
    let busy = served.client_with("flood", Duration::from_secs(60), &is_cut).unwrap();
    let _idle = served.client("flood").unwrap();
    let both = [begin(&busy).unwrap(), begin(&busy).unwrap()];
    std::thread::scope(|threads| {
        let commits = both.each_ref().map(|one| threads.spawn(move || one.commit(false)));
        awaits("both commit", || host.commits.load(Ordering::Relaxed) == 2);
        is_cut.store(true, Ordering::Relaxed);
        busy.give_up();
        for commit in commits {
            assert!(commit.join().unwrap().is_err());
        }
    });
    drop((both, busy));
    let begun = Instant::now();
    persists(|| served.client("flood"));
    assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for the commits");
    host.goes_on.store(true, Ordering::Relaxed);
}

#[test]
fn connections_that_end_while_the_server_works_for_them_leave_room_for_others() {
    let options = ServerOptions { connections: 8, ..ServerOptions::default() };
    let (served, host) = Served::slow("most=6", options);
    for ended in 1..=6 {
        let is_cut = Arc::new(AtomicBool::new(false));
        let client = persists(|| served.client_with("flood", Duration::from_secs(60), &is_cut));
        let one = begin(&client).unwrap();
        std::thread::scope(|threads| {
            let commits = threads.spawn(|| one.commit(false));
            awaits("it commits", || host.commits.load(Ordering::Relaxed) == ended);
            is_cut.store(true, Ordering::Relaxed);
            client.give_up();
            assert!(commits.join().unwrap().is_err());
        });
    }
    let refused = served.client("flood").map(drop).unwrap_err();
    assert!(matches!(&refused, Error::NoPlace(what) if what.contains("token")), "{refused:?}");
    let _other = persists(|| served.client("other"));
    host.goes_on.store(true, Ordering::Relaxed);
    persists(|| served.client("flood"));
}

#[test]
fn the_transactions_of_a_token_leave_space_to_those_of_others() {
    let options =
        ServerOptions { all_transactions_bytes: Some(24 << 20), ..ServerOptions::default() };
    let served = Served::new("", options);
    let (flood, other) = (served.client("flood").unwrap(), served.client("other").unwrap());
    let (first, second) = (Arc::new(begin(&flood).unwrap()), Arc::new(begin(&flood).unwrap()));
    let (taken, done) = fill(&Scope::Served(first.clone()), served.dict, 10);
    assert!(taken == 10 && done.is_ok(), "{taken}: {done:?}");
    let (more, refused) = fill(&Scope::Served(second.clone()), served.dict, 20);
    assert!((4..10).contains(&more), "{more}");
    assert!(matches!(refused, Err(kvdb::Error::NoSpace)), "{refused:?}");
    let why = second.refused().expect("it is told why");
    assert!(why.contains("of this token"), "{why}");
    let own = Arc::new(begin(&other).unwrap());
    let (taken, done) = fill(&Scope::Served(own.clone()), served.dict, 3);
    assert!(taken == 3 && done.is_ok(), "{taken}: {done:?}");
    assert_eq!(own.commit(false).unwrap(), Outcome::Committed);
    first.abort().unwrap();
    second.send().unwrap();
}
