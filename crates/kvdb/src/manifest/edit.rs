//! Edits, the contents of the manifest's records. A record is a length (varint), followed by that
//! many bytes of edits. All edits of a record take effect together. A checkpoint is one record of
//! edits that build the whole state from nothing. The edits of kept runs, dictionaries and
//! snapshots occur only in checkpoints, where they allow data that several snapshots and branches
//! share to be written once.
//!
//! The bytes of each edit are specified in `docs/format.md`, section "Manifest".

use bytes::Bytes;
use vt_tree::Seq;
use zones::{Purpose, ZoneId};

use super::dictionaries::{dictionary, put_dictionary, text};
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::Result;
use crate::ids::{Label, RunId};
use crate::journal::Segment;
use crate::log::codec::{Decoder, put_bytes, put_varint};

/// The start of the part of the journal whose commits are not in runs yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalStart {
    /// The number of the segment in which the part begins. The part may also begin in the first
    /// chunk of a later segment.
    pub segment: u64,
    /// The offset of the first chunk in the zone of the segment.
    pub offset: u64,
    /// The position of the first valid record in the stream.
    pub position: u64,
    /// The sequence number up to which commits are in runs.
    pub seq: Seq,
}

/// A run of a dictionary in a snapshot: its level, its number, and its index among the kept runs.
pub(crate) type Kept = (u32, RunId, u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Dictionary(DictionaryInfo),
    DropDictionary(DictionaryId),
    AddRun {
        dict: DictionaryId,
        level: u32,
        id: RunId,
        run: Bytes,
    },
    DropRun {
        dict: DictionaryId,
        id: RunId,
    },
    JournalStart(JournalStart),
    Segment(Segment),
    SegmentEnds {
        number: u64,
        position: u64,
    },
    DropSegments {
        before: u64,
    },
    /// Sets the positions of the streams. All data to which runs refer lies before these positions,
    /// or in other zones.
    Streams(Vec<(Purpose, u64)>),
    /// Records that the store was closed properly and that nothing follows.
    Closed,
    /// Removes a segment that holds no part of the stream.
    ForgetSegment {
        number: u64,
    },
    /// Changes a dictionary's stitching threshold.
    StitchAt {
        dict: DictionaryId,
        stitch_at: u64,
    },
    /// Replaces a dictionary's options, but not its name.
    Options(DictionaryInfo),
    NextIds {
        dictionary: u32,
        run: u64,
        segment: u64,
    },
    /// Makes a snapshot of the current state of the branch's dictionaries with numbers less than
    /// `below`.
    Snapshot {
        label: Label,
        below: u32,
    },
    DropSnapshot(String),
    /// Renames a snapshot. Its clones become clones of the new name.
    RenameSnapshot {
        from: String,
        to: String,
    },
    /// Makes a branch with a copy of each dictionary of the snapshot. The new dictionaries are
    /// numbered from `first` on.
    Clone {
        snapshot: String,
        branch: String,
        first: u32,
    },
    /// Makes a branch without dictionaries. `of` is the snapshot from which the branch was cloned,
    /// or an empty string.
    Branch {
        name: String,
        of: String,
    },
    DropBranch(String),
    /// Limits the number of bytes that a branch may have in addition to shared data; 0 means no
    /// limit.
    Limit {
        branch: String,
        bytes: u64,
    },
    /// Limits the files that a branch may have in addition to shared files to fewer than `below`; 0
    /// means no limit.
    LimitFiles {
        branch: String,
        below: u64,
    },
    /// Replaces the dictionaries of the snapshot's branch with the dictionaries of the snapshot.
    /// Commits to the branch up to `seq` become void.
    RollBack {
        snapshot: String,
        seq: Seq,
    },
    Since {
        dict: DictionaryId,
        seq: Seq,
    },
    /// Replaces the dictionaries of `to` with the dictionaries of `from`, and drops `from`.
    Adopt {
        from: String,
        to: String,
    },
    KeptRun(Bytes),
    KeptDictionary(DictionaryInfo, Vec<Kept>),
    KeptSnapshot(Label, Vec<u64>),
    AddKeptRun(DictionaryId, Kept),
}

impl Edit {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Edit::Dictionary(d) if d.branch.is_empty() => {
                out.push(1);
                put_dictionary(out, d);
            }
            Edit::Dictionary(d) => {
                out.push(14);
                put_bytes(out, d.branch.as_bytes());
                put_dictionary(out, d);
            }
            Edit::DropDictionary(id) => {
                out.push(2);
                put_varint(out, u64::from(id.0));
            }
            Edit::AddRun { dict, level, id, run } => {
                out.push(3);
                put_varint(out, u64::from(dict.0));
                put_varint(out, u64::from(*level));
                put_varint(out, id.0);
                put_bytes(out, run);
            }
            Edit::DropRun { dict, id } => {
                out.push(4);
                put_varint(out, u64::from(dict.0));
                put_varint(out, id.0);
            }
            Edit::JournalStart(start) => {
                out.push(5);
                for v in [start.segment, start.offset, start.position, start.seq] {
                    put_varint(out, v);
                }
            }
            Edit::Segment(s) => {
                out.push(6);
                put_varint(out, s.number);
                put_varint(out, u64::from(s.zone.0));
                out.extend_from_slice(&s.epoch.to_le_bytes());
            }
            Edit::SegmentEnds { number, position } => {
                out.push(7);
                put_varint(out, *number);
                put_varint(out, *position);
            }
            Edit::DropSegments { before } => {
                out.push(8);
                put_varint(out, *before);
            }
            Edit::Closed => out.push(11),
            Edit::ForgetSegment { number } => {
                out.push(12);
                put_varint(out, *number);
            }
            Edit::StitchAt { dict, stitch_at } => {
                out.push(13);
                put_varint(out, u64::from(dict.0));
                put_varint(out, *stitch_at);
            }
            Edit::Options(d) => {
                out.push(27);
                put_dictionary(out, d);
            }
            Edit::Streams(streams) => {
                out.push(9);
                put_varint(out, streams.len() as u64);
                for (purpose, addr) in streams {
                    out.push(stream_number(*purpose));
                    put_varint(out, *addr);
                }
            }
            Edit::NextIds { dictionary, run, segment } => {
                out.push(10);
                put_varint(out, u64::from(*dictionary));
                put_varint(out, *run);
                put_varint(out, *segment);
            }
            _ => self.encode_branching(out),
        }
    }

    /// Encodes an edit of snapshots and branches.
    fn encode_branching(&self, out: &mut Vec<u8>) {
        match self {
            Edit::Snapshot { label, below } => {
                out.push(15);
                label.encode(out);
                put_varint(out, u64::from(*below));
            }
            Edit::DropSnapshot(name) => {
                out.push(16);
                put_bytes(out, name.as_bytes());
            }
            Edit::Clone { snapshot, branch, first } => {
                out.push(17);
                put_bytes(out, snapshot.as_bytes());
                put_bytes(out, branch.as_bytes());
                put_varint(out, u64::from(*first));
            }
            Edit::Branch { name, of } => {
                out.push(18);
                put_bytes(out, name.as_bytes());
                put_bytes(out, of.as_bytes());
            }
            Edit::DropBranch(name) => {
                out.push(19);
                put_bytes(out, name.as_bytes());
            }
            Edit::RollBack { snapshot, seq } => {
                out.push(20);
                put_bytes(out, snapshot.as_bytes());
                put_varint(out, *seq);
            }
            Edit::Since { dict, seq } => {
                out.push(21);
                put_varint(out, u64::from(dict.0));
                put_varint(out, *seq);
            }
            Edit::Adopt { from, to } => {
                out.push(22);
                put_bytes(out, from.as_bytes());
                put_bytes(out, to.as_bytes());
            }
            Edit::RenameSnapshot { from, to } => {
                out.push(28);
                put_bytes(out, from.as_bytes());
                put_bytes(out, to.as_bytes());
            }
            Edit::Limit { branch, bytes } => {
                out.push(29);
                put_bytes(out, branch.as_bytes());
                put_varint(out, *bytes);
            }
            Edit::LimitFiles { branch, below } => {
                out.push(30);
                put_bytes(out, branch.as_bytes());
                put_varint(out, *below);
            }
            Edit::KeptRun(run) => {
                out.push(23);
                put_bytes(out, run);
            }
            Edit::KeptDictionary(d, runs) => {
                out.push(24);
                put_bytes(out, d.branch.as_bytes());
                put_dictionary(out, d);
                put_varint(out, runs.len() as u64);
                runs.iter().for_each(|kept| put_kept(out, kept));
            }
            Edit::KeptSnapshot(label, dictionaries) => {
                out.push(25);
                label.encode(out);
                put_varint(out, dictionaries.len() as u64);
                dictionaries.iter().for_each(|d| put_varint(out, *d));
            }
            Edit::AddKeptRun(dict, kept) => {
                out.push(26);
                put_varint(out, u64::from(dict.0));
                put_kept(out, kept);
            }
            // `encode` handles all other edits.
            _ => {}
        }
    }

    fn decode(record: &Bytes, r: &mut Decoder) -> Result<Edit> {
        Ok(match r.u8()? {
            1 => Edit::Dictionary(dictionary(r, String::new())?),
            2 => Edit::DropDictionary(DictionaryId(r.varint_u32()?)),
            3 => {
                let (dict, level, id) =
                    (DictionaryId(r.varint_u32()?), r.varint_u32()?, RunId(r.varint()?));
                Edit::AddRun { dict, level, id, run: record.slice_ref(r.bytes()?) }
            }
            4 => Edit::DropRun { dict: DictionaryId(r.varint_u32()?), id: RunId(r.varint()?) },
            5 => Edit::JournalStart(JournalStart {
                segment: r.varint()?,
                offset: r.varint()?,
                position: r.varint()?,
                seq: r.varint()?,
            }),
            6 => Edit::Segment(Segment {
                number: r.varint()?,
                zone: ZoneId(r.varint_u32()?),
                epoch: r.u64()?,
                end: None,
            }),
            7 => Edit::SegmentEnds { number: r.varint()?, position: r.varint()? },
            8 => Edit::DropSegments { before: r.varint()? },
            9 => {
                let mut streams = Vec::new();
                for _ in 0..r.count(2)? {
                    let purpose =
                        stream_of(r.u8()?).ok_or_else(|| r.corrupt("a stream is unknown"))?;
                    streams.push((purpose, r.varint()?));
                }
                Edit::Streams(streams)
            }
            10 => Edit::NextIds {
                dictionary: r.varint_u32()?,
                run: r.varint()?,
                segment: r.varint()?,
            },
            11 => Edit::Closed,
            12 => Edit::ForgetSegment { number: r.varint()? },
            13 => Edit::StitchAt { dict: DictionaryId(r.varint_u32()?), stitch_at: r.varint()? },
            14 => Edit::Dictionary(branched(r)?),
            15 => Edit::Snapshot { label: Label::decode(r)?, below: r.varint_u32()? },
            16 => Edit::DropSnapshot(text(r)?),
            17 => Edit::Clone { snapshot: text(r)?, branch: text(r)?, first: r.varint_u32()? },
            18 => Edit::Branch { name: text(r)?, of: text(r)? },
            19 => Edit::DropBranch(text(r)?),
            20 => Edit::RollBack { snapshot: text(r)?, seq: r.varint()? },
            21 => Edit::Since { dict: DictionaryId(r.varint_u32()?), seq: r.varint()? },
            22 => Edit::Adopt { from: text(r)?, to: text(r)? },
            23 => Edit::KeptRun(record.slice_ref(r.bytes()?)),
            24 => {
                let info = branched(r)?;
                let runs = (0..r.count(3)?).map(|_| kept(r)).collect::<Result<_>>()?;
                Edit::KeptDictionary(info, runs)
            }
            25 => {
                let label = Label::decode(r)?;
                let dictionaries = (0..r.count(1)?).map(|_| r.varint()).collect::<Result<_>>()?;
                Edit::KeptSnapshot(label, dictionaries)
            }
            26 => Edit::AddKeptRun(DictionaryId(r.varint_u32()?), kept(r)?),
            27 => Edit::Options(dictionary(r, String::new())?),
            28 => Edit::RenameSnapshot { from: text(r)?, to: text(r)? },
            29 => Edit::Limit { branch: text(r)?, bytes: r.varint()? },
            30 => Edit::LimitFiles { branch: text(r)?, below: r.varint()? },
            kind => {
                return Err(r.corrupt(&format!(
                    "edit {kind} is unknown: a newer version wrote it, or it is damaged"
                )));
            }
        })
    }

    /// Decodes the edits of one record one by one, up to the first error. The record is passed
    /// without its length.
    pub(crate) fn each(record: &Bytes) -> impl Iterator<Item = Result<Edit>> {
        let mut r = Decoder::new(record, "a manifest record");
        // The caller stops after an error.
        std::iter::from_fn(move || (!r.is_empty()).then(|| Edit::decode(record, &mut r)))
    }

    /// Decodes all edits of one record, which is passed without its length.
    pub(crate) fn decode_all(record: &Bytes) -> Result<Vec<Edit>> {
        Edit::each(record).collect()
    }

    /// Encodes the edits of one record without the length of the record.
    pub(crate) fn encode_record(edits: &[Edit]) -> Vec<u8> {
        let mut record = Vec::new();
        edits.iter().for_each(|e| e.encode(&mut record));
        record
    }

    /// Encodes one record, preceded by its length.
    pub(crate) fn encode_all(edits: &[Edit]) -> Vec<u8> {
        Edit::with_length(&Edit::encode_record(edits))
    }

    /// Returns an encoded record, preceded by its length.
    pub(crate) fn with_length(record: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(record.len() + 4);
        put_bytes(&mut out, record);
        out
    }
}

fn put_kept(out: &mut Vec<u8>, (level, id, kept): &Kept) {
    put_varint(out, u64::from(*level));
    put_varint(out, id.0);
    put_varint(out, *kept);
}

fn branched(r: &mut Decoder) -> Result<DictionaryInfo> {
    let branch = text(r)?;
    dictionary(r, branch)
}

fn kept(r: &mut Decoder) -> Result<Kept> {
    Ok((r.varint_u32()?, RunId(r.varint()?), r.varint()?))
}

fn stream_number(purpose: Purpose) -> u8 {
    match purpose {
        Purpose::Superblock => 0,
        Purpose::Journal => 1,
        Purpose::Manifest => 2,
        Purpose::Tuples => 3,
        Purpose::Index => 4,
        Purpose::Pages => 5,
    }
}

fn stream_of(number: u8) -> Option<Purpose> {
    Purpose::ALL.into_iter().find(|&p| stream_number(p) == number)
}

#[cfg(test)]
mod tests;
