//! Objects in memory, for tests and simulations: the reference for the behaviour of the other
//! places.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::RwLock;
use env::{Env, Machine};

use crate::Objects;
use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::object::{Condition, Listed, Object, Page, Part, Tag};

/// The number of entries of a page, which is the same as on servers.
const PAGE: usize = 1000;

/// Objects in memory. A tag is a hash of the bytes, as on servers, so a stale tag is accepted when
/// the same bytes recur.
pub struct MemoryObjects {
    objects: RwLock<BTreeMap<Key, Stored>>,
    env: Arc<dyn Env>,
    page: usize,
}

#[derive(Clone)]
struct Stored {
    bytes: Bytes,
    tag: Tag,
    modified: Duration,
}

impl Default for MemoryObjects {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryObjects {
    /// Creates an empty place with the clock of the machine.
    pub fn new() -> Self {
        Self::with_env(Arc::new(Machine::default()))
    }

    /// Creates an empty place that takes the times of new objects from the clock of `env`.
    pub fn with_env(env: Arc<dyn Env>) -> Self {
        MemoryObjects { objects: RwLock::default(), env, page: PAGE }
    }

    /// Limits the pages of lists to this many entries, at least one.
    #[must_use]
    pub fn with_pages_of(self, entries: usize) -> Self {
        MemoryObjects { page: entries.max(1), ..self }
    }

    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.objects.read().len()
    }
}

impl fmt::Debug for MemoryObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryObjects").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// Returns whether this key clashes with an existing one, so that a folder could not hold both: one
/// of them is a folder of the other.
fn clash(objects: &BTreeMap<Key, Stored>, key: &Key) -> bool {
    let text = key.as_str();
    let folder = format!("{text}/");
    let next = objects.range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded)).next();
    let below = next.is_some_and(|(other, _)| other.as_str().starts_with(&folder));
    let above = || text.match_indices('/').any(|(slash, _)| objects.contains_key(&text[..slash]));
    below || above()
}

impl Objects for MemoryObjects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        let objects = self.objects.read();
        let found = objects.get(key).ok_or_else(|| ObjectsError::NotFound { key: key.clone() })?;
        let len = found.bytes.len() as u64;
        let range = part.within(key, len)?;
        // Both ends are at most the length of the bytes in memory.
        let bytes = found.bytes.slice(range.start as usize..range.end as usize);
        Ok(Object { bytes, tag: found.tag.clone(), len })
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        let tag = Tag::of(&bytes);
        let stored = Stored { bytes, tag: tag.clone(), modified: self.env.wall() };
        let mut objects = self.objects.write();
        match (condition, objects.get(key)) {
            (Condition::Absent, Some(_)) => {
                return Err(ObjectsError::ConditionFailed { key: key.clone() });
            }
            (Condition::Matches(_), None) => {
                return Err(ObjectsError::NotFound { key: key.clone() });
            }
            (Condition::Matches(tag), Some(old)) if old.tag != tag => {
                return Err(ObjectsError::ConditionFailed { key: key.clone() });
            }
            (_, None) if clash(&objects, key) => {
                return Err(ObjectsError::Invalid(format!(
                    "{key} cannot be created, because a folder and an object would have one name; \
                     choose another key"
                )));
            }
            _ => {}
        }
        objects.insert(key.clone(), stored);
        Ok(tag)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.objects.write().remove(key);
        Ok(())
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        let objects = self.objects.read();
        let start = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let mut found = objects
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(prefix));
        let listed = |(key, stored): (&Key, &Stored)| Listed {
            key: key.clone(),
            len: stored.bytes.len() as u64,
            modified: stored.modified,
        };
        let entries = found.by_ref().take(self.page).map(listed).collect();
        Ok(Page { entries, more: found.next().is_some() })
    }

    fn place(&self) -> String {
        "memory:".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_tag_is_accepted_when_the_same_bytes_recur() -> Result<()> {
        // Every server that was tried does the same. This is why a head has a nonce.
        let objects = MemoryObjects::new();
        let key = Key::new("head")?;
        let stale = objects.put(&key, Bytes::from("a"), Condition::Absent)?;
        let other = objects.put(&key, Bytes::from("b"), Condition::Matches(stale.clone()))?;
        assert_ne!(stale, other);
        objects.put(&key, Bytes::from("a"), Condition::Always)?;
        objects.put(&key, Bytes::from("c"), Condition::Matches(stale))?;
        assert_eq!(objects.get(&key, Part::Whole)?.bytes, "c");
        Ok(())
    }

    #[test]
    fn times_are_by_the_clock_that_was_given() -> Result<()> {
        let env = Arc::new(env::Simulated::new(1));
        let objects = MemoryObjects::with_env(env.clone());
        env.advance(Duration::from_secs(5));
        objects.put(&Key::new("a")?, Bytes::new(), Condition::Always)?;
        assert_eq!(objects.list("", "")?.entries[0].modified, env.wall());
        Ok(())
    }
}
