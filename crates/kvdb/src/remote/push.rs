//! Publishes the state of an open store: what its zones have that is not there yet, then the state,
//! then the head that names it. Whoever is cut off leaves the state before as it was, and what was
//! written is not written again.

use std::time::Duration;

use bytes::Bytes;
use env::Env;
use objects::Tag;
use zones::remote::{Known, Progress, Publication, ZoneObject};
use zones::{ZONE_SIZE, ZoneUse, Zones};

use super::head::{Head, StateName};
use super::state::PublishedState;
use super::{Error, RemoteStore, Result};
use crate::manifest::{Edit, ManifestState};

/// A publication notes what it has written after so long and so many bytes: what a later one does
/// not write again if this one is cut off.
const NOTE_AFTER: Duration = Duration::from_secs(10);
const NOTE_BYTES: u64 = 64 << 20;

/// How far a publication is.
pub type PushProgress = Progress;

/// The work that a publication took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushStats {
    /// The generation that is published now.
    pub generation: u64,
    /// Zones of the state.
    pub zones: u64,
    /// Objects with zones that were written.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the store's live data.
    pub live_bytes: u64,
}

impl Claim<'_> {
    /// Publishes `state`, whose zones are `uses`; the caller keeps these as they are. Only what is
    /// not there yet is written. Zones on their way take so much `memory`, bytes. `progress` is
    /// called now and then; an error of it ends the call.
    pub(crate) fn push(
        mut self,
        zones: &Zones,
        state: &ManifestState,
        uses: &ZoneUse,
        memory: usize,
        progress: &mut dyn FnMut(PushProgress) -> Result<()>,
    ) -> Result<PushStats> {
        let known = self.known()?;
        let first = ZoneObject { origin: self.head.origin, epoch: self.head.epoch, number: 0 };
        let mut noted = (self.env.monotonic(), 0);
        let mut failure = None;
        let how = Publication { objects: self.to.objects(), known: &known, first, memory };
        let mut step = |now: Progress, so_far: &dyn Fn() -> zones::Result<Known>| {
            progress(now)?;
            let (at, bytes) = noted;
            let time = self.env.monotonic();
            if time >= at + NOTE_AFTER && now.bytes >= bytes + NOTE_BYTES {
                self.note(so_far()?)?;
                noted = (time, now.bytes);
            }
            Ok(())
        };
        let published = zones.publish(uses, &how, &mut |now, so_far| {
            step(now, so_far).map_err(|e: Error| {
                let ended = zones::Error::Invalid(e.to_string());
                failure = Some(e);
                ended
            })
        });
        let published = match failure {
            Some(e) => return Err(e),
            None => published?,
        };
        let superblock = zones.superblock();
        let state = PublishedState {
            capacity: superblock.capacity,
            reserve_zones: superblock.reserve_zones,
            profile: superblock.profile,
            edits: Edit::encode_record(&state.checkpoint()).into(),
            known: published.known,
        };
        let generation = self.publish(&state)?;
        let Progress { objects, bytes, zones_total: zones, .. } = published.progress;
        let live_bytes = uses.iter().map(|(_, bytes)| bytes.min(ZONE_SIZE)).sum();
        Ok(PushStats { generation, zones, objects, bytes, live_bytes })
    }
}

/// The right to publish, until another one claims it.
pub(crate) struct Claim<'a> {
    env: &'a dyn Env,
    to: &'a RemoteStore,
    head: Head,
    tag: Tag,
    /// Numbers the next note of this epoch.
    notes: u32,
}

impl<'a> Claim<'a> {
    /// Raises the epoch of the head, or makes the first one.
    pub(crate) fn begin(
        env: &'a dyn Env,
        to: &'a RemoteStore,
        store: [u8; 16],
    ) -> Result<Claim<'a>> {
        let (before, mut head) = match to.tagged_head()? {
            Some((head, tag)) => (Some(tag), head),
            None => {
                let origin = random(env);
                let (generation, epoch, published) = (0, 0, 0);
                let (state, pending, nonce) = (None, None, [0; 16]);
                let head =
                    Head { generation, epoch, store, origin, state, pending, published, nonce };
                (None, head)
            }
        };
        if head.store != store {
            return Err(Error::Invalid(format!(
                "{} is another store: publish under another name",
                to.place()
            )));
        }
        head.epoch = head
            .epoch
            .checked_add(1)
            .ok_or_else(|| Error::Corrupt(format!("{} has no more epochs", to.place())))?;
        head.nonce = random(env);
        let tag = to.replace_head(before.as_ref(), &head)?;
        Ok(Claim { env, to, head, tag, notes: 0 })
    }

    /// Returns the pieces that lie there already, as the newest state and a publication that has
    /// not ended say.
    fn known(&self) -> Result<Known> {
        let mut all = Vec::new();
        for name in [&self.head.pending, &self.head.state].into_iter().flatten() {
            match self.to.get_state(name) {
                Ok(state) => all.push(state.known),
                // Then it is written again.
                Err(Error::Corrupt(why)) => tracing::warn!("what lies there is not known: {why}"),
                Err(e) => return Err(e),
            }
        }
        let mut all = all.into_iter();
        let Some(newest) = all.next() else { return Ok(Known::default()) };
        let Some(older) = all.next() else { return Ok(newest) };
        // Of each zone what was written last.
        let mut zones: Vec<_> = newest.table.zones().chain(older.table.zones()).collect();
        zones.sort_unstable();
        zones.dedup();
        let mut known = Known::default();
        for zone in zones {
            let is_new = !newest.table.pieces_of(zone).is_empty();
            let from = if is_new { &newest } else { &older };
            let first = from.table.pieces().partition_point(|piece| piece.zone < zone);
            let prints = from.fingerprints.get(first..).unwrap_or_default();
            for (piece, print) in from.table.pieces_of(zone).iter().zip(prints) {
                let object = from.table.object(piece);
                known.table.add(zone, piece.offset, piece.len, object, piece.at)?;
                known.fingerprints.push(*print);
            }
        }
        Ok(known)
    }

    fn replace(&mut self, head: Head) -> Result<()> {
        let head = Head { nonce: random(self.env), ..head };
        self.tag = self.to.replace_head(Some(&self.tag), &head)?;
        self.head = head;
        Ok(())
    }

    /// Notes what was written so far.
    fn note(&mut self, known: Known) -> Result<()> {
        let note = PublishedState {
            capacity: None,
            reserve_zones: 0,
            profile: zones::Profile::Unknown,
            edits: Bytes::new(),
            known,
        };
        let name = self.name('p', self.notes)?;
        self.notes += 1;
        let name = self.to.put_state(name, &note)?;
        let before = self.head.pending.clone();
        self.replace(Head { pending: Some(name), ..self.head.clone() })?;
        self.drop_note(before);
        Ok(())
    }

    /// Makes `state` the newest one.
    fn publish(&mut self, state: &PublishedState) -> Result<u64> {
        let name = self.to.put_state(self.name('c', 0)?, state)?;
        let generation = self.head.generation.checked_add(1).ok_or_else(|| {
            Error::Corrupt(format!("{} has no more generations", self.to.place()))
        })?;
        let published = self.env.exact_wall().as_nanos() as u64;
        let before = self.head.pending.clone();
        let (state, pending) = (Some(name), None);
        self.replace(Head { generation, published, state, pending, ..self.head.clone() })?;
        self.drop_note(before);
        Ok(generation)
    }

    /// No head names it any more; if it stays, it is in nobody's way.
    fn drop_note(&self, note: Option<StateName>) {
        if let Some(note) = note
            && let Err(e) = self.to.objects().delete(&note.key)
        {
            tracing::debug!("a note of a publication stays: {e}");
        }
    }

    fn name(&self, kind: char, number: u32) -> Result<objects::Key> {
        self.to.key(kind, format_args!("{}-{number}", self.head.epoch))
    }
}

fn random(env: &dyn Env) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&env.random().to_le_bytes());
    id[8..].copy_from_slice(&env.random().to_le_bytes());
    id
}
