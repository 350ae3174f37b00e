//! Reads and changes of keys by the commands of a session: the dictionaries and the time that
//! they use, and the execution of each change as one transaction, whatever other clients change
//! in the same keys.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvdb::{
    Batch, DictionaryId, DictionaryOptions, Durability, Isolation, Join, Kvdb, Transaction,
    TransactionOptions,
};

use super::seen::Seen;
use super::{SNAPSHOT, Session, TRIES};
use crate::dictionaries::{Place, Selected};
use crate::effects::Effect;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Keyspace;
use crate::locks::keeping_clear;
use crate::notifications::{Classes, Event};

/// Limit on the bytes of a change that is committed without a transaction. A larger change may
/// have to be written out before it commits.
const DIRECT_BYTES: usize = 64 << 10;
/// Limit on the number of attempts. An attempt fails if a version of the store ends in between,
/// or if a transaction has changed a key that was read.
const DIRECT_TRIES: usize = 4;

impl Session {
    /// Returns the time that decides whether keys have expired, in milliseconds since 1970. In a
    /// snapshot it is constant.
    pub fn now(&self) -> u64 {
        match (&self.place, self.exec.time()) {
            (Place::Snapshot(_, made), _) => *made,
            (_, Some(time)) => time,
            (_, None) => self.clock(),
        }
    }

    /// Returns the time of the store's clock, in milliseconds since 1970.
    pub fn clock(&self) -> u64 {
        u64::try_from(self.shared.db.wall_clock().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns a random number.
    pub fn random(&self) -> u64 {
        self.shared.db.random()
    }

    /// Returns the selected dictionary if it exists. In a transaction that locks its reads, the
    /// dictionary and its types dictionary are created, because a key of a missing dictionary
    /// could not be locked, and others could add a key that was read as absent.
    pub fn existing(&self) -> Result<Option<Keyspace>, Failure> {
        let found = self.existing_of(&self.dictionary)?;
        if found.is_some_and(|space| space.types.is_some()) || !self.locks_what_it_reads() {
            return Ok(found);
        }
        match self.typed() {
            // No other client can create the dictionary either.
            Err(Failure::ReadOnly(_)) => Ok(found),
            made => made.map(Some),
        }
    }

    fn locks_what_it_reads(&self) -> bool {
        let joined = self.exec.own().is_none();
        joined && self.inside().is_some_and(|t| t.isolation() == Isolation::Serializable)
    }

    /// Returns another dictionary if it exists.
    pub fn existing_of(&self, dictionary: &Selected) -> Result<Option<Keyspace>, Failure> {
        let db = &self.shared.db;
        let found = match &self.place {
            Place::Store => dictionary
                .existing(db)?
                .map(|strings| Keyspace { strings, types: dictionary.types(db) }),
            place => dictionary.existing_at(place, db)?,
        };
        self.check_not_dropped(dictionary.name(), found)?;
        Ok(found)
    }

    /// Returns an error if the joined transaction has begun with a dictionary of this name that
    /// is not the present one. That dictionary was dropped since then. If it were taken for an
    /// empty one, the transaction would see a state that never existed.
    fn check_not_dropped(&self, name: &str, now: Option<Keyspace>) -> Outcome {
        let Some((transaction, _)) = &self.joined else { return Ok(()) };
        let before = transaction.view()?.dictionary_in(transaction.branch(), name);
        if before.is_some_and(|before| now.is_none_or(|now| now.strings != before)) {
            return Err(Failure::coded(
                ErrorCode::NoDictionary,
                format!("dictionary '{name}' was dropped after the transaction began"),
            ));
        }
        Ok(())
    }

    /// Returns the selected dictionary, and creates it if necessary. It has its types dictionary
    /// in the cases in which [`Session::existing`] creates it.
    pub fn writable(&self) -> Result<Keyspace, Failure> {
        if self.locks_what_it_reads() {
            return self.typed();
        }
        let space = self.made()?;
        let joined = self.exec.own().is_none() && self.inside().is_some();
        // In this case only the types dictionary determines the type of a key; see
        // [`Seen::exclude_others`].
        match joined && space.types.is_none() && self.joins_deletions(space.strings) {
            true => self.typed(),
            false => Ok(space),
        }
    }

    /// Returns whether the merge rule of a dictionary joins the deletion of a key with a change
    /// of it.
    pub fn joins_deletions(&self, strings: DictionaryId) -> bool {
        let info = self.db().dictionary_info(strings);
        info.is_some_and(|info| info.options.join == Join::Union)
    }

    fn made(&self) -> Result<Keyspace, Failure> {
        let db = &self.shared.db;
        match &self.place {
            Place::Store => {
                if let Some(space) = self.existing_of(&self.dictionary)? {
                    return Ok(space);
                }
                let strings = self.dictionary.writable(db)?;
                Ok(Keyspace { strings, types: self.dictionary.types(db) })
            }
            Place::Snapshot(..) => Err(SNAPSHOT),
            Place::Clone(clone) => match self.existing_of(&self.dictionary)? {
                Some(space) => Ok(space),
                None => {
                    let options = DictionaryOptions::default();
                    let strings =
                        db.create_dictionary_in(clone, self.dictionary.name(), options)?;
                    Ok(Keyspace { strings, types: None })
                }
            },
        }
    }

    /// Returns the selected dictionary with its types dictionary, and creates both if necessary.
    pub fn typed(&self) -> Result<Keyspace, Failure> {
        let space = self.made()?;
        if space.types.is_some() {
            return Ok(space);
        }
        // A command that holds a lock may rely on the absence of the types dictionary, so it is
        // created under the locks of all keys. `EXEC` has created it before it took its locks, or
        // holds all of them. If the need was not known beforehand, `EXEC` is retried with all
        // locks.
        if self.exec.is_running() && !self.exec.are_all_locked() {
            return Err(Failure::again_and_again());
        }
        let _all = match self.exec.own() {
            Some(_) => None,
            None => Some(self.shared.locks.all()),
        };
        let (name, options) = (self.dictionary.types_name(), DictionaryOptions::default());
        let types = match &self.place {
            Place::Clone(clone) => self.db().create_dictionary_in(clone, name, options)?,
            _ => self.db().create_dictionary(name, options)?,
        };
        Ok(Keyspace { types: Some(types), ..space })
    }

    /// Returns the selected dictionary for strings of up to `len` bytes, and creates it if
    /// necessary.
    pub fn writable_for(&self, len: usize) -> Result<Keyspace, Failure> {
        if len > self.shared.limits.tuple { self.typed() } else { self.writable() }
    }

    /// Returns the state of the selected dictionary for a command that only reads.
    pub fn see(&self) -> Result<Seen<'_>, Failure> {
        let space = self.existing()?;
        let seen = Seen::by(self, space)?;
        if space.is_some_and(|space| space.types.is_none())
            && let Some(now) = self.existing()?.filter(|now| now.types.is_some())
        {
            // The types dictionary was created in the meantime, so the state may contain keys in
            // it.
            return Seen::by(self, Some(now));
        }
        Ok(seen)
    }

    /// Atomically commits the batch that `change` makes from the state of these keys. Other
    /// commands are locked out, and after a conflict with a transaction `change` is called again.
    pub fn change<'k, T>(
        &self,
        space: Keyspace,
        keys: impl IntoIterator<Item = &'k [u8]> + Clone,
        change: impl FnMut(&Seen<'_>, &mut Batch) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.inside().is_some() {
            // Even if the command changes nothing, its result depends on its reads.
            self.reads(space.strings, keys.clone())?;
        }
        self.change_commuting(space, keys, change)
    }

    /// Does the same as [`Session::change`] for changes that commute with changes by others in a
    /// transaction. In a transaction their reads do not cause conflicts.
    pub fn change_commuting<'k, T>(
        &self,
        space: Keyspace,
        keys: impl IntoIterator<Item = &'k [u8]> + Clone,
        mut change: impl FnMut(&Seen<'_>, &mut Batch) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.keeping_clear(|| self.change_under_locks(space, keys.clone(), &mut change))
    }

    /// Runs `work`, which locks keys, by [`keeping_clear`]. In a transaction, locks of the
    /// transaction are awaited before any lock of keys is taken.
    fn keeping_clear<T>(&self, mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
        match self.inside() {
            Some(_) => work(),
            None => keeping_clear(&self.shared.stopping, work),
        }
    }

    fn change_under_locks<'k, T>(
        &self,
        space: Keyspace,
        keys: impl IntoIterator<Item = &'k [u8]> + Clone,
        change: &mut impl FnMut(&Seen<'_>, &mut Batch) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _held = self.hold(space.strings, keys)?;
        let space = self.under_locks(space)?;
        if self.inside().is_some() {
            let mut batch = Batch::new();
            let seen = Seen::by(self, Some(space))?;
            self.exec.begin_change();
            let done = change(&seen, &mut batch).map_err(|failure| self.exec.undoing(failure))?;
            if !batch.is_empty() {
                seen.make(batch).map_err(|failure| self.exec.undoing(failure))?;
                self.settle(seen.into_effects());
            }
            return Ok(done);
        }
        let (done, effects) = match self.commit_directly(space, change)? {
            Some(committed) => committed,
            None => {
                let mut effects = Vec::new();
                let done = retry_on_conflict(self.db(), true, |transaction, batch| {
                    let seen = Seen::of(transaction, self, space)?;
                    let done = change(&seen, batch)?;
                    effects = if batch.is_empty() { Vec::new() } else { seen.into_effects() };
                    Ok(done)
                })?;
                (done, effects)
            }
        };
        // The locks are still held, so that the events of a key are in the order of its commits.
        self.settle(effects);
        Ok(done)
    }

    /// Commits a small change without a transaction, on the condition that its reads are still
    /// valid. Returns its result and its effects, or `None` if nothing was committed because the
    /// change is large or conflicts with others.
    fn commit_directly<T>(
        &self,
        space: Keyspace,
        change: &mut impl FnMut(&Seen<'_>, &mut Batch) -> Result<T, Failure>,
    ) -> Result<Option<(T, Vec<Effect>)>, Failure> {
        for _ in 0..DIRECT_TRIES {
            let (seen, mut batch) = (Seen::noted(self, space), Batch::new());
            let done = match change(&seen, &mut batch) {
                Err(Failure::TooLargeAtOnce) => break,
                done => done?,
            };
            if batch.is_empty() {
                return Ok(Some((done, Vec::new())));
            }
            if batch.bytes() > DIRECT_BYTES {
                break;
            }
            let (state, reads, effects) = seen.into_condition();
            if self.db().commit_if_unchanged(batch, state, reads)? {
                return Ok(Some((done, effects)));
            }
        }
        Ok(None)
    }

    /// Looks up the keyspace again after some of its keys were locked, because others may have
    /// created its types dictionary.
    pub fn under_locks(&self, space: Keyspace) -> Result<Keyspace, Failure> {
        self.under_locks_of(&self.dictionary, space)
    }

    /// Does the same as [`Session::under_locks`] for a dictionary that need not be the selected
    /// one.
    pub fn under_locks_of(
        &self,
        dictionary: &Selected,
        space: Keyspace,
    ) -> Result<Keyspace, Failure> {
        match space.types {
            Some(_) => Ok(space),
            None => {
                let now = self.existing_of(dictionary)?;
                Ok(now.filter(|now| now.strings == space.strings).unwrap_or(space))
            }
        }
    }

    /// Stores strings regardless of the previous values.
    pub fn put_blindly<'k>(
        &self,
        space: Keyspace,
        pairs: impl Iterator<Item = (&'k [u8], &'k [u8])> + Clone,
    ) -> Outcome {
        let keys = pairs.clone().map(|(key, _)| key);
        let space = match pairs.clone().any(|(_, value)| value.len() > self.shared.limits.tuple) {
            true => self.typed()?,
            false => space,
        };
        if self.keeping_clear(|| self.put_under_locks(space, pairs.clone()))? {
            return Ok(());
        }
        // A key that is named twice gets only the last of its values, and no pages for the
        // others.
        let last: BTreeMap<&[u8], &[u8]> = pairs.clone().collect();
        self.change_commuting(space, keys, |seen, batch| {
            for (key, value) in &last {
                // The key is looked up only if notifications of new keys are on.
                let live = match self.notes(Classes::NEW) {
                    true => seen.live(key)?,
                    false => seen.live_head(key)?,
                };
                seen.put_string(key, &live, Bytes::copy_from_slice(value), batch)?;
                seen.event(Classes::STRING, "set", key);
            }
            Ok(())
        })
    }

    /// Stores strings without reading the previous values. Returns `false` if this is impossible
    /// because the dictionary has types, or because clients want events of new keys.
    fn put_under_locks<'k>(
        &self,
        space: Keyspace,
        pairs: impl Iterator<Item = (&'k [u8], &'k [u8])> + Clone,
    ) -> Result<bool, Failure> {
        let keys = pairs.clone().map(|(key, _)| key);
        let _held = self.hold(space.strings, keys.clone())?;
        if self.notes(Classes::NEW) || self.under_locks(space)?.types.is_some() {
            return Ok(false);
        }
        let mut rest = pairs.clone();
        match (rest.next(), rest.next()) {
            (Some((key, value)), None) if self.inside().is_none() => {
                self.db().put(space.strings, key, value, Durability::Buffered)?;
            }
            _ => {
                let mut batch = Batch::new();
                for (key, value) in pairs {
                    put(space.strings, key, value, &mut batch);
                }
                self.commit(batch)?;
            }
        }
        if self.notes(Classes::STRING) {
            self.settle(keys.map(set).collect());
        }
        Ok(true)
    }
}

/// Commits the batch that `fill` makes in a new transaction, and retries after a conflict.
/// Changes of the keys that were read are conflicts. With `check_writes`, changes of the keys
/// that the batch writes are conflicts as well.
pub fn retry_on_conflict<T>(
    db: &Kvdb,
    check_writes: bool,
    mut fill: impl FnMut(&Transaction, &mut Batch) -> Result<T, Failure>,
) -> Result<T, Failure> {
    for _ in 0..TRIES {
        let transaction = db.begin_with(TransactionOptions {
            label: "a command".into(),
            private: true,
            check_conflicts: check_writes,
            ..TransactionOptions::default()
        })?;
        let mut batch = Batch::new();
        let done = fill(&transaction, &mut batch)?;
        if batch.is_empty() {
            return Ok(done);
        }
        transaction.apply(batch)?;
        match transaction.commit(Durability::Buffered) {
            Err(kvdb::Error::Conflict { .. }) => {}
            committed => return Ok(committed.map(|()| done)?),
        }
    }
    Err(Failure::again_and_again())
}

/// Returns the event for a string that was stored.
fn set(key: &[u8]) -> Effect {
    let event = Event { class: Classes::STRING, name: "set" };
    Effect::Event { event, key: Bytes::copy_from_slice(key) }
}

fn put(dict: DictionaryId, key: &[u8], value: &[u8], batch: &mut Batch) {
    batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
}
