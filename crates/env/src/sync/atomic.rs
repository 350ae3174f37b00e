//! The atomics of `std`, with a scheduling point before each operation that orders threads.

pub use std::sync::atomic::{Ordering, fence};

use crate::schedule::point;

fn before(order: Ordering) {
    if order != Ordering::Relaxed {
        point();
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// The atomic of `std` with the same name, with scheduling points.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        impl $name {
            /// Creates a new atomic with this value.
            pub const fn new(value: $value) -> Self {
                $name(std::sync::atomic::$name::new(value))
            }

            /// Returns the value.
            pub fn load(&self, order: Ordering) -> $value {
                before(order);
                self.0.load(order)
            }

            /// Sets the value.
            pub fn store(&self, value: $value, order: Ordering) {
                before(order);
                self.0.store(value, order);
                before(order);
            }

            /// Sets the value and returns the previous one.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.swap(value, order)
            }

            /// Sets the value to `new` if it is `current`; returns the previous value, as `Ok` if
            /// it was set.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                before(success);
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Replaces the value by the result of `change` and returns the previous value, or
            /// returns it as `Err` if the result is `None`.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                before(set);
                self.0.fetch_update(set, fetch, change)
            }

            /// Returns the value by exclusive access.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// Returns the value and consumes the atomic.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            /// Adds to the value, wrapping, and returns the previous value.
            pub fn fetch_add(&self, by: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_add(by, order)
            }

            /// Subtracts from the value, wrapping, and returns the previous value.
            pub fn fetch_sub(&self, by: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_sub(by, order)
            }

            /// Sets the value to the maximum of the value and `other`, and returns the previous
            /// value.
            pub fn fetch_max(&self, other: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_max(other, order)
            }

            /// Sets the value to the minimum of the value and `other`, and returns the previous
            /// value.
            pub fn fetch_min(&self, other: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_min(other, order)
            }
        }
    };
}

atomic!(AtomicBool, bool);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);
