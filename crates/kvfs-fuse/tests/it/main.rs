//! The behaviour tests of `kvfs-fuse` as one program: a module a theme. One link instead of one for
//! each file is most of the time that a build of the tests takes.

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
