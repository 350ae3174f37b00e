//! The dictionaries that there are, in all branches: making and dropping them, and their options.
//! Each change is an edit of the manifest, durable when the call returns.

use std::collections::BTreeSet;
use std::sync::Arc;

use env::Env;

use crate::commit::feed::Feed;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions, MAX_DICTIONARY_NAME};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::manifest::Edit;
use crate::read::version_set::{VersionEdit, VersionSet};
use crate::signals::Signals;
use crate::snapshots::Snapshotter;

/// Makes, changes and drops dictionaries.
pub(crate) struct Catalog {
    env: Arc<dyn Env>,
    health: Arc<Health>,
    signals: Arc<Signals>,
    versions: Arc<VersionSet>,
    feed: Arc<Feed>,
    snapshotter: Arc<Snapshotter>,
}

/// The parts of the engine that it needs.
pub(crate) struct CatalogParts {
    pub env: Arc<dyn Env>,
    pub health: Arc<Health>,
    pub signals: Arc<Signals>,
    pub versions: Arc<VersionSet>,
    pub feed: Arc<Feed>,
    pub snapshotter: Arc<Snapshotter>,
}

impl Catalog {
    pub(crate) fn new(parts: CatalogParts) -> Catalog {
        let CatalogParts { env, health, signals, versions, feed, snapshotter } = parts;
        Catalog { env, health, signals, versions, feed, snapshotter }
    }

    /// The dictionary of that name in a branch, made if it does not exist.
    pub(crate) fn create(
        &self,
        branch: &str,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        if let Some(id) = self.versions.dictionary(branch, name) {
            return Ok(id);
        }
        self.health.writable()?;
        if name.is_empty() || name.len() > MAX_DICTIONARY_NAME {
            return Err(Error::Invalid(format!(
                "a dictionary's name has 1 to {MAX_DICTIONARY_NAME} bytes, not {}",
                name.len()
            )));
        }
        let mut made = None;
        self.versions.install(|state| {
            // Another thread may have been quicker.
            let there = state
                .dictionaries
                .values()
                .find(|d| d.info.name == name && d.info.branch == branch)
                .map(|d| d.info.id);
            let known = branch.is_empty() || state.branches.contains_key(branch);
            let id = there.unwrap_or(DictionaryId(state.next_dictionary));
            made = known.then_some(id);
            let info = DictionaryInfo {
                id,
                name: name.into(),
                branch: branch.into(),
                options,
                short_outside: false,
            };
            VersionEdit::of((there.is_none() && known).then_some(Edit::Dictionary(info)))
        })?;
        made.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Drops dictionaries and all that is in them: all of them, or none.
    pub(crate) fn remove(&self, dicts: &[DictionaryId]) -> Result<()> {
        self.health.writable()?;
        let version = self.versions.load_full();
        let mut followed = false;
        for dict in dicts {
            let info = &version.tree(*dict)?.info;
            followed |= info.branch.is_empty() && !info.options.reserved;
        }
        drop(version);
        // A snapshot that was made before has them.
        let naming = self.snapshotter.settled()?;
        self.versions.install(|state| {
            let there: BTreeSet<_> =
                dicts.iter().filter(|dict| state.dictionaries.contains_key(dict)).collect();
            VersionEdit::of(there.into_iter().map(|dict| Edit::DropDictionary(*dict)))
        })?;
        if followed {
            self.feed.lose(|| self.env.random());
        }
        drop(naming);
        self.signals.compaction_wanted();
        Ok(())
    }

    /// Changes the stitching threshold of a dictionary, durably and for merges under way.
    pub(crate) fn set_stitch_at(&self, dict: DictionaryId, stitch_at: u64) -> Result<()> {
        self.health.writable()?;
        self.versions.load().tree(dict)?;
        self.versions.install(|state| {
            let there = state.dictionaries.contains_key(&dict);
            VersionEdit::of(there.then_some(Edit::StitchAt { dict, stitch_at }))
        })
    }

    /// Changes how a dictionary keeps what is written from now on, durably and for merges under
    /// way.
    pub(crate) fn set_options(&self, dict: DictionaryId, options: DictionaryOptions) -> Result<()> {
        self.health.writable()?;
        let reserved = self.versions.load().tree(dict)?.info.options.reserved;
        if options.reserved != reserved {
            return Err(Error::Invalid(
                "whether a dictionary is reserved is decided when it is made".into(),
            ));
        }
        self.versions.install(|state| {
            let there = state.dictionaries.get(&dict);
            let info = there.map(|d| DictionaryInfo { options, ..d.info.clone() });
            VersionEdit::of(info.map(Edit::Options))
        })
    }
}
