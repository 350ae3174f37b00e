//! The head of a store in object storage, the only object that is replaced. It names the newest
//! state, and holds the epoch of the publisher that may replace it next.

use std::cell::Cell;

use bytes::Bytes;
use env::Env;
use objects::{
    Created, Key, Object, ObjectsError, Part, Patience, Swapped, Tag, Verdict, create,
    get_other_patiently, get_patiently, swap,
};
use zones::crc32c;

use super::changes::{StateChanges, StateName, StateObject, put_object, take_object};
use super::journal::JournalPlace;
use super::owner::Owner;
use super::{RemoteStore, random_id};
use crate::error::{Error, Result};
use crate::log::codec::{Decoder, put_varint};

const MAGIC: [u8; 8] = *b"KVFSHEAD";
/// The version of the newest format. Heads of version 1 have no owner: they belong to the store's
/// own file. Heads of version 3 name a journal; those of version 4 hold a state, or changes to one.
const HEAD_VERSION: u32 = 4;
const VERSION_WITH_JOURNAL: u32 = 3;
/// The store identity in the head of a store that was unpublished.
const NO_STORE: [u8; 16] = [0; 16];
/// Maximum bytes of a head.
const MOST: usize = 64 << 10;
/// The range read of a head: one byte more than the maximum, which bounds the read and reveals a
/// larger object.
const MOST_READ: Part = Part::Range(0..MOST as u64 + 1);

/// A head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of states published so far; 0 if there is none yet.
    pub generation: u64,
    /// The epoch. Every publisher that begins to write raises it.
    pub epoch: u32,
    /// The identity, from its superblock, of the store that published the states. All zeros after
    /// [`RemoteStore::unpublish`].
    pub store: [u8; 16],
    /// The first part of the names of all objects with zones that are written for this head.
    pub origin: [u8; 16],
    /// The newest state.
    pub state: Option<StateName>,
    /// The note of an unfinished publication: the locations of the zones that it has written.
    pub pending: Option<StateObject>,
    /// When the newest state was published, nanoseconds since 1970.
    pub published: u64,
    /// The local file that the newest state came from.
    pub owner: Owner,
    /// The place where the journal continues after the newest state, if the store has a journal.
    pub journal: Option<JournalPlace>,
    /// A random number drawn for each attempt to replace the head, so that no two heads have the
    /// same bytes.
    pub nonce: [u8; 16],
}

impl Head {
    /// Makes a head that belongs to no store yet.
    pub(super) fn first(origin: [u8; 16]) -> Head {
        Head {
            generation: 0,
            epoch: 0,
            store: NO_STORE,
            origin,
            state: None,
            pending: None,
            published: 0,
            owner: Owner::itself(NO_STORE),
            journal: None,
            nonce: [0; 16],
        }
    }

    /// Returns whether the name is free: the head has no state, and names no store.
    pub(super) fn is_free(&self) -> bool {
        self.state.is_none() && self.store == NO_STORE
    }

    /// Fails unless `store` may publish under the name.
    pub(crate) fn check_store(&self, store: [u8; 16], to: &RemoteStore) -> Result<()> {
        if self.store == store || self.is_free() {
            return Ok(());
        }
        let what = format!("{} is another store: publish under another name", to.place());
        Err(Error::Invalid(what))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let changes = self.state.as_ref().and_then(|state| state.changes.as_ref());
        // Raise the version only if needed. Older programs do not know journals and could lose
        // commits.
        let version = match (changes, &self.journal) {
            (Some(_), _) => HEAD_VERSION,
            (None, Some(_)) => VERSION_WITH_JOURNAL,
            (None, None) => 2,
        };
        body.extend_from_slice(&version.to_le_bytes());
        put_varint(&mut body, self.generation);
        put_varint(&mut body, u64::from(self.epoch));
        [self.store, self.origin, self.nonce].iter().for_each(|id| body.extend_from_slice(id));
        put_varint(&mut body, self.published);
        let object = self.state.as_ref().and_then(|state| state.object.as_ref());
        put_object(&mut body, object);
        put_object(&mut body, self.pending.as_ref());
        self.owner.encode(&mut body);
        if changes.is_some() {
            body.push(u8::from(self.journal.is_some()));
        }
        self.journal.iter().for_each(|journal| journal.encode(&mut body));
        changes.iter().for_each(|changes| changes.encode(&mut body));
        seal(MAGIC, &body)
    }

    /// Decodes the bytes of a head.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Head> {
        if bytes.len() > MOST {
            return Err(Error::Corrupt(format!("a head of {} bytes", bytes.len())));
        }
        let mut r = Decoder::new(opened(MAGIC, "the head", bytes)?, "the head");
        let version = r.u32()?;
        if !(1..=HEAD_VERSION).contains(&version) {
            return Err(newer(version));
        }
        let (generation, epoch) = (r.varint()?, r.varint_u32()?);
        let mut id =
            || -> Result<[u8; 16]> { r.take(16).map(|bytes| std::array::from_fn(|i| bytes[i])) };
        let (store, origin, nonce) = (id()?, id()?, id()?);
        let published = r.varint()?;
        let (object, pending) = (take_object(&mut r)?, take_object(&mut r)?);
        let owner = if version == 1 { Owner::itself(store) } else { Owner::decode(&mut r)? };
        let has_journal = match version {
            HEAD_VERSION => match r.u8()? {
                0 => false,
                1 => true,
                _ => return Err(r.corrupt("it neither has a journal nor lacks one")),
            },
            version => version == VERSION_WITH_JOURNAL,
        };
        let journal = has_journal.then(|| JournalPlace::decode(&mut r)).transpose()?;
        let changes =
            (version == HEAD_VERSION).then(|| StateChanges::decode(&mut r)).transpose()?;
        let is_there = object.is_some() || changes.is_some();
        let state = is_there.then_some(StateName { object, changes });
        if !r.is_empty() {
            return Err(Error::Corrupt("the head is too long".into()));
        }
        Ok(Head {
            generation,
            epoch,
            store,
            origin,
            state,
            pending,
            published,
            owner,
            journal,
            nonce,
        })
    }
}

/// Returns the error for an object that a newer program has written.
pub(super) fn newer(version: u32) -> Error {
    Error::Invalid(format!(
        "the store in object storage has version {version}, which this program does not know: use \
         a newer one"
    ))
}

/// Encodes a magic number and a checksum, followed by the body.
pub(super) fn seal(magic: [u8; 8], body: &[u8]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&crc32c(body).to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// Returns the body of sealed bytes, or an error if they are damaged.
pub(super) fn opened<'a>(magic: [u8; 8], what: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let Some((header, body)) = bytes.split_first_chunk::<12>() else {
        return Err(Error::Corrupt(format!("{what} is cut short")));
    };
    let sum = u32::from_le_bytes(std::array::from_fn(|i| header[8 + i]));
    if header[..8] != magic || crc32c(body) != sum {
        return Err(Error::Corrupt(format!("{what} fails its checksum")));
    }
    Ok(body)
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    let Ok(head) = Head::decode(&seal(MAGIC, data)) else { return };
    assert_eq!(Head::decode(&head.encode()).ok(), Some(head));
}

impl RemoteStore {
    fn head_key(&self) -> Result<Key> {
        self.key('m', format_args!("head"))
    }

    /// Reads the head together with the tag that is needed to replace it. Returns `None` if there
    /// is no store of that name.
    pub(crate) fn tagged_head(&self) -> Result<Option<(Head, Tag)>> {
        let key = self.head_key()?;
        match get_patiently(&**self.objects(), &key, MOST_READ, Patience::default()) {
            Ok(object) => self.decode_head(object).map(Some),
            Err(ObjectsError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads the head like [`RemoteStore::tagged_head`], but only if its tag differs from `than`.
    /// Returns `None` if the tag is the same.
    pub(crate) fn other_head(&self, than: &Tag) -> Result<Option<(Head, Tag)>> {
        let key = self.head_key()?;
        let patience = Patience::default();
        match get_other_patiently(&**self.objects(), &key, MOST_READ, than, patience) {
            Ok(other) => other.map(|object| self.decode_head(object)).transpose(),
            Err(ObjectsError::NotFound { .. }) => Err(Error::NoStore(self.place())),
            Err(e) => Err(e.into()),
        }
    }

    fn decode_head(&self, object: Object) -> Result<(Head, Tag)> {
        let head = Head::decode(&object.bytes).map_err(|e| match e {
            Error::Corrupt(why) => Error::Corrupt(format!("{why}: {}", self.place())),
            other => other,
        })?;
        Ok((head, object.tag))
    }

    /// Reads the head. Returns `None` if there is no store of that name.
    pub fn head(&self) -> Result<Option<Head>> {
        Ok(self.tagged_head()?.map(|(head, _)| head))
    }

    /// Removes the newest state from the head, so that there is no store of that name any more.
    /// Raises the epoch, so that publications in progress fail. The objects stay until a
    /// [collector](crate::RemotePlace::collect) finds that nothing refers to them. Returns the
    /// previous head, or [`Error::NoStore`] if it had neither a state nor an unfinished
    /// publication.
    pub fn unpublish(&self, env: &dyn Env) -> Result<Head> {
        let found = self.tagged_head()?;
        let found = found.filter(|(head, _)| head.state.is_some() || head.store != NO_STORE);
        let Some((before, tag)) = found else { return Err(Error::NoStore(self.place())) };
        let epoch = before.epoch.checked_add(1);
        let epoch =
            epoch.ok_or_else(|| Error::Corrupt(format!("{} has no more epochs", self.place())))?;
        let (state, pending, nonce) = (None, None, random_id(env));
        let owner = Owner::itself(NO_STORE);
        let store = NO_STORE;
        let journal = None;
        let head = Head { epoch, store, state, pending, owner, journal, nonce, ..before.clone() };
        self.replace_head(Some(&tag), &head)?;
        Ok(before)
    }

    /// Replaces the head whose tag is `before`, or creates the head if `before` is `None`. Fails if
    /// another writer was faster.
    pub(super) fn replace_head(&self, before: Option<&Tag>, head: &Head) -> Result<Tag> {
        let replaced = self.swap_head(before, head, false)?;
        replaced.ok_or_else(|| Error::Overtaken(self.place()))
    }

    /// Replaces the head by one with a new publication, like [`RemoteStore::replace_head`]. Returns
    /// `None` if the publication succeeded, but another publisher has replaced the head since.
    pub(super) fn publish_head(&self, before: &Tag, head: &Head) -> Result<Option<Tag>> {
        self.swap_head(Some(before), head, true)
    }

    fn swap_head(&self, before: Option<&Tag>, head: &Head, publishes: bool) -> Result<Option<Tag>> {
        let (key, bytes) = (self.head_key()?, Bytes::from(head.encode()));
        let objects = &**self.objects();
        let overtaken = || Error::Overtaken(self.place());
        match before {
            None => match create(objects, &key, bytes, Patience::default())? {
                Created::Done(tag) => Ok(Some(tag)),
                Created::Taken(_) => Err(overtaken()),
            },
            Some(tag) => {
                // Other publishers keep the publication that they find in the head. So a different
                // head with this publication was written after this attempt, which therefore
                // succeeded. Comparing the state alone is not sufficient: the previous head has the
                // same state if nothing was changed.
                let publication = |of: &Head| (of.generation, of.published);
                let is_later = Cell::new(false);
                let judge = |bytes: &[u8]| match Head::decode(bytes) {
                    Ok(found) if found.nonce == head.nonce => Verdict::Mine,
                    Ok(found)
                        if publishes
                            && publication(&found) == publication(head)
                            && found.state == head.state =>
                    {
                        is_later.set(true);
                        Verdict::Mine
                    }
                    Err(Error::Corrupt(_)) => Verdict::Damaged,
                    Ok(_) | Err(_) => Verdict::Other,
                };
                match swap(objects, &key, tag, bytes, Patience::default(), judge)? {
                    Swapped::Done(_) if is_later.get() => Ok(None),
                    Swapped::Done(tag) => Ok(Some(tag)),
                    Swapped::Overtaken(_) => Err(overtaken()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Head {
        let key = Key::new("c/a/3-0").expect("a key");
        let state = StateObject { key, len: 1000, checksum: 5 };
        Head {
            generation: 7,
            epoch: 3,
            store: [1; 16],
            origin: [2; 16],
            state: Some(state.into()),
            pending: None,
            published: 1 << 60,
            owner: Owner { id: [3; 16], open: true, since: 1 << 50, label: "host".into() },
            journal: Some(JournalPlace { chain: [4; 16], number: 300 }),
            nonce: [9; 16],
        }
    }

    /// Returns a head with changes to an object.
    fn changed() -> Head {
        let changes = StateChanges::between(&[1; 50], &[2; 70], 1000);
        let object = sample().state.and_then(|state| state.object);
        Head { state: Some(StateName { object, changes }), ..sample() }
    }

    #[test]
    fn a_state_in_a_head_comes_back_with_its_object_or_without_and_with_a_journal_or_without() {
        let whole = StateName { object: None, ..changed().state.expect("a state") };
        for state in [changed().state, Some(whole)] {
            for journal in [None, sample().journal] {
                let head = Head { state: state.clone(), journal, ..sample() };
                let bytes = head.encode();
                assert_eq!(bytes[12], 4);
                assert_eq!(Head::decode(&bytes).expect("a head"), head);
            }
        }
    }

    #[test]
    fn it_comes_back_and_no_flipped_bit_passes() {
        assert_eq!(Head::decode(&sample().encode()).expect("a head"), sample());
        let bytes = changed().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Head::decode(&bad), Err(Error::Corrupt(_))), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(Head::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn damage_with_a_valid_checksum_never_panics() {
        for (body, at) in [sample(), changed()].iter().flat_map(|head| {
            let body = head.encode().split_off(12);
            (0..body.len()).map(move |at| (body.clone(), at))
        }) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = body.clone();
                bad[at] = value;
                let _ = Head::decode(&seal(MAGIC, &bad));
                let _ = Head::decode(&seal(MAGIC, &bad[..at]));
            }
        }
    }

    #[test]
    fn a_newer_head_is_named() {
        let mut body = sample().encode().split_off(12);
        body[0] = 5;
        let error = Head::decode(&seal(MAGIC, &body)).expect_err("newer").to_string();
        assert!(error.contains("version 5"), "{error}");
    }

    #[test]
    fn a_head_without_a_journal_is_one_that_older_programs_read() {
        let head = Head { journal: None, ..sample() };
        let bytes = head.encode();
        assert_eq!(bytes[12], 2);
        assert_eq!(Head::decode(&bytes).expect("a head"), head);
    }

    #[test]
    fn a_head_of_version_1_belongs_to_the_file_of_the_store() {
        let head = Head { owner: Owner::itself([1; 16]), journal: None, ..sample() };
        let mut body = head.encode().split_off(12);
        let mut owner = Vec::new();
        head.owner.encode(&mut owner);
        body.truncate(body.len() - owner.len());
        body[0] = 1;
        assert_eq!(Head::decode(&seal(MAGIC, &body)).expect("a head"), head);
    }
}
