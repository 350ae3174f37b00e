//! The leaves of a memtable's tree, indexed by number. The first ones are in a growing array, the
//! others in regions of the pool.

use super::keys::Keys;
use super::pool::{Pool, REGION, Region};
use super::tree::NONE;
use crate::Seq;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;

/// A leaf: keys and their records. It occupies thirteen cache lines; the first one has everything
/// except the heads and the records.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Leaf {
    /// An upper bound of the sequence numbers in this leaf. A cursor skips the leaf if a newer
    /// range tombstone covers it.
    pub newest: Seq,
    pub next: u32,
    pub prev: u32,
    _pad: [u64; 2],
    pub keys: Keys,
}

impl Leaf {
    pub fn new() -> Leaf {
        Leaf { newest: 0, next: NONE, prev: NONE, _pad: [0; 2], keys: Keys::new() }
    }
}

const SIZE: usize = size_of::<Leaf>();
/// Maximum number of leaves in the array. It is small in this crate's own tests, so that they reach
/// the regions.
const FEW: usize = if cfg!(test) { 64 } else { 1024 };
const PER_REGION: usize = REGION / SIZE;

pub(super) struct Leaves {
    pool: Arc<Pool>,
    few: Vec<Leaf>,
    regions: Vec<Region>,
    len: usize,
}

impl Leaves {
    pub fn new(pool: Arc<Pool>) -> Leaves {
        Leaves { pool, few: Vec::new(), regions: Vec::new(), len: 0 }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the region and offset of a leaf that is not in the array.
    #[inline]
    fn place(id: u32) -> (usize, usize) {
        let i = id as usize - FEW;
        (i / PER_REGION, i % PER_REGION * SIZE)
    }

    #[inline]
    pub fn get(&self, id: u32) -> &Leaf {
        match self.few.get(id as usize) {
            Some(leaf) => leaf,
            None => {
                let (region, at) = Self::place(id);
                bytemuck::from_bytes(&self.regions[region][at..at + SIZE])
            }
        }
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> &mut Leaf {
        // Regions are page-aligned, so every leaf is aligned.
        if (id as usize) < FEW {
            return &mut self.few[id as usize];
        }
        let (region, at) = Self::place(id);
        bytemuck::from_bytes_mut(&mut self.regions[region][at..at + SIZE])
    }

    /// Adds a leaf, whose number is the previous `len`.
    pub fn push(&mut self, leaf: Leaf) {
        if self.len < FEW {
            // Grow from a single element. A vector would begin with four, but many memtables have
            // only a key or two.
            if self.few.len() == self.few.capacity() {
                self.few.reserve_exact(self.len.max(1));
            }
            self.few.push(leaf);
        } else {
            let (region, _) = Self::place(self.len as u32);
            if region == self.regions.len() {
                self.regions.push(self.pool.region());
            }
            *self.get_mut(self.len as u32) = leaf;
        }
        self.len += 1;
    }

    /// Returns the heap bytes in use.
    pub fn heap(&self) -> usize {
        self.few.capacity() * SIZE + self.regions.len() * (REGION + size_of::<Region>())
    }
}
