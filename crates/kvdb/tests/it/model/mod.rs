//! The model that the tests compare a store with, and the options that make every part of it work
//! within a small test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use kvdb::{
    Batch, Compression, CreateOptions, DictionaryId, DictionaryOptions, Error, Kvdb, OpenOptions,
    ValueOrder, View, VisitRange,
};
use zones::Device;

/// The expected content of a store.
pub type Model = BTreeMap<DictionaryId, BTreeMap<Vec<u8>, Vec<u8>>>;

#[derive(Clone, Debug)]
pub enum Change {
    Put(DictionaryId, Vec<u8>, Vec<u8>),
    Delete(DictionaryId, Vec<u8>),
    DeleteRange(DictionaryId, Vec<u8>, Vec<u8>),
}

pub fn apply(model: &mut Model, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(d, k, v) => {
                model.entry(*d).or_default().insert(k.clone(), v.clone());
            }
            Change::Delete(d, k) => {
                model.entry(*d).or_default().remove(k);
            }
            Change::DeleteRange(d, s, e) => {
                model.entry(*d).or_default().retain(|k, _| k < s || k >= e)
            }
        }
    }
}

pub fn batch(changes: &[Change]) -> Batch {
    let mut batch = Batch::new();
    for change in changes.iter().cloned() {
        match change {
            Change::Put(d, k, v) => batch.put(d, k, v),
            Change::Delete(d, k) => batch.delete(d, k),
            Change::DeleteRange(d, s, e) => batch.delete_range(d, s, e),
        }
    }
    batch
}

/// Everything in the store, read with one scan for each dictionary.
pub fn contents(db: &Kvdb) -> kvdb::Result<Model> {
    let view = db.view();
    let mut all = Model::new();
    for d in db.dictionaries() {
        let tuples = view.scan(d.id, b"", b"", usize::MAX)?;
        all.insert(d.id, tuples.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect());
    }
    Ok(all)
}

/// `model` with an entry for each dictionary, as `contents` has it.
pub fn with_all(mut model: Model, dicts: &[DictionaryId]) -> Model {
    for d in dicts {
        model.entry(*d).or_default();
    }
    model
}

/// Small enough that a test of a few hundred commits flushes and merges.
pub fn small() -> OpenOptions {
    OpenOptions {
        memory: 1 << 20,
        flush_interval: Duration::from_millis(10),
        late_bind_at: 16 << 10,
        threads: false,
        zero_journal: false,
        idle_flush: Duration::from_millis(50),
        ..OpenOptions::default()
    }
}

pub fn create(
    device: Arc<dyn Device>,
    env: Arc<Simulated>,
    open: OpenOptions,
) -> kvdb::Result<Kvdb> {
    Kvdb::create(device, env, CreateOptions { open, reserve_zones: 4, ..CreateOptions::default() })
}

/// Three dictionaries that keep their values differently.
pub fn dictionaries(db: &Kvdb) -> kvdb::Result<Vec<DictionaryId>> {
    let plain = DictionaryOptions::default();
    let paged = DictionaryOptions {
        separate_at: 512,
        stitch_at: 0,
        reserved: true,
        compression: Compression::Lz4,
        compress_values: Compression::Lz4,
        ..Default::default()
    };
    let whole = DictionaryOptions {
        separate_at: u32::MAX,
        stitch_at: u64::MAX,
        false_positives: 0,
        ..Default::default()
    };
    [("plain", plain), ("paged", paged), ("whole", whole)]
        .into_iter()
        .map(|(name, o)| db.create_dictionary(name, o))
        .collect()
}

pub fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    // Longer values: some are noise, others repeat themselves and can be compressed.
    let noise = if len > 512 && random.one_in(2) { 100 } else { len };
    random.fill(&mut v[..noise]);
    (noise..len).for_each(|i| v[i] = v[i - noise]);
    v
}

/// A few changes, most of them small, on so few keys that later changes meet them.
pub fn changes(random: &mut Random, dicts: &[DictionaryId]) -> Vec<Change> {
    let dict = |random: &mut Random| dicts[random.below(dicts.len() as u64) as usize];
    let key = |random: &mut Random| format!("key{:03}", random.below(300)).into_bytes();
    let kind = random.below(20);
    // Sometimes the batch has enough pages to be bound late.
    if kind == 0 {
        let (d, first) = (dict(random), random.below(300));
        return (0..2 + random.below(8))
            .map(|i| {
                Change::Put(
                    d,
                    format!("key{:03}", (first + i) % 300).into_bytes(),
                    bytes(random, 4096),
                )
            })
            .collect();
    }
    // Sometimes the batch has enough short values that they are stored outside of their blocks.
    if kind == 2 {
        let (d, first) = (dict(random), random.below(300));
        return (first..first + 60)
            .map(|i| {
                let len = 400 + random.below(1800) as usize;
                Change::Put(d, format!("key{:03}", i % 300).into_bytes(), bytes(random, len))
            })
            .collect();
    }
    let count = if kind == 1 { 50 } else { 1 + random.below(4) };
    (0..count)
        .map(|_| match random.below(10) {
            0 | 1 => Change::Delete(dict(random), key(random)),
            2 if kind.is_multiple_of(4) => {
                let (a, b) = (key(random), key(random));
                Change::DeleteRange(dict(random), a.clone().min(b.clone()), a.max(b))
            }
            n => {
                let len = if n == 9 { random.below(6000) } else { random.below(200) };
                Change::Put(dict(random), key(random), bytes(random, len as usize))
            }
        })
        .collect()
}

/// An order of values that is not that of keys: from the last key to the first one, in each
/// dictionary that has values outside of its blocks.
pub struct Backwards;

impl ValueOrder for Backwards {
    fn dictionaries(&self, view: &View) -> Vec<DictionaryId> {
        let all = view.dictionaries().into_iter();
        all.filter(|info| info.options.separate_at != u32::MAX).map(|info| info.id).collect()
    }

    fn visit(&self, view: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        for dict in self.dictionaries(view) {
            let tuples = view.scan(dict, b"", b"", usize::MAX)?;
            for (key, _) in tuples.iter().rev() {
                let end = [&key[..], &[0]].concat();
                if visit(dict, key, &end)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The seeds to run: see the top of the test files.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let base = number("KVFS_SEED_BASE").unwrap_or(0);
            base..base + number("KVFS_SEEDS").unwrap_or(usual)
        }
    }
}

/// Returns `None` if there was no space.
pub fn unless_full<T>(result: kvdb::Result<T>) -> kvdb::Result<Option<T>> {
    match result {
        Err(Error::NoSpace) => Ok(None),
        other => other.map(Some),
    }
}

/// The states that may be found when the power returns: the state after each commit that was
/// attempted since the last one that is certain.
pub struct History {
    /// States, oldest first; the first one is certain.
    pub possible: Vec<Model>,
}

impl History {
    pub fn newest(&self) -> &Model {
        &self.possible[self.possible.len() - 1]
    }
    pub fn attempt(&mut self, changes: &[Change]) {
        let mut next = self.newest().clone();
        apply(&mut next, changes);
        self.possible.push(next);
    }
    /// The newest state is certain.
    pub fn certain(&mut self) {
        self.possible.drain(..self.possible.len() - 1);
    }
    /// Checks that the state found at opening is one of the possible ones. From then on only this
    /// state is possible, since opening makes it durable.
    pub fn found(&mut self, state: Model, when: &str) {
        let at = self.possible.iter().rposition(|m| *m == state);
        let at = at.unwrap_or_else(|| {
            panic!("{when}: no state of the {} possible ones", self.possible.len())
        });
        self.possible = vec![self.possible.swap_remove(at)];
    }
}
