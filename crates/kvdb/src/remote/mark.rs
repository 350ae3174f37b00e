//! Marks the objects that heads and forks refer to, in all stores of a place, since they share
//! objects.
//!
//! Invariants:
//!
//! - The head of each store is read before the objects that it names, and the registry is listed
//!   after all heads. A fork is registered while a head names its base (see `registry`), so a base
//!   that the head no longer names is found through its registration.
//! - The objects named by a head that was read here include every older object that a publication
//!   in progress, or a later one, may still refer to. All other objects of such a publication have
//!   the epoch of this head, or a higher one.
//! - A state or note that cannot be read might refer to any object. It is therefore an error, and
//!   nothing is deleted.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;
use objects::{Key, Listed, Objects};
use zones::remote::{Known, ZoneObject};

use super::changes::{StateMark, StateName, StateObject};
use super::contents::{self, Content, at_once, content_of, each_listed};
use super::journal::{JournalPlace, is_seal};
use super::registry::Registration;
use super::{ForkId, Head, RemoteStore};
use crate::error::{Error, Result};

/// Number of times that a head is read again because it was replaced and the objects that it named
/// no longer exist.
const ATTEMPTS: u32 = 16;
/// Number of registrations that are read into memory at a time.
const READ_TOGETHER: usize = 256;

/// A head or fork that refers to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Referrer {
    store: String,
    generation: u64,
    fork: Option<ForkId>,
}

impl fmt::Display for Referrer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Referrer { store, generation, fork } = self;
        match fork {
            Some(fork) => write!(f, "fork {fork} of {store}, of generation {generation}"),
            None => write!(f, "{store}, generation {generation}"),
        }
    }
}

/// The bytes of an object that are needed, and the referrer that needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// The minimum size of the object in bytes.
    pub len: u64,
    /// The index in [`Marks::referrers`] of a head or fork that refers to the object.
    pub by: usize,
}

/// The fate of an object, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A head or fork refers to the object.
    Needed(Need),
    /// No head or fork refers to the object, but a publication in progress may have written it.
    Current,
    /// Nothing refers to the object, and nothing ever will.
    Dead,
    /// The key has an unknown form.
    Unknown,
}

/// All objects that are referred to in a place.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The epoch of each head, by the name of its store and by its origin.
    names: HashMap<String, u32>,
    origins: HashMap<[u8; 16], u32>,
    /// The place where the journal of each store continues, for stores that have a journal.
    journals: HashMap<String, JournalPlace>,
    /// States whose zones are marked, each with a hash of its name. The mark alone does not
    /// identify a state that is stored in a head, since that state has no unique object key.
    marked: HashSet<(StateMark, u64)>,
    keys: RandomState,
    /// Objects that contain states or notes of publications.
    pub states: HashMap<Key, Need>,
    pub zones: HashMap<ZoneObject, Need>,
    pub referrers: Vec<Referrer>,
    /// Stores that have a state.
    pub stores: u64,
    /// Forks that are registered and have not expired.
    pub forks: u64,
    /// Expired registrations, and the time at which each expired.
    pub expired: Vec<(Key, Duration)>,
}

impl Marks {
    /// Reads all heads and registrations. Ignores registrations that have expired by `now`.
    pub fn read(objects: &Arc<dyn Objects>, now: Duration) -> Result<Marks> {
        let mut names = Vec::new();
        each_listed(&**objects, "m/", &mut |entry| {
            let name = contents::head_of(&entry.key);
            names.push(name.ok_or_else(|| unknown(objects, &entry.key, "a head"))?.to_owned());
            Ok(())
        })?;
        let mut marks = Marks::default();
        for name in names {
            marks.store(&RemoteStore::new(objects.clone(), &name)?)?;
        }

        let mut listed: Vec<(RemoteStore, ForkId, Key, Duration)> = Vec::new();
        each_listed(&**objects, "f/", &mut |entry| {
            let fork = contents::fork_of(&entry.key);
            let (name, id) = fork.ok_or_else(|| unknown(objects, &entry.key, "a fork"))?;
            // Use one `RemoteStore` for all forks of a store, so that they share its cached state
            // object.
            let store = match listed.last() {
                Some((last, ..)) if last.name() == name => last.clone(),
                _ => RemoteStore::new(objects.clone(), name)?,
            };
            listed.push((store, id, entry.key.clone(), entry.modified));
            Ok(())
        })?;
        // Read in batches: a registration may have tens of thousands of bytes.
        for some in listed.chunks(READ_TOGETHER) {
            marks.forks(some, now)?;
        }
        Ok(marks)
    }

    /// Marks the objects that the head of a store names.
    fn store(&mut self, store: &RemoteStore) -> Result<()> {
        let mut failed: Option<(Head, Error)> = None;
        for _ in 0..ATTEMPTS {
            let head = store.head()?.ok_or_else(|| {
                Error::Corrupt(format!("the head of {} is listed, and missing", store.place()))
            })?;
            let generation = head.generation;
            if let Some((last, e)) = failed.take()
                && (&last.state, &last.pending) == (&head.state, &head.pending)
            {
                return Err(e);
            }
            let by = Referrer { store: store.name().to_owned(), generation, fork: None };
            // If the head was replaced in the meantime, its marks merely keep a few additional
            // objects.
            match self.head(store, &head, &by) {
                Ok(()) => {
                    self.stores += u64::from(head.state.is_some());
                    self.names.insert(store.name().to_owned(), head.epoch);
                    let journal = head.journal.map(|place| (store.name().to_owned(), place));
                    self.journals.extend(journal);
                    // No two heads should have the same origin. If two do, use the lower epoch: it
                    // keeps more objects.
                    let epoch = self.origins.entry(head.origin).or_insert(head.epoch);
                    *epoch = head.epoch.min(*epoch);
                    return Ok(());
                }
                Err(e @ Error::Corrupt(_)) => failed = Some((head, e)),
                Err(e) => return Err(e),
            }
        }
        Err(Error::Limit(format!("{} changes all the time: try again", store.place())))
    }

    /// Reads these registrations, and marks the objects that they name.
    fn forks(
        &mut self,
        listed: &[(RemoteStore, ForkId, Key, Duration)],
        now: Duration,
    ) -> Result<()> {
        let read = Mutex::new(Vec::new());
        at_once(listed, |(store, id, key, made)| {
            if let Some(fork) = store.registration(*id)? {
                read.lock().push((store, *id, key, *made, fork));
            }
            Ok(())
        })?;
        let mut read = read.into_inner();
        read.sort_by_cached_key(|(store, _, _, _, fork)| {
            let object = fork.base.object.as_ref().map(|object| object.key.as_str().to_owned());
            (store.name().to_owned(), object)
        });
        let mut last: Option<&RemoteStore> = None;
        for (store, id, key, made, fork) in read {
            if let Some(last) = last.replace(store).filter(|last| last.name() != store.name()) {
                last.forget_object();
            }
            match fork.expires(made).filter(|expires| *expires <= now) {
                Some(expired) => self.expired.push((key.clone(), expired)),
                None => self.fork(store, id, fork)?,
            }
        }
        last.into_iter().for_each(RemoteStore::forget_object);
        Ok(())
    }

    /// Marks the base of a fork.
    fn fork(&mut self, store: &RemoteStore, id: ForkId, fork: Registration) -> Result<()> {
        let store_name = store.name().to_owned();
        let by = Referrer { store: store_name, generation: fork.generation, fork: Some(id) };
        match self.state(store, &fork.base, &by) {
            Ok(()) => self.forks += 1,
            // The fork was dropped in the meantime, and another collector has deleted its base.
            Err(Error::Corrupt(_)) if store.registration(id)?.is_none() => {}
            Err(Error::Corrupt(why)) => {
                return Err(Error::Corrupt(format!(
                    "{why}, and fork {id} of {} began as that: drop that fork if nobody has it",
                    store.place()
                )));
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn head(&mut self, store: &RemoteStore, head: &Head, by: &Referrer) -> Result<()> {
        if let Some(name) = &head.state {
            self.state(store, name, by)?;
        }
        let Some(note) = &head.pending else { return Ok(()) };
        let known = store.get_note(note)?.known;
        self.zones_of(&known, Some(note), by);
        Ok(())
    }

    /// Marks the object of a state, and the zones that the state uses.
    fn state(&mut self, store: &RemoteStore, name: &StateName, by: &Referrer) -> Result<()> {
        let it = (name.mark(), self.keys.hash_one(name));
        if self.marked.contains(&it) {
            return Ok(());
        }
        let known = store.get_state(name)?.known;
        self.zones_of(&known, name.object.as_ref(), by);
        // Remember the state only after a successful read: an unreadable state is an error for each
        // referrer.
        self.marked.insert(it);
        Ok(())
    }

    /// Marks the zones in `known`, and the object that describes them.
    fn zones_of(&mut self, known: &Known, object: Option<&StateObject>, by: &Referrer) {
        let by = match self.referrers.last() {
            Some(last) if last == by => self.referrers.len() - 1,
            _ => {
                self.referrers.push(by.clone());
                self.referrers.len() - 1
            }
        };
        let table = &known.table;
        for piece in table.pieces() {
            let len = u64::from(piece.at) + u64::from(piece.len);
            let need = self.zones.entry(table.object(piece)).or_insert(Need { len, by });
            need.len = need.len.max(len);
        }
        if let Some(object) = object {
            self.states.insert(object.key.clone(), Need { len: object.len, by });
        }
    }

    /// Returns the fate of a listed object.
    pub fn fate_of(&self, listed: &Listed) -> Fate {
        match content_of(&listed.key) {
            // Keep seals forever: a displaced file that wakes up must not find the seal's name
            // unused.
            Some(Content::Journal { .. }) if is_seal(listed) => Fate::Current,
            _ => self.fate(&listed.key),
        }
    }

    /// Returns the fate of the object with this key.
    pub fn fate(&self, key: &Key) -> Fate {
        let (need, epoch, newest) = match content_of(key) {
            None => return Fate::Unknown,
            Some(Content::State { store, epoch }) => {
                (self.states.get(key), epoch, self.names.get(store))
            }
            Some(Content::Journal { store, place }) => {
                let journal = self.journals.get(store).filter(|from| from.chain == place.chain);
                return match journal {
                    Some(from) if place.number >= from.number => Fate::Current,
                    _ => Fate::Dead,
                };
            }
            Some(Content::Zones(object)) => {
                (self.zones.get(&object), object.epoch, self.origins.get(&object.origin))
            }
        };
        match (need, newest) {
            (Some(need), _) => Fate::Needed(*need),
            (None, Some(newest)) if epoch >= *newest => Fate::Current,
            (None, _) => Fate::Dead,
        }
    }
}

fn unknown(objects: &Arc<dyn Objects>, key: &Key, what: &str) -> Error {
    Error::Invalid(format!(
        "{key} in {} is not {what} as this program knows them, and may refer to anything: use a \
         newer program, or remove it",
        objects.place()
    ))
}
