//! The interface of all cursors over items: over a memtable, over a run, and over combined sources,
//! which other crates add.

use crate::{ItemRef, Result};

/// A cursor over the items of one source, which are disjoint and ascend by key. Errors come from
/// reading the device; a memtable never returns one. After an error the position is undefined until
/// the next seek.
pub trait Source: Send {
    /// Moves to the first item that covers `key` or begins after it.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the last item that begins before `key`.
    fn seek_before(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the first item.
    fn first(&mut self) -> Result<()>;
    /// Moves to the last item.
    fn last(&mut self) -> Result<()>;
    /// Returns the current item, or `None` beyond either end or before the first seek.
    fn item(&self) -> Option<ItemRef<'_>>;
    /// Moves to the next item. Does nothing if there is no current item.
    fn next(&mut self) -> Result<()>;
    /// Moves to the previous item. Does nothing if there is no current item.
    fn prev(&mut self) -> Result<()>;
}

/// A cursor that holds items around the current one in memory, in their order: a batch of a
/// memtable, or a restart interval of a run.
pub(crate) trait Holding: Source {
    /// Returns the index of the current item among the items in memory, or `None` if there is no
    /// current item.
    fn here(&self) -> Option<usize>;
    /// Returns the number of items in memory.
    fn held(&self) -> usize;
    /// Returns an item in memory, by its index.
    fn held_item(&self, i: usize) -> Option<ItemRef<'_>>;
    /// Moves to an item in memory, by its index, which must be below [`Holding::held`].
    fn stand_on(&mut self, i: usize);
}
