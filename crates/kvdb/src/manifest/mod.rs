//! The manifest: a log of edits to the store's structure, in zones of its own, which begins with a
//! checkpoint; the superblock's root lists the zones. Each commit is one chunk, written twice (see
//! `stream`) and synced before it takes effect. When its zone is full, and at every opening, the
//! manifest is rewritten elsewhere as a checkpoint, and the root moves there; the old manifest
//! stays intact until then. If less was appended since the last checkpoint than the checkpoint's
//! size, another zone is added instead. So the bytes that checkpoints write are bounded by those of
//! the edits, however large the state is.

mod dictionaries;
mod edit;
pub(crate) mod fork_bases;
mod state;

use std::sync::Arc;

use env::Env;
use zones::{Priority, Purpose, SECTOR, ZONE_SIZE, ZoneId, ZonePin, ZoneUse, Zones};

pub(crate) use dictionaries::{dictionary, put_dictionary, text};
pub(crate) use edit::{Edit, JournalStart};
pub(crate) use state::{
    BranchedDictionaries, Dictionaries, DictionaryState, ManifestState, OfBranch, SnapshotState,
    SnapshotStates, make_branches,
};

use crate::error::{Error, Result};
use crate::health::Health;
use crate::log::chunk::{self, HEADER, Kind, MAX_PIECE};
use crate::log::codec::{Decoder, put_varint};
use crate::log::records::Records;
use crate::log::stream::{StreamPart, StreamReader};

/// Version of the format of everything that is reachable from the root.
const FORMAT: u8 = 1;

/// The root in the superblock.
///
/// ```text
/// u8 format (1) · u64 number of the manifest, grows · u64 epoch of its chunks · u64 durable ·
/// varint count · varint zone each
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub number: u64,
    pub epoch: u64,
    /// The position up to which the manifest was durable when the root was written. If the edit
    /// that ends there is a close, nothing follows.
    pub durable: u64,
    pub zones: Vec<ZoneId>,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.durable.to_le_bytes());
        put_varint(&mut out, self.zones.len() as u64);
        self.zones.iter().for_each(|z| put_varint(&mut out, u64::from(z.0)));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Root> {
        let mut r = Decoder::new(bytes, "the superblock's root");
        let format = r.u8()?;
        if format != FORMAT {
            return Err(Error::Corrupt(format!(
                "the store's database has format {format}, this program reads {FORMAT}: use a newer one"
            )));
        }
        let (number, epoch, durable) = (r.u64()?, r.u64()?, r.u64()?);
        if number >= 1 << 60 {
            return Err(r.corrupt("its number is out of range"));
        }
        let zones = (0..r.count(1)?).map(|_| r.varint_u32().map(ZoneId)).collect::<Result<_>>()?;
        Ok(Root { number, epoch, durable, zones })
    }

    pub(crate) fn parts(&self) -> Vec<StreamPart> {
        self.zones.iter().map(|&zone| StreamPart { zone, epoch: self.epoch, end: None }).collect()
    }

    /// Returns the zones that hold the manifest.
    pub(crate) fn uses(&self) -> ZoneUse {
        let mut uses = ZoneUse::new();
        self.zones.iter().for_each(|&z| uses.merge(&ZoneUse::whole(z)));
        uses
    }
}

/// A manifest as found on the device.
pub(crate) struct Loaded {
    pub root: Root,
    pub state: ManifestState,
    pub records: u64,
    /// Device addresses of unreadable copies of chunks; the other copy was read.
    pub damaged: Vec<u64>,
    /// The offset of the next chunk in the last zone.
    pub offset: u64,
    pub position: u64,
    /// Bytes of an edit that was being written when the store stopped.
    pub torn: u64,
}

/// Reads the manifest to which the root refers.
pub(crate) fn load(zones: &Zones, root: &[u8]) -> Result<Loaded> {
    let root = Root::decode(root)?;
    let parts = root.parts();
    let mut state = ManifestState::new();
    let mut reader = StreamReader::new(zones, Kind::Manifest, &parts, 0, 0);
    let mut records = Records::new(0);
    let mut count = 0;
    while let Some((_, piece)) = reader.next()? {
        records.push(&piece, |_, record| {
            count += 1;
            state.apply_record(&record)?;
            Ok(true)
        })?;
        // After a close nothing follows: the rest of the zone need not be searched, which may take
        // a disk longer than all other steps of an opening.
        reader.set_closed(state.closed && records.position() == root.durable);
    }
    let tail = reader.tail()?;
    if count == 0 || records.position() < root.durable {
        let place = root.zones.first().map_or(0, |z| z.start());
        let (end, durable) = (records.position(), root.durable);
        return Err(Error::Corrupt(format!(
            "the manifest at device address {place:#x} ends at {end}, but was durable up to {durable}"
        )));
    }
    let damaged = reader.damaged(root.durable >= records.position());
    let torn = tail.torn + records.unfinished();
    let (offset, position) = (reader.offset(), records.position());
    Ok(Loaded { root, state, records: count, damaged, offset, position, torn })
}

/// The manifest of an open store, for writing.
pub(crate) struct Manifest {
    zones: Arc<Zones>,
    env: Arc<dyn Env>,
    health: Arc<Health>,
    state: ManifestState,
    root: Root,
    /// Pins the zones of `root`.
    pins: Vec<ZonePin>,
    /// Offset of the next chunk in the last zone.
    offset: u64,
    /// Position of the next chunk in the stream.
    position: u64,
    /// Set while an append is in progress: if it fails, it may still be on the device and be valid.
    stained: bool,
    /// Bytes that the checkpoint at its beginning takes in its zones. 0 if that is not known; then
    /// no zone is added.
    checkpoint: u64,
}

impl Manifest {
    /// Writes `state` as a new manifest with the number after `number`, and moves the root there.
    /// Zones must have been started.
    pub(crate) fn begin(
        zones: Arc<Zones>,
        env: Arc<dyn Env>,
        health: Arc<Health>,
        state: ManifestState,
        number: u64,
    ) -> Result<Manifest> {
        let root = Root { number, epoch: 0, durable: 0, zones: Vec::new() };
        let mut manifest = Manifest {
            zones,
            env,
            health,
            state,
            root,
            pins: Vec::new(),
            offset: 0,
            position: 0,
            stained: false,
            checkpoint: 0,
        };
        manifest.rewrite()?;
        Ok(manifest)
    }

    /// Continues at the end of a loaded manifest, when there is no zone to begin another one. The
    /// rest of a torn edit there is overwritten; it was incomplete, and stays invalid.
    pub(crate) fn resume(
        zones: Arc<Zones>,
        env: Arc<dyn Env>,
        health: Arc<Health>,
        loaded: &Loaded,
        edits: Vec<Edit>,
    ) -> Result<Manifest> {
        // The edits that were read may not be durable yet.
        zones.sync()?;
        let pins = vec![zones.pin(&loaded.root.uses())?];
        let (root, state) = (loaded.root.clone(), loaded.state.clone());
        let (offset, position) = (loaded.offset, loaded.position);
        let (stained, checkpoint) = (false, 0);
        let mut manifest = Manifest {
            zones,
            env,
            health,
            state,
            root,
            pins,
            offset,
            position,
            stained,
            checkpoint,
        };
        if manifest.root.durable == position {
            // The root vouches for this end since a close, but edits will follow it.
            manifest.vouch_for(position - 1)?;
        }
        manifest.commit(edits)?;
        Ok(manifest)
    }

    /// Returns the address range of the unused rest of the manifest's last zone.
    pub(crate) fn unused(&self) -> Option<(u64, u64)> {
        let zone = self.root.zones.last()?;
        (self.offset < ZONE_SIZE).then(|| (zone.start() + self.offset, zone.end()))
    }

    /// Returns the manifest's root, and the position up to which the manifest is durable.
    pub(crate) fn place(&self) -> (Root, u64) {
        (self.root.clone(), self.position)
    }

    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Makes `edits` durable, all or none. `NoSpace` leaves everything as it was; any other failure
    /// stops the store, because it is unknown whether the edits are on the device.
    pub(crate) fn commit(&mut self, edits: Vec<Edit>) -> Result<()> {
        self.health.check()?;
        let mut next = self.state.clone();
        next.apply_all(edits.iter().cloned())?;
        let record = Edit::encode_all(&edits);
        let before = std::mem::replace(&mut self.state, next);
        let done = if record.len() <= MAX_PIECE
            && self.offset + 2 * chunk::size(record.len()) <= ZONE_SIZE
        {
            self.append(record)
        } else if record.len() <= MAX_PIECE && self.bytes() < 2 * self.checkpoint {
            self.append_in_next_zone(record)
        } else {
            self.rewrite()
        };
        match done {
            Ok(()) => Ok(()),
            Err(Error::NoSpace) => {
                self.state = before;
                // The host lacks space that it had promised. A part of the edit may be on the
                // device nevertheless, and would be valid. A new checkpoint leaves it out.
                if std::mem::take(&mut self.stained) {
                    self.rewrite().map_err(|e| self.health.fail("writing the manifest", &e))?;
                }
                Err(Error::NoSpace)
            }
            Err(e) => Err(self.health.fail("writing the manifest", &e)),
        }
    }

    /// Replaces the state by another one, atomically: in a new manifest, to which the root moves.
    pub(crate) fn replace(&mut self, state: ManifestState) -> Result<()> {
        self.health.check()?;
        let before = std::mem::replace(&mut self.state, state);
        match self.rewrite() {
            Ok(()) => Ok(()),
            Err(Error::NoSpace) => {
                self.state = before;
                Err(Error::NoSpace)
            }
            Err(e) => Err(self.health.fail("writing the manifest", &e)),
        }
    }

    /// Returns how many bytes the manifest takes in its zones.
    fn bytes(&self) -> u64 {
        self.root.zones.len().saturating_sub(1) as u64 * ZONE_SIZE + self.offset
    }

    /// Returns the next chunk, twice.
    fn chunk(&self, record: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes.extend_from_slice(record);
        chunk::seal(Kind::Manifest, &mut bytes, self.root.epoch, self.position, self.position);
        bytes.extend_from_within(..);
        bytes
    }

    /// Appends a chunk that does not fit into the last zone. It becomes valid when the root lists
    /// its zone.
    fn append_in_next_zone(&mut self, record: Vec<u8>) -> Result<()> {
        let bytes = self.chunk(&record);
        let (zone, pin) = self.zones.take_zone(Purpose::Manifest, Priority::Last)?;
        self.zones.write(Purpose::Manifest, zone.start(), &bytes)?;
        self.zones.sync()?;
        self.root.zones.push(zone);
        self.pins.push(pin);
        (self.offset, self.position) = (bytes.len() as u64, self.position + record.len() as u64);
        self.vouch()
    }

    fn append(&mut self, record: Vec<u8>) -> Result<()> {
        let len = record.len() as u64;
        let bytes = self.chunk(&record);
        let zone = self.root.zones[self.root.zones.len() - 1];
        self.stained = true;
        self.zones.write(Purpose::Manifest, zone.start() + self.offset, &bytes)?;
        self.zones.sync()?;
        self.stained = false;
        self.offset += bytes.len() as u64;
        self.position += len;
        Ok(())
    }

    /// Notes in the root that the manifest is complete up to its end: from here on, an unreadable
    /// part is damage and not a torn write.
    pub(crate) fn vouch(&mut self) -> Result<()> {
        self.vouch_for(self.position)
    }

    fn vouch_for(&mut self, position: u64) -> Result<()> {
        self.root.durable = position;
        self.zones
            .set_root(&self.root.encode())
            .map_err(|e| self.health.fail("writing the superblock", &e.into()))
    }

    /// Writes the state as a checkpoint into fresh zones and moves the root there. The old zones
    /// are released afterwards.
    fn rewrite(&mut self) -> Result<()> {
        let record = Edit::with_length(&self.state.checkpoint_record());
        let epoch = self.env.random();
        let durable = record.len() as u64;
        let mut root = Root { number: self.root.number + 1, epoch, durable, zones: Vec::new() };
        let mut pins = Vec::new();
        let (mut offset, mut done) = (ZONE_SIZE, 0);
        while done < record.len() {
            if offset + 2 * SECTOR > ZONE_SIZE {
                let (zone, pin) = self.zones.take_zone(Purpose::Manifest, Priority::Last)?;
                root.zones.push(zone);
                pins.push(pin);
                offset = 0;
            }
            let room = (ZONE_SIZE - offset) / (2 * SECTOR) * SECTOR;
            let piece = (record.len() - done).min(MAX_PIECE).min(room as usize - HEADER);
            let mut bytes = vec![0; HEADER];
            bytes.extend_from_slice(&record[done..done + piece]);
            // The first chunk begins a stream; only the root vouches for the chunks after it.
            chunk::seal(Kind::Manifest, &mut bytes, epoch, done as u64, 0);
            bytes.extend_from_within(..);
            self.zones.write(
                Purpose::Manifest,
                root.zones[root.zones.len() - 1].start() + offset,
                &bytes,
            )?;
            offset += bytes.len() as u64;
            done += piece;
        }
        self.zones.sync()?;
        // If this fails, even with `NoSpace`, it is unknown which root is on the device.
        self.zones
            .set_root(&root.encode())
            .map_err(|e| self.health.fail("writing the superblock", &e.into()))?;
        (self.root, self.offset, self.position) = (root, offset, record.len() as u64);
        self.pins = pins;
        self.checkpoint = self.bytes();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use zones::MemoryDevice;

    use super::*;
    use crate::DictionaryOptions;
    use crate::dictionary::{DictionaryId, DictionaryInfo};

    /// The checkpoint leaves room in its zone for only one or two edits.
    #[test]
    fn a_large_checkpoint_is_not_written_for_every_few_edits() {
        let dictionary = |id: u32, name: String| {
            let (branch, options) = (String::new(), DictionaryOptions::default());
            Edit::Dictionary(DictionaryInfo {
                id: DictionaryId(id),
                name,
                branch,
                options,
                short_outside: false,
            })
        };
        let mut state = ManifestState::new();
        let names = |len: usize| (1..).map(move |id| dictionary(id, format!("{id:0len$}")));
        let size = |state: &ManifestState| Edit::encode_all(&state.checkpoint()).len() as u64;
        let full = ZONE_SIZE / 2 - 4 * SECTOR;
        let mut more = names(2000);
        while size(&state) + 2100 < full {
            // In steps, since computing the size is expensive.
            for edit in more.by_ref().take(((full - size(&state)) / 2100) as usize) {
                state.apply(edit).expect("applied");
            }
        }
        let zones = zones::Zones::format_as(
            Arc::new(MemoryDevice::new()),
            zones::FormatOptions::default(),
            [1; 16],
        )
        .expect("made");
        zones.start();
        let (env, health) = (Arc::new(Simulated::new(1)), Arc::<Health>::default());
        let mut manifest = Manifest::begin(zones.clone(), env, health, state, 0).expect("written");
        assert_eq!(manifest.root.zones.len(), 1, "the test fills one zone");
        assert!(manifest.offset + 16 * SECTOR > ZONE_SIZE, "it leaves {}", manifest.offset);
        let root = manifest.root.encode();
        let written = || zones.io().total().write_bytes;
        let before = written();
        let first = manifest.state().next_dictionary;
        for id in first..first + 500 {
            manifest.commit(vec![dictionary(id, id.to_string())]).expect("written");
            manifest.commit(vec![Edit::DropDictionary(DictionaryId(id))]).expect("written");
        }
        let edits = 1000 * 2 * SECTOR;
        assert!(written() - before < 2 * edits, "{} for {edits}", written() - before);
        assert_eq!(manifest.root.zones.len(), 2);
        let loaded = load(&zones, &manifest.root.encode()).expect("loaded");
        assert_eq!(loaded.state.dictionaries, manifest.state.dictionaries);
        assert_eq!((loaded.offset, loaded.position), (manifest.offset, manifest.position));
        // Load from the root that does not list the second zone yet, as after a power cut.
        let before = load(&zones, &root).expect("what the first zone has");
        assert!(before.position < loaded.position && before.state.next_dictionary > first);
    }
}
