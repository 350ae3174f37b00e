//! Lists of dead objects, which nothing refers to. The modification time of a list, by the clock of
//! the place, is the time at which its objects were found dead. Therefore a list is never replaced.
//! If a list cannot be decoded, its objects are found again, and their grace starts over.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use objects::{Created, Key, Listed, Objects, ObjectsError, Part, Patience, create};

use super::head::{newer, opened, seal};
use super::{ForkId, random_id};
use crate::error::{Error, Result};
use crate::log::codec::{Decoder, put_bytes, put_varint};

const MAGIC: [u8; 8] = *b"KVFSDEAD";
const VERSION: u32 = 1;
/// Maximum number of keys in a list, and bytes of keys after which a list is full.
const MOST_KEYS: usize = 1 << 16;
const FULL: usize = 4 << 20;
/// Maximum bytes of a list.
const MOST: u64 = 8 << 20;

/// A list that was read from the place.
#[derive(Debug)]
pub(super) struct DeadList {
    /// The key of the list.
    pub key: Key,
    /// When the objects were found dead, by the clock of the place, since 1970.
    pub found: Duration,
    pub keys: Vec<Key>,
}

fn encode(keys: &[Key]) -> Vec<u8> {
    let mut body = VERSION.to_le_bytes().to_vec();
    put_varint(&mut body, keys.len() as u64);
    keys.iter().for_each(|key| put_bytes(&mut body, key.as_str().as_bytes()));
    seal(MAGIC, &body)
}

fn decode(bytes: &[u8]) -> Result<Vec<Key>> {
    const WHAT: &str = "a list of dead objects";
    let mut r = Decoder::new(opened(MAGIC, WHAT, bytes)?, WHAT);
    let version = r.u32()?;
    if version != VERSION {
        return Err(newer(version));
    }
    let count = r.count(2)?;
    if count > MOST_KEYS {
        return Err(r.corrupt("it has more keys than a list has"));
    }
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        let key = str::from_utf8(r.bytes()?).ok().and_then(|key| Key::new(key).ok());
        keys.push(key.ok_or_else(|| r.corrupt("it names no key"))?);
    }
    if !r.is_empty() {
        return Err(r.corrupt("it is too long"));
    }
    Ok(keys)
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    let Ok(keys) = decode(&seal(MAGIC, data)) else { return };
    assert_eq!(decode(&encode(&keys)).ok(), Some(keys));
}

/// Returns whether a key is that of a list.
fn is_list(key: &Key) -> bool {
    key.as_str().strip_prefix("d/").is_some_and(|name| name.parse::<ForkId>().is_ok())
}

/// Reads the lists among these objects, ignoring lists that no longer exist.
pub(super) fn read_all(objects: &Arc<dyn Objects>, listed: &[Listed]) -> Result<Vec<DeadList>> {
    let mut lists = Vec::new();
    for entry in listed.iter().filter(|entry| is_list(&entry.key)) {
        lists.extend(read(objects, entry)?);
    }
    Ok(lists)
}

/// Reads a list. Returns `None` if it no longer exists.
fn read(objects: &Arc<dyn Objects>, listed: &Listed) -> Result<Option<DeadList>> {
    let (key, found) = (listed.key.clone(), listed.modified);
    let part = Part::Range(0..MOST + 1);
    match objects::get_patiently(&**objects, &key, part, Patience::default()) {
        Ok(object) => match decode(&object.bytes) {
            Ok(keys) => Ok(Some(DeadList { key, found, keys })),
            Err(Error::Corrupt(why)) => {
                tracing::warn!("{key} in {} is no list, and goes: {why}", objects.place());
                Ok(Some(DeadList { key, found, keys: Vec::new() }))
            }
            Err(e) => Err(e),
        },
        Err(ObjectsError::NotFound { .. }) => Ok(None),
        Err(e @ ObjectsError::Damaged { .. }) => {
            tracing::warn!("{e}; it is no list, and goes");
            Ok(Some(DeadList { key, found, keys: Vec::new() }))
        }
        // The object is empty.
        Err(ObjectsError::OutOfRange { .. }) => Ok(Some(DeadList { key, found, keys: Vec::new() })),
        Err(e) => Err(e.into()),
    }
}

/// Writes lists of these objects. Each list has a random name, which no other writer uses.
pub(super) fn write(objects: &Arc<dyn Objects>, env: &dyn Env, keys: &[Key]) -> Result<()> {
    let mut rest = keys;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |key: &&Key| {
            bytes += key.as_str().len();
            bytes <= FULL
        };
        let count = rest.iter().take(MOST_KEYS).take_while(fits).count().max(1);
        let (now, after) = rest.split_at(count);
        let key = Key::new(format!("d/{}", ForkId(random_id(env))));
        let key = key.map_err(|e| Error::Invalid(e.to_string()))?;
        if let Created::Taken(_) =
            create(&**objects, &key, encode(now).into(), Patience::default())?
        {
            return Err(Error::Exists(format!("{key} in {}", objects.place())));
        }
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_and_damage_is_an_error() {
        let keys = ["c/a/1-0", "z/0f/x"].map(|key| Key::new(key).expect("a key"));
        let bytes = encode(&keys);
        assert_eq!(decode(&bytes).expect("a list"), keys);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(&bad), Err(Error::Corrupt(_))), "bit {bit}");
        }
        for cut in 12..bytes.len() {
            assert!(decode(&seal(MAGIC, &bytes[12..cut])).is_err(), "{cut}");
        }
        let mut many = VERSION.to_le_bytes().to_vec();
        put_varint(&mut many, u64::MAX);
        assert!(decode(&seal(MAGIC, &many)).is_err());
    }

    #[test]
    fn many_objects_are_in_several_lists() {
        let objects: Arc<dyn Objects> = Arc::new(objects::MemoryObjects::new());
        let env = env::Simulated::new(1);
        let key = |n: usize| Key::new(format!("c/a/{n}-0")).expect("a key");
        let keys: Vec<Key> = (0..MOST_KEYS + 5).map(key).collect();
        write(&objects, &env, &keys[..1]).expect("a list");
        write(&objects, &env, &keys).expect("two lists");
        let page = objects.list("d/", "").expect("a page");
        let mut read: Vec<usize> = page
            .entries
            .iter()
            .map(|entry| read(&objects, entry).expect("a list").expect("it is there").keys.len())
            .collect();
        read.sort_unstable();
        assert_eq!(read, [1, 5, MOST_KEYS]);
    }
}
