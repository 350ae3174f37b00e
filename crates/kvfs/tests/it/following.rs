//! Tests of the files of a reader that follows what is published. After each state, everything in
//! memory, and everything that a kernel refers to, equals the state of the writer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::forked::{Bucket, Store};
use crate::random_tree::{Calls, act_in, seeds, tree};
use env::Random;
use kvdb::{Durability, RemoteStore};
use kvfs::{Attr, ChangeSet, CommittedTo, Error, Fs, FsOptions, Ino, ROOT, ViewId, Views, Wait};

/// The part of the attributes that nothing but a change of the file changes.
fn shown(attr: &Attr) -> impl PartialEq + std::fmt::Debug + use<> {
    (attr.kind, attr.perm, attr.nlink, attr.size, attr.mtime, attr.ctime)
}

/// Records its notifications, as a kernel would.
#[derive(Default)]
struct Told(env::sync::Mutex<Vec<(u16, ChangeSet)>>);

impl kvfs::Watcher for Told {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        Ok(())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}
    fn changed(&self, number: u16, _: &Fs, changes: &ChangeSet) {
        self.0.lock().push((number, changes.clone()));
    }
}

/// All names of a view, with their inodes.
fn names(fs: &Fs) -> BTreeMap<(Ino, Vec<u8>), Ino> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![ROOT];
    while let Some(dir) = dirs.pop() {
        let mut found = Vec::new();
        let mut each = |entry: kvfs::DirEntry<'_>| {
            found.push((entry.name.to_vec(), entry.ino));
            true
        };
        fs.readdir(dir, 2, false, &mut each).expect("listed");
        for (name, ino) in found {
            if fs.getattr(ino).expect("there").kind == kvfs::FileKind::Dir {
                dirs.push(ino);
            }
            all.insert((dir, name), ino);
        }
    }
    all
}

/// One change of the writer to files, snapshots or clones.
fn change(writer: &Store, random: &mut Random) {
    let views = &writer.views;
    let snapshots = views.snapshot_labels();
    let some = snapshots.get(random.below(3) as usize).map(|label| label.name.clone());
    match (random.below(14), some) {
        (0, _) => {
            let name = format!("s{}", random.number());
            views.snapshot(&ViewId::Mainline, &name, Durability::Buffered).expect("made");
        }
        (1, Some(name)) => views.rollback(&name).expect("rolled back"),
        (2, Some(name)) => views.drop_snapshot(&name).expect("dropped"),
        (3, Some(name)) => {
            views.clone_snapshot(&name, &format!("c{}", random.number())).expect("made");
        }
        (4, _) => {
            let clone = views.clones().first().map(|clone| clone.name.clone());
            clone.iter().for_each(|name| views.drop_clone(name).expect("dropped"));
        }
        (5 | 6, _) => {
            for clone in views.clones() {
                let fs = views.fs(&ViewId::Clone(clone.name)).expect("open");
                act_in(&writer.w, &fs, "", random, Calls::All);
            }
        }
        _ => act_in(&writer.w, &writer.w.fs, "", random, Calls::All),
    }
}

#[test]
fn what_is_in_memory_is_as_the_writer_has_it() {
    let (mut stale, mut told_of) = (0, 0);
    for seed in seeds(20) {
        let (bucket, mut random) = (Bucket::new(), Random::new(seed));
        let writer = Store::new();
        (0..10).for_each(|_| change(&writer, &mut random));
        let db = bucket.read(&writer, "work");
        let mut follower = db
            .follower(&RemoteStore::new(bucket.0.clone(), "work").expect("a name"))
            .expect("it follows");
        let options = FsOptions { read_only: true, ..FsOptions::default() };
        let fs = Fs::open(db.clone(), writer.w.env.clone(), options).expect("opened");
        let views = Views::new(db.clone(), fs.clone());
        let told = Arc::new(Told::default());
        let watcher: Arc<dyn kvfs::Watcher> = told.clone();
        views.watch(&watcher);
        for step in 0..12 {
            let at = format!("seed {seed}, step {step}");
            // The kernel would have cached some names and their inodes.
            let before = names(&fs);
            for (dir, name) in before.keys().filter(|_| random.one_in(2)) {
                fs.lookup(*dir, name).expect("there");
            }
            for clone in views.clones().iter().filter(|_| random.one_in(2)) {
                tree(&views.fs(&ViewId::Clone(clone.name.clone())).expect("open"));
            }
            for snapshot in views.snapshot_labels().iter().take(1) {
                tree(&views.fs(&ViewId::Snapshot(snapshot.name.clone())).expect("open"));
            }
            (0..random.below(8)).for_each(|_| change(&writer, &mut random));
            bucket.publish(&writer, "work");
            assert!(views.follow(&mut follower).expect("followed"), "{at}");

            assert_eq!(tree(&fs), tree(&writer.w.fs), "{at}");
            let now = names(&writer.w.fs);
            assert_eq!(names(&fs), now, "{at}");
            for ino in fs.referenced() {
                let there = writer.w.fs.getattr(ino).map(|attr| shown(&attr));
                match (fs.getattr(ino).map(|attr| shown(&attr)), there) {
                    (Ok(here), Ok(there)) => assert_eq!(here, there, "{at}: inode {ino}"),
                    (Err(Error::Stale(_)), _) => {
                        let named = now.values().any(|named| *named == ino);
                        // Another file may have taken the number, after a rollback.
                        assert!(!named || before.values().any(|known| *known == ino), "{at}");
                        stale += 1;
                    }
                    (here, there) => panic!("{at}: inode {ino}: {here:?}, not {there:?}"),
                }
            }
            // The kernel was notified of each changed name.
            let all: Vec<_> = told.0.lock().drain(..).collect();
            let of_mainline = all.iter().filter(|(number, _)| *number == 0);
            let names_told: Vec<_> = of_mainline.flat_map(|(_, changes)| &changes.names).collect();
            for key in before.keys().chain(now.keys()) {
                if before.get(key) != now.get(key) {
                    let mut told = names_told.iter();
                    let is = told.any(|(dir, name, _)| (*dir, &**name) == (key.0, &*key.1));
                    assert!(is, "{at}: {key:?}");
                    told_of += 1;
                }
            }
            // Clones and snapshots, too, whether they were open or not.
            assert_eq!(views.all(), writer.views.all(), "{at}");
            for view in views.all() {
                let (here, there) = (views.fs(&view), writer.views.fs(&view));
                let (here, there) = (here.expect("open"), there.expect("open"));
                assert_eq!(tree(&here), tree(&there), "{at}: {view:?}");
            }
        }
    }
    assert!(stale > 10 && told_of > 100, "{stale} were stale, {told_of} names were told of");
}
