//! Entry points to every parser of this crate, for the fuzz targets under `fuzz/` and the test
//! below. Each entry point takes any bytes, and must neither panic nor run forever. The checksums
//! are corrected first, so that the code after the check is reached. Normal builds do not include
//! this module.

use std::hint::black_box;

use crate::remote::ZoneTable;
use crate::superblock::{COPIES, MAGIC, SIZE, Superblock, checksum};
use crate::{ZoneUse, varint};

/// Parses a copy of the superblock. `data` has the version and the bytes after the checksum. The
/// magic and the checksum are filled in.
pub fn superblock(data: &[u8]) {
    let mut block = [0; SIZE];
    block[..8].copy_from_slice(&MAGIC);
    let (version, rest) = data.split_at(data.len().min(1));
    block[8..8 + version.len()].copy_from_slice(version);
    let len = rest.len().min(SIZE - 16);
    block[16..16 + len].copy_from_slice(&rest[..len]);
    let sum = checksum(&block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
    for addr in COPIES {
        if let Ok(read) = Superblock::decode(&block, addr) {
            assert_eq!(Superblock::decode(&read.encode(addr), addr).ok(), Some(read));
        }
    }
}

/// Parses a map of zones. Encodes the result again, which must parse to the same map.
pub fn zone_use(data: &[u8]) {
    let mut rest = data;
    let Ok(mut uses) = ZoneUse::decode(&mut rest) else { return };
    assert!(rest.len() <= data.len());
    let mut out = Vec::new();
    uses.encode(&mut out);
    assert_eq!(ZoneUse::decode(&mut &out[..]).ok(), Some(uses.clone()));
    black_box((uses.total_bytes(), uses.iter().count()));
    if let Ok(other) = ZoneUse::decode(&mut rest) {
        uses.merge(&other);
    }
    black_box(uses.total_bytes());
}

/// Parses a zone table. Encodes the result again, which must parse to the same table.
pub fn zone_table(data: &[u8]) {
    let mut rest = data;
    let Ok(table) = ZoneTable::decode(&mut rest) else { return };
    let mut out = Vec::new();
    table.encode(&mut out);
    assert_eq!(ZoneTable::decode(&mut &out[..]).ok().as_ref(), Some(&table));
    for piece in table.pieces() {
        assert!(table.pieces_of(piece.zone).contains(piece));
        black_box(table.object(piece).key().is_ok());
    }
    black_box((table.end(), table.zones().count()));
}

/// Parses numbers and length-prefixed byte strings.
pub fn varints(data: &[u8]) {
    let mut rest = data;
    while let Ok(n) = varint::get_u64(&mut rest) {
        let mut out = Vec::new();
        varint::put_u64(&mut out, n);
        assert_eq!(varint::get_u64(&mut &out[..]).ok(), Some(n));
        black_box(varint::get_u32(&mut &out[..]).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ZoneId;
    use crate::remote::ZoneObject;
    use env::Random;

    #[test]
    fn no_bytes_make_a_reader_panic() {
        let mut uses = ZoneUse::new();
        (1..9).for_each(|n| uses.add(ZoneId(n * n), 1 << (7 * n)));
        let mut zones = Vec::new();
        uses.encode(&mut zones);
        let sound = Superblock {
            uuid: [7; 16],
            version: crate::FORMAT_VERSION,
            generation: 3,
            capacity: None,
            reserve_zones: 4,
            profile: crate::Profile::HardDisk,
            root: vec![1; 40],
        };
        let block = sound.encode(0);
        let (mut table, mut encoded) = (ZoneTable::new(), Vec::new());
        for zone in [1, 2, 300] {
            let object = ZoneObject { origin: [zone as u8; 16], epoch: 2, number: zone };
            table.add(ZoneId(zone), 0, 4096 * zone, object, 512).unwrap();
        }
        table.encode(&mut encoded);
        let whole = [zones, [&[4], &block[16..120]].concat(), encoded];
        let mut random = Random::new(5);
        for n in 0..20_000 {
            let mut bytes = whole[n % whole.len()].clone();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = [0, 0x7f, 0x80, 0xff, random.number() as u8][random.below(5) as usize];
            }
            if random.one_in(4) {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            [superblock, zone_use, zone_table, varints].iter().for_each(|parse| parse(&bytes));
        }
    }
}
