//! What the journal says: one record for each commit; numbers, which say where the count of changes
//! stands; and marks, which only let the chunk that carries them tell that all before it was
//! synced. In the stream a record is a length (varint) and that many bytes; it may run over chunks
//! and segments. Nothing of a record counts until all of it is there, and so a commit happens whole
//! or not at all.
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
//! Runs bound are a large transaction's commit, one change by number: varint number of places, then
//! each: varint address where a stream went on behind the runs; varint number of dictionaries, then
//! each: varint dictionary, varint number of runs, then each, the newest first: bytes run. They are
//! durable before the record is written, and lie above everything that stands before them.
//!
//! (`bytes`: a varint length, then the bytes.) Changes are numbered one by one in the order of the
//! stream, from the position where the manifest lets the journal begin. A write to the device
//! begins with a number, which must agree, unless it goes on where the last one was cut off.
//!
//! A value on its way to its place has room in its record for the reference, which is filled in
//! before the record is written (BetrFS 0.2, §3: the journal is late-binding). A reference to a
//! value of no bytes says that the value was discarded: a later change that the journal has before
//! the position in place of the address hides it.

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

/// Bytes of a reference to an extent.
const REFERENCE: usize = 16;
/// Bytes of a reference where values may be compressed.
const PACKED_REFERENCE: usize = 21;

/// Bytes of a reference to a value that is stored so, if it gets smaller.
pub(crate) fn reference_len(codec: Compression) -> usize {
    if codec == Compression::None { REFERENCE } else { PACKED_REFERENCE }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put(Bytes, Value),
    /// A large value that gets its place when its record is written, compressed so if it gets
    /// smaller; it shares its buffer with others. Never read from a journal.
    PutDeferred(Bytes, Bytes, Compression),
    /// The put of a value that was discarded: a change before this position of the journal's stream
    /// hides it. Only read from a journal.
    PutDiscarded(Bytes, u64),
    Update(Bytes, Update),
    Delete(Bytes),
    DeleteRange(Bytes, Bytes),
}

/// A commit's changes, in order.
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

    /// What is put or deleted; the start of a range.
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

    /// Bytes of keys and value as given.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Op::Put(k, v) => k.len() + v.len(),
            Op::PutDeferred(k, v, _) => k.len() + v.len(),
            Op::Update(k, update) => k.len() + update.bytes().len(),
            Op::Delete(k) | Op::PutDiscarded(k, _) => k.len(),
            Op::DeleteRange(s, e) => s.len() + e.len(),
        }
    }

    /// The position that the journal must reach for this change to count; 0: any.
    pub(crate) fn hidden_before(&self) -> u64 {
        match self {
            Op::PutDiscarded(_, until) => *until,
            _ => 0,
        }
    }

    /// The value, the update or the end of the range that lies in the record.
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

    /// Bytes of the reference that stands in the record.
    fn reference_len(&self) -> usize {
        match self {
            Op::Put(_, Value::Extent(ExtentRef { codec, .. })) | Op::PutDeferred(_, _, codec) => {
                reference_len(*codec)
            }
            Op::PutDiscarded(..) => REFERENCE,
            _ => 0,
        }
    }

    /// Bytes in the record behind the code. `alone`: the record holds no other change.
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

/// The first [`REFERENCE`] bytes say all of what is not compressed.
fn reference(e: &ExtentRef) -> [u8; PACKED_REFERENCE] {
    let mut out = [0; PACKED_REFERENCE];
    out[..8].copy_from_slice(&e.addr.to_le_bytes());
    out[8..12].copy_from_slice(&e.len.to_le_bytes());
    out[12..16].copy_from_slice(&e.crc.to_le_bytes());
    out[16..20].copy_from_slice(&e.stored.to_le_bytes());
    out[20] = e.codec.code();
    out
}

/// Fills in the reference of a value that has its place now; it stands in `stream` at `at`, see
/// [`encode`]. `codec`: how it would have been compressed if that had made it smaller.
pub(crate) fn place(stream: &mut [u8], at: usize, e: &ExtentRef, codec: Compression) {
    let len = reference_len(codec);
    stream[at..at + len].copy_from_slice(&reference(e)[..len]);
}

/// Says that the value whose reference would stand in `stream` at `at` was discarded: what is in
/// the stream before position `until` hides it. The rest of the reference is zeros.
pub(crate) fn hide(stream: &mut [u8], at: usize, until: u64) {
    stream[at..at + 8].copy_from_slice(&until.to_le_bytes());
}

/// Bytes of the record of `changes`, its length included.
pub(crate) fn size(changes: &[(DictionaryId, Op)]) -> usize {
    let inside = inside(changes);
    varint_len(inside as u64) + inside
}

/// Bytes of the record of `changes`, without its length.
fn inside(changes: &[(DictionaryId, Op)]) -> usize {
    match changes {
        [(dict, op)] => 1 + op.size(*dict, true),
        _ => {
            let all: usize = changes.iter().map(|(dict, op)| 1 + op.size(*dict, false)).sum();
            1 + varint_len(changes.len() as u64) + all
        }
    }
}

/// Appends the record of `changes`, its length in front, to `out`. For each unplaced value,
/// `deferred` is told where its reference will stand in `out`.
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

/// What stands in the record of one put for its value.
#[derive(Clone, Copy)]
pub(crate) enum PutValue<'a> {
    Inline(&'a [u8]),
    /// It is unplaced; the last [`reference_len`] bytes of the record are where its reference will
    /// stand.
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

/// Bytes of the record of one put, without its length.
fn put_inside(dict: DictionaryId, key: usize, value: PutValue) -> usize {
    1 + varint_len(u64::from(dict.0)) + varint_len(key as u64) + key + value.bytes().len()
}

/// Bytes of the record of one put, its length included.
pub(crate) fn put_size(dict: DictionaryId, key: usize, value: PutValue) -> usize {
    let inside = put_inside(dict, key, value);
    varint_len(inside as u64) + inside
}

/// Appends the record of one put, its length in front, to `out`; the bytes are those that
/// [`encode`] makes of it.
pub(crate) fn encode_put(dict: DictionaryId, key: &[u8], value: PutValue, out: &mut Vec<u8>) {
    put_varint(out, put_inside(dict, key.len(), value) as u64);
    out.push(SINGLE + value.code());
    put_varint(out, u64::from(dict.0));
    put_bytes(out, key);
    out.extend_from_slice(value.bytes());
}

/// A mark, its length in front.
pub(crate) fn mark() -> [u8; 2] {
    [1, MARK]
}

/// Bytes of a number, its length included.
pub(crate) const NUMBER_SIZE: usize = 10;

/// The number of the change that follows, its length in front.
pub(crate) fn number(next: Seq) -> [u8; NUMBER_SIZE] {
    let mut out = [0; NUMBER_SIZE];
    out[..2].copy_from_slice(&[NUMBER_SIZE as u8 - 1, NUMBER]);
    out[2..].copy_from_slice(&next.to_le_bytes());
    out
}

/// The record that binds runs of dictionaries, its length in front. `places`: where the streams go
/// on.
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

/// Runs that a transaction's commit bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Where streams went on behind them.
    pub places: Vec<u64>,
    /// Roots of the runs of each dictionary, newest first.
    pub runs: Vec<(DictionaryId, Vec<Bytes>)>,
}

/// The record of a snapshot that is made at this point, its length in front.
pub(crate) fn snapshot(label: &Label, below: u32) -> Vec<u8> {
    let mut inside = vec![SNAPSHOT];
    label.encode(&mut inside);
    put_varint(&mut inside, u64::from(below));
    let mut out = Vec::new();
    put_bytes(&mut out, &inside);
    out
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Number(Seq),
    Mark,
    Commit(Ops),
    Bind(Bound),
    /// All before it is a snapshot; `below`: of dictionaries with smaller numbers.
    Snapshot {
        label: Label,
        below: u32,
    },
}

/// Decodes what stands behind the length. Keys and values share the record's memory.
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

    /// The record without its length, which is checked.
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
