//! A tap on the journal's stream: the bytes that were written to the device, in their order, kept
//! in memory for the journal in object storage. All values have their places by then.

use std::sync::Arc;

use env::sync::Mutex;
use vt_tree::Seq;

use crate::commit::CommitPipeline;
use crate::error::Result;

/// What came out of a tap.
#[derive(Debug, Default)]
pub(crate) struct Tapped {
    /// The number of the change that comes first in the stream, where the tap was opened since the
    /// last look.
    pub begins: Option<Seq>,
    /// The stream from there, or from the last look on.
    pub bytes: Vec<u8>,
    /// Something after these is missing: the tap has to be opened anew.
    pub lost: bool,
    /// The bytes that wait at most. What comes after them is lost.
    most: usize,
}

#[derive(Default)]
pub(crate) struct JournalTap {
    /// `None`: it is shut.
    open: Mutex<Option<Tapped>>,
}

impl JournalTap {
    /// Adds what was written.
    pub(super) fn add(&self, stream: &[u8]) {
        let mut open = self.open.lock();
        let Some(tapped) = &mut *open else { return };
        match tapped.bytes.len() + stream.len() <= tapped.most {
            true if !tapped.lost => tapped.bytes.extend_from_slice(stream),
            _ => tapped.lost = true,
        }
    }

    /// Takes what has come since the last look; `None`: it is shut.
    pub(crate) fn take(&self) -> Option<Tapped> {
        let mut open = self.open.lock();
        let tapped = open.as_mut()?;
        let next = Tapped { lost: tapped.lost, most: tapped.most, ..Tapped::default() };
        Some(std::mem::replace(tapped, next))
    }

    /// Shuts it, and forgets what it has.
    pub(crate) fn shut(&self) {
        *self.open.lock() = None;
    }
}

/// A place apart from this machine in which commits are durable, too.
pub(crate) trait SyncElsewhere: Send + Sync {
    /// Returns when all that was committed before the call, and is durable here, is durable there.
    fn sync(&self) -> Result<()>;
}

impl CommitPipeline {
    /// Has syncs wait for another place, or for none any more.
    pub(crate) fn set_elsewhere(&self, place: Option<Arc<dyn SyncElsewhere>>) {
        *self.elsewhere.lock() = place;
    }

    /// Returns when what was committed, and is durable here, is durable elsewhere, where syncs wait
    /// for that.
    pub(super) fn sync_elsewhere(&self) -> Result<()> {
        let place = self.elsewhere.lock().clone();
        place.map_or(Ok(()), |place| place.sync())
    }

    /// Opens the tap, in which so many bytes wait at most, unless it is open and lacks nothing.
    /// What was committed before is written out, and does not come out of it.
    pub(crate) fn open_tap(&self, most: usize) -> Result<()> {
        if self.tap.open.lock().as_ref().is_some_and(|tapped| !tapped.lost) {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        self.write_out_with(&mut writer)?;
        let mut pipeline = self.pipeline.lock();
        self.write_rest(&mut writer, &mut pipeline)?;
        let begins = Some(pipeline.next_seq);
        *self.tap.open.lock() = Some(Tapped { begins, most, ..Tapped::default() });
        Ok(())
    }
}
