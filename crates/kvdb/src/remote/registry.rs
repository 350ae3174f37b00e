//! The registry of forks. It has one object for each fork, which names the fork's base: the state
//! that the fork began as. Objects that the base refers to are kept while the fork is registered.
//!
//! To fork, a machine reads the head, registers the fork, and reads the head again; if the head
//! names another state by then, it starts over. So the base is still the newest state when its fork
//! is registered. A reader that no longer finds the state in the head therefore finds the
//! registration, provided that it reads the registry after the heads.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use env::Env;
use objects::{Created, Key, ObjectsError, Part, Patience, create};

use super::changes::{StateChanges, StateName, put_object, take_object};
use super::contents::{delete, each_listed, is_there};
use super::head::{Head, newer, opened, seal};
use super::{RemotePlace, RemoteStore, random_id};
use crate::error::{Error, Result};
use crate::log::codec::{Decoder, put_bytes, put_varint};

const MAGIC: [u8; 8] = *b"KVFSFORK";
/// Maximum bytes of a label.
pub(crate) const LONGEST_LABEL: usize = 256;
/// The version of a registration, and of one whose base was stored in a head.
const VERSION: u32 = 1;
const VERSION_WITH_CHANGES: u32 = 2;
/// Maximum bytes of a registration, slightly more than that of a head.
const MOST: u64 = 68 << 10;
/// Number of times that the registration of a fork is repeated because the store was published in
/// the meantime.
const ATTEMPTS: u32 = 16;

/// The identifier of a fork in the registry of the store that it came from. It is random, like the
/// names of lists of dead objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForkId(pub [u8; 16]);

/// Formats the id as 32 hexadecimal digits.
impl fmt::Display for ForkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses exactly the format that [`fmt::Display`] writes.
impl FromStr for ForkId {
    type Err = Error;

    fn from_str(text: &str) -> Result<ForkId> {
        let number = u128::from_str_radix(text, 16).map(|n| ForkId(n.to_be_bytes()));
        number.ok().filter(|id| id.to_string() == text).ok_or_else(|| {
            Error::Invalid(format!("{text:?} is no number of a fork: it has 32 of 0-9 and a-f"))
        })
    }
}

/// Options of a fork's registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkOptions {
    /// The time for which the registration is valid, by the clock of the place. `None` means that
    /// it is valid until it is dropped.
    pub lifetime: Option<Duration>,
    /// A label that names the owner of the fork, at most 256 bytes.
    pub label: String,
    /// The snapshot of the main branch to which the fork is rolled back before anything is written.
    /// The fork's changes are its differences from that snapshot. `None` means that the fork
    /// continues from the newest state.
    pub snapshot: Option<String>,
}

/// A fork, as recorded in its registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkInfo {
    /// The id of the fork.
    pub id: ForkId,
    /// The label that names the owner of the fork.
    pub label: String,
    /// The generation of the state that the fork began as.
    pub generation: u64,
    /// When the fork was registered, by the clock of the place, since 1970.
    pub made: Duration,
    /// When the registration expires, by the same clock. `None` means never.
    pub expires: Option<Duration>,
}

/// The content of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub base: StateName,
    pub generation: u64,
    /// A duration rather than a point in time, so that the clock of the fork's machine does not
    /// matter.
    pub lifetime: Option<Duration>,
    pub label: String,
}

impl Registration {
    fn encode(&self) -> Vec<u8> {
        let StateName { object, changes } = &self.base;
        let version = if changes.is_some() { VERSION_WITH_CHANGES } else { VERSION };
        let mut body = version.to_le_bytes().to_vec();
        put_object(&mut body, object.as_ref());
        changes.iter().for_each(|changes| changes.encode(&mut body));
        put_varint(&mut body, self.generation);
        let nanos = self.lifetime.map_or(0, |time| time.as_nanos().clamp(1, u64::MAX.into()));
        put_varint(&mut body, nanos as u64);
        put_bytes(&mut body, self.label.as_bytes());
        seal(MAGIC, &body)
    }

    fn decode(bytes: &[u8]) -> Result<Registration> {
        const WHAT: &str = "the registration of a fork";
        let mut r = Decoder::new(opened(MAGIC, WHAT, bytes)?, WHAT);
        let version = r.u32()?;
        if !(VERSION..=VERSION_WITH_CHANGES).contains(&version) {
            return Err(newer(version));
        }
        let object = take_object(&mut r)?;
        let is_changed = version == VERSION_WITH_CHANGES;
        let changes = is_changed.then(|| StateChanges::decode(&mut r)).transpose()?;
        if object.is_none() && changes.is_none() {
            return Err(r.corrupt("it names no state"));
        }
        let base = StateName { object, changes };
        let (generation, nanos) = (r.varint()?, r.varint()?);
        let lifetime = Some(Duration::from_nanos(nanos)).filter(|time| !time.is_zero());
        let label = str::from_utf8(r.bytes()?).ok().filter(|label| label.len() <= LONGEST_LABEL);
        let label = label.ok_or_else(|| r.corrupt("its label is no text of 256 bytes"))?.to_owned();
        if !r.is_empty() {
            return Err(r.corrupt("it is too long"));
        }
        Ok(Registration { base, generation, lifetime, label })
    }

    /// Returns when the registration expires, given that it was put at `made`.
    pub(super) fn expires(&self, made: Duration) -> Option<Duration> {
        self.lifetime.map(|time| made.saturating_add(time))
    }
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    let Ok(fork) = Registration::decode(&seal(MAGIC, data)) else { return };
    assert_eq!(Registration::decode(&fork.encode()).ok(), Some(fork));
}

impl RemoteStore {
    fn fork_key(&self, fork: ForkId) -> Result<Key> {
        self.key('f', format_args!("{fork}"))
    }

    /// Registers a fork of the newest state, and returns the head that names that state.
    pub(super) fn registered_head(
        &self,
        env: &dyn Env,
        options: &ForkOptions,
    ) -> Result<(Head, ForkId)> {
        if options.label.len() > LONGEST_LABEL {
            let len = options.label.len();
            return Err(Error::Invalid(format!(
                "a label of {len} bytes: at most {LONGEST_LABEL} are kept with a fork"
            )));
        }
        let no_store = || Error::NoStore(self.place());
        let (mut head, mut tag) = self.tagged_head()?.ok_or_else(no_store)?;
        for _ in 0..ATTEMPTS {
            let base = head.state.clone().ok_or_else(no_store)?;
            let fork = self.register(ForkId(random_id(env)), &base, head.generation, options)?;
            match self.other_head(&tag) {
                Ok(None) => return Ok((head, fork)),
                Ok(Some((now, _))) if now.state.as_ref() == Some(&base) => return Ok((now, fork)),
                Ok(Some(now)) => (head, tag) = now,
                Err(e) => {
                    self.give_up_fork(fork);
                    return Err(e);
                }
            }
            self.give_up_fork(fork);
        }
        Err(Error::Limit(format!(
            "{} was published anew {ATTEMPTS} times while a fork of it was registered: try again",
            self.place()
        )))
    }

    fn register(
        &self,
        fork: ForkId,
        base: &StateName,
        generation: u64,
        options: &ForkOptions,
    ) -> Result<ForkId> {
        let ForkOptions { lifetime, label, .. } = options.clone();
        let entry = Registration { base: base.clone(), generation, lifetime, label };
        let (key, bytes) = (self.fork_key(fork)?, Bytes::from(entry.encode()));
        match create(&**self.objects(), &key, bytes, Patience::default()) {
            Ok(Created::Done(_)) => Ok(fork),
            Ok(Created::Taken(_)) => Err(Error::Exists(format!("{key} in {}", self.place()))),
            Err(e) => {
                // The registration may exist in spite of the error, so remove it.
                self.give_up_fork(fork);
                Err(e.into())
            }
        }
    }

    /// Removes the registration of a fork that could not be made. If the removal fails, the fork
    /// remains listed and can be dropped later.
    pub(crate) fn give_up_fork(&self, fork: ForkId) {
        if let Err(e) = self.drop_fork(fork) {
            tracing::warn!("the registration {fork} of a fork stays in {}: {e}", self.place());
        }
    }

    /// Reads a registration. Returns `None` if it was dropped.
    pub(super) fn registration(&self, fork: ForkId) -> Result<Option<Registration>> {
        let (key, part) = (self.fork_key(fork)?, Part::Range(0..MOST + 1));
        match objects::get_patiently(&**self.objects(), &key, part, Patience::default()) {
            Ok(object) => Registration::decode(&object.bytes).map(Some).map_err(|e| match e {
                Error::Corrupt(why) => {
                    Error::Corrupt(format!("{why}: {key} in {}", self.objects().place()))
                }
                other => other,
            }),
            Err(ObjectsError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns whether a fork is registered and has not expired. If so, no object of its base was
    /// deleted, and none will be until the fork has expired or was dropped and the grace has
    /// passed.
    pub(crate) fn is_registered(&self, env: &dyn Env, fork: ForkId) -> Result<bool> {
        let Some(entry) = self.registration(fork)? else { return Ok(false) };
        if entry.lifetime.is_none() {
            return Ok(true);
        }
        let (now, _) = RemotePlace::new(self.objects().clone()).clock(env)?;
        let (key, mut expires) = (self.fork_key(fork)?, None);
        each_listed(&**self.objects(), key.as_str(), &mut |listed| {
            expires = expires.max(entry.expires(listed.modified));
            Ok(())
        })?;
        Ok(expires.is_some_and(|expires| now < expires))
    }

    /// Returns the options that a fork was registered with, except for its snapshot. Returns `None`
    /// if it was dropped.
    pub fn fork_options(&self, fork: ForkId) -> Result<Option<ForkOptions>> {
        let entry = self.registration(fork)?;
        Ok(entry.map(|Registration { lifetime, label, .. }| ForkOptions {
            lifetime,
            label,
            snapshot: None,
        }))
    }

    /// Lists the registered forks of the store, including expired ones, in no particular order.
    pub fn forks(&self) -> Result<Vec<ForkInfo>> {
        let prefix = format!("f/{}/", self.name());
        let mut listed = Vec::new();
        each_listed(&**self.objects(), &prefix, &mut |entry| {
            let id = entry.key.as_str().strip_prefix(&prefix).and_then(|id| id.parse().ok());
            listed.extend(id.map(|id| (id, entry.modified)));
            Ok(())
        })?;
        let mut forks = Vec::new();
        for (id, made) in listed {
            let Some(entry) = self.registration(id)? else { continue };
            let expires = entry.expires(made);
            let Registration { generation, label, .. } = entry;
            forks.push(ForkInfo { id, label, generation, made, expires });
        }
        Ok(forks)
    }

    /// Drops the registration of a fork. From then on, data that the fork has not fetched may be
    /// deleted. Returns `false` if the fork was not registered.
    pub fn drop_fork(&self, fork: ForkId) -> Result<bool> {
        let key = self.fork_key(fork)?;
        let was = is_there(&**self.objects(), &key)?;
        delete(&**self.objects(), &key)?;
        Ok(was)
    }
}

#[cfg(test)]
mod tests {
    use super::super::changes::StateObject;
    use super::*;

    #[test]
    fn a_registration_comes_back_and_damage_is_an_error() {
        let key = Key::new("c/a/3-0").expect("a key");
        let base = StateName::from(StateObject { key, len: 1000, checksum: 5 });
        let lifetime = Some(Duration::from_secs(7));
        let fork = Registration { base, generation: 9, lifetime, label: "host".into() };
        let bytes = fork.encode();
        assert_eq!(Registration::decode(&bytes).expect("a registration"), fork);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Registration::decode(&bad), Err(Error::Corrupt(_))), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            parse(&bytes[..cut]);
            parse(&bytes[12..][..cut.min(bytes.len() - 12)]);
        }
    }

    #[test]
    fn a_number_is_what_is_shown() {
        let id = ForkId([0x0a; 16]);
        assert_eq!(id.to_string().parse::<ForkId>().expect("a number"), id);
        for bad in ["", "0a", &"0A".repeat(16), &"0a".repeat(17), &format!("+{}", "0".repeat(31))] {
            assert!(bad.parse::<ForkId>().is_err(), "{bad}");
        }
    }
}
