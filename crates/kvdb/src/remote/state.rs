//! A published state as an object: the content of the manifest, and the locations of its zones. The
//! note of a publication has the same format, but contains only the locations.

use bytes::Bytes;
use objects::{Created, ObjectsError, Part, Patience, create, get_patiently};
use zones::remote::{FirstReads, Known, ZoneTable};
use zones::{Profile, crc32c};

use super::changes::{StateName, StateObject, changed};
use super::head::{newer, opened, seal};
use super::{Key, RemoteStore};
use crate::error::{Error, Result};
use crate::log::codec::{Decoder, put_bytes, put_varint};
use crate::manifest::ManifestState;

const MAGIC: [u8; 8] = *b"KVFSSTAT";
/// The version of a state without and with first reads.
const VERSION: u32 = 1;
const VERSION_WITH_FIRST: u32 = 2;
/// Maximum number of reserved zones.
const MOST_RESERVED: u32 = 1 << 12;
/// Maximum bytes of a state object, enough for a store of some terabytes.
const MOST: u64 = 256 << 20;

/// A state in object storage.
#[derive(Clone, Debug)]
pub(crate) struct PublishedState {
    /// The capacity, reserve and profile from the superblock of the store that published the state.
    pub capacity: Option<u64>,
    pub reserve_zones: u32,
    pub profile: Profile,
    /// The manifest edits that build the store from an empty one. The note of a publication has
    /// none.
    pub edits: Bytes,
    pub known: Known,
    /// The parts of the zones that a store opened from this state reads first.
    pub first: FirstReads,
}

impl PublishedState {
    /// Returns the manifest state that the edits build.
    pub(crate) fn manifest(&self) -> Result<ManifestState> {
        let mut state = ManifestState::new();
        state.apply_record(&self.edits)?;
        Ok(state)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let version = if self.first.is_empty() { VERSION } else { VERSION_WITH_FIRST };
        body.extend_from_slice(&version.to_le_bytes());
        put_varint(&mut body, self.capacity.unwrap_or(0));
        put_varint(&mut body, u64::from(self.reserve_zones));
        body.push(self.profile as u8);
        put_bytes(&mut body, &self.edits);
        if !self.first.is_empty() {
            self.first.encode(&mut body);
        }
        self.known.table.encode(&mut body);
        self.known.fingerprints.iter().for_each(|print| body.extend_from_slice(print));
        seal(MAGIC, &body)
    }

    /// Decodes the bytes of a state object.
    pub(crate) fn decode(bytes: &Bytes) -> Result<PublishedState> {
        const WHAT: &str = "a state in object storage";
        let mut r = Decoder::new(opened(MAGIC, WHAT, bytes)?, WHAT);
        let version = r.u32()?;
        if !(VERSION..=VERSION_WITH_FIRST).contains(&version) {
            return Err(newer(version));
        }
        let (capacity, reserve_zones) = (r.varint()?, r.varint_u32()?);
        if reserve_zones > MOST_RESERVED {
            return Err(r.corrupt("its reserve is larger than any store has"));
        }
        let profile = match r.u8()? {
            0 => Profile::Unknown,
            1 => Profile::SolidState,
            2 => Profile::HardDisk,
            _ => return Err(r.corrupt("it names an unknown profile")),
        };
        let edits = bytes.slice_ref(r.bytes()?);
        let mut rest = r.rest();
        let first = match version {
            VERSION_WITH_FIRST => FirstReads::decode(&mut rest)?,
            _ => FirstReads::default(),
        };
        let table = ZoneTable::decode(&mut rest)?;
        let pieces = table.pieces().len();
        if rest.len() != 16 * pieces {
            return Err(Error::Corrupt(format!("{WHAT} has no fingerprint for each piece")));
        }
        let prints = rest.chunks_exact(16).map(|print| std::array::from_fn(|i| print[i]));
        let known = Known { table, fingerprints: prints.collect() };
        let capacity = Some(capacity).filter(|&bytes| bytes > 0);
        Ok(PublishedState { capacity, reserve_zones, profile, edits, known, first })
    }
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    let Ok(state) = PublishedState::decode(&seal(MAGIC, data).into()) else { return };
    let again = PublishedState::decode(&state.encode().into()).map(|again| again.encode());
    assert_eq!(again.ok(), Some(state.encode()));
    std::hint::black_box(state.manifest().is_ok());
}

impl RemoteStore {
    /// Writes the note of a publication under an unused name, and returns that name.
    pub(super) fn put_note(&self, key: Key, note: &PublishedState) -> Result<StateObject> {
        self.put_object(key, note.encode().into())
    }

    /// Stores the state that follows `before`, and returns its name. If the state is small or has
    /// few changes, the name itself contains it and is stored in the head; otherwise an object is
    /// written under an unused name.
    pub(super) fn put_state(
        &self,
        key: Key,
        state: &PublishedState,
        before: Option<&StateName>,
    ) -> Result<StateName> {
        let bytes = Bytes::from(state.encode());
        if let Some(name) = self.kept.name_in_head(before, &bytes, self.in_head) {
            return Ok(name);
        }
        let name = self.put_object(key, bytes.clone())?;
        self.kept.keep(&name, &bytes);
        Ok(name.into())
    }

    fn put_object(&self, key: Key, bytes: Bytes) -> Result<StateObject> {
        let (len, checksum) = (bytes.len() as u64, crc32c(&bytes));
        if len > MOST {
            return Err(Error::Invalid(format!(
                "the description of the store takes {len} bytes; at most {MOST} can be published"
            )));
        }
        match create(&**self.objects(), &key, bytes, Patience::default())? {
            Created::Done(_) => Ok(StateObject { key, len, checksum }),
            Created::Taken(_) => Err(Error::Overtaken(self.place())),
        }
    }

    /// Reads a state that the head names.
    pub(crate) fn get_state(&self, name: &StateName) -> Result<PublishedState> {
        let object = match &name.object {
            None => Bytes::new(),
            Some(object) => self.state_object(object)?,
        };
        let bytes = changed(object, name.changes.as_ref())
            .map_err(|e| Error::Corrupt(format!("{}: {e}", self.place())))?;
        PublishedState::decode(&bytes)
    }

    /// Reads the note of an unfinished publication.
    pub(crate) fn get_note(&self, name: &StateObject) -> Result<PublishedState> {
        PublishedState::decode(&self.get_object(name)?)
    }

    /// Drops the cached object with a state that was last read or written.
    pub(super) fn forget_object(&self) {
        self.kept.forget();
    }

    fn state_object(&self, name: &StateObject) -> Result<Bytes> {
        if let Some(bytes) = self.kept.get(name) {
            return Ok(bytes);
        }
        let bytes = self.get_object(name)?;
        self.kept.keep(name, &bytes);
        Ok(bytes)
    }

    fn get_object(&self, name: &StateObject) -> Result<Bytes> {
        let damaged = |why: String| {
            Error::Corrupt(format!("the state {} of {} {why}", name.key, self.place()))
        };
        if name.len > MOST {
            return Err(damaged(format!("would have {} bytes", name.len)));
        }
        let part = Part::Range(0..name.len.saturating_add(1));
        let got = get_patiently(&**self.objects(), &name.key, part, Patience::default());
        let object = got.map_err(|e| match e {
            ObjectsError::NotFound { .. } => damaged("is missing".into()),
            ObjectsError::Damaged { .. } => damaged("cannot be decrypted".into()),
            other => other.into(),
        })?;
        if object.bytes.len() as u64 != name.len || crc32c(&object.bytes) != name.checksum {
            return Err(damaged("is not the one that the head names".into()));
        }
        Ok(object.bytes)
    }
}

#[cfg(test)]
mod tests {
    use env::Random;
    use zones::ZoneId;
    use zones::remote::ZoneObject;

    use super::*;

    fn sample() -> PublishedState {
        let mut known = Known::default();
        let object = ZoneObject { origin: [3; 16], epoch: 1, number: 4 };
        known.table.add(ZoneId(5), 0, 1000, object, 0).expect("in order");
        known.fingerprints.push([8; 16]);
        PublishedState {
            capacity: None,
            reserve_zones: 8,
            profile: Profile::HardDisk,
            edits: Bytes::from_static(b"edits"),
            known,
            first: FirstReads::decode(&mut &[1, 40, 2, 7, 8][..]).expect("of two bytes"),
        }
    }

    #[test]
    fn it_comes_back_and_damage_never_panics() {
        let bytes = sample().encode();
        let again = PublishedState::decode(&Bytes::from(bytes.clone())).expect("a state");
        assert_eq!(again.encode(), bytes);
        let body = &bytes[12..];
        let mut random = Random::new(4);
        for _ in 0..20_000 {
            let mut bad = body.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bad.len() as u64) as usize;
                bad[at] = random.number() as u8;
            }
            if random.one_in(3) {
                bad.truncate(random.below(bad.len() as u64) as usize);
            }
            if let Ok(state) = PublishedState::decode(&Bytes::from(seal(MAGIC, &bad))) {
                let _ = state.manifest();
            }
        }
    }
}
