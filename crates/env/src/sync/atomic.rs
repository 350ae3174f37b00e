//! The atomics of `std`, with a point before each operation that orders threads.

pub use std::sync::atomic::{Ordering, fence};

use crate::schedule::point;

fn before(order: Ordering) {
    if order != Ordering::Relaxed {
        point();
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        impl $name {
            pub const fn new(value: $value) -> Self {
                $name(std::sync::atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                before(order);
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                before(order);
                self.0.store(value, order);
                before(order);
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.swap(value, order)
            }

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

            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                before(set);
                self.0.fetch_update(set, fetch, change)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

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
            pub fn fetch_add(&self, by: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_add(by, order)
            }

            pub fn fetch_sub(&self, by: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_sub(by, order)
            }

            pub fn fetch_max(&self, other: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_max(other, order)
            }

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
