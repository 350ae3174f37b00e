//! Runs whose program works in a kernel overlay above its transaction (`kvfs run --layer`): the
//! scratch directory of the overlay, and the fold of its upper layer into the transaction.

pub mod fold;
pub mod held;
pub mod in_place;
pub mod inside_layer;
pub mod items;
pub mod origin;
pub mod plan;
pub mod scratch;
