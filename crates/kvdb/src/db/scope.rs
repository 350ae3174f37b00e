//! A scope: where reads and writes go. Code that works on one need not know whether it is the store
//! itself, a transaction, or a state that does not change.

use bytes::Bytes;

use crate::commit::batch::{Batch, Durability};
use crate::db::Kvdb;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::cursor::Cursor;
use crate::read::view::View;
use crate::transactions::Transaction;

/// Where reads and writes go.
#[derive(Clone)]
pub enum Scope {
    /// The store itself: the mainline.
    Mainline(Kvdb),
    /// What a transaction sees, and its changes.
    Transaction(Transaction),
    /// A state that does not change.
    Frozen(View),
}

impl Scope {
    /// The newest value that is seen here.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Scope::Mainline(db) => db.get(dict, key),
            Scope::Transaction(t) => t.get(dict, key),
            Scope::Frozen(view) => view.get(dict, key),
        }
    }

    /// Up to `limit` tuples of `[start, end)`; see [`View::scan`].
    pub fn scan(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        match self {
            Scope::Mainline(db) => db.view().scan(dict, start, end, limit),
            Scope::Transaction(t) => t.scan(dict, start, end, limit),
            Scope::Frozen(view) => view.scan(dict, start, end, limit),
        }
    }

    /// A cursor over `[start, end)` as it is now; see [`View::cursor`].
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        match self {
            Scope::Mainline(db) => db.view().cursor(dict, start, end),
            Scope::Transaction(t) => t.cursor(dict, start, end),
            Scope::Frozen(view) => view.cursor(dict, start, end),
        }
    }

    /// What is seen here now, for as long as the view is held. In a serializable transaction
    /// nothing is locked by it or by reading it.
    pub fn view(&self) -> Result<View> {
        match self {
            Scope::Mainline(db) => Ok(db.view()),
            Scope::Transaction(t) => t.view(),
            Scope::Frozen(view) => Ok(view.clone()),
        }
    }

    /// Applies a batch as one unit. In a transaction it is seen there alone until that commits, and
    /// `durability` waits for that.
    pub fn apply(&self, batch: Batch, durability: Durability) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.commit(batch, durability),
            Scope::Transaction(t) => t.apply(batch),
            Scope::Frozen(_) => Err(Error::ReadOnly("it is a snapshot".into())),
        }
    }

    /// Everything committed here before this call is on disk when it returns. In a transaction that
    /// is not durable itself there is nothing to do: what it changes is on disk with its commit.
    pub fn sync(&self) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.sync(),
            Scope::Transaction(t) => t.sync(),
            Scope::Frozen(_) => Ok(()),
        }
    }

    /// Does what [`Scope::sync`] does, at an interval: see [`Kvdb::sync_at_interval`].
    pub fn sync_at_interval(&self) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.sync_at_interval(),
            _ => self.sync(),
        }
    }

    /// `false`: nothing can be changed here.
    pub fn writable(&self) -> bool {
        !matches!(self, Scope::Frozen(_))
    }
}
