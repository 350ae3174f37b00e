//! The records of the journal. Each commit is one record. A number is a record with the number of
//! the next change. A mark is a record without content, which is written so that the header of its
//! chunk can state that everything before the chunk was synced. In the stream a record is a length
//! (varint), followed by that many bytes. A record may span chunks and segments. Only a complete
//! record is valid, so a commit is atomic.
//!
//! ```text
//! u8  kind: 1, a number:   u64 sequence number of the change that follows
//!           2, a mark:     nothing
//!           3, a commit:   varint number of changes, then each: u8 op, change; a value has its
//!                          length (varint) in front
//!           4, runs bound: see below
//!           5, a snapshot: the label of one that is made here (see the manifest), varint below: of
//!                          dictionaries with smaller numbers
//!           16 + op, a commit of one change: change; its value, or the end of its range, is the
//!                          rest of the record
//!
//! change: varint  dictionary
//!         bytes   key (op 4: start)
//!         op 1, put: value
//!         op 2, put of a value that lies elsewhere: u64 address, u32 length, u32 CRC-32C
//!         op 3, delete: nothing
//!         op 4, delete range: end
//!         op 5, put of a value that lies elsewhere, perhaps compressed: u64 address, u32 length,
//!               u32 CRC-32C of the bytes there, u32 their number, u8 codec
//!         op 6, update of a value: the update (see the VT-tree's `update`), framed as a value is
//! ```
//!
//! A record of bound runs is the commit of a large transaction, and takes one sequence number. It
//! consists of a varint number of places, and for each place the varint address at which a stream
//! continued after the runs; then of a varint number of dictionaries, and for each dictionary a
//! varint dictionary, a varint number of runs, and the `bytes` of each run, the newest run first.
//! The runs are durable before the record is written, and lie above all earlier data.
//!
//! `bytes` stands for a varint length and then that many bytes. Changes are numbered consecutively
//! in the order of the stream, beginning with the number that the manifest has for the start of the
//! journal. Each write to the device begins with a number record, which must agree with this count,
//! unless the write continues a record in the middle of which the last write ended.
//!
//! The record of a value that has no place yet has space for the reference, which is filled in
//! before the record is written (BetrFS 0.2, §3: the journal is late-binding). A reference to a
//! value of zero bytes means that the value was discarded because a later change hides it. The
//! reference then has a position instead of the address, and the later change lies before that
//! position.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Compression, ExtentRef, Run, Seq, Update, Value};
use zones::Purpose;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::Label;
use crate::log::codec::{Decoder, put_bytes, put_varint};

const NUMBER: u8 = 1;
const MARK: u8 = 2;
const COMMIT: u8 = 3;
const BIND: u8 = 4;
const SNAPSHOT: u8 = 5;
const SINGLE: u8 = 16;
const PUT: u8 = 1;
const PUT_EXTENT: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const PUT_PACKED: u8 = 5;
const UPDATE: u8 = 6;

/// The size of a reference to an extent, in bytes.
const REFERENCE: usize = 16;
/// The size of a reference to a value that may be compressed, in bytes.
const PACKED_REFERENCE: usize = 21;

/// Returns the size of a reference to a value that is compressed with `codec` if this makes the
/// value smaller.
pub(crate) fn reference_len(codec: Compression) -> usize {
    if codec == Compression::None { REFERENCE } else { PACKED_REFERENCE }
}

/// A change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put(Bytes, Value),
    /// The put of a large value, which gets its place when its record is written, and is compressed
    /// if this makes the value smaller. The value shares its buffer with other values. This form
    /// never occurs in a journal.
    PutDeferred(Bytes, Bytes, Compression),
    /// The put of a discarded value, which is hidden by a change before this position of the
    /// journal's stream. This form occurs only in records that were read from a journal.
    PutDiscarded(Bytes, u64),
    Update(Bytes, Update),
    Delete(Bytes),
    DeleteRange(Bytes, Bytes),
}

/// The changes of a commit, in order.
pub(crate) type Ops = Vec<(DictionaryId, Op)>;

impl Op {
    fn code(&self) -> u8 {
        match self {
            Op::Put(_, Value::Inline(_)) => PUT,
            Op::Put(_, Value::Extent(ExtentRef { codec, .. })) | Op::PutDeferred(_, _, codec) => {
                put_extent(*codec)
            }
            Op::PutDiscarded(..) => PUT_EXTENT,
            Op::Update(..) => UPDATE,
            Op::Delete(_) => DELETE,
            Op::DeleteRange(..) => DELETE_RANGE,
        }
    }

    /// Returns the key that is put or deleted, or the start of the range.
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Op::Put(k, _)
            | Op::PutDeferred(k, ..)
            | Op::PutDiscarded(k, _)
            | Op::Update(k, _)
            | Op::Delete(k)
            | Op::DeleteRange(k, _) => k,
        }
    }

    /// Returns the size of the keys and the value as passed by the caller, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Op::Put(k, v) => k.len() + v.len(),
            Op::PutDeferred(k, v, _) => k.len() + v.len(),
            Op::Update(k, update) => k.len() + update.bytes().len(),
            Op::Delete(k) | Op::PutDiscarded(k, _) => k.len(),
            Op::DeleteRange(s, e) => s.len() + e.len(),
        }
    }

    /// Returns the position that the journal must reach for this change to be valid, or 0 if the
    /// change is valid in any case.
    pub(crate) fn hidden_before(&self) -> u64 {
        match self {
            Op::PutDiscarded(_, until) => *until,
            _ => 0,
        }
    }

    /// Returns the value, the update or the end of the range that the record contains.
    fn payload(&self) -> Option<&Bytes> {
        match self {
            Op::Put(_, Value::Inline(v)) => Some(v),
            Op::Update(_, update) => Some(update.bytes()),
            Op::DeleteRange(_, end) => Some(end),
            Op::Put(_, Value::Extent(_))
            | Op::PutDeferred(..)
            | Op::PutDiscarded(..)
            | Op::Delete(_) => None,
        }
    }

    /// Returns the size of the reference in the record, in bytes.
    fn reference_len(&self) -> usize {
        match self {
            Op::Put(_, Value::Extent(ExtentRef { codec, .. })) | Op::PutDeferred(_, _, codec) => {
                reference_len(*codec)
            }
            Op::PutDiscarded(..) => REFERENCE,
            _ => 0,
        }
    }

    /// Returns the size in bytes that the change takes in the record after its code. `alone` is
    /// `true` if the record holds no other change.
    fn size(&self, dict: DictionaryId, alone: bool) -> usize {
        let framed = |len: usize| varint_len(len as u64) + len;
        let payload = self.payload().map_or(0, |p| if alone { p.len() } else { framed(p.len()) });
        varint_len(u64::from(dict.0)) + framed(self.key().len()) + payload + self.reference_len()
    }

    fn encode(&self, dict: DictionaryId, alone: bool, out: &mut Vec<u8>) {
        put_varint(out, u64::from(dict.0));
        put_bytes(out, self.key());
        match self {
            Op::Put(_, Value::Extent(e)) => {
                out.extend_from_slice(&reference(e)[..self.reference_len()])
            }
            Op::PutDeferred(..) => {
                out.extend_from_slice(&[0; PACKED_REFERENCE][..self.reference_len()])
            }
            Op::PutDiscarded(_, until) => {
                out.extend_from_slice(&until.to_le_bytes());
                out.extend_from_slice(&[0; REFERENCE - 8]);
            }
            _ => {}
        }
        match self.payload() {
            Some(payload) if alone => out.extend_from_slice(payload),
            Some(payload) => put_bytes(out, payload),
            None => {}
        }
    }
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_extent(codec: Compression) -> u8 {
    if codec == Compression::None { PUT_EXTENT } else { PUT_PACKED }
}

/// Encodes a reference. The first [`REFERENCE`] bytes are a complete reference to an uncompressed
/// value.
fn reference(e: &ExtentRef) -> [u8; PACKED_REFERENCE] {
    let mut out = [0; PACKED_REFERENCE];
    out[..8].copy_from_slice(&e.addr.to_le_bytes());
    out[8..12].copy_from_slice(&e.len.to_le_bytes());
    out[12..16].copy_from_slice(&e.crc.to_le_bytes());
    out[16..20].copy_from_slice(&e.stored.to_le_bytes());
    out[20] = e.codec.code();
    out
}

/// Fills in, at `at` in `stream`, the reference of a value that has got its place. See [`encode`].
/// `codec` is the codec that was chosen for the value, even if the value is stored uncompressed
/// because compression did not make it smaller.
pub(crate) fn place(stream: &mut [u8], at: usize, e: &ExtentRef, codec: Compression) {
    let len = reference_len(codec);
    stream[at..at + len].copy_from_slice(&reference(e)[..len]);
}

/// Marks the value whose reference is at `at` in `stream` as discarded: a change before position
/// `until` of the stream hides the value. The rest of the reference is zeros.
pub(crate) fn hide(stream: &mut [u8], at: usize, until: u64) {
    stream[at..at + 8].copy_from_slice(&until.to_le_bytes());
}

/// Returns the size of the record of `changes` in bytes, including the length in front of the
/// record.
pub(crate) fn size(changes: &[(DictionaryId, Op)]) -> usize {
    let inside = inside(changes);
    varint_len(inside as u64) + inside
}

/// Returns the size of the record of `changes` in bytes, without the length in front of the record.
fn inside(changes: &[(DictionaryId, Op)]) -> usize {
    match changes {
        [(dict, op)] => 1 + op.size(*dict, true),
        _ => {
            let all: usize = changes.iter().map(|(dict, op)| 1 + op.size(*dict, false)).sum();
            1 + varint_len(changes.len() as u64) + all
        }
    }
}

/// Appends the record of `changes`, preceded by its length, to `out`. `deferred` is called for each
/// unplaced value with the offset of its reference in `out`.
pub(crate) fn encode(
    changes: &[(DictionaryId, Op)],
    out: &mut Vec<u8>,
    mut deferred: impl FnMut(usize),
) {
    let mut encode = |dict: DictionaryId, op: &Op, alone: bool, out: &mut Vec<u8>| {
        op.encode(dict, alone, out);
        if matches!(op, Op::PutDeferred(..)) {
            deferred(out.len() - op.reference_len());
        }
    };
    put_varint(out, inside(changes) as u64);
    if let [(dict, op)] = changes {
        out.push(SINGLE + op.code());
        encode(*dict, op, true, out);
        return;
    }
    out.push(COMMIT);
    put_varint(out, changes.len() as u64);
    for (dict, op) in changes {
        out.push(op.code());
        encode(*dict, op, false, out);
    }
}

/// The value in the record of a single put.
#[derive(Clone, Copy)]
pub(crate) enum PutValue<'a> {
    Inline(&'a [u8]),
    /// A value without a place. The last [`reference_len`] bytes of the record are space for its
    /// reference.
    Deferred(Compression),
}

impl PutValue<'_> {
    fn code(self) -> u8 {
        match self {
            PutValue::Inline(_) => PUT,
            PutValue::Deferred(codec) => put_extent(codec),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            PutValue::Inline(value) => value,
            PutValue::Deferred(codec) => &[0; PACKED_REFERENCE][..reference_len(*codec)],
        }
    }
}

/// Returns the size of the record of a single put in bytes, without the length in front of the
/// record.
fn put_inside(dict: DictionaryId, key: usize, value: PutValue) -> usize {
    1 + varint_len(u64::from(dict.0)) + varint_len(key as u64) + key + value.bytes().len()
}

/// Returns the size of the record of a single put in bytes, including the length in front of the
/// record.
pub(crate) fn put_size(dict: DictionaryId, key: usize, value: PutValue) -> usize {
    let inside = put_inside(dict, key, value);
    varint_len(inside as u64) + inside
}

/// Appends the record of a single put, preceded by its length, to `out`. Its bytes are the same as
/// those that [`encode`] appends.
pub(crate) fn encode_put(dict: DictionaryId, key: &[u8], value: PutValue, out: &mut Vec<u8>) {
    put_varint(out, put_inside(dict, key.len(), value) as u64);
    out.push(SINGLE + value.code());
    put_varint(out, u64::from(dict.0));
    put_bytes(out, key);
    out.extend_from_slice(value.bytes());
}

/// Returns a mark, preceded by its length.
pub(crate) fn mark() -> [u8; 2] {
    [1, MARK]
}

/// The size of a number record in bytes, including its length.
pub(crate) const NUMBER_SIZE: usize = 10;

/// Returns the record with the number of the next change, preceded by its length.
pub(crate) fn number(next: Seq) -> [u8; NUMBER_SIZE] {
    let mut out = [0; NUMBER_SIZE];
    out[..2].copy_from_slice(&[NUMBER_SIZE as u8 - 1, NUMBER]);
    out[2..].copy_from_slice(&next.to_le_bytes());
    out
}

/// Returns the record that binds runs of dictionaries, preceded by its length. `places` are the
/// addresses at which the streams continue after the runs.
pub(crate) fn bind(places: &[(Purpose, u64)], runs: &[(DictionaryId, Vec<Arc<Run>>)]) -> Vec<u8> {
    let mut inside = vec![BIND];
    put_varint(&mut inside, places.len() as u64);
    places.iter().for_each(|(_, addr)| put_varint(&mut inside, *addr));
    put_varint(&mut inside, runs.len() as u64);
    for (dict, runs) in runs {
        put_varint(&mut inside, u64::from(dict.0));
        put_varint(&mut inside, runs.len() as u64);
        for run in runs {
            let mut bytes = Vec::new();
            run.encode(&mut bytes);
            put_bytes(&mut inside, &bytes);
        }
    }
    let mut out = Vec::with_capacity(inside.len() + 5);
    put_varint(&mut out, inside.len() as u64);
    out.extend_from_slice(&inside);
    out
}

/// The runs that the commit of a large transaction has bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The addresses at which streams continued after the runs.
    pub places: Vec<u64>,
    /// The roots of the runs of each dictionary, the newest first.
    pub runs: Vec<(DictionaryId, Vec<Bytes>)>,
}

/// Returns the record of a snapshot that is made at this point, preceded by its length.
pub(crate) fn snapshot(label: &Label, below: u32) -> Vec<u8> {
    let mut inside = vec![SNAPSHOT];
    label.encode(&mut inside);
    put_varint(&mut inside, u64::from(below));
    let mut out = Vec::new();
    put_bytes(&mut out, &inside);
    out
}

/// A decoded record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Number(Seq),
    Mark,
    Commit(Ops),
    Bind(Bound),
    /// A snapshot of all changes before this record, in dictionaries with numbers less than
    /// `below`.
    Snapshot {
        label: Label,
        below: u32,
    },
}

/// Decodes a record, which is passed without its length. Keys and values share the record's memory.
pub(crate) fn decode(record: &Bytes) -> Result<Record> {
    let mut r = Decoder::new(record, "a journal record");
    let kind = r.u8()?;
    let decoded = match kind {
        NUMBER => Record::Number(r.u64()?),
        MARK => Record::Mark,
        SNAPSHOT => Record::Snapshot { label: Label::decode(&mut r)?, below: r.varint_u32()? },
        COMMIT => {
            let count = r.count(3)?;
            let mut changes = Vec::with_capacity(count);
            for _ in 0..count {
                let code = r.u8()?;
                changes.push(change(record, &mut r, code, false)?);
            }
            Record::Commit(changes)
        }
        BIND => {
            let mut bound = Bound::default();
            for _ in 0..r.count(1)? {
                bound.places.push(r.varint()?);
            }
            for _ in 0..r.count(2)? {
                let dict = DictionaryId(r.varint_u32()?);
                let mut runs = Vec::new();
                for _ in 0..r.count(1)? {
                    runs.push(record.slice_ref(r.bytes()?));
                }
                bound.runs.push((dict, runs));
            }
            Record::Bind(bound)
        }
        _ if kind > SINGLE => Record::Commit(vec![change(record, &mut r, kind - SINGLE, true)?]),
        _ => {
            return Err(r.corrupt(&format!(
                "kind {kind} is unknown: a newer version wrote it, or it is damaged"
            )));
        }
    };
    if !r.is_empty() {
        return Err(r.corrupt("something follows the last change"));
    }
    Ok(decoded)
}

fn change(record: &Bytes, r: &mut Decoder, code: u8, alone: bool) -> Result<(DictionaryId, Op)> {
    let dict = DictionaryId(r.varint_u32()?);
    let key = record.slice_ref(r.bytes()?);
    let payload = |r: &mut Decoder| {
        Ok::<_, crate::Error>(record.slice_ref(if alone { r.rest() } else { r.bytes()? }))
    };
    let op = match code {
        PUT => Op::Put(key, Value::Inline(payload(r)?)),
        PUT_EXTENT => match (r.u64()?, r.u32()?, r.u32()?) {
            (until, 0, 0) => Op::PutDiscarded(key, until),
            (addr, len, crc) => Op::Put(key, Value::Extent(ExtentRef::plain(addr, len, crc))),
        },
        PUT_PACKED => {
            let (addr, len, crc, stored) = (r.u64()?, r.u32()?, r.u32()?, r.u32()?);
            if (len, crc, stored) == (0, 0, 0) {
                r.u8()?;
                return Ok((dict, Op::PutDiscarded(key, addr)));
            }
            let e = match Compression::of_code(r.u8()?) {
                Some(Compression::None) if stored == len => Some(ExtentRef::plain(addr, len, crc)),
                Some(codec) => ExtentRef::packed(addr, len, stored, crc, codec),
                None => None,
            };
            Op::Put(
                key,
                Value::Extent(e.ok_or_else(|| {
                    r.corrupt("a compressed value has an impossible length or codec")
                })?),
            )
        }
        UPDATE => Op::Update(key, Update::decode(&payload(r)?)?),
        DELETE => Op::Delete(key),
        DELETE_RANGE => Op::DeleteRange(key, payload(r)?),
        _ => return Err(r.corrupt("a change has an unknown kind")),
    };
    Ok((dict, op))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Ops {
        let d = DictionaryId(300);
        vec![
            (d, Op::Put("key".into(), Value::Inline("value".into()))),
            (
                d,
                Op::Put(
                    "big".into(),
                    Value::Extent(ExtentRef::plain(1 << 40, 70_000, 0xdead_beef)),
                ),
            ),
            (
                d,
                Op::Put(
                    "packed".into(),
                    Value::Extent(
                        ExtentRef::packed(1 << 40, 70_000, 512, 7, Compression::Zstd).unwrap(),
                    ),
                ),
            ),
            (DictionaryId(1), Op::Delete(Bytes::new())),
            (d, Op::PutDiscarded("gone".into(), u64::MAX)),
            (d, Op::Update("sum".into(), Update::add(-7).then(&Update::append(b"x").unwrap()))),
            (DictionaryId(1), Op::DeleteRange("a".into(), "b".into())),
        ]
    }

    /// Returns the encoded record without its length, after checking the length.
    fn encoded(changes: &[(DictionaryId, Op)]) -> Bytes {
        let mut bytes = Vec::new();
        encode(changes, &mut bytes, |_| {});
        let mut rest = &bytes[..];
        let len = zones::varint::get_u64(&mut rest).unwrap();
        assert_eq!(len as usize, rest.len());
        Bytes::copy_from_slice(rest)
    }

    #[test]
    fn a_record_survives_the_way_there_and_back() {
        assert_eq!(decode(&encoded(&sample())).unwrap(), Record::Commit(sample()));
        for change in sample() {
            assert_eq!(
                decode(&encoded(std::slice::from_ref(&change))).unwrap(),
                Record::Commit(vec![change])
            );
        }
        assert_eq!(decode(&Bytes::copy_from_slice(&mark()[1..])).unwrap(), Record::Mark);
        assert_eq!(decode(&Bytes::copy_from_slice(&number(77)[1..])).unwrap(), Record::Number(77));
    }

    #[test]
    fn one_put_is_the_same_with_and_without_a_batch() {
        let (d, key) = (DictionaryId(300), Bytes::from("key"));
        for len in [0, 1, 100, 127, 128, 5000] {
            let value = Bytes::from(vec![3; len]);
            let deferred = |codec| {
                (Op::PutDeferred(key.clone(), value.clone(), codec), PutValue::Deferred(codec))
            };
            let inline =
                (Op::Put(key.clone(), Value::Inline(value.clone())), PutValue::Inline(&value));
            for (op, value) in [inline, deferred(Compression::None), deferred(Compression::Lz4)] {
                let (mut one, mut other) = (Vec::new(), Vec::new());
                encode(&[(d, op)], &mut one, |_| {});
                encode_put(d, &key, value, &mut other);
                assert_eq!(one, other);
                assert_eq!(put_size(d, key.len(), value), one.len());
            }
        }
    }

    #[test]
    fn a_small_put_costs_four_bytes() {
        let put = (
            DictionaryId(1),
            Op::Put(Bytes::from(vec![1; 16]), Value::Inline(Bytes::from(vec![2; 64]))),
        );
        let mut bytes = Vec::new();
        encode(&[put], &mut bytes, |_| {});
        assert_eq!(bytes.len(), 16 + 64 + 4);
    }

    #[test]
    fn a_value_gets_its_place_in_a_record_that_is_there_already() {
        let plain = ExtentRef::plain(8 << 20, 3, 9);
        let packed = ExtentRef::packed(8 << 20, 3, 2, 9, Compression::Lz4).unwrap();
        let (d, key) = (DictionaryId(1), Bytes::from("k"));
        let other = (d, Op::Put("l".into(), Value::Inline("v".into())));
        let ways =
            [(plain, Compression::None), (plain, Compression::Lz4), (packed, Compression::Lz4)];
        for (others, (extent, codec)) in
            [vec![], vec![other]].into_iter().flat_map(|o| ways.map(|w| (o.clone(), w)))
        {
            let mut changes = vec![(d, Op::PutDeferred(key.clone(), "abc".into(), codec))];
            changes.extend(others.clone());
            let (mut bytes, mut places) = (vec![5; 7], Vec::new());
            encode(&changes, &mut bytes, |at| places.push(at));
            let mut hidden = bytes.clone();
            places.iter().for_each(|&at| hide(&mut hidden, at, 77));
            places.iter().for_each(|&at| place(&mut bytes, at, &extent, codec));
            changes[0].1 = Op::Put(key.clone(), Value::Extent(extent));
            let says = |bytes: Vec<u8>| decode(&Bytes::from(bytes).slice(8..)).unwrap();
            assert_eq!(says(bytes), Record::Commit(changes.clone()));
            changes[0].1 = Op::PutDiscarded(key.clone(), 77);
            assert_eq!(says(hidden), Record::Commit(changes));
        }
    }

    #[test]
    fn any_other_bytes_are_an_error_or_another_record_but_no_panic() {
        let singles = sample().into_iter().map(|c| encoded(&[c]));
        for good in singles.chain([encoded(&sample())]) {
            for len in 0..good.len() {
                let _ = decode(&good.slice(..len));
            }
            for at in 0..good.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bad = good.to_vec();
                    bad[at] = value;
                    let _ = decode(&Bytes::from(bad));
                }
            }
        }
        let whole = encoded(&sample());
        (0..whole.len()).for_each(|len| assert!(decode(&whole.slice(..len)).is_err()));
    }
}
