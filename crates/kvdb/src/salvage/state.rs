//! Finds the content of a damaged store. The superblock leads to the manifest, and the manifest to
//! the runs and the journal. If one of them cannot be read, the next best is used instead: the
//! other superblock copy, an older manifest that is still in some zone, the journal up to the
//! damage. Each such step is noted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::{BlockCache, Run, SalvageCache, Seq, Value};
use zones::{Device, Purpose, SECTOR, ZONE_SIZE, ZoneId, Zones};

use super::{Remains, Salvage, Source};
use crate::commit::write_memtables;
use crate::db::recovery::{Recovery, read_journal};
use crate::error::{Error, Result};
use crate::journal::Segment;
use crate::journal::record::{self, Bound, Op, Ops, Record};
use crate::log::chunk::{Header, Kind};
use crate::log::records::Records;
use crate::log::stream::{StreamPart, StreamReader};
use crate::manifest::{self, Edit, ManifestState, Root};
use crate::version::Version;

/// Size of the cache, bytes.
const CACHE: usize = 32 << 20;
/// Bytes read at once when zones are searched.
const PIECE: usize = 1 << 20;

pub(super) fn find(device: Arc<dyn Device>, progress: &mut dyn FnMut(u64, u64)) -> Result<Salvage> {
    let (zones, errors) = Zones::open_remains(device)?;
    let mut notes: Vec<String> = errors.into_iter().map(|e| Error::from(e).to_string()).collect();
    let cache = BlockCache::new(zones.clone(), CACHE);
    let state = find_state(&zones, &mut notes, progress)?;
    let (version, mut bound) = journal(&zones, &cache, &state, &mut notes);
    let mut dictionaries = Vec::new();
    for d in state.dictionaries.values().filter(|d| d.info.branch.is_empty()) {
        let mut sources = of_journal(&version, &mut bound, d.info.id);
        // Sort the runs from newest to oldest: higher levels are older, and within a level greater
        // numbers are newer.
        let mut runs: Vec<_> = d
            .runs
            .iter()
            .map(|(id, (level, bytes))| (*level, std::cmp::Reverse(id.0), bytes))
            .collect();
        runs.sort();
        for (_, id, bytes) in runs {
            sources.push(match decode(&cache, bytes) {
                Ok(run) => Source::Run(run),
                Err(e) => {
                    notes.push(format!("run {} of dictionary {}: {e}", id.0, d.info.name));
                    Source::Lost(e.to_string())
                }
            });
        }
        dictionaries.push(Remains { name: d.info.name.clone(), sources });
    }
    let mut left_out = Vec::new();
    for name in state.snapshots.keys().filter(|name| !name.starts_with('.')) {
        left_out.push(format!("snapshot {name} is not brought out"));
    }
    for name in state.branches.keys().filter(|name| !name.starts_with('.')) {
        left_out.push(format!("clone {name} is not brought out"));
    }
    Ok(Salvage {
        cache,
        dictionaries,
        notes,
        left_out,
        recent: Mutex::new(SalvageCache::default()),
    })
}

/// Returns the sources of a dictionary that come from the journal, newest first. A lost run that
/// the journal binds is placed above everything committed before it, so it hides no newer data.
fn of_journal(
    version: &Version,
    bound: &mut BoundSources,
    dict: crate::DictionaryId,
) -> Vec<Source> {
    let mut generations: BTreeMap<u64, Vec<Source>> = BTreeMap::new();
    for layer in version.trees.get(&dict).iter().flat_map(|tree| &tree.layers) {
        if !layer.memtable.is_empty() {
            let memtable = Source::Memtable(layer.memtable.clone());
            generations.entry(layer.generation.number).or_default().push(memtable);
        }
    }
    for (generation, runs) in bound.remove(&dict).into_iter().flatten() {
        generations.entry(generation).or_default().extend(runs);
    }
    generations.into_values().rev().flatten().collect()
}

fn decode(cache: &Arc<BlockCache>, bytes: &Bytes) -> Result<Arc<Run>> {
    let mut rest = &bytes[..];
    Ok(Run::decode_unpinned(cache, &mut rest)?)
}

/// Finds the newest state of the manifest.
fn find_state(
    zones: &Arc<Zones>,
    notes: &mut Vec<String>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ManifestState> {
    let root = zones.superblock().root;
    let mut known = None;
    match manifest::load(zones, &root) {
        Ok(loaded) => return Ok(loaded.state),
        Err(e) if root.is_empty() => notes.push(format!("no superblock leads to a manifest: {e}")),
        Err(e) => {
            notes.push(format!("the manifest cannot be read to its end: {e}"));
            known = Root::decode(&root).ok().and_then(|root| partly(zones, &root.parts()));
        }
    }
    let found = search(zones, false, progress);
    let mut all: Vec<ManifestState> = found.into_iter().chain(known).collect();
    if all.is_empty() {
        // The first sector of the manifest's zone may be unreadable, so look at all of its chunks.
        all = search(zones, true, progress);
    }
    // These numbers only increase, so the greatest are those of the newest state.
    let age = |s: &ManifestState| (s.next_segment, s.next_run, s.start.seq, s.start.position);
    match all.into_iter().max_by_key(age) {
        Some(state) => {
            notes.push("what was found instead may be older than what was there last".into());
            Ok(state)
        }
        None => Err(Error::Corrupt(
            "nothing on it tells what the store consisted of: no manifest was found, old or new"
                .into(),
        )),
    }
}

/// Returns the state of a manifest up to the point where it becomes unreadable.
fn partly(zones: &Zones, parts: &[StreamPart]) -> Option<ManifestState> {
    let mut state = ManifestState::new();
    let mut reader = StreamReader::new(zones, Kind::Manifest, parts, 0, 0);
    let mut records = Records::new(0);
    let mut count = 0;
    while let Ok(Some((_, piece))) = reader.next() {
        let each = records.push(&piece, |_, record| {
            let mut next = state.clone();
            next.apply_all(Edit::decode_all(&record)?)?;
            state = next;
            count += 1;
            Ok(true)
        });
        if each.is_err() {
            break;
        }
    }
    (count > 0).then_some(state)
}

/// Returns the states of all manifests that are found in any zone, each up to the point where it
/// becomes unreadable. If `deep` is set, the zones of a manifest are identified by any chunk, not
/// only by the first.
fn search(zones: &Zones, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Vec<ManifestState> {
    let count = zones.zones_on_device();
    // For each epoch, the zones of one manifest keyed by their first positions.
    let mut manifests: HashMap<u64, BTreeMap<u64, ZoneId>> = HashMap::new();
    for zone in (1..count).map(ZoneId) {
        progress(u64::from(zone.0), u64::from(count));
        if let Some(header) = first_header(zones, zone, deep) {
            manifests.entry(header.epoch).or_default().entry(header.position).or_insert(zone);
        }
    }
    let parts = |(epoch, zones): (&u64, &BTreeMap<u64, ZoneId>)| -> Vec<StreamPart> {
        zones.values().map(|&zone| StreamPart { zone, epoch: *epoch, end: None }).collect()
    };
    manifests.iter().filter_map(|manifest| partly(zones, &parts(manifest))).collect()
}

/// Returns the first header of a manifest chunk in a zone.
fn first_header(zones: &Zones, zone: ZoneId, deep: bool) -> Option<Header> {
    let end = if deep { ZONE_SIZE } else { SECTOR };
    let mut buf = vec![0; (end as usize).min(PIECE)];
    let mut at = 0;
    while at < end {
        // The read may fail, since the last zone may be incomplete.
        if zones.read(Purpose::Manifest, zone.start() + at, &mut buf).is_ok() {
            let found =
                buf.chunks(SECTOR as usize).find_map(|sector| Header::read(Kind::Manifest, sector));
            if found.is_some() {
                return found;
            }
        }
        at += buf.len() as u64;
    }
    None
}

/// The runs that the journal binds, newest first, including lost ones: for each dictionary, the
/// runs with the generation whose memtable is directly above them.
type BoundSources = HashMap<crate::DictionaryId, Vec<(u64, Vec<Source>)>>;

/// Reads the commits in the journal into memtables. If the journal is intact, these are the commits
/// that recovery would replay. If it is damaged, they are the commits before the damage, and those
/// after it whose position is certain.
fn journal(
    zones: &Arc<Zones>,
    cache: &Arc<BlockCache>,
    state: &ManifestState,
    notes: &mut Vec<String>,
) -> (Version, BoundSources) {
    let mut replay = Replay {
        state,
        cache: cache.clone(),
        version: Version::of(state.dictionaries.values().map(|d| d.info.clone())),
        next: state.start.seq + 1,
        bound: BoundSources::new(),
    };
    let whole = read_journal(zones, cache, state, &mut Recovery::default(), &mut |_| {});
    let end = match &whole {
        Ok(journal) => journal.end,
        Err(e) => {
            notes.push(format!("the journal cannot be read to its end: {e}"));
            u64::MAX
        }
    };
    let segments: Vec<Segment> =
        state.segments.iter().filter(|s| s.number >= state.start.segment).copied().collect();
    let parts: Vec<StreamPart> =
        segments.iter().map(|s| StreamPart { end: None, ..s.part() }).collect();
    let offset = segments
        .first()
        .filter(|s| s.number == state.start.segment)
        .map_or(0, |_| state.start.offset);
    let mut from = (0, offset, state.start.position);
    loop {
        let (part, offset, position) = replay.stretch(zones, &parts, from, end);
        if whole.is_ok() {
            break;
        }
        match resume(zones, &parts, (part, offset), position) {
            Some(next) => {
                notes.push(format!(
                    "commits are missing: bytes {position} to {} of the journal",
                    next.2
                ));
                from = next;
            }
            None => break,
        }
    }
    (replay.version, replay.bound)
}

/// Finds the first chunk that begins a write after a given place in the journal, and returns its
/// part, offset and position.
fn resume(
    zones: &Zones,
    parts: &[StreamPart],
    stopped: (usize, u64),
    position: u64,
) -> Option<(usize, u64, u64)> {
    let mut head = vec![0; SECTOR as usize];
    for (i, part) in parts.iter().enumerate().skip(stopped.0) {
        let mut offset = if i == stopped.0 { stopped.1 } else { 0 };
        while offset + SECTOR <= ZONE_SIZE {
            let read = zones.read(Purpose::Journal, part.zone.start() + offset, &mut head);
            if read.is_ok()
                && let Some(header) = Header::read(Kind::Journal, &head)
                && header.epoch == part.epoch
                && header.position > position
                && offset + header.size() <= ZONE_SIZE
            {
                let mut chunk = vec![0; header.size() as usize];
                let whole =
                    zones.read(Purpose::Journal, part.zone.start() + offset, &mut chunk).is_ok();
                // Each write begins with the number of its first change, except a write that
                // continues one that was cut off.
                let numbered = |piece: &[u8]| {
                    piece.len() >= record::NUMBER_SIZE && piece[..2] == record::number(0)[..2]
                };
                if whole && header.piece(&chunk).is_some_and(numbered) {
                    return Some((i, offset, header.position));
                }
            }
            offset += SECTOR;
        }
    }
    None
}

struct Replay<'a> {
    state: &'a ManifestState,
    cache: Arc<BlockCache>,
    version: Version,
    next: Seq,
    bound: BoundSources,
}

impl Replay<'_> {
    /// Replays the journal from a part, offset and position up to the position `end` or to the
    /// first damage. Returns the part, offset and position where it stopped.
    fn stretch(
        &mut self,
        zones: &Zones,
        parts: &[StreamPart],
        (part, offset, position): (usize, u64, u64),
        end: u64,
    ) -> (usize, u64, u64) {
        let rest = &parts[part.min(parts.len())..];
        let mut reader = StreamReader::new(zones, Kind::Journal, rest, offset, position);
        let mut records = Records::new(position);
        while let Ok(Some((_, piece))) = reader.next() {
            let pushed = records.push(&piece, |to, bytes| {
                if to > end {
                    return Ok(false);
                }
                self.record(record::decode(&bytes)?)?;
                Ok(true)
            });
            if !matches!(pushed, Ok(true)) {
                break;
            }
        }
        (part + reader.part(), reader.offset(), records.position())
    }

    fn record(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Mark | Record::Snapshot { .. } => Ok(()),
            Record::Number(next) if next >= self.next => {
                self.next = next;
                Ok(())
            }
            Record::Number(_) => Err(Error::Corrupt("the journal's numbers go back".into())),
            Record::Commit(changes) => self.commit(changes),
            Record::Bind(bound) => self.bind(&bound),
        }
    }

    fn advance(&mut self, by: u64) -> Result<Seq> {
        let first = self.next;
        let next = first.checked_add(by);
        self.next = next.ok_or_else(|| {
            Error::Corrupt("the journal has more changes than can be numbered".into())
        })?;
        Ok(first)
    }

    fn commit(&mut self, mut changes: Ops) -> Result<()> {
        let first = self.advance(changes.len() as u64)?;
        for (seq, (dict, op)) in (first..).zip(changes.iter_mut()) {
            // Skip discarded values. The change that hid one may be lost; then the previous value
            // is the best available.
            if !self.state.takes(*dict, seq) || matches!(op, Op::PutDiscarded(..)) {
                *dict = crate::DictionaryId(0);
            }
            if let Op::Put(_, Value::Extent(e)) = op
                && u64::from(e.stored) > ZONE_SIZE
            {
                return Err(Error::Corrupt(
                    "the journal binds a value that is longer than a zone".into(),
                ));
            }
        }
        let written = write_memtables(&self.version, first, &changes, &mut |_| {});
        self.version.add_layers(written.fresh);
        Ok(())
    }

    fn bind(&mut self, bound: &Bound) -> Result<()> {
        let seq = self.advance(1)?;
        self.version.seal();
        let generation = self.version.generation.number;
        for (dict, roots) in bound.runs.iter().filter(|(dict, _)| self.state.takes(*dict, seq)) {
            let source = |root| match decode(&self.cache, root) {
                Ok(run) => Source::Run(run),
                Err(e) => Source::Lost(format!("a run that the journal binds: {e}")),
            };
            let runs = roots.iter().map(source).collect();
            self.bound.entry(*dict).or_default().push((generation, runs));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Remnant, Scan};
    use super::*;
    use crate::{DictionaryId, Kvdb};

    /// Lost runs may hide data that was committed before them, but no data that was committed after
    /// them.
    #[test]
    fn lost_runs_lie_above_what_was_committed_before_them_alone() {
        let db = Kvdb::in_memory();
        let d = db.open_dictionary("d").expect("made");
        let dict = d.id();
        let mut state = ManifestState::new();
        state.apply(Edit::Dictionary(d.info().expect("there"))).expect("made");
        let mut replay = Replay {
            state: &state,
            cache: db.view().cache.clone(),
            version: Version::of([d.info().expect("there").into()]),
            next: 1,
            bound: BoundSources::new(),
        };
        let put = |key: &'static str| {
            let value = Value::Inline(Bytes::from_static(b"value"));
            vec![(dict, Op::Put(Bytes::from_static(key.as_bytes()), value))]
        };
        let lost: Vec<(DictionaryId, Vec<Bytes>)> =
            vec![(dict, vec![Bytes::from_static(b"no run")])];
        replay.commit(put("before")).expect("replayed");
        replay.bind(&Bound { places: Vec::new(), runs: lost.clone() }).expect("replayed");
        replay.bind(&Bound { places: Vec::new(), runs: lost }).expect("replayed");
        replay.commit(put("behind")).expect("replayed");
        let sources = of_journal(&replay.version, &mut replay.bound, dict);
        let recent = Mutex::new(SalvageCache::default());
        let found: Vec<(Bytes, bool)> = Scan::new(&recent, &sources, b"", b"")
            .filter_map(|remnant| match remnant {
                Remnant::Tuple { key, stale, .. } => Some((key, stale)),
                _ => None,
            })
            .collect();
        assert_eq!(found, [("before".into(), true), ("behind".into(), false)]);
    }
}
