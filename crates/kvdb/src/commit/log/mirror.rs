//! The mirror of the log: commits that the device does not have yet are kept in it, too.

use std::sync::Arc;

use env::sync::atomic::Ordering;

use super::{Log, Pipeline};
use crate::error::Result;
use crate::mirror::Mirror;

impl Log {
    /// Adds the next commit to the mirror. If that fails, the store takes no more commits, since it
    /// is not known which of them the mirror has.
    pub(in crate::commit) fn mirror(&self, pipeline: &mut Pipeline, count: u64) {
        let (at, note) = (pipeline.record_at.take(), pipeline.note.take());
        let (Some(mirror), Some(at)) = (self.mirror.get(), at) else { return };
        let record = pipeline.pending.stream.get(at..).unwrap_or_default();
        if let Err(e) = mirror.add((pipeline.next_seq, count), record, pipeline.end(), note) {
            self.engine.health.fail("mirroring a commit", &e);
        }
    }

    /// Returns whether commits are kept in a mirror until the device has them.
    pub(in crate::commit) fn is_mirrored(&self) -> bool {
        self.mirror.get().is_some()
    }

    /// Drops the commits up to `position` of the journal's stream from the mirror, since the device
    /// has them.
    pub(super) fn cut_mirror(&self, position: u64) {
        if let Some(mirror) = self.mirror.get()
            && let Err(e) = mirror.cut(position)
        {
            self.engine.health.fail("cutting the mirror of the commits", &e);
        }
    }

    /// Starts to mirror commits. All earlier commits are written to the device first, so the mirror
    /// starts empty.
    pub(crate) fn begin_mirror(&self, mirror: &Arc<Mirror>) -> Result<()> {
        let mut writer = self.writer.lock();
        self.write_out_with(&mut writer)?;
        let mut pipeline = self.pipeline.lock();
        self.write_rest(&mut writer, &mut pipeline)?;
        mirror.begin(self.engine.zones.superblock().uuid)?;
        let _ = self.mirror.set(mirror.clone());
        // The mirror has the values of its commits, so these are not held.
        self.hold.store(0, Ordering::Relaxed);
        Ok(())
    }
}
