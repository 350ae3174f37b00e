//! Tests of files in a transaction over the wire. After a client's commit, the tree on the server
//! equals the client's tree in every name, attribute and byte.

use crate::wire;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::{Cut, Proxy, Store, fill, tree};
use env::{Machine, Random};
use kvdb_wire::{BeginOptions, Client, Outcome, ServedTransaction};
use kvfs::{Caller, FileKind, Fs, Ino, ROOT};

/// A transaction, and the client's file system in it.
pub struct Guest {
    pub transaction: Arc<ServedTransaction>,
    pub fs: Fs,
}

impl Guest {
    pub fn new(client: &Arc<Client>) -> Guest {
        Guest::with(client, BeginOptions::default())
    }

    fn with(client: &Arc<Client>, options: BeginOptions) -> Guest {
        Guest::of(ServedTransaction::begin(client, options).unwrap())
    }

    fn of(transaction: ServedTransaction) -> Guest {
        let transaction = Arc::new(transaction);
        let (view, env) = (transaction.clone(), Arc::new(Machine::default()));
        let fs = Fs::served_transaction(view, env, wire::options()).unwrap();
        Guest { transaction, fs }
    }

    fn commit(&self) -> Result<Outcome, kvfs::Error> {
        self.fs.end_served(|| {
            let outcome = self.transaction.commit(false)?;
            let is_over = !matches!(outcome, Outcome::Conflict { .. });
            Ok((outcome, is_over))
        })
    }

    #[track_caller]
    pub fn commits(&self) {
        assert_eq!(self.commit().unwrap(), Outcome::Committed);
    }
}

fn write(fs: &Fs, name: &[u8], content: &[u8]) -> Ino {
    let file = match fs.lookup(ROOT, name) {
        Ok(attr) => attr.ino,
        Err(_) => fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino,
    };
    fs.write(file, 0, content, Default::default()).unwrap();
    file
}

fn read(fs: &Fs, name: &[u8]) -> Vec<u8> {
    let file = fs.lookup(ROOT, name).unwrap();
    fs.read(file.ino, 0, file.size as u32).unwrap().to_vec()
}

#[track_caller]
pub fn is_sound(store: &Store) {
    assert_eq!(store.fs.verify().unwrap().findings, []);
}

#[test]
fn what_a_client_makes_of_a_tree_is_the_tree_there_after_its_commit() {
    let store = Store::writable();
    fill(&store.fs, 1, 0..200);
    store.fs.sync_all().unwrap();
    let before = tree(&store.fs);
    let client = store.client();
    let guest = Guest::new(&client);
    assert_eq!(tree(&guest.fs), before);
    let dir = guest.fs.mkdir(ROOT, b"made", 0o755, Caller::default()).unwrap();
    fill(&guest.fs, 2, 200..600);
    guest.fs.tick().unwrap();
    // Remove some of the files, and move others.
    let mut names = Vec::new();
    let mut emit = |entry: kvfs::DirEntry<'_>| {
        if entry.kind != FileKind::Dir {
            names.push(entry.name.to_vec());
        }
        true
    };
    guest.fs.readdir(ROOT, 2, false, &mut emit).unwrap();
    assert!(names.len() > 20, "{}", names.len());
    for (i, name) in names.iter().enumerate() {
        match i % 3 {
            0 => guest.fs.unlink(ROOT, name).unwrap(),
            1 => guest.fs.rename(ROOT, name, dir.ino, name, Default::default()).unwrap(),
            _ => {}
        }
    }
    assert_eq!(tree(&store.fs), before, "others see nothing of it");
    let made = tree(&guest.fs);
    assert!(made.len() > 300, "{}", made.len());
    guest.commits();
    assert!(tree(&store.fs) == made);
    is_sound(&store);
    // The view is over.
    let gone = guest.fs.lookup(ROOT, b"made");
    assert!(matches!(gone, Err(kvfs::Error::Stale(_))), "{gone:?}");
    assert_eq!(store.db.transactions().len(), 0);
}

#[test]
fn of_two_clients_that_write_one_file_the_second_is_told_its_path_and_nothing_of_it_is_seen() {
    let store = Store::writable();
    write(&store.fs, b"notes", b"as it was");
    let client = store.client();
    let (first, second) = (Guest::new(&client), Guest::new(&client));
    write(&first.fs, b"notes", b"first one");
    write(&second.fs, b"notes", b"second one");
    write(&second.fs, b"other", b"of the second one, too");
    first.commits();
    let Outcome::Conflict { keys, .. } = second.commit().unwrap() else { panic!() };
    assert!(keys.iter().any(|key| key.place.contains("/notes")), "{keys:?}");
    assert_eq!(read(&store.fs, b"notes"), b"first one");
    assert!(store.fs.lookup(ROOT, b"other").is_err());
    // The second transaction is still open, and can be examined.
    assert_eq!(read(&second.fs, b"notes"), b"second one");
    second.transaction.abort().unwrap();
    assert!(store.fs.lookup(ROOT, b"other").is_err());
    is_sound(&store);
}

#[test]
fn numbers_of_inodes_are_given_once_whoever_makes_files() {
    let store = Store::writable();
    let client = store.client();
    let guests: Vec<Guest> = (0..4).map(|_| Guest::new(&client)).collect();
    let make = |fs: &Fs, name: String| {
        let caller = Caller::default();
        fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, caller).unwrap().ino
    };
    let mut all = std::collections::BTreeSet::new();
    for i in 0..200 {
        for (who, guest) in guests.iter().enumerate() {
            assert!(all.insert(make(&guest.fs, format!("{who} {i}"))));
        }
        assert!(all.insert(make(&store.fs, format!("here {i}"))));
    }
    guests.iter().for_each(Guest::commits);
    assert_eq!(tree(&store.fs).len(), 1000);
    is_sound(&store);
}

#[test]
fn files_that_are_open_when_they_are_removed_are_read_on_and_leave_nothing() {
    let store = Store::writable();
    let content = vec![7; 300_000];
    let open_there = write(&store.fs, b"theirs", &content);
    store.fs.sync_all().unwrap();
    let client = store.client();
    let guest = Guest::new(&client);
    let theirs = guest.fs.lookup(ROOT, b"theirs").unwrap().ino;
    let own = write(&guest.fs, b"own", &content);
    guest.fs.sync_all().unwrap();
    for (ino, name) in [(theirs, &b"theirs"[..]), (own, b"own")] {
        guest.fs.unlink(ROOT, name).unwrap();
        assert_eq!(guest.fs.read(ino, 0, 400_000).unwrap().len(), content.len());
    }
    guest.commits();
    assert!(store.fs.lookup(ROOT, b"theirs").is_err());
    is_sound(&store);
    let stored = || {
        let report = store.fs.verify().unwrap();
        (report.orphans, report.pages)
    };
    assert_eq!(stored(), (1, 74), "the one that is open where the store is");
    assert_eq!(store.fs.read(open_there, 0, 400_000).unwrap().len(), content.len());
    store.fs.forget(open_there, 1);
    assert_eq!(stored(), (0, 0));
}

#[test]
fn a_durable_transaction_of_files_goes_on_with_another_client_after_a_sync() {
    let store = Store::writable();
    let options = BeginOptions { durable: true, ..BeginOptions::default() };
    let key = {
        let guest = Guest::with(&store.client(), options);
        write(&guest.fs, b"synced", b"there");
        guest.fs.sync_all().unwrap();
        write(&guest.fs, b"lost", b"in memory alone");
        guest.transaction.key()
    };
    let client = store.client();
    let guest = Guest::of(ServedTransaction::take_up(&client, key).unwrap());
    assert_eq!(read(&guest.fs, b"synced"), b"there");
    assert!(guest.fs.lookup(ROOT, b"lost").is_err());
    write(&guest.fs, b"more", b"of the second client");
    guest.commits();
    assert_eq!(tree(&store.fs).len(), 2);
    is_sound(&store);
}

#[test]
fn a_client_that_is_gone_leaves_nothing_in_the_files() {
    let store = Store::writable();
    let options = BeginOptions { lease: Duration::from_millis(300), ..BeginOptions::default() };
    let client = store.client();
    let guest = Guest::with(&client, options);
    write(&guest.fs, b"file", b"content");
    guest.fs.sync_all().unwrap();
    // Like a client that was killed, it sends nothing more.
    guest.fs.shutdown().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !store.db.transactions().is_empty() {
        assert!(std::time::Instant::now() < deadline);
        store.db.step().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(store.fs.lookup(ROOT, b"file").is_err());
    let commit = guest.commit();
    let is_over = |e: &kvfs::Error| matches!(e, kvfs::Error::Store(kvdb::Error::NoTransaction(_)));
    assert!(commit.as_ref().is_err_and(is_over), "{commit:?}");
    is_sound(&store);
}

#[test]
fn a_session_over_files_that_is_cut_anywhere_commits_all_or_nothing() {
    let mut committed = 0;
    for (cut, longest) in [(Cut::Requests, 20_000), (Cut::Answers, 6000)] {
        let mut after = 100;
        while after < longest {
            let store = Store::writable();
            write(&store.fs, b"there", b"before");
            store.fs.sync_all().unwrap();
            let before = tree(&store.fs);
            let proxy = Proxy::new(store.path(), cut, after);
            let session = || -> Result<(Outcome, wire::Tree), kvfs::Error> {
                let other = |e| kvdb::Error::Io(std::io::Error::other(e));
                let client = proxy.client().map_err(other)?;
                let options = BeginOptions::default();
                let begun = ServedTransaction::begin(&client, options).map_err(other)?;
                let transaction = Arc::new(begun);
                let (view, env) = (transaction.clone(), Arc::new(Machine::default()));
                let fs = Fs::served_transaction(view, env, wire::options())?;
                let guest = Guest { transaction, fs };
                let caller = Caller::default();
                for i in 0..10u32 {
                    let name = format!("file{i}");
                    let kind = FileKind::File;
                    let file = guest.fs.mknod(ROOT, name.as_bytes(), kind, 0o644, 0, caller)?;
                    guest.fs.write(file.ino, 0, &vec![i as u8; 500], Default::default())?;
                    guest.fs.fsync(file.ino, false)?;
                }
                let made = wire::try_tree(&guest.fs)?;
                Ok((guest.commit()?, made))
            };
            let found = |store: &Store| tree(&store.fs);
            match session() {
                Ok((Outcome::Committed, made)) => {
                    committed += 1;
                    assert!(found(&store) == made, "{cut:?} after {after}");
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => {
                    let found = found(&store);
                    assert!(found.len() == before.len() || found.len() == 11, "{}", found.len());
                }
            }
            is_sound(&store);
            after = after * 4 / 3;
        }
    }
    assert!(committed > 5, "{committed}");
}

#[test]
fn many_small_files_take_few_requests() {
    let store = Store::writable();
    let client = store.client();
    let guest = Guest::new(&client);
    let begun = client.counts().requests;
    let caller = Caller::default();
    let dir = guest.fs.mkdir(ROOT, b"dir", 0o755, caller).unwrap().ino;
    for i in 0..2000 {
        let name = format!("file{i}");
        let file = guest.fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, caller).unwrap();
        guest.fs.write(file.ino, 0, b"some content", Default::default()).unwrap();
        guest.fs.forget(file.ino, 1);
    }
    guest.commits();
    let asked = client.counts().requests - begun;
    // The directory is new, so none of its names has to be requested.
    assert!(asked < 20, "{asked} requests");
    assert_eq!(tree(&store.fs).len(), 2001);
    is_sound(&store);
}

/// Makes a copy of a file, as `cp` does.
fn copy(fs: &Fs, from: Ino, name: &[u8]) -> Ino {
    let to = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
    let (len, mut copied) = (fs.getattr(from).unwrap().size, 0);
    while copied < len {
        let more = fs.copy_file_range(from, copied, to, copied, len - copied).unwrap();
        assert!(more > 0, "{copied} of {len}");
        copied += more;
    }
    to
}

fn traffic(client: &Client) -> u64 {
    let counts = client.counts();
    counts.sent + counts.received
}

#[test]
fn a_copy_of_a_file_sends_the_keys_of_its_pages_and_no_content() {
    const LEN: usize = (20 << 20) + 777;
    let store = Store::writable();
    let mut content = vec![0; LEN];
    Random::new(34).fill(&mut content);
    write(&store.fs, b"original", &content);
    store.fs.sync_all().unwrap();
    let client = store.client();
    let guest = Guest::new(&client);
    let from = guest.fs.lookup(ROOT, b"original").unwrap().ino;
    let before = traffic(&client);
    copy(&guest.fs, from, b"copy");
    guest.fs.sync_all().unwrap();
    guest.transaction.send().unwrap();
    let bytes = traffic(&client) - before;
    assert!(bytes < LEN as u64 / 40, "{bytes} bytes for a copy of {LEN}");
    assert!(read(&guest.fs, b"copy") == content);
    // The two are files of their own.
    write(&guest.fs, b"copy", b"changed");
    write(&guest.fs, b"original", b"also ch");
    guest.commits();
    content[..7].copy_from_slice(b"changed");
    assert!(read(&store.fs, b"copy") == content);
    content[..7].copy_from_slice(b"also ch");
    assert!(read(&store.fs, b"original") == content);
    is_sound(&store);
}

#[test]
fn a_copy_has_what_its_original_had_then_whichever_of_them_is_the_older_file() {
    let store = Store::writable();
    let client = store.client();
    let guest = Guest::new(&client);
    let first = write(&guest.fs, b"first", &[1; 20_000]);
    let second = write(&guest.fs, b"second", &[2; 12_288]);
    let third = copy(&guest.fs, first, b"third");
    write(&guest.fs, b"first", &[3; 4096]);
    // Into the older file, over some of its pages.
    assert_eq!(guest.fs.copy_file_range(second, 0, first, 8192, 12_288).unwrap(), 12_288);
    write(&guest.fs, b"second", &[4; 12_288]);
    assert_eq!(guest.fs.copy_file_range(third, 4096, second, 0, 4096).unwrap(), 4096);
    guest.fs.tick().unwrap();
    let expected = [
        (&b"first"[..], [vec![3; 4096], vec![1; 4096], vec![2; 12_288]].concat()),
        (b"second", [vec![1; 4096], vec![4; 8192]].concat()),
        (b"third", vec![1; 20_000]),
    ];
    for (name, content) in &expected {
        assert!(read(&guest.fs, name) == *content, "{name:?}");
    }
    guest.commits();
    for (name, content) in &expected {
        assert!(read(&store.fs, name) == *content, "{name:?}");
    }
    is_sound(&store);
}

#[test]
fn two_files_are_copied_into_each_other_at_the_same_time() {
    let store = Store::writable();
    let client = store.client();
    let guest = Guest::new(&client);
    let a = write(&guest.fs, b"a", &[1; 40_960]);
    let b = write(&guest.fs, b"b", &[2; 40_960]);
    std::thread::scope(|scope| {
        for (from, to) in [(a, b), (b, a)] {
            let fs = &guest.fs;
            scope.spawn(move || {
                for i in 0..50 {
                    let at = 4096 * (i % 5);
                    assert_eq!(fs.copy_file_range(from, at, to, at, 4096).unwrap(), 4096);
                }
            });
        }
    });
    guest.commits();
    for name in [&b"a"[..], b"b"] {
        let content = read(&store.fs, name);
        assert!(content.len() == 40_960 && content.iter().all(|byte| [1, 2].contains(byte)));
    }
    is_sound(&store);
}

#[test]
fn what_a_listing_has_brought_is_not_asked_for_again_to_remove_it() {
    let store = Store::writable();
    for i in 0..500 {
        write(&store.fs, format!("file{i:03}").as_bytes(), b"content");
    }
    store.fs.sync_all().unwrap();
    let client = store.client();
    let guest = Guest::new(&client);
    let begun = client.counts().requests;
    let mut listed = Vec::new();
    let mut emit = |entry: kvfs::DirEntry<'_>| {
        listed.push((entry.name.to_vec(), entry.ino));
        true
    };
    guest.fs.readdir(ROOT, 2, true, &mut emit).unwrap();
    assert_eq!(listed.len(), 500);
    for (name, ino) in &listed {
        guest.fs.unlink(ROOT, name).unwrap();
        guest.fs.forget(*ino, 1);
    }
    // The listing also shows which names are missing, and reflects later changes.
    assert!(guest.fs.lookup(ROOT, b"file1000").is_err());
    write(&guest.fs, b"file100", b"made anew");
    let mut names = Vec::new();
    let mut emit = |entry: kvfs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    guest.fs.readdir(ROOT, 2, false, &mut emit).unwrap();
    assert_eq!(names, [b"file100"]);
    let asked = client.counts().requests - begun;
    assert!(asked < 30, "{asked} requests");
    guest.commits();
    assert_eq!(tree(&store.fs).len(), 1);
    is_sound(&store);
}

/// Makes directories with so many files in each, and returns them as the names that a client looks
/// up.
fn made(store: &Store, dirs: u64, files: u64, content: &[u8]) -> Vec<(String, Vec<String>)> {
    let (fs, caller) = (&store.fs, Caller::default());
    let mut all = Vec::new();
    for dir in 0..dirs {
        let name = format!("dir{dir}");
        let ino = fs.mkdir(ROOT, name.as_bytes(), 0o755, caller).unwrap().ino;
        let mut names = Vec::new();
        for file in 0..files {
            let name = format!("file{file:04}");
            let attr = fs.mknod(ino, name.as_bytes(), FileKind::File, 0o644, 0, caller).unwrap();
            fs.write(attr.ino, 0, content, Default::default()).unwrap();
            names.push(name);
        }
        all.push((name, names));
    }
    fs.sync_all().unwrap();
    all
}

#[test]
fn files_that_are_looked_up_one_by_one_are_asked_for_together() {
    let store = Store::writable();
    let all = made(&store, 4, 250, b"some content");
    let client = store.client();
    let guest = Guest::new(&client);
    let begun = client.counts().requests;
    for (dir, names) in &all {
        let dir = guest.fs.lookup(ROOT, dir.as_bytes()).unwrap().ino;
        for name in names {
            assert_eq!(guest.fs.lookup(dir, name.as_bytes()).unwrap().size, 12);
            let absent = guest.fs.lookup(dir, format!("{name}.lock").as_bytes());
            assert!(matches!(absent, Err(kvfs::Error::NotFound)), "{absent:?}");
        }
    }
    let asked = client.counts().requests - begun;
    assert!(asked < 80, "{asked} requests for the names and nodes of a thousand files");
}

#[test]
fn files_that_are_renamed_and_removed_in_no_order_are_asked_for_together() {
    let store = Store::writable();
    let all = made(&store, 2, 500, b"some content");
    let client = store.client();
    let guest = Guest::new(&client);
    let begun = client.counts().requests;
    let dirs: Vec<Ino> =
        all.iter().map(|(dir, _)| guest.fs.lookup(ROOT, dir.as_bytes()).unwrap().ino).collect();
    for i in 0..1000 {
        let i = i * 367 % 1000;
        let (dir, name) = (dirs[i % 2], &all[i % 2].1[i / 2]);
        if i % 3 == 0 {
            guest.fs.unlink(dir, name.as_bytes()).unwrap();
        } else {
            let to = format!("moved{i:04}");
            let options = Default::default();
            guest.fs.rename(dir, name.as_bytes(), dir, to.as_bytes(), options).unwrap();
        }
        // The change is visible, whatever was read with the name before.
        assert!(guest.fs.lookup(dir, name.as_bytes()).is_err());
    }
    let asked = client.counts().requests - begun;
    assert!(asked < 300, "{asked} requests for a thousand files");
    let found = tree(&guest.fs);
    assert_eq!(found.len(), 2 + 1000 - 334);
    guest.commits();
    assert!(tree(&store.fs) == found);
    is_sound(&store);
}
