//! The person at the terminal: output, text, sizes and times, failures, questions, a pager.

pub mod counted;
pub mod failures;
pub mod list;
pub mod output;
pub mod pager;
pub mod prompt;
pub mod sizes;
pub mod span;
pub mod text;
pub mod usage;
