//! The dictionaries that a client can reach, in the store, a snapshot or a clone. Users choose
//! their names. Every command that names a dictionary refuses reserved ones, so that no client
//! can access the tuples of the file system.

use std::cell::Cell;

use kvdb::{DictionaryId, DictionaryInfo, DictionaryOptions, Kvdb, Transaction, View};

use crate::error_code::ErrorCode;
use crate::failure::Failure;
use crate::keyspace::{Keyspace, TYPES_PREFIX, types_name};

/// Longest name of a dictionary, in bytes.
const NAME_MAX: usize = 128;

/// The state on which a connection works.
#[derive(Clone, Default)]
pub enum Place {
    /// The current state of the store.
    #[default]
    Store,
    /// A snapshot, which never changes, and its creation time in milliseconds since 1970. Its
    /// keys are the keys that had not expired at that time.
    Snapshot(View, u64),
    /// The clone with this name.
    Clone(String),
}

impl Place {
    /// Returns the place of a transaction, which is the store or a clone.
    pub fn of(transaction: &Transaction) -> Place {
        Place::of_branch(transaction.branch())
    }

    /// Returns the place of a branch; `""` is the store itself.
    pub fn of_branch(name: &str) -> Place {
        if name.is_empty() { Place::Store } else { Place::Clone(name.into()) }
    }

    /// Returns the branch that commands change at this place. Returns `None` for a snapshot,
    /// because commands cannot change it.
    pub fn branch(&self) -> Option<&str> {
        match self {
            Place::Store => Some(""),
            Place::Snapshot(..) => None,
            Place::Clone(name) => Some(name),
        }
    }

    /// Returns all dictionaries of this place, including the reserved ones.
    pub fn all(&self, db: &Kvdb) -> Vec<DictionaryInfo> {
        match self {
            Place::Store => db.dictionaries(),
            Place::Snapshot(view, _) => view.dictionaries(),
            Place::Clone(name) => db.dictionaries_in(name),
        }
    }

    /// Returns the dictionary with this name, even if it is reserved. The cost does not depend on
    /// the number of dictionaries.
    pub fn find(&self, db: &Kvdb, name: &str) -> Option<DictionaryInfo> {
        let id = self.number(db, name)?;
        match self {
            Place::Snapshot(view, _) => view.dictionary_info(id),
            Place::Store | Place::Clone(_) => db.dictionary_info(id),
        }
    }

    /// Returns the id of the dictionary with this name, even if it is reserved.
    fn number(&self, db: &Kvdb, name: &str) -> Option<DictionaryId> {
        match self {
            Place::Store => db.dictionary(name),
            Place::Snapshot(view, _) => view.dictionary(name),
            Place::Clone(clone) => db.dictionary_in(clone, name),
        }
    }

    /// Returns an error if the place is a clone that no longer exists.
    fn check(&self, db: &Kvdb) -> Result<(), Failure> {
        match self {
            Place::Clone(name) if !db.has_branch(name) => {
                Err(kvdb::Error::NoBranch(name.clone()).into())
            }
            _ => Ok(()),
        }
    }
}

/// The dictionary on which a connection works. It is looked up at its first use, and created by
/// the first write. A rollback may remove the dictionary, and the next write may create another
/// one with the same name, so the id is valid only while the store has a dictionary with that id.
#[derive(Clone, Debug)]
pub struct Selected {
    name: String,
    /// The name of the types dictionary.
    types_name: String,
    id: Cell<Option<DictionaryId>>,
    types: Cell<Option<DictionaryId>>,
}

impl Default for Selected {
    fn default() -> Self {
        Selected::named("0")
    }
}

impl Selected {
    /// Selects a name that is known not to be reserved.
    pub fn named(name: &str) -> Self {
        let types_name = types_name(name);
        Selected { name: name.into(), types_name, id: Cell::default(), types: Cell::default() }
    }

    /// Selects the dictionary `name`. Returns an error with the reason if the name is invalid or
    /// reserved.
    pub fn choose(db: &Kvdb, name: &[u8]) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::request(format!("a dictionary's name is {why}"));
        let name = std::str::from_utf8(name).map_err(|_| wrong("UTF-8 text"))?;
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(wrong("1 to 128 bytes long"));
        }
        if name.chars().any(char::is_control) {
            return Err(wrong("without control characters"));
        }
        if name.starts_with(TYPES_PREFIX) {
            return Err(Failure::request(format!(
                "dictionary '{name}' has the deadlines and collections of another one: name that"
            )));
        }
        let selected = Selected::named(name);
        selected.existing(db)?;
        Ok(selected)
    }

    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn types_name(&self) -> &str {
        &self.types_name
    }

    /// Returns the selected dictionary in a snapshot or clone, if it exists.
    pub fn existing_at(&self, place: &Place, db: &Kvdb) -> Result<Option<Keyspace>, Failure> {
        match place.find(db, &self.name) {
            Some(info) if info.options.reserved => Err(self.reserved()),
            Some(info) => {
                let types = place.number(db, &self.types_name);
                Ok(Some(Keyspace { strings: info.id, types }))
            }
            None => place.check(db).map(|()| None),
        }
    }

    fn reserved(&self) -> Failure {
        let text = format!("dictionary '{}' is reserved for the file system", self.name);
        Failure::coded(ErrorCode::Reserved, text)
    }

    /// Returns the dictionary if it exists.
    pub fn existing(&self, db: &Kvdb) -> Result<Option<DictionaryId>, Failure> {
        if let Some(id) = self.id.get().filter(|id| db.has_dictionary(*id)) {
            return Ok(Some(id));
        }
        let found = Place::Store.find(db, &self.name);
        if found.as_ref().is_some_and(|info| info.options.reserved) {
            return Err(self.reserved());
        }
        self.id.set(found.map(|info| info.id));
        Ok(self.id.get())
    }

    /// Returns the types dictionary of the selected dictionary, if it exists.
    pub fn types(&self, db: &Kvdb) -> Option<DictionaryId> {
        let known = self.types.get().filter(|id| db.has_dictionary(*id));
        self.types.set(known.or_else(|| db.dictionary(&self.types_name)));
        self.types.get()
    }

    /// Returns the dictionary, and creates it if it does not exist.
    pub fn writable(&self, db: &Kvdb) -> Result<DictionaryId, Failure> {
        if let Some(id) = self.existing(db)? {
            return Ok(id);
        }
        db.create_dictionary(&self.name, DictionaryOptions::default())?;
        // The dictionary is looked up again, because a concurrent command may have created it
        // first, and reserved it.
        self.existing(db)?.ok_or_else(|| {
            Failure::request(format!("dictionary '{}' could not be made", self.name))
        })
    }
}

/// Returns the user's dictionaries, sorted by name.
pub fn listed(db: &Kvdb) -> Vec<(String, DictionaryId)> {
    listed_at(&Place::Store, db)
}

/// Returns the user's dictionaries of a place, sorted by name.
pub fn listed_at(place: &Place, db: &Kvdb) -> Vec<(String, DictionaryId)> {
    let users = |d: &DictionaryInfo| !d.options.reserved && !d.name.starts_with(TYPES_PREFIX);
    let mut all: Vec<_> = place.all(db).into_iter().filter(users).map(|d| (d.name, d.id)).collect();
    all.sort();
    all
}

/// Returns the types dictionaries of a place.
pub fn types_at(place: &Place, db: &Kvdb) -> Vec<DictionaryId> {
    let all = place.all(db).into_iter();
    all.filter(|d| d.name.starts_with(TYPES_PREFIX)).map(|d| d.id).collect()
}
