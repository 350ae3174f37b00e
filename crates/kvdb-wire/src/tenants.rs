//! The tenants of a server: the clients of one line of its list of tokens, who together take a
//! share of its places. The places are connections, open transactions, the bytes of transactions,
//! and the memory of answers and of incomplete changes. So a token or a certificate that takes as
//! many as it can leaves room for the clients of others.
//!
//! Clients at a socket of this machine show no token of a list, and are no tenants.

use std::collections::HashMap;
use std::sync::Arc;

use env::sync::Mutex;

use crate::budget::Budget;
use crate::roles::{Line, LineId};
use crate::socket::Socket;

/// The tenants that have connected to a server. There are as many as lines in the list at most.
pub(crate) struct Tenants {
    /// Limit of the bytes of all pending answers.
    answers: usize,
    all: Mutex<HashMap<LineId, Arc<Tenant>>>,
}

/// The clients of one line.
pub(crate) struct Tenant {
    /// Limit of the connections and of the transactions, if the line has one.
    most: Option<usize>,
    /// Set if there are no others to leave room for.
    is_only: bool,
    connections: Mutex<Connections>,
    /// The budget of the pending answers, which they take from that of the server, too.
    pub answers: Arc<Budget>,
}

#[derive(Default)]
struct Connections {
    /// Number of the last one.
    last: u64,
    /// The connections that have places, by number.
    open: HashMap<u64, Socket>,
    /// Number of all, including those that have ended while the server works on their requests.
    all: usize,
}

/// A connection of a tenant. It has a place until its socket ends, and takes threads of the server
/// until this is dropped.
pub(crate) struct Connected {
    pub tenant: Arc<Tenant>,
    number: u64,
}

impl Connected {
    /// Releases the place of the connection, whose socket has ended. A client whose request takes
    /// long connects again while the server still works on it, and needs the place.
    pub fn end(&self) {
        self.tenant.connections.lock().open.remove(&self.number);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.end();
        self.tenant.connections.lock().all -= 1;
    }
}

impl Tenants {
    pub fn new(answers: usize) -> Arc<Tenants> {
        Arc::new(Tenants { answers, all: Mutex::default() })
    }

    /// Returns the tenant of a line.
    pub fn of(&self, line: &Line) -> Arc<Tenant> {
        let new = || Tenant::new(line.most, line.is_only, self.answers);
        self.all.lock().entry(line.id()).or_insert_with(new).clone()
    }
}

impl Tenant {
    pub fn new(most: Option<usize>, is_only: bool, answers: usize) -> Arc<Tenant> {
        let answers = Budget::new(share(is_only, answers as u64) as usize);
        Arc::new(Tenant { most, is_only, connections: Mutex::default(), answers })
    }

    /// Returns how many of `all` connections, or of `all` transactions, it may have.
    pub fn places(&self, all: usize) -> usize {
        self.most.map_or(self.share(all as u64) as usize, |most| most.min(all))
    }

    /// Returns how many of `all` bytes it may take.
    pub fn share(&self, all: u64) -> u64 {
        share(self.is_only, all)
    }

    /// Counts one more of the server's `all` connections, on this socket. Returns how many there
    /// are if it may not have more. Those that have ended while the server works on their requests
    /// have no places, but together with the others they take no more than the share of the tenant:
    /// else a client that ends its connections repeatedly would take the places of others.
    pub fn connect(self: &Arc<Tenant>, all: usize, socket: &Socket) -> Result<Connected, usize> {
        let mut connections = self.connections.lock();
        let places = self.places(all);
        if connections.open.len() >= places {
            // While all threads of a connection work on its requests, none of them reads its end.
            connections.open.retain(|_, socket| !socket.has_ended());
        }
        if connections.open.len() >= places {
            return Err(connections.open.len());
        }
        if connections.all >= places.max(self.share(all as u64) as usize) {
            return Err(connections.all);
        }
        connections.all += 1;
        connections.last += 1;
        let number = connections.last;
        connections.open.insert(number, socket.clone());
        Ok(Connected { tenant: self.clone(), number })
    }
}

/// Returns the share of a tenant: all but a quarter, which others can rely on.
fn share(is_only: bool, all: u64) -> u64 {
    if is_only { all } else { all - all / 4 }
}
