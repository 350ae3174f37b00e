//! The snapshots and clones of a server's store, which a client makes, lists and drops. A request
//! whose answer was lost is sent again with the same key, so it is done once.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::reply::{Listed, Reply};
use crate::request::Request;
use crate::served_transaction::random_key;

/// Limit of the memory of a list, so that a server cannot make a client hold any number of names.
const MOST_BYTES: usize = 64 << 20;

impl Client {
    /// Makes a snapshot of a branch of the store; `""` is the main one. It has everything that was
    /// committed there and written in its file system. If `synced`, it is on disk when this
    /// returns.
    pub fn make_snapshot(&self, branch: &str, name: &str, synced: bool) -> Result<()> {
        let (key, branch, name) = (random_key()?, branch.into(), name.into());
        self.done(&Request::Snapshot { key, branch, name, synced })
    }

    /// Drops a snapshot, durably. Clones of it stay.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.done(&Request::Remove { clone: false, key: random_key()?, name: name.into() })
    }

    /// Makes a clone of a snapshot, durably. To clone the present state, make a snapshot first.
    pub fn make_clone(&self, snapshot: &str, name: &str) -> Result<()> {
        let (key, snapshot, name) = (random_key()?, snapshot.into(), name.into());
        self.done(&Request::Clone { key, snapshot, name })
    }

    /// Drops a clone and everything in it, durably. Its transactions end, and its snapshots stay.
    pub fn drop_clone(&self, name: &str) -> Result<()> {
        self.done(&Request::Remove { clone: true, key: random_key()?, name: name.into() })
    }

    /// Returns the snapshots that this client may know, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<Listed>> {
        let mut all = self.all_of(false)?;
        all.sort_by_key(|one| one.created);
        Ok(all)
    }

    /// Returns the clones that this client may begin transactions in, by name.
    pub fn clones(&self) -> Result<Vec<Listed>> {
        self.all_of(true)
    }

    fn all_of(&self, clones: bool) -> Result<Vec<Listed>> {
        let (mut all, mut from, mut bytes): (Vec<Listed>, _, _) = (Vec::new(), String::new(), 0);
        loop {
            let request = Request::List { clones, from: from.clone() };
            let Reply::Listed { ended, all: page } = self.answered(&request)? else {
                return Err(Error::Unexpected);
            };
            let is_in_order = page.is_sorted_by(|a, b| a.name < b.name)
                && page.first().is_none_or(|first| first.name >= from);
            let last = page.last().map(|last| format!("{}\0", last.name));
            bytes += page.iter().map(bytes_of).sum::<usize>();
            if !is_in_order || bytes > MOST_BYTES {
                return Err(Error::Unexpected);
            }
            all.extend(page);
            match last {
                _ if ended => break,
                // The least name after the last one.
                Some(next) => from = next,
                None => return Err(Error::Unexpected),
            }
        }
        Ok(all)
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.answered(request)? {
            Reply::Done => Ok(()),
            _ => Err(Error::Unexpected),
        }
    }

    fn answered(&self, request: &Request) -> Result<Reply> {
        self.retried(|deadline| self.connection(deadline)?.call(request, deadline))
    }
}

fn bytes_of(one: &Listed) -> usize {
    size_of::<Listed>() + one.name.len() + one.of.len()
}
