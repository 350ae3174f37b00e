//! Zones that lie in object storage: opens stores with such zones, and publishes zones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use env::sync::Mutex;
use objects::Objects;

use super::rehearsal::Rehearsal;
use super::{FormatOptions, Zones};
use crate::remote::{
    FirstReads, Home, OnWait, Parts, Piece, Publication, Published, Remote, RemoteDevice,
    RemoteOptions, RemoteStats, Source, TableHold, Watch, ZoneTable, publish, read_claim,
    take_parts, write_claim, write_parts,
};
use crate::superblock::{self, FORMAT_VERSION, REMOTE_VERSION, Superblock};
use crate::{Device, Error, Purpose, Result, ZONE_SIZE, ZoneId, ZonePin, ZoneUse};

/// The number of pieces that are requested together when all are fetched.
const FETCHED_TOGETHER: usize = 32;
/// The bytes after which the parts fetched so far are recorded, so that a kill loses no more.
const NOTED_AFTER: u64 = 1 << 30;

/// The zones of a store that lie in object storage.
pub(super) struct RemoteZones {
    remote: Arc<Remote>,
    fetching: Arc<RemoteDevice>,
    /// The local file, without the parts that are missing in it.
    file: Arc<dyn Device>,
    /// Pins the zones of the table, which are never freed.
    pin: Mutex<ZonePin>,
}

/// Returns the zones of a table, without bytes.
fn uses_of(table: &ZoneTable) -> ZoneUse {
    let mut uses = ZoneUse::new();
    table.zones().for_each(|zone| uses.add(zone, 0));
    uses
}

impl Zones {
    /// Returns whether zones of the store on `device` lie in object storage.
    pub fn is_remote(device: &dyn Device) -> Result<bool> {
        Ok(superblock::read_newest(device)?.0.version == REMOTE_VERSION)
    }

    /// Opens a store whose zones lie in `objects`, if it is one ([`REMOTE_VERSION`]), or any other
    /// store like [`Zones::open`]. The device must allow writes, since parts of zones are kept
    /// there.
    pub fn open_remote(
        device: Arc<dyn Device>,
        objects: Arc<dyn Objects>,
        options: RemoteOptions,
    ) -> Result<Arc<Zones>> {
        let (superblock, copy) = superblock::read_newest(&*device)?;
        if superblock.version != REMOTE_VERSION {
            return Self::new(device, superblock, copy);
        }
        let home = Home::read(&*device)?;
        let remote = Remote::new(objects, home.table, home.first, options);
        let layout = remote.layout();
        take_parts(&*device, &layout.parts)
            .map_err(|e| Error::io("reading which parts of zones are here", e))?;
        // Zones of which no part counts as present, as after a crash, take no space.
        let nothing = |zone: &ZoneId| !layout.parts.has_any(*zone);
        give_back(&*device, layout.table.zones().filter(nothing))?;
        Self::with_remote(device, superblock, copy, remote)
    }

    /// Makes a local file for a store whose zones are those of `home`. The root is still missing,
    /// as after [`Zones::copy_to`], but nothing is copied. All data on the device is lost, except
    /// parts of zones that were present before, from an older state of the same store.
    pub fn format_remote(
        device: Arc<dyn Device>,
        home: &Home,
        uuid: [u8; 16],
        options: FormatOptions,
        objects: Arc<dyn Objects>,
        remote: RemoteOptions,
    ) -> Result<Arc<Zones>> {
        let doing = "making the local file of a store in object storage";
        let failed = |e| Error::io(doing, e);
        // Until it has the root, the device holds no store: its old content must not count with the
        // new.
        let before = Self::cached(&*device)?;
        device.lengthen(home.table.end().max(ZONE_SIZE)).map_err(failed)?;
        superblock::wipe(&*device).map_err(failed)?;
        home.write(&*device)?;
        let superblock = Superblock {
            uuid,
            version: REMOTE_VERSION,
            generation: 1,
            capacity: options.capacity,
            reserve_zones: options.reserve_zones,
            profile: options.profile,
            root: Vec::new(),
        };
        let remote = Remote::new(objects, home.table.clone(), home.first.clone(), remote);
        let layout = remote.layout();
        if let Some((table, parts)) = before {
            layout.parts.take_over(&parts, |zone| layout.table.same_until(zone, &table));
        }
        // All other data in the file belongs to an older state, or to another store.
        let end = device.len().map_err(failed)?.div_ceil(ZONE_SIZE);
        let all = (1..u32::try_from(end).unwrap_or(u32::MAX)).map(ZoneId);
        give_back(&*device, all.filter(|zone| !layout.parts.has_any(*zone)))?;
        Self::with_remote(device, superblock, 1, remote)
    }

    /// Returns a device that has these zones at the same addresses, without a copy of them, and a
    /// store on it like one made by [`Zones::copy_to`]: it must be given a root before it can be
    /// opened. The caller keeps the zones unchanged until both are dropped.
    pub fn rehearse(self: &Arc<Self>, uses: &ZoneUse) -> Result<(Arc<Rehearsal>, Arc<Zones>)> {
        let device = Arc::new(Rehearsal::new(self.clone(), uses.clone()));
        let superblock = Superblock {
            version: FORMAT_VERSION,
            generation: 1,
            capacity: None,
            reserve_zones: 0,
            root: Vec::new(),
            ..self.superblock()
        };
        let zones = Self::new(device.clone(), superblock, 1)?;
        Ok((device, zones))
    }

    /// Returns the zone table of a local file, and which parts of the zones are present.
    fn cached(device: &dyn Device) -> Result<Option<(ZoneTable, Parts)>> {
        if device.len().map_err(|e| Error::io("asking for the size of the device", e))? < ZONE_SIZE
            || !Self::is_remote(device).unwrap_or(false)
        {
            return Ok(None);
        }
        let Ok(home) = Home::read(device) else { return Ok(None) };
        let parts = Parts::new(home.table.zones());
        let taken = take_parts(device, &parts);
        taken.map_err(|e| Error::io("reading which parts of zones are here", e))?;
        Ok(Some((home.table, parts)))
    }

    fn with_remote(
        device: Arc<dyn Device>,
        superblock: Superblock,
        copy: usize,
        remote: Remote,
    ) -> Result<Arc<Zones>> {
        let (uses, remote) = (uses_of(&remote.layout().table), Arc::new(remote));
        let fetching = Arc::new(RemoteDevice::new(device.clone(), remote.clone()));
        let mut zones = Self::build(fetching.clone(), superblock, copy)?;
        zones.allocator.pin(&uses)?;
        let pin = Mutex::new(ZonePin::counted(&zones.allocator, uses));
        zones.remote = Some(RemoteZones { remote, fetching, file: device, pin });
        Ok(Arc::new(zones))
    }

    /// Returns the zones that lie in object storage.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref().map(|zones| &*zones.remote)
    }

    /// Keeps the zone table of the current state for its readers. See [`Zones::follow`].
    pub fn hold_table(&self) -> TableHold {
        self.remote().map(Remote::hold).unwrap_or_default()
    }

    /// Replaces the current state by another published state of the store, whose zone table is
    /// `table`. Parts of zones stay if they have the same bytes. Readers that keep a [`TableHold`]
    /// of earlier states continue. The store must be open for reading only; its local file holds no
    /// store from here on, until [`Zones::format_followed`].
    pub fn follow(&self, table: &Arc<ZoneTable>, first: FirstReads) -> Result<()> {
        let Some(zones) = &self.remote else {
            return Err(Error::Invalid("a store that has all of its zones itself".into()));
        };
        if zones.remote.is_closed() {
            return Err(Error::Invalid("a store that was closed".into()));
        }
        let failed = |e| Error::io("following a store in object storage", e);
        superblock::wipe(&*zones.file).map_err(failed)?;
        let len = table.end().max(ZONE_SIZE);
        if self.device_len.load(Ordering::Acquire) < len {
            zones.file.lengthen(len).map_err(failed)?;
            self.device_len.fetch_max(len, Ordering::AcqRel);
        }
        let uses = uses_of(table);
        self.allocator.follow(&uses);
        let pin = ZonePin::counted(&self.allocator, uses);
        zones.remote.follow(&*zones.file, table.clone(), first).map_err(failed)?;
        *zones.pin.lock() = pin;
        Ok(())
    }

    /// Makes the local file a store again after [`Zones::follow`], still without a root, as
    /// [`Zones::format_remote`] does. Cached parts stay.
    pub fn format_followed(&self, note: &[u8]) -> Result<Arc<Zones>> {
        let Some(zones) = &self.remote else {
            return Err(Error::Invalid("a store that has all of its zones itself".into()));
        };
        let layout = zones.remote.layout();
        let table = &layout.table;
        let (note, first) = (note.to_vec(), layout.first.clone());
        Home { note, table: ZoneTable::clone(table), first }.write(&*zones.file)?;
        let superblock = Superblock { generation: 1, root: Vec::new(), ..self.superblock() };
        let made = Self::new(zones.file.clone(), superblock, 1)?;
        // The store writes only to other zones, as long as it is open.
        made.allocator.pin(&uses_of(table))?;
        Ok(made)
    }

    /// Fetches everything that lies in object storage and is not yet in the local file. `progress`
    /// gets the bytes that are present, and the total. An error of `progress` ends the call.
    pub fn fetch_all(&self, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let Some(zones) = &self.remote else { return Ok(()) };
        let layout = zones.remote.layout();
        let pieces = layout.table.pieces();
        let total = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let mut done = 0;
        for some in pieces.chunks(FETCHED_TOGETHER) {
            progress(done, total)?;
            let range = |piece: &Piece| {
                (piece.zone.start() + u64::from(piece.offset), u64::from(piece.len))
            };
            let ranges: Vec<(u64, u64)> = some.iter().map(range).collect();
            zones
                .remote
                .fetch(&*zones.file, Purpose::Pages, &ranges)
                .map_err(|e| Error::io("fetching a store from object storage", e))?;
            let before = done;
            done += ranges.iter().map(|(_, len)| len).sum::<u64>();
            if done / NOTED_AFTER > before / NOTED_AFTER {
                write_parts(&*zones.file, &layout.parts)
                    .map_err(|e| Error::io("noting what was fetched", e))?;
            }
        }
        progress(done, total)
    }

    /// Reads bytes in another way, after a read returned wrong ones: from earlier states that are
    /// still read, or from object storage once more. `attempt` counts the ways from 0. Returns
    /// `false` if there is no other way.
    pub fn read_again(
        &self,
        purpose: Purpose,
        addr: u64,
        buf: &mut [u8],
        attempt: usize,
    ) -> Result<bool> {
        let Some(remote) = self.remote() else { return Ok(false) };
        self.check_range(addr, buf.len() as u64)?;
        let len = buf.len();
        remote
            .read_again(&self.device, purpose, addr, buf, attempt)
            .map_err(|e| Error::io(format!("reading {len} bytes of {purpose} at {addr}"), e))
    }

    /// Returns the zone table, if the store has zones in object storage.
    pub fn remote_table(&self) -> Option<Arc<ZoneTable>> {
        self.remote().map(|remote| remote.layout().table.clone())
    }

    /// Returns the note that the maker of the local file has left in it.
    pub fn home_note(&self) -> Result<Option<Vec<u8>>> {
        self.remote().map(|_| Home::read(&self.device).map(|home| home.note)).transpose()
    }

    /// Returns the last note about the right to publish of a store with zones in object storage, or
    /// `None` if there is none.
    pub fn claim_note(&self) -> Result<Option<Vec<u8>>> {
        self.remote().map_or(Ok(None), |_| read_claim(&self.device))
    }

    /// Replaces the note about the right to publish, durably. It is in this file alone, and is not
    /// part of any published state.
    pub fn write_claim_note(&self, note: &[u8]) -> Result<()> {
        match self.remote() {
            Some(_) => write_claim(&self.device, note),
            None => Err(Error::Invalid("a store that has all of its zones itself".into())),
        }
    }

    /// Returns whether a zone lies in object storage. Such a zone is never free.
    pub fn is_remote_zone(&self, zone: ZoneId) -> bool {
        self.remote().is_some_and(|remote| remote.layout().parts.is_remote(zone))
    }

    /// Returns whether a whole zone can be read now without a request.
    pub fn is_here_whole(&self, zone: ZoneId) -> bool {
        self.is_here(zone.start(), ZONE_SIZE)
    }

    /// Returns whether zones of the store lie in object storage.
    pub fn has_remote_zones(&self) -> bool {
        self.remote.is_some()
    }

    /// Returns whether these bytes can be read now without a request.
    pub fn is_here(&self, addr: u64, len: u64) -> bool {
        self.remote().is_none_or(|remote| remote.has(addr, len) || remote.has_first(addr, len))
    }

    /// Records in the local file of a store in object storage which parts were fetched into it, for
    /// the next opening. Nothing more may be written; reads continue, and keep nothing of what they
    /// fetch.
    pub fn close_remote(&self) {
        if let Some(zones) = &self.remote {
            zones.fetching.close();
        }
    }

    /// Makes each read of the index or of tuples that must wait for object storage call `on_wait`,
    /// on its thread, before it waits.
    pub fn set_on_wait(&self, on_wait: Arc<OnWait>) {
        if let Some(remote) = self.remote() {
            remote.set_on_wait(on_wait);
        }
    }

    /// Returns the statistics of requests to object storage, if the store has zones there.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.remote().map(Remote::stats)
    }

    /// Writes the zones of `uses` to object storage, except for pieces that are known to lie there.
    /// The caller keeps the zones pinned, and nothing that it publishes may refer to bytes that are
    /// written during the call. Writes are counted from the first call on, so that the next one
    /// need not read zones that were not written since.
    pub fn publish(
        &self,
        uses: &ZoneUse,
        how: &Publication<'_>,
        progress: &mut Watch<'_>,
    ) -> Result<Published> {
        let begun = self.remote().map(Remote::layout);
        let read = |zone: ZoneId, bytes: &mut [u8]| {
            self.read(Purpose::Pages, zone.start(), bytes)?;
            // The zone may have the bytes of a newer state, which only the layout shows.
            match (&begun, self.remote().map(Remote::layout)) {
                (Some(begun), Some(now)) if !Arc::ptr_eq(begun, &now) => Err(Error::Invalid(
                    "the store shows a newer state by now: publish it again".into(),
                )),
                _ => Ok(()),
            }
        };
        // Zones that came from another place are copied, since they are not in this one.
        let is_there = |remote: &&Remote| how.shares && remote.is_from(how.objects);
        let there = self.remote().filter(is_there);
        self.writes.watch();
        let (layout, writes) = (there.map(Remote::layout), |zone| self.writes.of(zone));
        let table = layout.as_ref().map(|layout| &*layout.table);
        publish(Source { read: &read, table, writes: &writes }, uses, how, progress)
    }
}

/// Gives zones back to the host, neighbours together.
fn give_back(device: &dyn Device, zones: impl Iterator<Item = ZoneId>) -> Result<()> {
    let zones: Vec<ZoneId> = zones.collect();
    for adjacent in zones.chunk_by(|a, b| a.end() == b.start()) {
        let (Some(first), Some(last)) = (adjacent.first(), adjacent.last()) else { continue };
        device
            .discard(first.start(), last.end() - first.start())
            .map_err(|e| Error::io("giving space back to the host", e))?;
    }
    Ok(())
}
