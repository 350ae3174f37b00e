//! The snapshots and clones of a store that a server has (`kvfs serve`), by its address. The
//! credentials for a server on the network are those of the environment, as for `kvfs run`.

use std::path::Path;
use std::sync::Arc;

use kvdb_wire::{Client, ClientOptions, Error, FailureCode, Listed};
use places::{Credentials, Server};

use crate::support::terminal::output::{Exit, Failure, Outcome};

/// A server, and a connection to it.
pub struct There {
    server: Server,
    client: Arc<Client>,
}

impl There {
    /// Connects to the server that `target` is the address of. Returns `None` if it is a path.
    pub fn of(target: &Path) -> Outcome<Option<There>> {
        let Some(server) = Server::parse(target)? else { return Ok(None) };
        let credentials = Credentials::default().or_environment();
        let client = server.connect(&credentials, ClientOptions::default())?;
        Ok(Some(There { server, client }))
    }

    /// Makes a snapshot of a clone, or of the store itself if `of` is empty.
    pub fn make_snapshot(&self, of: &str, name: &str) -> Outcome {
        self.client.make_snapshot(of, name, true).map_err(|e| self.failure(e))
    }

    pub fn drop_snapshot(&self, name: &str) -> Outcome {
        self.client.drop_snapshot(name).map_err(|e| self.failure(e))
    }

    /// Returns the snapshots that the client may know, the oldest first.
    pub fn snapshots(&self) -> Outcome<Vec<Listed>> {
        self.client.snapshots().map_err(|e| self.failure(e))
    }

    pub fn make_clone(&self, snapshot: &str, name: &str) -> Outcome {
        self.client.make_clone(snapshot, name).map_err(|e| self.failure(e))
    }

    pub fn drop_clone(&self, name: &str) -> Outcome {
        self.client.drop_clone(name).map_err(|e| self.failure(e))
    }

    /// Returns the clones in which the client may begin transactions, by name.
    pub fn clones(&self) -> Outcome<Vec<Listed>> {
        self.client.clones().map_err(|e| self.failure(e))
    }

    /// Returns the failure of a command that needs the store itself.
    pub fn refused(&self, what: &str) -> Failure {
        Failure::new(Exit::Usage, format!("{}: {what} is done where the store is", self.server))
            .hint("give the store, or the directory that it is mounted on, on the server")
    }

    fn failure(&self, error: Error) -> Failure {
        let exit = match &error {
            Error::Failed(failure) => match failure.code {
                FailureCode::NotAllowed => Exit::NotPermitted,
                FailureCode::NoSnapshot => Exit::NotFound,
                FailureCode::NoSpace => Exit::NoSpace,
                FailureCode::Corrupt => Exit::Damaged,
                _ => Exit::Failed,
            },
            Error::NoPlace(_) => Exit::Busy,
            _ => Exit::Failed,
        };
        let what = match &error {
            // For this kind, the server sends the name alone.
            Error::Failed(failure) if failure.code == FailureCode::NoSnapshot => {
                format!("no snapshot {}", failure.what)
            }
            error => error.to_string(),
        };
        let failure = Failure::new(exit, format!("{}: {what}", self.server));
        match exit {
            Exit::NotPermitted => failure.hint(
                "with --write, a server lets make snapshots of what a token may write, and clones \
                 that it may write of snapshots that it may read; admin lets drop snapshots",
            ),
            _ => failure,
        }
    }
}
