//! Checks whether all objects that stores and forks refer to exist, and counts the others.

use std::collections::HashSet;
use std::fmt;

use env::Env;
use env::sync::Mutex;
use objects::{Key, ObjectsError, Part, Patience};

use super::contents::{CONTENT, at_once, each_listed};
use super::dead;
use super::mark::{Fate, Marks, Need};
use super::{Amount, Error, RemotePlace, Result};

/// An object that is missing or too short.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingObject {
    /// The key of the object.
    pub key: Key,
    /// The minimum size of the object in bytes.
    pub len: u64,
    /// The store and generation, or the fork, that refers to the object.
    pub needed_by: String,
}

impl fmt::Display for MissingObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingObject { key, len, needed_by } = self;
        write!(f, "{key}, of which {needed_by} needs {len} bytes, is missing or too short")
    }
}

/// The contents of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Stores with a state.
    pub stores: u64,
    /// Forks that are registered and have not expired.
    pub forks: u64,
    /// Objects that are referred to but missing, sorted by key. The stores that need them cannot be
    /// read completely.
    pub missing: Vec<MissingObject>,
    /// Objects that are referred to and present.
    pub needed: Amount,
    /// Objects that publications in progress may have written.
    pub current: Amount,
    /// Dead objects that a collector has found, and will delete.
    pub dead: Amount,
    /// Dead objects that no collector has found yet.
    pub unreferenced: Amount,
    /// Objects of a kind unknown to this program.
    pub unknown: Amount,
}

impl RemotePlace {
    /// Lists the place, and compares the listing with the objects that heads and forks refer to.
    /// The objects themselves are not read, so damage within them is not detected. This needs
    /// permission to write, because an object is put and deleted to learn the time of the place.
    pub fn survey(&self, env: &dyn Env) -> Result<Survey> {
        let objects = &self.objects;
        let (now, below) = self.clock(env)?;
        let marks = Marks::read(objects, now)?;
        let lists = dead::read_all(objects, &below)?;
        let on_lists: HashSet<_> = lists.into_iter().flat_map(|list| list.keys).collect();

        let mut survey = Survey { stores: marks.stores, forks: marks.forks, ..Survey::default() };
        let mut whole = HashSet::new();
        for prefix in CONTENT {
            each_listed(&**objects, prefix, &mut |entry| {
                let amount = match marks.fate_of(&entry) {
                    Fate::Needed(need) if entry.len < need.len => return Ok(()),
                    Fate::Needed(_) => {
                        whole.insert(entry.key.clone());
                        &mut survey.needed
                    }
                    Fate::Current => &mut survey.current,
                    Fate::Dead if on_lists.contains(&entry.key) => &mut survey.dead,
                    Fate::Dead => &mut survey.unreferenced,
                    Fate::Unknown => &mut survey.unknown,
                };
                amount.add(&entry);
                Ok(())
            })?;
        }

        let mut unseen: Vec<(Key, Need)> = Vec::new();
        let states = marks.states.iter().map(|(key, need)| Ok((key.clone(), *need)));
        let zones = marks.zones.iter().map(|(object, need)| Ok((object.key()?, *need)));
        for needed in states.chain(zones) {
            let (key, need) = needed.map_err(|e: zones::Error| Error::from(e))?;
            if !whole.contains(&key) {
                unseen.push((key, need));
            }
        }
        // A listing may be delayed, so look up the objects that it lacks.
        let missing = Mutex::new(Vec::new());
        at_once(&unseen, |(key, need)| {
            let last = Part::Range(need.len.saturating_sub(1)..need.len.max(1));
            match objects::get_patiently(&**objects, key, last, Patience::default()) {
                Ok(_) => Ok(()),
                Err(ObjectsError::NotFound { .. } | ObjectsError::OutOfRange { .. }) => {
                    let by = marks.referrers.get(need.by).map(ToString::to_string);
                    let (key, needed_by) = (key.clone(), by.unwrap_or_default());
                    missing.lock().push(MissingObject { key, len: need.len, needed_by });
                    Ok(())
                }
                Err(e) => Err(e.into()),
            }
        })?;
        survey.missing = missing.into_inner();
        survey.missing.sort();
        Ok(survey)
    }
}
