//! Follows a published store: a store that is open for reading only shows each newer published
//! state as one commit. Existing views keep their state.
//!
//! [`Follower::look`] fetches and opens the newer state before it is shown, so that the changes can
//! be examined first. Showing the state then needs no request.

use std::sync::Arc;

use bytes::Bytes;
use env::sync::atomic::Ordering;
use objects::Tag;

use crate::commit::feed::CommittedKey;
use crate::db::Kvdb;
use crate::db::recovery::{Runs, check_sums};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::ids::RunId;
use crate::manifest::{Manifest, ManifestState};
use crate::read::view::View;
use crate::remote::{LocalCopy, RemoteStore, check_places};

/// The maximum number of changed keys that are listed for readers of the feed. If there are more,
/// the readers learn that there is no list.
const MOST_LISTED: usize = 64 << 10;

/// Follows the published states of a store. See [`Kvdb::follower`].
pub struct Follower {
    db: Kvdb,
    of: RemoteStore,
    copy: LocalCopy,
    /// The tag of the head that names the state of `copy`, if the head was read since that state
    /// was shown. A head with another tag may name a newer state.
    tag: Option<Tag>,
}

/// A newer state that is not shown yet.
pub struct NewerState {
    db: Kvdb,
    copy: LocalCopy,
    state: ManifestState,
    before: View,
    after: View,
    runs: Runs,
    listed: Listed,
}

/// The changes that readers of the feed will get.
struct Listed {
    /// The dictionaries that these readers followed when the list was made.
    followed: Vec<DictionaryId>,
    /// The changed keys, or `None` if there is no list.
    changes: Option<Vec<(DictionaryId, CommittedKey)>>,
}

impl Kvdb {
    /// Returns a follower of `of`. This store must be open for reading only, and must have been
    /// made from `of` by [`RemoteStore::refresh`] or [`RemoteStore::copy_to`]. Otherwise this fails
    /// with [`Error::Invalid`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use kvdb::{Kvdb, OpenOptions, RemoteStore, RemoteZones};
    /// # use objects::{MemoryObjects, Objects};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fruit.kvfs");
    /// let bucket: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    /// let fruit = RemoteStore::new(bucket.clone(), "fruit")?;
    /// let db = Kvdb::in_memory();
    /// let colours = db.open_dictionary("colour")?;
    /// db.push(&fruit, &mut |_| Ok(()))?;
    ///
    /// fruit.copy_to_path(&path)?;
    /// let remote = Some(RemoteZones::new(bucket));
    /// let options = OpenOptions { remote, read_only: true, ..OpenOptions::default() };
    /// let reader = Kvdb::open_path_with(&path, options)?;
    /// let mut follower = reader.follower(&fruit)?;
    /// assert!(!follower.follow()?);
    /// colours.insert("apple", "red")?;
    /// db.push(&fruit, &mut |_| Ok(()))?;
    /// assert!(follower.follow()?);
    /// assert_eq!(reader.open_dictionary("colour")?.get("apple")?.unwrap(), "red");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follower(&self, of: &RemoteStore) -> Result<Follower> {
        let (db, of) = (self.clone(), of.clone());
        let note =
            db.db.engine.zones.home_note()?.map(|note| LocalCopy::decode(&note)).transpose()?;
        let is_cache = |copy: &LocalCopy| copy.fork.is_none() && copy.writer.is_none();
        match note.filter(|copy| is_cache(copy) && copy.is_of(&of)) {
            Some(copy) if db.db.engine.options.read_only => {
                Ok(Follower { db, of, copy, tag: None })
            }
            _ => Err(Error::Invalid(format!(
                "only a cache of {} that is open for reading only follows it",
                of.name()
            ))),
        }
    }
}

impl Follower {
    /// Shows the newest published state. Returns `false` if this state is already shown.
    pub fn follow(&mut self) -> Result<bool> {
        let Some(mut newer) = self.look()? else { return Ok(false) };
        newer.show()?;
        self.keep(newer)?;
        Ok(true)
    }

    /// Reads the head, and opens the newest state if it differs from the state that was followed
    /// last. Returns [`Error::Invalid`] if this store cannot show the newest state and has to be
    /// opened again.
    pub fn look(&mut self) -> Result<Option<NewerState>> {
        let no_store = || Error::NoStore(self.of.place());
        let head = match &self.tag {
            Some(tag) => self.of.other_head(tag)?,
            None => Some(self.of.tagged_head()?.ok_or_else(no_store)?),
        };
        let Some((head, tag)) = head else { return Ok(None) };
        let name = head.state.as_ref().ok_or_else(no_store)?;
        if (head.store, head.generation) == (self.copy.store, self.copy.generation) {
            self.tag = Some(tag);
            return Ok(None);
        }
        self.tag = None;
        let other = |what: &str| {
            Error::Invalid(format!("{} {what}: it has to be opened anew", self.of.place()))
        };
        if head.store != self.copy.store {
            return Err(other("is another store by now"));
        }
        let published = self.of.get_state(name)?;
        let state = published.manifest()?;
        let db = &self.db.db;
        let seq = state.start.seq;
        if seq < db.engine.versions.visible.load(Ordering::Acquire) {
            return Err(other("was replaced by an older state"));
        }
        let table = Arc::new(published.known.table);
        // Stop the prefetch until the new state is shown, since the places that the prefetch knows
        // become stale.
        let prefetch = db.prefetch.lock().clone();
        prefetch.iter().for_each(|prefetch| prefetch.stop());
        db.engine.zones.follow(&table, published.first)?;
        check_places(&state, &table, &db.engine.zones)?;
        let before = self.db.view();
        let mut runs = Runs::of(&before.version);
        let mut open = |id: RunId, root: &Bytes| runs.open(&db.engine.cache, id, root);
        let after = db.engine.versions.preview_published(
            &state,
            (seq, db.engine.zones.hold_table()),
            &mut open,
        )?;
        check_sums(&after.version)?;
        let copy = LocalCopy {
            generation: head.generation,
            published: head.published,
            ..self.copy.clone()
        };
        let listed = self.listed(&before, &after)?;
        let db = self.db.clone();
        Ok(Some(NewerState { db, copy, state, before, after, runs, listed }))
    }

    /// Lists the changed keys of the dictionaries that readers of the feed follow.
    fn listed(&self, before: &View, after: &View) -> Result<Listed> {
        let feed = &self.db.db.feed;
        let followed = feed.followed(&after.version);
        let gone = feed.followed(&before.version).iter().any(|dict| !followed.contains(dict));
        let mut changes = (!gone).then(Vec::new);
        for &dict in followed.iter().filter(|_| before.at != after.at) {
            for change in before.difference(dict, after, dict)? {
                let change = change?;
                let key = match change.after {
                    Some(_) => CommittedKey::Put(change.key),
                    None => CommittedKey::Delete(change.key),
                };
                changes = changes.filter(|changes| changes.len() < MOST_LISTED);
                let Some(changes) = &mut changes else { break };
                changes.push((dict, key));
            }
        }
        Ok(Listed { followed, changes })
    }

    /// Records in the local file that the file caches the shown state, so that the next opening
    /// finds the parts that were fetched.
    pub fn keep(&mut self, shown: NewerState) -> Result<()> {
        let db = &self.db.db;
        self.copy = shown.copy;
        let zones = db.engine.zones.format_followed(&self.copy.encode())?;
        zones.start();
        let (env, health) = (db.engine.env.clone(), Arc::<Health>::default());
        Manifest::begin(zones, env, health, shown.state, 0)?.vouch()
    }

    /// Returns the state that was followed last, or the state with which the store was opened.
    pub fn copy(&self) -> &LocalCopy {
        &self.copy
    }
}

impl NewerState {
    /// Returns the state that is shown until the newer state replaces it.
    pub fn before(&self) -> &View {
        &self.before
    }

    /// Returns the newer state.
    pub fn after(&self) -> &View {
        &self.after
    }

    /// Returns whether the newer state has a dictionary with this number.
    pub fn has_dictionary(&self, dict: DictionaryId) -> bool {
        self.after.knows(dict)
    }

    /// Returns whether both the store and the newer state have the same snapshot under this name.
    pub fn keeps_snapshot(&self, name: &str) -> bool {
        let there = self.db.db.engine.snapshots.get(name);
        let newer = self.state.snapshots.get(name);
        there.zip(newer).is_some_and(|(there, newer)| there.label == newer.label)
    }

    /// Shows the newer state atomically and without a request.
    pub fn show(&mut self) -> Result<()> {
        let db = &self.db.db;
        let mut open = |id: RunId, root: &Bytes| self.runs.open(&db.engine.cache, id, root);
        let gone = db.engine.versions.show_published(
            &self.state,
            (self.after.at, &*self.after.version),
            &mut open,
        )?;
        let is_listed = db.feed.followed(&self.after.version) == self.listed.followed;
        let changes = self.listed.changes.take().filter(|_| is_listed);
        db.commits.follow_published(self.after.at, changes);
        drop(gone);
        let prefetch = db.prefetch.lock().clone();
        prefetch.iter().for_each(|prefetch| prefetch.begin(db));
        Ok(())
    }
}
