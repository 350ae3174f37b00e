//! The public API for ranks.

use std::ops::RangeBounds;

use bytes::Bytes;
use vt_tree::{KeyRange, Seq};

use crate::db::Kvdb;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::bounds;
use crate::read::ranks::{RanksEnv, Span};
use crate::read::view::View;

impl RanksEnv for Database {
    fn newest(&self) -> View {
        self.engine.versions.view()
    }
    fn await_noted(&self) {
        self.commits.await_visible();
    }
    fn between_commits(&self, begin: &mut dyn FnMut(Seq)) {
        self.commits.between_commits(begin);
    }
}

fn span(dict: DictionaryId, range: KeyRange) -> Option<Span> {
    let KeyRange { start, end } = range;
    match end {
        Some(end) if end <= start => None,
        end => Some(Span { dict, start, end: end.unwrap_or_default() }),
    }
}

impl Kvdb {
    /// Returns the exact number of keys of the range `within` that come before `key` in a view. The
    /// key `key` need not exist.
    ///
    /// The first call for a range walks through the whole range and counts its keys. A later call
    /// does this again if the range had more than a few thousand changes since the state of the
    /// view. The counts are kept in memory; all ranges together take a 32nd of
    /// [`OpenOptions::memory`](crate::OpenOptions::memory). Every other call costs a search in the
    /// counts, a walk over a few dozen keys, and at most a few microseconds for each change of the
    /// range since the last call. In a transaction each call also examines each of the
    /// transaction's own changes of the range.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// for name in ["apple", "cherry", "pear"] {
    ///     fruit.insert(name, "")?;
    /// }
    /// assert_eq!(db.rank::<&str>(&db.view(), fruit.id(), .., "pear")?, 2);
    /// assert_eq!(db.rank(&db.view(), fruit.id(), "b".., "pear")?, 1);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn rank<K: AsRef<[u8]>>(
        &self,
        view: &View,
        dict: DictionaryId,
        within: impl RangeBounds<K>,
        key: impl AsRef<[u8]>,
    ) -> Result<u64> {
        let database = &*self.db;
        match span(dict, bounds::of(&within)) {
            Some(span) => database.ranks.before(database, view, &span, key.as_ref()),
            None => Ok(0),
        }
    }

    /// Returns the key of the range `within` in a view that comes after exactly `n` other keys of
    /// the range. The call costs as much as [`Kvdb::rank`].
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "")?;
    /// fruit.insert("pear", "")?;
    /// assert_eq!(db.select::<&str>(&db.view(), fruit.id(), .., 1)?, Some("pear".into()));
    /// assert_eq!(db.select::<&str>(&db.view(), fruit.id(), .., 2)?, None);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn select<K: AsRef<[u8]>>(
        &self,
        view: &View,
        dict: DictionaryId,
        within: impl RangeBounds<K>,
        n: u64,
    ) -> Result<Option<Bytes>> {
        let database = &*self.db;
        match span(dict, bounds::of(&within)) {
            Some(span) => database.ranks.nth(database, view, &span, n),
            None => Ok(None),
        }
    }

    /// Returns the exact number of keys that a range has in a view, even if keys were overwritten
    /// or deleted. The number is the difference of two ranks in the dictionary, so the first call
    /// walks through the whole dictionary.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "")?;
    /// fruit.insert("pear", "")?;
    /// fruit.remove("apple")?;
    /// assert_eq!(db.count(&db.view(), fruit.id(), "a".."q")?, 1);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn count<K: AsRef<[u8]>>(
        &self,
        view: &View,
        dict: DictionaryId,
        range: impl RangeBounds<K>,
    ) -> Result<u64> {
        let Some(range) = span(dict, bounds::of(&range)) else { return Ok(0) };
        let database = &*self.db;
        let all = Span { dict, start: Bytes::new(), end: Bytes::new() };
        let before = database.ranks.before(database, view, &all, &range.start)?;
        let up_to = match range.end.is_empty() {
            true => database.ranks.len(database, view, &all)?,
            false => database.ranks.before(database, view, &all, &range.end)?,
        };
        Ok(up_to.saturating_sub(before))
    }
}
