//! A scope: where reads and writes go. Code that works on one need not know whether it is the store
//! itself, a transaction, or a state that does not change, nor whether that is in this process. It
//! is the seam between a file system and its store (`docs/decisions/160-the-seam.md`).

use std::sync::Arc;

use bytes::Bytes;

use crate::commit::batch::{Batch, Durability};
use crate::db::Kvdb;
use crate::db::served::{self, ServedChange, ServedCursor, ServedView};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::cursor::{Cursor, Tuple};
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
    /// A state that a server holds which has the store: it does not change, or by this process
    /// alone.
    Served(Arc<dyn ServedView>),
}

/// A cursor of a scope, see [`Cursor`].
pub struct ScopeCursor(Place);

#[allow(clippy::large_enum_variant, reason = "a local cursor must not cost an allocation more")]
enum Place {
    Here(Cursor),
    There(ServedCursor),
}

impl ScopeCursor {
    /// This cursor for callers that want keys only, see [`Cursor::keys_only`].
    pub fn keys_only(self) -> ScopeCursor {
        ScopeCursor(match self.0 {
            Place::Here(cursor) => Place::Here(cursor.keys_only()),
            Place::There(mut cursor) => {
                cursor.keys_only();
                Place::There(cursor)
            }
        })
    }

    /// The next tuple in key order, or `None` at the range's end.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Tuple>> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.next(),
            Place::There(cursor) => cursor.step(true),
        }
    }

    /// The tuple before the position, or `None` at the range's start.
    pub fn prev(&mut self) -> Result<Option<Tuple>> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.prev(),
            Place::There(cursor) => cursor.step(false),
        }
    }

    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.seek(key),
            Place::There(cursor) => {
                cursor.seek(key);
                Ok(())
            }
        }
    }

    /// Moves after the last tuple of the range.
    pub fn seek_to_end(&mut self) -> Result<()> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.seek_to_end(),
            Place::There(cursor) => {
                cursor.seek_to_end();
                Ok(())
            }
        }
    }

    /// Tuples that the next steps take without a request to a server; none of a local cursor, whose
    /// reads go ahead by themselves.
    pub fn fetched(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let there = match &self.0 {
            Place::Here(_) => None,
            Place::There(cursor) => Some(cursor.fetched()),
        };
        there.into_iter().flatten()
    }
}

impl Scope {
    /// The newest value that is seen here.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Scope::Mainline(db) => db.get(dict, key),
            Scope::Transaction(t) => t.get(dict, key),
            Scope::Frozen(view) => view.get(dict, key),
            Scope::Served(view) => Ok(view.get_many(dict, &[key])?.into_iter().next().flatten()),
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
            Scope::Served(view) => served::scan(&**view, dict, start, end, limit),
        }
    }

    /// A cursor over `[start, end)` as it is now; see [`View::cursor`].
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<ScopeCursor> {
        let here = match self {
            Scope::Mainline(db) => db.view().cursor(dict, start, end),
            Scope::Transaction(t) => t.cursor(dict, start, end),
            Scope::Frozen(view) => view.cursor(dict, start, end),
            Scope::Served(view) => {
                let there = ServedCursor::new(view.clone(), dict, start, end);
                return Ok(ScopeCursor(Place::There(there)));
            }
        };
        Ok(ScopeCursor(Place::Here(here?)))
    }

    /// Says that these keys are going to be read, one by one. Where that takes a request to a
    /// server, they are read by one; elsewhere it does nothing.
    pub fn announce(&self, dict: DictionaryId, keys: &[&[u8]]) {
        if let Scope::Served(view) = self {
            view.announce(dict, keys);
        }
    }

    /// What is seen here now, for as long as the view is held. In a serializable transaction
    /// nothing is locked by it or by reading it. A served view is none that this process could walk
    /// through by itself: that fails.
    pub fn view(&self) -> Result<View> {
        match self {
            Scope::Mainline(db) => Ok(db.view()),
            Scope::Transaction(t) => t.view(),
            Scope::Frozen(view) => Ok(view.clone()),
            Scope::Served(_) => {
                let why = "a whole view is walked where its store is, not over a wire";
                Err(Error::Invalid(why.into()))
            }
        }
    }

    /// Applies a batch as one unit. In a transaction it is seen there alone until that commits, and
    /// `durability` waits for that.
    pub fn apply(&self, batch: Batch, durability: Durability) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.commit(batch, durability),
            Scope::Transaction(t) => t.apply(batch),
            Scope::Frozen(_) => Err(Error::ReadOnly("it is a snapshot".into())),
            Scope::Served(view) => view.apply(ServedChange::of(batch)?),
        }
    }

    /// Everything committed here before this call is on disk when it returns. In a transaction that
    /// is not durable itself there is nothing to do: what it changes is on disk with its commit.
    pub fn sync(&self) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.sync(),
            Scope::Transaction(t) => t.sync(),
            Scope::Frozen(_) => Ok(()),
            Scope::Served(view) => view.sync(),
        }
    }

    /// Does what [`Scope::sync`] does, at an interval: see [`Kvdb::sync_at_interval`].
    pub fn sync_at_interval(&self) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.sync_at_interval(),
            Scope::Served(view) => view.sync_at_interval(),
            _ => self.sync(),
        }
    }

    /// `true`: a read may take a request to a server.
    pub fn is_served(&self) -> bool {
        matches!(self, Scope::Served(_))
    }

    /// `false`: nothing can be changed here.
    pub fn writable(&self) -> bool {
        match self {
            Scope::Mainline(_) | Scope::Transaction(_) => true,
            Scope::Frozen(_) => false,
            Scope::Served(view) => view.writable(),
        }
    }
}
