//! Locks, condition variables, atomics and atomic references, with the interface of `parking_lot`,
//! `std` and `arc_swap`.
//!
//! Without debug assertions, the types of this module are exactly the types of those crates. With
//! debug assertions, each operation that orders threads is a point of the
//! [schedule](crate::schedule) if its thread belongs to a simulated run, and the plain operation
//! otherwise. Relaxed atomic operations order nothing and are not points.

#[cfg(debug_assertions)]
pub mod atomic;
#[cfg(debug_assertions)]
mod condvar;
#[cfg(debug_assertions)]
mod raw;
#[cfg(debug_assertions)]
mod swap;

#[cfg(debug_assertions)]
mod scheduled {
    use super::raw::{RawMutex, RawRwLock};

    /// A mutex with scheduling points.
    pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
    /// The guard of a locked [`Mutex`].
    pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
    /// The guard of a part of the data of a locked [`Mutex`].
    pub type MappedMutexGuard<'a, T> = lock_api::MappedMutexGuard<'a, RawMutex, T>;
    /// A readers-writer lock with scheduling points.
    pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
    /// The guard of an [`RwLock`] that is locked for reading.
    pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
    /// The guard of an [`RwLock`] that is locked for writing.
    pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;
    pub use super::condvar::{Condvar, WaitTimeoutResult};
    pub use super::swap::ArcSwap;
}
#[cfg(debug_assertions)]
pub use scheduled::*;

pub use arc_swap::Guard;

#[cfg(not(debug_assertions))]
pub use arc_swap::ArcSwap;
#[cfg(not(debug_assertions))]
pub use parking_lot::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    WaitTimeoutResult,
};
#[cfg(not(debug_assertions))]
pub use std::sync::atomic;
