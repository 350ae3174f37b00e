//! The records in the local file of a store in object storage: the store of which it is a copy, the
//! zone table, the right to publish, and the list of parts that are in the file. The records lie in
//! zone 0, in the space that the superblock pair leaves free. Each record has a checksum. The list
//! of parts is written when the store is closed and removed when it is opened, so after a crash no
//! part of the zones in object storage counts as present.

use std::io;

use crate::superblock::COPIES;
use crate::varint::{get_bytes, put_bytes};
use crate::{Device, Error, Purpose, Result, SECTOR, ZONE_SIZE, crc32c, round_up};

use super::first_reads::FirstReads;
use super::parts::Parts;
use super::table::ZoneTable;

/// The address of the record of the home, after the first copy of the superblock.
const HOME_AT: u64 = COPIES[0] + SECTOR;
/// The address of the list of parts, after the second copy of the superblock.
const PARTS_AT: u64 = COPIES[1] + SECTOR;
/// The address of the claim. The claim has its own sector, which is written whole or not at all.
const CLAIM_AT: u64 = COPIES[1] - SECTOR;
/// The largest length of the record of the home, in bytes.
const MOST_HOME: u64 = CLAIM_AT - HOME_AT;
/// The largest length of the claim, in bytes.
const MOST_CLAIM: u64 = SECTOR;
/// The largest length of the list of parts, in bytes.
const MOST_PARTS: u64 = ZONE_SIZE - PARTS_AT;

const HOME_MAGIC: [u8; 8] = *b"KVFSHOME";
const CLAIM_MAGIC: [u8; 8] = *b"KVFSCLAM";
const PARTS_MAGIC: [u8; 8] = *b"KVFSPART";
/// The length of the header, in bytes: the magic, the checksum of everything after it, and the
/// length of the body.
const HEADER: usize = 16;

/// The largest length of the note of the caller, in bytes.
const MAX_NOTE: usize = 64 << 10;

/// The largest length of a zone table in bytes for which a local file has room in addition to any
/// note.
pub(super) const MOST_TABLE: usize = MOST_HOME as usize - HEADER - MAX_NOTE - 8;

/// The smallest number of bytes that a full zone takes in a table.
const LEAST_OF_ZONE: usize = 10;

/// Returns an error if local files have no room for a table of this many zones.
pub(crate) fn check_zones(zones: usize) -> Result<()> {
    check_room(zones.saturating_mul(LEAST_OF_ZONE))
}

/// Returns an error if local files have no room for the table. A state with such a table could not
/// be opened anywhere.
pub(crate) fn check_table(table: &ZoneTable) -> Result<()> {
    let mut body = Vec::new();
    table.encode(&mut body);
    check_room(body.len())
}

fn check_room(bytes: usize) -> Result<()> {
    if bytes <= MOST_TABLE {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the store is too large, or in too many pieces, to be published: its zone table takes \
         {bytes} bytes, and readers have room for {MOST_TABLE}; the state that was published last \
         stays"
    )))
}

/// The record that says where in object storage the zones of a local file lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Home {
    /// The note of the caller, which is opaque here and has at most 64 KiB.
    pub note: Vec<u8>,
    /// The table with the places of the zones.
    pub table: ZoneTable,
    /// The bytes of the zones that are read first.
    pub first: FirstReads,
}

impl Home {
    fn encode(&self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        put_bytes(&mut body, &self.note);
        self.table.encode(&mut body);
        let without = body.len();
        let fits = |body: &[u8]| body.len() as u64 <= MOST_HOME - HEADER as u64;
        if !self.first.is_empty() {
            self.first.encode(&mut body);
        }
        if !fits(&body) {
            // Omit the first reads, which only save requests.
            body.truncate(without);
        }
        if self.note.len() > MAX_NOTE || !fits(&body) {
            return Err(Error::Invalid(format!(
                "the zone table of the store takes {} bytes; a local file has room for {MOST_HOME}",
                body.len()
            )));
        }
        Ok(body)
    }

    fn decode(body: &[u8]) -> Result<Home> {
        let mut rest = body;
        let note = get_bytes(&mut rest)?;
        if note.len() > MAX_NOTE {
            return Err(Error::corrupt("the record of the home has too long a note", HOME_AT));
        }
        let table = ZoneTable::decode(&mut rest)?;
        let first = match rest.is_empty() {
            true => FirstReads::default(),
            false => FirstReads::decode(&mut rest)?,
        };
        if !rest.is_empty() {
            return Err(Error::corrupt("the record of the home is too long", HOME_AT));
        }
        Ok(Home { note: note.to_vec(), table, first })
    }

    /// Writes the record. Does not sync.
    pub(crate) fn write(&self, device: &dyn Device) -> Result<()> {
        let body = self.encode()?;
        write(device, HOME_AT, HOME_MAGIC, &body)
            .map_err(|e| Error::io("writing the record of the home", e))
    }

    /// Reads the record from a device with a store of format version 8.
    pub fn read(device: &dyn Device) -> Result<Home> {
        let body = read(device, HOME_AT, MOST_HOME, HOME_MAGIC)
            .map_err(|e| Error::io("reading the record of the home", e))?;
        let body = body.ok_or_else(|| {
            let what = "the record of the home is damaged: a cache comes back when it is deleted";
            Error::corrupt(what, HOME_AT)
        })?;
        Home::decode(&body)
    }
}

/// Reads the note about the right to publish from a device with a store of format version 8.
/// Returns `None` if the note is missing or damaged.
pub fn read_claim(device: &dyn Device) -> Result<Option<Vec<u8>>> {
    read(device, CLAIM_AT, MOST_CLAIM, CLAIM_MAGIC)
        .map_err(|e| Error::io("reading the record of the right to publish", e))
}

/// Replaces the note about the right to publish by `note`, which has at most 4080 bytes, and syncs.
/// The device has a store of format version 8.
pub fn write_claim(device: &dyn Device, note: &[u8]) -> Result<()> {
    if (HEADER + note.len()) as u64 > MOST_CLAIM {
        let what = format!("a note of {} bytes about the right to publish", note.len());
        return Err(Error::Invalid(what));
    }
    write(device, CLAIM_AT, CLAIM_MAGIC, note)
        .and_then(|()| device.sync())
        .map_err(|e| Error::io("writing the record of the right to publish", e))
}

/// Writes the list of parts that are in the file, if there is room for it, and syncs. The parts
/// themselves are synced before the list is written.
pub(crate) fn write_parts(device: &dyn Device, parts: &Parts) -> io::Result<()> {
    let mut body = Vec::new();
    parts.encode(&mut body);
    if body.len() as u64 > MOST_PARTS - HEADER as u64 {
        tracing::warn!("more is cached than can be noted: it will be fetched again");
        return Ok(());
    }
    device.sync()?;
    write(device, PARTS_AT, PARTS_MAGIC, &body)?;
    device.sync()
}

/// Reads the list of parts into `parts`, and removes the list durably, because the file may change
/// from now on.
pub(crate) fn take_parts(device: &dyn Device, parts: &Parts) -> io::Result<()> {
    let Some(body) = read(device, PARTS_AT, MOST_PARTS, PARTS_MAGIC)? else { return Ok(()) };
    device.write_at(Purpose::Superblock, PARTS_AT, &[0; SECTOR as usize])?;
    device.sync()?;
    if let Err(e) = parts.decode(&body) {
        parts.zones().iter().for_each(|&zone| parts.forget(zone));
        tracing::warn!("what is cached is fetched again: {e}");
    }
    Ok(())
}

fn write(device: &dyn Device, at: u64, magic: [u8; 8], body: &[u8]) -> io::Result<()> {
    let len = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut block = vec![0; round_up((HEADER + body.len()) as u64, SECTOR) as usize];
    block[..8].copy_from_slice(&magic);
    block[12..16].copy_from_slice(&len.to_le_bytes());
    block[HEADER..HEADER + body.len()].copy_from_slice(body);
    let sum = crc32c(&block[12..HEADER + body.len()]);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
    device.write_at(Purpose::Superblock, at, &block)
}

/// Returns the body of a record, or `None` if the record is missing or damaged.
fn read(device: &dyn Device, at: u64, most: u64, magic: [u8; 8]) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; HEADER];
    device.read_at(Purpose::Superblock, at, &mut header)?;
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let (sum, len) = (u32_at(8), u32_at(12));
    if header[..8] != magic || u64::from(len) > most - HEADER as u64 {
        return Ok(None);
    }
    let mut checked = vec![0; 4 + len as usize];
    device.read_at(Purpose::Superblock, at + 12, &mut checked)?;
    Ok((crc32c(&checked) == sum).then(|| checked.split_off(4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::parts::PartRange;
    use crate::remote::table::ZoneObject;
    use crate::{MemoryDevice, ZoneId};

    fn sample() -> Home {
        let mut table = ZoneTable::new();
        let object = ZoneObject { origin: [3; 16], epoch: 1, number: 4 };
        table.add(ZoneId(5), 0, 1000, object, 0).unwrap();
        let first = FirstReads::of(vec![(5 * ZONE_SIZE, vec![7; 40])]);
        Home { note: b"a note".to_vec(), table, first }
    }

    #[test]
    fn the_home_comes_back_and_no_flipped_bit_passes() {
        let device = MemoryDevice::new();
        device.grow(ZONE_SIZE).unwrap();
        assert!(Home::read(&device).is_err());
        let home = sample();
        home.write(&device).unwrap();
        assert_eq!(Home::read(&device).unwrap(), home);
        let len = HEADER + home.encode().unwrap().len();
        for bit in 0..len * 8 {
            let bad = device.clone();
            bad.flip_bit(HOME_AT + bit as u64 / 8, bit as u8 % 8);
            assert!(matches!(Home::read(&bad), Err(Error::Corrupt { .. })), "bit {bit}");
        }
    }

    #[test]
    fn first_reads_that_do_not_fit_are_left_out() {
        let mut table = ZoneTable::new();
        for n in 0..313_000 {
            let object = ZoneObject { origin: [3; 16], epoch: 1, number: n / 4 };
            let (zone, offset) = (ZoneId(1 + n / 15), n % 15 * 70_000);
            table.add(zone, offset, 70_000, object, (n % 4) << 20).unwrap();
        }
        let first = FirstReads::of(vec![(5 * ZONE_SIZE, vec![7; 400 << 10])]);
        let home = Home { first, table, ..sample() };
        let device = MemoryDevice::new();
        device.grow(ZONE_SIZE).unwrap();
        home.write(&device).unwrap();
        assert_eq!(Home::read(&device).unwrap(), Home { first: FirstReads::default(), ..home });
    }

    #[test]
    fn a_table_that_is_published_fits_with_the_longest_note() {
        let mut table = ZoneTable::new();
        let add = |n: u32| {
            let object = ZoneObject { origin: [3; 16], epoch: 1, number: n };
            table.add(ZoneId(1 + n), 0, ZONE_SIZE as u32, object, 0).unwrap();
        };
        // In addition to the zones, the table has their number and one origin.
        let most = ((MOST_TABLE - 20) / LEAST_OF_ZONE) as u32;
        (0..most).for_each(add);
        check_table(&table).unwrap();
        check_zones(most as usize).unwrap();
        let home = Home { note: vec![7; MAX_NOTE], table, first: FirstReads::default() };
        home.encode().unwrap();

        let mut table = home.table;
        let object = ZoneObject { origin: [3; 16], epoch: 1, number: most };
        table.add(ZoneId(1 + most), 0, ZONE_SIZE as u32, object, 0).unwrap();
        assert!(matches!(check_table(&table), Err(Error::Invalid(_))));
        assert!(matches!(check_zones(most as usize + 3), Err(Error::Invalid(_))));
    }

    #[test]
    fn the_claim_comes_back_alone_and_ends_with_the_store() {
        let device = MemoryDevice::new();
        device.grow(ZONE_SIZE).unwrap();
        assert_eq!(read_claim(&device).unwrap(), None);
        sample().write(&device).unwrap();
        for note in [&b"first"[..], b"", &[7; SECTOR as usize - HEADER]] {
            write_claim(&device, note).unwrap();
            assert_eq!(read_claim(&device).unwrap().as_deref(), Some(note));
        }
        assert!(write_claim(&device, &[7; SECTOR as usize]).is_err());
        assert_eq!(Home::read(&device).unwrap(), sample());
        crate::superblock::wipe(&device).unwrap();
        assert_eq!(read_claim(&device).unwrap(), None);
    }

    #[test]
    fn parts_count_once_after_a_close() {
        let device = MemoryDevice::new();
        device.grow(ZONE_SIZE).unwrap();
        let parts = || Parts::new([ZoneId(5)].into_iter());
        let here = PartRange { zone: ZoneId(5), first: 3, end: 9 };
        let open = parts();
        open.arrived(here);
        write_parts(&device, &open).unwrap();
        let next = parts();
        take_parts(&device, &next).unwrap();
        assert!(next.has(here));
        // The list was removed, as after a crash, because the file may have changed.
        let after = parts();
        take_parts(&device, &after).unwrap();
        assert_eq!(after.valid(), 0);
    }
}
