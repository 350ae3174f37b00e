//! The behaviour tests of `zones` as one program, with a module for each theme. Linking one program
//! instead of one for each file saves most of the time of building the tests.

mod world;

mod allocation;
mod devices;
mod extent_writer;
mod first_reads;
mod loop_devices;
mod publish;
mod rounds;
mod superblock;
