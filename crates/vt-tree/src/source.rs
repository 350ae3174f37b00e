//! The one way to walk items, whatever holds them: a memtable, a run, a merge of many. Upper floors
//! stack sources on sources.

use crate::{ItemRef, Result};

/// A position on the items of one source, which are disjoint and ascend by key. Errors come from
/// reading the device; a memtable never gives one. After an error the position is undefined until
/// the next seek.
pub trait Source: Send {
    /// To the first item whose cover ends after `key`: it covers `key`, or begins after it.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// To the last item that begins before `key`.
    fn seek_before(&mut self, key: &[u8]) -> Result<()>;
    /// To the first item.
    fn first(&mut self) -> Result<()>;
    /// To the last item.
    fn last(&mut self) -> Result<()>;
    /// The item here. `None`: beyond either end, or not yet positioned.
    fn item(&self) -> Option<ItemRef<'_>>;
    /// To the next item. Without an item, nothing happens: seek first.
    fn next(&mut self) -> Result<()>;
    /// To the item before. Without an item, nothing happens: seek first.
    fn prev(&mut self) -> Result<()>;
}
