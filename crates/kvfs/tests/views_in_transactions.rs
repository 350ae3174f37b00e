//! A transaction within another one follows the rules of a transaction of the mainline. The tests
//! of `views` run again in a transaction, except for serializable ones, which do not exist there.

#[path = "it/views.rs"]
mod views;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/world/mod.rs"]
mod world;
