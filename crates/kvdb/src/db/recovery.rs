//! Making a cache, and opening one: superblock, manifest, runs, journal.
//!
//! The journal is read twice. The first pass finds its end and marks what it binds: records give
//! the places of large values that no run knows of yet, and their zones must not be taken. A record
//! that may not have been synced counts only when the values it binds are really there; they were
//! written before it, but without a sync the device may have kept one and lost the other. Then
//! allocation may begin, a fresh manifest notes how far the journal goes, and the second pass
//! replays it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Env;
use vt_tree::{BlockCache, ExtentRef, Run, Seq, Value};
use zones::{Device, FormatOptions, SECTOR, ZONE_SIZE, ZoneId, ZonePin, ZoneUse, Zones};

use crate::commit::pipeline::Sealed;
use crate::commit::write_memtables;
use crate::db::database::{Database, Parts};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::ids::Label;
use crate::ids::RunId;
use crate::journal::record::{self, Bound, Op, Ops, Record};
use crate::journal::{Owned, Segment, Writer};
use crate::log::chunk::Kind;
use crate::log::stream::{Records, StreamPart, StreamReader};
use crate::manifest::{self, DictionaryState, Edit, JournalStart, Manifest, ManifestState};
use crate::options::{CreateOptions, OpenOptions, Shares};
use crate::read::version::{Generation, Tree, Version};
use crate::snapshot_set::Snapshots;

/// What opening a store found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The store was closed properly.
    pub clean: bool,
    /// Edits of the manifest.
    pub edits: u64,
    pub runs: u64,
    /// Commits replayed from the journal.
    pub records: u64,
    /// Their bytes in the journal.
    pub bytes: u64,
    /// Large values that they had placed already.
    pub bound_bytes: u64,
    /// Bytes behind the journal's end: of writes that were under way.
    pub torn_bytes: u64,
    pub duration: Duration,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.clean { "closed properly" } else { "recovered" };
        write!(
            f,
            "{how}: {} runs, {} commits replayed ({} bytes of journal",
            self.runs, self.records, self.bytes
        )?;
        write!(
            f,
            ", {} bytes bound in place), {} torn bytes left out",
            self.bound_bytes, self.torn_bytes
        )?;
        write!(f, ", {:.1} ms", self.duration.as_secs_f64() * 1000.0)
    }
}

/// Makes an empty store on `device`; whatever was there is lost.
pub(crate) fn create(
    device: Arc<dyn Device>,
    env: Arc<dyn Env>,
    options: CreateOptions,
) -> Result<Arc<Database>> {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.random().to_le_bytes());
    uuid[8..].copy_from_slice(&env.random().to_le_bytes());
    let format = FormatOptions { capacity: options.capacity, reserve_zones: options.reserve_zones };
    let zones = Zones::format_as(device, format, uuid)?;
    let health = Arc::new(Health::default());
    let manifest =
        Manifest::begin(zones.clone(), env.clone(), health.clone(), ManifestState::new(), 0)?;
    let cache = BlockCache::new(zones.clone(), Shares::of(&options.open).cache);
    let version = Version::empty(Generation::first());
    let snapshots = Snapshots::new(BTreeMap::new());
    let options = OpenOptions { read_only: false, ..options.open };
    let writer = Writer::new(zones.clone(), 0);
    let parts = Parts {
        env,
        zones,
        cache,
        options,
        health,
        version,
        next_seq: 1,
        writer,
        manifest: Some(manifest),
        snapshots,
    };
    let db = Arc::new(Database::new(parts));
    db.start_threads()?;
    Ok(db)
}

/// Opens the store on `device`.
pub(crate) fn open(
    device: Arc<dyn Device>,
    env: Arc<dyn Env>,
    options: OpenOptions,
) -> Result<(Arc<Database>, Recovery)> {
    let begun = env.monotonic();
    let zones = Zones::open(device)?;
    let cache = BlockCache::new(zones.clone(), Shares::of(&options).cache);
    let found = Found::read(&zones, &cache)?;
    let mut recovery = found.recovery;
    let state = &found.loaded.state;
    // Open zones go on behind what commits have bound since the manifest noted their places.
    let mut bound = |e: &ExtentRef| zones.saw_extent(e.addr, u64::from(e.stored));
    let mut journal = read_journal(&zones, &cache, state, &mut recovery, &mut bound)?;
    journal.runs.iter().for_each(|runs| runs.saw(&zones));
    // Marked before allocation begins.
    let bound = zones.pin(&journal.bound)?;

    let mut version = found.version;
    let next_seq = journal.last_seq.max(state.start.seq) + 1;
    version.lower_since(next_seq - 1);
    let health = Arc::new(Health::new(options.read_only));
    let mut writer = Writer::new(zones.clone(), journal.end);
    let parts = journal.parts();

    let manifest = if options.read_only {
        None
    } else {
        let mut old = Vec::new();
        for (purpose, addr) in &state.streams {
            zones.resume(*purpose, *addr);
        }
        zones.start();
        // Segments that hold part of the stream stay as they are, their ends noted; the others
        // begin a new life, since what a crash left in them could be taken for part of what
        // follows.
        let (mut edits, mut fresh) = (Vec::new(), Vec::new());
        let mut number = state.next_segment;
        for (segment, pin) in found.segments {
            if let Some(&segment) = journal.used.iter().find(|s| s.number == segment.number) {
                edits.extend(
                    segment
                        .end
                        .map(|position| Edit::SegmentEnds { number: segment.number, position }),
                );
                old.push(Owned { segment, pin });
                continue;
            }
            edits.push(Edit::ForgetSegment { number: segment.number });
            if fresh.len() < 2 {
                let segment =
                    Segment { number, zone: segment.zone, epoch: env.random(), end: None };
                number += 1;
                fresh.push(Owned { segment, pin });
            }
        }
        edits.extend(fresh.iter().map(|f| Edit::Segment(f.segment)));
        // A rollback is on disk before the journal's end, which it made void, need be: numbers that
        // were lost are given again.
        let last = next_seq - 1;
        edits.extend(
            state
                .since
                .iter()
                .filter(|(_, since)| **since > last)
                .map(|(&dict, _)| Edit::Since { dict, seq: last }),
        );
        let mut next = state.clone();
        next.apply_all(edits.iter().cloned())?;
        next.closed = false;
        let begun = Manifest::begin(
            zones.clone(),
            env.clone(),
            health.clone(),
            next,
            found.loaded.root.number,
        );
        let manifest = match begun {
            Err(Error::NoSpace) => {
                Manifest::resume(zones.clone(), env.clone(), health.clone(), &found.loaded, edits)?
            }
            begun => begun?,
        };
        writer.keep_old(old);
        for segment in fresh {
            // Numbered upwards, above the old ones: none comes too late.
            let _ = writer.add(segment);
        }
        Some(manifest)
    };
    drop(found.manifest_hold);

    version.generation.pin(zones.pin(bound.uses())?);
    let start = state.start;
    let since = state.since.clone();
    let snapshots = found.snapshots;
    let parts_of = Parts {
        env: env.clone(),
        zones: zones.clone(),
        cache,
        options,
        health,
        version,
        next_seq,
        writer,
        manifest,
        snapshots,
    };
    let db = Arc::new(Database::new(parts_of));
    let journal_device = db.commits.writer.lock().bytes();
    db.counters.journal_device.set(journal_device);

    let offset = offset_in(&journal.used, &start);
    let mut reader = StreamReader::new(&zones, Kind::Journal, &parts, offset, start.position);
    let mut records = Records::new(start.position);
    let mut numbers = Numbers { next: start.seq + 1 };
    let mut flush_at = db.shares.seal_at;
    while let Some((at, piece)) = reader.next()? {
        let more = records.push(&piece, |end, bytes| {
            if end > journal.end {
                return Ok(false);
            }
            let record = record::decode(&bytes)?;
            if let Record::Snapshot { label, below } = record {
                if end != at + piece.len() as u64 {
                    return Err(Error::Corrupt(format!(
                        "the journal goes on behind snapshot {} in the same chunk",
                        label.name
                    )));
                }
                let (segment, offset) = (journal.used[reader.part()].number, reader.offset());
                let start = JournalStart { segment, offset, position: end, seq: numbers.next - 1 };
                return snapshot_again(&db, label, below, start, bound.uses()).map(|()| true);
            }
            match numbers.take(record)? {
                None => {}
                Some((first, Content::Ops(mut changes))) => {
                    void(first, &mut changes, &since);
                    replay(&db, first, &changes);
                }
                Some((_, Content::Bound(_))) => {
                    let Some(runs) = journal.runs.pop_front() else {
                        return Err(Error::Corrupt(
                            "the journal binds more runs than when it was first read".into(),
                        ));
                    };
                    rebind(&db, runs, bound.uses())?;
                }
            }
            // A journal may begin only where a chunk does.
            if end == at + piece.len() as u64 {
                let (segment, offset) = (journal.used[reader.part()].number, reader.offset());
                let start = JournalStart { segment, offset, position: end, seq: numbers.next - 1 };
                flush_when_full(&db, start, bound.uses(), &mut flush_at)?;
            }
            Ok(true)
        })?;
        if !more {
            break;
        }
    }
    if records.position() != journal.end {
        return Err(Error::Corrupt(format!(
            "the journal ended at {} when read again, not at {}",
            records.position(),
            journal.end
        )));
    }
    if !db.options.read_only {
        db.restore_transactions()?;
    }
    db.start_threads()?;
    recovery.duration = env.monotonic().saturating_sub(begun);
    tracing::info!("{recovery}");
    Ok((db, recovery))
}

/// Applies a commit of the journal.
fn replay(db: &Database, first: Seq, changes: &Ops) {
    let version = db.versions.load_full();
    let (grown, _) = write_memtables(&version, first, changes, &mut |_, _, _| {});
    db.commits.active_bytes.fetch_add(grown, env::sync::atomic::Ordering::Relaxed);
}

/// When memory for memtables is full, they are flushed, and the journal begins at `start`, behind
/// all that they have: an update must not be replayed over a run that has it.
fn flush_when_full(
    db: &Database,
    start: JournalStart,
    bound: &ZoneUse,
    flush_at: &mut usize,
) -> Result<()> {
    let active = db.commits.active_bytes.load(env::sync::atomic::Ordering::Relaxed);
    if active < *flush_at || db.options.read_only {
        return Ok(());
    }
    seal(db, start, bound)?;
    match db.background.flusher.flush_sealed() {
        Ok(_) => Ok(()),
        // A full store opens all the same: these memtables stay in memory, until there is room for
        // them or they have doubled.
        Err(Error::NoSpace) => {
            *flush_at = db.commits.sealed_bytes.load(env::sync::atomic::Ordering::Relaxed);
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// Closes the memtables that take the replay; `start`: where the journal begins once they are
/// flushed.
fn seal(db: &Database, start: JournalStart, bound: &ZoneUse) -> Result<()> {
    let generation = db.versions.load().generation.number;
    db.versions.change(|v| *v = v.sealed());
    db.versions.load().generation.pin(db.zones.pin(bound)?);
    let bytes = db.commits.active_bytes.swap(0, env::sync::atomic::Ordering::Relaxed);
    db.commits.sealed.lock().push_back(Sealed { generation, bytes, start });
    db.commits.sealed_bytes.fetch_add(bytes, env::sync::atomic::Ordering::Relaxed);
    Ok(())
}

/// Puts the runs that a commit of the journal bound above everything before it.
fn rebind(db: &Database, bound: BoundRuns, uses: &ZoneUse) -> Result<()> {
    db.versions.change(|v| {
        *v = v.sealed();
        v.add_runs(&bound.runs);
    });
    db.versions.load().generation.pin(db.zones.pin(uses)?);
    Ok(())
}

/// The runs of one commit in the journal, pinned.
pub(crate) struct BoundRuns {
    places: Vec<u64>,
    /// Of each dictionary, the newest first.
    pub runs: Vec<(DictionaryId, Vec<Arc<Run>>)>,
}

impl BoundRuns {
    fn open(
        cache: &Arc<BlockCache>,
        state: &ManifestState,
        seq: Seq,
        bound: &Bound,
    ) -> Result<BoundRuns> {
        let mut runs = Vec::new();
        for (dict, roots) in &bound.runs {
            // What was bound for a dictionary that is gone may be gone too.
            if state.takes(*dict, seq) {
                let decoded: Result<Vec<_>> = roots
                    .iter()
                    .map(|root| {
                        decode_run(cache, root, || "the root of a run in the journal".into())
                    })
                    .collect();
                runs.push((*dict, decoded?));
            }
        }
        Ok(BoundRuns { places: bound.places.clone(), runs })
    }

    /// Before allocation begins: open zones go on behind the runs.
    fn saw(&self, zones: &Zones) {
        for (zone, _) in
            self.runs.iter().flat_map(|(_, runs)| runs).flat_map(|run| run.uses().iter())
        {
            let open = self.places.iter().find(|&&place| ZoneId::of(place) == zone);
            zones.saw_extent(zone.start(), open.map_or(ZONE_SIZE, |place| place - zone.start()));
        }
    }
}

/// What a commit of the journal consists of.
enum Content {
    Ops(Ops),
    /// Runs that were written before.
    Bound(Bound),
}

/// Takes the changes out that a rollback made void.
fn void(first: Seq, changes: &mut Ops, since: &BTreeMap<DictionaryId, Seq>) {
    for (seq, (dict, _)) in (first..).zip(changes.iter_mut()).filter(|_| !since.is_empty()) {
        if since.get(dict).is_some_and(|since| seq <= *since) {
            // Void: as a change of a dictionary that was dropped.
            *dict = DictionaryId(0);
        }
    }
}

/// A snapshot was made here that was not yet flushed: it is made again. It is flushed by `replay`,
/// or in the background.
fn snapshot_again(
    db: &Database,
    label: Label,
    below: u32,
    start: JournalStart,
    bound: &ZoneUse,
) -> Result<()> {
    if db.snapshots.get(&label.name).is_some() {
        return Err(Error::Corrupt(format!("the journal makes snapshot {} again", label.name)));
    }
    let generation = db.versions.load().generation.number;
    db.snapshots.begin(generation, db.snapshots.of(label, below, &db.versions.load()));
    seal(db, start, bound)?;
    db.signals.flush_wanted();
    Ok(())
}

/// Numbers the changes of a journal as its records come.
struct Numbers {
    next: Seq,
}

impl Numbers {
    /// A commit and the number of its first change; `None`: the record is no commit.
    fn take(&mut self, record: Record) -> Result<Option<(Seq, Content)>> {
        let (content, count) = match record {
            Record::Mark | Record::Snapshot { .. } => return Ok(None),
            Record::Number(next) if next == self.next => return Ok(None),
            Record::Number(next) => {
                return Err(Error::Corrupt(format!(
                    "the journal goes on with change {next} where {} is next",
                    self.next
                )));
            }
            Record::Commit(changes) => {
                let count = changes.len() as u64;
                (Content::Ops(changes), count)
            }
            Record::Bind(bound) => (Content::Bound(bound), 1),
        };
        let first = self.next;
        let next = first.checked_add(count);
        self.next = next.ok_or_else(|| {
            Error::Corrupt("the journal has more changes than can be numbered".into())
        })?;
        Ok(Some((first, content)))
    }
}

/// What the manifest names, pinned; nothing changed.
pub(crate) struct Found {
    pub loaded: manifest::Loaded,
    pub manifest_hold: ZonePin,
    pub segments: Vec<(Segment, ZonePin)>,
    pub version: Version,
    pub snapshots: Snapshots,
    pub recovery: Recovery,
}

/// What the first pass over the journal found.
pub(crate) struct Journal {
    /// Position behind the last record that counts.
    pub end: u64,
    pub last_seq: u64,
    pub records: u64,
    /// Segments that hold part of the stream, with their ends.
    pub used: Vec<Segment>,
    /// Where bound values lie.
    pub bound: ZoneUse,
    /// Runs that commits bound, in order.
    pub runs: VecDeque<BoundRuns>,
    /// What these hold, as they say.
    weight: u64,
}

impl Journal {
    fn parts(&self) -> Vec<StreamPart> {
        self.used.iter().map(Segment::part).collect()
    }
}

/// Where in the first segment the stream begins.
fn offset_in(segments: &[Segment], start: &manifest::JournalStart) -> u64 {
    segments.first().filter(|first| first.number == start.segment).map_or(0, |_| start.offset)
}

impl Found {
    pub(crate) fn read(zones: &Arc<Zones>, cache: &Arc<BlockCache>) -> Result<Found> {
        let root = zones.superblock().root;
        if root.is_empty() {
            return Err(Error::Corrupt(
                "the store has no manifest: making it was never finished, make it again".into(),
            ));
        }
        let loaded = manifest::load(zones, &root)?;
        let state = &loaded.state;
        let manifest_hold = zones.pin(&loaded.root.uses())?;
        let mut segments = Vec::new();
        for s in &state.segments {
            segments.push((*s, zones.pin(&ZoneUse::whole(s.zone))?));
        }
        let generation = Generation::first();
        let mut recovery =
            Recovery { clean: state.closed, edits: loaded.records, ..Recovery::default() };
        let mut runs = Runs::default();
        let mut version = Version::empty(generation.clone());
        let mut open = |id: RunId, root: &Bytes| runs.open(cache, id, root);
        version.follow(state, &mut open)?;
        let all = version.trees.values().flat_map(|tree| tree.runs());
        bounded(0, all.map(|placed| &*placed.run))?;
        let snapshots = Snapshots::new((*state.branches).clone());
        // What snapshots have in common is there once.
        let mut known: HashMap<*const DictionaryState, Arc<Tree>> = HashMap::new();
        for snapshot in state.snapshots.values() {
            let mut trees = BTreeMap::new();
            for (id, d) in &snapshot.dictionaries {
                let tree = match known.get(&Arc::as_ptr(d)) {
                    Some(tree) => tree.clone(),
                    None => Arc::new(snapshots.as_kept(Tree::of(d, &generation, &mut open)?)),
                };
                known.insert(Arc::as_ptr(d), tree.clone());
                trees.insert(*id, tree);
            }
            bounded(0, trees.values().flat_map(|tree| tree.runs()).map(|placed| &*placed.run))?;
            snapshots.found(snapshot.label.clone(), trees);
        }
        recovery.runs = runs.known.len() as u64;
        recovery.torn_bytes = loaded.torn;
        Ok(Found { loaded, manifest_hold, segments, version, snapshots, recovery })
    }
}

/// Runs by what the manifest says of them: those that several dictionaries and snapshots have are
/// there once.
#[derive(Default)]
struct Runs {
    known: HashMap<Bytes, Arc<Run>>,
    /// The runs by where in the state their roots lie, which lives as long as this: what snapshots
    /// share lies there once.
    by_place: HashMap<*const u8, Arc<Run>>,
}

impl Runs {
    fn open(&mut self, cache: &Arc<BlockCache>, id: RunId, root: &Bytes) -> Result<Arc<Run>> {
        if let Some(run) = self.by_place.get(&root.as_ptr()) {
            return Ok(run.clone());
        }
        let run = match self.known.get(root) {
            Some(run) => run.clone(),
            None => decode_run(cache, root, || format!("the manifest's entry of run {}", id.0))?,
        };
        self.known.insert(root.clone(), run.clone());
        self.by_place.insert(root.as_ptr(), run.clone());
        Ok(run)
    }
}

/// What runs hold, added to `before`. What they say of themselves is added up in many places. Each
/// sum is far below what a number can be, but their number may be any in a store that another
/// program has made.
fn bounded<'a>(before: u64, mut runs: impl Iterator<Item = &'a Run>) -> Result<u64> {
    let sum = runs.try_fold(before, |sum, run| {
        let s = run.stats();
        let sum = [s.items, s.block_bytes, s.value_bytes, s.bytes]
            .into_iter()
            .fold(sum, u64::saturating_add);
        (sum < 1 << 61).then_some(sum)
    });
    sum.ok_or_else(|| {
        Error::Corrupt("the store's runs say that they hold more than any store can".into())
    })
}

/// The run that `what` names by these bytes.
fn decode_run(
    cache: &Arc<BlockCache>,
    bytes: &Bytes,
    what: impl FnOnce() -> String,
) -> Result<Arc<Run>> {
    let mut rest = &bytes[..];
    let run = Run::decode(cache, &mut rest)?;
    if !rest.is_empty() {
        return Err(Error::Corrupt(format!("{} is too long", what())));
    }
    Ok(run)
}

/// A record that may not have been durable, and the values that it binds.
struct Unsynced {
    begin: u64,
    end: u64,
    /// `None`: no commit.
    last_seq: Option<u64>,
    extents: Vec<ExtentRef>,
    bound: Option<Bound>,
}

/// The first pass. See the module's comment. Each durable extent that the journal binds is shown to
/// `bound`.
pub(crate) fn read_journal(
    zones: &Zones,
    cache: &Arc<BlockCache>,
    state: &ManifestState,
    recovery: &mut Recovery,
    bound: &mut dyn FnMut(&ExtentRef),
) -> Result<Journal> {
    let start = state.start;
    if start.offset > ZONE_SIZE || !start.offset.is_multiple_of(SECTOR) {
        return Err(Error::Corrupt(format!(
            "the manifest's journal begins at offset {} of a zone",
            start.offset
        )));
    }
    let segments: Vec<Segment> =
        state.segments.iter().filter(|s| s.number >= start.segment).copied().collect();
    let parts: Vec<StreamPart> = segments.iter().map(Segment::part).collect();
    let mut reader = StreamReader::new(
        zones,
        Kind::Journal,
        &parts,
        offset_in(&segments, &start),
        start.position,
    );
    let mut records = Records::new(start.position);
    let mut journal = Journal {
        end: start.position,
        last_seq: 0,
        records: 0,
        used: Vec::new(),
        bound: ZoneUse::new(),
        runs: VecDeque::new(),
        weight: 0,
    };
    // Where each part's share of the stream ends.
    let mut ends: Vec<u64> = Vec::new();
    let mut unsynced: VecDeque<Unsynced> = VecDeque::new();
    let mut numbers = Numbers { next: start.seq + 1 };
    while let Some((at, piece)) = reader.next()? {
        ends.resize(reader.part() + 1, at);
        ends[reader.part()] = at + piece.len() as u64;
        let mut begin = records.position();
        records.push(&piece, |end, bytes| {
            let commit = numbers.take(record::decode(&bytes)?)?;
            let (mut extents, mut bound) = (Vec::new(), None);
            match &commit {
                None => {}
                Some((first, Content::Ops(changes))) => {
                    extents.extend((*first..).zip(changes).filter_map(
                        |(seq, (dict, op))| match op {
                            // What was bound for a dictionary that is gone may be gone too.
                            Op::Put(_, Value::Extent(e)) if state.takes(*dict, seq) => Some(*e),
                            _ => None,
                        },
                    ));
                }
                Some((_, Content::Bound(runs))) => bound = Some(runs.clone()),
            }
            let last_seq = commit.as_ref().map(|_| numbers.next - 1);
            unsynced.push_back(Unsynced { begin, end, last_seq, extents, bound });
            begin = end;
            Ok(true)
        })?;
        while unsynced.front().is_some_and(|r| r.end <= reader.synced()) {
            if let Some(record) = unsynced.pop_front() {
                journal.take(cache, state, &record, bound)?;
            }
        }
    }
    let tail = reader.tail()?;
    recovery.torn_bytes += tail.torn + records.unfinished();
    for record in &unsynced {
        if record.end > tail.synced
            && record.extents.iter().any(|e| cache.read_value(&Value::Extent(*e)).is_err())
        {
            // The record is there, what it binds is not: both were under way.
            recovery.torn_bytes += records.position() - record.begin;
            break;
        }
        journal.take(cache, state, record, bound)?;
    }
    (recovery.records, recovery.bytes) = (journal.records, journal.end - start.position);
    recovery.bound_bytes = journal.bound.total_bytes();
    let mut from = start.position;
    for (segment, &to) in segments.iter().zip(&ends) {
        if from < journal.end {
            journal.used.push(Segment { end: Some(to.min(journal.end)), ..*segment });
        }
        from = to;
    }
    Ok(journal)
}

impl Journal {
    /// The next record counts.
    fn take(
        &mut self,
        cache: &Arc<BlockCache>,
        state: &ManifestState,
        record: &Unsynced,
        bound: &mut dyn FnMut(&ExtentRef),
    ) -> Result<()> {
        if let Some(runs) = &record.bound {
            let bound = BoundRuns::open(cache, state, record.last_seq.unwrap_or(0), runs)?;
            self.weight = bounded(
                self.weight,
                bound.runs.iter().flat_map(|(_, runs)| runs).map(|run| &**run),
            )?;
            self.runs.push_back(bound);
        }
        self.end = record.end;
        if let Some(seq) = record.last_seq {
            self.last_seq = seq;
            self.records += 1;
        }
        for extent in &record.extents {
            self.bound.add_extent(extent.addr, u64::from(extent.stored));
            bound(extent);
        }
        Ok(())
    }
}
