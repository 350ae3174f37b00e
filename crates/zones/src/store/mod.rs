//! The store: device, allocator and superblock combined. This module creates and opens stores and
//! replaces the root. `io` reads, writes and syncs. `free_zones` takes zones and gives them back.
//! `remote` handles zones in object storage. `rehearsal` is a device that shows the zones of a
//! store.

mod free_zones;
mod io;
mod rehearsal;
mod remote;

pub use self::rehearsal::Rehearsal;
use self::remote::RemoteZones;
use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use env::sync::Mutex;

use crate::allocator::Allocator;
use crate::device::copy_range;
use crate::remote::Writes;
use crate::superblock::{
    self, COPIES, FORMAT_VERSION, MAX_ROOT, Profile, REMOTE_VERSION, Superblock,
};
use crate::{
    CountDevice, Device, Error, Lifetime, Priority, Purpose, Result, SECTOR, ZONE_SIZE, ZoneId,
    ZonePin, ZoneUse, round_up,
};

/// Options of a new store.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// The number of bytes to which the store may grow, rounded down to whole zones, or `None` if
    /// only the host limits it.
    pub capacity: Option<u64>,
    /// The number of free zones that user data must leave for flushes, merges and deletions.
    pub reserve_zones: u32,
    /// The kind of the device.
    pub profile: Profile,
}

impl Default for FormatOptions {
    fn default() -> Self {
        FormatOptions { capacity: None, reserve_zones: 8, profile: Profile::Unknown }
    }
}

/// A store: a device divided into zones. All readers and writers share it.
pub struct Zones {
    device: CountDevice,
    allocator: Arc<Allocator>,
    /// The number of bytes to which the store may grow, as recorded in the superblock.
    capacity: Option<u64>,
    /// The lock that is held while space is requested from the host or given back to it.
    growing: Mutex<()>,
    /// The newest superblock, and the index of the copy in which it lies. The lock is held while a
    /// root is written and synced, so reads do not take it.
    superblock: Mutex<(Superblock, usize)>,
    /// The last known length of the device, in bytes.
    device_len: AtomicU64,
    syncing: Mutex<()>,
    syncs_begun: AtomicU64,
    syncs_done: AtomicU64,
    poisoned: AtomicBool,
    /// The error of the first failed sync.
    poison: Mutex<Option<Error>>,
    /// The zones that lie in object storage.
    remote: Option<RemoteZones>,
    /// The counts of the writes of each zone, in a store that is published.
    writes: Writes,
}

impl Zones {
    /// Creates an empty store, which is already started. All data on the device is lost.
    pub fn format(device: Arc<dyn Device>, options: FormatOptions) -> Result<Arc<Zones>> {
        let uuid = random_uuid().map_err(|e| Error::io("drawing a random uuid", e))?;
        Self::format_as(device, options, uuid)
    }

    /// Creates an empty store like [`Zones::format`], but with a given uuid, so that a simulation
    /// can be reproduced byte by byte.
    pub fn format_as(
        device: Arc<dyn Device>,
        options: FormatOptions,
        uuid: [u8; 16],
    ) -> Result<Arc<Zones>> {
        let least = u64::from(options.reserve_zones) + 2;
        let capacity = options.capacity.map(|c| c / ZONE_SIZE * ZONE_SIZE);
        if capacity.is_some_and(|c| c / ZONE_SIZE < least) {
            return Err(Error::Invalid(format!(
                "a store needs at least {least} zones of 8 MiB: {} bytes",
                least * ZONE_SIZE
            )));
        }
        let doing = "making room for a new store";
        let len = device.len().map_err(|e| Error::io(doing, e))?;
        if len < ZONE_SIZE {
            device.grow(ZONE_SIZE).map_err(|e| Error::io(doing, e))?;
        }
        let superblock = Superblock {
            uuid,
            version: FORMAT_VERSION,
            generation: 1,
            capacity,
            reserve_zones: options.reserve_zones,
            profile: options.profile,
            root: Vec::new(),
        };
        let zones = Self::new(device, superblock, 1)?;
        zones.start();
        zones.fill_reserve()?;
        // Before the last write, one copy may belong to an old store. It cannot be mistaken for a
        // copy of this store, because its uuid differs.
        {
            let newest = zones.superblock.lock();
            zones.write_superblock(&newest.0, 1)?;
            zones.write_superblock(&newest.0, 0)?;
        }
        Ok(zones)
    }

    /// Creates a store on `device` with a copy of every zone of `uses` at the same address, and
    /// holes between them. The store has the capacity, the reserve and the profile of this store.
    /// The copy is not started: its data must be pinned first, as after [`Zones::open`]. It must be
    /// given a root before it can be opened. The caller must keep these zones pinned until the call
    /// returns.
    pub fn copy_to(
        &self,
        device: Arc<dyn Device>,
        uses: &ZoneUse,
        uuid: [u8; 16],
    ) -> Result<Arc<Zones>> {
        let doing = "copying the store";
        let last = uses.iter().last().map_or(ZoneId(0), |(zone, _)| zone);
        self.check_range(ZONE_SIZE, last.end() - ZONE_SIZE)?;
        device.lengthen(last.end()).map_err(|e| Error::io(doing, e))?;
        for (zone, _) in uses.iter() {
            copy_range(&self.device, &*device, zone.start(), ZONE_SIZE)
                .map_err(|e| Error::io(format!("copying {zone} of the store"), e))?;
        }
        let own = self.superblock();
        let superblock =
            Superblock { uuid, version: FORMAT_VERSION, generation: 1, root: Vec::new(), ..own };
        Self::new(device, superblock, 1)
    }

    /// Opens a store at its newest valid superblock. Nothing can be allocated before
    /// [`Zones::start`].
    pub fn open(device: Arc<dyn Device>) -> Result<Arc<Zones>> {
        let (superblock, copy) = superblock::read_newest(&*device)?;
        if superblock.version == REMOTE_VERSION {
            return Err(Error::Remote);
        }
        Self::new(device, superblock, copy)
    }

    /// Opens a damaged store for reading only. Uses the newest copy of the superblock that can be
    /// read, or a superblock without a root if neither copy can be read. Also returns the errors of
    /// the copies.
    pub fn open_remains(device: Arc<dyn Device>) -> Result<(Arc<Zones>, Vec<Error>)> {
        let (copies, errors) = superblock::read_remains(&*device);
        let newest = copies.into_iter().max_by_key(|(s, _)| s.generation);
        if newest.as_ref().is_some_and(|(s, _)| s.version == REMOTE_VERSION) {
            return Err(Error::Remote);
        }
        let nothing = || {
            let (uuid, root) = ([0; 16], Vec::new());
            (
                Superblock {
                    uuid,
                    version: FORMAT_VERSION,
                    generation: 0,
                    capacity: None,
                    reserve_zones: 0,
                    profile: Profile::Unknown,
                    root,
                },
                0,
            )
        };
        let (superblock, copy) = newest.unwrap_or_else(nothing);
        Ok((Self::new(device, superblock, copy)?, errors))
    }

    /// Returns the number of zones on the device, including an incomplete last zone.
    pub fn zones_on_device(&self) -> u32 {
        let len = self.device_len.load(Ordering::Acquire);
        u32::try_from(len.div_ceil(ZONE_SIZE)).unwrap_or(u32::MAX)
    }

    fn new(device: Arc<dyn Device>, superblock: Superblock, copy: usize) -> Result<Arc<Zones>> {
        Self::build(device, superblock, copy).map(Arc::new)
    }

    fn build(device: Arc<dyn Device>, superblock: Superblock, copy: usize) -> Result<Zones> {
        let device = CountDevice::new(device);
        let device_len =
            device.len().map_err(|e| Error::io("asking for the size of the device", e))?;
        // The last number is `ZoneId::NOWHERE`.
        let most = |bytes: u64| {
            u32::try_from(bytes / ZONE_SIZE).unwrap_or(u32::MAX).min(ZoneId::NOWHERE.0 - 1)
        };
        let most_bytes = if device.can_grow() { u64::MAX } else { device_len };
        let limit = most(superblock.capacity.unwrap_or(u64::MAX).min(most_bytes));
        let allocator = Arc::new(Allocator::new(most(device_len), limit, superblock.reserve_zones));
        Ok(Zones {
            device,
            allocator,
            capacity: superblock.capacity,
            growing: Mutex::new(()),
            superblock: Mutex::new((superblock, copy)),
            device_len: AtomicU64::new(device_len),
            syncing: Mutex::new(()),
            syncs_begun: AtomicU64::new(0),
            syncs_done: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            poison: Mutex::new(None),
            remote: None,
            writes: Writes::default(),
        })
    }

    /// Returns the newest superblock.
    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().0.clone()
    }

    /// Syncs everything written before, then replaces the root (at most [`MAX_ROOT`] bytes), and
    /// then syncs the new root. After a crash or an error the store has the old root or the new
    /// one. The root is written to both copies of the superblock, so that the loss of one copy
    /// loses nothing.
    pub fn set_root(&self, root: &[u8]) -> Result<()> {
        if root.len() > MAX_ROOT {
            return Err(Error::Invalid(format!(
                "a root of {} bytes; at most {MAX_ROOT} fit",
                root.len()
            )));
        }
        self.sync()?;
        let mut newest = self.superblock.lock();
        let mut next = newest.0.clone();
        next.generation += 1;
        next.version = next.version.max(FORMAT_VERSION);
        next.root = root.to_vec();
        let older = 1 - newest.1;
        self.write_superblock(&next, older)?;
        *newest = (next, older);
        self.write_superblock(&newest.0, 1 - older)
    }

    /// Writes and syncs one copy of the superblock. The caller holds the lock of the superblock, so
    /// that the copies are never in flight at the same time.
    fn write_superblock(&self, superblock: &Superblock, copy: usize) -> Result<()> {
        self.healthy()?;
        superblock::write_copy(&self.device, superblock, copy)
            .map_err(|e| Error::io("writing the superblock", e))?;
        self.sync()
    }

    /// Reads both copies of the superblock again and returns their errors. A copy that is older
    /// than the other one is not an error, because a crash between the two writes leaves such a
    /// copy.
    pub fn check_superblocks(&self) -> Vec<Error> {
        let _steady = self.superblock.lock();
        COPIES
            .iter()
            .filter_map(|&addr| {
                superblock::read_copy(&self.device, addr).err().map(|e| match e {
                    Error::NotAStore => Error::corrupt("a superblock is missing", addr),
                    other => other,
                })
            })
            .collect()
    }

    /// Pins the zones of `uses`. Before [`Zones::start`], recovery pins all data that is alive.
    /// After it, the zones must already be pinned. Returns [`Error::Corrupt`] if the store does not
    /// have these zones.
    pub fn pin(&self, uses: &ZoneUse) -> Result<ZonePin> {
        self.allocator.pin(uses)?;
        Ok(ZonePin::counted(&self.allocator, uses.clone()))
    }

    /// Records a live extent that may lie after the positions given to [`Zones::resume`], such as
    /// an extent to which only the journal refers. Must be called before [`Zones::start`]. The zone
    /// of the extent must also be pinned.
    pub fn saw_extent(&self, addr: u64, len: u64) {
        self.allocator.saw_extent(addr, len);
    }

    /// Resumes a stream in its zone at `addr`, rounded up to a sector, or after the last extent
    /// given to [`Zones::saw_extent`] in that zone. Must be called before [`Zones::start`]. At the
    /// start, the call has no effect if the zone no longer belongs to the stream: if the zone is
    /// beyond the device, is not pinned, or has more bytes alive than lie before `addr`.
    pub fn resume(&self, purpose: Purpose, addr: u64) {
        let mut state = self.allocator.lock();
        let zone = ZoneId::of(addr);
        if state.started || zone == ZoneId::NOWHERE {
            return;
        }
        let next = round_up(addr - zone.start(), SECTOR);
        // The lifetime was not recorded and hardly matters, so the first stream without a zone gets
        // the zone.
        if let Some(stream) =
            state.streams.lifetimes(purpose).iter_mut().find(|s| s.zone().is_none())
        {
            // `start` determines the depth of the reserve at which the zone was taken.
            stream.open(zone.0, next, Priority::User);
        }
    }

    /// Declares that the store was closed with [`Zones::give_all_back`], so that the host has space
    /// only for zones in use. Must be called before [`Zones::start`]. The host may lack space for a
    /// part of the zones in `partly`, which must be pinned. These zones are allocated again when
    /// they are free, before they are used.
    pub fn was_given_back(&self, partly: impl IntoIterator<Item = ZoneId>) {
        let mut state = self.allocator.lock();
        state.given_back = true;
        for zone in partly {
            if let Some(known) = state.zones.get_mut(zone.0 as usize) {
                known.partial = true;
            }
        }
    }

    /// Requests the space of a whole pinned zone from the host again, before [`Zones::start`] of a
    /// store that was closed. The content of the zone stays. Returns `false` if the host has no
    /// space for it. In that case the space is requested once more when the zone is free.
    pub fn allocate_again(&self, zone: ZoneId) -> bool {
        let allocated = self.device.allocate(zone.start(), ZONE_SIZE).is_ok();
        if !allocated {
            self.was_given_back([zone]);
        }
        allocated
    }

    /// Frees all zones that are not pinned, and allows allocation. Recovery calls it after it has
    /// pinned all data that is alive. If the store was closed, the reserve is requested from the
    /// host again.
    pub fn start(&self) {
        self.allocator.start();
        let given_back = self.allocator.lock().given_back;
        let streams = if given_back { self.positions() } else { Vec::new() };
        for (_, addr) in streams {
            let zone = ZoneId::of(addr);
            // If the host has no space for the rest of its zone, a stream continues in another
            // zone.
            if self.device.allocate(addr, zone.end() - addr).is_err() {
                self.allocator.lock().close_stream(zone);
            }
        }
        if given_back {
            // On a full host the reserve is requested again when it is needed.
            _ = self.fill_reserve();
        }
    }

    /// Returns the position of each open stream, for [`Zones::resume`]. All objects of a stream
    /// that were placed so far lie in other zones or before the position. Objects that are placed
    /// later may also lie before the position, in space that a writer gave back.
    pub fn positions(&self) -> Vec<(Purpose, u64)> {
        // Only zones with room count, because the end of a full zone is an address in another zone.
        self.allocator.lock().streams.positions()
    }

    /// Returns the number of bytes that are left in the open zone of a stream.
    pub fn room(&self, purpose: Purpose, lifetime: Lifetime) -> u64 {
        self.allocator.lock().streams.of(purpose, lifetime).rest()
    }

    /// Takes a whole zone, preferably one that was written before, and counts all of it as alive.
    /// The zone is written with [`Zones::write`], and recovery must pin it as [`ZoneUse::whole`].
    pub fn take_zone(&self, purpose: Purpose, priority: Priority) -> Result<(ZoneId, ZonePin)> {
        let mut pin = self.acquire(priority)?;
        let Some((zone, _)) = pin.uses().iter().next() else { return Err(Error::NoSpace) };
        self.allocator.lock().used_for(zone, purpose);
        pin.charge(zone, ZONE_SIZE);
        Ok((zone, pin))
    }

    /// Promises space for data that will be written with [`Priority::Promised`]. From now on,
    /// allocations with [`Priority::User`] leave this space free. Before the call, the caller must
    /// check that the store has enough space ([`Zones::space`]).
    pub fn promise(&self, bytes: u64) {
        self.allocator.promise(bytes);
    }

    /// Ends a promise of `bytes`, after the data was written or dropped.
    pub fn release(&self, bytes: u64) {
        self.allocator.release(bytes);
    }

    /// Reserves a zone for an [`ExtentWriter`](crate::ExtentWriter) that must not fail for lack of
    /// space. See [`ExtentWriter::supply`](crate::ExtentWriter::supply).
    pub fn reserve_zone(&self, priority: Priority) -> Result<ZonePin> {
        self.acquire(priority)
    }
}

impl fmt::Debug for Zones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zones").field("space", &self.space()).finish_non_exhaustive()
    }
}

/// Returns a random (version 4) uuid from the kernel.
fn random_uuid() -> std::io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
