//! The native part of the Python package `kvfs`: an embedded store, based on the crates `kvdb`
//! and `kvfs`. The public interface is in `python/kvfs`; this crate provides objects with few and
//! simple calls for it.
//!
//! - `database`, on `shared`: a store that is open in this process, and how it is closed;
//! - `at_address`: stores in object storage; `merging`: of their forks;
//! - `scope`: keys of the store, of a transaction or of a snapshot, on `place`, which knows whether
//!   the store is open here, and `batches`; `range`, `changes`: iterators;
//! - `served`: views of a store that a server holds;
//! - `files`, `paths`, `open_file`: the file system of a scope; `home`: the owner of one;
//! - `stream`: Python's file objects as readers and writers, for send and receive;
//! - `slot`: what ends with the store, and what a forked child must leave alone;
//! - `failure`: errors as exceptions; `octets`: arguments that are bytes.
//!
//! The interpreter's lock is released around every call that may wait for the disk, a lock or
//! another thread. No lock of this crate is held while Python code runs.

mod at_address;
mod batches;
mod changes;
mod database;
mod dictionary_options;
mod failure;
mod files;
mod home;
mod merging;
mod octets;
mod open_file;
mod paths;
mod place;
mod range;
mod scope;
mod served;
mod shared;
mod slot;
mod stream;

use pyo3::prelude::*;

#[pymodule]
fn _kvfs(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<database::Database>()?;
    m.add_class::<scope::Scope>()?;
    m.add_class::<scope::Savepoint>()?;
    m.add_class::<range::Range>()?;
    m.add_class::<changes::Changes>()?;
    m.add_class::<files::Files>()?;
    m.add_class::<open_file::OpenFile>()?;
    m.add_function(wrap_pyfunction!(at_address::address, m)?)?;
    m.add_function(wrap_pyfunction!(served::server, m)?)?;
    m.add_function(wrap_pyfunction!(served::open_served, m)?)?;
    m.add_function(wrap_pyfunction!(at_address::fork, m)?)?;
    m.add_function(wrap_pyfunction!(at_address::forks, m)?)?;
    m.add_function(wrap_pyfunction!(at_address::drop_fork, m)?)?;
    m.add("MAX_KEY", kvdb::MAX_KEY)?;
    m.add("MAX_VALUE", kvdb::MAX_VALUE)?;
    m.add("LEAST_SIZE", shared::LEAST_SIZE)?;
    Ok(())
}
