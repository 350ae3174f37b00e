//! Simulates the kernel. It holds writes back until it is asked for them, caches what it has seen,
//! and lists directories in pieces. When a view is replaced as a whole, the kernel must be told to
//! forget what it has cached of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use kvfs::{ChangeSet, CommittedTo, Fs, Ino, ROOT, ViewId, Wait, Watcher, WriteHints};

use super::content::Target;
use super::found::Exactly;
use super::tree::{Id, TOP, Tree};
use super::world::{Dead, Site, World, mainline};
use super::{branches, names, store, transactions};

/// The notifications about a view, by its number.
#[derive(Clone, Default)]
pub struct Told {
    names: BTreeSet<(Ino, Vec<u8>)>,
    inodes: BTreeSet<Ino>,
}

struct Held {
    fs: Fs,
    ino: Ino,
    at: u64,
    bytes: Vec<u8>,
}

impl Held {
    fn give(&self) -> kvfs::Result<()> {
        let hints = WriteHints { from_cache: true, ..WriteHints::default() };
        self.fs.write(self.ino, self.at, &self.bytes, hints).map(drop)
    }
}

#[derive(Default)]
pub struct Kernel {
    held: Mutex<Vec<Held>>,
    /// The changes, and the views that have ended.
    told: Mutex<(BTreeMap<u16, Told>, BTreeSet<u16>)>,
}

impl Kernel {
    fn hear(&self, number: u16, touched: &ChangeSet) {
        let mut told = self.told.lock().expect("no one has panicked");
        let of = told.0.entry(number).or_default();
        of.names.extend(touched.names.iter().map(|(dir, name, _)| (*dir, name.to_vec())));
        of.inodes.extend(touched.inodes.iter().map(|(ino, _)| *ino));
    }

    pub fn holds(&self) -> bool {
        !self.held.lock().expect("no one has panicked").is_empty()
    }

    /// Returns the notifications since the last call.
    fn heard(&self) -> (BTreeMap<u16, Told>, BTreeSet<u16>) {
        std::mem::take(&mut self.told.lock().expect("no one has panicked"))
    }
}

impl Watcher for Kernel {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        let held = std::mem::take(&mut *self.held.lock().expect("no one has panicked"));
        held.iter().try_for_each(|held| held.give().map_err(|e| e.to_string()))
    }

    fn appeared(&self, _: &ViewId) {}

    fn ended(&self, _: &ViewId, number: u16, _: &Fs, committed: Option<CommittedTo<'_>>) {
        self.told.lock().expect("no one has panicked").1.insert(number);
        if let Some(to) = committed {
            self.hear(to.number, to.changes);
        }
    }

    fn changed(&self, number: u16, _: &Fs, touched: &ChangeSet) {
        self.hear(number, touched);
    }
}

impl World {
    /// Discards earlier notifications.
    pub fn listen(&self) {
        drop(self.kernel.heard());
    }

    /// A view was replaced. Checks that the kernel was notified of everything that it may have
    /// cached and that has changed.
    #[track_caller]
    pub fn was_told(&self, site: &Site, number: u16, before: &Tree, after: &Tree) {
        let told = self.kernel.heard().0.remove(&number).unwrap_or_default();
        let known: BTreeMap<Id, Ino> = self
            .references
            .keys()
            .filter(|(s, id)| s == site && !self.stale.contains(&(s.clone(), *id)))
            .map(|(_, id)| (*id, self.inos[id]))
            .chain([(TOP, ROOT)])
            .collect();
        for at in before.entries.keys().chain(after.entries.keys()) {
            let Some(dir) = known.get(&at.0) else { continue };
            let same = before.entries.get(at) == after.entries.get(at);
            let heard = same || told.names.contains(&(*dir, at.1.clone()));
            assert!(
                heard,
                "{}: the kernel was not told of {}/{}",
                self.what(),
                at.0,
                at.1.escape_ascii()
            );
        }
        for (id, ino) in &known {
            let (was, is) = (before.nodes.get(id), after.nodes.get(id));
            let same = match (was, is) {
                (Some(was), Some(is)) => {
                    was.now() == is.now() && before.links(*id) == after.links(*id)
                }
                (was, is) => was.is_none() && is.is_none(),
            };
            assert!(
                same || told.inodes.contains(ino),
                "{}: the kernel was not told of node {id}, inode {ino}",
                self.what()
            );
        }
    }

    /// Takes the notifications that a view has ended.
    #[track_caller]
    pub fn was_told_of_end(&self, number: u16) {
        let mut told = self.kernel.told.lock().expect("no one has panicked");
        assert!(
            told.1.remove(&number),
            "{}: the kernel was not told of the end of view {number}",
            self.what()
        );
    }
}

impl World {
    /// The kernel hands over its held writes. Those for an ended view are discarded.
    pub fn hand_over(&mut self) -> Result<(), Dead> {
        let held = std::mem::take(&mut *self.kernel.held.lock().expect("no one has panicked"));
        for held in held {
            match held.give() {
                Ok(()) | Err(kvfs::Error::Stale(_)) => {}
                Err(e) => self.judge(&mainline(), e, "handing over", &[])?,
            }
        }
        Ok(())
    }
}

/// A program has written data that the kernel holds back, and an operation follows that needs the
/// data.
pub fn held_write(w: &mut World, site: &Site) -> Result<(), Dead> {
    // Data that cannot be handed over blocks the operation.
    let possible = w.lost.is_empty()
        && !w.limited
        && !w.open.iter().any(|open| open.isolation == kvdb::Isolation::Serializable);
    let tree = w.tree(site);
    let files = tree.all(|kind| kind == kvfs::FileKind::File);
    let Some(id) = w.pick(&files).filter(|_| possible) else { return Ok(()) };
    let Some(ino) = w.ino(site, id)? else { return Ok(()) };
    let on = Target::named(id, ino, &tree);
    let (kernel, fs) = (w.kernel.clone(), w.fs(site)?);
    let at = w.random.below(9000);
    let mut bytes = vec![0; 1 + w.random.below(6000) as usize];
    w.random.fill(&mut bytes);
    let mut own = on.node.now().clone();
    super::content::put(Arc::make_mut(&mut own.data), at as usize, &bytes);
    own.touch(w.now(), None);
    let hold = |_: &Fs| {
        kernel.held.lock().expect("no one has panicked").push(Held { fs, ino, at, bytes });
        Ok(())
    };
    w.change(site, &on, "held write".into(), Ok(own), Vec::new(), hold)?;
    w.call(&["Views::watch"]);
    match w.random.below(7) {
        0 => transactions::begin(w)?,
        1 => transactions::end(w)?,
        2 => branches::snapshot(w)?,
        3 => names::clone_tree(w, site)?,
        4 => store::sync_views(w)?,
        _ => transactions::look_after(w)?,
    }
    // The operation did not need the data of the kernel.
    w.hand_over()
}

/// A listing in progress.
pub struct Listing {
    site: Site,
    dir: Id,
    cookie: u64,
    seen: Vec<Vec<u8>>,
    /// The names that existed when the listing began, and were never removed since.
    there: BTreeMap<Vec<u8>, Id>,
}

impl World {
    /// Removes the names that a listing need not show any more.
    pub fn listing_lost(&mut self, site: &Site, tree: &Tree) {
        if let Some(listing) = self.listing.as_mut().filter(|l| l.site == *site) {
            let dir = listing.dir;
            listing.there.retain(|name, id| tree.entries.get(&(dir, name.clone())) == Some(id));
        }
    }
}

/// Lists the next part of a directory.
pub fn list(w: &mut World, site: &Site) -> Result<(), Dead> {
    let gone = |w: &World, l: &Listing| match &l.site {
        Site::Transaction(label) => !w.open.iter().any(|open| open.label == *label),
        Site::Branch(name) => !w.history.newest().branches.contains_key(name),
    };
    // A caller that lists a directory has it open.
    let is_open = |w: &World, site: &Site, dir: Id| {
        dir == TOP || w.references.contains_key(&(site.clone(), dir))
    };
    let goes_on = |w: &World, l: &Listing| {
        !gone(w, l) && w.tree(&l.site).is_dir(l.dir) && is_open(w, &l.site, l.dir)
    };
    let mut listing = match w.listing.take() {
        Some(listing) if goes_on(w, &listing) => listing,
        _ => {
            let tree = w.tree(site);
            let mut dirs = tree.all(|kind| kind == kvfs::FileKind::Dir);
            dirs.retain(|dir| is_open(w, site, *dir));
            let dir = w.pick(&dirs).expect("there is the root");
            let there = tree.children(dir).map(|(name, id)| (name.clone(), id)).collect();
            Listing { site: site.clone(), dir, cookie: 0, seen: Vec::new(), there }
        }
    };
    let site = listing.site.clone();
    let Some(ino) = w.ino(&site, listing.dir)? else { return Ok(()) };
    let (plus, mut most) = (w.random.one_in(2), 1 + w.random.below(6));
    w.call(&["Fs::readdir"]);
    w.note(format!("{site:?} list {} from {:x}, {most}", listing.dir, listing.cookie));
    let (fs, mut found, mut ended) = (w.fs(&site)?, Vec::new(), true);
    let done = fs.readdir(ino, listing.cookie, plus, &mut |e| {
        if most == 0 {
            ended = false;
            return false;
        }
        most -= 1;
        listing.cookie = e.cookie;
        found.push((e.name.to_vec(), e.ino, e.attr));
        true
    });
    if let Err(e) = done {
        return w.judge(&site, e, "readdir", &[]);
    }
    let tree = w.tree(&site);
    if w.exactly(&site) == Exactly::ButForDirectories {
        // A serializable transaction reads the current committed state, so others may have removed
        // entries that it has not read yet.
        w.listing = Some(listing);
        w.listing_lost(&site, &tree);
        listing = w.listing.take().expect("it was put there");
    }
    for (name, child, attr) in found.into_iter().filter(|(name, ..)| name != b"." && name != b"..")
    {
        let id = tree.entries.get(&(listing.dir, name.clone())).copied();
        let id = id.unwrap_or_else(|| panic!("{}: {} is not there", w.what(), name.escape_ascii()));
        match w.inos.get(&id) {
            Some(known) => assert_eq!(*known, child, "{}: {}", w.what(), name.escape_ascii()),
            None => w.is_new(&site, id, child),
        }
        // An entry that another transaction has locked is listed without its attributes.
        let locked = w.exactly(&site) == Exactly::ButForDirectories;
        assert!(attr.is_some() == plus || plus && locked, "{}: {}", w.what(), name.escape_ascii());
        if let Some(attr) = attr {
            assert_eq!((attr.ino, attr.kind), (child, tree.nodes[&id].kind), "{}", w.what());
            w.refer(&site, id);
            if w.random.one_in(2) {
                w.forget(&site, id, child, 1)?;
            }
        }
        listing.seen.push(name);
    }
    if !ended {
        w.listing = Some(listing);
        return Ok(());
    }
    for name in listing.there.keys() {
        let times = listing.seen.iter().filter(|seen| *seen == name).count();
        assert_eq!(
            times,
            1,
            "{}: {} in the listing of {}",
            w.what(),
            name.escape_ascii(),
            listing.dir
        );
    }
    Ok(())
}
