//! The store under test, its expected content, and what the operations share: how a call is made
//! and how its answer is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use env::{Env, Random, Simulated};
use kvdb::{Durability, Follower, Isolation, Kvdb, RemoteStore};
use kvfs::{Caller, Error, Fs, Ino, Timestamp, ViewId, Views};
use zones::CrashDevice;

use super::found::Exactly;
use super::kernel::{Kernel, Listing};
use super::state::{Bases, History, State, branch_in};
use super::steps;
use super::transactions::Open;
use super::tree::{Id, Node, Overlay, TOP, Tree};

/// The power has failed.
#[derive(Debug)]
pub struct Dead;

/// The view on which a call is made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// The mainline is `""`; others are clones.
    Branch(String),
    /// A transaction, by its label.
    Transaction(String),
}

pub fn mainline() -> Site {
    Site::Branch(String::new())
}

pub const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };

pub struct World {
    pub seed: u64,
    pub step: u64,
    pub operation: &'static str,
    pub random: Random,
    pub env: Arc<Simulated>,
    pub device: Arc<CrashDevice>,
    pub db: Kvdb,
    pub views: Views,
    pub history: History,
    pub bases: Bases,
    pub open: Vec<Open>,
    /// The changes committed to each branch since the store was opened. Transactions remember their
    /// position in it.
    pub committed: Vec<(String, Overlay)>,
    /// References of the kernel, whose part the test plays.
    pub references: BTreeMap<(Site, Id), u64>,
    /// Nodes that have no name any more, or none yet, and are referred to.
    pub nameless: BTreeMap<(Site, Id), Node>,
    /// Nodes that a rollback has removed while they were referred to.
    pub stale: BTreeSet<(Site, Id)>,
    /// References into ended views: the view's number, the inode and the count.
    pub left: Vec<(u16, Ino, u64)>,
    pub inos: BTreeMap<Id, Ino>,
    /// Inode numbers that were seen since the store was opened, by branch. None of them is assigned
    /// again.
    pub taken: BTreeMap<String, BTreeSet<Ino>>,
    /// Inodes for which data from a cache was refused.
    pub lost: BTreeSet<Ino>,
    /// The time of the last change that still waits.
    pub changed_at: BTreeMap<(String, Id), Duration>,
    pub fresh: Id,
    pub names: u64,
    /// The store is small and may be full. Additions may be refused for lack of space, but removals
    /// may not.
    pub limited: bool,
    /// The number of refusals.
    pub full: u64,
    pub called: BTreeSet<&'static str>,
    pub kernel: Arc<Kernel>,
    /// Another machine, which follows what is published, over all lives of this one.
    pub reader: Option<Reader>,
    pub listing: Option<Listing>,
    /// The actions so far, for the reader of a failure.
    pub log: Vec<String>,
}

/// A store that is published, and a reader of it.
pub struct Reader {
    pub store: RemoteStore,
    pub db: Kvdb,
    pub views: Views,
    pub follower: Follower,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && !steps::is_quiet() {
            let from = if std::env::var_os("KVFS_WHOLE").is_some() {
                0
            } else {
                self.log.len().saturating_sub(60)
            };
            eprintln!(
                "{} steps before (KVFS_WHOLE=1 shows all):\n{}",
                self.log.len() - from,
                self.log[from..].join("\n")
            );
            eprintln!("it was {}", self.what());
        }
    }
}

pub fn is_locked(e: &Error) -> bool {
    matches!(e, Error::Store(kvdb::Error::Locked(_)))
}

impl World {
    pub fn what(&self) -> String {
        format!("seed {}, step {} ({})", self.seed, self.step, self.operation)
    }

    /// Notes that public operations are called.
    pub fn call(&mut self, names: &[&'static str]) {
        self.called.extend(names);
    }

    pub fn note(&mut self, what: String) {
        self.log.push(format!("{:4} {what}", self.step));
    }

    pub fn now(&self) -> Timestamp {
        self.env.wall().into()
    }

    /// The call must succeed unless the power has failed.
    #[track_caller]
    pub fn ok<T>(&self, result: kvfs::Result<T>) -> Result<T, Dead> {
        result.map_err(|e| {
            assert!(self.device.is_dead(), "{}: {e}", self.what());
            Dead
        })
    }

    /// The outcome of a call of the database, which may fail only when the device is dead.
    #[track_caller]
    pub fn stored<T>(&self, result: kvdb::Result<T>) -> Result<T, Dead> {
        self.ok(result.map_err(Error::from))
    }

    // --- places

    pub fn durability(&mut self) -> Durability {
        if self.random.one_in(4) { Durability::Synced } else { Durability::Buffered }
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random.below(from.len() as u64) as usize].clone())
    }

    /// Draws the view for the next action.
    pub fn site(&mut self) -> Site {
        let clones: Vec<String> =
            self.history.newest().branches.keys().filter(|b| !b.is_empty()).cloned().collect();
        let open: Vec<String> = self.open.iter().map(|o| o.label.clone()).collect();
        match self.random.below(10) {
            0..=4 if !open.is_empty() => Site::Transaction(self.pick(&open).expect("there is one")),
            5 if !clones.is_empty() => Site::Branch(self.pick(&clones).expect("there is one")),
            _ => mainline(),
        }
    }

    pub fn view_of(&self, site: &Site) -> ViewId {
        match site {
            Site::Branch(name) if name.is_empty() => ViewId::Mainline,
            Site::Branch(name) => ViewId::Clone(name.clone()),
            Site::Transaction(label) => ViewId::Transaction(self.running(label).id),
        }
    }

    pub fn fs(&self, site: &Site) -> Result<Fs, Dead> {
        self.ok(self.views.fs(&self.view_of(site)))
    }

    pub fn running(&self, label: &str) -> &Open {
        self.open.iter().find(|o| o.label == label).expect("it is open")
    }

    pub fn running_mut(&mut self, label: &str) -> &mut Open {
        self.open.iter_mut().find(|o| o.label == label).expect("it is open")
    }

    /// Returns the current tree.
    pub fn tree(&self, site: &Site) -> Arc<Tree> {
        match site {
            Site::Branch(name) => self.history.newest().branches[name].clone(),
            Site::Transaction(label) => Arc::new(self.running(label).tree(self.history.newest())),
        }
    }

    /// The branch whose inode numbers a place assigns.
    pub fn branch_of(&self, site: &Site) -> String {
        match site {
            Site::Branch(name) => name.clone(),
            Site::Transaction(label) => branch_in(label).into(),
        }
    }

    pub fn exactly(&self, site: &Site) -> Exactly {
        match site {
            Site::Transaction(label)
                if self.running(label).isolation == Isolation::Serializable =>
            {
                Exactly::ButForDirectories
            }
            _ => Exactly::Now,
        }
    }

    fn serializable_is_open(&self) -> bool {
        self.open.iter().any(|o| o.isolation == Isolation::Serializable)
    }

    // --- inode numbers

    /// Returns the number of an object that has a name, or had one, or `None` if a lock keeps it
    /// from being read now.
    pub fn ino(&mut self, site: &Site, id: Id) -> Result<Option<Ino>, Dead> {
        if id == TOP {
            return Ok(Some(kvfs::ROOT));
        }
        if let Some(ino) = self.inos.get(&id) {
            return Ok(Some(*ino));
        }
        self.call(&["Fs::resolve"]);
        let path = self.tree(site).path(id).expect("what has no name is known by its number");
        match self.fs(site)?.resolve(&path) {
            Ok(attr) => {
                self.is_new(site, id, attr.ino);
                Ok(Some(attr.ino))
            }
            Err(e) => self.judge(site, e, "resolve", &[]).map(|()| None),
        }
    }

    /// An inode was made. Checks that its number was never used.
    pub fn is_new(&mut self, site: &Site, id: Id, ino: Ino) {
        let branch = self.branch_of(site);
        let new = self.taken.entry(branch).or_default().insert(ino);
        assert!(new, "{}: inode {ino} of node {id} was there already", self.what());
        self.note(format!("node {id} is inode {ino}"));
        self.inos.insert(id, ino);
    }

    pub fn refer(&mut self, site: &Site, id: Id) {
        *self.references.entry((site.clone(), id)).or_default() += 1;
    }

    // --- calls

    /// Checks an error. Returns `Ok` if it is one of these, or may be due to another transaction or
    /// lack of space. Then the call had no effect.
    #[track_caller]
    pub fn judge(
        &mut self,
        site: &Site,
        e: Error,
        what: &str,
        expected: &[i32],
    ) -> Result<(), Dead> {
        if self.limited && e.errno() == libc::ENOSPC && !self.device.is_dead() {
            self.full += 1;
            return Ok(());
        }
        self.judge_removal(site, e, what, expected)
    }

    /// Checks the failure of a removal, which a full store does not refuse.
    #[track_caller]
    pub fn judge_removal(
        &mut self,
        site: &Site,
        e: Error,
        what: &str,
        expected: &[i32],
    ) -> Result<(), Dead> {
        if self.device.is_dead() {
            return Err(Dead);
        }
        if expected.contains(&e.errno())
            || matches!(e, Error::LostBefore(ino) if self.lost.contains(&ino))
        {
            return Ok(());
        }
        if let Site::Transaction(label) = site {
            let open = self.running(label);
            if open.isolation == Isolation::Serializable && self.db.transaction(open.id).is_err() {
                // The transaction was ended in favour of an older one.
                self.reap();
                return Ok(());
            }
        }
        if is_locked(&e) && self.serializable_is_open() {
            return Ok(());
        }
        panic!("{}: {what}: {e} (errno {}), not {expected:?}", self.what(), e.errno());
    }

    fn note_effect(&mut self, site: &Site, over: &Overlay) {
        match site {
            Site::Branch(branch) => {
                let next = Arc::new(self.history.newest().branches[branch].with(over));
                self.history.attempt(|s| drop(s.branches.insert(branch.clone(), next)));
            }
            Site::Transaction(label) => {
                if self.running(label).durable {
                    let mut all = self.running(label).over.clone();
                    all.add(over);
                    self.history.attempt(|s| drop(s.durable.insert(label.clone(), Arc::new(all))));
                }
            }
        }
    }

    pub fn refused(&mut self, site: &Site) {
        match site {
            Site::Branch(_) => self.history.refused(),
            Site::Transaction(label) => {
                // The attempt of an ended transaction is lost with it.
                if self.open.iter().any(|o| o.label == *label && o.durable) {
                    self.history.refused();
                }
            }
        }
    }

    fn took_effect(&mut self, site: &Site, before: &Tree, over: Overlay) {
        self.lost(site, before, &over);
        self.listing_lost(site, &before.with(&over));
        let now = self.env.monotonic();
        for (id, node) in &over.nodes {
            if node.as_ref().is_some_and(|node| node.possible.len() > 1)
                && let Site::Branch(branch) = site
            {
                self.changed_at.insert((branch.clone(), *id), now);
            }
        }
        match site {
            Site::Branch(branch) => self.committed.push((branch.clone(), over)),
            Site::Transaction(label) => self.running_mut(label).over.add(&over),
        }
    }

    /// Nodes that have lost their last name and are referred to stay without a name.
    pub fn lost(&mut self, site: &Site, before: &Tree, over: &Overlay) {
        for (id, node) in &over.nodes {
            let at = (site.clone(), *id);
            match node {
                Some(_) => drop(self.nameless.remove(&at)),
                None if self.references.contains_key(&at) => {
                    if let Some(node) = before.nodes.get(id) {
                        self.nameless.insert(at, node.settled());
                    }
                }
                None => {}
            }
        }
    }

    /// Makes a call that has this effect, or must fail with this error. Returns `None` if it was
    /// refused and has changed nothing.
    #[track_caller]
    pub fn act<T: std::fmt::Debug>(
        &mut self,
        site: &Site,
        what: String,
        effect: Result<Overlay, i32>,
        call: impl FnOnce(&Fs) -> kvfs::Result<T>,
    ) -> Result<Option<T>, Dead> {
        self.call(&["Views::fs"]);
        // An error of the call itself may be reported first.
        let or = effect.as_ref().err().copied();
        self.note(format!(
            "{site:?} {what}: {}",
            effect.as_ref().map_or_else(|e| format!("error {e}"), |_| "to be done".into())
        ));
        let (fs, before) = (self.fs(site)?, self.tree(site));
        // A removal in a transaction is refused only where it is logged.
        let logged = matches!(site, Site::Transaction(label) if self.running(label).durable);
        let removes = !logged && effect.as_ref().is_ok_and(|over| over.removes_from(&before));
        if let Ok(over) = &effect {
            self.note_effect(site, over);
        }
        match (call(&fs), effect) {
            (Ok(answer), Ok(over)) => {
                self.took_effect(site, &before, over);
                Ok(Some(answer))
            }
            (Ok(answer), Err(e)) => panic!("{}: {what}: {answer:?}, not error {e}", self.what()),
            (Err(e), effect) => {
                let expected: Vec<i32> =
                    effect.as_ref().err().copied().into_iter().chain(or).collect();
                let judged = match removes {
                    true => self.judge_removal(site, e, &what, &expected),
                    false => self.judge(site, e, &what, &expected),
                };
                if judged.is_ok() && effect.is_ok() {
                    self.note(format!("{what}: was refused"));
                    self.refused(site);
                }
                judged.map(|()| None)
            }
        }
    }

    /// Makes this the newest state, as one step that is on disk when `work` returns, with
    /// everything that was committed before. The step removes data, so it is not refused for lack
    /// of space.
    pub fn alter(
        &mut self,
        alter: impl Fn(&mut State),
        work: impl FnOnce(&mut World) -> kvfs::Result<()>,
    ) -> Result<bool, Dead> {
        self.altered(alter, work, false)
    }

    /// Makes a change that needs space. Returns `false` if the store is full and nothing has
    /// changed.
    pub fn add(
        &mut self,
        alter: impl Fn(&mut State),
        work: impl FnOnce(&mut World) -> kvfs::Result<()>,
    ) -> Result<bool, Dead> {
        self.altered(alter, work, true)
    }

    fn altered(
        &mut self,
        alter: impl Fn(&mut State),
        work: impl FnOnce(&mut World) -> kvfs::Result<()>,
        adds: bool,
    ) -> Result<bool, Dead> {
        self.history.attempt(alter);
        match work(self) {
            Ok(()) => {
                self.history.certain();
                Ok(true)
            }
            Err(e) => {
                let what = self.operation;
                match adds {
                    true => self.judge(&mainline(), e, what, &[])?,
                    false => self.judge_removal(&mainline(), e, what, &[])?,
                }
                self.history.refused();
                Ok(false)
            }
        }
    }

    /// Notes that the data that a branch has in memory is committed.
    pub fn settle(&mut self, branch: &str) {
        let mut tree = (*self.history.newest().branches[branch]).clone();
        tree.settle();
        self.history.attempt(|s| drop(s.branches.insert(branch.into(), Arc::new(tree))));
    }

    /// A snapshot or clone is dropped. Data that was written to files before, and may come from it,
    /// is on disk, except for data without space and data that a transaction has locked.
    pub fn written_before_a_drop(&mut self) {
        if !self.limited && !self.serializable_is_open() {
            let branches: Vec<String> = self.history.newest().branches.keys().cloned().collect();
            branches.iter().for_each(|branch| self.settle(branch));
            self.history.certain();
        }
    }

    /// Does the opposite after a refused call: a part of the data may be committed, and the rest
    /// still waits. `tree` is the earlier state of the branch.
    pub fn unsettle(&mut self, branch: &str, tree: Arc<Tree>) {
        self.history.attempt(|s| drop(s.branches.insert(branch.into(), tree)));
    }

    pub fn new_name(&mut self, letter: char) -> String {
        self.names += 1;
        format!("{letter}{}", self.names)
    }
}
