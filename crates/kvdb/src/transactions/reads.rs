//! The read set that a transaction declares. Under snapshot isolation only *writes* of two
//! transactions conflict. If a decision depends on a key that is not written, the key is added to
//! the read set, and a change of it by others before the commit is then a conflict as well
//! (FoundationDB calls these read conflict ranges, RocksDB `GetForUpdate`).
//!
//! A transaction may also depend on the read set of another one, counted from the beginning of that
//! one: a client can declare the keys that it relies on long before it knows what it will write,
//! and the commit checks all of them at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{KeyRange, Seq};

use super::conflicts::{self, Others};
use super::handle::Transaction;
use super::options::Isolation;
use super::registry::Transactions;
use super::state::Open;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::locks::{KeyRangeRef, RangeSet};

/// Maximum size of the read set of a transaction, bytes.
const MOST: usize = 32 << 20;
/// Approximate memory of a range in addition to its keys, bytes.
const OVERHEAD: usize = 128;

/// A set of keys and ranges, by dictionary.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadSet {
    dictionaries: BTreeMap<DictionaryId, RangeSet>,
    /// Memory of all ranges that were added and not contained in the set yet, bytes.
    bytes: usize,
}

impl ReadSet {
    pub(super) fn is_empty(&self) -> bool {
        self.dictionaries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DictionaryId, &RangeSet)> {
        self.dictionaries.iter().map(|(dict, ranges)| (*dict, ranges))
    }

    /// Adds the ranges of another read set.
    pub(super) fn extend(&mut self, other: &ReadSet) -> Result<()> {
        if self.bytes.saturating_add(other.bytes) > MOST {
            return Err(too_many());
        }
        for (dict, ranges) in other.iter() {
            ranges.iter().for_each(|range| self.insert(dict, range));
        }
        Ok(())
    }

    /// Adds a range. One that the set contains takes no more memory, however often it is read.
    fn insert(&mut self, dict: DictionaryId, range: KeyRange) {
        let ranges = self.dictionaries.entry(dict).or_default();
        if ranges.covers(&range) {
            return;
        }
        self.bytes += range.start.len() + range.end.as_ref().map_or(0, |end| end.len()) + OVERHEAD;
        ranges.insert(range);
    }

    /// Returns the first key of the set, for a message.
    fn first(&self) -> Option<(DictionaryId, Bytes)> {
        self.iter().find_map(|(dict, ranges)| Some((dict, ranges.iter().next()?.start)))
    }
}

fn too_many() -> Error {
    Error::Limit(format!(
        "the commit depends on more than {MOST} bytes of keys: take ranges, or a serializable transaction"
    ))
}

/// A read set that must be unchanged when a transaction commits.
#[derive(Clone)]
pub(super) struct Dependency {
    pub reads: Arc<ReadSet>,
    /// Only changes with a greater number count.
    pub since: Seq,
    /// The transaction that the read set comes from, if it is not the committing one. The handle
    /// keeps it open, so that commits since its beginning are remembered.
    pub of: Option<Transaction>,
}

impl Dependency {
    /// Returns a range of the read set that was changed after `since`, if there is one.
    pub(super) fn changed(
        &self,
        registry: &Transactions,
        since: Seq,
    ) -> Result<Option<(DictionaryId, Bytes)>> {
        let others = Others::Store(since.max(self.since));
        if let Some(found) = conflicts::changed_read(registry, &self.reads, others)? {
            return Ok(Some(found));
        }
        // Checked last: if the transaction still is open now, no commit that the search above needs
        // was forgotten.
        let lost = self.of.as_ref().is_some_and(|of| registry.find(of.id()).is_none());
        Ok(if lost { self.reads.first() } else { None })
    }
}

/// Returns the read sets that must be unchanged when `open`, which began at `since`, commits.
pub(super) fn dependencies(open: &Open, since: Seq) -> Vec<Dependency> {
    let own =
        (!open.reads.is_empty()).then(|| Dependency { reads: open.reads.clone(), since, of: None });
    own.into_iter().chain(open.depends.iter().cloned()).collect()
}

/// Fails with a conflict if a dependency was broken by a commit after `since`.
pub(super) fn check(
    registry: &Transactions,
    dependencies: &[Dependency],
    since: Seq,
) -> Result<()> {
    for dependency in dependencies {
        if let Some(found) = dependency.changed(registry, since)? {
            return Err(Error::Conflict { keys: vec![found] });
        }
    }
    Ok(())
}

impl Transaction {
    /// Adds `key` to the read set: a change of it by others between the beginning of this
    /// transaction and its commit is then a conflict, even if this transaction does not change the
    /// key. A serializable transaction locks the key instead, to the same effect.
    ///
    /// ```
    /// # use kvdb::{Durability, Error, Isolation, Kvdb};
    /// # let db = Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// let t = db.begin(Isolation::Snapshot)?;
    /// t.read_conflict_key(d.id(), b"open")?;
    /// if t.get(d.id(), b"open")?.is_none() {
    ///     t.put(d.id(), "order", "17")?;
    /// }
    /// d.insert("open", "no")?;
    /// assert!(matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn read_conflict_key(&self, dict: DictionaryId, key: &[u8]) -> Result<()> {
        self.read_conflict(dict, KeyRangeRef::key(key))
    }

    /// Adds `[start, end)` to the read set, like [`Transaction::read_conflict_key`]. An empty `end`
    /// is the end of the dictionary.
    pub fn read_conflict_range(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<()> {
        self.read_conflict(
            dict,
            if end.is_empty() {
                KeyRangeRef::starting_at(start)
            } else {
                KeyRangeRef::between(start, end)
            },
        )
    }

    fn read_conflict(&self, dict: DictionaryId, range: KeyRangeRef<'_>) -> Result<()> {
        if self.isolation() == Isolation::Serializable {
            return self.lock(dict, range, crate::locks::Mode::Shared);
        }
        if self.shared.is_logged() {
            return Err(Error::Invalid(
                "a durable transaction does not keep what it has read: it is not logged".into(),
            ));
        }
        if range.is_empty() {
            return Ok(());
        }
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.id())) };
        self.shared.registry.engine.versions.load().tree(dict)?;
        if open.reads.bytes > MOST {
            return Err(too_many());
        }
        Arc::make_mut(&mut open.reads).insert(dict, range.to_range());
        Ok(())
    }

    /// Makes the commit of this transaction depend on the read set that `other` has declared so far
    /// with [`Transaction::read_conflict_key`]. The commit conflicts if others have changed a key
    /// of it since the beginning of `other`, or if `other` has ended. `other` is kept open until
    /// this transaction ends, and is not changed by it. Therefore `other` must not itself depend on
    /// this one; if it does, this returns [`Error::Invalid`].
    pub fn depend_on(&self, other: &Transaction) -> Result<()> {
        if other.within().is_some() {
            return Err(Error::Invalid(format!(
                "transaction {} is within another one, and what it has read is its own alone",
                other.id()
            )));
        }
        // Serialize this: two transactions that depend on each other would keep each other open.
        let _one = self.shared.registry.depending.lock();
        let reads = match &other.read()?.open {
            Some(open) => open.reads.clone(),
            None => return Err(Error::NoTransaction(other.id())),
        };
        if reads.is_empty() || other.id() == self.id() {
            return Ok(());
        }
        if other.keeps(self.id()) {
            return Err(Error::Invalid(format!(
                "transaction {} depends on transaction {}, which so cannot depend on it",
                other.id(),
                self.id()
            )));
        }
        let dependency = Dependency { reads, since: other.shared.since, of: Some(other.clone()) };
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.id())) };
        open.depends.push(dependency);
        Ok(())
    }

    /// Returns whether this transaction keeps that one open, itself or through others.
    fn keeps(&self, id: TransactionId) -> bool {
        let (mut left, mut seen) = (vec![self.clone()], BTreeSet::new());
        while let Some(one) = left.pop() {
            if !seen.insert(one.id()) {
                continue;
            }
            let state = one.shared.state.read();
            let depends = state.open.iter().flat_map(|open| &open.depends);
            left.extend(depends.filter_map(|dependency| dependency.of.clone()));
        }
        seen.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Dictionary, Durability, Kvdb};

    fn store() -> (Kvdb, Dictionary) {
        let db = Kvdb::in_memory();
        let d = db.open_dictionary("d").expect("made");
        for key in ["a", "b", "c", "x"] {
            d.insert(key, "0").expect("put");
        }
        (db, d)
    }

    fn outcome(t: &Transaction) -> bool {
        match t.commit(Durability::Buffered) {
            Ok(()) => true,
            Err(Error::Conflict { .. }) => false,
            Err(e) => panic!("{e}"),
        }
    }

    type Way = (&'static str, fn(&Kvdb, &Dictionary));

    /// All ways in which others may change a key that was read.
    fn ways() -> Vec<Way> {
        vec![
            ("put", |_, d| d.insert("b", "1").expect("put")),
            ("delete", |_, d| d.remove("b").expect("deleted")),
            ("range", |_, d| d.remove_range("a".."c").expect("deleted")),
            ("ingest", |_, d| assert_eq!(d.ingest([("b", "1")]).expect("ingested").tuples, 1)),
            ("flushed", |db, d| {
                d.insert("b", "1").expect("put");
                db.flush().expect("flushed");
                db.compact(d.id()).expect("compacted");
            }),
            ("bound", |db, d| {
                let t = db.begin(Isolation::Snapshot).expect("begun");
                let mut bulk = t.bulk(d.id(), &db.view()).expect("begun");
                bulk.push(b"b", b"1").expect("pushed");
                t.adopt(bulk.finish().expect("written")).expect("adopted");
                t.commit(Durability::Buffered).expect("committed");
            }),
            ("dropped", |db, d| db.drop_dictionary(d.id()).expect("dropped")),
        ]
    }

    #[test]
    fn what_was_read_and_changed_by_others_is_a_conflict() {
        for (way, change) in ways() {
            for range in [false, true] {
                let (db, d) = store();
                let other = db.open_dictionary("other").expect("made").id();
                let t = db.begin(Isolation::Snapshot).expect("begun");
                match range {
                    true => t.read_conflict_range(d.id(), b"aa", b"bb").expect("noted"),
                    false => t.read_conflict_key(d.id(), b"b").expect("noted"),
                }
                t.put(other, "k", "1").expect("put");
                change(&db, &d);
                assert!(!outcome(&t), "{way}, range: {range}");
            }
        }
    }

    #[test]
    fn a_transaction_that_depends_on_another_conflicts_with_what_that_one_read() {
        for (way, change) in ways() {
            let (db, d) = store();
            let other = db.open_dictionary("other").expect("made").id();
            let watch = db.begin(Isolation::Snapshot).expect("begun");
            watch.read_conflict_key(d.id(), b"b").expect("noted");
            change(&db, &d);
            let t = db.begin(Isolation::Snapshot).expect("begun");
            t.depend_on(&watch).expect("noted");
            t.put(other, "k", "1").expect("put");
            assert!(watch.is_outdated().expect("asked"), "{way}");
            assert!(!outcome(&t), "{way}");
        }
    }

    #[test]
    fn a_key_that_is_read_again_takes_no_more_memory() {
        let (db, d) = store();
        let t = db.begin(Isolation::Snapshot).expect("begun");
        let bytes = || t.read().expect("open").open.as_ref().map_or(0, |open| open.reads.bytes);
        t.read_conflict_key(d.id(), b"b").expect("noted");
        let once = bytes();
        for _ in 0..10 {
            t.read_conflict_key(d.id(), b"b").expect("noted");
        }
        assert_eq!(bytes(), once);
        t.read_conflict_range(d.id(), b"a", b"c").expect("noted");
        assert!(bytes() > once, "a range that holds more is added");
        let wider = bytes();
        t.read_conflict_key(d.id(), b"aa").expect("noted");
        assert_eq!(bytes(), wider);
    }

    #[test]
    fn other_keys_and_ones_own_changes_are_no_conflict() {
        let (db, d) = store();
        let watch = db.begin(Isolation::Snapshot).expect("begun");
        watch.read_conflict_key(d.id(), b"b").expect("noted");
        let t = db.begin(Isolation::Snapshot).expect("begun");
        t.depend_on(&watch).expect("noted");
        t.read_conflict_range(d.id(), b"b", b"c").expect("noted");
        t.put(d.id(), "b", "mine").expect("put");
        let mut batch = Batch::new();
        batch.put(d.id(), "a", "1");
        batch.delete_range(d.id(), "c", "d");
        db.commit(batch, Durability::Buffered).expect("committed");
        db.flush().expect("flushed");
        assert!(outcome(&t));
        assert_eq!(d.get("b").expect("read").as_deref(), Some(&b"mine"[..]));
        assert!(watch.is_outdated().expect("asked"), "what it watched was changed by that");
    }

    #[test]
    fn one_that_depends_on_a_transaction_that_has_ended_is_a_conflict() {
        let (db, d) = store();
        let watch = db.begin(Isolation::Snapshot).expect("begun");
        watch.read_conflict_key(d.id(), b"b").expect("noted");
        let t = db.begin(Isolation::Snapshot).expect("begun");
        t.depend_on(&watch).expect("noted");
        watch.abort();
        t.put(d.id(), "k", "1").expect("put");
        assert!(!outcome(&t), "what was committed since is not known any more");
    }

    #[test]
    fn two_that_would_keep_each_other_open_are_refused() {
        let (db, d) = store();
        let [a, b, c] = [(); 3].map(|()| {
            let t = db.begin(Isolation::Snapshot).expect("begun");
            t.read_conflict_key(d.id(), b"b").expect("noted");
            t
        });
        a.depend_on(&b).expect("noted");
        a.depend_on(&b).expect("noted again");
        b.depend_on(&c).expect("noted");
        assert!(matches!(b.depend_on(&a), Err(Error::Invalid(_))));
        assert!(matches!(c.depend_on(&a), Err(Error::Invalid(_))), "through another one");
        drop((b, c));
        assert_eq!(db.transactions().len(), 3, "they are kept");
        drop(a);
        assert!(db.transactions().is_empty());
    }
}
