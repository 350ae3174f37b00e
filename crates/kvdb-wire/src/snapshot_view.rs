//! A snapshot on a server, as a view on the client. After a connection has failed, the snapshot is
//! opened again on the next one, by its name. Its id and the numbers of its dictionaries show
//! whether it is still the same.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use env::Instant;
use env::sync::Mutex;
use kvdb::{DictionaryId, PageRequest, ServedView, Space, TuplePage};

use crate::ahead::{Asked, first_of_dense};
use crate::asking::{first_keys, with_missing};
use crate::client::{Client, Connection};
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::pages::Pages;
use crate::prefetch::read_ahead;
use crate::reply::Reply;
use crate::request::Request;
use crate::single_flight::SingleFlight;

/// A view of a snapshot.
pub struct SnapshotView {
    client: Arc<Client>,
    name: String,
    id: [u8; 16],
    space: Space,
    dictionaries: HashMap<String, DictionaryId>,
    /// The connection on which the snapshot was last opened, and the number of the view there.
    open: SingleFlight<(Arc<Connection>, u64)>,
    pages: Mutex<Pages>,
}

impl SnapshotView {
    /// Opens the snapshot of this name.
    pub fn open(client: &Arc<Client>, name: &str) -> Result<SnapshotView> {
        let deadline = client.deadline()?;
        let connection = client.connection(deadline)?;
        let opened = open(&connection, name, deadline)?;
        let dictionaries = opened.numbers();
        Ok(SnapshotView {
            client: client.clone(),
            name: name.into(),
            id: opened.snapshot,
            space: opened.space,
            dictionaries,
            open: SingleFlight::new(Some((connection, opened.view))),
            pages: Mutex::new(Pages::new(client.options.memory)),
        })
    }

    /// Returns the names of the dictionaries of the snapshot, in order: those of the file system,
    /// and those of the user.
    pub fn dictionary_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.dictionaries.keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns the connection and the number of the view there. Opens the snapshot again if
    /// necessary.
    fn opened(&self, deadline: Instant) -> Result<(Arc<Connection>, u64)> {
        let connection = self.client.connection(deadline)?;
        let is_there = |(there, _): &(Arc<Connection>, u64)| Arc::ptr_eq(there, &connection);
        self.open.get(deadline, is_there, || {
            let opened = open(&connection, &self.name, deadline)?;
            // A copy of the store has the same snapshot, but other numbers of dictionaries.
            let is_same = opened.snapshot == self.id && opened.numbers() == self.dictionaries;
            if !is_same {
                // The view that was just opened ends with the connection.
                let what = format!("{} was dropped, and another one has its name", self.name);
                return Err(Error::Failed(Failure { code: FailureCode::NoSnapshot, what }));
            }
            Ok((connection.clone(), opened.view))
        })
    }

    /// Sends a request, and retries until there is an answer or the client gives up.
    fn ask(&self, request: impl Fn(u64) -> Request) -> kvdb::Result<Reply> {
        let asked = self.client.retried(|deadline| {
            let (there, view) = self.opened(deadline)?;
            there.call(&request(view), deadline)
        });
        asked.map_err(|e| self.told(e))
    }

    /// Converts an error into the one that readers of the store get.
    fn told(&self, error: Error) -> kvdb::Error {
        match error {
            Error::Failed(Failure { code: FailureCode::Corrupt, what }) => {
                kvdb::Error::Corrupt(what)
            }
            Error::Failed(Failure { code: FailureCode::NoSnapshot, what }) => {
                kvdb::Error::NoSnapshot(what)
            }
            Error::Failed(Failure { code: FailureCode::NoDictionary, what }) => {
                kvdb::Error::NoDictionary(what)
            }
            error => kvdb::Error::Io(std::io::Error::other(format!(
                "snapshot {} of the server is not to be read: {error}",
                self.name
            ))),
        }
    }

    fn unexpected(&self) -> kvdb::Error {
        self.told(Error::Unexpected)
    }

    /// Returns a page in the state that the server has.
    fn page_there(&self, dict: DictionaryId, page: &PageRequest<'_>) -> kvdb::Result<TuplePage> {
        let asked = self.ask(|view| Request::page(view, dict, page))?;
        match asked {
            Reply::Tuples { ended, tuples } => Ok(TuplePage { tuples, ended }),
            _ => Err(self.unexpected()),
        }
    }

    fn read_ahead(&self, dict: DictionaryId, key: &Bytes, asked: Asked) -> bool {
        read_ahead(&self.pages, dict, (key, asked), |page| self.page_there(dict, page))
    }

    /// The values of some of these keys, from the first one on.
    fn values(&self, dict: DictionaryId, keys: &[Bytes]) -> kvdb::Result<Vec<Option<Bytes>>> {
        let asked = first_keys(keys);
        let request = |view| Request::GetMany { view, dict, keys: asked.clone() };
        match self.ask(request)? {
            Reply::Values(values) if (1..=asked.len()).contains(&values.len()) => {
                let mut pages = self.pages.lock();
                for (key, value) in asked.iter().zip(&values) {
                    pages.keep_value(dict, key, value.as_ref());
                }
                Ok(values)
            }
            _ => Err(self.unexpected()),
        }
    }
}

/// The server's description of a view that it has opened.
struct Opened {
    view: u64,
    snapshot: [u8; 16],
    space: Space,
    dictionaries: Vec<(DictionaryId, String)>,
}

impl Opened {
    fn numbers(&self) -> HashMap<String, DictionaryId> {
        self.dictionaries.iter().map(|(id, name)| (name.clone(), *id)).collect()
    }
}

fn open(connection: &Connection, name: &str, deadline: Instant) -> Result<Opened> {
    match connection.call(&Request::View { snapshot: Some(name.into()) }, deadline)? {
        Reply::Viewed { view, snapshot, space, dictionaries } => {
            Ok(Opened { view, snapshot, space, dictionaries })
        }
        _ => Err(Error::Unexpected),
    }
}

impl ServedView for SnapshotView {
    fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.dictionaries.get(name).copied()
    }

    fn space(&self) -> Space {
        self.space
    }

    fn get_many(&self, dict: DictionaryId, keys: &[&[u8]]) -> kvdb::Result<Vec<Option<Bytes>>> {
        let keys: Vec<Bytes> = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        let look = || {
            let mut pages = self.pages.lock();
            let found: Vec<_> = keys.iter().map(|key| pages.value(dict, key)).collect();
            pages.looked_up(&found);
            found
        };
        let mut found = look();
        if let Some(first) = found.iter().position(Option::is_none)
            && self.read_ahead(dict, &keys[first], Asked::Keys)
        {
            found = look();
        }
        with_missing(&keys, found, |missing| self.values(dict, missing))
    }

    fn page(&self, dict: DictionaryId, page: &PageRequest<'_>) -> kvdb::Result<TuplePage> {
        if let Some(kept) = self.pages.lock().answer(dict, page) {
            return Ok(kept);
        }
        // The page covers the files and directories next to this one, unless keys alone are read.
        if !page.backward
            && !page.keys_only
            && self.read_ahead(dict, &Bytes::copy_from_slice(page.start), Asked::Range)
            && let Some(kept) = self.pages.lock().answer(dict, page)
        {
            return Ok(kept);
        }
        let answer = self.page_there(dict, page)?;
        self.pages.lock().keep_page(dict, page, &answer);
        Ok(answer)
    }

    fn announce(&self, dict: DictionaryId, keys: &[&[u8]]) {
        let unknown = || -> Vec<Bytes> {
            let pages = self.pages.lock();
            let keys = keys.iter().map(|key| Bytes::copy_from_slice(key));
            keys.filter(|key| pages.value(dict, key).is_none()).collect()
        };
        let mut keys = unknown();
        if let Some(first) = first_of_dense(&keys)
            && self.read_ahead(dict, first, Asked::Keys)
        {
            keys = unknown();
        }
        let mut rest = &keys[..];
        while !rest.is_empty() {
            match self.values(dict, rest) {
                Ok(values) => rest = &rest[values.len()..],
                // The read of the key will get the same error.
                Err(_) => break,
            }
        }
    }
}

impl Drop for SnapshotView {
    fn drop(&mut self) {
        if let Some((connection, view)) = self.open.take()
            && !connection.has_failed()
        {
            connection.tell(&Request::Drop { view });
        }
    }
}
