//! What holds for the undoing of a commit to the mainline holds in a clone: the tests of `undo`
//! once more, there.

#[path = "it/undo.rs"]
mod undo;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/world/mod.rs"]
mod world;
