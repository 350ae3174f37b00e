//! Locks that make read-modify-write commands atomic against every other writer of the server.
//!
//! A key's lock is one of a fixed number of stripes. A command that needs several takes them in
//! ascending order, so there is no deadlock; one that deletes a range takes them all. No lock is
//! held while a client is written to or a sync is waited for.

use std::hash::{BuildHasher, RandomState};

use env::sync::{Mutex, MutexGuard};
use kvdb::DictionaryId;

const STRIPES: usize = 256;

pub struct KeyLocks {
    stripes: Box<[Mutex<()>]>,
    /// Seeded at random, so that no client can aim its keys at one stripe.
    hash: RandomState,
}

/// Stripes held until this is dropped.
#[must_use]
pub enum Held<'a> {
    /// The caller holds the locks.
    Already,
    One(#[allow(dead_code, reason = "held, not read")] MutexGuard<'a, ()>),
    Many(Vec<MutexGuard<'a, ()>>),
}

impl Held<'_> {
    /// All keys are locked.
    pub fn is_all(&self) -> bool {
        matches!(self, Held::Many(stripes) if stripes.len() == STRIPES)
    }
}

impl Default for KeyLocks {
    fn default() -> Self {
        KeyLocks {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            hash: RandomState::new(),
        }
    }
}

impl KeyLocks {
    fn stripe(&self, dict: DictionaryId, key: &[u8]) -> usize {
        self.hash.hash_one((dict.0, key)) as usize % STRIPES
    }
    pub fn key(&self, dict: DictionaryId, key: &[u8]) -> Held<'_> {
        Held::One(self.stripes[self.stripe(dict, key)].lock())
    }
    pub fn keys<'k>(&self, dict: DictionaryId, keys: impl Iterator<Item = &'k [u8]>) -> Held<'_> {
        let mut wanted = [false; STRIPES];
        for key in keys {
            wanted[self.stripe(dict, key)] = true;
        }
        Held::Many(
            self.stripes
                .iter()
                .zip(wanted)
                .filter(|(_, wanted)| *wanted)
                .map(|(stripe, _)| stripe.lock())
                .collect(),
        )
    }
    pub fn all(&self) -> Held<'_> {
        Held::Many(self.stripes.iter().map(|stripe| stripe.lock()).collect())
    }
}
