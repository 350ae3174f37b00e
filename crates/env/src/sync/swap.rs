//! `arc_swap::ArcSwap`, with a scheduling point before each load and on both sides of each store.

use std::sync::Arc;

use crate::schedule::point;

/// An atomic reference to a shared value, with scheduling points.
#[derive(Debug)]
pub struct ArcSwap<T>(arc_swap::ArcSwap<T>);

impl<T> ArcSwap<T> {
    /// Creates a reference to a new shared value.
    pub fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap(arc_swap::ArcSwap::from_pointee(value))
    }

    /// Borrows the current value.
    pub fn load(&self) -> arc_swap::Guard<Arc<T>> {
        point();
        self.0.load()
    }

    /// Returns the current value.
    pub fn load_full(&self) -> Arc<T> {
        point();
        self.0.load_full()
    }

    /// Replaces the value.
    pub fn store(&self, value: Arc<T>) {
        point();
        self.0.store(value);
        point();
    }
}
