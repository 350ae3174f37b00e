//! The behaviour tests of `objects-s3` as one program: a module a theme. One link instead of one
//! for each file is most of the time that a build of the tests takes.

mod canned;
mod contract;
mod relay;

mod answers;
mod bucket;
mod probe;
mod secrets;
mod servers;
mod tls;
