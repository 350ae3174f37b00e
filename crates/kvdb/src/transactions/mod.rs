//! Transactions: what belongs together, done by any number of threads and processes, seen by nobody else until it commits.
//!
//! - `scope`: the store, a transaction or a frozen state, for whoever need not know which.

mod scope;

pub use scope::Scope;
