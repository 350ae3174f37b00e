//! Writes zones to objects. Unchanged pieces that already lie in object storage are referred to.
//! Bytes that were written after them become another piece. Small pieces share an object.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use env::sync::Mutex;
use env::thread;
use objects::{Created, Objects, Patience, create};
use sha2::{Digest, Sha256};

use super::known::{Fingerprint, Known, Marks};
use super::record::{MOST_TABLE, check_table, check_zones};
use super::table::{MAX_PIECES, Piece, ZoneObject, ZoneTable};
use crate::{Error, Result, ZONE_SIZE, ZoneId, ZoneUse};

/// The length in bytes from which a piece has its own object.
const OWN_OBJECT: usize = 1 << 20;
/// The length in bytes from which a shared object is queued. It then takes twice as much memory.
const PACK: usize = 3 << 20;
/// The largest number of objects that are written at the same time.
const AT_ONCE: usize = 8;
/// The number of pieces above which a publication writes some zones whole. A table with this many
/// pieces takes about half of the room that local files have for it.
const CROWDED: usize = MOST_TABLE / 24;
/// A crowded publication writes zones whole if they have more than this many pieces.
const FEW: usize = 4;
/// The largest number of zones that a crowded publication writes whole.
const JOINED: usize = 4;

/// The progress of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of zones that were processed.
    pub zones: u64,
    /// The number of all zones.
    pub zones_total: u64,
    /// The number of objects that were written.
    pub objects: u64,
    /// The number of bytes in the written objects.
    pub bytes: u64,
}

/// The result of a publication: the zones that now lie in object storage.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// The pieces of exactly those zones that were to be published.
    pub known: Known,
    /// The zones that the next publication need not read.
    pub marks: Marks,
    /// The work that the publication took.
    pub progress: Progress,
}

/// A part of a zone that has to be written.
struct Fresh {
    zone: ZoneId,
    offset: u32,
    bytes: Bytes,
    fingerprint: Fingerprint,
}

fn fingerprint(bytes: &[u8]) -> Fingerprint {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    std::array::from_fn(|i| digest[i])
}

/// An object that has a name but is not written yet.
struct Queued {
    name: ZoneObject,
    bytes: Bytes,
    pieces: Vec<Placed>,
}

/// A piece of the table that is being built.
#[derive(Clone, Copy)]
struct Placed {
    zone: ZoneId,
    offset: u32,
    len: u32,
    object: ZoneObject,
    at: u32,
    fingerprint: Fingerprint,
}

/// The source of the zones that are published.
pub(crate) struct Source<'a> {
    /// A function that reads a whole zone.
    pub read: &'a dyn Fn(ZoneId, &mut [u8]) -> Result<()>,
    /// The table of the zones that came from object storage and still have the same bytes there.
    pub table: Option<&'a ZoneTable>,
    /// A function that returns the count of the writes of a zone. See [`super::Writes`].
    pub writes: &'a dyn Fn(ZoneId) -> Option<u64>,
}

/// The parameters of a publication.
pub struct Publication<'a> {
    /// The place to which the zones are published.
    pub objects: &'a Arc<dyn Objects>,
    /// The pieces that already lie in object storage.
    pub known: &'a Known,
    /// The marks of zones that still have the bytes of `known` unless they were written since.
    pub marks: &'a Marks,
    /// `true` if zones that came from this place are referred to, because the place keeps them for
    /// this store.
    pub shares: bool,
    /// The name of the first new object. The names of the other new objects have the following
    /// numbers.
    pub first: ZoneObject,
    /// The number of bytes that the objects being written may take, or one zone if that is more.
    /// The number of objects that are written at the same time is the number of zones that fit, but
    /// at most eight.
    pub memory: usize,
}

/// A callback that receives the progress of a publication after each zone. It can request all
/// pieces that lie in object storage so far, so that an interrupted publication need not start
/// again. They include the known pieces of zones that are not processed yet, because the
/// publication will refer to these pieces. An error of the callback ends the publication.
pub type Watch<'a> = dyn FnMut(Progress, &dyn Fn() -> Result<Known>) -> Result<()> + 'a;

/// Publishes zones. See [`crate::Zones::publish`].
pub(crate) fn publish(
    source: Source<'_>,
    uses: &ZoneUse,
    how: &Publication<'_>,
    progress: &mut Watch<'_>,
) -> Result<Published> {
    let Publication { objects, known, marks, first, memory, .. } = *how;
    // Check the number of zones before anything is read and written.
    check_zones(uses.len())?;
    let mut seen = Marks::default();
    let mut writer = Writer {
        objects,
        at_once: (memory / ZONE_SIZE as usize).clamp(1, AT_ONCE),
        next: first,
        placed: Vec::new(),
        pack: Vec::new(),
        queued: Vec::new(),
        progress: Progress { zones_total: uses.len() as u64, ..Progress::default() },
    };
    let mut joinable = if known.table.pieces().len() > CROWDED { JOINED } else { 0 };
    for (zone, _) in uses.iter() {
        // Read the count before the zone.
        let writes = (source.writes)(zone);
        seen.0.extend(writes.map(|count| (zone, count)));
        let is_as_known = writes.is_some() && marks.0.get(&zone) == writes.as_ref();
        let pieces = known.table.pieces_of(zone).len();
        let joins = pieces > FEW && joinable > 0 && !source.is_there(zone);
        joinable -= usize::from(joins);
        if is_as_known && pieces > 0 && !joins {
            known
                .pieces_of(zone)
                .for_each(|(piece, print)| writer.keep(&known.table, piece, print));
        } else {
            publish_zone(&source, zone, known, joins, &mut writer)?;
        }
        writer.progress.zones += 1;
        let (now, placed) = (writer.progress, &writer.placed);
        progress(now, &|| known_of(placed)?.over(known))?;
    }
    writer.queue_pack()?;
    writer.write_queued()?;
    let known = known_of(&writer.placed)?;
    check_table(&known.table)?;
    progress(writer.progress, &|| Ok(known.clone()))?;
    Ok(Published { known, marks: seen, progress: writer.progress })
}

impl Source<'_> {
    /// Returns whether a zone came from object storage and still has the same bytes there.
    fn is_there(&self, zone: ZoneId) -> bool {
        self.table.is_some_and(|table| !table.pieces_of(zone).is_empty())
    }
}

fn publish_zone(
    source: &Source<'_>,
    zone: ZoneId,
    known: &Known,
    joins: bool,
    writer: &mut Writer<'_>,
) -> Result<()> {
    if let Some(table) = source.table.filter(|table| !table.pieces_of(zone).is_empty()) {
        // These fingerprints are never compared, because the zone takes this path each time.
        let pieces = table.pieces_of(zone).iter();
        pieces.for_each(|piece| writer.keep(table, piece, Fingerprint::default()));
        return Ok(());
    }
    let mut bytes = vec![0; ZONE_SIZE as usize];
    (source.read)(zone, &mut bytes)?;
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    // A zone of zeros has a piece, too, because copies count zones that are missing in the table as
    // free.
    bytes.truncate(end.next_multiple_of(512).max(512));

    let mut covered = 0;
    let is_same = known.pieces_of(zone).all(|(piece, print)| {
        let here = bytes.get(piece.offset as usize..piece.end() as usize);
        let follows = piece.offset as usize == covered;
        covered = piece.end() as usize;
        follows && here.is_some_and(|here| fingerprint(here) == print)
    });
    let is_longer = covered < bytes.len();
    let pieces = known.table.pieces_of(zone).len();
    if joins || !is_same || pieces + usize::from(is_longer) > MAX_PIECES {
        return writer.add(zone, 0, bytes);
    }
    known.pieces_of(zone).for_each(|(piece, print)| writer.keep(&known.table, piece, print));
    if is_longer { writer.add(zone, covered, bytes.split_off(covered)) } else { Ok(()) }
}

fn known_of(placed: &[Placed]) -> Result<Known> {
    let mut placed = placed.to_vec();
    placed.sort_by_key(|p| (p.zone, p.offset));
    let mut known = Known::default();
    for p in placed {
        known.add((p.zone, p.offset, p.len), (p.object, p.at), p.fingerprint)?;
    }
    Ok(known)
}

struct Writer<'a> {
    objects: &'a Arc<dyn Objects>,
    at_once: usize,
    next: ZoneObject,
    placed: Vec<Placed>,
    /// The pieces that share the next object.
    pack: Vec<Fresh>,
    /// The objects that are written next. All of them are written at the same time.
    queued: Vec<Queued>,
    progress: Progress,
}

impl Writer<'_> {
    /// Adds a piece that already lies in object storage.
    fn keep(&mut self, table: &ZoneTable, piece: &Piece, fingerprint: Fingerprint) {
        let Piece { zone, offset, len, at, .. } = *piece;
        let object = table.object(piece);
        self.placed.push(Placed { zone, offset, len, object, at, fingerprint });
    }

    fn add(&mut self, zone: ZoneId, offset: usize, mut bytes: Vec<u8>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() < OWN_OBJECT {
            // A piece that waits for other pieces must not keep the memory of the whole zone.
            bytes.shrink_to_fit();
        }
        let fresh = Fresh {
            zone,
            offset: offset as u32,
            fingerprint: fingerprint(&bytes),
            bytes: bytes.into(),
        };
        if fresh.bytes.len() >= OWN_OBJECT {
            return self.queue(&[fresh]);
        }
        self.pack.push(fresh);
        let packed: usize = self.pack.iter().map(|f| f.bytes.len()).sum();
        if packed >= PACK { self.queue_pack() } else { Ok(()) }
    }

    fn take_name(&mut self) -> Result<ZoneObject> {
        let name = self.next;
        let next = name.number.checked_add(1);
        self.next.number =
            next.ok_or_else(|| Error::Invalid("an epoch has no more names for objects".into()))?;
        Ok(name)
    }

    /// Queues an object with the pieces that share the next object.
    fn queue_pack(&mut self) -> Result<()> {
        let pack = std::mem::take(&mut self.pack);
        if pack.is_empty() { Ok(()) } else { self.queue(&pack) }
    }

    /// Queues an object with these pieces, and writes the queued objects if the queue is full.
    fn queue(&mut self, pieces: &[Fresh]) -> Result<()> {
        let object = self.take_name()?;
        let (mut placed, mut at) = (Vec::with_capacity(pieces.len()), 0);
        for fresh in pieces {
            let Fresh { zone, offset, fingerprint, ref bytes } = *fresh;
            let len = bytes.len() as u32;
            placed.push(Placed { zone, offset, len, object, at, fingerprint });
            at += len;
        }
        let bytes = match pieces {
            [one] => one.bytes.clone(),
            many => many.iter().map(|fresh| &fresh.bytes[..]).collect::<Vec<_>>().concat().into(),
        };
        self.queued.push(Queued { name: object, bytes, pieces: placed });
        if self.queued.len() >= self.at_once { self.write_queued() } else { Ok(()) }
    }

    /// Writes the objects of the queue, all at the same time. The pieces count as placed only when
    /// all of these objects exist.
    fn write_queued(&mut self) -> Result<()> {
        let queued = std::mem::take(&mut self.queued);
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let write = || {
            while let Some(object) = queued.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(e) = put(self.objects, object.name, object.bytes.clone()) {
                    failure.lock().get_or_insert(e);
                    return;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..queued.len() {
                if let Err(e) = thread::Builder::new().spawn_scoped(scope, write) {
                    tracing::debug!("no further thread for objects: {e}");
                    break;
                }
            }
            write();
        });
        if let Some(e) = failure.into_inner() {
            return Err(e);
        }
        for Queued { bytes, pieces, .. } in queued {
            self.progress.objects += 1;
            self.progress.bytes += bytes.len() as u64;
            self.placed.extend(pieces);
        }
        Ok(())
    }
}

/// Creates an object with a name that only this writer uses.
fn put(objects: &Arc<dyn Objects>, name: ZoneObject, bytes: Bytes) -> Result<()> {
    match create(&**objects, &name.key()?, bytes, Patience::default()) {
        Ok(Created::Done(_)) => Ok(()),
        Ok(Created::Taken(_)) => Err(Error::Invalid(format!(
            "another writer has created {} in {}: it writes for the same store; publish again",
            name.key()?,
            objects.place()
        ))),
        Err(e) => Err(Error::io(
            format!("writing zones to {}", objects.place()),
            io::Error::other(e.to_string()),
        )),
    }
}
