//! Striped locks that make read-modify-write commands atomic with respect to every other writer
//! of the server.
//!
//! The lock of a key is one of a fixed number of stripes. A command that needs several stripes
//! takes them in ascending order, so there is no deadlock; a command that deletes a range takes
//! all of them. No lock is held while a thread writes to a client, or waits for a sync or a
//! transaction.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use env::sync::{Mutex, MutexGuard};
use kvdb::DictionaryId;

use crate::failure::Failure;

/// Longest time that a command waits for serializable transactions that hold locks on the keys that
/// the command is about to change.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The first and shortest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

const STRIPES: usize = 256;

pub struct KeyLocks {
    stripes: Box<[Mutex<()>]>,
    /// The hash function. It is seeded at random, so that no client can choose keys that share
    /// one stripe.
    hash: RandomState,
}

/// Locked stripes, which are released when this value is dropped.
#[must_use]
pub enum Held<'a> {
    /// The caller already holds the locks.
    Already,
    One(#[allow(dead_code, reason = "held, not read")] MutexGuard<'a, ()>),
    Many(Vec<MutexGuard<'a, ()>>),
}

impl Held<'_> {
    /// Returns whether all keys are locked.
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
        self.places(keys.map(|key| (dict, key)))
    }
    /// Takes the locks of keys of several dictionaries.
    pub fn places<'k>(&self, places: impl Iterator<Item = (DictionaryId, &'k [u8])>) -> Held<'_> {
        // Each stripe has a bit, because most commands need only one or two stripes.
        let mut wanted = [0u64; STRIPES / 64];
        for (dict, key) in places {
            let stripe = self.stripe(dict, key);
            wanted[stripe / 64] |= 1u64 << (stripe % 64);
        }
        let many: usize = wanted.iter().map(|word| word.count_ones() as usize).sum();
        let mut held = Vec::with_capacity(many);
        for (word, mut left) in wanted.into_iter().enumerate() {
            while left != 0 {
                held.push(self.stripes[64 * word + left.trailing_zeros() as usize].lock());
                left &= left - 1;
            }
        }
        Held::Many(held)
    }
    pub fn all(&self) -> Held<'_> {
        Held::Many(self.stripes.iter().map(|stripe| stripe.lock()).collect())
    }
}

/// Runs `work`, which locks keys and commits under these locks, and retries it while a
/// serializable transaction holds a lock on data that `work` is about to change. The locks are
/// released before each pause, because other commands need them. The transaction may be unable to
/// end before one of these commands has run.
pub fn keeping_clear<T>(
    stopping: &AtomicBool,
    mut work: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
    loop {
        match kvdb::without_lock_waits(&mut work) {
            Err(Failure::Locked(_)) if stopping.load(Relaxed) => return Err(Failure::STOPPING),
            Err(Failure::Locked(_)) if waited < LONGEST_WAIT => {
                env::thread::sleep(pause);
                waited += pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            // The store was called without a wait, so its message says that the wait took 0ns.
            Err(Failure::Locked(why)) => {
                let waited = format!("{LONGEST_WAIT:?}");
                return Err(Failure::Locked(why.replace("0ns", &waited)));
            }
            done => return done,
        }
    }
}
