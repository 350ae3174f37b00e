//! The third phase of opening a store for writing: begins allocation, and writes a new manifest
//! that records the end of the journal.

use std::sync::Arc;

use env::Env;
use zones::{ZonePin, Zones};

use super::Journal;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::{Owned, Segment, Writer};
use crate::manifest::{self, Edit, Manifest};

/// Returns the manifest that records the journal's end, and the writer that continues after this
/// end. `segments` are the segments in the loaded manifest. `next_seq` is the number of the next
/// commit.
pub(super) fn resume(
    zones: &Arc<Zones>,
    env: &Arc<dyn Env>,
    health: &Arc<Health>,
    loaded: &manifest::Loaded,
    segments: Vec<(Segment, ZonePin)>,
    journal: &Journal,
    next_seq: u64,
) -> Result<(Manifest, Writer)> {
    let state = &loaded.state;
    for (purpose, addr) in &state.streams {
        zones.resume(*purpose, *addr);
    }
    if state.closed {
        zones.was_given_back(loaded.root.zones.iter().copied());
    }
    let segments =
        segments.into_iter().map(|(segment, pin)| again(zones, segment, pin, state.closed));
    let Divided { mut edits, old, fresh } =
        divide(segments.collect(), &journal.used, state.next_segment, &**env);
    zones.start();
    // A rollback can become durable before the last part of the journal that it makes void. If that
    // part was lost, its commit numbers are used again, and the new commits must not be void.
    let last = next_seq - 1;
    edits.extend(
        state
            .since
            .iter()
            .filter(|(_, since)| **since > last)
            .map(|(&dict, _)| Edit::Since { dict, seq: last }),
    );
    let mut next = state.clone();
    next.apply_all(edits.iter().cloned())?;
    next.closed = false;
    let begun =
        Manifest::begin(zones.clone(), env.clone(), health.clone(), next, loaded.root.number);
    let manifest = match begun {
        Err(Error::NoSpace) => {
            Manifest::resume(zones.clone(), env.clone(), health.clone(), loaded, edits)?
        }
        begun => begun?,
    };
    let mut writer = Writer::new(zones.clone(), journal.end);
    writer.keep_old(old);
    for segment in fresh {
        // The numbers ascend and are above the numbers of the old segments, so the writer takes
        // every segment.
        let _ = writer.add(segment);
    }
    Ok((manifest, writer))
}

/// Returns a segment in its state after an opening. In a store that was closed, the space of the
/// segment was returned to the host and is allocated again; data in the segment stays.
fn again(zones: &Zones, segment: Segment, pin: ZonePin, closed: bool) -> Owned {
    if closed {
        let reusable = zones.allocate_again(segment.zone);
        Owned { reusable, ..Owned::new(segment, pin) }
    } else {
        Owned::settled(segment, pin)
    }
}

/// The segments of the journal, divided by their use after a crash.
struct Divided {
    edits: Vec<Edit>,
    /// The segments that hold a part of the stream.
    old: Vec<Owned>,
    /// New segments in some of the other zones.
    fresh: Vec<Owned>,
}

/// Divides the segments. Segments that hold a part of the stream are kept, and their ends are
/// recorded. Some of the other segments become new segments, numbered from `number` on, since data
/// that a crash has left in a segment could be mistaken for a part of the following stream.
fn divide(segments: Vec<Owned>, used: &[Segment], mut number: u64, env: &dyn Env) -> Divided {
    let (mut edits, mut old, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    for owned in segments {
        let segment = owned.segment;
        if let Some(&segment) = used.iter().find(|s| s.number == segment.number) {
            edits.extend(
                segment.end.map(|position| Edit::SegmentEnds { number: segment.number, position }),
            );
            old.push(Owned { segment, ..owned });
            continue;
        }
        edits.push(Edit::ForgetSegment { number: segment.number });
        if fresh.len() < 2 && owned.reusable {
            let segment = Segment { number, zone: segment.zone, epoch: env.random(), end: None };
            number += 1;
            fresh.push(Owned { segment, ..owned });
        }
    }
    edits.extend(fresh.iter().map(|f| Edit::Segment(f.segment)));
    Divided { edits, old, fresh }
}
