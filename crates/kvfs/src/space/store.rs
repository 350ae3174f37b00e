//! The store that contains a view, for questions about the whole store: whether it takes writes,
//! its space, promises of space. The store is either in this process or with a server; in the
//! second case only the view that the server holds is known here.

use std::sync::Arc;

use kvdb::{Kvdb, PromisedSpace, ServedView, Space};

use crate::error::{Error, Result};

#[derive(Clone)]
pub(crate) enum Store {
    Here(Kvdb),
    Served(Arc<dyn ServedView>),
}

impl From<Kvdb> for Store {
    fn from(db: Kvdb) -> Store {
        Store::Here(db)
    }
}

impl Store {
    /// Returns the store, for operations that need it in this process.
    #[inline]
    pub fn here(&self) -> Result<&Kvdb> {
        match self {
            Store::Here(db) => Ok(db),
            Store::Served(_) => {
                let why = "this is done only where the store is, not over a wire";
                Err(Error::Store(kvdb::Error::Invalid(why.into())))
            }
        }
    }

    /// Fails if nothing can be committed any more.
    #[inline]
    pub fn takes_writes(&self) -> Result<()> {
        match self {
            Store::Here(db) => Ok(db.takes_writes()?),
            Store::Served(view) if view.writable() => Ok(()),
            Store::Served(_) => Err(Error::ReadOnly),
        }
    }

    pub fn space(&self) -> Space {
        match self {
            Store::Here(db) => db.space(),
            Store::Served(view) => view.space(),
        }
    }

    pub fn promised_space(&self) -> PromisedSpace {
        match self {
            Store::Here(db) => db.promised_space(),
            Store::Served(_) => PromisedSpace::default(),
        }
    }

    /// Frees space, as far as that can be done at once.
    pub fn reclaim(&self) {
        if let Store::Here(db) = self {
            db.reclaim();
        }
    }
}
