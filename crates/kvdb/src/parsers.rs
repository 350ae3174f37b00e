//! Entry points to every parser of this crate, for the fuzz targets under `fuzz/` and the test
//! below. Each entry point takes any bytes and must neither panic nor run forever. It corrects the
//! checksums in the bytes, so that the code after the check is reached. Normal builds do not
//! contain these entry points.

use std::hint::black_box;

use bytes::Bytes;
use zones::crc32c;

use crate::journal::record::{self, Record};
use crate::log::chunk::{self, HEADER, Header, Kind, MAX_PIECE};
use crate::log::records::Records;
use crate::manifest::{Edit, ManifestState, Root};
use crate::remote;
use crate::snapshots::Received;
use crate::snapshots::stream::Frame;
use crate::transactions::durable;

/// Parses the root in the superblock.
pub fn root(data: &[u8]) {
    let Ok(root) = Root::decode(data) else { return };
    black_box((root.parts(), root.uses().total_bytes()));
    assert_eq!(Root::decode(&root.encode()).ok(), Some(root));
}

/// Parses a record of the manifest and applies its edits. If the resulting state is written as a
/// checkpoint, reading the checkpoint must result in the same state.
pub fn manifest(data: &[u8]) {
    let record = Bytes::copy_from_slice(data);
    let Ok(edits) = Edit::decode_all(&record) else { return };
    for edit in &edits {
        let mut out = Vec::new();
        edit.encode(&mut out);
        assert_eq!(Edit::decode_all(&out.into()).ok().as_deref(), Some(std::slice::from_ref(edit)));
    }
    let mut state = ManifestState::new();
    if state.apply_all(edits).is_err() {
        return;
    }
    // Entries of `since` up to the journal's start have no effect, since the journal has no older
    // changes.
    let start = state.start;
    state.since.retain(|_, since| *since > start.seq);
    let mut again = ManifestState::new();
    if again.apply_all(state.checkpoint()).is_ok() {
        assert_eq!(again.dictionaries, state.dictionaries);
        assert_eq!(again.snapshots, state.snapshots);
        assert_eq!(again.since, state.since);
    }
}

/// Parses a record of the journal, or of a durable transaction's log.
pub fn journal(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(Record::Commit(changes)) = record::decode(&bytes) else { return };
    black_box(changes.iter().map(|(_, op)| op.bytes() + op.key().len()).sum::<usize>());
    let mut out = Vec::new();
    record::encode(&changes, &mut out, |_| {});
    assert_eq!(out.len(), record::size(&changes));
    let mut rest = &out[..];
    let inside =
        zones::varint::get_bytes(&mut rest).expect("what was written has its length in front");
    assert_eq!(record::decode(&Bytes::copy_from_slice(inside)).ok(), Some(Record::Commit(changes)));
}

/// Parses the head of a durable transaction's log.
pub fn transaction_log(data: &[u8]) {
    let Ok(options) = durable::decode(data) else { return };
    black_box(durable::encode(&options));
}

/// Parses frames of each kind of a sent snapshot, and the progress of a receive.
pub fn stream(data: &[u8]) {
    let payload = Bytes::copy_from_slice(data);
    for kind in 0..5 {
        let Ok(frame) = Frame::decode(kind, &payload) else { continue };
        let mut out = Vec::new();
        frame.write(&mut out).expect("memory does not fail");
        assert_eq!(Frame::read(&mut &out[..]).ok(), Some(frame));
    }
    black_box(Frame::read(&mut &data[..]).is_ok());
    if let Ok(received) = Received::from_bytes(data) {
        assert_eq!(Received::from_bytes(&received.to_bytes()).ok(), Some(received));
    }
}

/// Parses a chunk of the journal or the manifest with corrected checksums. Then parses its piece as
/// records, which must be the same however the piece is divided.
pub fn chunk(data: &[u8]) {
    let (head, piece) = data.split_at(data.len().min(HEADER));
    for (kind, magic) in [(Kind::Journal, b"KVJC"), (Kind::Manifest, b"KVMC")] {
        let mut bytes = vec![0; HEADER];
        bytes[..head.len()].copy_from_slice(head);
        bytes.extend_from_slice(&piece[..piece.len().min(MAX_PIECE)]);
        bytes.resize(bytes.len().next_multiple_of(zones::SECTOR as usize), 0);
        bytes[..4].copy_from_slice(magic);
        let body = crc32c(&bytes[HEADER..]);
        bytes[32..36].copy_from_slice(&body.to_le_bytes());
        let sum = crc32c(&bytes[..36]);
        bytes[36..40].copy_from_slice(&sum.to_le_bytes());
        if let Some(header) = Header::read(kind, &bytes) {
            assert!(header.size() >= chunk::size(1));
            black_box(header.piece(&bytes).map(<[u8]>::len));
        }
    }
    let (mut whole, mut pieces) = (Records::new(7), Records::new(7));
    let (mut found, mut again) = (Vec::new(), Vec::new());
    let mut each = |end, record: Bytes| {
        found.push((end, record));
        Ok(true)
    };
    let done = whole.push(&Bytes::copy_from_slice(piece), &mut each).is_ok();
    let cut = head.first().map_or(1, |&first| usize::from(first) + 1);
    let mut all = true;
    for part in piece.chunks(cut) {
        let each = |end, record: Bytes| {
            again.push((end, record));
            Ok(true)
        };
        all = all && pieces.push(&Bytes::copy_from_slice(part), each).is_ok();
    }
    assert_eq!(done, all);
    assert!(found == again && (!done || whole.position() == pieces.position()));
}

/// Parses a head, a state, the registration of a fork, a list of dead objects, and the note of a
/// local file about its home. Magic numbers and checksums are corrected first.
pub fn published(data: &[u8]) {
    remote::parse(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::DictionaryId;
    use crate::journal::record::Op;
    use env::Random;
    use vt_tree::{Compression, ExtentRef, Value};

    const PARSERS: [fn(&[u8]); 7] =
        [root, manifest, journal, transaction_log, stream, chunk, published];

    fn text(s: &'static str) -> Bytes {
        Bytes::from_static(s.as_bytes())
    }

    /// Returns encoded edits of a manifest that are consistent with one another.
    fn edits() -> Vec<u8> {
        let info = |id, branch: &str| crate::DictionaryInfo {
            id: DictionaryId(id),
            name: "d".into(),
            branch: branch.into(),
            options: Default::default(),
            short_outside: false,
        };
        let run = crate::ids::RunId;
        let label = |name: &str| crate::ids::Label {
            name: name.into(),
            branch: String::new(),
            id: [1; 16],
            created: std::time::Duration::from_secs(9),
            seq: 12,
        };
        let edits = [
            Edit::KeptRun(text("kept")),
            Edit::KeptDictionary(info(1, ""), vec![(1, run(4), 0)]),
            Edit::KeptSnapshot(label("s"), vec![0]),
            Edit::Branch { name: "b".into(), of: "s".into() },
            Edit::Dictionary(info(1, "")),
            Edit::Dictionary(info(2, "b")),
            Edit::AddRun { dict: DictionaryId(2), level: 2, id: run(5), run: text("a run") },
            Edit::AddKeptRun(DictionaryId(1), (1, run(4), 0)),
            Edit::Snapshot { label: label("t"), below: 9 },
            Edit::Clone { snapshot: "t".into(), branch: "c".into(), first: 7 },
            Edit::RollBack { snapshot: "s".into(), seq: 40 },
            Edit::NextIds { dictionary: 9, run: 9, segment: 9 },
        ];
        let mut manifest = Vec::new();
        edits.iter().for_each(|e| e.encode(&mut manifest));
        manifest
    }

    /// Returns an encoded record of the journal with changes of each kind.
    fn commit() -> Vec<u8> {
        let d = DictionaryId(3);
        let packed =
            ExtentRef::packed(1 << 24, 9000, 800, 5, Compression::Lz4).expect("it is smaller");
        let changes = [
            (d, Op::Put(text("a"), Value::Inline(text("value")))),
            (d, Op::Put(text("b"), Value::Extent(ExtentRef::plain(1 << 23, 5000, 4)))),
            (d, Op::Put(text("c"), Value::Extent(packed))),
            (d, Op::PutDiscarded(text("d"), 1 << 40)),
            (d, Op::Update(text("c"), vt_tree::Update::add(1 << 40))),
            (d, Op::Delete(text("d"))),
            (d, Op::DeleteRange(text("e"), text("f"))),
        ];
        let mut journal = Vec::new();
        record::encode(&changes, &mut journal, |_| {});
        journal
    }

    /// Returns valid bytes of each kind, for the tests to damage.
    fn whole() -> Vec<Vec<u8>> {
        let (manifest, journal) = (edits(), commit());
        let chunked = [&[9; HEADER][..], &journal].concat();
        let log = durable::encode(&crate::TransactionOptions {
            label: "l".into(),
            user: Some(7),
            ..Default::default()
        });
        let root = Root {
            number: 3,
            epoch: 4,
            durable: 5,
            zones: vec![zones::ZoneId(1), zones::ZoneId(300)],
        };
        let (mut frame, mut end) = (Vec::new(), Vec::new());
        let tuples = vec![(text("k"), Some(text("v"))), (text("l"), None)];
        Frame::Chunk { number: 3, dictionary: 0, tuples }
            .write(&mut frame)
            .expect("memory does not fail");
        Frame::End { chunks: 4, tuples: 300 }.write(&mut end).expect("memory does not fail");
        let payload = frame[5..frame.len() - 4].to_vec();
        let one = journal[1..].to_vec();
        vec![root.encode(), manifest, one, chunked, log, payload, frame, end, vec![0x80; 60]]
    }

    #[test]
    fn no_bytes_make_a_reader_panic() {
        let whole = whole();
        assert!(
            Root::decode(&whole[0]).is_ok() && Edit::decode_all(&whole[1].clone().into()).is_ok()
        );
        assert!(
            record::decode(&whole[2].clone().into()).is_ok()
                && Frame::read(&mut &whole[6][..]).is_ok()
        );
        assert!(
            ManifestState::new()
                .apply_all(Edit::decode_all(&whole[1].clone().into()).unwrap())
                .is_ok()
        );
        let mut random = Random::new(5);
        for n in 0..60_000 {
            let mut bytes = whole[n % whole.len()].clone();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] =
                    [0, 1, 0x7f, 0x80, 0xff, random.number() as u8][random.below(6) as usize];
            }
            if random.one_in(4) {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            PARSERS.iter().for_each(|parse| parse(&bytes));
        }
    }
}
