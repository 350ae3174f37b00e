//! The journal of a store in object storage. It holds the commits since the newest state, for
//! stores whose syncs wait until the commits are in the place. A machine that takes over the store
//! begins with the newest state, and replays these commits.
//!
//! ```text
//! j/<name>/<chain>-<number>    commits, or the seal after the last of them
//! ```
//!
//! The head names the chain and the first number that may hold commits which the newest state
//! lacks. Objects are created one after the other, each under an unused name, and a sync returns
//! when its object and all previous ones exist. A file that takes over the store first raises the
//! epoch of the head, then reads the chain to its end, and creates a *seal* there. After that the
//! displaced file cannot create the next object, however long it was suspended, because a seal is
//! kept as long as the store exists. Objects created before the seal are replayed.

use bytes::Bytes;
use env::Env;
use objects::{Created, Key, Listed, ObjectsError, Part, Patience, create, get_patiently};
use vt_tree::{Seq, Value};

use super::head::{opened, seal};
use super::{RemoteStore, random_id};
use crate::error::{Error, Result};
use crate::journal::record::{self, Op, Ops, Record};
use crate::log::codec::{Decoder, put_bytes, put_varint};

const MAGIC: [u8; 8] = *b"KVFSJRNL";
const WHAT: &str = "an object of the journal";
/// The version of the journal objects.
const VERSION: u8 = 1;
const COMMITS: u8 = 1;
const SEAL: u8 = 2;
/// Maximum bytes of a journal object.
const MOST: u64 = 64 << 20;
/// The size of a seal in bytes. Every object with commits is larger.
const SEAL_LEN: u64 = 54;

/// The place in the journal of a store at which the commits begin that the newest state may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// A random number, drawn each time that a store with a journal is opened.
    pub chain: [u8; 16],
    /// The number of the object.
    pub number: u64,
}

impl JournalPlace {
    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.chain);
        put_varint(body, self.number);
    }

    pub(super) fn decode(r: &mut Decoder<'_>) -> Result<JournalPlace> {
        let chain = r.take(16)?;
        Ok(JournalPlace { chain: std::array::from_fn(|i| chain[i]), number: r.varint()? })
    }

    pub(crate) fn next(self) -> Result<JournalPlace> {
        let number = self.number.checked_add(1);
        let number =
            number.ok_or_else(|| Error::Corrupt("a journal has no more numbers".into()))?;
        Ok(JournalPlace { number, ..self })
    }
}

/// A commit in the journal, with its values inline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JournalCommit {
    /// The sequence number of the first change.
    pub first: Seq,
    pub changes: Ops,
}

impl JournalCommit {
    /// Returns the sequence number of the last change.
    pub fn last(&self) -> Seq {
        self.first.saturating_add(self.changes.len() as u64).saturating_sub(1)
    }

    /// Returns the approximate number of bytes that the commit takes in an object.
    pub fn bytes(&self) -> usize {
        32 + self.changes.iter().map(|(_, op)| 16 + op.bytes()).sum::<usize>()
    }
}

/// The content of a journal object.
#[derive(Debug, PartialEq)]
pub(crate) enum JournalContent {
    Commits(Vec<JournalCommit>),
    Seal,
}

/// Encodes the header of an object: its place, and a nonce that distinguishes it from an object
/// with the same content written by another attempt.
fn begin(place: &JournalPlace, kind: u8, nonce: [u8; 16]) -> Vec<u8> {
    let mut body = vec![VERSION, kind];
    body.extend_from_slice(&place.chain);
    body.extend_from_slice(&place.number.to_le_bytes());
    body.extend_from_slice(&nonce);
    body
}

fn encode(place: &JournalPlace, commits: &[JournalCommit], nonce: [u8; 16]) -> Bytes {
    let mut body = begin(place, COMMITS, nonce);
    put_varint(&mut body, commits.len() as u64);
    for commit in commits {
        put_varint(&mut body, commit.first);
        let mut record = Vec::new();
        record::encode(&commit.changes, &mut record, |_| {});
        put_bytes(&mut body, &record);
    }
    seal(MAGIC, &body).into()
}

fn decode(bytes: &Bytes, place: &JournalPlace) -> Result<JournalContent> {
    let mut r = Decoder::new(opened(MAGIC, WHAT, bytes)?, WHAT);
    if r.u8()? != VERSION {
        return Err(Error::Corrupt(format!("{WHAT} was written by a newer program: use that")));
    }
    let kind = r.u8()?;
    let chain = r.take(16)?;
    if chain != place.chain || r.u64()? != place.number {
        return Err(r.corrupt("it is that of another place"));
    }
    r.take(16)?;
    if kind == SEAL && r.is_empty() {
        return Ok(JournalContent::Seal);
    }
    if kind != COMMITS {
        return Err(r.corrupt("it is of an unknown kind"));
    }
    let count = r.count(2)?;
    let mut commits = Vec::with_capacity(count);
    for _ in 0..count {
        let first = r.varint()?;
        commits.push(JournalCommit { first, changes: changes_of(&bytes.slice_ref(r.bytes()?))? });
    }
    match r.is_empty() {
        true => Ok(JournalContent::Commits(commits)),
        false => Err(r.corrupt("it is too long")),
    }
}

/// Decodes a length-prefixed record of changes, in the format of the local journal.
fn changes_of(record: &Bytes) -> Result<Ops> {
    let corrupt = |why: &str| Err(Error::Corrupt(format!("{WHAT}: {why}")));
    let mut rest = &record[..];
    let len = zones::varint::get_u64(&mut rest);
    let len = len.map_err(|_| Error::Corrupt(format!("{WHAT}: a record has no length")))?;
    if rest.len() as u64 != len {
        return corrupt("a record has another length than it says");
    }
    let Record::Commit(changes) = record::decode(&record.slice_ref(rest))? else {
        return corrupt("a record is no commit");
    };
    let own = |op: &Op| !matches!(op, Op::Put(_, Value::Extent(_)) | Op::PutDiscarded(..));
    match !changes.is_empty() && changes.iter().all(|(_, op)| own(op)) {
        true => Ok(changes),
        false => corrupt("a commit refers to what is not in it"),
    }
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    let place = JournalPlace { chain: [0; 16], number: 0 };
    let bytes = seal(MAGIC, data).into();
    if let Ok(JournalContent::Commits(commits)) = decode(&bytes, &place) {
        let again = encode(&place, &commits, [0; 16]);
        assert_eq!(decode(&again, &place).ok(), Some(JournalContent::Commits(commits)));
    }
}

/// Returns whether a listed object with a journal key is a seal.
pub(super) fn is_seal(listed: &Listed) -> bool {
    listed.len == SEAL_LEN
}

impl RemoteStore {
    fn journal_key(&self, place: &JournalPlace) -> Result<Key> {
        let chain: String = place.chain.iter().map(|byte| format!("{byte:02x}")).collect();
        self.key('j', format_args!("{chain}-{}", place.number))
    }

    /// Encodes the journal object for `place`.
    pub(crate) fn encode_journal(
        &self,
        place: &JournalPlace,
        commits: &[JournalCommit],
        env: &dyn Env,
    ) -> Bytes {
        encode(place, commits, random_id(env))
    }

    /// Creates the journal object for `place`, and returns once it exists.
    /// [`Error::WrittenElsewhere`] means that another file has taken over the store. After any
    /// other error the object may or may not exist, and the caller must retry with the same bytes.
    pub(crate) fn put_journal(&self, place: &JournalPlace, bytes: Bytes) -> Result<()> {
        let key = self.journal_key(place)?;
        match create(&**self.objects(), &key, bytes.clone(), Patience::default())? {
            Created::Done(_) => Ok(()),
            Created::Taken(found) if found.bytes == bytes => Ok(()),
            Created::Taken(_) => Err(Error::WrittenElsewhere(self.place())),
        }
    }

    /// Reads the journal object at `place`. Returns `None` if it does not exist.
    pub(crate) fn get_journal(&self, place: &JournalPlace) -> Result<Option<JournalContent>> {
        let key = self.journal_key(place)?;
        let whole = Part::Range(0..MOST + 1);
        match get_patiently(&**self.objects(), &key, whole, Patience::default()) {
            Ok(object) => decode(&object.bytes, place).map(Some).map_err(|e| match e {
                Error::Corrupt(why) => Error::Corrupt(format!(
                    "{key} in {}: {why}; if it cannot be mended, the store goes on without it \
                         and all commits after it when it is removed",
                    self.objects().place()
                )),
                other => other,
            }),
            Err(ObjectsError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the number of the last change in the journal from `place` on, or `None` if there is
    /// none.
    pub(super) fn journal_reaches(&self, place: JournalPlace) -> Result<Option<Seq>> {
        let (mut place, mut last) = (place, None);
        while let Some(JournalContent::Commits(commits)) = self.get_journal(&place)? {
            last = commits.last().map(JournalCommit::last).max(last);
            place = place.next()?;
        }
        Ok(last)
    }

    /// Seals the journal from `place` on, so that no further objects can be created. Returns the
    /// place of the seal.
    pub(super) fn seal_journal(&self, place: JournalPlace, env: &dyn Env) -> Result<JournalPlace> {
        let mut place = place;
        loop {
            match self.get_journal(&place)? {
                Some(JournalContent::Seal) => return Ok(place),
                Some(JournalContent::Commits(_)) => place = place.next()?,
                None => {
                    let bytes: Bytes = seal(MAGIC, &begin(&place, SEAL, random_id(env))).into();
                    debug_assert_eq!(bytes.len() as u64, SEAL_LEN);
                    let key = self.journal_key(&place)?;
                    let made = create(&**self.objects(), &key, bytes, Patience::default())?;
                    // If another object was created there first, the loop reads it next.
                    if let Created::Done(_) = made {
                        return Ok(place);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use objects::MemoryObjects;
    use std::sync::Arc;

    use super::*;
    use crate::DictionaryId;

    fn commit(first: Seq, keys: &[&str]) -> JournalCommit {
        let put = |key: &&str| {
            let (key, value) = (Bytes::from(key.to_string()), Bytes::from(vec![7; 5000]));
            (DictionaryId(3), Op::Put(key, Value::Inline(value)))
        };
        JournalCommit { first, changes: keys.iter().map(put).collect() }
    }

    #[test]
    fn objects_come_back_and_damage_is_an_error() {
        let place = JournalPlace { chain: [5; 16], number: 7 };
        let commits = vec![commit(10, &["a", "b"]), commit(12, &["c"])];
        let bytes = encode(&place, &commits, [9; 16]);
        assert_eq!(decode(&bytes, &place).expect("whole"), JournalContent::Commits(commits));
        for other in [JournalPlace { number: 8, ..place }, JournalPlace { chain: [6; 16], ..place }]
        {
            assert!(decode(&bytes, &other).is_err());
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1;
            assert!(decode(&bad.into(), &place).is_err(), "{at}");
            assert!(decode(&bytes.slice(..at), &place).is_err(), "{at}");
        }
    }

    #[test]
    fn after_a_seal_no_object_is_created() {
        let place = JournalPlace { chain: [5; 16], number: 0 };
        let env = Simulated::new(1);
        let store = RemoteStore::new(Arc::new(MemoryObjects::new()), "fruit").expect("a name");
        let object = |place: &JournalPlace| {
            store.encode_journal(place, &[commit(place.number + 1, &["a"])], &env)
        };
        store.put_journal(&place, object(&place)).expect("made");
        let one = JournalPlace { number: 1, ..place };
        let bytes = object(&one);
        store.put_journal(&one, bytes.clone()).expect("made");
        store.put_journal(&one, bytes).expect("it is the same one");
        assert!(matches!(store.put_journal(&one, object(&one)), Err(Error::WrittenElsewhere(_))));
        let end = store.seal_journal(place, &env).expect("sealed");
        assert_eq!(end.number, 2);
        assert_eq!(store.seal_journal(place, &env).expect("sealed"), end, "once");
        assert!(matches!(store.put_journal(&end, object(&end)), Err(Error::WrittenElsewhere(_))));
        let listed = store.objects().list("j/", "").expect("listed").entries;
        let seals: Vec<bool> = listed.iter().map(is_seal).collect();
        assert_eq!(seals, [false, false, true]);
    }
}
