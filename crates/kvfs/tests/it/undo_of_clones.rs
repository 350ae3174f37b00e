//! What holds for the undoing of a commit to the mainline holds in a clone: the tests of `undo`
//! once more, there.

#[path = "undo.rs"]
mod undo;
