//! The bytes of a memtable: keys and small values, appended to chunks and never moved.
//!
//! A *record* is a key with its first write: twelve bytes of header, the key, and the value if it
//! is small. The tree refers to records by *addresses* of four bytes. Records are stored in the
//! order of arrival. So insertions write memory sequentially, and read only records whose heads do
//! not distinguish their keys from the new one.
//!
//! Readers copy keys and values, so that they do not keep the memory of a dropped memtable alive.

use super::pool::{Pool, REGION, Region};
use std::sync::Arc;

/// The position of bytes in the arena. The two highest chunk numbers are reserved; see
/// `Place::DELETE` and `Place::kept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: u32,
    off: u32,
    len: u32,
}

impl Place {
    /// A place without bytes, which represents the value of a deletion.
    pub const DELETE: Place = Place { chunk: u32::MAX, off: 0, len: 0 };

    /// Returns a place that represents a value kept outside the arena, in slot `i` of the
    /// memtable's table of kept values.
    pub fn kept(i: u32) -> Place {
        Place { chunk: u32::MAX - 1, off: i, len: 0 }
    }

    pub fn as_kept(self) -> Option<u32> {
        (self.chunk == u32::MAX - 1).then_some(self.off)
    }
}

/// The first value, or the deletion, of the key of a new record.
#[derive(Clone, Copy)]
pub(super) enum NewValue<'a> {
    /// A value below `KEEP_FROM`.
    Small(&'a [u8]),
    /// A value in this slot of the memtable's table of kept values.
    Kept(u32),
    Delete,
}

/// The newest version of a record's key.
#[derive(Clone, Copy, Debug)]
pub(super) enum NewestVersion {
    /// The only version of the key. `seq` is relative to the base of the memtable.
    Only { seq: u32, arrival: u32, value: Place },
    /// The number of the key's chain of versions in the tree.
    Chain(u32),
}

/// Total size from which chunks are regions of the pool. Before that, chunks are allocated
/// individually: they start small, because a store may have many small memtables, and grow with the
/// arena.
const REGIONS_FROM: usize = 2 * REGION;
const CHUNK_MIN: usize = 512;
/// Maximum size of data put into a region. Larger data gets its own chunk, so that the rest of the
/// current chunk is not wasted.
const PIECE_MAX: usize = REGION / 8;

/// The alignment of records, with which 32 bits address 32 GiB.
const ALIGN: usize = 8;
const CHUNK_SHIFT: u32 = (REGION / ALIGN).trailing_zeros();

const HEADER: usize = 12;
/// The value of the length field for a key whose length does not fit into 16 bits. Four more bytes
/// of the header have the length.
const LONG: u16 = u16::MAX;
/// The tag of a deleted key. A tag below [`CHAIN`] is the length of a small value.
const DELETE: u16 = u16::MAX;
const KEPT: u16 = u16::MAX - 1;
const CHAIN: u16 = u16::MAX - 2;

enum Chunk {
    Own(Vec<u8>),
    Region(Region),
}

impl AsRef<[u8]> for Chunk {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Chunk::Own(v) => v,
            Chunk::Region(r) => r,
        }
    }
}

impl AsMut<[u8]> for Chunk {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Chunk::Own(v) => v,
            Chunk::Region(r) => r,
        }
    }
}

pub(super) struct Arena {
    pool: Arc<Pool>,
    /// All chunks. The last one is the current one.
    chunks: Vec<Chunk>,
    /// The number of bytes in use in the last chunk.
    filled: usize,
    /// The total size of all chunks, bytes.
    bytes: usize,
}

impl Arena {
    pub fn new(pool: Arc<Pool>) -> Arena {
        Arena { pool, chunks: Vec::new(), filled: 0, bytes: 0 }
    }

    /// Copies `data`, which must be below 4 GiB. This holds because the memtable keeps large values
    /// outside, and keys are far shorter.
    pub fn add(&mut self, data: &[u8]) -> Place {
        let (chunk, off, to) = self.room(data.len());
        to.copy_from_slice(data);
        Place { chunk, off: off as u32, len: data.len() as u32 }
    }

    /// Adds a record and returns its address.
    #[inline]
    pub fn add_record(&mut self, key: &[u8], seq: u32, arrival: u32, written: NewValue<'_>) -> u32 {
        let (tag, value) = match written {
            NewValue::Small(v) => (v.len() as u16, v),
            NewValue::Kept(_) => (KEPT, &[][..]),
            NewValue::Delete => (DELETE, &[][..]),
        };
        // For a kept value, the record contains its slot instead of the value.
        let slot = if let NewValue::Kept(i) = written { i.to_le_bytes() } else { [0; 4] };
        let value = if tag == KEPT { &slot[..] } else { value };
        self.record(key, seq, arrival, tag, value)
    }

    /// Adds a record for a key that has a chain of versions.
    pub fn add_chain(&mut self, key: &[u8], chain: u32) -> u32 {
        self.record(key, chain, 0, CHAIN, &[])
    }

    #[inline]
    fn record(&mut self, key: &[u8], first: u32, second: u32, tag: u16, value: &[u8]) -> u32 {
        self.filled = self.filled.next_multiple_of(ALIGN);
        let head = if key.len() < LONG as usize { HEADER } else { HEADER + 4 };
        let (chunk, off, to) = self.room(head + key.len() + value.len());
        let (header, rest) = to.split_at_mut(head);
        header[0..4].copy_from_slice(&first.to_le_bytes());
        header[4..8].copy_from_slice(&second.to_le_bytes());
        header[8..10].copy_from_slice(&(key.len().min(LONG as usize) as u16).to_le_bytes());
        header[10..12].copy_from_slice(&tag.to_le_bytes());
        if head > HEADER {
            header[12..16].copy_from_slice(&(key.len() as u32).to_le_bytes());
        }
        let (to_key, to_value) = rest.split_at_mut(key.len());
        to_key.copy_from_slice(key);
        to_value.copy_from_slice(value);
        chunk << CHUNK_SHIFT | (off / ALIGN) as u32
    }

    /// Reserves `len` bytes at the end.
    #[inline]
    fn room(&mut self, len: usize) -> (u32, usize, &mut [u8]) {
        if self.chunks.last().is_none_or(|c| c.as_ref().len() < self.filled + len) {
            self.next_chunk(len);
        }
        let off = self.filled;
        self.filled += len;
        let last = self.chunks.len() - 1;
        (last as u32, off, &mut self.chunks[last].as_mut()[off..off + len])
    }

    #[cold]
    fn next_chunk(&mut self, len: usize) {
        let next = if self.bytes >= REGIONS_FROM && len <= PIECE_MAX {
            Chunk::Region(self.pool.region())
        } else {
            Chunk::Own(vec![
                0;
                (self.bytes / 2)
                    .clamp(CHUNK_MIN, REGION / 2)
                    .max(len)
                    .next_multiple_of(ALIGN)
            ])
        };
        self.bytes += next.as_ref().len();
        // The rest of the current chunk is wasted: at most an eighth of it, unless the data is
        // long.
        self.chunks.push(next);
        self.filled = 0;
        // The owner seals a memtable long before it reaches this size.
        assert!(self.chunks.len() <= 1 << (32 - CHUNK_SHIFT), "a memtable of more than 32 GiB");
    }

    #[inline]
    fn chunk(&self, chunk: u32) -> &[u8] {
        self.chunks[chunk as usize].as_ref()
    }

    #[inline]
    pub fn get(&self, p: Place) -> &[u8] {
        &self.chunk(p.chunk)[p.off as usize..][..p.len as usize]
    }

    /// Returns the header of the record at `address`, the position of its key, and its tag.
    #[inline]
    fn parts(&self, address: u32) -> (&[u8], Place, u16) {
        let chunk = address >> CHUNK_SHIFT;
        let off = (address & ((1 << CHUNK_SHIFT) - 1)) as usize * ALIGN;
        let record = &self.chunk(chunk)[off..];
        let word = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        let (len, tag) = (word(8), word(10));
        if len == LONG {
            let len = u32::from_le_bytes([record[12], record[13], record[14], record[15]]);
            return (record, Place { chunk, off: (off + HEADER + 4) as u32, len }, tag);
        }
        (record, Place { chunk, off: (off + HEADER) as u32, len: len.into() }, tag)
    }

    /// Loads the records at `addresses` into the processor's cache concurrently. A walk over them
    /// would wait for one cache miss after the other.
    #[inline]
    pub fn fetch(&self, addresses: &[u32]) {
        let touched = addresses.iter().fold(0, |sum, &a| sum ^ self.glance(a));
        std::hint::black_box(touched);
    }

    /// Reads a byte from each of the two cache lines that a record with a small value occupies.
    #[inline]
    fn glance(&self, address: u32) -> u8 {
        let chunk = self.chunk(address >> CHUNK_SHIFT);
        let off = (address & ((1 << CHUNK_SHIFT) - 1)) as usize * ALIGN;
        chunk.get(off).copied().unwrap_or(0) ^ chunk.get(off + 64).copied().unwrap_or(0)
    }

    /// Returns the key of the record at `address`.
    #[inline]
    pub fn key(&self, address: u32) -> &[u8] {
        self.get(self.key_place(address))
    }

    #[inline]
    pub fn key_place(&self, address: u32) -> Place {
        self.parts(address).1
    }

    /// Returns the newest version in the record at `address`.
    #[inline]
    pub fn first(&self, address: u32) -> NewestVersion {
        let (record, key, tag) = self.parts(address);
        self.newest(record, key, tag)
    }

    /// Returns the key in the record at `address` and its newest version.
    #[inline]
    pub fn entry(&self, address: u32) -> (&[u8], NewestVersion) {
        let (record, key, tag) = self.parts(address);
        (self.get(key), self.newest(record, key, tag))
    }

    /// Decodes the newest version from the parts of a record.
    #[inline]
    fn newest(&self, record: &[u8], key: Place, tag: u16) -> NewestVersion {
        let word = |at: usize| {
            u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
        };
        let (seq, arrival) = (word(0), word(4));
        let behind = key.off + key.len;
        let value = match tag {
            CHAIN => return NewestVersion::Chain(seq),
            DELETE => Place::DELETE,
            KEPT => Place::kept(u32::from_le_bytes(
                self.get(Place { chunk: key.chunk, off: behind, len: 4 })
                    .try_into()
                    .expect("four bytes"),
            )),
            len => Place { chunk: key.chunk, off: behind, len: len.into() },
        };
        NewestVersion::Only { seq, arrival, value }
    }

    /// Returns the heap bytes in use.
    pub fn heap(&self) -> usize {
        self.bytes + self.chunks.capacity() * size_of::<Chunk>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_from_small_chunks_regions_and_chunks_of_their_own() {
        let mut arena = Arena::new(Pool::new());
        let keys: Vec<Vec<u8>> = (0..9000usize)
            .map(|i| match i {
                4000 => vec![1; 65_535],
                8000 => vec![2; 300_000],
                8001 => vec![3; 3_000_000],
                _ => vec![i as u8; i % 500],
            })
            .collect();
        let value = [9; 511];
        let written = |i: usize| match i % 3 {
            0 => NewValue::Small(&value[..i % 512]),
            1 => NewValue::Kept(i as u32),
            _ => NewValue::Delete,
        };
        let addresses: Vec<u32> =
            (0..keys.len()).map(|i| arena.add_record(&keys[i], i as u32, 7, written(i))).collect();
        assert!(arena.heap() > REGIONS_FROM);
        let mut seen = std::collections::HashSet::new();
        for (i, a) in addresses.into_iter().enumerate() {
            assert!(seen.insert(a), "no two records at one address");
            assert_eq!(arena.key(a), keys[i]);
            let NewestVersion::Only { seq, arrival: 7, value } = arena.first(a) else {
                panic!("record {i}")
            };
            assert_eq!(seq, i as u32);
            match i % 3 {
                0 => assert_eq!(arena.get(value), &[9; 511][..i % 512]),
                1 => assert_eq!(value.as_kept(), Some(i as u32)),
                _ => assert_eq!(value, Place::DELETE),
            }
        }
    }
}
