//! The differences between two states of a dictionary, except the differences of strings that are
//! one tuple. They are collections with the number of elements that were added, removed and
//! changed, long strings, and deadlines. Each key has its type on both sides.
//!
//! An element lies under the id of its collection and does not name its key. The key is found in
//! a changed head, or otherwise in the owner tuple of the collection, or, if an older program has
//! written the collection, by a search of all heads. Pages of a long string are skipped, because
//! its head changes with them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use kvdb::{Changed, DictionaryId, Transaction, Tuple, View};

use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    Head, Kind, count_key, element_key, elements, head_key, is_past, owner_key, parse_element,
    whole,
};
use crate::names;
use crate::request::integer;

/// One state of a dictionary, with the types of its keys.
pub struct TypedState<'a> {
    pub view: &'a View,
    pub strings: Option<DictionaryId>,
    pub types: Option<DictionaryId>,
}

/// The properties of a key in one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The type of the value, or `None` if the key does not exist. A long string counts as a
    /// string.
    pub kind: Option<Kind>,
    /// The deadline, in milliseconds since 1970.
    pub deadline: Option<u64>,
    /// The id of a collection.
    id: Option<u64>,
    /// The number of elements of the collection.
    count: u64,
    /// The head of a long string.
    pages: Option<Head>,
}

impl Standing {
    pub fn is_collection(&self) -> bool {
        self.id.is_some()
    }
    /// Returns the length of a long string, in bytes.
    pub fn pages(&self) -> Option<u64> {
        self.pages.map(|head| head.len)
    }
}

/// The numbers of changed elements of a collection. A field whose deadline differs has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    pub added: u64,
    pub removed: u64,
    pub changed: u64,
}

/// An element that differs, with its stored value or score before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The part of the element's key that represents its name.
    part: Bytes,
    before: Option<Bytes>,
    after: Option<Bytes>,
}

/// A key whose collection, long string or deadline differs.
#[derive(Debug)]
pub struct Reviewed {
    pub key: Bytes,
    pub before: Standing,
    pub after: Standing,
    pub elements: Elements,
    /// The elements that differ. They are collected only on request.
    pub fields: Vec<Element>,
}

impl Reviewed {
    /// Returns whether a collection differs in its existence, its type or its elements.
    pub fn is_of_collection(&self) -> bool {
        let sides = self.before.is_collection() || self.after.is_collection();
        let (before, after) = (self.before, self.after);
        let differs = before.kind != after.kind || before.id != after.id;
        sides && (differs || self.elements != Elements::default())
    }
    /// Returns whether the difference concerns a string that is kept in pages on at least one
    /// side.
    pub fn is_of_pages(&self) -> bool {
        let state = |side: &Standing| side.pages.map(|head| (head.id, head.mark));
        state(&self.before) != state(&self.after)
    }
    /// Returns whether the string is kept in the same pages on both sides.
    pub fn is_same_pages(&self) -> bool {
        let id = |side: &Standing| side.pages.map(|head| head.id);
        id(&self.after).is_some() && id(&self.before) == id(&self.after)
    }
    /// Returns whether the deadline of an existing key differs.
    pub fn is_of_deadline(&self) -> bool {
        self.after.kind.is_some() && self.before.deadline != self.after.deadline
    }
}

/// Returns whether a key of a dictionary has the same value in both states of a store, or no
/// value in both. A missing dictionary has no keys. Values that have the same place are not read.
pub fn has_same(
    before: &View,
    after: &View,
    dict: DictionaryId,
    key: &[u8],
) -> Result<bool, Failure> {
    let end = [key, b"\0"].concat();
    let find = |view: &View| -> kvdb::Result<Option<Tuple>> {
        match view.cursor(dict, key, &end) {
            Err(kvdb::Error::NoDictionary(_)) => Ok(None),
            cursor => cursor?.next(),
        }
    };
    Ok(match (find(before)?, find(after)?) {
        (Some(before), Some(after)) => before.has_value_of(&after)?,
        (before, after) => before.is_none() && after.is_none(),
    })
}

impl TypedState<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        match self.types.map(|types| self.view.get(types, key)) {
            None | Some(Err(kvdb::Error::NoDictionary(_))) => Ok(None),
            Some(found) => Ok(found?),
        }
    }
    pub fn head(&self, key: &[u8]) -> Result<Option<Head>, Failure> {
        Ok(self.get(&head_key(key))?.and_then(|bytes| Head::decode(&bytes)))
    }
    pub fn count(&self, id: u64) -> Result<u64, Failure> {
        let count = self.get(&count_key(id))?.and_then(|count| integer(&count));
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }
    /// Returns the length of a string in one tuple, in bytes, or `None` if the key has none.
    pub fn tuple(&self, key: &[u8]) -> Result<Option<u64>, Failure> {
        match self.strings.map(|strings| self.view.value_len(strings, key)) {
            None | Some(Err(kvdb::Error::NoDictionary(_))) => Ok(None),
            Some(found) => Ok(found?.map(|len| len as u64)),
        }
    }
    /// Returns the length of a long string, in bytes, or `None` if the key has none.
    pub fn pages(&self, key: &[u8]) -> Result<Option<u64>, Failure> {
        let head = self.head(key)?.filter(|head| head.kind == Kind::Pages);
        Ok(head.map(|head| head.len))
    }
    /// Returns the length of the string of a key in either form, in bytes, or `None` if the key
    /// has none.
    pub fn string(&self, key: &[u8]) -> Result<Option<u64>, Failure> {
        Ok(match self.pages(key)? {
            None => self.tuple(key)?,
            len => len,
        })
    }
    /// Returns the type of a key at a time, given in milliseconds since 1970.
    pub fn kind_at(&self, key: &[u8], now: u64) -> Result<Option<Kind>, Failure> {
        let standing = self.standing(key)?;
        Ok(standing
            .kind
            .filter(|_| standing.deadline.is_none_or(|deadline| !is_past(deadline, now))))
    }
    fn standing(&self, key: &[u8]) -> Result<Standing, Failure> {
        let head = self.head(key)?;
        let deadline = head.and_then(|head| head.deadline);
        if let Some(head) = head.filter(|head| head.kind == Kind::Pages) {
            let (kind, pages) = (Some(Kind::String), Some(head));
            return Ok(Standing { kind, deadline, pages, ..Standing::default() });
        }
        if let Some(head) = head.filter(|head| head.kind != Kind::String) {
            let count = self.count(head.id)?;
            if count > 0 {
                let (kind, id) = (Some(head.kind), Some(head.id));
                return Ok(Standing { kind, deadline, id, count, pages: None });
            }
        }
        let kind = self.tuple(key)?.map(|_| Kind::String);
        let deadline = deadline.filter(|_| kind.is_some());
        Ok(Standing { kind, deadline, ..Standing::default() })
    }
    /// Calls `visit` for the tuples in `[start, end)`. `visit` returns the key at which to
    /// continue, or `None` for the next tuple.
    fn walk(
        &self,
        start: &[u8],
        end: &[u8],
        mut visit: impl FnMut(&kvdb::Tuple) -> Result<Option<Vec<u8>>, Failure>,
    ) -> Outcome {
        let cursor = self.types.map(|types| self.view.cursor(types, start, end));
        let mut cursor = match cursor {
            None | Some(Err(kvdb::Error::NoDictionary(_))) => return Ok(()),
            Some(cursor) => cursor?,
        };
        while let Some(tuple) = cursor.next()? {
            if let Some(on) = visit(&tuple)? {
                cursor.seek(&on)?;
            }
        }
        Ok(())
    }
}

/// The differences found so far.
pub struct Review<'a> {
    before: TypedState<'a>,
    after: TypedState<'a>,
    /// Set if the caller needs the elements themselves.
    with_fields: bool,
    /// The number of bytes that may still be collected.
    left: usize,
    /// The limit on the bytes that are collected.
    most: usize,
    /// A function that is called from time to time. It returns an error when the server stops.
    check: &'a dyn Fn() -> Outcome,
    steps: u32,
    heads: BTreeSet<Bytes>,
    collections: BTreeMap<u64, (Elements, Vec<Element>)>,
}

impl<'a> Review<'a> {
    pub fn new(
        before: TypedState<'a>,
        after: TypedState<'a>,
        with_fields: bool,
        most: usize,
        check: &'a dyn Fn() -> Outcome,
    ) -> Self {
        let (heads, collections) = Default::default();
        Review { before, after, with_fields, left: most, most, check, steps: 0, heads, collections }
    }

    /// Finds the differences between the two states.
    pub fn of_states(mut self) -> Result<Vec<Reviewed>, Failure> {
        let types =
            (self.before.types.or(self.after.types), self.after.types.or(self.before.types));
        let (Some(old), Some(new)) = types else { return Ok(Vec::new()) };
        for change in self.before.view.difference(old, self.after.view, new)? {
            let change = change?;
            self.step()?;
            match parse_element(&change.key) {
                Some((id, 1, name)) => {
                    let value = |tuple: &Option<kvdb::Tuple>| {
                        tuple.as_ref().map(kvdb::Tuple::value).transpose()
                    };
                    let (before, after) = (value(&change.before)?, value(&change.after)?);
                    self.element(id, change.key.slice_ref(name), before, after)?;
                }
                Some((id, 5, name)) => self.deadline(id, change.key.slice_ref(name))?,
                _ => self.other(&change.key)?,
            }
        }
        self.finish()
    }

    /// Finds the changes of a transaction. The state after the changes must be a view of the
    /// transaction.
    pub fn of_transaction(mut self, transaction: &Transaction) -> Result<Vec<Reviewed>, Failure> {
        let Some(types) = self.after.types else { return Ok(Vec::new()) };
        // Tuples in a deleted range have been counted with the range.
        let mut covered = Bytes::new();
        for change in transaction.changes_in(self.after.view, &[types])? {
            self.step()?;
            match change?.1 {
                Changed::Put { key, .. } | Changed::Update { key, .. } => self.tuple(&key)?,
                Changed::Delete { key } if key >= covered => self.tuple(&key)?,
                Changed::Delete { .. } => {}
                Changed::DeleteRange { start, end } => {
                    self.range(&start, &end)?;
                    covered = end;
                }
            }
        }
        self.finish()
    }

    fn step(&mut self) -> Outcome {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(256) { (self.check)() } else { Ok(()) }
    }
    fn take(&mut self, bytes: usize) -> Outcome {
        self.left = self.left.checked_sub(bytes + 64).ok_or_else(|| {
            Failure::Limit(format!("more than {} bytes of changes of one dictionary", self.most))
        })?;
        Ok(())
    }

    /// Records a tuple that was put or deleted.
    fn tuple(&mut self, key: &Bytes) -> Outcome {
        match parse_element(key) {
            Some((id, 1, name)) => {
                let (before, after) = (self.before.get(key)?, self.after.get(key)?);
                self.element(id, key.slice_ref(name), before, after)
            }
            Some((id, 5, name)) if self.before.get(key)? != self.after.get(key)? => {
                self.deadline(id, key.slice_ref(name))
            }
            _ => self.other(key),
        }
    }

    /// Records a tuple that is not an element.
    fn other(&mut self, key: &Bytes) -> Outcome {
        if let Some((id, ..)) = parse_element(key) {
            self.collections.entry(id).or_default();
        } else if let Some(key) = key.strip_prefix(b"k")
            && !self.heads.contains(key)
        {
            self.take(key.len())?;
            self.heads.insert(Bytes::copy_from_slice(key));
        }
        Ok(())
    }

    fn element(
        &mut self,
        id: u64,
        part: Bytes,
        before: Option<Bytes>,
        after: Option<Bytes>,
    ) -> Outcome {
        let found = self.collections.entry(id).or_default();
        match (&before, &after) {
            (None, Some(_)) => found.0.added += 1,
            (Some(_), None) => found.0.removed += 1,
            (Some(a), Some(b)) if a != b => found.0.changed += 1,
            _ => return Ok(()),
        }
        if self.with_fields {
            let element = Element { part, before, after };
            found.1.push(element.clone());
            self.take(element.bytes())?;
        }
        Ok(())
    }

    /// Records that the deadline of a field differs. The field counts as changed, unless it has
    /// already been counted as changed, added or removed.
    fn deadline(&mut self, id: u64, part: Bytes) -> Outcome {
        let place = element_key(id, &part);
        let (before, after) = (self.before.get(&place)?, self.after.get(&place)?);
        let found = self.collections.entry(id).or_default();
        if before.is_none() || before != after {
            return Ok(());
        }
        found.0.changed += 1;
        if self.with_fields {
            let element = Element { part, before, after };
            found.1.push(element.clone());
            self.take(element.bytes())?;
        }
        Ok(())
    }

    /// Records a deleted range, which consists of the tuples that existed and no longer exist.
    /// Tuples that were put again have their own entries among the changes.
    fn range(&mut self, start: &Bytes, end: &Bytes) -> Outcome {
        let Some(types) = self.before.types else { return Ok(()) };
        let view = self.before.view;
        let mut cursor = match view.cursor(types, start, end) {
            Err(kvdb::Error::NoDictionary(_)) => return Ok(()),
            cursor => cursor?,
        };
        while let Some(tuple) = cursor.next()? {
            self.step()?;
            if tuple.key.starts_with(b"p") {
                // The pages may be numerous, and need not be counted.
                cursor.seek(b"q")?;
                continue;
            }
            let Some((id, part, name)) = parse_element(&tuple.key) else {
                self.other(&tuple.key)?;
                continue;
            };
            self.collections.entry(id).or_default();
            if part == 1 && self.after.get(&tuple.key)?.is_none() {
                self.element(id, tuple.key.slice_ref(name), Some(tuple.value()?), None)?;
            }
            // If a collection was removed as a whole, its length is the number of removed
            // elements.
            let (first, last) = whole(id);
            if first[..] >= start[..] && last[..] <= end[..] && self.after.count(id)? == 0 {
                cursor.seek(&last)?;
            }
        }
        Ok(())
    }

    /// Finds the keys of the collections that were touched, and the properties of all keys on
    /// both sides.
    fn finish(mut self) -> Result<Vec<Reviewed>, Failure> {
        self.find_owners()?;
        let mut all = Vec::new();
        for key in std::mem::take(&mut self.heads) {
            self.step()?;
            let (before, after) = (self.before.standing(&key)?, self.after.standing(&key)?);
            let (mut elements, mut fields) = (Elements::default(), Vec::new());
            if before.id == after.id {
                let found = before.id.and_then(|id| self.collections.remove(&id));
                (elements, fields) = found.unwrap_or_default();
            } else {
                (elements.removed, elements.added) = (before.count, after.count);
                if self.with_fields {
                    self.list(before.id, false, &mut fields)?;
                    self.list(after.id, true, &mut fields)?;
                }
            }
            let reviewed = Reviewed { key, before, after, elements, fields };
            let of_string = reviewed.is_of_pages();
            if of_string || reviewed.is_of_collection() || reviewed.is_of_deadline() {
                all.push(reviewed);
            }
        }
        Ok(all)
    }

    /// Lists all elements of a collection that exists only on one side.
    fn list(&mut self, id: Option<u64>, added: bool, fields: &mut Vec<Element>) -> Outcome {
        let Some(id) = id else { return Ok(()) };
        let (start, end) = elements(id);
        let side = if added { &self.after } else { &self.before };
        let mut found = Vec::new();
        let mut room = self.left;
        side.walk(&start, &end, |tuple| {
            let part = parse_element(&tuple.key).map_or(Bytes::new(), |e| tuple.key.slice_ref(e.2));
            let value = Some(tuple.value()?);
            let (before, after) = if added { (None, value) } else { (value, None) };
            let element = Element { part, before, after };
            room = room.saturating_sub(element.bytes() + 64);
            found.push(element);
            // There is no room for more elements; `take` below returns the error.
            Ok((room == 0).then(|| end.clone()))
        })?;
        for element in &found {
            self.take(element.bytes())?;
        }
        fields.extend(found);
        Ok(())
    }

    /// Adds the keys whose collections have changed although their heads have not.
    fn find_owners(&mut self) -> Outcome {
        let mut known = BTreeSet::new();
        for key in &self.heads {
            for side in [&self.before, &self.after] {
                known.extend(side.head(key)?.map(|head| head.id));
            }
        }
        let mut strayed = HashSet::new();
        let touched: Vec<u64> =
            self.collections.keys().filter(|id| !known.contains(id)).copied().collect();
        for id in touched {
            match self.owner(id)? {
                Some(key) => {
                    self.take(key.len())?;
                    self.heads.insert(key);
                }
                None => drop(strayed.insert(id)),
            }
        }
        if strayed.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        for side in [&self.before, &self.after] {
            let mut steps = 0u32;
            side.walk(b"k", b"l", |tuple| {
                steps = steps.wrapping_add(1);
                if steps.is_multiple_of(256) {
                    (self.check)()?;
                }
                if let Some(head) = Head::decode(&tuple.value()?)
                    && strayed.contains(&head.id)
                {
                    found.push(tuple.key.slice(1..));
                }
                Ok(None)
            })?;
        }
        self.heads.extend(found);
        Ok(())
    }

    /// Returns the key in the owner tuple of a collection, if the head of the key refers to the
    /// collection.
    fn owner(&self, id: u64) -> Result<Option<Bytes>, Failure> {
        for side in [&self.after, &self.before] {
            if let Some(key) = side.get(&owner_key(id))?
                && side.head(&key)?.is_some_and(|head| head.id == id)
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}

impl Element {
    /// Returns the name of the element, and its value or score before and after.
    pub fn shown(&self) -> Result<(Bytes, [Option<Bytes>; 2]), Failure> {
        let (mut name, mut sides) = (self.part.clone(), [None, None]);
        for (side, stored) in sides.iter_mut().zip([&self.before, &self.after]) {
            if let Some(stored) = stored {
                let (found, value) = names::split(&self.part, stored.clone())?;
                (name, *side) = (found, Some(value));
            }
        }
        Ok((name, sides))
    }
    fn bytes(&self) -> usize {
        let len = |side: &Option<Bytes>| side.as_ref().map_or(0, Bytes::len);
        self.part.len() + len(&self.before) + len(&self.after)
    }
}
