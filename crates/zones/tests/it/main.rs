//! The behaviour tests of `zones` as one program: a module a theme. One link instead of one for
//! each file is most of the time that a build of the tests takes.

mod world;

mod allocation;
mod devices;
mod extent_writer;
mod first_reads;
mod loop_devices;
mod publish;
mod rounds;
mod superblock;
