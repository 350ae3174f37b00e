//! Records of the transactions of clients, in a dictionary of the store that no client sees.
//!
//! A transaction writes its record itself. So a durable transaction has the number of its last
//! batch in the state that it has after a restart. A commit leaves its record, which a restarted
//! server finds when a client that got no answer asks for the outcome. The records of the last
//! commits are kept.
//!
//! The key is that of the transaction. The value of an open transaction is a byte 0, the number of
//! the last batch, and the holder. The value of a committed one is a byte 1, the time of the commit
//! in milliseconds, and the same two numbers (varints). A record from before holders were noted
//! ends after the number of the last batch. Records of other requests lie next to them (`once`).

use std::collections::VecDeque;

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::{
    Batch, Changed, DictionaryId, DictionaryOptions, Durability, Kvdb, STORE_BRANCH, Transaction,
};
use zones::varint::{get_u64, put_u64};

use crate::body::TransactionKey;

/// The name of the dictionary, which is one of the store's own.
const NAME: &str = "served-transactions";
/// Limit of the commits whose outcome is kept.
pub(crate) const MAX_OUTCOMES: usize = 4096;
/// Number of outcomes that are removed together.
const REMOVED_TOGETHER: usize = 256;

const OPEN: u8 = 0;
const COMMITTED: u8 = 1;

/// The state that a transaction records of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The number of its last batch.
    pub batches: u64,
    /// The client that holds it, if known.
    pub holder: Option<u64>,
}

impl Noted {
    fn put(&self, value: &mut Vec<u8>) {
        put_u64(value, self.batches);
        if let Some(holder) = self.holder {
            put_u64(value, holder);
        }
    }

    fn of(mut bytes: &[u8]) -> Option<Noted> {
        let batches = get_u64(&mut bytes).ok()?;
        Some(Noted { batches, holder: get_u64(&mut bytes).ok() })
    }
}

pub(crate) struct Records {
    db: Kvdb,
    dict: DictionaryId,
    /// The committed transactions, the oldest first.
    committed: Mutex<VecDeque<TransactionKey>>,
}

impl Records {
    /// Returns the dictionary of the records, if the store has one.
    pub fn dict_of(db: &Kvdb) -> Option<DictionaryId> {
        db.dictionary_in(STORE_BRANCH, NAME)
    }

    pub fn open(db: &Kvdb) -> kvdb::Result<Records> {
        let dict = match Records::dict_of(db) {
            Some(dict) => dict,
            None => {
                let options = DictionaryOptions { reserved: true, ..DictionaryOptions::default() };
                db.create_dictionary_of_store(NAME, options)?
            }
        };
        let mut all: Vec<(u64, TransactionKey)> = Vec::new();
        let mut cursor = db.view().cursor(dict, b"", b"")?;
        while let Some(tuple) = cursor.next()? {
            // Any other tuple belongs to another version, and is left alone.
            if let (Ok(key), Some(at)) = (tuple.key[..].try_into(), committed_at(&tuple.value()?)) {
                all.push((at, key));
            }
        }
        all.sort_unstable();
        let committed = Mutex::new(all.into_iter().map(|(_, key)| key).collect());
        Ok(Records { db: db.clone(), dict, committed })
    }

    /// Returns the dictionary of the records.
    pub fn dict(&self) -> DictionaryId {
        self.dict
    }

    pub fn is_own(&self, dict: DictionaryId) -> bool {
        dict == self.dict
    }

    /// Adds to `batch` the number of the last batch of the transaction, and its holder.
    pub fn note_batches(&self, batch: &mut Batch, key: &TransactionKey, noted: Noted) {
        let mut value = vec![OPEN];
        noted.put(&mut value);
        batch.put(self.dict, key.to_vec(), value);
    }

    /// Returns the last note of an open transaction.
    pub fn noted(
        &self,
        transaction: &Transaction,
        key: &TransactionKey,
    ) -> kvdb::Result<Option<Noted>> {
        let Some(value) = transaction.get(self.dict, key)? else { return Ok(None) };
        Ok(match value.split_first() {
            Some((&OPEN, rest)) => Noted::of(rest),
            // The commit did not take place: it had a conflict, or the server ended before it.
            Some((&COMMITTED, mut rest)) => get_u64(&mut rest).ok().and_then(|_| Noted::of(rest)),
            _ => None,
        })
    }

    /// Returns the key of a transaction that has noted its batches.
    pub fn key_of(&self, transaction: &Transaction) -> kvdb::Result<Option<TransactionKey>> {
        for changed in transaction.changes_of(&[self.dict])? {
            if let (_, Changed::Put { key, .. }) = changed? {
                return Ok(key[..].try_into().ok());
            }
        }
        Ok(None)
    }

    /// Makes the transaction note in its commit that it has committed, and the number of its
    /// batches. If the commit fails, the transaction is still open.
    pub fn note_commit(
        &self,
        transaction: &Transaction,
        key: &TransactionKey,
        noted: Noted,
    ) -> kvdb::Result<()> {
        let mut value = vec![COMMITTED];
        put_u64(&mut value, self.db.wall_clock().as_millis() as u64);
        noted.put(&mut value);
        let mut batch = Batch::new();
        batch.put(self.dict, key.to_vec(), value);
        // A transaction at its limit must be able to commit.
        batch.releases_space();
        transaction.apply_at_commit(batch)
    }

    /// Records a commit, and removes the oldest outcomes if there are too many.
    pub fn committed(&self, key: TransactionKey) {
        let mut committed = self.committed.lock();
        committed.push_back(key);
        if committed.len() < MAX_OUTCOMES + REMOVED_TOGETHER {
            return;
        }
        let mut batch = Batch::new();
        for key in committed.drain(..REMOVED_TOGETHER) {
            batch.delete(self.dict, Bytes::copy_from_slice(&key));
        }
        drop(committed);
        if let Err(e) = self.db.commit(batch, Durability::Buffered) {
            tracing::warn!("outcomes of old transactions stay in the store: {e}");
        }
    }

    pub fn has_committed(&self, key: &TransactionKey) -> kvdb::Result<bool> {
        Ok(self.db.get(self.dict, key)?.is_some_and(|value| committed_at(&value).is_some()))
    }
}

/// Returns the time of the commit in a record.
fn committed_at(value: &[u8]) -> Option<u64> {
    match value.split_first()? {
        (&COMMITTED, mut rest) => get_u64(&mut rest).ok(),
        _ => None,
    }
}
