//! The behaviour tests of `objects-s3` as one program, with a module for each theme. Linking one
//! program instead of one for each file saves most of the time of building the tests.

mod canned;
mod contract;
mod relay;

mod answers;
mod bucket;
mod probe;
mod secrets;
mod servers;
mod tls;
