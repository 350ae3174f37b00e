//! Opens stores whose zones lie in object storage, and publishes zones.

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

/// The number of pieces that are requested together when all zones are fetched.
const FETCHED_TOGETHER: usize = 32;
/// The number of fetched bytes after which the fetched parts are recorded, so that a kill loses at
/// most this many bytes.
const NOTED_AFTER: u64 = 1 << 30;

/// The zones of a store that lie in object storage.
pub(super) struct RemoteZones {
    remote: Arc<Remote>,
    fetching: Arc<RemoteDevice>,
    /// The local file, which may lack parts of the zones.
    file: Arc<dyn Device>,
    /// The pin of the zones of the table, which are never freed.
    pin: Mutex<ZonePin>,
}

/// Returns the zones of a table, each with 0 bytes.
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

    /// Opens a store. If its version is [`REMOTE_VERSION`], its zones lie in `objects`; otherwise
    /// the store is opened like by [`Zones::open`]. The device must allow writes, because it stores
    /// parts of zones.
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
        // Zones without a present part, as after a crash, take no space.
        let nothing = |zone: &ZoneId| !layout.parts.has_any(*zone);
        give_back(&*device, layout.table.zones().filter(nothing))?;
        Self::with_remote(device, superblock, copy, remote)
    }

    /// Creates a local file for a store with the zones of `home`. Nothing is copied. The root is
    /// still missing, as after [`Zones::copy_to`]. All data on the device is lost, except for parts
    /// of zones that were present before from an older state of the same store.
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
        // Until it has a root, the device holds no store, because the old content must not be
        // combined with the new one.
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

    /// Returns a device that shows these zones at the same addresses without a copy, and a store on
    /// the device. As after [`Zones::copy_to`], the store must be given a root before it can be
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

    /// Returns the zone table of a local file, and the record of the parts that are present.
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
    /// `table`. Parts of zones stay if they have the same bytes. Readers with a [`TableHold`] of an
    /// earlier state continue. The store must be open for reading only. From this call until
    /// [`Zones::format_followed`], its local file holds no store.
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

    /// Makes the local file a store again after [`Zones::follow`]. As after
    /// [`Zones::format_remote`], the store has no root. Cached parts stay.
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
        // While the store is open, it writes only to other zones.
        made.allocator.pin(&uses_of(table))?;
        Ok(made)
    }

    /// Fetches everything that lies in object storage and is not yet in the local file. `progress`
    /// receives the number of bytes that are present, and the total. An error of `progress` ends
    /// the call.
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

    /// Reads bytes again after a read returned wrong ones, from earlier states that are still read
    /// or once more from object storage. `attempt` counts these sources from 0. Returns `false` if
    /// there is no further source.
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

    /// Returns the zone table if the store has zones in object storage.
    pub fn remote_table(&self) -> Option<Arc<ZoneTable>> {
        self.remote().map(|remote| remote.layout().table.clone())
    }

    /// Returns the note that the caller of [`Zones::format_remote`] has left in the local file.
    pub fn home_note(&self) -> Result<Option<Vec<u8>>> {
        self.remote().map(|_| Home::read(&self.device).map(|home| home.note)).transpose()
    }

    /// Returns the last note about the right to publish, or `None` if there is none or the store
    /// has no zones in object storage.
    pub fn claim_note(&self) -> Result<Option<Vec<u8>>> {
        self.remote().map_or(Ok(None), |_| read_claim(&self.device))
    }

    /// Replaces the note about the right to publish, durably. The note lies only in this file, and
    /// is not part of any published state.
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

    /// Returns whether all of a zone can be read now without a request.
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
    /// the next opening. Nothing more may be written. Reads continue, but do not store the data
    /// that they fetch.
    pub fn close_remote(&self) {
        if let Some(zones) = &self.remote {
            zones.fetching.close();
        }
    }

    /// Sets a callback for reads of the index or of tuples that must wait for object storage. Each
    /// such read calls `on_wait` on its thread before it waits.
    pub fn set_on_wait(&self, on_wait: Arc<OnWait>) {
        if let Some(remote) = self.remote() {
            remote.set_on_wait(on_wait);
        }
    }

    /// Returns the statistics of requests to object storage, if the store has such zones.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.remote().map(Remote::stats)
    }

    /// Writes the zones of `uses` to object storage, except for pieces that are known to lie there.
    /// The caller keeps the zones pinned, and the published data must not refer to bytes that are
    /// written during the call. Writes are counted from the first call on, so that the next call
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
        // Zones that came from another place are copied, because this place does not have them.
        let is_there = |remote: &&Remote| how.shares && remote.is_from(how.objects);
        let there = self.remote().filter(is_there);
        self.writes.watch();
        let (layout, writes) = (there.map(Remote::layout), |zone| self.writes.of(zone));
        let table = layout.as_ref().map(|layout| &*layout.table);
        publish(Source { read: &read, table, writes: &writes }, uses, how, progress)
    }
}

/// Gives zones back to the host, neighbouring zones together.
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
