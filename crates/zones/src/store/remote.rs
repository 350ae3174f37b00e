//! Zones that lie in object storage: stores are opened with them, and written to it.

use std::sync::Arc;

use objects::Objects;

use super::{FormatOptions, Zones};
use crate::remote::{
    Home, Parts, Publication, Published, Remote, RemoteDevice, RemoteOptions, RemoteStats, Source,
    Watch, ZoneTable, publish, read_claim, take_parts, write_claim,
};
use crate::superblock::{self, REMOTE_VERSION, Superblock};
use crate::{Device, Error, Purpose, Result, ZONE_SIZE, ZoneId, ZonePin, ZoneUse};

impl Zones {
    /// Returns whether zones of the store on `device` lie in object storage.
    pub fn is_remote(device: &dyn Device) -> Result<bool> {
        Ok(superblock::read_newest(device)?.0.version == REMOTE_VERSION)
    }

    /// Opens a store of which zones lie in `objects`, if it is one ([`REMOTE_VERSION`]), and else
    /// as [`Zones::open`]. The device must allow writes, since parts of zones are kept there.
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
        let remote = Remote::new(objects, home.table, options);
        take_parts(&*device, &remote.parts)
            .map_err(|e| Error::io("reading which parts of zones are here", e))?;
        // After a crash nothing counts as here, and takes no space.
        let nothing = |zone: &ZoneId| !remote.parts.has_any(*zone);
        give_back(&*device, remote.table().zones().filter(nothing))?;
        Self::with_remote(device, superblock, copy, remote)
    }

    /// Makes a local file for a store whose zones are those of `home`, with the root to come: as
    /// after [`Zones::copy_to`], but that nothing is copied. All data on the device is lost, but
    /// that parts of zones stay which were here before, as of an older state of the same store.
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
        // Until the root is there it is no store: nothing of what it was may count with what comes.
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
        let remote = Remote::new(objects, home.table.clone(), remote);
        if let Some((table, parts)) = before {
            let same = |zone: &ZoneId| remote.table().has_same(*zone, &table);
            remote.parts.take_over(&parts, same);
        }
        // All else that lies in the file is of an older state, or of another store.
        let end = device.len().map_err(failed)?.div_ceil(ZONE_SIZE);
        let all = (1..u32::try_from(end).unwrap_or(u32::MAX)).map(ZoneId);
        give_back(&*device, all.filter(|zone| !remote.parts.has_any(*zone)))?;
        Self::with_remote(device, superblock, 1, remote)
    }

    /// Returns where the zones of a local file lie, and which of their parts are here.
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
        let mut uses = ZoneUse::new();
        remote.table().zones().for_each(|zone| uses.add(zone, 0));
        let remote = Arc::new(remote);
        let device = Arc::new(RemoteDevice::new(device, remote.clone()));
        let mut zones = Self::build(device, superblock, copy)?;
        zones.allocator.pin(&uses)?;
        zones.remote = Some((remote, ZonePin::counted(&zones.allocator, uses)));
        Ok(Arc::new(zones))
    }

    /// The zones that lie in object storage.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref().map(|(remote, _)| &**remote)
    }

    /// Where the zones lie that are in object storage, of a store that has such.
    pub fn remote_table(&self) -> Option<&ZoneTable> {
        self.remote().map(Remote::table)
    }

    /// Returns the note that the maker of the local file has left in it.
    pub fn home_note(&self) -> Result<Option<Vec<u8>>> {
        self.remote().map(|_| Home::read(&self.device).map(|home| home.note)).transpose()
    }

    /// Returns the note about the right to publish that was written last, of a store with zones in
    /// object storage; `None`: there is none.
    pub fn claim_note(&self) -> Result<Option<Vec<u8>>> {
        self.remote().map_or(Ok(None), |_| read_claim(&self.device))
    }

    /// Writes the note about the right to publish, durably, in place of the one before. It is in
    /// this file alone, and part of no state that is published.
    pub fn write_claim_note(&self, note: &[u8]) -> Result<()> {
        match self.remote() {
            Some(_) => write_claim(&self.device, note),
            None => Err(Error::Invalid("a store that has all of its zones itself".into())),
        }
    }

    /// Returns whether a zone lies in object storage. Then it is never free here.
    pub fn is_remote_zone(&self, zone: ZoneId) -> bool {
        self.remote().is_some_and(|remote| remote.parts.is_remote(zone))
    }

    /// Returns the requests to object storage, of a store with zones there.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.remote().map(Remote::stats)
    }

    /// Writes the zones of `uses` to object storage, but for what is known to lie there. The caller
    /// keeps the zones pinned, and nothing that it publishes may refer to bytes that are written
    /// during the call. Writes are counted from the first call on, so that the next one need not
    /// read what was not written since.
    pub fn publish(
        &self,
        uses: &ZoneUse,
        how: &Publication<'_>,
        progress: &mut Watch<'_>,
    ) -> Result<Published> {
        let read = |zone: ZoneId, bytes: &mut [u8]| self.read(Purpose::Pages, zone.start(), bytes);
        // Zones that came from another place are copied, since they are not there.
        let is_there = |remote: &&Remote| how.shares && remote.is_from(how.objects);
        let there = self.remote().filter(is_there);
        self.writes.watch();
        let (table, writes) = (there.map(Remote::table), |zone| self.writes.of(zone));
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
