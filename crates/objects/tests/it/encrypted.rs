//! Tests of objects that are encrypted before they are sent: the bytes that the place sees, and the
//! result for a reader when the place has altered them.

use std::sync::Arc;

use bytes::Bytes;
use env::Random;
use objects::{
    Condition, EncryptedObjects, Key, MemoryObjects, Objects, ObjectsError, Part, Secret,
};

const CHUNK: usize = 64 << 10;

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn secret(digit: char) -> Secret {
    Secret::parse(&digit.to_string().repeat(64)).expect("64 digits")
}

fn encrypted() -> (Arc<MemoryObjects>, EncryptedObjects) {
    let place = Arc::new(MemoryObjects::new());
    (place.clone(), EncryptedObjects::new(place, Some(secret('a'))))
}

fn whole(objects: &dyn Objects, name: &str) -> Result<Bytes, ObjectsError> {
    objects.get(&key(name), Part::Whole).map(|object| object.bytes)
}

fn put(objects: &dyn Objects, name: &str, bytes: Bytes) {
    objects.put(&key(name), bytes, Condition::Always).expect("nothing forbids it");
}

#[test]
fn the_place_has_nothing_of_the_bytes() {
    let (place, objects) = encrypted();
    let text = b"nothing to be seen here".repeat(10_000);
    put(&objects, "z/a", text.clone().into());
    let stored = whole(&*place, "z/a").expect("it is there");
    assert!(!stored.windows(8).any(|part| part == b"to be se"));
    assert!(stored.len() > text.len() && stored.len() < text.len() + 16 + 28 * 5);
    put(&objects, "z/a", text.clone().into());
    let again = whole(&*place, "z/a").expect("it is there");
    assert!(stored[16..] != again[16..], "a nonce was used twice");
    assert_eq!(whole(&objects, "z/a").expect("it is there"), text);
}

#[test]
fn every_range_has_the_bytes_and_the_length_of_the_object() {
    let (_, objects) = encrypted();
    let mut random = Random::new(1);
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 77] {
        let bytes: Vec<u8> = (0..len).map(|_| random.number() as u8).collect();
        put(&objects, "z/a", bytes.clone().into());
        assert_eq!(whole(&objects, "z/a").expect("it is there"), bytes);
        let edges = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, len.saturating_sub(1), len];
        let own: Vec<usize> = (0..20).map(|_| random.below(len as u64 + 2) as usize).collect();
        let places: Vec<usize> = edges.into_iter().chain(own).collect();
        for &start in &places {
            for &end in &places {
                let part = Part::Range(start as u64..end as u64);
                match (part.within(&key("z/a"), len as u64), objects.get(&key("z/a"), part)) {
                    (Ok(range), Ok(object)) => {
                        assert_eq!(object.len, len as u64);
                        let range = range.start as usize..range.end as usize;
                        assert!(object.bytes == bytes[range.clone()], "{range:?} of {len}");
                    }
                    (Err(expected), Err(found)) => {
                        assert_eq!(expected.to_string(), found.to_string());
                    }
                    (expected, found) => panic!("{start}..{end}: {expected:?}, {found:?}"),
                }
            }
        }
        let listed = objects.list("z/", "").expect("a list");
        assert_eq!(listed.entries[0].len, len as u64);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let (place, objects) = encrypted();
    put(&objects, "z/a", vec![7; CHUNK + 100].into());
    let stored = whole(&*place, "z/a").expect("it is there").to_vec();
    let mut random = Random::new(2);
    for round in 0..300 {
        let mut flipped = stored.clone();
        let at = if round < 32 { round } else { random.below(stored.len() as u64) as usize };
        flipped[at] ^= 1 << random.below(8);
        put(&*place, "z/a", flipped.into());
        let found = whole(&objects, "z/a").expect_err("it is not what was put");
        match found {
            ObjectsError::Damaged { .. } => assert!(at >= 16, "byte {at}"),
            ObjectsError::Secret { .. } => assert!(at < 16, "byte {at}"),
            other => panic!("byte {at}: {other}"),
        }
    }
}

#[test]
fn an_object_that_was_cut_off_moved_or_put_together_is_none() {
    let (place, objects) = encrypted();
    put(&objects, "z/a", vec![1; 3 * CHUNK].into());
    put(&objects, "z/b", vec![2; 3 * CHUNK].into());
    let stored = whole(&*place, "z/a").expect("it is there");
    let damaged = |name: &str, bytes: Bytes, part: Part| {
        put(&*place, name, bytes);
        let found = objects.get(&key(name), part).expect_err("it is not what was put");
        assert!(matches!(found, ObjectsError::Damaged { .. }), "{found}");
    };
    // After any chunk, or within one.
    for len in [16, 17, 16 + 28, 16 + CHUNK + 28, 16 + 2 * (CHUNK + 28), stored.len() - 1] {
        damaged("z/a", stored.slice(..len), Part::Whole);
    }
    let second = Part::Range(CHUNK as u64..2 * CHUNK as u64);
    damaged("z/a", stored.slice(..16 + 2 * (CHUNK + 28)), second.clone());
    // Under another key, and chunks that have changed their places.
    damaged("z/b", stored.clone(), Part::Whole);
    damaged("z/b", stored.clone(), second.clone());
    let mut exchanged = stored.to_vec();
    let (first, rest) = exchanged[16..].split_at_mut(CHUNK + 28);
    first.swap_with_slice(&mut rest[..CHUNK + 28]);
    damaged("z/a", exchanged.into(), second);
}

#[test]
fn another_secret_none_and_one_too_many_are_told_apart() {
    let (place, objects) = encrypted();
    put(&objects, "m/work/head", Bytes::from_static(b"a head of more than sixteen bytes"));
    put(&*place, "m/open/head", Bytes::from_static(b"a head that is not encrypted"));
    let own = secret('a').id().to_string();
    let said = |objects: &dyn Objects, name: &str| {
        let parts = [Part::Whole, Part::Range(0..20), Part::Range(0..1 << 20)];
        let mut all: Vec<String> = parts
            .into_iter()
            .map(|part| objects.get(&key(name), part).expect_err("it cannot be read").to_string())
            .collect();
        all.dedup();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    };
    let other = EncryptedObjects::new(place.clone(), Some(secret('b')));
    let text = said(&other, "m/work/head");
    assert!(text.contains(&own) && text.contains("give the other one"), "{text}");
    let without = EncryptedObjects::new(place, None);
    let text = said(&without, "m/work/head");
    assert!(text.contains(&own) && text.contains("none is given"), "{text}");
    let text = said(&objects, "m/open/head");
    assert!(text.contains("is not encrypted"), "{text}");
    assert!(whole(&without, "m/open/head").is_ok());
}

/// Cuts off every answer.
#[derive(Debug)]
struct CutOff(Arc<MemoryObjects>);

impl Objects for CutOff {
    fn get(&self, key: &Key, part: Part) -> Result<objects::Object, ObjectsError> {
        let mut object = self.0.get(key, part)?;
        object.bytes.truncate(object.bytes.len() - 1);
        Ok(object)
    }

    fn put(&self, key: &Key, bytes: Bytes, c: Condition) -> Result<objects::Tag, ObjectsError> {
        self.0.put(key, bytes, c)
    }

    fn delete(&self, key: &Key) -> Result<(), ObjectsError> {
        self.0.delete(key)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<objects::Page, ObjectsError> {
        self.0.list(prefix, after)
    }

    fn place(&self) -> String {
        self.0.place()
    }
}

#[test]
fn an_answer_that_was_cut_off_is_asked_for_again_and_not_called_damage() {
    let (place, objects) = encrypted();
    put(&objects, "z/a", vec![1; 2 * CHUNK].into());
    let cut_off = EncryptedObjects::new(Arc::new(CutOff(place)), Some(secret('a')));
    for part in [Part::Whole, Part::Range(0..10), Part::Range(CHUNK as u64..2 * CHUNK as u64)] {
        let found = cut_off.get(&key("z/a"), part).expect_err("bytes are missing");
        assert!(matches!(found, ObjectsError::Unsure { .. }) && found.may_be_retried(), "{found}");
    }
}
