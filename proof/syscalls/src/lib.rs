//! Makes the same random system calls, by several processes, on a file system under test and on a
//! trusted one, and compares every result and the resulting trees. It knows nothing of the product
//! and works on any two directories.

mod bench;
mod call;
mod compare;
mod flags;
mod generate;
mod kernel;
mod marks;
mod mounted;
mod random;
mod shrink;
mod side;
mod tree;
mod worker;

pub use bench::{Bench, Difference, Mode};
pub use call::{Call, Step, read_history};
pub use generate::{Taste, history};
pub use mounted::{Mounted, Outcome};
pub use shrink::shrink;
