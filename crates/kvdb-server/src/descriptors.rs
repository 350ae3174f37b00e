//! File descriptors for connections. The limit of the process is raised to allow the requested
//! number of connections, if possible.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of descriptors reserved for everything else: the store, a mount and its threads,
/// scripts.
const KEPT: u64 = 256;
/// Number of descriptors per connection without TLS.
const PLAIN: u64 = 1;
/// Number of descriptors per connection with TLS, which also has a relay.
const RELAYED: u64 = 3;

/// Raises the descriptor limit of the process for `wanted` connections if necessary, and returns
/// the number of connections that the limit allows.
pub fn provide(wanted: usize, relayed: bool) -> usize {
    let each = if relayed { RELAYED } else { PLAIN };
    let needed = (wanted as u64).saturating_mul(each).saturating_add(KEPT);
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(limit.current) {
        return wanted;
    }
    let raised = limit.maximum.map_or(needed, |most| most.min(needed));
    let new = Rlimit { current: Some(raised), maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, new) {
        Ok(()) => raised,
        Err(error) => {
            tracing::warn!("the limit of descriptors could not be raised to {raised}: {error}");
            limit.current.unwrap_or(raised)
        }
    };
    let possible = usize::try_from(current.saturating_sub(KEPT) / each).unwrap_or(wanted);
    wanted.min(possible.max(1))
}
