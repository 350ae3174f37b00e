//! A tap on the journal's stream: the bytes that were written to the device, in their order, kept
//! in memory for the journal in object storage. All values are placed by then.

use std::sync::Arc;

use env::sync::Mutex;
use vt_tree::Seq;

use super::Log;
use crate::error::Result;

/// The bytes taken from a tap.
#[derive(Debug, Default)]
pub(crate) struct Tapped {
    /// The number of the first change in the stream, if the tap was opened since the last
    /// [`JournalTap::take`].
    pub begins: Option<Seq>,
    /// The stream since the tap was opened, or since the last [`JournalTap::take`].
    pub bytes: Vec<u8>,
    /// Set if bytes after these are missing: the tap has to be opened again.
    pub lost: bool,
    /// The maximum number of waiting bytes. Later ones are lost.
    most: usize,
}

#[derive(Default)]
pub(crate) struct JournalTap {
    /// `None` if the tap is shut.
    open: Mutex<Option<Tapped>>,
}

impl JournalTap {
    /// Adds written bytes of the stream.
    pub(super) fn add(&self, stream: &[u8]) {
        let mut open = self.open.lock();
        let Some(tapped) = &mut *open else { return };
        match tapped.bytes.len() + stream.len() <= tapped.most {
            true if !tapped.lost => tapped.bytes.extend_from_slice(stream),
            _ => tapped.lost = true,
        }
    }

    /// Takes the bytes since the last call, or returns `None` if the tap is shut.
    pub(crate) fn take(&self) -> Option<Tapped> {
        let mut open = self.open.lock();
        let tapped = open.as_mut()?;
        let next = Tapped { lost: tapped.lost, most: tapped.most, ..Tapped::default() };
        Some(std::mem::replace(tapped, next))
    }

    /// Shuts the tap and drops its bytes.
    pub(crate) fn shut(&self) {
        *self.open.lock() = None;
    }
}

/// A place outside this machine in which commits are made durable too.
pub(crate) trait SyncElsewhere: Send + Sync {
    /// Makes all earlier commits that are durable on this machine durable in that place as well.
    fn sync(&self) -> Result<()>;
}

impl Log {
    /// Makes syncs wait for another place, or for none any more.
    pub(crate) fn set_elsewhere(&self, place: Option<Arc<dyn SyncElsewhere>>) {
        *self.elsewhere.lock() = place;
    }

    /// If syncs wait for another place, makes all commits that are durable on this machine durable
    /// in that place.
    pub(in crate::commit) fn sync_elsewhere(&self) -> Result<()> {
        let place = self.elsewhere.lock().clone();
        place.map_or(Ok(()), |place| place.sync())
    }

    /// Opens the tap for at most `most` waiting bytes, unless it is open and lacks nothing. Earlier
    /// commits are written out first, and do not appear in it.
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
