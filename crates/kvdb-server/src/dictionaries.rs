//! Which dictionaries a client reaches, and of which state of the store. Names are the user's own;
//! a reserved dictionary is refused by whatever way it is named, so that nothing a client sends can
//! touch the file system's tuples.

use std::cell::Cell;

use kvdb::{DictionaryId, DictionaryInfo, DictionaryOptions, Kvdb, Transaction, View};

use crate::failure::Failure;
use crate::keyspace::{Keyspace, TYPES_PREFIX, types_name};

/// Longest name of a dictionary, bytes.
const NAME_MAX: usize = 128;

/// The state that a connection works on.
#[derive(Clone, Default)]
pub enum Place {
    /// The current state of the store.
    #[default]
    Store,
    /// A snapshot: nothing there changes. Its keys are those that had not expired when it was made,
    /// so many milliseconds after 1970.
    Snapshot(View, u64),
    /// A clone, by its name.
    Clone(String),
}

impl Place {
    /// Where a transaction is: in the store or in a clone.
    pub fn of(transaction: &Transaction) -> Place {
        Place::of_branch(transaction.branch())
    }

    /// A branch of the store; `""`: the store itself.
    pub fn of_branch(name: &str) -> Place {
        if name.is_empty() { Place::Store } else { Place::Clone(name.into()) }
    }

    /// The branch that commands change here; `None`: they change nothing.
    pub fn branch(&self) -> Option<&str> {
        match self {
            Place::Store => Some(""),
            Place::Snapshot(..) => None,
            Place::Clone(name) => Some(name),
        }
    }

    /// Its dictionaries, the reserved ones included.
    pub fn all(&self, db: &Kvdb) -> Vec<DictionaryInfo> {
        match self {
            Place::Store => db.dictionaries(),
            Place::Snapshot(view, _) => view.dictionaries(),
            Place::Clone(name) => db.dictionaries_in(name),
        }
    }

    /// An error when it is no more.
    fn check(&self, db: &Kvdb) -> Result<(), Failure> {
        match self {
            Place::Clone(name) if !db.has_branch(name) => {
                Err(kvdb::Error::NoBranch(name.clone()).into())
            }
            _ => Ok(()),
        }
    }
}

/// The dictionary that a connection works on. It is looked up when it is used, and made by the
/// first write. A rollback may take it away and the next write make another one of the same name,
/// so its number is good for as long as the store has it.
#[derive(Clone, Debug)]
pub struct Selected {
    name: String,
    /// Of the dictionary of its types.
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
    /// A name that is known to be the user's.
    pub fn named(name: &str) -> Self {
        let types_name = types_name(name);
        Selected { name: name.into(), types_name, id: Cell::default(), types: Cell::default() }
    }

    /// Chooses the dictionary `name`. An error says what is wrong with it: not a name, or reserved.
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

    /// The dictionary of that name in a snapshot or clone, if it exists.
    pub fn existing_at(&self, place: &Place, db: &Kvdb) -> Result<Option<Keyspace>, Failure> {
        let all = place.all(db);
        match all.iter().find(|d| d.name == self.name) {
            Some(info) if info.options.reserved => Err(self.reserved()),
            Some(info) => {
                let types = all.iter().find(|d| d.name == self.types_name).map(|d| d.id);
                Ok(Some(Keyspace { strings: info.id, types }))
            }
            None => place.check(db).map(|()| None),
        }
    }

    fn reserved(&self) -> Failure {
        Failure::request(format!("dictionary '{}' is reserved for the file system", self.name))
    }

    /// The dictionary if it exists.
    pub fn existing(&self, db: &Kvdb) -> Result<Option<DictionaryId>, Failure> {
        if let Some(id) = self.id.get().filter(|id| db.has_dictionary(*id)) {
            return Ok(Some(id));
        }
        let found = db.dictionaries().into_iter().find(|d| d.name == self.name);
        if found.as_ref().is_some_and(|info| info.options.reserved) {
            return Err(self.reserved());
        }
        self.id.set(found.map(|info| info.id));
        Ok(self.id.get())
    }

    /// The dictionary of its types if it exists.
    pub fn types(&self, db: &Kvdb) -> Option<DictionaryId> {
        let known = self.types.get().filter(|id| db.has_dictionary(*id));
        self.types.set(known.or_else(|| db.dictionary(&self.types_name)));
        self.types.get()
    }

    /// The dictionary, made if it does not exist.
    pub fn writable(&self, db: &Kvdb) -> Result<DictionaryId, Failure> {
        if let Some(id) = self.existing(db)? {
            return Ok(id);
        }
        db.create_dictionary(&self.name, DictionaryOptions::default())?;
        // Looked up again, because a concurrent creator may have made it first, and reserved.
        self.existing(db)?.ok_or_else(|| {
            Failure::request(format!("dictionary '{}' could not be made", self.name))
        })
    }
}

/// The user's dictionaries, by name.
pub fn listed(db: &Kvdb) -> Vec<(String, DictionaryId)> {
    listed_at(&Place::Store, db)
}

/// Those of a place.
pub fn listed_at(place: &Place, db: &Kvdb) -> Vec<(String, DictionaryId)> {
    let users = |d: &DictionaryInfo| !d.options.reserved && !d.name.starts_with(TYPES_PREFIX);
    let mut all: Vec<_> = place.all(db).into_iter().filter(users).map(|d| (d.name, d.id)).collect();
    all.sort();
    all
}

/// The dictionaries of their types.
pub fn types_at(place: &Place, db: &Kvdb) -> Vec<DictionaryId> {
    let all = place.all(db).into_iter();
    all.filter(|d| d.name.starts_with(TYPES_PREFIX)).map(|d| d.id).collect()
}
