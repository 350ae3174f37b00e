//! Sends a snapshot: all of its tuples, or the changes since another snapshot.

use std::io::Write;

use bytes::Bytes;

use crate::db::Kvdb;
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::read::view::View;
use crate::snapshots::check_visible;
use crate::snapshots::stream::{BuildsUpon, Frame, Received, StreamHeader, write_magic};

/// The number of bytes of tuples after which a chunk ends.
const CHUNK: usize = 128 << 10;

/// The size of a sent stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// The number of chunks in the stream.
    pub chunks: u64,
    /// The number of tuples in the chunks.
    pub tuples: u64,
    /// The number of bytes of the stream.
    pub bytes: u64,
}

struct Sender<'a> {
    out: &'a mut dyn Write,
    stats: SendStats,
    dictionary: u32,
    tuples: Vec<(Bytes, Option<Bytes>)>,
    bytes: usize,
}

impl Sender<'_> {
    fn push(&mut self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.tuples.push((key, value));
        if self.bytes >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let tuples = std::mem::take(&mut self.tuples);
        self.bytes = 0;
        if tuples.is_empty() {
            return Ok(());
        }
        self.stats.tuples += tuples.len() as u64;
        let chunk = Frame::Chunk { number: self.stats.chunks, dictionary: self.dictionary, tuples };
        self.stats.bytes += chunk.write(self.out)?;
        self.stats.chunks += 1;
        Ok(())
    }
}

/// The snapshots from which a stream is made.
struct Sent {
    label: Label,
    view: View,
    /// The snapshot to which the changes apply, if the stream has changes only.
    base: Option<(Label, View)>,
}

impl Kvdb {
    /// Returns an error if [`Kvdb::send`] would not begin: a snapshot does not exist, or the
    /// received part belongs to another stream.
    pub fn may_send(
        &self,
        snapshot: &str,
        base: Option<&str>,
        from: Option<&Received>,
    ) -> Result<()> {
        self.sent(snapshot, base, from).map(drop)
    }

    /// Returns the snapshots to be sent, if the stream can continue the received part.
    fn sent(&self, snapshot: &str, base: Option<&str>, from: Option<&Received>) -> Result<Sent> {
        let db = &self.db;
        // Look up each name only once, since it may belong to another snapshot later.
        let known = |name: &str| {
            check_visible(name)?;
            let found =
                db.engine.snapshots.get(name).ok_or_else(|| Error::NoSnapshot(name.into()))?;
            Ok::<_, Error>((found.label.clone(), db.snapshotter.open(&found)))
        };
        let (label, view) = known(snapshot)?;
        let base = base.map(known).transpose()?;
        let Some(from) = from else { return Ok(Sent { label, view, base }) };
        if from.id != label.id {
            return Err(Error::Invalid(format!(
                "what was received is of snapshot {:02x?}, not of {snapshot}",
                from.id
            )));
        }
        let given = base.as_ref().map(|(label, _)| label.id);
        match from.base {
            BuildsUpon::Unknown => {}
            BuildsUpon::Nothing if given.is_none() => {}
            BuildsUpon::Nothing => {
                return Err(Error::Invalid(format!(
                    "what was received is of all of {snapshot}, and not of what has changed since \
                     another one: send it without a base"
                )));
            }
            BuildsUpon::Snapshot(id) if given == Some(id) => {}
            BuildsUpon::Snapshot(id) => {
                let known =
                    db.engine.snapshots.list().into_iter().find(|known| known.label.id == id);
                return Err(match known {
                    Some(known) => Error::Invalid(format!(
                        "what was received is of what has changed since snapshot {}: send it with \
                         that as the base",
                        known.label.name
                    )),
                    None => Error::NoSnapshot(format!(
                        "{id:02x?}, which the stream that was received in part builds upon"
                    )),
                });
            }
        }
        Ok(Sent { label, view, base })
    }

    /// Writes a snapshot as a stream of bytes, which another store reads with [`Kvdb::receive`].
    /// The stream has the whole snapshot or, if `base` is not `None`, the changes since the
    /// snapshot `base`, which the other store must have. `from` describes the part of the same
    /// stream that was already received ([`Kvdb::receiving`]). The stream omits this part. The
    /// statistics include the chunks and tuples of this part, but not its bytes.
    ///
    /// ```
    /// # let (db, other) = (kvdb::Kvdb::in_memory(), kvdb::Kvdb::in_memory());
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// db.snapshot("monday")?;
    /// let mut stream = Vec::new();
    /// db.send("monday", None, &mut stream, None)?;
    /// other.receive(&stream[..], &kvdb::ReceiveOptions::default())?;
    /// assert_eq!(other.open_dictionary("fruit")?.get("apple")?.unwrap(), "red");
    ///
    /// fruit.insert("pear", "green")?;
    /// db.snapshot("tuesday")?;
    /// let mut changes = Vec::new();
    /// db.send("tuesday", Some("monday"), &mut changes, None)?;
    /// other.receive(&changes[..], &kvdb::ReceiveOptions::default())?;
    /// assert_eq!(other.open_dictionary("fruit")?.get("pear")?.unwrap(), "green");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn send(
        &self,
        snapshot: &str,
        base: Option<&str>,
        mut out: impl Write,
        from: Option<&Received>,
    ) -> Result<SendStats> {
        let db = &self.db;
        let Sent { label, view, base } = self.sent(snapshot, base, from)?;
        let begun = from.cloned().unwrap_or_default();
        let dictionaries = view.dictionaries();
        let header = StreamHeader {
            uuid: db.engine.zones.superblock().uuid,
            label,
            base: base.as_ref().map(|(label, _)| (label.id, label.name.clone())),
            first: begun.chunks,
            dictionaries: dictionaries.clone(),
        };
        let stats = SendStats { chunks: begun.chunks, tuples: begun.tuples, bytes: 0 };
        let mut sender =
            Sender { out: &mut out, stats, dictionary: 0, tuples: Vec::new(), bytes: 0 };
        sender.stats.bytes +=
            write_magic(sender.out)? + Frame::Header(Box::new(header)).write(sender.out)?;
        for (n, info) in dictionaries.iter().enumerate().skip(begun.dictionary as usize) {
            sender.dictionary = n as u32;
            // Continue after the last key that was received.
            let last = (begun.chunks > 0 && n == begun.dictionary as usize).then_some(&begun.key);
            match &base {
                None => {
                    let start = last.map(|key| [&key[..], &[0]].concat()).unwrap_or_default();
                    let mut cursor = view.cursor(info.id, &start, b"")?;
                    while let Some(tuple) = cursor.next()? {
                        let (key, value) = tuple.into_parts()?;
                        sender.push(key, Some(value))?;
                    }
                }
                Some((_, base)) => {
                    let before = base.dictionary(&info.name).unwrap_or(crate::DictionaryId(0));
                    for change in base.difference(before, &view, info.id)? {
                        let change = change?;
                        if last.is_none_or(|last| change.key > *last) {
                            sender
                                .push(change.key, change.after.map(|t| t.value()).transpose()?)?;
                        }
                    }
                }
            }
            sender.flush()?;
        }
        let mut stats = sender.stats;
        stats.bytes += Frame::End { chunks: stats.chunks, tuples: stats.tuples }.write(&mut out)?;
        out.flush()?;
        Ok(stats)
    }
}
