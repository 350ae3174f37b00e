//! The memtable's bytes: keys and small values, appended to chunks and never moved.
//!
//! A full chunk is sealed into a `Bytes`, so handing a key out of it costs a reference count and no copy; out of the one chunk that
//! is still being filled, keys are copied. That keeps the arena free of `unsafe`.

use bytes::Bytes;

/// Where some bytes lie in the arena. The two highest chunk numbers are reserved, see `Place::DELETE` and `Place::kept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: u32,
    off: u32,
    len: u32,
}

impl Place {
    /// Stands for no bytes at all: the value of a deletion.
    pub const DELETE: Place = Place { chunk: u32::MAX, off: 0, len: 0 };

    /// Stands for a value kept outside the arena, in slot `i` of the memtable's table of kept values.
    pub fn kept(i: u32) -> Place {
        Place { chunk: u32::MAX - 1, off: i, len: 0 }
    }

    pub fn as_kept(self) -> Option<u32> {
        (self.chunk == u32::MAX - 1).then_some(self.off)
    }
}

/// Chunks start small, because a store may have many memtables with little in them, and double up to this size.
const CHUNK_MAX: usize = 256 << 10;
const CHUNK_MIN: usize = 4 << 10;

#[derive(Default)]
pub(super) struct Arena {
    /// All chunks; the one being filled has an empty placeholder here.
    chunks: Vec<Bytes>,
    filling: Vec<u8>,
    /// The number of the chunk being filled, plus one; 0 before the first.
    filling_plus_one: usize,
    /// Capacity of all chunks, bytes.
    bytes: usize,
}

impl Arena {
    /// Copies `data` in. A single piece is below 4 GiB: the memtable keeps larger values outside, and keys are far shorter.
    pub fn add(&mut self, data: &[u8]) -> Place {
        let len = u32::try_from(data.len()).expect("keys and arena values are below 4 GiB");
        if data.len() > CHUNK_MAX / 8 {
            // A chunk of its own, so that the rest of the chunk being filled is not wasted.
            self.chunks.push(Bytes::copy_from_slice(data));
            self.bytes += data.len();
            return Place { chunk: self.chunks.len() as u32 - 1, off: 0, len };
        }
        if self.filling_plus_one == 0 || self.filling.capacity() - self.filling.len() < data.len() {
            if self.filling_plus_one > 0 {
                self.chunks[self.filling_plus_one - 1] = Bytes::from(std::mem::take(&mut self.filling));
            }
            let size = self.bytes.clamp(CHUNK_MIN, CHUNK_MAX).max(data.len());
            self.filling = Vec::with_capacity(size);
            self.bytes += size;
            self.chunks.push(Bytes::new());
            self.filling_plus_one = self.chunks.len();
        }
        let off = self.filling.len() as u32;
        self.filling.extend_from_slice(data);
        Place { chunk: self.filling_plus_one as u32 - 1, off, len }
    }

    #[inline]
    pub fn get(&self, p: Place) -> &[u8] {
        let chunk: &[u8] =
            if p.chunk as usize + 1 == self.filling_plus_one { &self.filling } else { &self.chunks[p.chunk as usize] };
        &chunk[p.off as usize..][..p.len as usize]
    }

    /// The bytes at `p`, to keep.
    pub fn bytes(&self, p: Place) -> Bytes {
        if p.chunk as usize + 1 == self.filling_plus_one {
            Bytes::copy_from_slice(self.get(p))
        } else {
            self.chunks[p.chunk as usize].slice(p.off as usize..p.off as usize + p.len as usize)
        }
    }

    /// Heap bytes in use.
    pub fn heap(&self) -> usize {
        self.bytes + self.chunks.capacity() * size_of::<Bytes>()
    }
}
