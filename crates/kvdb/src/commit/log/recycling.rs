//! Recycles the segments of the journal that a flush has made obsolete, in the flush's edit of the
//! manifest. The writer is not locked while that edit is synced, so commits continue.

use super::Log;
use crate::error::Result;
use crate::journal::{Owned, Segment};
use crate::manifest::{Edit, ManifestState};

/// Segments whose commits are all in runs once the edits of a flush are durable.
pub(crate) struct Recycling<'a> {
    log: &'a Log,
    /// The oldest ones, which are reused.
    reused: Vec<Owned>,
    /// The new segments in the reused zones, set by [`Recycling::edits`].
    segments: Vec<Segment>,
    /// The other ones, whose zones become free.
    rest: Vec<Owned>,
}

impl Log {
    /// Takes the segments before number `before` from the writer.
    pub(crate) fn begin_recycling(&self, before: u64) -> Recycling<'_> {
        let mut writer = self.writer.lock();
        let (mut reused, mut rest): (Vec<Owned>, Vec<Owned>) =
            writer.release(before).into_iter().partition(|owned| owned.reusable);
        let wanted = writer.announce(self.stock(), reused.len());
        rest.extend(reused.drain(wanted..));
        Recycling { log: self, reused, segments: Vec::new(), rest }
    }
}

impl Recycling<'_> {
    /// Returns the edits that list the reused zones as new segments.
    pub(crate) fn edits(&mut self, state: &ManifestState) -> impl Iterator<Item = Edit> {
        let numbered = (state.next_segment..).zip(&self.reused);
        let segment = |(number, old): (u64, &Owned)| {
            let epoch = self.log.engine.env.random();
            Segment { number, zone: old.segment.zone, epoch, end: None }
        };
        self.segments = numbered.map(segment).collect();
        self.segments.iter().copied().map(Edit::Segment)
    }

    /// Gives the segments to the writer, after the edits have become durable.
    pub(crate) fn finish(self) -> Result<()> {
        let log = self.log;
        let mut writer = log.writer.lock();
        writer.arrived(self.reused.len());
        let owned = self.segments.into_iter().zip(self.reused);
        let owned = owned.map(|(segment, old)| Owned { segment, pin: old.pin, ..old }).collect();
        log.give_to(&mut writer, owned)?;
        log.engine.counters.journal_device.set(writer.bytes());
        Ok(())
    }

    /// Returns the segments to the writer unchanged, after the edits have failed: the manifest
    /// still lists them.
    pub(crate) fn undo(self) {
        let mut writer = self.log.writer.lock();
        writer.arrived(self.reused.len());
        let mut released: Vec<Owned> = self.reused.into_iter().chain(self.rest).collect();
        released.sort_by_key(|owned| owned.segment.number);
        writer.take_back(released);
    }
}
