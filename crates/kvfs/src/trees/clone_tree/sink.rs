//! The destination of the tuples of a copy.

use kvdb::{Batch, Bulk, BulkRun, DictionaryId, StoredTuple};

use super::{AT_ONCE, COST, Copying};
use crate::error::Result;

/// The destination of a dictionary's tuples.
pub(super) enum Sink<'a> {
    /// The tuples are written to the transaction in batches.
    Changes {
        copying: &'a Copying<'a>,
        dict: DictionaryId,
        batch: Batch,
    },
    Run(Box<Bulk>),
}

impl Sink<'_> {
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Sink::Run(bulk) => return Ok(bulk.push(key, value)?),
            Sink::Changes { dict, batch, .. } => batch.put(*dict, key.to_vec(), value.to_vec()),
        }
        self.write(AT_ONCE)
    }

    pub fn put_stored(&mut self, key: &[u8], tuple: &StoredTuple<'_>) -> Result<()> {
        match self {
            Sink::Run(bulk) => return Ok(bulk.push_stored(key, tuple)?),
            Sink::Changes { copying, dict, batch } => {
                batch.put_stored(*dict, key.to_vec(), tuple.stored(&copying.view))
            }
        }
        self.write(AT_ONCE)
    }

    /// Applies the pending batch to the transaction if it has at least `least` changes.
    fn write(&mut self, least: usize) -> Result<()> {
        match self {
            Sink::Changes { copying, batch, .. } if batch.len() >= least => {
                copying.fs.reserve(COST * batch.len() as u64)?;
                Ok(copying.transaction.apply(std::mem::take(batch))?)
            }
            _ => Ok(()),
        }
    }

    /// Writes the remaining tuples. Returns the run if the sink builds one.
    pub fn finish(mut self) -> Result<Option<BulkRun>> {
        self.write(1)?;
        match self {
            Sink::Run(bulk) => Ok(bulk.finish()?),
            Sink::Changes { .. } => Ok(None),
        }
    }
}
