//! States that are stored in a head: a small state as a whole, or a larger one as the changes to a
//! state in an object. A small publication then needs no separate object for its state.
//!
//! The bytes are a zstd frame that uses the content of the object as a prefix dictionary.
//! Consecutive states are nearly the same bytes, so the frame is short.

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use objects::Key;
use zones::crc32c;

use crate::error::{Error, Result};
use crate::log::codec::{Decoder, put_bytes, put_varint};

/// Maximum bytes of changes in a head, or of a whole state in a head.
pub(super) const MOST_CHANGES: usize = 32 << 10;
/// Maximum bytes of a state that is compressed to see whether it fits into a head as a whole.
const MOST_WHOLE: usize = 256 << 10;
/// Maximum bytes of a state that is kept in memory, to make or apply changes to it. Larger states
/// are objects.
const MOST_KEPT: usize = 4 << 20;
/// The zstd window, which is large enough for two states of [`MOST_KEPT`] bytes.
const WINDOW_LOG: u32 = 23;
const LEVEL: i32 = 3;

/// Names a state and identifies its content. At least one of the two fields is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateName {
    /// The object that contains the state, or to which the changes apply. `None` means that the
    /// changes apply to empty bytes.
    pub object: Option<StateObject>,
    /// The changes to apply to the object, if there are any.
    pub changes: Option<StateChanges>,
}

/// Names an object with a state or with the note of a publication, and identifies its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateObject {
    /// The key of the object.
    pub key: Key,
    /// The length of the object, bytes.
    pub len: u64,
    /// CRC-32C of the object.
    pub checksum: u32,
}

/// The changes that lead from one state to another.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StateChanges {
    /// Length in bytes and CRC-32C of the state after the changes.
    len: u32,
    checksum: u32,
    frame: Bytes,
}

/// Identifies a state in a few bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StateMark {
    pub object: Option<StateObject>,
    /// Length in bytes and CRC-32C of the state after the changes, if the head holds changes.
    pub changed: Option<(u32, u32)>,
}

impl fmt::Debug for StateChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateChanges { len, checksum, frame } = self;
        write!(f, "StateChanges({} bytes, to {len} bytes with checksum {checksum:#x})", frame.len())
    }
}

impl From<StateObject> for StateName {
    fn from(object: StateObject) -> StateName {
        StateName { object: Some(object), changes: None }
    }
}

impl From<StateObject> for StateMark {
    fn from(object: StateObject) -> StateMark {
        StateMark { object: Some(object), changed: None }
    }
}

impl StateName {
    pub(super) fn mark(&self) -> StateMark {
        let changed = self.changes.as_ref().map(|changes| (changes.len, changes.checksum));
        StateMark { object: self.object.clone(), changed }
    }
}

impl StateChanges {
    /// Returns the changes that lead from `before` to `after`, if they take at most `most` bytes.
    pub(super) fn between(before: &[u8], after: &[u8], most: usize) -> Option<StateChanges> {
        let frame = compress(before, after).ok().filter(|frame| frame.len() <= most)?;
        let (len, checksum) = (u32::try_from(after.len()).ok()?, crc32c(after));
        Some(StateChanges { len, checksum, frame: frame.into() })
    }

    /// Applies the changes to the bytes that they were made from. Returns an error for any other
    /// bytes.
    fn apply(&self, before: &[u8]) -> Result<Bytes> {
        let damaged = |why: &str| Error::Corrupt(format!("the changes to a state {why}"));
        let mut after = Vec::new();
        let decoder = zstd::stream::read::Decoder::with_ref_prefix(&*self.frame, before);
        let read = decoder.and_then(|mut decoder| {
            decoder.window_log_max(WINDOW_LOG)?;
            decoder.take(u64::from(self.len) + 1).read_to_end(&mut after)
        });
        read.map_err(|e| damaged(&format!("cannot be read: {e}")))?;
        if after.len() != self.len as usize || crc32c(&after) != self.checksum {
            return Err(damaged("do not lead to the state that they are to lead to"));
        }
        Ok(after.into())
    }

    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        put_varint(body, u64::from(self.len));
        body.extend_from_slice(&self.checksum.to_le_bytes());
        put_bytes(body, &self.frame);
    }

    pub(super) fn decode(r: &mut Decoder<'_>) -> Result<StateChanges> {
        let (len, checksum, frame) = (r.varint_u32()?, r.u32()?, r.bytes()?);
        if frame.len() > MOST_CHANGES || len as usize > MOST_KEPT {
            return Err(r.corrupt("the changes to a state are too large"));
        }
        Ok(StateChanges { len, checksum, frame: Bytes::copy_from_slice(frame) })
    }
}

fn compress(before: &[u8], after: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(Vec::new(), LEVEL, before)?;
    if !before.is_empty() {
        encoder.window_log(WINDOW_LOG)?;
        encoder.long_distance_matching(true)?;
    }
    encoder.set_pledged_src_size(Some(after.len() as u64))?;
    encoder.write_all(after)?;
    encoder.finish()
}

impl StateMark {
    /// Appends a mark, or a marker that there is none.
    pub fn encode(mark: Option<&StateMark>, body: &mut Vec<u8>) {
        put_object(body, mark.and_then(|mark| mark.object.as_ref()));
        let changed = mark.and_then(|mark| mark.changed);
        body.push(u8::from(changed.is_some()));
        if let Some((len, checksum)) = changed {
            put_varint(body, u64::from(len));
            body.extend_from_slice(&checksum.to_le_bytes());
        }
    }

    /// Decodes a mark that [`StateMark::encode`] has appended.
    pub fn decode(r: &mut Decoder<'_>) -> Result<Option<StateMark>> {
        let object = take_object(r)?;
        let changed = match r.u8()? {
            0 => None,
            1 => Some((r.varint_u32()?, r.u32()?)),
            _ => return Err(r.corrupt("a state is neither changed nor an object")),
        };
        Ok((object.is_some() || changed.is_some()).then_some(StateMark { object, changed }))
    }
}

/// Appends the name of an object with a state, or a marker that there is none.
pub(super) fn put_object(body: &mut Vec<u8>, name: Option<&StateObject>) {
    put_bytes(body, name.map_or("", |name| name.key.as_str()).as_bytes());
    put_varint(body, name.map_or(0, |name| name.len));
    body.extend_from_slice(&name.map_or(0, |name| name.checksum).to_le_bytes());
}

/// Decodes a name that [`put_object`] has appended.
pub(super) fn take_object(r: &mut Decoder<'_>) -> Result<Option<StateObject>> {
    let key = r.bytes()?;
    let (len, checksum) = (r.varint()?, r.u32()?);
    if key.is_empty() {
        return Ok(None);
    }
    let key = str::from_utf8(key).ok().and_then(|key| Key::new(key).ok());
    let key = key.ok_or_else(|| r.corrupt("the name of a state is no key"))?;
    Ok(Some(StateObject { key, len, checksum }))
}

/// A cache of the state object that was last read or written, so that changes to it need no
/// request.
#[derive(Clone, Default)]
pub(super) struct KeptObject(Arc<Mutex<Option<(StateObject, Bytes)>>>);

impl fmt::Debug for KeptObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptObject").field(&self.0.lock().as_ref().map(|(name, _)| name)).finish()
    }
}

impl KeptObject {
    pub fn keep(&self, name: &StateObject, bytes: &Bytes) {
        if bytes.len() <= MOST_KEPT {
            *self.0.lock() = Some((name.clone(), bytes.clone()));
        }
    }

    pub fn forget(&self) {
        *self.0.lock() = None;
    }

    pub fn get(&self, name: &StateObject) -> Option<Bytes> {
        let kept = self.0.lock();
        kept.as_ref().filter(|(of, _)| of == name).map(|(_, bytes)| bytes.clone())
    }

    /// Returns a name for a state that stores it in the head: as a whole, or as changes to the
    /// object of the previous state. Returns `None` if neither fits into `most` bytes.
    pub fn name_in_head(
        &self,
        before: Option<&StateName>,
        state: &[u8],
        most: usize,
    ) -> Option<StateName> {
        if most == 0 {
            return None;
        }
        let whole = Some(state).filter(|state| state.len() <= MOST_WHOLE);
        if let Some(changes) = whole.and_then(|state| StateChanges::between(&[], state, most)) {
            return Some(StateName { object: None, changes: Some(changes) });
        }
        let object = before?.object.as_ref().filter(|_| state.len() <= MOST_KEPT)?;
        let changes = StateChanges::between(&self.get(object)?, state, most)?;
        Some(StateName { object: Some(object.clone()), changes: Some(changes) })
    }
}

/// Returns the bytes of a state, given the bytes of its object and the changes to them.
pub(super) fn changed(object: Bytes, changes: Option<&StateChanges>) -> Result<Bytes> {
    changes.map_or(Ok(object.clone()), |changes| changes.apply(&object))
}

#[cfg(test)]
mod tests {
    use env::Random;

    use super::*;

    fn noise(random: &mut Random, len: usize) -> Vec<u8> {
        (0..len).map(|_| random.number() as u8).collect()
    }

    fn object(bytes: &[u8]) -> StateObject {
        let key = Key::new("c/a/3-0").expect("a key");
        StateObject { key, len: bytes.len() as u64, checksum: crc32c(bytes) }
    }

    #[test]
    fn a_large_state_with_a_few_other_bytes_fits_into_a_head() {
        let mut random = Random::new(1);
        let before = noise(&mut random, MOST_KEPT);
        let kept = KeptObject::default();
        let name = StateName::from(object(&before));
        kept.keep(&object(&before), &before.clone().into());
        let mut after = before.clone();
        after.splice(1_000_000..1_000_050, noise(&mut random, 500));
        after.drain(3_000_000..3_001_000);
        after.truncate(MOST_KEPT);
        let named = kept.name_in_head(Some(&name), &after, MOST_CHANGES).expect("it fits");
        assert_eq!(named.object, name.object);
        let changes = named.changes.expect("changes");
        assert!(changes.frame.len() < 2000, "{changes:?}");
        assert_eq!(changed(before.clone().into(), Some(&changes)).expect("applied"), after);

        // Two states that have nothing in common have no short changes between them.
        let other = noise(&mut random, 1 << 20);
        assert_eq!(kept.name_in_head(Some(&name), &other, MOST_CHANGES), None);
        // Changes can be made only to the cached object.
        let unknown = StateName::from(StateObject { checksum: 1, ..object(&before) });
        assert_eq!(kept.name_in_head(Some(&unknown), &after, MOST_CHANGES), None);
    }

    #[test]
    fn a_small_state_is_all_in_the_head() {
        let state = noise(&mut Random::new(2), 20_000);
        let named =
            KeptObject::default().name_in_head(None, &state, MOST_CHANGES).expect("it fits");
        assert_eq!(named.object, None);
        assert_eq!(changed(Bytes::new(), named.changes.as_ref()).expect("applied"), state);
    }

    #[test]
    fn changes_to_other_bytes_and_damaged_ones_are_errors_and_never_panic() {
        let mut random = Random::new(3);
        let before = noise(&mut random, 50_000);
        let after = [&before[..20_000], b"between", &before[20_000..]].concat();
        let changes = StateChanges::between(&before, &after, MOST_CHANGES).expect("they fit");
        let mut encoded = Vec::new();
        changes.encode(&mut encoded);
        let again = StateChanges::decode(&mut Decoder::new(&encoded, "changes")).expect("changes");
        assert_eq!(again, changes);
        let other = noise(&mut random, 50_000);
        assert!(matches!(changes.apply(&other), Err(Error::Corrupt(_))));
        for _ in 0..20_000 {
            let mut bad = encoded.clone();
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            let Ok(bad) = StateChanges::decode(&mut Decoder::new(&bad, "changes")) else {
                continue;
            };
            assert!(bad.apply(&before).is_ok_and(|state| state == after) || bad != changes);
        }
    }
}
