//! The behaviour tests of `kvfs-fuse` as one program, with a module for each theme. Linking one
//! program instead of one for each file saves most of the time of building the tests.

mod memory;
mod real;
mod way;

mod costs;
mod direct;
mod handles;
mod handover;
mod held_back;
mod in_place;
mod killed;
mod permissions;
mod privileges;
mod refused;
mod requests;
mod survives;
mod views;
