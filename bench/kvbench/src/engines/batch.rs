//! The batch that is collected for engines with one writer and costly transactions, since a
//! transaction for each put would measure the transaction.

use parking_lot::Mutex;

use anyhow::Result;

/// Changes of one transaction.
pub const BATCH: u64 = 1000;

/// Bytes between two synced transactions. Other engines sync this amount when they write out a
/// memtable.
pub const SYNC_EVERY: u64 = 64 << 20;

/// A change, as positions in the batch's arena. A change without a value is a deletion.
struct Change {
    key: std::ops::Range<usize>,
    value: Option<std::ops::Range<usize>>,
}

#[derive(Default)]
struct Collected {
    arena: Vec<u8>,
    changes: Vec<Change>,
    since_sync: u64,
}

impl Collected {
    fn keep(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let at = self.arena.len();
        self.arena.extend_from_slice(bytes);
        at..self.arena.len()
    }
}

/// Changes that wait for their transaction.
#[derive(Default)]
pub struct Batcher(Mutex<Collected>);

impl Batcher {
    /// Adds a change. Every `BATCH` changes are passed to `commit`, with whether that commit is to
    /// be synced.
    pub fn add<F>(&self, key: &[u8], value: Option<&[u8]>, commit: F) -> Result<()>
    where
        F: FnOnce(&mut dyn Iterator<Item = (&[u8], Option<&[u8]>)>, bool) -> Result<()>,
    {
        let mut c = self.0.lock();
        let change = Change { key: c.keep(key), value: value.map(|v| c.keep(v)) };
        c.changes.push(change);
        if c.changes.len() as u64 >= BATCH { Self::commit(&mut c, commit) } else { Ok(()) }
    }

    /// Commits the waiting changes, if there are any.
    pub fn finish<F>(&self, commit: F) -> Result<()>
    where
        F: FnOnce(&mut dyn Iterator<Item = (&[u8], Option<&[u8]>)>, bool) -> Result<()>,
    {
        let mut c = self.0.lock();
        if c.changes.is_empty() { Ok(()) } else { Self::commit(&mut c, commit) }
    }

    fn commit<F>(c: &mut Collected, commit: F) -> Result<()>
    where
        F: FnOnce(&mut dyn Iterator<Item = (&[u8], Option<&[u8]>)>, bool) -> Result<()>,
    {
        c.since_sync += c.arena.len() as u64;
        let sync = c.since_sync >= SYNC_EVERY;
        if sync {
            c.since_sync = 0;
        }
        let arena = &c.arena;
        commit(
            &mut c
                .changes
                .iter()
                .map(|x| (&arena[x.key.clone()], x.value.clone().map(|v| &arena[v]))),
            sync,
        )?;
        c.arena.clear();
        c.changes.clear();
        Ok(())
    }
}
