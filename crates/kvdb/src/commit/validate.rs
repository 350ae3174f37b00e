//! Checks a batch before it is committed: its dictionaries exist, and keys and values are not too
//! long. Pins the places of values that were stored before.

use vt_tree::{Update, Value};
use zones::{Priority, ZonePin, ZoneUse};

use super::Committer;
use super::batch::{Batch, BatchChange};
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::mirror::Note;
use crate::version::Version;

/// The longest key, bytes.
pub const MAX_KEY: usize = 32 << 10;

/// The longest value, bytes: it must lie contiguously in one zone.
pub const MAX_VALUE: usize = 7 << 20;
const _: () = assert!(vt_tree::LONGEST_UPDATED == MAX_VALUE);

pub(crate) fn check_put(key: usize, value: usize) -> Result<()> {
    if value > MAX_VALUE {
        return Err(Error::Invalid(format!(
            "a value of {value} bytes; at most {MAX_VALUE} are allowed"
        )));
    }
    check_key(key)
}

/// The longest update, bytes: a longer one costs more than a put.
pub const MAX_UPDATE: usize = 64 << 10;

fn check_update(update: &Update) -> Result<()> {
    let len = update.bytes().len();
    match len > MAX_UPDATE {
        true => Err(Error::Invalid(format!(
            "an update of {len} bytes; at most {MAX_UPDATE} are allowed: read the value and put it"
        ))),
        false => Ok(()),
    }
}

fn check_key(len: usize) -> Result<()> {
    if len > MAX_KEY {
        return Err(Error::Invalid(format!("a key of {len} bytes; at most {MAX_KEY} are allowed")));
    }
    Ok(())
}

/// The space that a commit may take in a store that is nearly full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceClaim {
    /// None of its changes adds data, or the batch says that it frees more than it takes.
    pub removes: bool,
    /// Space was promised for it.
    pub promised: bool,
}

impl SpaceClaim {
    /// Returns the priority with which its values are allocated.
    pub fn reserve(self) -> Priority {
        if self.promised { Priority::Promised } else { Priority::User }
    }
}

/// A batch whose changes are all valid.
pub(crate) struct Valid {
    pub changes: Ops,
    pub claim: SpaceClaim,
    /// Pins the places of values that were stored before.
    pub pin: ZonePin,
    /// The note of the request that the commit completes.
    pub note: Option<Note>,
    /// Indexes of the puts whose keys are known to have no value, and of the deletions whose keys
    /// are known to have one.
    pub known: Vec<u32>,
}

impl Committer {
    /// Returns the changes of a batch, if all of them are valid.
    pub(crate) fn validate(&self, version: &Version, batch: Batch) -> Result<Valid> {
        let claim = SpaceClaim { removes: batch.removes(), promised: batch.promised };
        let (note, known) = (batch.note, batch.known);
        let mut known = known.into_iter().peekable();
        let mut still_known = Vec::new();
        let mut changes = Vec::with_capacity(batch.changes.len());
        let mut stored = Vec::new();
        for (i, change) in batch.changes.into_iter().enumerate() {
            let dict = change.dictionary();
            version.tree(dict)?;
            let op = match change {
                BatchChange::Put(_, k, v) => {
                    check_put(k.len(), v.len())?;
                    Op::Put(k, Value::Inline(v))
                }
                BatchChange::PutStored(_, k, v) => {
                    check_put(k.len(), v.len())?;
                    let value = v.for_store(&self.engine.zones)?;
                    stored.push(v);
                    Op::Put(k, value)
                }
                BatchChange::Update(_, k, update) => {
                    check_update(&update)?;
                    Op::Update(k, update)
                }
                BatchChange::Delete(_, k) => Op::Delete(k),
                BatchChange::DeleteRange(_, s, e) if s < e => Op::DeleteRange(s, e),
                BatchChange::DeleteRange(..) => continue,
            };
            match &op {
                Op::DeleteRange(s, e) => check_key(s.len().max(e.len()))?,
                op => check_key(op.key().len())?,
            }
            if known.next_if_eq(&(i as u32)).is_some() {
                still_known.push(changes.len() as u32);
            }
            changes.push((dict, op));
        }
        // Pin the places before the stored values, which have pinned them so far, are dropped.
        let pin = if stored.is_empty() { ZonePin::default() } else { self.keep_places(&changes)? };
        Ok(Valid { changes, claim, pin, note, known: still_known })
    }

    /// Pins the places of all values that have one.
    pub(crate) fn keep_places(&self, changes: &Ops) -> Result<ZonePin> {
        let mut uses = ZoneUse::new();
        for (_, op) in changes {
            if let Op::Put(_, Value::Extent(e)) = op {
                uses.add_extent(e.addr, u64::from(e.stored));
            }
        }
        Ok(self.engine.zones.pin(&uses)?)
    }
}
