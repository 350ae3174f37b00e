//! The behaviour tests of `objects` as one program: a module a theme. One link instead of one for
//! each file is most of the time that a build of the tests takes.

mod contract;
mod directory;
#[cfg(feature = "encryption")]
mod encrypted;
mod faults;
mod heads;
mod races;
