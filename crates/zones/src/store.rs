//! The store: device, allocator and superblock put together.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use env::sync::Mutex;

use crate::allocator::{Allocator, Growth};
use crate::device::{Reading, copy_range};
use crate::superblock::{self, COPIES, FORMAT_VERSION, MAX_ROOT, Superblock};
use crate::{
    CountDevice, Device, Error, ExtentWriter, IoStats, Lifetime, Priority, Purpose, Result, SECTOR,
    Space, ZONE_SIZE, ZoneId, ZonePin, ZoneUse, round_up,
};

/// Free zones beyond the reserve that are kept for reuse instead of being given back to the host.
const STOCK: usize = 4;

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

    /// A new append position on a stream. Nothing is reserved before the first object.
    pub fn extent_writer(self: &Arc<Self>, purpose: Purpose, priority: Priority) -> ExtentWriter {
        self.extent_writer_for(purpose, Lifetime::default(), priority)
    }

    /// An extent writer for data of this lifetime.
    pub fn extent_writer_for(
        self: &Arc<Self>,
        purpose: Purpose,
        lifetime: Lifetime,
        priority: Priority,
    ) -> ExtentWriter {
        ExtentWriter::new(Arc::clone(self), purpose, lifetime, priority)
    }

    /// Whether `len` bytes at `addr` can be there at all: [`Error::Corrupt`] if not. For callers
    /// that must allocate memory before they read.
    pub fn check_range(&self, addr: u64, len: u64) -> Result<()> {
        let end = addr.checked_add(len);
        if addr < ZONE_SIZE || end.is_none_or(|end| end > self.device_len.load(Ordering::Acquire)) {
            return Err(Error::corrupt(
                format!("{len} bytes are referred to that lie outside the store"),
                addr,
            ));
        }
        Ok(())
    }

    pub fn read(&self, purpose: Purpose, addr: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(addr, buf.len() as u64)?;
        self.device.read_at(purpose, addr, buf).map_err(|e| {
            Error::io(format!("reading {} bytes of {purpose} at {addr}", buf.len()), e)
        })
    }

    /// The same, of what the medium has and not of what the host keeps of it, see
    /// [`Device::read_medium`].
    pub fn read_medium(&self, purpose: Purpose, addr: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(addr, buf.len() as u64)?;
        self.device.read_medium(purpose, addr, buf).map_err(|e| {
            Error::io(format!("reading {} bytes of {purpose} at {addr}", buf.len()), e)
        })
    }

    /// Fills all buffers; the device has the reads in the air together where it can. In the order
    /// of their addresses they cost least.
    pub fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> Result<()> {
        reads.iter().try_for_each(|r| self.check_range(r.offset, r.buf.len() as u64))?;
        let Some(first) = reads.first().map(|r| r.offset) else { return Ok(()) };
        let n = reads.len();
        self.device.read_many(purpose, reads).map_err(|e| {
            Error::io(format!("reading {n} ranges of {purpose}, the first at {first}"), e)
        })
    }

    /// Says that `len` bytes at `addr` are about to be read, so that the device can fetch them
    /// meanwhile.
    pub fn will_read(&self, purpose: Purpose, addr: u64, len: u64) {
        if self.check_range(addr, len).is_ok() {
            self.device.will_read(purpose, addr, len);
        }
    }

    /// Bytes of the host's memory that could keep what is read, see [`Device::host_memory`].
    pub fn host_memory(&self) -> Option<u64> {
        self.device.host_memory()
    }

    /// Writes inside a zone that was taken.
    pub fn write(&self, purpose: Purpose, addr: u64, bytes: &[u8]) -> Result<()> {
        self.healthy()?;
        self.check_range(addr, bytes.len() as u64)?;
        self.device.write_at(purpose, addr, bytes).map_err(|e| {
            Error::io(format!("writing {} bytes of {purpose} at {addr}", bytes.len()), e)
        })
    }

    /// The same for much that is written in order: it may be under way when this returns, see
    /// [`Device::write_behind`]. Empties `bytes`.
    pub(crate) fn write_behind(
        &self,
        purpose: Purpose,
        addr: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.healthy()?;
        let len = bytes.len();
        self.check_range(addr, len as u64)?;
        self.device
            .write_behind(purpose, addr, bytes)
            .map_err(|e| Error::io(format!("writing {len} bytes of {purpose} at {addr}"), e))
    }

    /// Everything written before the call is durable after it. Callers that wait for the same
    /// device share one sync. A failed sync is final: the host may have dropped what it could not
    /// write, so no later sync can be believed, and every later write and sync fails with the same
    /// error.
    pub fn sync(&self) -> Result<()> {
        let begun = self.syncs_begun.load(Ordering::SeqCst);
        let _one_at_a_time = self.syncing.lock();
        self.healthy()?;
        if self.syncs_done.load(Ordering::SeqCst) > begun {
            // One that began after we came has ended.
            return Ok(());
        }
        let number = self.syncs_begun.fetch_add(1, Ordering::SeqCst) + 1;
        match self.device.sync() {
            Ok(()) => {
                self.syncs_done.store(number, Ordering::SeqCst);
                Ok(())
            }
            Err(source) => {
                let doing =
                    "syncing the store (nothing more will be written; reopen it)".to_string();
                let error = Error::Io { doing, source: Arc::new(source) };
                *self.poison.lock() = Some(error.clone());
                self.poisoned.store(true, Ordering::SeqCst);
                tracing::error!(%error, "a sync failed");
                Err(error)
            }
        }
    }

    /// The error of the first failed sync, if there was one.
    fn healthy(&self) -> Result<()> {
        if self.poisoned.load(Ordering::SeqCst) {
            let poison = self.poison.lock();
            return Err(poison.clone().unwrap_or(Error::NotStarted));
        }
        Ok(())
    }

    /// Gives free zones beyond a small stock (and the reserve) back to the host. Returns the bytes
    /// given.
    pub fn give_back(&self) -> Result<u64> {
        self.give(STOCK, usize::MAX)
    }

    /// Gives back, of those, what was free all the time since the last call, but no more than
    /// `most` zones: what a store under load does now and then, so that space used for a moment
    /// does not stay with it.
    pub fn give_back_idle(&self, most: usize) -> Result<u64> {
        let idle = {
            let mut state = self.allocator.lock();
            state.idle().saturating_sub(state.reserve as usize + STOCK)
        };
        self.give(STOCK, idle.min(most))
    }

    /// Free zones that [`Zones::give_back`] would give.
    pub fn spare(&self) -> usize {
        let state = self.allocator.lock();
        (state.backed() + state.unknown.len()).saturating_sub(state.reserve as usize + STOCK)
    }

    fn give(&self, stock: usize, most: usize) -> Result<u64> {
        /// Zones that go at once. Whoever needs a new zone waits for so long.
        const AT_ONCE: usize = 2;
        let mut given = 0;
        let mut left = most;
        while left > 0 {
            let _growing = self.growing.lock();
            let keep = stock + self.allocator.lock().reserve as usize;
            let mut surplus = self.allocator.surplus(keep, left.min(AT_ONCE));
            if surplus.is_empty() {
                break;
            }
            left -= surplus.len();
            surplus.sort_unstable();
            let mut failure = None;
            // Neighbours go together.
            for stretch in surplus.chunk_by(|a, b| a + 1 == *b) {
                let len = stretch.len() as u64 * ZONE_SIZE;
                if failure.is_none() {
                    match self.device.discard(ZoneId(stretch[0]).start(), len) {
                        Ok(()) => given += len,
                        Err(e) => failure = Some(e),
                    }
                }
                stretch.iter().for_each(|&zone| self.allocator.punched(zone, failure.is_none()));
            }
            if let Some(e) = failure {
                return Err(Error::io("giving space back to the host", e));
            }
        }
        Ok(given)
    }

    pub fn space(&self) -> Space {
        let capacity = self.superblock.lock().0.capacity;
        let host_zones = self.device.host_free().map_or(u64::MAX, |bytes| bytes / ZONE_SIZE);
        let state = self.allocator.lock();
        let pinned = || state.zones.iter().filter(|zone| zone.pins > 0);
        let backed = (state.backed() + state.unknown.len()) as u64;
        let punched = state.punched.len() as u64;
        let growable = u64::from(state.limit) - state.zones.len() as u64;
        let takeable = backed.saturating_add(host_zones.min(punched + growable));
        let for_user = takeable.saturating_sub(u64::from(state.reserve)).saturating_mul(ZONE_SIZE);
        let promised = state.promised();
        Space {
            capacity,
            device_len: self.device_len.load(Ordering::Acquire),
            zones_total: state.zones.len() as u64,
            zones_free: backed + punched,
            zones_pinned: pinned().count() as u64,
            live_bytes: pinned().map(|zone| zone.live.min(ZONE_SIZE)).sum(),
            reserve: state.reserve,
            free_for_user: for_user.saturating_sub(promised),
            promised,
        }
    }

    /// Every pinned zone with its live bytes (at most a zone's) and the number of its pins, in
    /// ascending order.
    pub fn usage(&self) -> Vec<(ZoneId, u64, u32)> {
        let state = self.allocator.lock();
        let pinned = state.zones.iter().enumerate().filter(|(_, zone)| zone.pins > 0);
        pinned
            .map(|(number, zone)| (ZoneId(number as u32), zone.live.min(ZONE_SIZE), zone.pins))
            .collect()
    }

    /// What the device was asked to do since the store was opened.
    pub fn io(&self) -> IoStats {
        self.device.stats()
    }

    /// A pin of nothing that writers can add to.
    pub(crate) fn empty_pin(&self) -> ZonePin {
        ZonePin::counted(&self.allocator, ZoneUse::new())
    }

    /// Reserves between `need` and `want` bytes (multiples of `SECTOR`) in the stream's open zone,
    /// or in a new one, and puts the zone into `pin`; a new one comes from `supply` if that has
    /// any. Address and length.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn reserve_chunk(
        &self,
        purpose: Purpose,
        lifetime: Lifetime,
        priority: Priority,
        need: u64,
        want: u64,
        gaps: bool,
        pin: &mut ZonePin,
        supply: &mut Vec<ZonePin>,
    ) -> Result<(u64, u64)> {
        let from_open_zone = |lifetime: Lifetime, pin: &mut ZonePin| {
            let mut state = self.allocator.lock();
            let chunk = state.reserve_in(purpose, lifetime, priority, need, want, gaps)?;
            state.pin_for_writer(pin.uses_mut(), ZoneId::of(chunk.0).0);
            Some(chunk)
        };
        if !self.allocator.lock().started {
            return Err(Error::NotStarted);
        }
        if let Some(chunk) = from_open_zone(lifetime, pin) {
            return Ok(chunk);
        }
        let taken = match supply.pop() {
            Some(taken) => taken,
            None => match self.acquire(priority) {
                // A full store cannot keep young and old apart.
                Err(Error::NoSpace) => {
                    let chunk = Lifetime::ALL
                        .into_iter()
                        .find_map(|lifetime| from_open_zone(lifetime, pin));
                    return chunk.ok_or(Error::NoSpace);
                }
                taken => taken?,
            },
        };
        // Another writer may have opened a zone meanwhile; then the one taken is free again.
        if let Some(chunk) = from_open_zone(lifetime, pin) {
            return Ok(chunk);
        }
        let Some((zone, _)) = taken.uses().iter().next() else { return Err(Error::NoSpace) };
        pin.merge(taken);
        let used = want.min(ZONE_SIZE);
        let shared = self.allocator.lock().open_zone(purpose, lifetime, zone, used);
        // A zone that the stream does not go on in is this writer's to the end.
        Ok((zone.start(), if shared { used } else { ZONE_SIZE }))
    }

    /// Reserves more right behind a chunk; `None` when somebody else has that.
    pub(crate) fn extend_chunk(
        &self,
        purpose: Purpose,
        priority: Priority,
        end: u64,
        need: u64,
        want: u64,
    ) -> Option<u64> {
        self.allocator.lock().extend_at(purpose, priority, end, need, want)
    }

    /// The range was reserved and holds nothing that counts.
    pub(crate) fn give_chunk_back(&self, purpose: Purpose, start: u64, end: u64) {
        if start < end {
            self.allocator
                .lock()
                .streams
                .lifetimes(purpose)
                .iter_mut()
                .for_each(|stream| stream.give_back(start, end));
        }
    }

    /// Takes a free zone, asking the host for more if there is none; the pin has it with no bytes
    /// yet.
    fn acquire(&self, priority: Priority) -> Result<ZonePin> {
        let take = || {
            let mut state = self.allocator.lock();
            if !state.started {
                return Err(Error::NotStarted);
            }
            Ok(state.take(priority))
        };
        let pin = |zone| {
            let mut uses = ZoneUse::new();
            uses.add(zone, 0);
            ZonePin::counted(&self.allocator, uses)
        };
        if let Some(zone) = take()? {
            return Ok(pin(zone));
        }
        let _growing = self.growing.lock();
        loop {
            if let Some(zone) = take()? {
                return Ok(pin(zone));
            }
            if !self.grow(priority)? {
                // A pin may have been dropped while the host was asked.
                return take()?.map(pin).ok_or(Error::NoSpace);
            }
        }
    }

    /// Asks the host for more space once; false when neither it nor the capacity gives any. The
    /// caller holds `growing`.
    fn grow(&self, priority: Priority) -> Result<bool> {
        let full = |e: &std::io::Error| {
            matches!(Error::io("", std::io::Error::from(e.kind())), Error::NoSpace)
        };
        match self.allocator.plan(priority) {
            Growth::Full => Ok(false),
            Growth::Back { zones, unknown } => {
                let (mut success, mut failure) = (false, None);
                for zone in zones {
                    let backed = match failure {
                        None => self.device.allocate(ZoneId(zone).start(), ZONE_SIZE),
                        Some(_) => Err(std::io::ErrorKind::StorageFull.into()),
                    };
                    self.allocator.backed(zone, backed.is_ok());
                    match backed {
                        Ok(()) => success = true,
                        Err(e) if full(&e) => {}
                        Err(e) => failure = Some(e),
                    }
                }
                match failure {
                    Some(e) => Err(Error::io("allocating space in the store", e)),
                    // Those that were unknown are known now, so asking again gets somewhere.
                    None => Ok(success || unknown),
                }
            }
            Growth::Grow { from, to } => {
                let grown = match self.device.grow(ZoneId(to).start()) {
                    Err(e) if full(&e) && to > from + 1 => {
                        self.device.grow(ZoneId(from + 1).start()).map(|()| from + 1)
                    }
                    other => other.map(|()| to),
                };
                match grown {
                    Ok(to) => {
                        self.device_len.fetch_max(ZoneId(to).start(), Ordering::AcqRel);
                        self.allocator.grown(to);
                        Ok(true)
                    }
                    Err(e) if full(&e) => Ok(false),
                    Err(e) => Err(Error::io("growing the store", e)),
                }
            }
        }
    }

    /// Backs the reserve of a new store.
    fn fill_reserve(&self) -> Result<()> {
        let _growing = self.growing.lock();
        loop {
            {
                let state = self.allocator.lock();
                if state.backed() >= state.reserve as usize {
                    return Ok(());
                }
            }
            if !self.grow(Priority::User)? {
                return Err(Error::NoSpace);
            }
        }
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
