//! A view: the store as of one commit, for as long as it is held.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Seq, Store, Value};

use crate::cursor::Cursor;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::version::{Version, read};

/// A pinned, immutable state of the whole store: reads through it see one commit boundary and never block.
#[derive(Clone)]
pub struct View {
    pub(crate) version: Arc<Version>,
    pub(crate) store: Arc<Store>,
    /// Commits up to this one are seen.
    pub(crate) at: Seq,
}

/// Most bytes of large values that a scan has read but not handed out.
const SCAN_AHEAD: usize = 4 << 20;

impl View {
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        match self.version.trees.get(&dict) {
            None => Ok(None),
            Some(tree) => tree.get(key, self.at)?.map(|v| read(&self.store, v)).transpose(),
        }
    }

    /// Length of a value in bytes; a large one is not read for it.
    pub fn value_len(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<usize>> {
        match self.version.trees.get(&dict) {
            None => Ok(None),
            Some(tree) => Ok(tree.get(key, self.at)?.map(|v| v.len())),
        }
    }

    /// A cursor over `[start, end)` of one dictionary, before its first tuple. `end` empty: to the end of the dictionary.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        Ok(Cursor::new(self, self.version.tree(dict)?, start, end))
    }

    /// Up to `limit` tuples of `[start, end)` in order, values read with as few large reads as their places allow.
    pub fn scan(&self, dict: DictionaryId, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let mut cursor = self.cursor(dict, start, end)?;
        let mut out: Vec<(Bytes, Bytes)> = Vec::new();
        // Large values are read together: their places in `out`, and where they lie.
        let (mut places, mut extents, mut bytes) = (Vec::new(), Vec::new(), 0);
        while out.len() < limit {
            let Some(tuple) = cursor.next()? else { break };
            let value = match tuple.value {
                Value::Inline(value) => value,
                Value::Extent(e) => {
                    places.push(out.len());
                    extents.push(e);
                    bytes += e.len as usize;
                    Bytes::new()
                }
            };
            out.push((tuple.key, value));
            if bytes >= SCAN_AHEAD {
                self.fill_in(&mut out, &mut places, &mut extents)?;
                bytes = 0;
            }
        }
        self.fill_in(&mut out, &mut places, &mut extents)?;
        Ok(out)
    }

    fn fill_in(&self, out: &mut [(Bytes, Bytes)], places: &mut Vec<usize>, extents: &mut Vec<vt_tree::ExtentRef>) -> Result<()> {
        let values = self.store.read_values(extents)?;
        places.iter().zip(values).for_each(|(&at, value)| out[at].1 = value);
        places.clear();
        extents.clear();
        Ok(())
    }
}
