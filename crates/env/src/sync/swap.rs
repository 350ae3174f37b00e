//! `arc_swap::ArcSwap`, with a point before each load and on both sides of each store.

use std::sync::Arc;

use crate::schedule::point;

#[derive(Debug)]
pub struct ArcSwap<T>(arc_swap::ArcSwap<T>);

impl<T> ArcSwap<T> {
    pub fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap(arc_swap::ArcSwap::from_pointee(value))
    }

    pub fn load(&self) -> arc_swap::Guard<Arc<T>> {
        point();
        self.0.load()
    }

    pub fn load_full(&self) -> Arc<T> {
        point();
        self.0.load_full()
    }

    pub fn store(&self, value: Arc<T>) {
        point();
        self.0.store(value);
        point();
    }
}
