//! What holds for a transaction of the mainline holds for one within another: the tests of `views`
//! once more, in a transaction, but for those that are serializable, which none is there.

#[path = "it/views.rs"]
mod views;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/world/mod.rs"]
mod world;
