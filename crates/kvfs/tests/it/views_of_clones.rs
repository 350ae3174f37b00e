//! What holds for a transaction of the mainline holds for one of a clone: the tests of `views` once
//! more, in a clone.

#[path = "views.rs"]
mod views;
