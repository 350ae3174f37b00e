//! The sorted keys of one tree node. Each key is represented by its *head*: the eight bytes behind the prefix that all keys of the
//! node share. Searching heads stays inside the node; only equal heads are decided by reading whole keys in the arena.

use super::arena::{Arena, Place};
use std::cmp::Ordering;

/// Keys per node. Few in this crate's own tests, so that small tables have deep trees.
pub(super) const FANOUT: usize = if cfg!(test) { 4 } else { 64 };
/// A shared prefix is kept in the node up to this length, so that checking it does not leave the node either.
const PREFIX_MAX: usize = if cfg!(test) { 2 } else { 24 };

pub(super) struct Keys {
    len: u8,
    /// Length of `prefix` in use: every key of the node begins with it.
    skip: u8,
    prefix: [u8; PREFIX_MAX],
    heads: [u64; FANOUT],
    places: [Place; FANOUT],
}

/// Eight bytes of `key` from `skip` on, zero-padded, as a number that sorts like the bytes do.
#[inline]
fn head(key: &[u8], skip: usize) -> u64 {
    match key.get(skip..skip + 8) {
        Some(b) => u64::from_be_bytes(b.try_into().expect("eight bytes")),
        None => {
            let rest = key.get(skip..).unwrap_or(&[]);
            let mut b = [0; 8];
            b[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(b)
        }
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl Keys {
    pub fn new() -> Keys {
        Keys { len: 0, skip: 0, prefix: [0; PREFIX_MAX], heads: [0; FANOUT], places: [Place::DELETE; FANOUT] }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn place(&self, i: usize) -> Place {
        debug_assert!(i < self.len());
        self.places[i]
    }

    /// Compares key `i` with `key`.
    #[inline]
    pub fn cmp(&self, arena: &Arena, i: usize, key: &[u8]) -> Ordering {
        arena.get(self.place(i)).cmp(key)
    }

    /// Compares the first key with `key`, most often without leaving the node.
    #[inline]
    pub fn cmp_first(&self, arena: &Arena, key: &[u8]) -> Ordering {
        let skip = self.skip as usize;
        let prefix = self.prefix[..skip].cmp(&key[..skip.min(key.len())]);
        prefix.then_with(|| self.heads[0].cmp(&head(key, skip))).then_with(|| self.cmp(arena, 0, key))
    }

    /// The index of the first key that is not below `key`, and whether it equals `key`.
    #[inline]
    pub fn search(&self, arena: &Arena, key: &[u8]) -> (usize, bool) {
        let (len, skip) = (self.len(), self.skip as usize);
        match key[..skip.min(key.len())].cmp(&self.prefix[..skip]) {
            Ordering::Less => return (0, false),
            Ordering::Greater => return (len, false),
            Ordering::Equal => {}
        }
        let h = head(key, skip);
        let mut i = self.heads[..len].partition_point(|&x| x < h);
        let ties = self.heads[i..len].iter().take_while(|&&x| x == h).count();
        if ties == 0 {
            return (i, false);
        }
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

    /// Puts `key`, which lies at `place`, at index `i`. The node must have room.
    pub fn insert(&mut self, arena: &Arena, i: usize, key: &[u8], place: Place) {
        let len = self.len();
        debug_assert!(len < FANOUT && i <= len);
        if len == 0 {
            self.skip = key.len().min(PREFIX_MAX) as u8;
            self.prefix[..self.skip as usize].copy_from_slice(&key[..self.skip as usize]);
        } else {
            let shared = common_prefix(key, &self.prefix[..self.skip as usize]);
            if shared < self.skip as usize {
                self.set_skip(arena, shared);
            }
        }
        self.heads.copy_within(i..len, i + 1);
        self.places.copy_within(i..len, i + 1);
        self.heads[i] = head(key, self.skip as usize);
        self.places[i] = place;
        self.len += 1;
    }

    /// Moves the keys from `at` on into `right`, which must be empty.
    pub fn split_off(&mut self, arena: &Arena, at: usize, right: &mut Keys) {
        let n = self.len() - at;
        debug_assert!(right.len == 0);
        right.heads[..n].copy_from_slice(&self.heads[at..at + n]);
        right.places[..n].copy_from_slice(&self.places[at..at + n]);
        right.len = n as u8;
        right.skip = self.skip;
        right.prefix = self.prefix;
        self.len = at as u8;
        self.sharpen(arena);
        right.sharpen(arena);
    }

    /// Forgets the last key.
    pub fn pop(&mut self) {
        self.len -= 1;
    }

    /// Lengthens the shared prefix when the heads have become too much alike to tell keys apart.
    fn sharpen(&mut self, arena: &Arena) {
        let Some(last) = self.len().checked_sub(1) else { return };
        if self.heads[0] ^ self.heads[last] >= 1 << 32 {
            return;
        }
        let shared = common_prefix(arena.get(self.places[0]), arena.get(self.places[last])).min(PREFIX_MAX);
        if shared > self.skip as usize {
            self.set_skip(arena, shared);
        }
    }

    fn set_skip(&mut self, arena: &Arena, skip: usize) {
        self.prefix[..skip].copy_from_slice(&arena.get(self.places[0])[..skip]);
        self.skip = skip as u8;
        for i in 0..self.len() {
            self.heads[i] = head(arena.get(self.places[i]), skip);
        }
    }
}
