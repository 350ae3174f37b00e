//! Moves values into the user's order while the store is quiet: those that commits have written out
//! of order since the last pass.
//!
//! A pass costs reads even if it finds nothing to do: the order is walked through, and the places
//! of all values are looked up. Aging is therefore measured by the bytes of large values that
//! commits have brought, which are counted as they are placed. A pass begins when these are an
//! eighth of the live data, and neither commits nor reads of clients have come for a while. It ends
//! as soon as they do, and the next one continues where it has ended.
//!
//! The writes of passes have a bound by the same measure: at most two bytes for each one that
//! commits have placed. So a byte is laid twice at most, unless its neighbours were written again.
//! Values in zones that snapshots use stay where they are, since their copies would take space of
//! their own.

use std::collections::BTreeSet;

use zones::Job;

use super::Defragmenter;
use super::order::{Course, Laid, ValueOrder};
use crate::background::activity::ClientWork;
use crate::dictionary::DictionaryId;
use crate::error::Result;

/// A pass begins when commits have placed one byte for this many live ones, and at least
/// [`AGED_LEAST`] bytes, since the last one.
const AGED_PART: u64 = 8;
const AGED_LEAST: u64 = 4 << 20;
/// The bytes that passes may write for each one that commits have placed.
const TIMES: u64 = 2;
/// The passes that clients may end one after the other although none of them has got any further.
/// Each walks from the beginning of the order to the ranges that are left. If clients read more
/// often than this takes, such walks would keep the device busy endlessly.
const IN_VAIN: u32 = 8;
/// The values that are copied before references are replaced, bytes. This is also what is still
/// written for when clients come.
const PORTION: u64 = 32 << 20;

/// The bytes that commits have brought since the store was opened, and those that passes may write
/// for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Aging {
    /// The bytes that commits had placed when the last pass began.
    seen: u64,
    /// The bytes that passes may still write.
    left: u64,
    /// The ranges of the order that the last pass has passed, if it did not come to the end.
    reached: u64,
    /// The bytes that commits had brought when passes continued after these ranges. Values of
    /// ranges that had been passed before may be among them.
    missed: u64,
    /// Clients have ended the last pass, and it is to continue without another byte.
    unfinished: bool,
    /// The number of passes that clients have ended since one has got further.
    in_vain: u32,
}

impl Aging {
    /// Returns whether a pass is due, if the store has `live` bytes and commits have placed
    /// `placed` bytes so far.
    fn is_due(&self, placed: u64, live: u64) -> bool {
        let fresh = placed.saturating_sub(self.seen);
        // The next pass finds what was missed only if it begins at the beginning.
        let missed = if self.reached == 0 { self.missed } else { 0 };
        self.unfinished || fresh.saturating_add(missed) >= AGED_LEAST.max(live / AGED_PART)
    }

    /// Notes that a pass begins.
    fn begin(&mut self, placed: u64) {
        let fresh = placed.saturating_sub(self.seen);
        self.seen = placed;
        self.missed = if self.reached == 0 { 0 } else { self.missed.saturating_add(fresh) };
        self.left = self.left.saturating_add(fresh.saturating_mul(TIMES));
        if !std::mem::take(&mut self.unfinished) {
            self.in_vain = 0;
        }
    }

    /// Notes that `written` bytes were written, and what was laid, if anything could be. The pass
    /// is unfinished if it was `disturbed` before it came to the end of the order.
    fn end(&mut self, written: u64, laid: Option<&Laid>, disturbed: bool) {
        self.left = self.left.saturating_sub(written);
        if let Some(laid) = laid {
            let reached = laid.reached.unwrap_or(0);
            let got_further = laid.copied > 0 || reached > self.reached;
            self.in_vain = if got_further { 0 } else { self.in_vain.saturating_add(1) };
            self.reached = reached;
            self.unfinished = disturbed && laid.reached.is_some() && self.in_vain < IN_VAIN;
        }
    }
}

impl Defragmenter {
    fn lays_when_quiet(&self) -> bool {
        let options = &self.engine.options;
        options.lay_when_quiet
            && !self.engine.inline
            && !options.read_only
            && self.order.lock().is_some()
            // Each value that is moved would be published again.
            && self.engine.zones.remote_table().is_none()
    }

    /// Returns whether a pass is requested, in progress or due.
    pub(super) fn is_to_lay(&self) -> bool {
        if !self.lays_when_quiet() {
            return self.is_laying_or(|| false);
        }
        let (placed, live) = (self.engine.counters.placed(), self.holes().live);
        self.is_laying_or(|| self.aging.lock().is_due(placed, live))
    }

    /// Returns whether enough was written since the last pass for another one.
    fn is_aged(&self) -> bool {
        if !self.lays_when_quiet() {
            return false;
        }
        let (placed, live) = (self.engine.counters.placed(), self.holes().live);
        self.aging.lock().is_due(placed, live)
    }

    /// Starts a pass if enough was written, and no client needs the store.
    pub(crate) fn look_for_aging(&self) {
        if self.is_aged()
            && self.activity.is_still()
            && !self.compactor.busy()
            && !self.is_requested()
        {
            self.request_laying();
        }
    }

    /// Makes a pass, which ends when clients or a defragmentation come.
    pub(super) fn lay_when_quiet(&self) -> Result<()> {
        let _job = Job::Laying.begin();
        let clients = self.activity.clients();
        let flushed = self.flusher.flush_all();
        let before = self.bytes_of_passes();
        let (left, skip) = {
            let mut aging = self.aging.lock();
            aging.begin(self.engine.counters.placed());
            (aging.left, aging.reached)
        };
        let laid = flushed.and_then(|()| match self.value_order() {
            Some((order, ordered)) => self.lay_from(&*order, &ordered, left, skip, clients),
            None => Ok(None),
        });
        let written = self.bytes_of_passes().saturating_sub(before);
        let disturbed = !self.gives_up_laying() && self.is_disturbed(clients);
        let done = laid.as_ref().ok().and_then(Option::as_ref);
        self.aging.lock().end(written, done, disturbed);
        if let Some(laid) = laid? {
            tracing::debug!("laid {} bytes of values, and wrote {written} bytes", laid.copied);
        }
        Ok(())
    }

    /// Lays values from the range `skip` of the order on, and copies at most `left` bytes of them.
    /// Returns `None` if there is no room, or if the key blocks weigh too much.
    fn lay_from(
        &self,
        order: &dyn ValueOrder,
        ordered: &BTreeSet<DictionaryId>,
        left: u64,
        skip: u64,
        clients: ClientWork,
    ) -> Result<Option<Laid>> {
        let dictionaries = self.followers(ordered);
        let Some(bounds) = self.bounds(&dictionaries, left, PORTION) else { return Ok(None) };
        let gives_up = || self.gives_up_laying();
        let ends = || self.gives_up_laying() || self.is_disturbed(clients);
        let kept = self.engine.snapshots.zones();
        let tell = |_: u64| {};
        let course =
            Course { evacuate: None, kept, skip, ends: &ends, gives_up: &gives_up, tell: &tell };
        self.pass(order, &dictionaries, bounds, course).map(Some)
    }

    fn gives_up_laying(&self) -> bool {
        self.engine.signals.stopping() || self.stopping()
    }

    /// Returns whether clients have done anything since they had done `clients`, or a
    /// defragmentation waits.
    fn is_disturbed(&self, clients: ClientWork) -> bool {
        self.is_requested() || self.activity.clients() != clients
    }

    /// Returns the bytes that passes have written.
    fn bytes_of_passes(&self) -> u64 {
        self.engine.zones.io().written_by(Job::Laying)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_pass_is_due_when_an_eighth_was_written_and_may_write_twice_as_much() {
        let mut aging = Aging::default();
        assert!(!aging.is_due(3 * MIB, 0), "too little for a walk");
        assert!(aging.is_due(4 * MIB, 0) && aging.is_due(4 * MIB, 32 * MIB));
        assert!(!aging.is_due(4 * MIB, 40 * MIB) && aging.is_due(5 * MIB, 40 * MIB));
        aging.begin(5 * MIB);
        assert_eq!(aging.left, 10 * MIB);
        assert!(!aging.is_due(5 * MIB, 0), "nothing was written since");
        aging.end(7 * MIB, Some(&Laid { copied: 6 * MIB, reached: None }), true);
        assert_eq!(aging, Aging { seen: 5 * MIB, left: 3 * MIB, ..Aging::default() });
    }

    #[test]
    fn passes_that_get_no_further_come_to_rest_until_more_is_written() {
        let mut aging = Aging::default();
        for placed in [8 * MIB, 12 * MIB] {
            let mut passes = 0;
            while aging.is_due(placed, 0) {
                aging.begin(placed);
                // The first one gets further.
                aging.end(0, Some(&Laid { copied: 0, reached: Some(70) }), true);
                passes += 1;
                assert!(passes <= 2 * IN_VAIN, "it comes to rest");
            }
            assert!(passes >= IN_VAIN, "a client who comes once is no reason to give up");
        }
        aging.begin(16 * MIB);
        aging.end(MIB, Some(&Laid { copied: MIB, reached: Some(70) }), true);
        assert!(aging.is_due(16 * MIB, 0), "it goes on within a long range");
    }

    #[test]
    fn what_came_while_a_pass_was_interrupted_is_a_reason_for_another_one() {
        let mut aging = Aging::default();
        aging.begin(8 * MIB);
        aging.end(MIB, Some(&Laid { copied: MIB, reached: Some(70) }), true);
        // The pass continues after the ranges in which this may be.
        aging.begin(13 * MIB);
        assert_eq!(aging.missed, 5 * MIB);
        aging.end(MIB, Some(&Laid { copied: MIB, reached: Some(90) }), false);
        assert!(!aging.is_due(13 * MIB, 0), "a further one would not begin at the beginning");
        aging.begin(17 * MIB);
        aging.end(MIB, Some(&Laid { copied: MIB, reached: None }), false);
        assert!(aging.is_due(17 * MIB, 72 * MIB) && !aging.is_due(17 * MIB, 80 * MIB));
        aging.begin(17 * MIB);
        aging.end(0, None, false);
        assert!(!aging.is_due(17 * MIB, 0), "it comes to rest, even if there is no room");
    }

    #[test]
    fn a_pass_that_clients_have_ended_goes_on_where_it_was() {
        let mut aging = Aging::default();
        aging.begin(8 * MIB);
        aging.end(MIB, Some(&Laid { copied: MIB, reached: Some(70) }), true);
        assert!(aging.is_due(8 * MIB, 1 << 40), "without another byte");
        aging.begin(8 * MIB);
        assert_eq!((aging.reached, aging.left), (70, 15 * MIB));
        // The pass has written as much as it may.
        aging.end(15 * MIB, Some(&Laid { copied: 14 * MIB, reached: Some(90) }), false);
        assert!(!aging.is_due(8 * MIB, 0));
        assert_eq!((aging.reached, aging.left), (90, 0));
        aging.begin(12 * MIB);
        aging.end(0, None, true);
        assert!(!aging.is_due(12 * MIB, 0), "there was no room");
        assert_eq!((aging.reached, aging.left), (90, 8 * MIB));
    }
}
