//! The server of a store for mounts elsewhere: at a socket, or for connections that are passed to
//! it.

use std::path::Path;
use std::sync::{Arc, Weak};

use kvdb::Kvdb;
use kvdb_server::PrivateSocket;
use kvdb_wire::{Server, ServerOptions};

use crate::support::serving::served_files::ServedFiles;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The default share of a store, in percent, that the transactions of clients may take.
pub const SHARE: u8 = 50;
/// The default limit of the connections of clients.
pub const CONNECTIONS: u32 = 128;

/// Limits of what all clients of a server have together.
#[derive(Clone, Copy)]
pub struct Limits {
    /// The share of the store, in percent, that their transactions may take.
    pub share: u8,
    /// The number of their connections.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { share: SHARE, connections: CONNECTIONS }
    }
}

/// Serves an open store at a socket until it is dropped.
pub struct Serving {
    // The fields are dropped in this order: first no client can connect, then no request is
    // answered.
    pub _socket: PrivateSocket,
    pub server: Arc<Server>,
}

impl Serving {
    /// Begins to serve. If there are `files`, clients may begin transactions over them.
    pub fn begin(
        db: &Kvdb,
        files: Option<ServedFiles>,
        limits: Limits,
        path: &Path,
    ) -> Outcome<Serving> {
        let refused = |why: String| Failure::new(Exit::Failed, why);
        let socket = PrivateSocket::listen(path).map_err(|e| refused(e.to_string()))?;
        let listener = socket.listener.try_clone();
        let listener = listener.map_err(|e| Failure::io("cannot listen", &e))?;
        let (db, options) = (db.clone(), options(db, limits));
        let server = match files {
            Some(files) => Server::with_transactions(db, Arc::new(files), listener, options),
            None => Server::begin(db, listener, options),
        };
        let server =
            server.map_err(|e| refused(format!("cannot serve at {}: {e}", path.shown())))?;
        Ok(Serving { _socket: socket, server: Arc::new(server) })
    }
}

impl Serving {
    /// Returns a reference to the server, which has the counts of the requests. It is valid as long
    /// as the store is served.
    pub fn server(&self) -> Weak<Server> {
        Arc::downgrade(&self.server)
    }
}

pub fn options(db: &Kvdb, limits: Limits) -> ServerOptions {
    let share = u128::from(db.space().total) * u128::from(limits.share) / 100;
    ServerOptions {
        all_transactions_bytes: u64::try_from(share).ok(),
        connections: limits.connections as usize,
        ..ServerOptions::default()
    }
}

/// Returns a server that serves only connections that are passed to it.
pub fn of_network(db: &Kvdb, files: Option<ServedFiles>, limits: Limits) -> Outcome<Arc<Server>> {
    let (db, options) = (db.clone(), options(db, limits));
    let server = match files {
        Some(files) => Server::without_socket(db, Some(Arc::new(files)), options),
        None => Server::without_socket(db, None, options),
    };
    let cannot = |e| Failure::new(Exit::Failed, format!("cannot serve the store: {e}"));
    server.map(Arc::new).map_err(cannot)
}
