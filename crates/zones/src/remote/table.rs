//! The zone table: the places in object storage of the bytes of each zone. A zone has up to fifteen
//! pieces. A full zone is one piece in its own object; otherwise each publication writes a piece of
//! it, packed with pieces of other zones.

use objects::Key;

use crate::varint::{get_u32, get_u64, put_u64};
use crate::{Error, Result, ZONE_SIZE, ZoneId};

/// The largest length of an object with bytes of zones, in bytes.
pub const MAX_OBJECT: u64 = 2 * ZONE_SIZE;

/// The limit of zone numbers in a table, which is 32 TiB of zones. All zone numbers are below it. A
/// store needs memory for each number.
pub const MAX_ZONES: u32 = 1 << 22;

/// The largest number of pieces of a zone.
pub const MAX_PIECES: usize = 15;

/// The name of an object with bytes of zones: the store that wrote the object, the epoch of the
/// store, and a number within the epoch. No name is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneObject {
    /// The identity of the store that wrote the object.
    pub origin: [u8; 16],
    /// The epoch of the store in which the object was written.
    pub epoch: u32,
    /// The number of the object within the epoch, starting at 0.
    pub number: u32,
}

impl ZoneObject {
    /// Returns the key `z/<hash>/<origin>/<epoch>-<number>` of the object. The hash spreads the
    /// objects of an epoch over the partitions that servers make by prefix.
    pub fn key(&self) -> Result<Key> {
        let origin: String = self.origin.iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = self.number.wrapping_mul(0x9e37_79b1) >> 24;
        Key::new(format!("z/{hash:02x}/{origin}/{}-{}", self.epoch, self.number))
            .map_err(|e| Error::Invalid(e.to_string()))
    }
}

/// A part of a zone, and the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The zone.
    pub zone: ZoneId,
    /// The offset in the zone at which the piece begins, in bytes.
    pub offset: u32,
    /// The length of the piece, in bytes. It is not 0.
    pub len: u32,
    /// The offset in the object at which the piece begins, in bytes.
    pub at: u32,
    /// The index of the object's origin in the table.
    origin: u16,
    epoch: u32,
    number: u32,
}

impl Piece {
    /// Returns the offset in the zone at which the piece ends, in bytes.
    pub fn end(&self) -> u32 {
        self.offset + self.len
    }
}

/// The pieces of all zones that lie in object storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneTable {
    origins: Vec<[u8; 16]>,
    /// The pieces, in ascending order of zone and offset. Pieces do not overlap.
    pieces: Vec<Piece>,
}

impl ZoneTable {
    /// Creates a table without zones.
    pub fn new() -> ZoneTable {
        ZoneTable::default()
    }

    /// Adds a piece of `zone` that begins at `offset` and has `len` bytes, which lie in `object` at
    /// `at`. Pieces must be added in ascending order. Otherwise [`Error::Invalid`] is returned.
    pub fn add(
        &mut self,
        zone: ZoneId,
        offset: u32,
        len: u32,
        object: ZoneObject,
        at: u32,
    ) -> Result<()> {
        let known = self.origins.iter().position(|origin| *origin == object.origin);
        let origin = match known {
            Some(known) => known,
            None => {
                self.origins.push(object.origin);
                self.origins.len() - 1
            }
        };
        let origin = u16::try_from(origin)
            .map_err(|_| Error::Invalid("zones of more than 65,536 stores in one table".into()))?;
        let (epoch, number) = (object.epoch, object.number);
        let piece = Piece { zone, offset, len, at, origin, epoch, number };
        if !self.takes(&piece) {
            return Err(Error::Invalid(format!("a piece of {zone} that is out of order")));
        }
        self.pieces.push(piece);
        Ok(())
    }

    /// Returns whether a piece may follow the last one.
    fn takes(&self, piece: &Piece) -> bool {
        let (end, object_end) = (
            u64::from(piece.offset) + u64::from(piece.len),
            u64::from(piece.at) + u64::from(piece.len),
        );
        let fits = piece.len > 0
            && end <= ZONE_SIZE
            && object_end <= MAX_OBJECT
            && (1..MAX_ZONES).contains(&piece.zone.0);
        let last = self.pieces.last();
        let most = self.pieces.len().checked_sub(MAX_PIECES).and_then(|n| self.pieces.get(n));
        fits && most.is_none_or(|first| first.zone < piece.zone)
            && last.is_none_or(|last| (last.zone, last.end()) <= (piece.zone, piece.offset))
    }

    /// Returns all pieces in ascending order of zone and offset.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the object that contains a piece of this table.
    pub fn object(&self, piece: &Piece) -> ZoneObject {
        let origin = self.origins.get(usize::from(piece.origin)).copied().unwrap_or_default();
        ZoneObject { origin, epoch: piece.epoch, number: piece.number }
    }

    /// Returns the pieces of one zone.
    pub fn pieces_of(&self, zone: ZoneId) -> &[Piece] {
        let first = self.pieces.partition_point(|piece| piece.zone < zone);
        let rest = &self.pieces[first..];
        &rest[..rest.partition_point(|piece| piece.zone == zone)]
    }

    /// Returns the number of leading bytes of a zone that lie in the same places as in `other`, or
    /// the size of a zone if there is no difference.
    pub(crate) fn same_until(&self, zone: ZoneId, other: &ZoneTable) -> u32 {
        let place = |table: &ZoneTable, p: &Piece| (p.offset, p.len, p.at, table.object(p));
        let (own, theirs) = (self.pieces_of(zone), other.pieces_of(zone));
        let pairs = own.iter().zip(theirs);
        let same = pairs.take_while(|(a, b)| place(self, a) == place(other, b)).count();
        // The gaps between pieces have no bytes.
        let next = own.get(same).into_iter().chain(theirs.get(same)).map(|piece| piece.offset);
        next.min().unwrap_or(ZONE_SIZE as u32)
    }

    /// Returns the zones, in ascending order.
    pub fn zones(&self) -> impl Iterator<Item = ZoneId> + '_ {
        self.pieces.chunk_by(|a, b| a.zone == b.zone).filter_map(|of| of.first()).map(|p| p.zone)
    }

    /// Returns the address after the last zone, or 0 if the table has no zones.
    pub fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.zone.end())
    }

    /// Appends the encoding of the table. See "Zone table" in `docs/format.md`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.origins.len() as u64);
        self.origins.iter().for_each(|origin| out.extend_from_slice(origin));
        put_u64(out, self.pieces.len() as u64);
        let (mut zone, mut number) = (0, 0);
        for piece in &self.pieces {
            put_u64(out, u64::from(piece.zone.0 - zone));
            put_u64(out, u64::from(piece.offset));
            put_u64(out, u64::from(piece.len));
            put_u64(out, u64::from(piece.origin));
            put_u64(out, u64::from(piece.epoch));
            put_u64(out, u64::from(piece.number.wrapping_sub(number)));
            put_u64(out, u64::from(piece.at));
            (zone, number) = (piece.zone.0, piece.number);
        }
    }

    /// Decodes a table encoded by [`ZoneTable::encode`], and advances `input` past it.
    pub fn decode(input: &mut &[u8]) -> Result<ZoneTable> {
        let corrupt = |what: &str| Error::corrupt(format!("the zone table has {what}"), 0);
        let mut rest = *input;
        let mut table = ZoneTable::new();
        let origins = get_u64(&mut rest)?;
        if origins > u64::from(u16::MAX) {
            return Err(corrupt("more origins than can be"));
        }
        for _ in 0..origins {
            let Some((origin, after)) = rest.split_first_chunk::<16>() else {
                return Err(corrupt("fewer origins than it says"));
            };
            table.origins.push(*origin);
            rest = after;
        }
        let count = get_u64(&mut rest)?;
        let (mut zone, mut number) = (0u32, 0u32);
        for _ in 0..count {
            let distance = get_u32(&mut rest)?;
            let (offset, len) = (get_u32(&mut rest)?, get_u32(&mut rest)?);
            let (origin, epoch) = (get_u32(&mut rest)?, get_u32(&mut rest)?);
            number = number.wrapping_add(get_u32(&mut rest)?);
            let at = get_u32(&mut rest)?;
            zone = zone.checked_add(distance).ok_or_else(|| corrupt("a zone out of range"))?;
            let origin = u16::try_from(origin).ok().filter(|&o| u64::from(o) < origins);
            let origin = origin.ok_or_else(|| corrupt("a piece of no origin"))?;
            let piece = Piece { zone: ZoneId(zone), offset, len, at, origin, epoch, number };
            if !table.takes(&piece) {
                return Err(corrupt("a piece that overlaps another, or fits into no zone"));
            }
            table.pieces.push(piece);
        }
        *input = rest;
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::Random;

    fn object(origin: u8, epoch: u32, number: u32) -> ZoneObject {
        ZoneObject { origin: [origin; 16], epoch, number }
    }

    fn sample() -> ZoneTable {
        let mut table = ZoneTable::new();
        table.add(ZoneId(1), 0, 8 << 20, object(1, 1, 0), 0).unwrap();
        table.add(ZoneId(3), 0, 4096, object(1, 1, 2), 100).unwrap();
        table.add(ZoneId(3), 4096, 100, object(2, 7, 1), 0).unwrap();
        table.add(ZoneId(9), 50, 10, object(1, 2, 1), 7).unwrap();
        table
    }

    #[test]
    fn the_pieces_of_a_zone_are_found() {
        let table = sample();
        assert_eq!(table.pieces_of(ZoneId(2)), []);
        let of_three = table.pieces_of(ZoneId(3));
        assert_eq!(
            of_three.iter().map(|p| (p.offset, p.end())).collect::<Vec<_>>(),
            [(0, 4096), (4096, 4196)]
        );
        assert_eq!(table.object(&of_three[1]), object(2, 7, 1));
        assert_eq!(table.zones().collect::<Vec<_>>(), [ZoneId(1), ZoneId(3), ZoneId(9)]);
        assert_eq!(table.end(), 10 * ZONE_SIZE);
    }

    #[test]
    fn what_overlaps_or_fits_nowhere_is_refused() {
        let mut table = sample();
        for (zone, offset, len, at) in [
            (9, 59, 5, 0),
            (8, 0, 5, 0),
            (10, 0, 0, 0),
            (10, 8 << 20, 1, 0),
            (10, 0, 4096, 16 << 20),
            (MAX_ZONES, 0, 1, 0),
        ] {
            let added = table.add(ZoneId(zone), offset, len, object(1, 1, 1), at);
            assert!(added.is_err(), "{zone} {offset} {len} {at}");
        }
        assert_eq!(table.pieces().len(), sample().pieces().len());
    }

    #[test]
    fn names_are_keys_and_differ() {
        let keys: Vec<String> =
            [object(1, 1, 1), object(1, 1, 2), object(1, 2, 1), object(2, 1, 1)]
                .iter()
                .map(|o| o.key().unwrap().to_string())
                .collect();
        assert!(keys.iter().all(|k| k.starts_with("z/")), "{keys:?}");
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn what_is_encoded_comes_back_and_garbage_never_panics() {
        let table = sample();
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        bytes.push(7);
        let mut input = &bytes[..];
        assert_eq!(ZoneTable::decode(&mut input).unwrap(), table);
        assert_eq!(input, [7]);
        for cut in 0..bytes.len() - 1 {
            assert!(ZoneTable::decode(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let mut odd = bytes.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(odd.len() as u64) as usize;
                odd[at] = random.number() as u8;
            }
            if let Ok(table) = ZoneTable::decode(&mut &odd[..]) {
                let mut again = Vec::new();
                table.encode(&mut again);
                assert_eq!(ZoneTable::decode(&mut &again[..]).unwrap(), table);
            }
        }
    }
}
