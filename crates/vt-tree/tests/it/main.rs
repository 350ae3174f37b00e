//! The behaviour tests of `vt-tree` as one program, with a module for each theme. Linking one
//! program instead of one for each file saves most of the time of building the tests.

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
