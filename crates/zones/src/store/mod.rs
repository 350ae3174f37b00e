//! The store: device, allocator and superblock put together. Here it is made, opened, and given a
//! root; `io` reads, writes and syncs; `free_zones` takes zones and gives them back.

mod free_zones;
mod io;

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use env::sync::Mutex;

use crate::allocator::Allocator;
use crate::device::copy_range;
use crate::superblock::{self, COPIES, FORMAT_VERSION, MAX_ROOT, Superblock};
use crate::{
    CountDevice, Device, Error, Priority, Purpose, Result, SECTOR, ZONE_SIZE, ZoneId, ZonePin,
    ZoneUse, round_up,
};

/// How a new store is made.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes the store may grow to; `None` is as far as the host lets it. Counted in whole zones.
    pub capacity: Option<u64>,
    /// Zones that user data must leave for flushing, merging and deleting.
    pub reserve_zones: u32,
}

impl Default for FormatOptions {
    fn default() -> Self {
        FormatOptions { capacity: None, reserve_zones: 8 }
    }
}

/// A device as zones. Shared by everyone who reads or writes the store.
pub struct Zones {
    device: CountDevice,
    allocator: Arc<Allocator>,
    /// Held while the host is asked for space, or given some.
    growing: Mutex<()>,
    /// The newest superblock, and the copy that has it.
    superblock: Mutex<(Superblock, usize)>,
    /// Bytes of the device known to exist.
    device_len: AtomicU64,
    syncing: Mutex<()>,
    syncs_begun: AtomicU64,
    syncs_done: AtomicU64,
    poisoned: AtomicBool,
    /// The error of the first failed sync.
    poison: Mutex<Option<Error>>,
}

impl Zones {
    /// Makes an empty store; whatever the device had is lost. It is started already.
    pub fn format(device: Arc<dyn Device>, options: FormatOptions) -> Result<Arc<Zones>> {
        let uuid = random_uuid().map_err(|e| Error::io("drawing a random uuid", e))?;
        Self::format_as(device, options, uuid)
    }

    /// [`Zones::format`] with a given identity, so that a simulated run can be repeated to the
    /// byte.
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
            root: Vec::new(),
        };
        let zones = Self::new(device, superblock, 1)?;
        zones.start();
        zones.fill_reserve()?;
        // The second copy last: until then an old store's superblock may be left there, but none
        // that could be taken for ours.
        {
            let newest = zones.superblock.lock();
            zones.write_superblock(&newest.0, 1)?;
            zones.write_superblock(&newest.0, 0)?;
        }
        Ok(zones)
    }

    /// A new store on `device`, which gets every zone of `uses` as it is here, at the same address,
    /// and holes between them. Capacity and reserve are those of this store. It is not started:
    /// whatever it consists of must be pinned first, as after opening; it can be opened once it has
    /// a root. The caller sees to it that nothing frees these zones meanwhile.
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

    /// Opens a store by its newest valid superblock. Nothing can be allocated before
    /// [`Zones::start`].
    pub fn open(device: Arc<dyn Device>) -> Result<Arc<Zones>> {
        let (superblock, copy) = superblock::read_newest(&*device)?;
        Self::new(device, superblock, copy)
    }

    /// Opens what is left of a store, for reading only: by the newest superblock copy that can be
    /// read, or, if neither can, by one without a root. What is wrong with the copies comes with
    /// it.
    pub fn open_remains(device: Arc<dyn Device>) -> Result<(Arc<Zones>, Vec<Error>)> {
        let (copies, errors) = superblock::read_remains(&*device);
        let newest = copies.into_iter().max_by_key(|(s, _)| s.generation);
        let nothing = || {
            let (uuid, root) = ([0; 16], Vec::new());
            (
                Superblock {
                    uuid,
                    version: FORMAT_VERSION,
                    generation: 0,
                    capacity: None,
                    reserve_zones: 0,
                    root,
                },
                0,
            )
        };
        let (superblock, copy) = newest.unwrap_or_else(nothing);
        Ok((Self::new(device, superblock, copy)?, errors))
    }

    /// Zones that lie on the device, whole or in part.
    pub fn zones_on_device(&self) -> u32 {
        let len = self.device_len.load(Ordering::Acquire);
        u32::try_from(len.div_ceil(ZONE_SIZE)).unwrap_or(u32::MAX)
    }

    fn new(device: Arc<dyn Device>, superblock: Superblock, copy: usize) -> Result<Arc<Zones>> {
        let device = CountDevice::new(device);
        let device_len =
            device.len().map_err(|e| Error::io("asking for the size of the device", e))?;
        // The last number is ZoneId::NOWHERE.
        let most = |bytes: u64| {
            u32::try_from(bytes / ZONE_SIZE).unwrap_or(u32::MAX).min(ZoneId::NOWHERE.0 - 1)
        };
        let most_bytes = if device.can_grow() { u64::MAX } else { device_len };
        let limit = most(superblock.capacity.unwrap_or(u64::MAX).min(most_bytes));
        let allocator = Arc::new(Allocator::new(most(device_len), limit, superblock.reserve_zones));
        Ok(Arc::new(Zones {
            device,
            allocator,
            growing: Mutex::new(()),
            superblock: Mutex::new((superblock, copy)),
            device_len: AtomicU64::new(device_len),
            syncing: Mutex::new(()),
            syncs_begun: AtomicU64::new(0),
            syncs_done: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            poison: Mutex::new(None),
        }))
    }

    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().0.clone()
    }

    /// Makes everything written before durable, then replaces the root (at most [`MAX_ROOT`]
    /// bytes), then makes that durable. After a crash or an error the store has the old root or the
    /// new one. Both copies get it, so that losing one loses nothing.
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
        next.version = FORMAT_VERSION;
        next.root = root.to_vec();
        let older = 1 - newest.1;
        self.write_superblock(&next, older)?;
        *newest = (next, older);
        self.write_superblock(&newest.0, 1 - older)
    }

    /// The caller has the superblock's lock, so that the copies are never in the air at the same
    /// time.
    fn write_superblock(&self, superblock: &Superblock, copy: usize) -> Result<()> {
        self.healthy()?;
        superblock::write_copy(&self.device, superblock, copy)
            .map_err(|e| Error::io("writing the superblock", e))?;
        self.sync()
    }

    /// Reads both copies again: what is wrong with either, for a check. A copy older than the other
    /// is what a crash between the two leaves, and no error.
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

    /// Keeps the zones of `uses` from being reused. Before the start this is how recovery says what
    /// is alive; afterwards it can only be said of zones that somebody else holds.
    /// [`Error::Corrupt`] for zones that the store does not have.
    pub fn pin(&self, uses: &ZoneUse) -> Result<ZonePin> {
        self.allocator.pin(uses)?;
        Ok(ZonePin::counted(&self.allocator, uses.clone()))
    }

    /// Before the start: an extent is alive that the positions given to [`Zones::resume`] may not
    /// know of (bound by the journal, say). Its zone must be pinned besides.
    pub fn saw_extent(&self, addr: u64, len: u64) {
        self.allocator.saw_extent(addr, len);
    }

    /// Before the start: lets a stream go on in its zone at `addr`, rounded up to a sector, or
    /// behind the last extent that [`Zones::saw_extent`] named there. [`Zones::start`] ignores it
    /// when that zone is not the stream's any more: beyond the device, unpinned, or with more alive
    /// in it than lies before `addr`.
    pub fn resume(&self, purpose: Purpose, addr: u64) {
        let mut state = self.allocator.lock();
        let zone = ZoneId::of(addr);
        if state.started || zone == ZoneId::NOWHERE {
            return;
        }
        let next = round_up(addr - zone.start(), SECTOR);
        // The lifetime was not recorded and hardly matters: the first without a zone goes on
        // there.
        if let Some(stream) =
            state.streams.lifetimes(purpose).iter_mut().find(|s| s.zone().is_none())
        {
            // How deep in the reserve it lies is seen at the start.
            stream.open(zone.0, next, Priority::User);
        }
    }

    /// After recovery has pinned everything: all other zones are free, and allocation is allowed.
    pub fn start(&self) {
        self.allocator.start();
    }

    /// Where each open stream stands. What is placed from now on lies elsewhere or behind it.
    pub fn positions(&self) -> Vec<(Purpose, u64)> {
        // The end of a full zone is the address of another one: only those with room.
        self.allocator.lock().streams.positions()
    }

    /// Takes a whole zone, one written before if there is one, and counts all of it as alive.
    /// Written with [`Zones::write`]. Recovery must pin it as [`ZoneUse::whole`].
    pub fn take_zone(&self, _purpose: Purpose, priority: Priority) -> Result<(ZoneId, ZonePin)> {
        let mut pin = self.acquire(priority)?;
        let Some((zone, _)) = pin.uses().iter().next() else { return Err(Error::NoSpace) };
        pin.charge(zone, ZONE_SIZE);
        Ok((zone, pin))
    }

    /// Promises room for data that is written later, from [`Priority::Promised`]: from now on
    /// [`Priority::User`] leaves that much. Whether there is so much is for the caller to see
    /// before ([`Zones::space`]).
    pub fn promise(&self, bytes: u64) {
        self.allocator.promise(bytes);
    }

    /// So much of what was promised is written, or never will be.
    pub fn release(&self, bytes: u64) {
        self.allocator.release(bytes);
    }

    /// Takes a zone for later: for an [`ExtentWriter`] that must not find the store full.
    pub fn set_aside(&self, priority: Priority) -> Result<ZonePin> {
        self.acquire(priority)
    }
}

impl fmt::Debug for Zones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zones").field("space", &self.space()).finish_non_exhaustive()
    }
}

/// A random (version 4) uuid from the kernel.
fn random_uuid() -> std::io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
