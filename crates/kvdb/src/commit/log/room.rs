//! The room that commits rely on: segments of the journal for their records, and reserved zones for
//! their values.
//!
//! Room is made first. A commit appends only as much as the segments and zones at hand are sure to
//! hold, so no acknowledged commit finds the store full later. A write sets the remaining room when
//! it begins, and again when it ends.

use env::sync::atomic::Ordering;

use zones::{Priority, Purpose, ZONE_SIZE, ZoneId, ZonePin};

use super::{Log, deferred};
use crate::error::{Error, Result};
use crate::journal::{Owned, SEGMENT_SIZE, Segment, Writer};
use crate::manifest::Edit;

impl Log {
    /// Adds segments until a record of `len` bytes fits, and reserves zones for the values of a
    /// commit: `values` has their cost, and says how far into the reserve their zones may be taken.
    /// `depth` says the same of the segments.
    pub(crate) fn make_room(
        &self,
        len: usize,
        values: (u64, Priority),
        depth: Priority,
    ) -> Result<()> {
        let mut writer = self.writer.lock();
        // Values that are held stay, as long as there is room for more.
        if !self.holds() {
            self.write_out_unless(&mut writer, |left| self.is_little(left))?;
        }
        match self.make_room_with(&mut writer, len, values, depth) {
            // Pending data that was kept in memory takes room too.
            Err(Error::NoSpace) => {
                self.write_out_with(&mut writer)?;
                self.make_room_with(&mut writer, len, values, depth)
            }
            made => made,
        }
    }

    fn make_room_with(
        &self,
        writer: &mut Writer,
        len: usize,
        (cost, depth_of_values): (u64, Priority),
        depth: Priority,
    ) -> Result<()> {
        let (pending, pending_cost) = {
            let pipeline = self.pipeline.lock();
            (pipeline.pending.room(), pipeline.pending.cost)
        };
        while writer.room() < pending + len {
            self.add_segment(writer, depth)?;
        }
        self.reserve_zones(writer, pending_cost + cost, depth_of_values)?;
        self.pipeline.lock().update_room(writer);
        Ok(())
    }

    /// Reserves zones until `cost` bytes of values are guaranteed to fit.
    fn reserve_zones(&self, writer: &mut Writer, cost: u64, depth: Priority) -> Result<()> {
        while deferred::room(writer.reserved.len()) < cost {
            writer.reserved.push(self.engine.zones.reserve_zone(depth)?);
        }
        Ok(())
    }

    /// Reserves zones in advance if there is plenty of space: for the two windows of deferred
    /// values that may be pending, and one more; if values are held, for these as well.
    pub(crate) fn reserve_zones_ahead(&self) -> Result<()> {
        let windows = 3 * self.shares.window as u64;
        let held = if self.holds() { self.held_at_most() as u64 } else { 0 };
        let free = self.engine.zones.space().free_for_user;
        let Some(cost) = [windows + held, windows].into_iter().find(|cost| free >= 16 * cost)
        else {
            return Ok(());
        };
        let mut writer = self.writer.lock();
        self.reserve_zones(&mut writer, cost, Priority::User)?;
        self.pipeline.lock().update_room(&writer);
        Ok(())
    }

    /// Gives back the zones that were reserved in advance and are not needed. Returns whether there
    /// were any.
    pub(crate) fn return_reserved_zones(&self) -> bool {
        self.return_zones_of(&mut self.writer.lock())
    }

    /// Does the same as [`Log::return_reserved_zones`], except while the journal is written or
    /// synced: it never waits for the device.
    pub(crate) fn try_return_reserved_zones(&self) -> bool {
        self.writer.try_lock().is_some_and(|mut writer| self.return_zones_of(&mut writer))
    }

    fn return_zones_of(&self, writer: &mut Writer) -> bool {
        let mut pipeline = self.pipeline.lock();
        let needed = deferred::zones_for(pipeline.pending.cost);
        let too_many = writer.reserved.len() > needed;
        writer.reserved.truncate(needed);
        pipeline.update_room(writer);
        too_many
    }

    /// Lists one more segment in the manifest and gives it to the writer.
    pub(in crate::commit) fn add_segment(
        &self,
        writer: &mut Writer,
        depth: Priority,
    ) -> Result<()> {
        let (zone, pin) = match self.engine.zones.take_zone(Purpose::Journal, Priority::User) {
            Err(zones::Error::NoSpace) => {
                // The zone is taken from the reserve for merges: the journal must be cut short
                // soon.
                self.journal_tight.store(true, Ordering::Release);
                self.engine.zones.take_zone(Purpose::Journal, depth)?
            }
            taken => taken?,
        };
        let owned = self.list_segment(zone, pin)?;
        self.give_to(writer, vec![owned])
    }

    /// Lists a zone in the manifest as the journal's next segment.
    fn list_segment(&self, zone: ZoneId, pin: ZonePin) -> Result<Owned> {
        let mut manifest = self.engine.versions.manifest()?;
        let segment = Segment {
            number: manifest.state().next_segment,
            zone,
            epoch: self.engine.env.random(),
            end: None,
        };
        manifest.commit(vec![Edit::Segment(segment)])?;
        Ok(Owned::new(segment, pin))
    }

    /// Gives listed segments to the writer. Those that the writer cannot use any more are removed
    /// from the manifest.
    pub(super) fn give_to(&self, writer: &mut Writer, segments: Vec<Owned>) -> Result<()> {
        let late: Vec<Owned> = segments.into_iter().filter_map(|s| writer.add(s)).collect();
        if late.is_empty() {
            return Ok(());
        }
        let forget =
            late.iter().map(|s| Edit::ForgetSegment { number: s.segment.number }).collect();
        self.engine.versions.manifest()?.commit(forget)
    }

    /// Prepares a segment for the journal: its space is allocated on the host and written, so that
    /// no synced commit waits for that.
    pub(crate) fn prepare_segment(&self) -> Result<()> {
        if !self.journal || self.writer.lock().announce(self.stock(), 1) == 0 {
            return Ok(());
        }
        let prepared = self.empty_segment();
        let mut writer = self.writer.lock();
        writer.arrived(1);
        self.give_to(&mut writer, prepared?.into_iter().collect())
    }

    /// Makes a segment that the manifest lists. Returns `None` if a nearly full store has no zone
    /// for it. The caller must not hold the writer's lock, since this syncs.
    fn empty_segment(&self) -> Result<Option<Owned>> {
        let (zone, pin) = match self.engine.zones.take_zone(Purpose::Journal, Priority::User) {
            Ok(taken) => taken,
            Err(zones::Error::NoSpace) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let settle = self.zero_journal && self.synced_commits.load(Ordering::Relaxed);
        if settle {
            let zeros = vec![0; 1 << 20];
            for offset in (0..ZONE_SIZE).step_by(zeros.len()) {
                self.engine.zones.write(Purpose::Journal, zone.start() + offset, &zeros)?;
            }
        }
        let owned = self.list_segment(zone, pin)?;
        let settled = if settle { ZONE_SIZE } else { owned.settled };
        Ok(Some(Owned { settled, ..owned }))
    }

    /// Returns the number of prepared segments that the writer should have.
    pub(in crate::commit) fn stock(&self) -> usize {
        (self.shares.seal_at as u64 / SEGMENT_SIZE / 2).clamp(1, 8) as usize
    }
}
