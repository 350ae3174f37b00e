//! The superblock pair has the identity of the store, and the root of all its data. The two copies
//! are written one after the other with a sync in between, so that a torn copy leaves the other one
//! intact, and a damaged copy does not lose the newest root.
//!
//! A copy has 4096 bytes. Integers are little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `KVFS\r\n\x1a\n` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the 4096 bytes with this field as zeros |
//! | 16 | 8 | generation |
//! | 24 | 16 | uuid |
//! | 40 | 8 | capacity in bytes, 0 = unlimited |
//! | 48 | 8 | address of this copy |
//! | 56 | 4 | zones in the reserve |
//! | 60 | 4 | length of the root |
//! | 64 | 8 | zone size in bytes |
//! | 72 | ≤ 2048 | root |
//! | 2120 | 1 | profile of the device: 0 not known, 1 solid state, 2 hard disk |
//!
//! All other bytes are zero.

use std::io;

use crate::{Checksum, Device, Error, Purpose, Result, SECTOR, ZONE_SIZE};

/// The format version that this program reads and writes.
pub const FORMAT_VERSION: u32 = 7;
/// The format version of a local file whose zones lie in object storage ([`crate::remote`]). In all
/// other respects it is the format of a store.
pub const REMOTE_VERSION: u32 = 8;
/// The oldest format version that is readable. When the next root is written, the store gets the
/// newest version.
const OLDEST_VERSION: u32 = 3;

/// The largest length of a root, in bytes.
pub const MAX_ROOT: usize = 2048;

/// The addresses of the two copies.
pub(crate) const COPIES: [u64; 2] = [0, 4 << 20];

/// Returns the address ranges of zone 0 outside of the superblocks.
pub(crate) fn unused() -> [(u64, u64); 2] {
    let size = SIZE as u64;
    [(COPIES[0] + size, COPIES[1]), (COPIES[1] + size, ZONE_SIZE)]
}

pub(crate) const SIZE: usize = SECTOR as usize;
pub(crate) const MAGIC: [u8; 8] = *b"KVFS\r\n\x1a\n";
const ROOT_AT: usize = 72;
const PROFILE_AT: usize = ROOT_AT + MAX_ROOT;

/// The kind of device for which a store was made. It determines the defaults of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The kind of device is not known, as in stores of format versions before 7. The device is
    /// treated like solid state.
    #[default]
    Unknown,
    /// A seek costs little more than a read.
    SolidState,
    /// A seek costs as much as reading a megabyte.
    HardDisk,
}

impl Profile {
    const ALL: [Profile; 3] = [Profile::Unknown, Profile::SolidState, Profile::HardDisk];
}

/// The identity and the root of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The identity of the store.
    pub uuid: [u8; 16],
    /// The format version.
    pub version: u32,
    /// The generation, which is incremented with every new root.
    pub generation: u64,
    /// The number of bytes to which the store may grow, or `None` if it is unlimited.
    pub capacity: Option<u64>,
    /// The number of free zones that user data must leave for flushes, merges and deletions.
    pub reserve_zones: u32,
    /// The kind of device for which the store was made.
    pub profile: Profile,
    /// The root, which is opaque here.
    pub root: Vec<u8>,
}

impl Superblock {
    /// Returns whether a file or device has a store, which is so if one of the copies begins with
    /// the magic of a superblock, even if it is damaged. `read` fills the bytes at an offset, and
    /// returns `false` if there are none.
    pub fn is_one(mut read: impl FnMut(u64, &mut [u8]) -> bool) -> bool {
        let mut begins = [0; MAGIC.len()];
        COPIES.into_iter().any(|addr| read(addr, &mut begins) && begins == MAGIC)
    }

    pub(crate) fn encode(&self, addr: u64) -> [u8; SIZE] {
        let mut block = [0; SIZE];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &self.version.to_le_bytes());
        put(16, &self.generation.to_le_bytes());
        put(24, &self.uuid);
        put(40, &self.capacity.unwrap_or(0).to_le_bytes());
        put(48, &addr.to_le_bytes());
        put(56, &self.reserve_zones.to_le_bytes());
        put(60, &(self.root.len() as u32).to_le_bytes());
        put(64, &ZONE_SIZE.to_le_bytes());
        put(ROOT_AT, &self.root);
        put(PROFILE_AT, &[self.profile as u8]);
        let sum = checksum(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes and checks one copy. Returns `NotAStore` if the magic is missing, `Version` for
    /// another format version, and `Corrupt` for all other defects.
    pub(crate) fn decode(block: &[u8; SIZE], addr: u64) -> Result<Superblock> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        if block[..8] != MAGIC {
            return Err(Error::NotAStore);
        }
        if checksum(block) != u32_at(12) {
            return Err(Error::corrupt("a superblock fails its checksum", addr));
        }
        let version = u32_at(8);
        if !(OLDEST_VERSION..=REMOTE_VERSION).contains(&version) {
            return Err(Error::Version { found: version, supported: FORMAT_VERSION });
        }
        let root_len = u32_at(60) as usize;
        let profile = Profile::ALL.get(usize::from(block[PROFILE_AT])).copied();
        let Some(profile) = profile else {
            return Err(Error::corrupt("a superblock names an unknown profile", addr));
        };
        // A generation is incremented with each root, so a very large generation is corrupt.
        if u64_at(48) != addr
            || root_len > MAX_ROOT
            || u64_at(64) != ZONE_SIZE
            || u64_at(16) >= 1 << 60
        {
            return Err(Error::corrupt("a superblock contradicts itself", addr));
        }
        Ok(Superblock {
            uuid: std::array::from_fn(|i| block[24 + i]),
            version,
            generation: u64_at(16),
            capacity: Some(u64_at(40)).filter(|&c| c > 0),
            reserve_zones: u32_at(56),
            profile,
            root: block[ROOT_AT..ROOT_AT + root_len].to_vec(),
        })
    }
}

pub(crate) fn checksum(block: &[u8; SIZE]) -> u32 {
    Checksum::new().update(&block[..12]).update(&[0; 4]).update(&block[16..]).finish()
}

/// Reads one copy of the superblock.
pub(crate) fn read_copy(device: &dyn Device, addr: u64) -> Result<Superblock> {
    let mut block = [0; SIZE];
    match device.read_medium(Purpose::Superblock, addr, &mut block) {
        Ok(()) => Superblock::decode(&block, addr),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(Error::NotAStore),
        Err(e) => Err(Error::io(format!("reading the superblock at {addr}"), e)),
    }
}

/// Returns the newest valid copy and its index. A copy that cannot be read is an error even if the
/// other one can, because it may be the newer copy, and an outdated root is worse than none.
pub(crate) fn read_newest(device: &dyn Device) -> Result<(Superblock, usize)> {
    match COPIES.map(|addr| read_copy(device, addr)) {
        [Ok(a), Ok(b)] if a.uuid != b.uuid => Err(Error::corrupt(
            "the two superblocks belong to different stores",
            COPIES[usize::from(a.generation >= b.generation)],
        )),
        [Ok(a), Ok(b)] => Ok(if a.generation >= b.generation { (a, 0) } else { (b, 1) }),
        [Err(e @ (Error::Io { .. } | Error::Version { .. })), _]
        | [_, Err(e @ (Error::Io { .. } | Error::Version { .. }))] => Err(e),
        [Ok(a), Err(_)] => Ok((a, 0)),
        [Err(_), Ok(b)] => Ok((b, 1)),
        [Err(Error::NotAStore), Err(e)] | [Err(e), Err(_)] => Err(e),
    }
}

/// Returns the valid copies, each with its index, and the errors of the other copies.
pub(crate) fn read_remains(device: &dyn Device) -> (Vec<(Superblock, usize)>, Vec<Error>) {
    let (mut copies, mut errors) = (Vec::new(), Vec::new());
    for (i, addr) in COPIES.into_iter().enumerate() {
        match read_copy(device, addr) {
            Ok(superblock) => copies.push((superblock, i)),
            Err(Error::NotAStore) => errors.push(Error::corrupt("a superblock is missing", addr)),
            Err(e) => errors.push(e),
        }
    }
    (copies, errors)
}

/// Erases both copies durably, so that the device holds no store. Also erases the records of zones
/// in object storage that lie after each copy and before the second one.
pub(crate) fn wipe(device: &dyn Device) -> io::Result<()> {
    device.write_at(Purpose::Superblock, COPIES[0], &[0; 2 * SIZE])?;
    device.write_at(Purpose::Superblock, COPIES[1] - SIZE as u64, &[0; 3 * SIZE])?;
    device.sync()
}

/// Writes one copy. Does not sync.
pub(crate) fn write_copy(
    device: &dyn Device,
    superblock: &Superblock,
    copy: usize,
) -> io::Result<()> {
    let addr = COPIES[copy];
    device.write_at(Purpose::Superblock, addr, &superblock.encode(addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            uuid: *b"0123456789abcdef",
            version: FORMAT_VERSION,
            generation: 7,
            capacity: Some(1 << 30),
            reserve_zones: 8,
            profile: Profile::HardDisk,
            root: (0..=255).cycle().take(MAX_ROOT).collect(),
        }
    }

    #[test]
    fn it_comes_back() {
        assert_eq!(Superblock::decode(&sample().encode(COPIES[1]), COPIES[1]).unwrap(), sample());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample().encode(0);
        for bit in 0..SIZE * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bad, 0).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_copy_at_the_wrong_place_is_refused() {
        assert!(matches!(
            Superblock::decode(&sample().encode(COPIES[0]), COPIES[1]),
            Err(Error::Corrupt { .. })
        ));
    }

    #[test]
    fn a_generation_without_a_next_one_is_refused() {
        let last = Superblock { generation: u64::MAX, ..sample() };
        assert!(matches!(Superblock::decode(&last.encode(0), 0), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn the_version_before_is_read() {
        let old = Superblock { version: 3, ..sample() };
        assert_eq!(Superblock::decode(&old.encode(0), 0).unwrap(), old);
    }

    #[test]
    fn a_profile_that_there_is_not_is_refused() {
        let mut block = sample().encode(0);
        block[PROFILE_AT] = 3;
        let sum = checksum(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(Superblock::decode(&block, 0), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn another_version_is_named() {
        let mut other = sample();
        other.version = 9;
        assert!(matches!(
            Superblock::decode(&other.encode(0), 0),
            Err(Error::Version { found: 9, supported: FORMAT_VERSION })
        ));
    }
}
