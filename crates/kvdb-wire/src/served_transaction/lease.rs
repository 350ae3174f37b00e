//! The lease of the main branch: a view of the branch itself, which this client alone changes until
//! it returns the lease or loses it. A client that has lost it changes nothing any more, and all
//! its calls fail.

use std::sync::Arc;
use std::time::Duration;

use super::{Begun, Outcome, ServedTransaction, random_key, request_of};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::reply::Reply;

/// Options of a lease.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// Takes the lease from a client that holds it, which then fails.
    pub takes: bool,
    /// The time without a request after which others may take the lease.
    pub lease: Duration,
    /// Tells others who holds the lease.
    pub label: String,
}

impl Default for LeaseOptions {
    fn default() -> LeaseOptions {
        LeaseOptions { takes: false, lease: Duration::from_secs(60), label: String::new() }
    }
}

impl ServedTransaction {
    /// Takes the lease of the main branch. Changes are part of the branch as soon as they are sent,
    /// and are on the disk there after a sync.
    pub fn lease(client: &Arc<Client>, options: LeaseOptions) -> Result<ServedTransaction> {
        let takes = options.takes;
        let begun = Begun::Lease(options);
        ServedTransaction::with_key(client, random_key()?, begun, (false, takes))
    }

    /// Returns whether this is the lease of the main branch, and not a transaction.
    pub fn is_lease(&self) -> bool {
        matches!(self.begun, Begun::Lease(_))
    }

    /// Returns the lease. All changes made before this call are on the disk of the server then;
    /// later changes are lost.
    pub fn give_back(&self) -> kvdb::Result<()> {
        match self.commit(true)? {
            Outcome::Committed => Ok(()),
            Outcome::NotSynced(what) => Err(kvdb::Error::NotSynced(what)),
            Outcome::Conflict { .. } => Err(self.told(Error::Unexpected)),
        }
    }

    /// Renews the lease, and learns how much space there is by now.
    pub(super) fn renew_lease(&self) -> kvdb::Result<()> {
        let request = request_of((self.key, self.holder), &self.begun, true, false);
        let renewed = self.ask_by(|there, _, deadline| there.call(&request, deadline));
        match renewed.map_err(|e| self.told(e))? {
            Reply::Begun { id, space, .. } if id == self.id.0 => {
                *self.space.lock() = space;
                let mut state = self.state.lock();
                let waiting = state.gathered.bytes() + state.under_way.bytes();
                state.bytes = waiting as u64;
                Ok(())
            }
            _ => Err(self.told(Error::Unexpected)),
        }
    }
}

/// Returns the error of calls after the lease was lost.
pub(super) fn lost(why: &str) -> kvdb::Error {
    let what = format!("the lease of the main files is lost: {why}");
    kvdb::Error::Io(std::io::Error::other(what))
}
