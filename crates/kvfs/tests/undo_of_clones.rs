//! Undoing a commit to a clone follows the rules of the mainline. The tests of `undo` run again in
//! a clone.

#[path = "it/undo.rs"]
mod undo;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/world/mod.rs"]
mod world;
