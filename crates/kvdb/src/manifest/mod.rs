//! The manifest: a log of edits to the store's structure. The manifest begins with a checkpoint and
//! has its own zones, which the superblock's root lists. Each commit is one chunk, which is written
//! twice (see `stream`) and synced before it takes effect. When the last zone is full, and at every
//! opening, the manifest is rewritten in other zones as a checkpoint. The root then moves to the
//! new manifest; until then, the old manifest stays intact. If fewer bytes were appended since the
//! last checkpoint than the checkpoint takes, another zone is added instead of a rewrite. The bytes
//! that checkpoints write are therefore bounded by the bytes of the edits, whatever the size of the
//! state.

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

/// The version of the format of all data that is reachable from the root.
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
    /// that ends at this position is a close, nothing follows.
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

/// A manifest that was read from the device.
pub(crate) struct Loaded {
    pub root: Root,
    pub state: ManifestState,
    pub records: u64,
    /// The device addresses of unreadable copies of chunks whose other copy was read.
    pub damaged: Vec<u64>,
    /// The offset of the next chunk in the last zone.
    pub offset: u64,
    pub position: u64,
    /// The number of bytes of an edit that was being written when the store stopped.
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
        // Nothing follows a close, so the rest of the zone need not be searched. On a disk, the
        // search may take longer than all other steps of an opening.
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
    /// The offset of the next chunk in the last zone.
    offset: u64,
    /// The position of the next chunk in the stream.
    position: u64,
    /// Is `true` while an append is in progress. An append that fails may still be on the device
    /// and be valid.
    stained: bool,
    /// The number of bytes that the checkpoint at the beginning of the manifest takes in its zones,
    /// or 0 if this is not known. No zone is added if it is 0.
    checkpoint: u64,
}

impl Manifest {
    /// Writes `state` as a new manifest with the number after `number`, and moves the root to the
    /// new manifest. `zones` must have been started.
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

    /// Continues at the end of a loaded manifest if the store has no free zone to begin another
    /// manifest. The remains of a torn edit at the end are overwritten. Such an edit was incomplete
    /// and stays invalid.
    pub(crate) fn resume(
        zones: Arc<Zones>,
        env: Arc<dyn Env>,
        health: Arc<Health>,
        loaded: &Loaded,
        edits: Vec<Edit>,
    ) -> Result<Manifest> {
        // Sync first, since the edits that were read may not be durable yet.
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
            // Since the last close, the root states that the manifest ends here, but edits will
            // follow.
            manifest.vouch_for(position - 1)?;
        }
        manifest.commit(edits)?;
        Ok(manifest)
    }

    /// Returns the address range of the unused part of the manifest's last zone.
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

    /// Makes `edits` durable atomically. After `NoSpace`, the manifest is unchanged. Any other
    /// error stops the store, because it is unknown whether the edits are on the device.
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
                // The host lacks space that it had promised. The edit may nevertheless be on the
                // device and be valid. Write a new checkpoint, which leaves out the edit.
                if std::mem::take(&mut self.stained) {
                    self.rewrite().map_err(|e| self.health.fail("writing the manifest", &e))?;
                }
                Err(Error::NoSpace)
            }
            Err(e) => Err(self.health.fail("writing the manifest", &e)),
        }
    }

    /// Replaces the state with another one atomically, by writing a new manifest and moving the
    /// root to it.
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

    /// Returns the number of bytes that the manifest takes in its zones.
    fn bytes(&self) -> u64 {
        self.root.zones.len().saturating_sub(1) as u64 * ZONE_SIZE + self.offset
    }

    /// Returns two copies of the next chunk, which has `record`.
    fn chunk(&self, record: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes.extend_from_slice(record);
        chunk::seal(Kind::Manifest, &mut bytes, self.root.epoch, self.position, self.position);
        bytes.extend_from_within(..);
        bytes
    }

    /// Appends a chunk that does not fit into the last zone. The chunk becomes valid when the root
    /// lists its zone.
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

    /// Records in the root that the manifest is complete up to its current end. After this, an
    /// unreadable part before the end is damage and not a torn write.
    pub(crate) fn vouch(&mut self) -> Result<()> {
        self.vouch_for(self.position)
    }

    fn vouch_for(&mut self, position: u64) -> Result<()> {
        self.root.durable = position;
        self.zones
            .set_root(&self.root.encode())
            .map_err(|e| self.health.fail("writing the superblock", &e.into()))
    }

    /// Writes the state as a checkpoint into new zones, and moves the root to the checkpoint. The
    /// old zones are released afterwards.
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
            // No chunk of a checkpoint states that earlier chunks are durable. Only the root does.
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
            // Add dictionaries in large steps, since computing the size is expensive.
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
        // Load the manifest from the root that does not list the second zone yet, as after a power
        // cut.
        let before = load(&zones, &root).expect("what the first zone has");
        assert!(before.position < loaded.position && before.state.next_dictionary > first);
    }
}
