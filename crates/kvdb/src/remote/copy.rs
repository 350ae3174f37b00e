//! Makes a local file that refers to a published state: a store like any other, but with no data in
//! the file yet. This costs two requests, whatever the size of the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use objects::SecretId;
use vt_tree::{BlockCache, Run};
use zones::remote::{Home, ZoneTable};
use zones::{Device, FormatOptions, Zones};

use super::{
    ClaimNote, Error, ForkId, ForkOptions, Head, RemoteStore, RemoteZones, Result, Right, random_id,
};
use crate::health::Health;
use crate::log::codec::{Decoder, put_bytes, put_varint};
use crate::manifest::fork_bases::{NewBase, keep_base};
use crate::manifest::{Edit, Manifest, ManifestState};

/// The note of a local file about the published store that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalCopy {
    /// The place that the file was made from, as [`objects::Objects::place`] names it.
    pub place: String,
    /// The name of the store in that place.
    pub name: String,
    /// The generation of the published state.
    pub generation: u64,
    /// When that generation was published, nanoseconds since 1970.
    pub published: u64,
    /// The identity of the store that published the state.
    pub store: [u8; 16],
    /// The registration, if the file is a fork.
    pub fork: Option<ForkId>,
    /// The identity of the file, if the store is written through it at its address. A file that has
    /// neither this nor a registration is a cache.
    pub writer: Option<[u8; 16]>,
    /// The secret with which the objects of the place are encrypted.
    pub secret: Option<SecretId>,
}

/// Versions of the note of a cache, of a fork, and of a writer.
const VERSION: u8 = 1;
const VERSION_OF_FORKS: u8 = 2;
const VERSION_OF_WRITERS: u8 = 3;
/// Added to the version of the note if the objects of the place are encrypted.
const ENCRYPTED: u8 = 3;

impl LocalCopy {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let version = match (self.fork, self.writer) {
            (None, None) => VERSION,
            (Some(_), _) => VERSION_OF_FORKS,
            (None, Some(_)) => VERSION_OF_WRITERS,
        };
        let mut note = vec![version + if self.secret.is_some() { ENCRYPTED } else { 0 }];
        put_bytes(&mut note, self.place.as_bytes());
        put_bytes(&mut note, self.name.as_bytes());
        put_varint(&mut note, self.generation);
        put_varint(&mut note, self.published);
        note.extend_from_slice(&self.store);
        let id = self.fork.map(|fork| fork.0).or(self.writer);
        id.iter().for_each(|id| note.extend_from_slice(id));
        self.secret.iter().for_each(|secret| note.extend_from_slice(&secret.0));
        note
    }

    pub(crate) fn decode(note: &[u8]) -> Result<LocalCopy> {
        let mut r = Decoder::new(note, "what the local file says of its home");
        let version = r.u8()?;
        if !(VERSION..=VERSION_OF_WRITERS + ENCRYPTED).contains(&version) {
            return Err(r.corrupt("it has an unknown version"));
        }
        let is_encrypted = version > VERSION_OF_WRITERS;
        let version = if is_encrypted { version - ENCRYPTED } else { version };
        let mut text = || -> Result<String> {
            let text = str::from_utf8(r.bytes()?);
            text.map(str::to_owned).map_err(|_| Error::Corrupt("a place is not UTF-8".into()))
        };
        let (place, name) = (text()?, text()?);
        let (generation, published) = (r.varint()?, r.varint()?);
        let mut id =
            || -> Result<[u8; 16]> { r.take(16).map(|bytes| std::array::from_fn(|i| bytes[i])) };
        let store = id()?;
        let (fork, writer) = match version {
            VERSION_OF_FORKS => (Some(ForkId(id()?)), None),
            VERSION_OF_WRITERS => (None, Some(id()?)),
            _ => (None, None),
        };
        let secret = match is_encrypted {
            true => Some(SecretId(r.take(8)?.try_into().unwrap_or_default())),
            false => None,
        };
        if !r.is_empty() {
            return Err(r.corrupt("it is too long"));
        }
        Ok(LocalCopy { place, name, generation, published, store, fork, writer, secret })
    }

    /// Returns whether the file was made from this store.
    pub(crate) fn is_of(&self, store: &RemoteStore) -> bool {
        self.name == store.name() && self.place == store.objects().place()
    }

    /// Reads the note of the file on `device`. Returns `None` for a store that holds all of its
    /// zones itself.
    pub fn of(device: &dyn Device) -> Result<Option<LocalCopy>> {
        if !Zones::is_remote(device)? {
            return Ok(None);
        }
        LocalCopy::decode(&Home::read(device)?.note).map(Some)
    }
}

/// The kind of a local file. Every kind except a writer gets its own store identity.
pub(crate) enum Kind<'a> {
    Cache,
    /// A fork of the newest state, or of the named snapshot.
    Fork(ForkId, Option<&'a str>),
    /// The file through which the store is written: its identity, and its right to publish.
    Writer([u8; 16], &'a Right),
}

/// Fails unless all runs of the state are in zones of the table, which are pinned: any other zone
/// would be free locally and reused for other data. A published state must not have open zones or
/// its own journal either.
pub(crate) fn check_places(
    state: &ManifestState,
    table: &ZoneTable,
    zones: &Arc<Zones>,
) -> Result<()> {
    let corrupt = |why: &str| Err(Error::Corrupt(format!("a published state {why}")));
    if !state.segments.is_empty() || !state.streams.is_empty() {
        return corrupt("has a journal, or zones that it fills");
    }
    let cache = BlockCache::new(zones.clone(), 1 << 20);
    let kept = state.snapshots.values().flat_map(|snapshot| snapshot.dictionaries.values());
    let runs = state.dictionaries.values().chain(kept).flat_map(|d| d.runs.values());
    let mut seen = HashSet::new();
    for (_, run) in runs.filter(|(_, run)| seen.insert(run.as_ptr())) {
        let run = Run::decode(&cache, &mut &run[..])?;
        if run.uses().iter().any(|(zone, _)| table.pieces_of(zone).is_empty()) {
            return corrupt("refers to zones that are not in its zone table");
        }
    }
    Ok(())
}

/// Parses `data` for the fuzz targets. See [`super::parse`].
#[cfg(any(test, fuzzing))]
pub(super) fn parse(data: &[u8]) {
    let Ok(copy) = LocalCopy::decode(data) else { return };
    assert_eq!(LocalCopy::decode(&copy.encode()).ok(), Some(copy));
}

impl RemoteStore {
    /// Makes the file on `device` the local file of the newest state, like
    /// [`RemoteStore::copy_to`], unless it already is. Cached parts of zones that have not changed
    /// are kept.
    pub fn refresh(&self, device: Arc<dyn Device>, env: Arc<dyn Env>) -> Result<LocalCopy> {
        let now = LocalCopy::of(&*device).ok().flatten();
        let head = self.head()?;
        let is_newest = |copy: &LocalCopy| {
            let newest = head
                .as_ref()
                .is_some_and(|head| (head.store, head.generation) == (copy.store, copy.generation));
            newest && copy.writer.is_none() && copy.is_of(self)
        };
        match now.filter(is_newest) {
            Some(copy) => Ok(copy),
            None => self.copy_of(head, Kind::Cache, device, env),
        }
    }

    /// Makes a local file of the newest state on `device`, whose contents are lost. When this
    /// returns without an error, the file is a store that can be opened with
    /// [`OpenOptions::remote`](crate::OpenOptions::remote) and read for a while. The place does not
    /// record this file, so the file loses data that is replaced there and then deleted by a
    /// collector. For a file that is to last, make a fork. See [`RemoteStore::fork_to`].
    pub fn copy_to(&self, device: Arc<dyn Device>, env: Arc<dyn Env>) -> Result<LocalCopy> {
        self.copy_of(self.head()?, Kind::Cache, device, env)
    }

    /// Makes a local file like [`RemoteStore::copy_to`] that is permanent and writable: an
    /// independent store. It is registered, so that the objects that it refers to are kept. This
    /// costs one put and three read requests, whatever the size of the store.
    pub fn fork_to(
        &self,
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        options: &ForkOptions,
    ) -> Result<LocalCopy> {
        let (head, fork) = self.registered_head(&*env, options)?;
        let kind = Kind::Fork(fork, options.snapshot.as_deref());
        self.copy_of(Some(head), kind, device, env).inspect_err(|_| self.give_up_fork(fork))
    }

    pub(crate) fn copy_of(
        &self,
        head: Option<Head>,
        kind: Kind<'_>,
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
    ) -> Result<LocalCopy> {
        let state = head.as_ref().and_then(|head| head.state.clone());
        let (Some(head), Some(state)) = (head, state) else {
            return Err(Error::NoStore(self.place()));
        };
        let Head { generation, published, store, .. } = head;
        let state = self.get_state(&state)?;
        let mut manifest = state.manifest()?;
        if let Kind::Fork(_, snapshot) = kind {
            let published = Duration::from_nanos(published);
            let id = random_id(&*env);
            keep_base(&mut manifest, &NewBase { store, published, id, snapshot })?;
            // The store was closed in this state: there is no journal to replay.
            manifest.apply(Edit::Closed)?;
        }
        let (place, name) = (self.objects().place(), self.name().to_owned());
        let (uuid, fork, writer) = match kind {
            Kind::Cache => (random_id(&*env), None, None),
            Kind::Fork(fork, _) => (random_id(&*env), Some(fork), None),
            Kind::Writer(id, _) => (store, None, Some(id)),
        };
        let secret = self.objects().secret();
        let local = LocalCopy { place, name, generation, published, store, fork, writer, secret };
        let home = Home { note: local.encode(), table: state.known.table, first: state.first };
        let format = FormatOptions {
            // No limit: the file takes only the space for data that is read and written.
            capacity: None,
            reserve_zones: state.reserve_zones,
            profile: state.profile,
        };
        let remote = RemoteZones::new(self.objects().clone()).options();
        let objects = self.objects().clone();
        let zones = Zones::format_remote(device, &home, uuid, format, objects, remote)?;
        if let Kind::Writer(_, right) = kind {
            // Write the note before the file becomes a store: without the note the file would have
            // no right.
            let settled = *right == Right::default();
            let note = ClaimNote { right: right.clone(), settled };
            zones.write_claim_note(&note.encode())?;
        }
        check_places(&manifest, &home.table, &zones)?;
        zones.start();
        let mut manifest = Manifest::begin(zones, env, Arc::new(Health::default()), manifest, 0)?;
        manifest.vouch()?;
        Ok(local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_with_bytes_after_its_end_is_refused() {
        let copy = LocalCopy {
            place: "dir:/bucket".into(),
            name: "store".into(),
            generation: 7,
            published: 11,
            store: [1; 16],
            fork: None,
            writer: Some([2; 16]),
            secret: Some(SecretId([3; 8])),
        };
        let mut note = copy.encode();
        assert_eq!(LocalCopy::decode(&note).unwrap(), copy);
        note.push(0);
        assert!(matches!(LocalCopy::decode(&note), Err(Error::Corrupt(_))));
    }
}
