//! The contents of a place with stores: its keys and their meaning, its listings, and its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::sync::Mutex;
use env::{Env, thread};
use objects::{Condition, Key, Listed, Objects, ObjectsError, Part, Patience};
use zones::remote::ZoneObject;

use super::journal::JournalPlace;
use super::{ForkId, RemoteStore, random_id};
use crate::error::{Error, Result};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 16;
/// The number of attempts of a request, and the first pause between them, which doubles each time.
const REQUESTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(50);

/// A place in object storage, with all stores in it. The stores share objects with zones.
#[derive(Clone, Debug)]
pub struct RemotePlace {
    pub(super) objects: Arc<dyn Objects>,
}

impl RemotePlace {
    /// Returns the place with the stores in `objects`.
    pub fn new(objects: Arc<dyn Objects>) -> RemotePlace {
        RemotePlace { objects }
    }

    /// Returns the names of all heads, sorted, including stores that were unpublished or never
    /// completely published.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        each_listed(&*self.objects, "m/", &mut |entry| {
            names.extend(head_of(&entry.key).map(String::from));
            Ok(())
        })?;
        Ok(names)
    }

    /// Returns the time by the clock of the place, at some moment before the return, and the
    /// objects below `d/`. The time is the modification time of an object that is put for this
    /// purpose and then deleted, so the clocks of machines do not affect which objects are old.
    pub(super) fn clock(&self, env: &dyn Env) -> Result<(Duration, Vec<Listed>)> {
        let key = Key::new(format!("{NOW}{}", ForkId(random_id(env))))
            .map_err(|e| Error::Invalid(e.to_string()))?;
        let put = || self.objects.put(&key, Bytes::from_static(b"now"), Condition::Always);
        let mut found = None;
        let mut pause = PAUSE;
        for _ in 0..REQUESTS {
            patiently(put)?;
            let mut entries = Vec::new();
            each_listed(&*self.objects, "d/", &mut |entry| {
                entries.push(entry);
                Ok(())
            })?;
            if let Some(at) = entries.iter().position(|entry| entry.key == key) {
                found = Some((entries.swap_remove(at).modified, entries));
                break;
            }
            // The listing may be delayed. If this machine was suspended for long, a collector may
            // have deleted the object.
            thread::sleep(pause);
            pause *= 2;
        }
        if let Err(e) = delete(&*self.objects, &key) {
            tracing::debug!("{key} stays, until a collector deletes it: {e}");
        }
        let why = || "it was put, and is not listed".into();
        found.ok_or_else(|| ObjectsError::Busy { key: key.to_string(), why: why() }.into())
    }
}

/// The key prefix of objects that are put to learn the time.
pub(super) const NOW: &str = "d/now-";

/// The kind of an object that stores or forks refer to, decoded from its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// A state, or the note of a publication.
    State { store: &'a str, epoch: u32 },
    /// Bytes of zones.
    Zones(ZoneObject),
    /// Commits since a state, or the seal after them.
    Journal { store: &'a str, place: JournalPlace },
}

/// The key prefixes of all content.
pub(super) const CONTENT: [&str; 4] = ["c/", "p/", "z/", "j/"];

/// Returns the content that a key names. Returns `None` for a key of an unknown form.
pub(super) fn content_of(key: &Key) -> Option<Content<'_>> {
    let mut parts = key.as_str().split('/');
    let content = match (parts.next()?, parts.next()?, parts.next()?, parts.next()) {
        ("c" | "p", store, rest, None) => {
            RemoteStore::check_name(store).ok()?;
            Content::State { store, epoch: numbers(rest)?.0 }
        }
        ("j", store, rest, None) => {
            RemoteStore::check_name(store).ok()?;
            let (chain, number) = rest.split_once('-')?;
            let place = JournalPlace {
                chain: chain.parse::<ForkId>().ok()?.0,
                number: number.parse().ok().filter(|n: &u64| n.to_string() == number)?,
            };
            Content::Journal { store, place }
        }
        ("z", _, origin, Some(rest)) => {
            let (epoch, number) = numbers(rest)?;
            let object = ZoneObject { origin: origin.parse::<ForkId>().ok()?.0, epoch, number };
            // Reject a key whose hash does not match.
            object.key().ok().filter(|is| is == key)?;
            Content::Zones(object)
        }
        _ => return None,
    };
    parts.next().is_none().then_some(content)
}

/// Parses two numbers in their canonical form.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let (epoch, number) = text.split_once('-')?;
    let (epoch, number) = (epoch.parse().ok()?, number.parse().ok()?);
    (format!("{epoch}-{number}") == text).then_some((epoch, number))
}

/// Returns the name of the store if the key is that of a head.
pub(super) fn head_of(key: &Key) -> Option<&str> {
    let name = key.as_str().strip_prefix("m/")?.strip_suffix("/head")?;
    RemoteStore::check_name(name).ok().map(|()| name)
}

/// Returns the name of the store and the fork if the key is that of a registration.
pub(super) fn fork_of(key: &Key) -> Option<(&str, ForkId)> {
    let (name, id) = key.as_str().strip_prefix("f/")?.split_once('/')?;
    RemoteStore::check_name(name).ok()?;
    Some((name, id.parse().ok()?))
}

/// Retries a request as long as its error is transient, up to a limit.
pub(super) fn patiently<T>(mut request: impl FnMut() -> objects::Result<T>) -> objects::Result<T> {
    let mut pause = PAUSE;
    for _ in 1..REQUESTS {
        match request() {
            Err(e) if e.may_be_retried() => thread::sleep(pause),
            outcome => return outcome,
        }
        pause *= 2;
    }
    request()
}

/// Deletes an object, if it exists.
pub(super) fn delete(objects: &dyn Objects, key: &Key) -> Result<()> {
    Ok(patiently(|| objects.delete(key))?)
}

/// Returns whether an object with this key exists and is not empty.
pub(super) fn is_there(objects: &dyn Objects, key: &Key) -> Result<bool> {
    match objects::get_patiently(objects, key, Part::Range(0..1), Patience::default()) {
        Ok(_) | Err(ObjectsError::Damaged { .. }) => Ok(true),
        Err(ObjectsError::NotFound { .. } | ObjectsError::OutOfRange { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Fails if another store of the place is encrypted with another secret, or only one of the two
/// stores is encrypted: collectors must read all stores of a place.
pub(super) fn check_secret_of_others(objects: &dyn Objects) -> Result<()> {
    let page = patiently(|| objects.list("m/", ""))?;
    let Some(head) = page.entries.into_iter().find(|entry| head_of(&entry.key).is_some()) else {
        return Ok(());
    };
    let beginning = Part::Range(0..64);
    match objects::get_patiently(objects, &head.key, beginning, Patience::default()) {
        Err(e @ ObjectsError::Secret { .. }) => Err(e.into()),
        // Ignore any other damage of that store: it does not concern this one.
        _ => Ok(()),
    }
}

/// Calls `each` with all objects whose keys begin with `prefix`, by ascending key.
pub(super) fn each_listed(
    objects: &dyn Objects,
    prefix: &str,
    each: &mut dyn FnMut(Listed) -> Result<()>,
) -> Result<()> {
    let mut after = String::new();
    loop {
        let page = patiently(|| objects.list(prefix, &after))?;
        let before = after.clone();
        // A page may repeat entries of the previous page.
        for entry in page.entries.into_iter().filter(|e| e.key.as_str() > before.as_str()) {
            after = entry.key.to_string();
            each(entry)?;
        }
        if !page.more {
            return Ok(());
        }
        if after == before {
            // Fail: an object that is missing in the listing might be mistaken for one that does
            // not exist.
            let (key, why) = (prefix.to_owned(), "a list of it repeats itself".into());
            return Err(ObjectsError::Unsure { key, why }.into());
        }
    }
}

/// Calls `work` with each item, concurrently if there are many. Stops at the first error.
pub(super) fn at_once<'a, T: Sync>(
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<()> + Sync + Send,
) -> Result<()> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let turn = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if failure.lock().is_some() {
                return;
            }
            if let Err(e) = work(item) {
                failure.lock().get_or_insert(e);
                return;
            }
        }
    };
    thread::scope(|scope| {
        // Start threads only for many items: a few are not worth the cost.
        for _ in 0..(items.len() / AT_ONCE).min(AT_ONCE - 1) {
            scope.spawn(turn);
        }
        turn();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_it_names_or_nothing() {
        let key = |text: &str| Key::new(text).expect("a key");
        let zones = ZoneObject { origin: [0xab; 16], epoch: 3, number: 17 };
        let name = zones.key().expect("a key");
        assert_eq!(content_of(&name), Some(Content::Zones(zones)));
        let state = key("p/a.b/12-0");
        assert_eq!(content_of(&state), Some(Content::State { store: "a.b", epoch: 12 }));
        let origin = ForkId([0xab; 16]);
        for odd in [
            "c/a",
            "c/a/1",
            "c/a/01-0",
            "c/a/4294967296-0",
            "c/a/1-0/x",
            "c/a/1-0-0",
            "c/.a/1-0",
            "x/a/1-0",
            "z/00/ab/3-17",
            &format!("z/00/{origin}/3-17"),
            &format!("{name}/x"),
            &name.as_str().to_uppercase().replacen('Z', "z", 1),
        ] {
            assert_eq!(content_of(&key(odd)), None, "{odd}");
        }
        assert_eq!(head_of(&key("m/a/head")), Some("a"));
        assert_eq!(head_of(&key("m/a/b/head")), None);
        assert_eq!(fork_of(&key(&format!("f/a/{origin}"))), Some(("a", origin)));
        assert_eq!(fork_of(&key("f/a/b")), None);
    }

    #[test]
    fn many_items_are_each_worked_on_once_and_an_error_ends_it() {
        let done = Mutex::new(Vec::new());
        let items: Vec<u32> = (0..1000).collect();
        let work = |item: &u32| {
            done.lock().push(*item);
            Ok(())
        };
        at_once(&items, work).expect("no error");
        let mut all = std::mem::take(&mut *done.lock());
        all.sort_unstable();
        assert_eq!(all, items);
        let wrong = |_: &u32| Err(Error::Invalid("no".into()));
        assert!(at_once(&items, wrong).is_err());
    }
}
