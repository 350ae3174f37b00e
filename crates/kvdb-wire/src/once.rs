//! Requests that are done at most once, however often they are sent: each has a key that its client
//! draws at random. A record in the store, next to those of transactions (`records`), shows a
//! restarted server what it has done.
//!
//! The key of a record is that of the request. The value is a byte, 2 if the request was begun and
//! 3 if it was done, and the time in milliseconds (varint); of one that was begun also its outcome
//! (`wanted`). If a crash leaves a record of a request that was begun, the store itself shows
//! whether it was done, and is asked before any other request is done: after that, what has the
//! name may be of another one. The last records are kept.

use std::collections::VecDeque;

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::{Batch, DictionaryId, Durability, Error, Kvdb};
use zones::varint::{get_u64, put_u64};

use crate::body::TransactionKey;
use crate::turns::Turns;
use crate::wanted::Wanted;

const BEGUN: u8 = 2;
const DONE: u8 = 3;

/// Limit of the requests whose records are kept.
const MAX_KEPT: usize = 1024;
/// Number of records that are removed together.
const REMOVED_TOGETHER: usize = 64;

pub(crate) struct Once {
    db: Kvdb,
    dict: DictionaryId,
    /// The keys of the records, the oldest first. They are never locked while a record is written,
    /// which may wait for the disk, and they are locked after the keys of `turns` where both are.
    kept: Mutex<VecDeque<TransactionKey>>,
    /// The requests that are in progress. A copy of one waits for its outcome, and others do not
    /// wait: a snapshot takes as long as what is written before it.
    turns: Turns,
}

impl Once {
    pub fn open(db: &Kvdb, dict: DictionaryId) -> kvdb::Result<Once> {
        let mut all: Vec<(u64, TransactionKey)> = Vec::new();
        let mut settled = Batch::new();
        let mut cursor = db.view().cursor(dict, b"", b"")?;
        while let Some(tuple) = cursor.next()? {
            let value = tuple.value()?;
            let (Ok(key), Some((state, at, wanted))) =
                (<TransactionKey>::try_from(&tuple.key[..]), record_of(&value))
            else {
                continue;
            };
            // A record from before outcomes were noted stays as it is.
            match wanted.filter(|_| state == BEGUN) {
                Some(wanted) if wanted.is_in(db) => match wanted.complete(db) {
                    Ok(()) => settled.put(dict, key.to_vec(), value_of(DONE, at, None)),
                    Err(e) => {
                        tracing::warn!("a clone that a crash has cut short has no limit: {e}")
                    }
                },
                Some(_) => {
                    settled.delete(dict, Bytes::copy_from_slice(&key));
                    continue;
                }
                None => {}
            }
            all.push((at, key));
        }
        if !settled.is_empty() {
            settled.releases_space();
            // The outcomes are on disk before their copies are notified of them.
            if let Err(e) = db.commit(settled, Durability::Buffered).and_then(|()| db.sync()) {
                tracing::warn!("requests that a crash has cut short are not settled: {e}");
            }
        }
        all.sort_unstable();
        let kept = Mutex::new(all.into_iter().map(|(_, key)| key).collect());
        Ok(Once { db: db.clone(), dict, kept, turns: Turns::default() })
    }

    /// Does a request by `act`, unless it was done before.
    pub fn run(
        &self,
        key: &TransactionKey,
        durability: Durability,
        wanted: &Wanted,
        act: impl FnOnce() -> kvdb::Result<()>,
    ) -> kvdb::Result<()> {
        let _turn = self.turns.of(key);
        let is_done = || wanted.is_in(&self.db);
        let state = match self.db.get(self.dict, key)? {
            None => None,
            Some(value) => match record_of(&value) {
                Some((state, ..)) => Some(state),
                None => return Err(Error::Invalid("the key is that of a transaction".into())),
            },
        };
        match state {
            Some(DONE) => return Ok(()),
            Some(_) if is_done() => {
                wanted.complete(&self.db)?;
                // The record may have failed on its way to the disk.
                if durability == Durability::Synced {
                    self.db.sync()?;
                }
            }
            _ => {
                // An outcome without a record is that of another request, of which this one fails.
                if state.is_none() && is_done() {
                    return act();
                }
                // If the outcome is on disk, the record must be, too.
                self.note(key, (BEGUN, Some(wanted)), durability)?;
                if let Err(e) = act() {
                    // These errors say that another request has done it in the meantime, so the
                    // outcome that the store shows is not that of this one.
                    let is_of_another =
                        matches!(e, Error::Exists(_) | Error::NoSnapshot(_) | Error::NoBranch(_));
                    if is_of_another || !is_done() {
                        self.forget(key);
                    }
                    return Err(e);
                }
            }
        }
        // On disk like the outcome: after a crash the copy of a request that drops something would
        // drop what has its name by then.
        if let Err(e) = self.note(key, (DONE, None), durability) {
            tracing::warn!("the record of a request does not show that it was done: {e}");
        }
        Ok(())
    }

    fn note(
        &self,
        key: &TransactionKey,
        (state, wanted): (u8, Option<&Wanted>),
        durability: Durability,
    ) -> kvdb::Result<()> {
        let value = value_of(state, self.db.wall_clock().as_millis() as u64, wanted);
        let mut batch = Batch::new();
        batch.put(self.dict, key.to_vec(), value);
        // A full store must be able to drop snapshots.
        batch.releases_space();
        self.db.commit(batch, durability)?;
        let removed = self.keep(key);
        if removed.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for key in removed {
            batch.delete(self.dict, Bytes::copy_from_slice(&key));
        }
        if let Err(e) = self.db.commit(batch, Durability::Buffered) {
            tracing::warn!("records of old requests stay in the store: {e}");
        }
        Ok(())
    }

    /// Adds a key to those of the records. Returns the keys whose records are to be removed.
    fn keep(&self, key: &TransactionKey) -> Vec<TransactionKey> {
        let under_way = self.turns.under_way();
        let mut kept = self.kept.lock();
        if !kept.contains(key) {
            kept.push_back(*key);
        }
        if kept.len() < MAX_KEPT + REMOVED_TOGETHER {
            return Vec::new();
        }
        let oldest = kept.drain(..REMOVED_TOGETHER);
        let (stay, removed): (Vec<_>, Vec<_>) = oldest.partition(|key| under_way.contains(key));
        stay.into_iter().rev().for_each(|key| kept.push_front(key));
        removed
    }

    fn forget(&self, key: &TransactionKey) {
        self.kept.lock().retain(|other| other != key);
        let mut batch = Batch::new();
        batch.delete(self.dict, Bytes::copy_from_slice(key));
        if let Err(e) = self.db.commit(batch, Durability::Buffered) {
            tracing::warn!("the record of a request that failed stays in the store: {e}");
        }
    }
}

fn value_of(state: u8, at: u64, wanted: Option<&Wanted>) -> Vec<u8> {
    let mut value = vec![state];
    put_u64(&mut value, at);
    wanted.into_iter().for_each(|wanted| wanted.put(&mut value));
    value
}

/// Returns the state and the time of a record, and the outcome that its request wants, if it is in
/// it. Any other value belongs to a transaction, or to another version.
fn record_of(value: &[u8]) -> Option<(u8, u64, Option<Wanted>)> {
    match value.split_first()? {
        (&state, mut rest) if matches!(state, BEGUN | DONE) => {
            let at = get_u64(&mut rest).ok()?;
            Some((state, at, Wanted::of(rest)))
        }
        _ => None,
    }
}
