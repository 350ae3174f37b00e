//! The connection to a store's commands: to the socket of its daemon if the store is mounted, and
//! otherwise to the store that this process opens.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use kvdb_server::{Client, Reply};

use crate::support::mounts::mounted::{self, refused};
use crate::support::mounts::place::{self, View};
use crate::support::mounts::{sockets, waiting};
use crate::support::serving::scripts;
use crate::support::stores::store::{self, Access, Store};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// A connection to a store's commands, whether it is mounted or not.
pub struct Connection {
    client: Client,
    /// The socket of the daemon, or the store's file.
    at: PathBuf,
    opened: Option<Store>,
}

impl Connection {
    /// Connects to the keys of the store, or of the view, that `target` names.
    pub fn of_keys(target: &Path, writes: bool) -> Outcome<Connection> {
        let Some(place) = place::of_target(target)? else { return Connection::to(target, writes) };
        let mut connection = Connection::to(target, writes)?;
        match &place.view {
            View::Mainline => {}
            View::Transaction(id) => {
                drop(connection.call(&[b"TXN", b"JOIN", id.to_string().as_bytes()])?)
            }
            View::Snapshot(name) => {
                drop(connection.call(&[b"SNAPSHOT", b"USE", name.as_bytes()])?)
            }
            View::Clone(name) => drop(connection.call(&[b"CLONE", b"USE", name.as_bytes()])?),
            View::Listing => {
                let what =
                    format!("{} leads into a list of views, which has no keys", target.shown());
                return Err(Failure::new(Exit::Usage, what)
                    .hint("give one of the views in it, or the directory of the mount"));
            }
        }
        Ok(connection)
    }

    /// Connects to the whole store.
    pub fn open(target: &Path, writes: bool) -> Outcome<Connection> {
        place::must_be_the_store(target)?;
        Connection::to(target, writes)
    }

    /// Connects to the store or the clone that `target` leads to. Commands that name no branch work
    /// there.
    pub fn of_branch(target: &Path, writes: bool) -> Outcome<Connection> {
        let clone = place::branch_of(target)?;
        let mut connection = Connection::to(target, writes)?;
        if !clone.is_empty() {
            connection.call(&[b"CLONE", b"USE", clone.as_bytes()])?;
        }
        Ok(connection)
    }

    fn to(target: &Path, writes: bool) -> Outcome<Connection> {
        if let Some(socket) = sockets::socket_of(target)? {
            let client = sockets::connect(&socket).map_err(|e| {
                Failure::io(format!("cannot reach the store's daemon at {}", socket.shown()), &e)
            })?;
            let entered = mounted::entered(&socket);
            let mut connection = Connection { client, at: socket, opened: None };
            if let Some(id) = entered {
                connection.call(&[b"TXN", b"JOIN", id.to_string().as_bytes()])?;
            }
            return Ok(connection);
        }
        if target.is_dir() {
            let what = format!(
                "{} is neither a store nor the directory of a mounted one with a socket",
                target.shown()
            );
            return Err(Failure::new(Exit::NotFound, what)
                .hint("mount the store there, or give the store's file"));
        }
        let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
        let store = store::open_waiting(target, access, None)?;
        Ok(Connection {
            client: Client::local_with_scripts(store.db.clone(), scripts::command()),
            at: target.into(),
            opened: Some(store),
        })
    }

    /// Runs a command; an error reply is a failure.
    pub fn call(&mut self, words: &[&[u8]]) -> Outcome<Reply> {
        let _waiting = waiting::on(&self.at);
        answered(self.client.call(words))
    }

    /// Returns whether commands run in a transaction.
    pub fn is_joined(&mut self) -> Outcome<bool> {
        let _waiting = waiting::on(&self.at);
        let status = self.client.call(&[b"TXN", b"STATUS"]);
        let status = status.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))?;
        // Without a transaction, the reply is null or an error.
        Ok(!matches!(status, Reply::Null | Reply::Error(_)))
    }

    /// Runs a command whose reply is followed by a stream of bytes.
    pub fn stream(self, words: &[&[u8]]) -> Outcome<impl Read + use<>> {
        let _waiting = waiting::on(&self.at);
        match self
            .client
            .stream(words)
            .map_err(|e| Failure::io("cannot talk to the store's daemon", &e))?
        {
            (Reply::Error(text), _) => Err(refused(&text)),
            (_, stream) => Ok(stream),
        }
    }

    /// Runs a command of a mounted store that is followed by a stream of bytes, which `write`
    /// writes. Returns the reply.
    pub fn send_stream(
        self,
        words: &[&[u8]],
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Outcome<Reply> {
        let _waiting = waiting::on(&self.at);
        answered(self.client.send_stream(words, write))
    }

    /// Returns the store if it is opened by this process.
    pub fn store(&self) -> Option<&Store> {
        self.opened.as_ref()
    }

    pub fn close(self) -> Outcome {
        drop(self.client);
        self.opened.map_or(Ok(()), Store::close)
    }
}

/// Converts an error reply, or a missing one, into a failure.
fn answered(reply: io::Result<Reply>) -> Outcome<Reply> {
    match reply.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))? {
        Reply::Error(text) => Err(refused(&text)),
        reply => Ok(reply),
    }
}
