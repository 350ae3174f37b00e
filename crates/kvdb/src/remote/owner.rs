//! The owner of a store in object storage: the local file that its newest state came from. The head
//! names it, so that no file publishes a state that lacks the commits of another file.
//!
//! The store's own file owns the states that it publishes, and so does each file through which the
//! store is written at its address. While one of these files is open, no other file may publish.
//! Once it is closed, another file may begin with the newest state; a file that lacks that state
//! may no longer publish.

use vt_tree::Seq;

use crate::error::{Error, Result};
use crate::log::codec::{Decoder, put_bytes, put_varint};

use super::changes::{StateMark, put_object, take_object};
use super::head::Head;
use super::registry::LONGEST_LABEL;
use super::{RemoteStore, Right};

/// The file that a head belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The identity of the file: for the store's own file it is that of the store; each file
    /// through which the store is written at its address has a random one.
    pub id: [u8; 16],
    /// True if the file is open for writing.
    pub open: bool,
    /// When the file was opened, nanoseconds since 1970 by the clock of its machine.
    pub since: u64,
    /// A label that names the owner of the file, at most 256 bytes.
    pub label: String,
}

impl Owner {
    /// Returns an owner that represents the store's own file.
    pub(super) fn itself(store: [u8; 16]) -> Owner {
        Owner { id: store, ..Owner::default() }
    }

    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.id);
        body.push(u8::from(self.open));
        put_varint(body, self.since);
        put_bytes(body, self.label.as_bytes());
    }

    pub(super) fn decode(r: &mut Decoder<'_>) -> Result<Owner> {
        let id = r.take(16)?;
        let id = std::array::from_fn(|i| id[i]);
        let open = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(r.corrupt("its owner is neither open nor closed")),
        };
        let since = r.varint()?;
        let label = str::from_utf8(r.bytes()?).ok().filter(|label| label.len() <= LONGEST_LABEL);
        let label = label.ok_or_else(|| r.corrupt("the label of its owner is no text"))?.to_owned();
        Ok(Owner { id, open, since, label })
    }
}

/// A local file that is about to publish.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    /// The identity of the store.
    pub store: [u8; 16],
    /// The owner to put into the head.
    pub owner: Owner,
    /// True if the file will adopt the newest state after the claim, so that it lacks no commits.
    pub takes_up: bool,
    /// Makes the claim even if that discards commits that another file has published or has not
    /// published yet.
    pub takes: bool,
    /// The last commit that the file had when it was opened, and the chain of the journal that it
    /// has written since.
    pub has: Option<(Seq, Option<[u8; 16]>)>,
}

impl Claimant {
    /// Returns a claimant that represents the store's own file.
    pub fn itself(store: [u8; 16]) -> Claimant {
        let owner = Owner::itself(store);
        Claimant { store, owner, takes_up: false, takes: false, has: None }
    }

    /// Fails unless the file may replace `head`.
    pub fn check(&self, head: &Head, to: &RemoteStore) -> Result<()> {
        head.check_store(self.store, to)?;
        let owner = &head.owner;
        let is_own = owner.id == self.owner.id || head.is_free();
        match owner.open {
            _ if is_own || self.takes => Ok(()),
            true => {
                let by = match &*owner.label {
                    "" => "another machine".to_owned(),
                    label => label.to_owned(),
                };
                Err(Error::OpenElsewhere { store: to.place(), by })
            }
            false if self.takes_up => Ok(()),
            false => Err(Error::WrittenElsewhere(to.place())),
        }
    }
}

/// The note of a local file about its right to publish. After a crash, the note shows whether
/// another file has published since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimNote {
    pub right: Right,
    /// True if all commits are published and the store was closed.
    pub settled: bool,
}

/// The version of a note, and of one that names a state stored in a head.
const VERSION: u8 = 1;
const VERSION_WITH_CHANGES: u8 = 2;
const SETTLED: u8 = 1;
const HAS_EPOCH: u8 = 2;
const HAS_ATTEMPT: u8 = 4;

impl ClaimNote {
    pub fn encode(&self) -> Vec<u8> {
        let Right { epoch, attempt, states } = &self.right;
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(self.settled, SETTLED)
            | flag(epoch.is_some(), HAS_EPOCH)
            | flag(attempt.is_some(), HAS_ATTEMPT);
        let in_heads = states.iter().flatten().any(|state| state.changed.is_some());
        let version = if in_heads { VERSION_WITH_CHANGES } else { VERSION };
        let mut note = vec![version, flags];
        epoch.iter().for_each(|epoch| put_varint(&mut note, u64::from(*epoch)));
        attempt.iter().for_each(|attempt| note.extend_from_slice(attempt));
        for state in states {
            match in_heads {
                true => StateMark::encode(state.as_ref(), &mut note),
                false => put_object(&mut note, state.as_ref().and_then(|s| s.object.as_ref())),
            }
        }
        note
    }

    pub fn decode(note: &[u8]) -> Result<ClaimNote> {
        let mut r = Decoder::new(note, "the note of the right to publish");
        let version = r.u8()?;
        if !(VERSION..=VERSION_WITH_CHANGES).contains(&version) {
            return Err(r.corrupt("it has an unknown version"));
        }
        let flags = r.u8()?;
        if flags > (SETTLED | HAS_EPOCH | HAS_ATTEMPT) {
            return Err(r.corrupt("it has unknown flags"));
        }
        let epoch = if flags & HAS_EPOCH != 0 { Some(r.varint_u32()?) } else { None };
        let attempt = match flags & HAS_ATTEMPT {
            0 => None,
            _ => r.take(16).map(|id| Some(std::array::from_fn(|i| id[i])))?,
        };
        let mut state = || match version {
            VERSION => Ok(take_object(&mut r)?.map(StateMark::from)),
            _ => StateMark::decode(&mut r),
        };
        let states = [state()?, state()?];
        if !r.is_empty() {
            return Err(r.corrupt("it is too long"));
        }
        Ok(ClaimNote { right: Right { epoch, attempt, states }, settled: flags & SETTLED != 0 })
    }
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    if let Ok(note) = ClaimNote::decode(data) {
        assert_eq!(ClaimNote::decode(&note.encode()).ok(), Some(note));
    }
}

#[cfg(test)]
mod tests {
    use objects::Key;

    use super::super::StateObject;
    use super::*;

    #[test]
    fn a_note_of_the_right_comes_back_and_damage_is_an_error() {
        let key = Key::new("c/a/3-0").expect("a key");
        let state = Some(StateMark::from(StateObject { key, len: 1000, checksum: 5 }));
        let states = [None, state.clone()];
        let changed = state.clone().map(|state| StateMark { changed: Some((7, 8)), ..state });
        let in_head = Some(StateMark { object: None, changed: Some((9, 1)) });
        let rights = [
            Right::default(),
            Right { epoch: Some(300), attempt: None, states: [state.clone(), state.clone()] },
            Right { epoch: None, attempt: Some([7; 16]), ..Right::default() },
            Right { epoch: Some(0), attempt: Some([9; 16]), states },
            Right { epoch: Some(1), attempt: None, states: [changed, None] },
            Right { epoch: Some(1), attempt: None, states: [in_head, state.clone()] },
        ];
        for (right, settled) in rights.into_iter().flat_map(|r| [(r.clone(), false), (r, true)]) {
            let note = ClaimNote { right, settled };
            let bytes = note.encode();
            assert_eq!(ClaimNote::decode(&bytes).expect("a note"), note);
            for cut in 0..bytes.len() {
                assert!(ClaimNote::decode(&bytes[..cut]).is_err(), "{cut}");
            }
            assert!(ClaimNote::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        for (at, value) in [(0, 3), (1, 8)] {
            let mut odd = ClaimNote::default().encode();
            odd[at] = value;
            assert!(ClaimNote::decode(&odd).is_err());
        }
    }
}
