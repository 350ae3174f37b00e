//! The behaviour tests of `objects` as one program, with a module for each theme. Linking one
//! program instead of one for each file saves most of the time of building the tests.

mod contract;
mod directory;
#[cfg(feature = "encryption")]
mod encrypted;
mod faults;
mod heads;
mod races;
