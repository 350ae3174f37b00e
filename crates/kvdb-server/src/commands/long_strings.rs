//! Long strings among the changes that are listed: each is one change of its key, whatever pages it
//! is about.

use std::collections::HashMap;

use kvdb::{Change, Changed, DictionaryId, Kvdb, Tuple, View};

use crate::failure::Failure;
use crate::keyspace::{Head, Kind, TYPES_PREFIX, head_key};

/// The dictionaries in which long strings are kept.
pub struct LongStrings {
    /// The name of the user's dictionary that each belongs to.
    names: HashMap<DictionaryId, String>,
    /// The one of each of the user's dictionaries.
    types: HashMap<DictionaryId, DictionaryId>,
}

/// The head of a long string in a dictionary of types.
fn head_at(
    view: &View,
    types: Option<DictionaryId>,
    place: &[u8],
) -> Result<Option<Head>, Failure> {
    let Some(types) = types else { return Ok(None) };
    let head = view.get(types, place)?.and_then(|head| Head::decode(&head));
    Ok(head.filter(|head| head.kind == Kind::Pages))
}

/// The length of the long string that a state has under a key.
pub fn len_in(
    view: &View,
    types: Option<DictionaryId>,
    key: &[u8],
) -> Result<Option<u64>, Failure> {
    Ok(head_at(view, types, &head_key(key))?.map(|head| head.len))
}

/// A change of a long string in a transaction.
pub struct LongChange<'a> {
    pub dictionary: &'a str,
    /// There was one before that was changed, as opposed to put anew.
    pub in_part: bool,
    pub key: Vec<u8>,
    pub len: u64,
}

impl LongStrings {
    pub fn of(db: &Kvdb) -> LongStrings {
        let all = db.dictionaries();
        let mut found = LongStrings { names: HashMap::new(), types: HashMap::new() };
        for info in all.iter().filter(|info| info.branch.is_empty() && !info.options.reserved) {
            let Some(name) = info.name.strip_prefix(TYPES_PREFIX) else { continue };
            found.names.insert(info.id, name.into());
            let strings = all.iter().find(|other| other.branch.is_empty() && other.name == name);
            if let Some(strings) = strings {
                found.types.insert(strings.id, info.id);
            }
        }
        found
    }
    /// Whether a deletion among the strings only makes room for a long one.
    pub fn replaces(
        &self,
        view: &View,
        strings: DictionaryId,
        change: &Changed,
    ) -> Result<bool, Failure> {
        let Changed::Delete { key } = change else { return Ok(false) };
        Ok(len_in(view, self.types.get(&strings).copied(), key)?.is_some())
    }
    /// What a change of a dictionary of types does to a long string, as a transaction sees it.
    pub fn changed(
        &self,
        view: &View,
        types: DictionaryId,
        change: &Changed,
    ) -> Result<Option<LongChange<'_>>, Failure> {
        let (Some(dictionary), Changed::Put { key: place, .. }) = (self.names.get(&types), change)
        else {
            return Ok(None);
        };
        let Some(key) = place.strip_prefix(b"k") else { return Ok(None) };
        let Some(head) = head_at(view, Some(types), place)? else { return Ok(None) };
        let before = head_at(&view.beneath(), Some(types), place)?;
        let before = before.filter(|before| before.id == head.id);
        if before.is_some_and(|before| before.changes == head.changes) {
            // Its deadline alone.
            return Ok(None);
        }
        let (in_part, key) = (before.is_some(), key.to_vec());
        Ok(Some(LongChange { dictionary, in_part, key, len: head.len }))
    }
}

/// What a difference of a dictionary of types says of long strings.
pub enum Told {
    /// Nothing.
    Nothing,
    /// It is a part of a change that is listed elsewhere.
    Elsewhere,
    /// The long string of this key had so many bytes, and has so many; `also` the change itself
    /// says something more, of a key that is a collection before or after.
    Lengths { key: Vec<u8>, before: Option<u64>, after: Option<u64>, also: bool },
}

/// What a difference at a place in a dictionary of types says.
pub fn told(change: &Change) -> Result<Told, Failure> {
    if change.key.starts_with(b"p") {
        return Ok(Told::Elsewhere);
    }
    let Some(key) = change.key.strip_prefix(b"k") else { return Ok(Told::Nothing) };
    let head = |side: &Option<Tuple>| match side {
        Some(tuple) => Ok::<_, Failure>(Head::decode(&tuple.value()?)),
        None => Ok(None),
    };
    let heads = [head(&change.before)?, head(&change.after)?];
    let [old, new] = heads.map(|head| head.filter(|head| head.kind == Kind::Pages));
    if old.is_none() && new.is_none()
        || old.zip(new).is_some_and(|(a, b)| (a.id, a.changes) == (b.id, b.changes))
    {
        return Ok(Told::Nothing);
    }
    let also = heads.iter().flatten().any(|head| head.kind != Kind::Pages);
    let (before, after) = (old.map(|head| head.len), new.map(|head| head.len));
    Ok(Told::Lengths { key: key.to_vec(), before, after, also })
}
