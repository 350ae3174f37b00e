//! Selects the transport of requests in the tests: `KVFS_TRANSPORT` is `uring` or `device`. Without
//! the variable the tests use `/dev/fuse`, whatever the kernel of this machine has enabled, so that
//! they do the same everywhere.

use kvfs_fuse::{Policy, TransportChoice};

/// Returns the policy of a mount. If writes are gathered the transport is always `/dev/fuse`, the
/// only one then.
pub fn policy(write_back: bool) -> Policy {
    let transport = match std::env::var("KVFS_TRANSPORT").as_deref() {
        Ok("uring") if !write_back => TransportChoice::Uring,
        Ok("uring" | "device") | Err(_) => TransportChoice::Device,
        Ok(other) => panic!("KVFS_TRANSPORT is '{other}': it may be uring or device"),
    };
    Policy { write_back, transport, ..Policy::default() }
}
