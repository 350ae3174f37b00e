//! Random histories of a store with branches. Every new inode gets a name that no other has, so
//! each number belongs to one name, in every branch, snapshot and transaction, and a new inode gets
//! a number that was never assigned before.
//!
//! A number may be assigned again only if a power cut has undone its first assignment, since then
//! it is in use nowhere. Inodes from another store may have numbers that were assigned here before;
//! from then on these are not assigned here.
//!
//! `KVFS_SEEDS` histories are run, from `KVFS_BASE` on.

use std::collections::{BTreeMap, BTreeSet};

use env::Random;
use kvdb::{Durability, Kvdb, ReceiveOptions, TransactionId, TransactionOptions};
use kvfs::{Fs, FsOptions, Ino, ROOT, ViewId};

use super::store::{Found, Store, environments_from, file, walk};

/// The weight of a step, its name, and its action.
type Step = (u64, &'static str, fn(&mut History));

const STEPS: u64 = 120;

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or)
}

struct History {
    seed: u64,
    random: Random,
    store: Store,
    /// The name for which a number was assigned, or several names if the number also came from
    /// another store.
    known: BTreeMap<Ino, BTreeSet<String>>,
    /// Numbers that a power cut may take back.
    unsynced: BTreeSet<Ino>,
    last: u64,
    /// Streams of another store: a whole one, one of the later changes, and their content.
    streams: [Vec<u8>; 2],
    theirs: Vec<Found>,
    done: Vec<String>,
}

/// A store of its own, with two snapshots.
fn streams(seed: u64) -> ([Vec<u8>; 2], Vec<Found>) {
    let store = Store::new();
    let mut all = Vec::new();
    let mut send = |snapshot: &str, base| {
        let view = ViewId::Mainline;
        store.views.snapshot(&view, snapshot, Durability::Synced).expect("a snapshot");
        let mut stream = Vec::new();
        store.db.send(snapshot, base, &mut stream, None).expect("sent");
        all.extend(walk(&store.fs));
        stream
    };
    let make = |prefix: &str, count: u64| {
        let dir = store.fs.mkdir(ROOT, prefix.as_bytes(), 0o755, Default::default());
        let dir = dir.expect("made").ino;
        (0..count).for_each(|n| drop(file(&store.fs, dir, &format!("{prefix}{n}"))));
    };
    make("their-first-", 20 + seed % 1000);
    let first = send("x0", None);
    make("their-second-", 20);
    let dir = store.fs.lookup(ROOT, b"their-first-").expect("there").ino;
    (0..20).for_each(|n| {
        store.fs.unlink(dir, format!("their-first-{n}").as_bytes()).expect("removed");
    });
    let second = send("x1", Some("x0"));
    ([first, second], all)
}

impl History {
    fn new(seed: u64) -> History {
        environments_from(seed << 20);
        let mut random = Random::new(seed);
        let zones = [None, Some(0), Some(64 << 10), Some(4 << 30)];
        let zone_size = *random.pick(&zones).expect("some");
        let store = Store::with(FsOptions { zone_size, ..FsOptions::default() });
        let (streams, theirs) = streams(seed);
        let (known, unsynced) = Default::default();
        let (last, done) = Default::default();
        History { seed, random, store, known, unsynced, last, streams, theirs, done }
    }

    fn branches(&self) -> Vec<String> {
        let clones = self.store.views.clones().into_iter().map(|info| info.name);
        std::iter::once(String::new()).chain(clones).collect()
    }

    fn snapshots(&self) -> Vec<String> {
        self.store.views.snapshots().into_iter().map(|info| info.name).collect()
    }

    fn transactions(&self) -> Vec<TransactionId> {
        self.store.views.list().into_iter().map(|info| info.id).collect()
    }

    fn branch(&mut self) -> String {
        let all = self.branches();
        self.random.pick(&all).expect("there is one").clone()
    }

    /// A view that takes writes.
    fn view(&mut self) -> Option<Fs> {
        let branches = self.branches();
        let mut all: Vec<ViewId> = branches.iter().map(|name| ViewId::of_branch(name)).collect();
        all.extend(self.transactions().into_iter().map(ViewId::Transaction));
        let view = self.random.pick(&all).expect("there is one");
        self.store.views.fs(view).ok()
    }

    fn next(&mut self, kind: &str) -> String {
        self.last += 1;
        format!("{kind}{}", self.last)
    }

    fn given(&mut self, ino: Ino, name: &str) {
        let names = self.known.entry(ino).or_default();
        assert!(names.is_empty(), "{ino} is given for {name} and was for {names:?}");
        names.insert(name.into());
        self.unsynced.insert(ino);
    }

    fn directory(&mut self, fs: &Fs) -> Ino {
        let dirs: Vec<Ino> =
            walk(fs).into_iter().filter(|found| found.is_dir).map(|found| found.ino).collect();
        match self.random.one_in(3) {
            true => ROOT,
            false => self.random.pick(&dirs).copied().unwrap_or(ROOT),
        }
    }

    fn make(&mut self) {
        let Some(fs) = self.view() else { return };
        let dir = self.directory(&fs);
        let count = *self.random.pick(&[1, 1, 3, 3, 10, 300]).expect("some");
        for _ in 0..count {
            let (name, made) = if self.random.one_in(8) {
                let name = self.next("d");
                let made = fs.mkdir(dir, name.as_bytes(), 0o755, Default::default());
                (name, made.map(|made| made.ino))
            } else {
                let name = self.next("f");
                let made = file(&fs, dir, &name);
                (name, made)
            };
            match made {
                Ok(ino) => self.given(ino, &name),
                // A transaction that began before a rollback, say.
                Err(e) => return self.done.push(format!("  refused: {e}")),
            }
        }
    }

    fn remove(&mut self) {
        let Some(fs) = self.view() else { return };
        let all: Vec<Found> = walk(&fs).into_iter().filter(|found| !found.is_dir).collect();
        for _ in 0..self.random.below(20) {
            if let Some(found) = self.random.pick(&all) {
                _ = fs.unlink(found.parent, found.name.as_bytes());
            }
        }
    }

    /// A copy has the names of its original.
    fn copy(&mut self) {
        let Some(fs) = self.view() else { return };
        let from = self.directory(&fs);
        if from == ROOT {
            return;
        }
        let name = self.next("copy");
        if fs.clone_tree(from, ROOT, name.as_bytes()).is_err() {
            return;
        }
        let copy = fs.lookup(ROOT, name.as_bytes()).expect("made");
        fs.forget(copy.ino, 1);
        let all = walk(&fs);
        let mut inside = BTreeSet::from([copy.ino]);
        self.given(copy.ino, &name);
        // A directory is found before what is in it.
        for found in all {
            if inside.contains(&found.parent) {
                self.given(found.ino, &found.name);
                inside.insert(found.ino);
            }
        }
    }

    fn transaction(&mut self) {
        let all = self.transactions();
        let Some(id) = self.random.pick(&all).copied().filter(|_| !self.random.one_in(3)) else {
            let durable = self.random.one_in(2);
            let options =
                TransactionOptions { branch: self.branch(), durable, ..Default::default() };
            self.done.push(format!("  begins, durable {durable}, in {:?}", options.branch));
            return drop(self.store.views.begin(options));
        };
        let ended = match self.random.below(3) {
            0 => self.store.views.abort(id),
            _ => self.store.views.commit(id, Durability::Buffered),
        };
        self.done.push(format!("  {id} ends: {ended:?}"));
    }

    fn roll_back(&mut self) {
        let all = self.snapshots();
        let Some(snapshot) = self.random.pick(&all).cloned() else { return };
        let done = self.store.views.rollback(&snapshot);
        self.done.push(format!("  to {snapshot}: {done:?}"));
    }

    fn snapshot(&mut self) {
        let (branch, name) = (self.branch(), self.next("s"));
        let of = ViewId::of_branch(&branch);
        self.store.views.snapshot(&of, &name, Durability::Buffered).expect("a snapshot");
        self.done.push(format!("  {name} of {branch:?}"));
    }

    fn clone_or_drop(&mut self) {
        let (snapshots, clones) = (self.snapshots(), self.branches().split_off(1));
        let views = &self.store.views;
        let done = match self.random.below(6) {
            0 => self.random.pick(&clones).map(|name| (name, views.drop_clone(name))),
            1 if snapshots.len() > 4 => {
                self.random.pick(&snapshots).map(|name| (name, views.drop_snapshot(name)))
            }
            _ if clones.len() < 6 => self.random.pick(&snapshots).map(|snapshot| {
                self.last += 1;
                (snapshot, views.clone_snapshot(snapshot, &format!("c{}", self.last)))
            }),
            _ => None,
        };
        self.done.push(format!("  {done:?}"));
    }

    /// Their names and numbers are in this store now.
    fn has_come(&mut self) {
        for found in &self.theirs {
            self.known.entry(found.ino).or_default().insert(found.name.clone());
        }
    }

    fn receive(&mut self, mounted: bool) {
        let stream = self.streams[self.random.below(2) as usize].clone();
        let branch = match self.random.one_in(2) {
            true => self.next("c"),
            // This excludes the main branch, since equal numbers may belong to different files.
            false => self.branches().pop().filter(|name| !name.is_empty()).unwrap_or("c".into()),
        };
        let options = ReceiveOptions { branch, snapshot: None, replace: true };
        let mut done = String::new();
        let raw = |db: &Kvdb| format!("{:?}", db.receive(&stream[..], &options));
        match mounted {
            true => done = format!("{:?}", self.store.views.receive(&stream[..], &options)),
            false => self.store.unmounted(|db| done = raw(db)),
        }
        if done.starts_with("Ok") {
            self.has_come();
        }
        self.done.push(format!("  into {:?}: {done}", options.branch));
    }

    /// Does an action on a store that is not mounted.
    fn unmounted(&mut self) {
        let (snapshots, clones) = (self.snapshots(), self.branches().split_off(1));
        let (snapshot, clone) =
            (self.random.pick(&snapshots).cloned(), self.random.pick(&clones).cloned());
        let (which, name) = (self.random.below(5), self.next("s"));
        let mut done = String::new();
        self.store.unmounted(|db| {
            done = match (which, snapshot, clone) {
                (0, Some(snapshot), _) => {
                    format!("back to {snapshot}: {:?}", db.rollback(&snapshot))
                }
                (1, Some(snapshot), _) => {
                    format!("clone {snapshot} {name}: {:?}", db.clone_snapshot(&snapshot, &name))
                }
                (2, _, Some(clone)) => format!("drop {clone}: {:?}", db.drop_branch(&clone)),
                (3, _, clone) => {
                    let of = clone.unwrap_or_default();
                    let made = db.snapshot_of(&of, &name, Durability::Synced);
                    format!("snapshot {name} of {of:?}: {made:?}")
                }
                _ => "nothing".into(),
            }
        });
        self.done.push(format!("  {done}"));
    }

    fn sync(&mut self) {
        self.store.views.sync_all().expect("synced");
        self.unsynced.clear();
    }

    fn power_cut(&mut self) {
        self.store.power_cut(self.random.number());
        let there: BTreeSet<Ino> = self.everywhere().into_iter().map(|found| found.ino).collect();
        for ino in std::mem::take(&mut self.unsynced) {
            if !there.contains(&ino) {
                self.known.remove(&ino);
            }
        }
        // Received files stay, or are received again.
        self.has_come_if(&there);
    }

    fn has_come_if(&mut self, there: &BTreeSet<Ino>) {
        for found in self.theirs.iter().filter(|found| there.contains(&found.ino)) {
            self.known.entry(found.ino).or_default().insert(found.name.clone());
        }
    }

    /// Returns the files of all views.
    fn everywhere(&self) -> Vec<Found> {
        let views = &self.store.views;
        let mut all: Vec<ViewId> =
            self.branches().iter().map(|name| ViewId::of_branch(name)).collect();
        all.extend(self.snapshots().into_iter().map(ViewId::Snapshot));
        all.extend(self.transactions().into_iter().map(ViewId::Transaction));
        all.iter().filter_map(|view| views.fs(view).ok()).flat_map(|fs| walk(&fs)).collect()
    }

    fn check(&self) {
        for found in self.everywhere() {
            let names = self.known.get(&found.ino);
            let is_known = names.is_some_and(|names| names.contains(&found.name));
            assert!(is_known, "{} is {} and was {names:?}", found.ino, found.name);
        }
        for branch in self.branches() {
            let Ok(fs) = self.store.views.fs(&ViewId::of_branch(&branch)) else { continue };
            let report = fs.verify().expect("readable");
            assert!(report.findings.is_empty(), "{branch:?}: {:?}", report.findings);
        }
    }

    fn step(&mut self) {
        let steps: [Step; 12] = [
            (30, "make", History::make),
            (5, "remove", History::remove),
            (4, "copy", History::copy),
            (12, "transaction", History::transaction),
            (5, "rollback", History::roll_back),
            (8, "snapshot", History::snapshot),
            (8, "clone or drop", History::clone_or_drop),
            (1, "receive", |h| h.receive(true)),
            (1, "receive, unmounted", |h| h.receive(false)),
            (4, "unmounted", History::unmounted),
            (5, "sync", History::sync),
            (5, "power cut", History::power_cut),
        ];
        let mut at = self.random.below(steps.iter().map(|(weight, ..)| weight).sum());
        for (weight, name, step) in steps {
            if at < weight {
                self.done.push(name.into());
                return step(self);
            }
            at -= weight;
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}:\n{}", self.seed, self.done.join("\n"));
        }
    }
}

#[test]
fn whatever_happens_to_branches_no_number_is_given_twice() {
    let base = number("KVFS_BASE", 0);
    for seed in base..base + number("KVFS_SEEDS", 20) {
        let mut history = History::new(seed);
        for step in 0..STEPS {
            history.step();
            if step % 10 == 9 {
                history.check();
            }
        }
        history.sync();
        history.check();
    }
}
