//! Lists the changes that a transaction would commit.

use bytes::Bytes;
use vt_tree::{BodyRef, Seq, Source};

use super::handle::Transaction;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::view::View;
use crate::write_set::{Part, WriteSet};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The key has a new value.
    Put {
        /// The key.
        key: Bytes,
        /// Bytes of the new value.
        len: usize,
    },
    /// The value is changed by an update, without having been read.
    Update {
        /// The key.
        key: Bytes,
        /// Bytes of the update.
        len: usize,
    },
    /// The key is deleted, whether or not it existed.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// All keys of `[start, end)` are deleted.
    DeleteRange {
        /// The first key of the range.
        start: Bytes,
        /// The first key after the range.
        end: Bytes,
    },
}

/// The changes of a transaction at the time of the call, by dictionary and then by key, each key
/// once. A key that was written again after a range deletion is listed after the start of that
/// range.
pub struct Changes {
    parts: Vec<(DictionaryId, Part)>,
    source: Option<Box<dyn Source>>,
    at: Seq,
}

impl Transaction {
    /// Lists the changes that the transaction has made so far.
    pub fn changes(&self) -> Result<Changes> {
        self.list(&self.write_set()?, |_| true)
    }

    /// Lists the changes that the transaction has made so far to the given dictionaries.
    pub fn changes_of(&self, dictionaries: &[DictionaryId]) -> Result<Changes> {
        self.list(&self.write_set()?, |dict| dictionaries.contains(&dict))
    }

    /// Lists the changes to the given dictionaries as of `view`, a view of this transaction, so
    /// that the list and reads through the view are of one state.
    pub fn changes_in(&self, view: &View, dictionaries: &[DictionaryId]) -> Result<Changes> {
        match &view.write_set {
            Some(write_set) => self.list(write_set, |dict| dictionaries.contains(&dict)),
            None => Err(Error::Invalid("the view is not one of a transaction".into())),
        }
    }

    fn write_set(&self) -> Result<WriteSet> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.id())) };
        Ok(open.write_set.clone())
    }

    fn list(&self, write_set: &WriteSet, wanted: impl Fn(DictionaryId) -> bool) -> Result<Changes> {
        // `parts` is consumed from the end, so reverse it to list the first dictionary first.
        let mut parts = write_set.merged(&self.shared.registry.engine, wanted)?;
        parts.reverse();
        Ok(Changes { parts, source: None, at: write_set.at })
    }
}

impl Changes {
    fn advance(&mut self) -> Result<Option<(DictionaryId, Changed)>> {
        loop {
            let Some((dict, part)) = self.parts.last() else { return Ok(None) };
            let source = match &mut self.source {
                Some(source) => source,
                none => none.insert(part.source(self.at)?),
            };
            let Some(item) = source.item() else {
                self.source = None;
                self.parts.pop();
                continue;
            };
            let key = Bytes::copy_from_slice(item.key);
            let changed = match item.body {
                BodyRef::Put(value) => Changed::Put { key, len: value.len() },
                BodyRef::Update { update, .. } => Changed::Update { key, len: update.len() },
                BodyRef::Delete => Changed::Delete { key },
                BodyRef::DeleteRange { end } => {
                    Changed::DeleteRange { start: key, end: Bytes::copy_from_slice(end) }
                }
            };
            let dict = *dict;
            source.next()?;
            return Ok(Some((dict, changed)));
        }
    }
}

impl Iterator for Changes {
    type Item = Result<(DictionaryId, Changed)>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().transpose();
        if matches!(next, Some(Err(_))) {
            self.parts.clear();
        }
        next
    }
}
