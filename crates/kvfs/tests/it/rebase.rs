//! Tests of rebased transactions. The changes of a transaction are applied to what others have
//! committed since, in a transaction that replaces it. If there are conflicts, it stays as it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::world::{USER, World};
use kvdb::{
    CreateOptions, Durability, Isolation, Kvdb, OpenOptions, TransactionId, TransactionOptions,
};
use kvfs::{
    Choice, Deed, Error, FileKind, Fs, FsOptions, Ino, MergeConflict, ROOT, Rebased, SetAttr,
    ViewId, Views,
};
use zones::{CrashDevice, Device};

struct Store {
    w: World,
    views: Views,
}

impl Store {
    fn new() -> Store {
        let (w, views) = World::with_views(FsOptions::default());
        for name in ["f", "g", "h"] {
            make(&w.fs, ROOT, name, name.as_bytes());
        }
        Store { w, views }
    }

    fn begin(&self, options: TransactionOptions) -> (TransactionId, Fs) {
        self.w.second();
        let id = self.views.begin(options).expect("begun");
        (id, self.view(id))
    }

    fn view(&self, id: TransactionId) -> Fs {
        self.views.fs(&ViewId::Transaction(id)).expect("open")
    }

    fn rebase(&self, id: TransactionId, choices: &[(&str, Choice)]) -> kvfs::Result<Rebased> {
        self.w.second();
        let choices: Vec<_> =
            choices.iter().map(|(path, choice)| (path.as_bytes().to_vec(), *choice)).collect();
        self.views.rebase(id, &choices, &|_, _| kvdb::Settled::Conflict, &|_| Ok(true))
    }

    #[track_caller]
    fn rebased(&self, id: TransactionId, choices: &[(&str, Choice)]) -> (TransactionId, Fs) {
        let Rebased { transaction, conflicts, .. } = self.rebase(id, choices).expect("rebased");
        assert_eq!(conflicts, []);
        let new = transaction.expect("without conflicts");
        assert!(self.views.transaction(id).is_err(), "it has ended");
        (new, self.view(new))
    }

    #[track_caller]
    fn commit(&self, id: TransactionId) {
        self.views.commit(id, Durability::Buffered).expect("committed");
        self.w.check();
    }
}

fn make(fs: &Fs, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, USER).expect("made").ino;
    fs.write(ino, 0, data, Default::default()).expect("written");
    ino
}

fn ino(fs: &Fs, path: &str) -> Ino {
    fs.resolve(path.as_bytes()).expect(path).ino
}

fn write(fs: &Fs, path: &str, at: u64, data: &[u8]) {
    fs.write(ino(fs, path), at, data, Default::default()).expect("written");
}

fn read(fs: &Fs, path: &str) -> Option<Vec<u8>> {
    match fs.resolve(path.as_bytes()) {
        Err(Error::NotFound) => None,
        attr => {
            let attr = attr.expect(path);
            Some(fs.read(attr.ino, 0, attr.size as u32).expect("read").to_vec())
        }
    }
}

fn conflict(path: &str, ours: Deed, theirs: Deed) -> MergeConflict {
    MergeConflict { path: path.into(), key: false, ours, theirs }
}

#[test]
fn what_it_has_changed_is_made_on_what_others_have_committed() {
    let s = Store::new();
    let options = TransactionOptions {
        label: "mine".into(),
        user: Some(7),
        undoable: true,
        ..Default::default()
    };
    let (id, inside) = s.begin(options);
    let dir = inside.mkdir(ROOT, b"dir", 0o755, USER).expect("made").ino;
    make(&inside, dir, "inside", b"inside");
    write(&inside, "g", 0, b"G");
    inside.unlink(ROOT, b"h").expect("removed");
    // Waits in memory when it is rebased.
    let open = make(&inside, ROOT, "open", b"written");
    s.w.second();
    let dir = s.w.fs.mkdir(ROOT, b"dir", 0o755, USER).expect("made").ino;
    make(&s.w.fs, dir, "outside", b"outside");
    write(&s.w.fs, "f", 0, b"F");

    let refused =
        s.views.commit_with(id, kvdb::CommitOptions { stays: true, ..Default::default() });
    assert!(matches!(refused, Err(Error::Store(kvdb::Error::Conflict { .. }))), "{refused:?}");
    let (new, now) = s.rebased(id, &[]);
    for (path, content) in [
        ("dir/inside", Some(&b"inside"[..])),
        ("dir/outside", Some(b"outside")),
        ("f", Some(b"F")),
        ("g", Some(b"G")),
        ("h", None),
        ("open", Some(b"written")),
    ] {
        assert_eq!(read(&now, path).as_deref(), content, "{path}");
    }
    assert_eq!(read(&s.w.fs, "g").as_deref(), Some(&b"g"[..]), "nothing is committed by it");
    assert!(inside.getattr(open).is_err(), "the view has ended");
    let info = &s.views.list()[..];
    assert_eq!((info.len(), info[0].id, &info[0].label[..]), (1, new, "mine"));
    assert_eq!(s.views.user(new).expect("open"), Some(7));
    // It continues, with numbers that no other file has.
    let made = make(&now, ROOT, "later", b"later");
    let others = make(&s.w.fs, ROOT, "others", b"others");
    assert!(made != others && made != open);
    s.commit(new);
    assert_eq!(read(&s.w.fs, "later").as_deref(), Some(&b"later"[..]));
    let commit = s.w.db.undoable_commits().pop().expect("undoable still");
    assert_eq!(commit.label, "mine");
}

#[test]
fn with_conflicts_it_goes_on_as_it_was_and_one_can_choose() {
    let s = Store::new();
    let (id, inside) = s.begin(TransactionOptions::default());
    write(&inside, "f", 0, b"1");
    inside.unlink(ROOT, b"g").expect("removed");
    make(&inside, ROOT, "new", b"inside");
    s.w.second();
    write(&s.w.fs, "f", 0, b"2");
    write(&s.w.fs, "g", 0, b"2");
    make(&s.w.fs, ROOT, "new", b"outside");
    let Rebased { transaction, conflicts, .. } = s.rebase(id, &[]).expect("looked at");
    assert_eq!(transaction, None);
    let expected = [
        conflict("f", Deed::Changed, Deed::Changed),
        conflict("g", Deed::Removed, Deed::Changed),
        conflict("new", Deed::Made, Deed::Made),
    ];
    assert_eq!(conflicts, expected);
    assert_eq!(s.views.list().len(), 1, "nothing else is open");
    write(&inside, "f", 1, b"more");
    assert_eq!(read(&inside, "f").as_deref(), Some(&b"1more"[..]), "it is at work");

    let (new, now) =
        s.rebased(id, &[("f", Choice::Ours), ("g", Choice::Theirs), ("new", Choice::Both)]);
    let beside = format!("new~txn-{id}");
    s.commit(new);
    drop(now);
    for (path, content) in
        [("f", &b"1more"[..]), ("g", b"2"), ("new", b"outside"), (&beside, b"inside")]
    {
        assert_eq!(read(&s.w.fs, path).as_deref(), Some(content), "{path}");
    }
}

#[test]
fn who_is_asked_last_can_refuse_and_nothing_has_happened() {
    let s = Store::new();
    let (id, inside) = s.begin(TransactionOptions::default());
    write(&inside, "f", 0, b"1");
    let never = |_: &str, _: &kvdb::Clash<'_>| kvdb::Settled::Conflict;
    let rebased = s.views.rebase(id, &[], &never, &|_| Ok(false)).expect("looked at");
    assert!(rebased.transaction.is_none() && rebased.conflicts.is_empty());
    let failed = s.views.rebase(id, &[], &never, &|_| Err(Error::NoSpace));
    assert!(matches!(failed, Err(Error::NoSpace)));
    assert_eq!(s.views.list().len(), 1);
    s.commit(id);
    assert_eq!(read(&s.w.fs, "f").as_deref(), Some(&b"1"[..]));
}

#[test]
fn keys_come_along_and_dictionaries_that_others_have_made_or_dropped() {
    let s = Store::new();
    let db = &s.w.db;
    let dictionary = |name: &str| db.open_dictionary_in("", name).expect("there").id();
    let put = |dict, key: &str, value: &str| {
        db.put(dict, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put");
    };
    let get = |dict, key: &str| {
        let value = db.get(dict, key.as_bytes()).expect("read");
        value.map(|value| String::from_utf8_lossy(&value).into_owned())
    };
    let (old, dropped) = (dictionary("old"), dictionary("dropped"));
    for key in ["a", "b", "c", "d"] {
        put(old, key, "0");
    }
    put(dropped, "k", "0");
    let (id, _) = s.begin(TransactionOptions::default());
    let made = dictionary("made");
    let t = s.views.transaction(id).expect("open");
    t.put(old, "a", "1").expect("put");
    t.delete(old, "b").expect("deleted");
    t.delete_range(old, "d", "e").expect("deleted");
    t.put(old, "large", "long ".repeat(10_000)).expect("put");
    t.put(made, "mine", "1").expect("put");
    put(old, "c", "2");
    put(made, "theirs", "2");
    db.drop_dictionary(dropped).expect("dropped");
    let (id, _) = s.rebased(id, &[]);
    s.commit(id);
    let all = ["a", "b", "c", "d"].map(|key| get(old, key));
    assert_eq!(all, [Some("1".into()), None, Some("2".into()), None]);
    assert_eq!(get(old, "large"), Some("long ".repeat(10_000)));
    assert_eq!([get(made, "mine"), get(made, "theirs")], [Some("1".into()), Some("2".into())]);

    let (id, _) = s.begin(TransactionOptions::default());
    let t = s.views.transaction(id).expect("open");
    t.put(old, "a", "mine").expect("put");
    t.put(made, "mine", "2").expect("put");
    put(old, "a", "theirs");
    db.drop_dictionary(made).expect("dropped");
    let conflicts = s.rebase(id, &[]).expect("looked at").conflicts;
    let named: Vec<_> =
        conflicts.iter().map(|c| (String::from_utf8_lossy(&c.path), c.ours, c.theirs)).collect();
    let expected = [
        ("made".into(), Deed::Changed, Deed::Removed),
        ("old:a".into(), Deed::Changed, Deed::Changed),
    ];
    assert_eq!(named, expected);
    let (id, _) = s.rebased(id, &[("made", Choice::Theirs), ("old:a", Choice::Ours)]);
    s.commit(id);
    assert_eq!(get(old, "a"), Some("mine".into()));
    assert_eq!(db.dictionary("made"), None);
}

#[test]
fn one_within_another_is_rebased_onto_what_its_siblings_have_committed() {
    let s = Store::new();
    let (outer, o) = s.begin(TransactionOptions::default());
    write(&o, "f", 0, b"o");
    let within = || TransactionOptions { within: Some(outer), ..Default::default() };
    let ((a, in_a), (b, in_b)) = (s.begin(within()), s.begin(within()));
    make(&in_a, ROOT, "of a", b"a");
    make(&in_b, ROOT, "of b", b"b");
    write(&in_a, "g", 0, b"a");
    write(&in_b, "g", 0, b"b");
    s.views.commit(a, Durability::Buffered).expect("the first");
    assert!(matches!(s.rebase(outer, &[]), Err(Error::Store(kvdb::Error::Nested { .. }))));
    let conflicts = s.rebase(b, &[]).expect("looked at").conflicts;
    assert_eq!(conflicts, [conflict("g", Deed::Changed, Deed::Changed)]);
    let (b, in_b) = s.rebased(b, &[("g", Choice::Theirs)]);
    assert_eq!(s.views.transaction(b).expect("open").within(), Some(outer));
    assert_eq!(read(&in_b, "of a").as_deref(), Some(&b"a"[..]));
    s.views.commit(b, Durability::Buffered).expect("rebased");
    // Others have come before the outer one.
    make(&s.w.fs, ROOT, "outside", b"outside");
    let (outer, _) = s.rebased(outer, &[]);
    s.commit(outer);
    for (path, content) in
        [("f", &b"o"[..]), ("g", b"a"), ("of a", b"a"), ("of b", b"b"), ("outside", b"outside")]
    {
        assert_eq!(read(&s.w.fs, path).as_deref(), Some(content), "{path}");
    }
}

#[test]
fn one_that_holds_locks_and_one_that_is_over_are_refused_in_a_sentence() {
    let s = Store::new();
    let serializable =
        TransactionOptions { isolation: Isolation::Serializable, ..Default::default() };
    let (id, _) = s.begin(serializable);
    let refused = s.rebase(id, &[]).expect_err("locks").to_string();
    assert!(refused.contains("locks what it reads"), "{refused}");
    s.views.abort(id).expect("open");
    let refused = s.rebase(id, &[]);
    assert!(matches!(refused, Err(Error::Store(kvdb::Error::NoTransaction(_)))), "{refused:?}");
}

#[test]
fn large_content_is_taken_by_reference_and_stays_when_the_old_one_is_gone() {
    let s = Store::new();
    let (id, inside) = s.begin(TransactionOptions::default());
    let mut random = env::Random::new(1);
    let mut content = vec![0; 24 << 20];
    random.fill(&mut content);
    let large = make(&inside, ROOT, "large", b"");
    for (n, part) in content.chunks(1 << 20).enumerate() {
        inside.write(large, (n as u64) << 20, part, Default::default()).expect("written");
    }
    write(&s.w.fs, "f", 0, b"F");
    // Pending data in memory is written in any case.
    s.views.savepoint(id).expect("marked");
    let written = || s.w.db.stats().io.written_by_job.iter().sum::<u64>();
    let before = written();
    let (new, now) = s.rebased(id, &[]);
    let taken = written() - before;
    assert!(taken < 4 << 20, "{taken} bytes for {}", content.len());
    write(&now, "large", 5 << 20, b"changed");
    content[5 << 20..][..7].copy_from_slice(b"changed");
    s.commit(new);
    for info in s.w.db.dictionaries() {
        s.w.db.compact(info.id).expect("merged");
    }
    assert!(read(&s.w.fs, "large").expect("there") == content);
}

fn open<D: Device + 'static>(device: &Arc<D>, fresh: bool) -> (Kvdb, Fs, Views) {
    let env = Arc::new(env::Simulated::new(7));
    let options =
        OpenOptions { memory: 16 << 20, threads: false, zero_journal: false, ..Default::default() };
    let db = match fresh {
        true => {
            let options = CreateOptions { open: options, ..Default::default() };
            Kvdb::create(device.clone(), env.clone(), options).expect("created")
        }
        false => Kvdb::open(device.clone(), env.clone(), options).expect("opened").0,
    };
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("opened");
    let views = Views::new(db.clone(), fs.clone());
    (db, fs, views)
}

#[test]
fn a_durable_one_is_there_after_a_crash_as_it_was_or_as_what_it_has_become() {
    let device = Arc::new(CrashDevice::new());
    let (db, fs, views) = open(&device, true);
    make(&fs, ROOT, "f", b"f");
    let id =
        views.begin(TransactionOptions { durable: true, ..Default::default() }).expect("begun");
    let inside = views.fs(&ViewId::Transaction(id)).expect("open");
    make(&inside, ROOT, "small", b"small");
    make(&inside, ROOT, "large", &[7; 200_000]);
    views.keep(id).expect("kept");
    write(&fs, "f", 0, b"F");
    let never = |_: &str, _: &kvdb::Clash<'_>| kvdb::Settled::Conflict;
    let new = views.rebase(id, &[], &never, &|_| Ok(true)).expect("rebased").transaction;
    let new = new.expect("without conflicts");
    // After a crash right now it is there as it was, too.
    let (_, _, crashed) = open(&Arc::new(device.durable()), false);
    let there: Vec<_> = crashed.list().into_iter().map(|info| info.id).collect();
    assert!(there.contains(&new));
    for id in there {
        let inside = crashed.fs(&ViewId::Transaction(id)).expect("open");
        assert_eq!(read(&inside, "small").as_deref(), Some(&b"small"[..]), "{id}");
        assert_eq!(read(&inside, "large"), Some(vec![7; 200_000]), "{id}");
    }
    db.flush().expect("written");

    let (_, fs, views) = open(&Arc::new(device.durable()), false);
    let there: Vec<_> = views.list().into_iter().map(|info| info.id).collect();
    assert_eq!(there, [new]);
    let inside = views.fs(&ViewId::Transaction(new)).expect("open");
    assert_eq!(read(&inside, "small").as_deref(), Some(&b"small"[..]));
    assert_eq!(read(&inside, "large"), Some(vec![7; 200_000]));
    views.commit(new, Durability::Synced).expect("committed");
    assert_eq!(read(&fs, "large"), Some(vec![7; 200_000]));
}

/// A search for a path from the root costs its depth, and a search for a name costs its directory.
/// With a conflict at each, the total would be quadratic.
#[test]
fn conflicts_at_each_level_of_a_deep_tree_and_in_a_wide_directory_cost_one_walk() {
    let s = Store::new();
    let (depth, width) = (3000, 6000);
    let mut dirs = vec![s.w.fs.mkdir(ROOT, b"d", 0o755, USER).expect("made").ino];
    for _ in 1..depth {
        let above = dirs[dirs.len() - 1];
        dirs.push(s.w.fs.mkdir(above, b"d", 0o755, USER).expect("made").ino);
    }
    let wide = s.w.fs.mkdir(ROOT, b"wide", 0o755, USER).expect("made").ino;
    let files: Vec<Ino> =
        (0..width).map(|i| make(&s.w.fs, wide, &format!("f{i:04}"), b"x")).collect();
    let set = |fs: &Fs, perm: u16| {
        for &ino in dirs.iter().chain(&files) {
            let mode = SetAttr { mode: Some(perm), ..Default::default() };
            fs.setattr(ino, &mode, USER).expect("set");
        }
    };
    let (id, inside) = s.begin(Default::default());
    set(&inside, 0o700);
    set(&s.w.fs, 0o711);

    let started = Instant::now();
    let Rebased { transaction, conflicts, .. } = s.rebase(id, &[]).expect("looked at");
    assert!(transaction.is_none());
    let mut want: Vec<Vec<u8>> = (1..=depth).map(|n| vec![&b"d"[..]; n].join(&b'/')).collect();
    want.extend((0..width).map(|i| format!("wide/f{i:04}").into_bytes()));
    assert!(conflicts.iter().map(|one| &one.path).eq(&want), "{} conflicts", conflicts.len());
    assert!(conflicts.iter().all(|one| (one.ours, one.theirs) == (Deed::Changed, Deed::Changed)));
    let (_, rebased) = s.rebased(id, &[("", Choice::Theirs)]);
    let took = started.elapsed();
    for &ino in dirs.iter().chain(&files) {
        assert_eq!(rebased.getattr(ino).expect("there").perm, 0o711);
    }
    assert!(took < Duration::from_secs(10), "it took {took:?}");
}

#[test]
fn conflicts_are_named_up_to_a_limit_and_choices_hold_beyond_it() {
    let s = Store::new();
    let wide = s.w.fs.mkdir(ROOT, b"wide", 0o755, USER).expect("made").ino;
    let files: Vec<Ino> =
        (0..10_100).map(|i| make(&s.w.fs, wide, &format!("f{i:05}"), b"x")).collect();
    let (id, inside) = s.begin(Default::default());
    for (fs, perm) in [(&inside, 0o600), (&s.w.fs, 0o640)] {
        for &ino in &files {
            let mode = SetAttr { mode: Some(perm), ..Default::default() };
            fs.setattr(ino, &mode, USER).expect("set");
        }
    }
    let Rebased { conflicts: named, more_conflicts, .. } = s.rebase(id, &[]).expect("looked at");
    assert_eq!((named.len(), more_conflicts), (10_000, 100));
    assert!(named.iter().all(|one| one.path.starts_with(b"wide/f")));
    let last = s.rebase(id, &[("wide/f10099", Choice::Ours)]).expect("looked at");
    assert_eq!((last.conflicts.len(), last.more_conflicts), (10_000, 99));
    let (_, rebased) = s.rebased(id, &[("wide", Choice::Theirs), ("wide/f10099", Choice::Ours)]);
    let perm = |at: usize| rebased.getattr(files[at]).expect("there").perm;
    assert_eq!((perm(0), perm(10_098), perm(10_099)), (0o640, 0o640, 0o600));
}

#[test]
fn the_names_of_keys_in_conflict_take_a_limited_number_of_bytes() {
    let s = Store::new();
    let d = s.w.db.open_dictionary("d").expect("made");
    let (id, _inside) = s.begin(Default::default());
    let transaction = s.views.transaction(id).expect("open");
    let key = |n: u32| format!("{n:016000}");
    for n in 0..1_200 {
        transaction.put(d.id(), key(n), "mine").expect("put");
        d.insert(key(n), "theirs").expect("put");
    }
    let Rebased { conflicts: named, more_conflicts, .. } = s.rebase(id, &[]).expect("looked at");
    assert_eq!(named.len() as u64 + more_conflicts, 1_200);
    let bytes: usize = named.iter().map(|one| one.path.len()).sum();
    assert!(named.len() > 1_000 && bytes <= 16 << 20, "{} of {bytes} bytes", named.len());
    let (new, _) = s.rebased(id, &[("d", Choice::Theirs)]);
    s.commit(new);
    assert_eq!(d.get(key(1_199)).expect("read").as_deref(), Some(&b"theirs"[..]));
}
