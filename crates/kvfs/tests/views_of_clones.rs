//! What holds for a transaction of the mainline holds for one of a clone: the tests of `views` once
//! more, in a clone.

#[path = "it/views.rs"]
mod views;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/world/mod.rs"]
mod world;
