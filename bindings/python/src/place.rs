//! The place of a scope: a state of a store that is open in this process, or a view that a server
//! holds. The code that depends on the kind of place is here and in `served`, so that a scope
//! need not know it.

use std::sync::Arc;

use kvdb::{DictionaryId, DictionaryOptions, Durability, Transaction, TransactionId, View};
use kvfs::Fs;

use crate::failure::{Failure, Outcome};
use crate::served::OpenView;
use crate::shared::{Open, check_name, reserved};
use crate::slot::Slot;

/// A state of a store that is open in this process.
pub enum At {
    Mainline,
    Transaction {
        slot: Arc<Slot<Transaction>>,
        id: TransactionId,
        /// Set if this object began the transaction, which is then aborted together with the
        /// object.
        own: bool,
    },
    Frozen(Arc<Slot<View>>, String),
}

impl At {
    pub fn scope(&self, open: &Open) -> Outcome<kvdb::Scope> {
        Ok(match self {
            At::Mainline => kvdb::Scope::Mainline(open.db.clone()),
            At::Transaction { slot, id, .. } => {
                let transaction = slot.lock()?.clone().ok_or(Failure::Ended(*id))?;
                kvdb::Scope::Transaction(transaction)
            }
            At::Frozen(slot, _) => kvdb::Scope::Frozen(slot.get()?),
        })
    }

    /// Returns the number of the transaction, or `None` if the place is not a transaction.
    pub fn id(&self) -> Option<TransactionId> {
        match self {
            At::Transaction { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Returns the transaction, or an error if the place is not a transaction.
    pub fn transaction(&self) -> Outcome<(&Slot<Transaction>, TransactionId)> {
        match self {
            At::Transaction { slot, id, .. } => Ok((slot, *id)),
            _ => Err(Failure::Invalid("this is no transaction".into())),
        }
    }

    fn files(&self, open: &Open) -> Outcome<Fs> {
        let view = match self {
            At::Mainline => kvfs::ViewId::Mainline,
            At::Transaction { id, .. } => kvfs::ViewId::Transaction(*id),
            At::Frozen(_, name) => kvfs::ViewId::Snapshot(name.clone()),
        };
        match open.views()?.fs(&view) {
            Err(kvfs::Error::NotFound) => match self {
                At::Frozen(_, name) => {
                    Err(Failure::Store(kvdb::Error::NoSnapshot(format!("{name} with files"))))
                }
                _ => Err(Failure::Closed("the transaction")),
            },
            fs => Ok(fs?),
        }
    }
}

/// The state or the view on which a call works.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// The store is open in this process.
    Here(&'a Open, &'a At),
    /// A server has the store.
    There(&'a OpenView),
}

impl<'a> Place<'a> {
    /// Returns the open store, for operations that are not available over a wire.
    pub fn here(self) -> Outcome<&'a Open> {
        match self {
            Place::Here(open, _) => Ok(open),
            Place::There(_) => {
                let what = "this is found where the store is, and not over a wire";
                Err(Failure::Unsupported(what.into()))
            }
        }
    }

    /// Returns the durability of writes that do not specify it. Writes over a wire are on disk
    /// with the commit of their transaction.
    pub fn durability(self) -> Durability {
        match self {
            Place::Here(open, _) => open.durability,
            Place::There(_) => Durability::Buffered,
        }
    }

    /// Returns the dictionary with this name in the scope.
    pub fn existing(self, scope: &kvdb::Scope, name: &str) -> Outcome<Option<DictionaryId>> {
        match (self, scope) {
            (Place::There(view), _) => view.dictionary(name),
            (Place::Here(..), kvdb::Scope::Frozen(view)) => {
                check_name(name)?;
                let found = view.dictionaries().into_iter().find(|d| d.name == name);
                match found {
                    Some(info) if info.options.reserved => Err(reserved(name)),
                    found => Ok(found.map(|info| info.id)),
                }
            }
            (Place::Here(open, _), kvdb::Scope::Transaction(of)) if !of.branch().is_empty() => {
                check_name(name)?;
                let all = open.db.dictionaries_in(of.branch());
                match all.into_iter().find(|d| d.name == name) {
                    Some(info) if info.options.reserved => Err(reserved(name)),
                    found => Ok(found.map(|info| info.id)),
                }
            }
            (Place::Here(open, _), _) => open.dictionary(name),
        }
    }

    /// Returns a dictionary that is about to be changed. It is created if it does not exist, but
    /// not over a wire.
    pub fn dictionary_to_write(self, scope: &kvdb::Scope, name: &str) -> Outcome<DictionaryId> {
        if let Some(dict) = self.existing(scope, name)? {
            return Ok(dict);
        }
        match (self, scope) {
            (Place::Here(open, _), kvdb::Scope::Transaction(of)) if !of.branch().is_empty() => {
                let options = DictionaryOptions::default();
                Ok(open.db.create_dictionary_in(of.branch(), name, options)?)
            }
            (Place::Here(open, _), _) => open.dictionary_to_write(name),
            (Place::There(_), _) => Err(Failure::Unsupported(format!(
                "there is no dictionary '{name}', and none is made over a wire: make it where the \
                 store is"
            ))),
        }
    }

    /// Returns the user's dictionaries by name.
    pub fn dictionaries(self, scope: &kvdb::Scope) -> Vec<String> {
        let (all, branch) = match (self, scope) {
            (Place::There(view), _) => return view.dictionaries(),
            (Place::Here(..), kvdb::Scope::Frozen(view)) => (view.dictionaries(), ""),
            (Place::Here(open, _), kvdb::Scope::Transaction(of)) => {
                (open.db.dictionaries_in(of.branch()), of.branch())
            }
            (Place::Here(open, _), _) => (open.db.dictionaries(), ""),
        };
        let of_users = all.into_iter().filter(|d| !d.options.reserved && d.branch == branch);
        let mut names: Vec<String> = of_users.map(|d| d.name).collect();
        names.sort();
        names
    }

    /// Returns the files of the same state.
    pub fn files(self) -> Outcome<Fs> {
        match self {
            Place::Here(open, at) => at.files(open),
            Place::There(view) => Ok(view.fs().clone()),
        }
    }
}
