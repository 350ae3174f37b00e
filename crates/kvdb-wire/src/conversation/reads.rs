//! The views of a connection, and what its requests read from them: values, parts of values, and
//! pages of tuples.

use bytes::Bytes;
use kvdb::{DictionaryId, Isolation, View};

use super::{Conversation, MAX_VIEWS, OpenView, failure, no_view};
use crate::body::{ANSWER_BYTES, MAX_DICTIONARIES};
use crate::failure::{Failure, FailureCode, of_store};
use crate::reply::Reply;
use crate::transactions::no_dictionary;

impl Conversation {
    pub(super) fn view(&self, snapshot: Option<String>) -> std::result::Result<Reply, Failure> {
        // The main branch changes while it is read, and belongs to the store's own file system.
        let Some(name) = &snapshot else {
            return Err(failure(FailureCode::NotAllowed, "this server shows snapshots alone"));
        };
        // Check the right to read before the name is looked up, so that a client cannot find out
        // which snapshots exist.
        self.may(|role| role.may_read(name))?;
        let label = self.db.snapshot_label(name).map(|label| label.id);
        let view = self.db.open_snapshot(name).map_err(of_store)?;
        // Another snapshot may have taken the name in between.
        let id = self.db.snapshot_label(name).map(|label| label.id);
        let Some(id) = id.filter(|id| Some(*id) == label) else {
            return Err(failure(FailureCode::NoSnapshot, "the snapshot was dropped"));
        };
        let mut dictionaries: Vec<_> =
            view.dictionaries_in("").into_iter().map(|info| (info.id, info.name)).collect();
        dictionaries.truncate(MAX_DICTIONARIES);
        let mut views = self.views.lock();
        if views.open.len() >= MAX_VIEWS {
            return Err(failure(FailureCode::Limit, "too many views are open: drop some"));
        }
        views.last += 1;
        let number = views.last;
        views.open.insert(number, OpenView::Snapshot(view));
        Ok(Reply::Viewed { view: number, snapshot: id, space: self.db.space(), dictionaries })
    }

    /// Returns the view to read from. In a serializable transaction it locks the keys or the range
    /// first.
    pub(super) fn find(
        &self,
        view: u64,
        dict: DictionaryId,
        read: Reads<'_>,
    ) -> std::result::Result<View, Failure> {
        let found = self.views.lock().open.get(&view).cloned().ok_or_else(no_view)?;
        let held = match found {
            OpenView::Snapshot(view) => return Ok(view),
            OpenView::Transaction(held) if held.may(dict) => held,
            OpenView::Transaction(_) => return Err(no_dictionary(dict)),
            OpenView::Lease(held) => {
                let Some(all) = &self.transactions else { return Err(no_view()) };
                return all.lending().view(&held, dict);
            }
        };
        let transaction = &held.transaction;
        let locked = match read {
            _ if transaction.isolation() == Isolation::Snapshot => Ok(()),
            Reads::Keys(keys) => {
                keys.iter().try_for_each(|key| transaction.lock_key(dict, key, false))
            }
            Reads::Range(start, end) => transaction.lock_range(dict, start, end, false),
        };
        let view = locked.and_then(|()| transaction.view());
        let view = view.map_err(|e| match self.db.transaction(transaction.id()) {
            Ok(_) => of_store(e),
            Err(_) => failure(FailureCode::NoView, "the transaction is over"),
        })?;
        // After the view is made: a holder of later than that has changed nothing in it.
        if let Some(all) = &self.transactions {
            all.check(&held)?;
        }
        Ok(view)
    }
}

/// The keys or the range of a dictionary that a request reads.
pub(super) enum Reads<'a> {
    Keys(&'a [Bytes]),
    Range(&'a [u8], &'a [u8]),
}

/// Reads the values of as many of the first keys as fit an answer.
pub(super) fn get_many(
    view: &View,
    dict: DictionaryId,
    keys: &[Bytes],
) -> std::result::Result<Reply, Failure> {
    // Lengths are known without reading values, so determine first how many values fit.
    let (mut bytes, mut taken) = (0, 0);
    if keys.len() > 1 {
        for key in keys {
            let len = view.value_len(dict, key).map_err(of_store)?.unwrap_or_default();
            if taken > 0 && bytes + len > ANSWER_BYTES {
                break;
            }
            bytes += len;
            taken += 1;
        }
    } else {
        taken = keys.len();
    }
    if taken == 0 {
        return Err(failure(FailureCode::Invalid, "no key was asked for"));
    }
    Ok(Reply::Values(view.multi_get(dict, &keys[..taken]).map_err(of_store)?))
}

pub(super) fn get_part(
    view: &View,
    dict: DictionaryId,
    key: &Bytes,
    (offset, length): (u64, u32),
) -> std::result::Result<Reply, Failure> {
    match view.get(dict, key).map_err(of_store)? {
        None => Ok(Reply::Values(vec![None])),
        Some(value) => {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
            let to = from.saturating_add(length as usize).min(value.len());
            Ok(Reply::Part { length: value.len() as u64, bytes: value.slice(from..to) })
        }
    }
}

/// The direction and the limits of a requested page.
pub(super) struct Page {
    pub backward: bool,
    pub keys_only: bool,
    pub tuples: usize,
    pub bytes: usize,
}

impl Page {
    pub fn of(
        &self,
        view: &View,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
    ) -> std::result::Result<Reply, Failure> {
        let mut cursor = view.cursor(dict, start, end).map_err(of_store)?;
        if self.keys_only {
            cursor = cursor.keys_only();
        }
        if self.backward {
            cursor.seek_to_end().map_err(of_store)?;
        }
        let (mut tuples, mut bytes): (Vec<(Bytes, Bytes)>, usize) = (Vec::new(), 0);
        while tuples.len() < self.tuples.max(1) {
            let next = if self.backward { cursor.prev() } else { cursor.next() };
            let Some(tuple) = next.map_err(of_store)? else {
                return Ok(Reply::Tuples { ended: true, tuples });
            };
            let value = if self.keys_only { 0 } else { tuple.value_len() };
            bytes += tuple.key.len() + value;
            if bytes > self.bytes && !tuples.is_empty() {
                break;
            }
            let value = match self.keys_only {
                true => Bytes::new(),
                false => tuple.value().map_err(of_store)?,
            };
            tuples.push((tuple.key, value));
        }
        Ok(Reply::Tuples { ended: false, tuples })
    }
}
