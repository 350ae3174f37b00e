//! The collector, which deletes objects that nothing has referred to for long enough.
//!
//! A dead object stays dead (see `mark`): its epoch is lower than that of the head that was read,
//! so no publisher that can replace that head knows the object. A dead object is deleted when it
//! has been on a list of dead objects for the whole grace *and* the heads and the registry, read
//! after that, confirm that it is dead. So a reader of a replaced state may continue to read during
//! the grace.
//!
//! Invariants:
//!
//! - The clock is read before the heads. So an object has been on a list for the whole grace before
//!   the marks that condemn it, however long the collection takes afterwards.
//! - An object is deleted only if it is listed, dead, and on a list of dead objects that existed
//!   when the collection began. The list only tells when the object was found dead, never that it
//!   may be deleted.
//! - A list with an object that is not dead is void, so that an object that dies later gets the
//!   whole grace.
//! - A list is deleted when none of its objects remains. Dead objects that are on no list are put
//!   on a new list before that. So a collection may stop after any step, and any step may be
//!   repeated, even by a concurrent collector.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use env::Env;
use objects::{Key, Listed};

use super::contents::{CONTENT, NOW, at_once, delete, each_listed};
use super::dead::{self, DeadList};
use super::mark::{Fate, Marks};
use super::{RemotePlace, Result};

/// Options of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// Minimum time between finding an object dead and deleting it, by the clock of the place.
    /// Readers of a replaced state may continue for this time.
    pub grace: Duration,
    /// Deletes nothing and writes no list. (One small object is still put and deleted, to learn the
    /// time of the place.)
    pub dry_run: bool,
}

impl Default for CollectOptions {
    /// Returns options with a grace of one day.
    fn default() -> Self {
        CollectOptions { grace: Duration::from_secs(24 * 3600), dry_run: false }
    }
}

/// The progress of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectProgress {
    /// Objects that were examined.
    pub objects: u64,
    /// Objects that are to be deleted.
    pub due: u64,
    /// Objects of `due` that have been deleted.
    pub deleted: u64,
}

/// A number of objects, and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The number of objects.
    pub objects: u64,
    /// The total size of these objects in bytes.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, entry: &Listed) {
        self.objects += 1;
        self.bytes += entry.len;
    }
}

/// The outcome of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Stores with a state.
    pub stores: u64,
    /// Forks that are registered and have not expired.
    pub forks: u64,
    /// Forks whose registration has expired.
    pub expired_forks: u64,
    /// Objects that stores and forks refer to.
    pub kept: Amount,
    /// Objects that publications in progress may have written.
    pub current: Amount,
    /// Dead objects that this collection has found first.
    pub found: Amount,
    /// Dead objects that an earlier collection has found, and whose grace is not over.
    pub waiting: Amount,
    /// Objects that were deleted or, with `dry_run`, would be.
    pub deleted: Amount,
    /// Objects of a kind unknown to this program, which are left alone.
    pub unknown: Amount,
}

impl Collected {
    /// Returns the outcome before any object was examined.
    fn of(marks: &Marks) -> Collected {
        Collected {
            stores: marks.stores,
            forks: marks.forks,
            expired_forks: marks.expired.len() as u64,
            ..Collected::default()
        }
    }
}

/// The dead objects that a collection has found.
#[derive(Default)]
struct DeadObjects {
    /// Objects that this collection has found.
    found: Vec<Key>,
    /// Objects that this collection deletes.
    due: Vec<Key>,
    /// Objects whose grace is not over.
    left: HashSet<Key>,
}

impl DeadObjects {
    /// Adds an object that an earlier collection has found dead at `since`, if any has. Returns the
    /// amount in `told` in which the object is counted.
    fn take<'a>(
        &mut self,
        key: &Key,
        since: Option<&Duration>,
        is_due: impl Fn(Duration) -> bool,
        told: &'a mut Collected,
    ) -> &'a mut Amount {
        match since {
            None => {
                self.found.push(key.clone());
                &mut told.found
            }
            Some(since) if is_due(*since) => {
                self.due.push(key.clone());
                &mut told.deleted
            }
            Some(_) => {
                self.left.insert(key.clone());
                &mut told.waiting
            }
        }
    }
}

/// Returns for each listed object when it was first found dead.
fn found_since(lists: &[DeadList]) -> HashMap<&Key, Duration> {
    let mut since = HashMap::new();
    for list in lists {
        for key in &list.keys {
            let first = since.entry(key).or_insert(list.found);
            *first = list.found.min(*first);
        }
    }
    since
}

impl RemotePlace {
    /// Deletes the objects that no store and no fork refers to, according to [`CollectOptions`].
    /// Objects that are first found dead now are deleted by a later call. Stores may be published,
    /// read and forked concurrently, and another collection may run. `progress` is called from time
    /// to time; if it fails, so does the call.
    ///
    /// If a head, a registration or a state cannot be read, the error names it, and nothing was
    /// deleted.
    pub fn collect(
        &self,
        env: &dyn Env,
        options: CollectOptions,
        progress: &mut dyn FnMut(CollectProgress) -> Result<()>,
    ) -> Result<Collected> {
        let objects = &self.objects;
        let (now, below) = self.clock(env)?;
        let marks = Marks::read(objects, now)?;
        let is_due = |since: Duration| since.saturating_add(options.grace) <= now;

        let lists = dead::read_all(objects, &below)?;
        let is_void = |list: &DeadList| list.keys.iter().any(|key| marks.fate(key) != Fate::Dead);
        let (void, valid): (Vec<_>, Vec<_>) = lists.into_iter().partition(is_void);
        let since = found_since(&valid);

        let mut told = Collected::of(&marks);
        let mut far = CollectProgress::default();
        let mut condemned = DeadObjects::default();
        for prefix in CONTENT {
            each_listed(&**objects, prefix, &mut |entry| {
                far.objects += 1;
                if far.objects.is_multiple_of(1000) {
                    progress(far)?;
                }
                let amount = match (marks.fate_of(&entry), since.get(&entry.key)) {
                    (Fate::Needed(_), _) => &mut told.kept,
                    (Fate::Current, _) => &mut told.current,
                    (Fate::Unknown, _) => &mut told.unknown,
                    (Fate::Dead, since) => condemned.take(&entry.key, since, is_due, &mut told),
                };
                amount.add(&entry);
                Ok(())
            })?;
        }
        if options.dry_run {
            return Ok(told);
        }

        dead::write(objects, env, &condemned.found)?;
        far.due = condemned.due.len() as u64;
        for some in condemned.due.chunks(1000) {
            progress(far)?;
            at_once(some, |key| delete(&**objects, key))?;
            far.deleted += some.len() as u64;
        }
        let done =
            valid.iter().filter(|list| !list.keys.iter().any(|key| condemned.left.contains(key)));
        let old = |entry: &&Listed| entry.key.as_str().starts_with(NOW) && is_due(entry.modified);
        let clocks = below.iter().filter(old).map(|entry| &entry.key);
        let expired = marks.expired.iter().filter(|(_, since)| is_due(*since));
        let rest: Vec<&Key> = (void.iter().chain(done).map(|list| &list.key))
            .chain(clocks)
            .chain(expired.map(|(key, _)| key))
            .collect();
        at_once(&rest, |key| delete(&**objects, key))?;
        progress(far)?;
        Ok(told)
    }
}
