//! The sorted keys of one tree node. Each key is represented by its *head*: the eight bytes after
//! the prefix that all keys of the node share. A search compares heads within the node, and reads
//! whole keys from the arena only if heads are equal.
//!
//! Cache misses dominate the cost of an insertion. So a node is small (twelve bytes a key), and a
//! search first compares every eighth head: this loads all cache lines of the node concurrently,
//! whereas a binary search would wait for one cache miss after the other.

use super::arena::Arena;
use crate::key::{head_of, shared_prefix};
use bytemuck::{Pod, Zeroable};
use std::cmp::Ordering;

/// The number of keys per node. It is small in this crate's own tests, so that small tables have
/// deep trees.
pub(super) const FANOUT: usize = if cfg!(test) { 4 } else { 64 };
/// The number of heads in a cache line.
const LINE: usize = if cfg!(test) { 2 } else { 8 };
/// Maximum length of the shared prefix that is stored in the node, where it can be checked without
/// another cache miss.
const PREFIX_MAX: usize = if cfg!(test) { 2 } else { 24 };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Keys {
    prefix: [u8; 24],
    len: u8,
    /// The length of `prefix` in use. Every key of the node begins with these bytes.
    skip: u8,
    /// The index of the last inserted key.
    last: u8,
    _pad: [u8; 5],
    heads: [u64; FANOUT],
    /// The addresses of the keys' records.
    records: [u32; FANOUT],
}

/// Returns the head of `key` in a node whose keys share the first `skip` bytes.
#[inline]
fn head(key: &[u8], skip: usize) -> u64 {
    head_of(key.get(skip..).unwrap_or_default())
}

impl Keys {
    pub fn new() -> Keys {
        Keys {
            prefix: [0; 24],
            len: 0,
            skip: 0,
            last: 0,
            _pad: [0; 5],
            heads: [u64::MAX; FANOUT],
            records: [0; FANOUT],
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the last insertion was at the end.
    #[inline]
    pub fn appended(&self) -> bool {
        self.last + 1 == self.len
    }

    /// Returns the index at which to split the full node for an insertion at `i`. If keys arrive in
    /// ascending order, this is `i` itself, so that the left half stays full and the next key has
    /// room after this one; otherwise it is the middle.
    pub fn split_at(&self, i: usize) -> usize {
        if i == self.last as usize + 1 && i > FANOUT / 2 { i } else { FANOUT / 2 }
    }

    /// Returns the record of key `i`.
    #[inline]
    pub fn record(&self, i: usize) -> u32 {
        debug_assert!(i < self.len());
        self.records[i]
    }

    /// Returns the records of up to eight keys from `i` on if `i` is a multiple of eight, and none
    /// otherwise.
    #[inline]
    pub fn eight_from(&self, i: usize) -> &[u32] {
        if i.is_multiple_of(8) { &self.records[i..self.len().min(i + 8)] } else { &[] }
    }

    /// Replaces the record of key `i`.
    pub fn set_record(&mut self, i: usize, record: u32) {
        self.records[i] = record;
    }

    /// Compares key `i` with `key`.
    #[inline]
    fn cmp(&self, arena: &Arena, i: usize, key: &[u8]) -> Ordering {
        arena.key(self.record(i)).cmp(key)
    }

    /// Compares the shared prefix with the beginning of `key`.
    #[inline]
    fn cmp_prefix(&self, key: &[u8]) -> Ordering {
        let skip = self.skip as usize;
        if skip == 0 {
            Ordering::Equal
        } else {
            self.prefix[..skip].cmp(&key[..skip.min(key.len())])
        }
    }

    /// Compares key `i` with `key`, usually without leaving the node.
    #[inline]
    fn cmp_near(&self, arena: &Arena, i: usize, key: &[u8]) -> Ordering {
        let near =
            self.cmp_prefix(key).then_with(|| self.heads[i].cmp(&head(key, self.skip as usize)));
        near.then_with(|| self.cmp(arena, i, key))
    }

    /// Compares the first key with `key`, usually without leaving the node.
    #[inline]
    pub fn cmp_first(&self, arena: &Arena, key: &[u8]) -> Ordering {
        self.cmp_near(arena, 0, key)
    }

    /// Compares the last key with `key`, usually without leaving the node. The node must not be
    /// empty.
    #[inline]
    pub fn cmp_last(&self, arena: &Arena, key: &[u8]) -> Ordering {
        self.cmp_near(arena, self.len() - 1, key)
    }

    /// Returns the index of the first key that is not below `key`, and whether it equals `key`.
    #[inline]
    pub fn search(&self, arena: &Arena, key: &[u8]) -> (usize, bool) {
        let len = self.len();
        match self.cmp_prefix(key) {
            Ordering::Greater => return (0, false),
            Ordering::Less => return (len, false),
            Ordering::Equal => {}
        }
        let h = head(key, self.skip as usize);
        // Unused heads have the largest value, so they need no bounds check. The comparisons are
        // independent of one another and compile to code without branches.
        let mut line = 0;
        for last in 0..FANOUT / LINE - 1 {
            line += usize::from(self.heads[last * LINE + LINE - 1] < h);
        }
        let mut i = line * LINE;
        for at in line * LINE..line * LINE + LINE {
            i += usize::from(self.heads[at] < h);
        }
        if i >= len || self.heads[i] != h {
            return (i.min(len), false);
        }
        let ties = self.heads[i..len].iter().take_while(|&&x| x == h).count();
        let mut end = i + ties;
        while i < end {
            let mid = (i + end) / 2;
            match self.cmp(arena, mid, key) {
                Ordering::Less => i = mid + 1,
                Ordering::Equal => return (mid, true),
                Ordering::Greater => end = mid,
            }
        }
        (i, false)
    }

    /// Inserts `key`, whose record is `record`, at index `i`. The node must have room.
    #[inline]
    pub fn insert(&mut self, arena: &Arena, i: usize, key: &[u8], record: u32) {
        let len = self.len();
        debug_assert!(len < FANOUT && i <= len);
        if len == 0 {
            self.skip = key.len().min(PREFIX_MAX) as u8;
            self.prefix[..self.skip as usize].copy_from_slice(&key[..self.skip as usize]);
        } else if self.skip > 0 {
            let prefix = &self.prefix[..self.skip as usize];
            if !key.starts_with(prefix) {
                self.set_skip(arena, shared_prefix(key, prefix));
            }
        }
        self.heads.copy_within(i..len, i + 1);
        self.records.copy_within(i..len, i + 1);
        self.heads[i] = head(key, self.skip as usize);
        self.records[i] = record;
        self.len += 1;
        self.last = i as u8;
    }

    /// Moves the keys from `at` on into `right`, which must be empty.
    pub fn split_off(&mut self, arena: &Arena, at: usize, right: &mut Keys) {
        let n = self.len() - at;
        debug_assert!(right.len == 0);
        right.heads[..n].copy_from_slice(&self.heads[at..at + n]);
        right.records[..n].copy_from_slice(&self.records[at..at + n]);
        right.len = n as u8;
        right.skip = self.skip;
        right.prefix = self.prefix;
        right.last = 0;
        self.len = at as u8;
        self.heads[at..].fill(u64::MAX);
        self.sharpen(arena);
        right.sharpen(arena);
    }

    /// Removes the last key.
    pub fn pop(&mut self) {
        self.len -= 1;
        self.heads[self.len()] = u64::MAX;
    }

    /// Lengthens the shared prefix if the heads no longer distinguish the keys.
    fn sharpen(&mut self, arena: &Arena) {
        let Some(last) = self.len().checked_sub(1) else { return };
        if self.heads[0] ^ self.heads[last] >= 1 << 32 {
            return;
        }
        let shared = shared_prefix(arena.key(self.records[0]), arena.key(self.records[last]))
            .min(PREFIX_MAX);
        if shared > self.skip as usize {
            self.set_skip(arena, shared);
        }
    }

    fn set_skip(&mut self, arena: &Arena, skip: usize) {
        self.prefix[..skip].copy_from_slice(&arena.key(self.records[0])[..skip]);
        self.skip = skip as u8;
        for i in 0..self.len() {
            self.heads[i] = head(arena.key(self.records[i]), skip);
        }
    }
}
