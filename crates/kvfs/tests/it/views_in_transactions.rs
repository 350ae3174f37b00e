//! What holds for a transaction of the mainline holds for one within another: the tests of `views`
//! once more, in a transaction, but for those that are serializable, which none is there.

#[path = "views.rs"]
mod views;
