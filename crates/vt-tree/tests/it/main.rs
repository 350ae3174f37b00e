//! The behaviour tests of `vt-tree` as one program: a module a theme. One link instead of one for
//! each file is most of the time that a build of the tests takes.

mod algebra;
mod difference;
mod ends_of_ranges;
mod faults;
mod merge_read_ahead;
mod page_index;
mod relocation;
mod run_algebra;
mod stitching;
mod storage;
