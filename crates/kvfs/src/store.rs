//! The store that a view is in, for what is asked of it as a whole and not of the view: whether it
//! takes writes, its space, promises of that. It is in this process, or a server has it, and then
//! the view that the server holds is all that there is of it here.

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
    /// The store, for what is done only where it is.
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

    /// Fails where nothing can be committed any more.
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

    /// Makes room, so far as that can be done at once.
    pub fn reclaim(&self) {
        if let Store::Here(db) = self {
            db.reclaim();
        }
    }
}
