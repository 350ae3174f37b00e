//! Scopes, the targets of reads and writes. Code that works on a scope need not know whether the
//! scope is the store itself, a transaction or a state that does not change, or whether the store
//! is in this process or on a server. A scope is the seam between a file system and its store
//! (`docs/decisions/160-the-seam.md`).

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

/// The target of reads and writes.
#[derive(Clone)]
pub enum Scope {
    /// The store itself: the mainline.
    Mainline(Kvdb),
    /// A transaction, with its changes.
    Transaction(Transaction),
    /// A state that does not change.
    Frozen(View),
    /// A state that is held by the server which has the store open. The state does not change, or
    /// only this process changes it.
    Served(Arc<dyn ServedView>),
}

/// A cursor of a scope. See [`Cursor`].
pub struct ScopeCursor(Place);

#[allow(clippy::large_enum_variant, reason = "a local cursor must not cost an allocation more")]
enum Place {
    Here(Cursor),
    There(ServedCursor),
}

impl ScopeCursor {
    /// Converts this cursor for callers that need only keys. See [`Cursor::keys_only`].
    pub fn keys_only(self) -> ScopeCursor {
        ScopeCursor(match self.0 {
            Place::Here(cursor) => Place::Here(cursor.keys_only()),
            Place::There(mut cursor) => {
                cursor.keys_only();
                Place::There(cursor)
            }
        })
    }

    /// Returns the next tuple in key order, or `None` at the range's end.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Tuple>> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.next(),
            Place::There(cursor) => cursor.step(true),
        }
    }

    /// Returns the tuple before the position, or `None` at the range's start.
    pub fn prev(&mut self) -> Result<Option<Tuple>> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.prev(),
            Place::There(cursor) => cursor.step(false),
        }
    }

    /// Moves the cursor before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.seek(key),
            Place::There(cursor) => {
                cursor.seek(key);
                Ok(())
            }
        }
    }

    /// Moves the cursor after the last tuple of the range.
    pub fn seek_to_end(&mut self) -> Result<()> {
        match &mut self.0 {
            Place::Here(cursor) => cursor.seek_to_end(),
            Place::There(cursor) => {
                cursor.seek_to_end();
                Ok(())
            }
        }
    }

    /// Returns the tuples that the next steps return without a request to a server. A local cursor
    /// returns none, since it reads ahead by itself.
    pub fn fetched(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let there = match &self.0 {
            Place::Here(_) => None,
            Place::There(cursor) => Some(cursor.fetched()),
        };
        there.into_iter().flatten()
    }
}

impl Scope {
    /// Returns the newest value of `key` in this scope.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Scope::Mainline(db) => db.get(dict, key),
            Scope::Transaction(t) => t.get(dict, key),
            Scope::Frozen(view) => view.get(dict, key),
            Scope::Served(view) => Ok(view.get_many(dict, &[key])?.into_iter().next().flatten()),
        }
    }

    /// Returns up to `limit` tuples of `[start, end)`; see [`View::scan`].
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

    /// Returns a cursor over the current state of `[start, end)`; see [`View::cursor`].
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

    /// Announces that these keys, or ranges that begin at them, will be read one by one. If reads
    /// need a request to a server, all keys are read with one request. In a store in object
    /// storage, the data whose places are known is requested at once, without waiting for the
    /// answer. For any other store and for transactions, this does nothing. Errors are not reported
    /// here, since the later read encounters the same error.
    pub fn announce(&self, dict: DictionaryId, keys: &[&[u8]]) {
        let announced = match self {
            Scope::Served(view) => {
                view.announce(dict, keys);
                Ok(())
            }
            Scope::Mainline(db) if db.db.engine.zones.has_remote_zones() => {
                db.view().announce(dict, keys)
            }
            Scope::Frozen(view) => view.announce(dict, keys),
            Scope::Mainline(_) | Scope::Transaction(_) => Ok(()),
        };
        if let Err(e) = announced {
            tracing::debug!("nothing is requested before it is read: {e}");
        }
    }

    /// Returns a view of the current state. The view does not change while it is held. In a
    /// serializable transaction, neither this call nor reads of the view lock anything. Fails for a
    /// served view, since this process cannot walk through that view locally.
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

    /// Applies a batch atomically. If the scope is a transaction, the changes are visible only
    /// there until the transaction commits, and `durability` has no effect.
    pub fn apply(&self, batch: Batch, durability: Durability) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.commit(batch, durability),
            Scope::Transaction(t) => t.apply(batch),
            Scope::Frozen(_) => Err(Error::ReadOnly("it is a snapshot".into())),
            Scope::Served(view) => view.apply(ServedChange::of(batch)?),
        }
    }

    /// Makes everything that was committed in this scope before the call durable. For a transaction
    /// that is not durable itself, this does nothing, because the changes reach the disk with the
    /// transaction's commit.
    pub fn sync(&self) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.sync(),
            Scope::Transaction(t) => t.sync(),
            Scope::Frozen(_) => Ok(()),
            Scope::Served(view) => view.sync(),
        }
    }

    /// Does the same as [`Scope::sync`], for periodic syncs. See [`Kvdb::sync_at_interval`].
    pub fn sync_at_interval(&self) -> Result<()> {
        match self {
            Scope::Mainline(db) => db.sync_at_interval(),
            Scope::Served(view) => view.sync_at_interval(),
            _ => self.sync(),
        }
    }

    /// Returns `true` if reads may need a request to a server.
    pub fn is_served(&self) -> bool {
        matches!(self, Scope::Served(_))
    }

    /// Returns `false` if the scope cannot be changed.
    pub fn writable(&self) -> bool {
        match self {
            Scope::Mainline(_) | Scope::Transaction(_) => true,
            Scope::Frozen(_) => false,
            Scope::Served(view) => view.writable(),
        }
    }
}
