//! Tests of the encoding of edits.

use std::time::Duration;

use vt_tree::Compression;

use super::*;
use crate::dictionary::{DictionaryOptions, Join};

fn all() -> Vec<Edit> {
    let dict = DictionaryId(4);
    let options = DictionaryOptions {
        separate_at: 1,
        stitch_at: u64::MAX,
        reserved: true,
        compression: Compression::Zstd,
        compress_values: Compression::Lz4,
        false_positives: 300,
        join: Join::Union,
    };
    let in_branch = DictionaryInfo {
        id: dict,
        name: "d".into(),
        branch: "try".into(),
        options: options.clone(),
        short_outside: false,
    };
    let created = Duration::new(1_700_000_000, 5);
    let label =
        Label { name: "monday".into(), branch: "try".into(), id: [7; 16], created, seq: 99 };
    vec![
        Edit::Dictionary(DictionaryInfo {
            id: dict,
            name: "größe".into(),
            branch: String::new(),
            options: options.clone(),
            short_outside: false,
        }),
        Edit::Dictionary(in_branch.clone()),
        Edit::Snapshot { label: label.clone(), below: 77 },
        Edit::DropSnapshot("monday".into()),
        Edit::RenameSnapshot { from: "monday".into(), to: ".origin".into() },
        Edit::Clone { snapshot: "monday".into(), branch: "try".into(), first: 9 },
        Edit::Branch { name: "try".into(), of: String::new() },
        Edit::DropBranch("try".into()),
        Edit::Limit { branch: "try".into(), bytes: 10 << 30 },
        Edit::LimitFiles { branch: "try".into(), below: 100_001 },
        Edit::RollBack { snapshot: "monday".into(), seq: 1 << 40 },
        Edit::Since { dict, seq: 12 },
        Edit::Adopt { from: "try".into(), to: String::new() },
        Edit::KeptRun(Bytes::from_static(b"a run")),
        Edit::KeptDictionary(in_branch, vec![(3, RunId(7), 0), (15, RunId(1), 0)]),
        Edit::KeptSnapshot(label, vec![0, 0]),
        Edit::AddKeptRun(dict, (63, RunId(9), 1)),
        Edit::DropDictionary(dict),
        Edit::AddRun { dict, level: 2, id: RunId(9), run: Bytes::from_static(b"a run") },
        Edit::DropRun { dict, id: RunId(9) },
        Edit::JournalStart(JournalStart { segment: 1, offset: 4096, position: 1 << 50, seq: 77 }),
        Edit::Segment(Segment { number: 3, zone: ZoneId(8), epoch: 0xfeed, end: None }),
        Edit::SegmentEnds { number: 3, position: 1234 },
        Edit::DropSegments { before: 3 },
        Edit::Streams(vec![(Purpose::Pages, 1 << 33), (Purpose::Index, 5)]),
        Edit::Closed,
        Edit::ForgetSegment { number: 9 },
        Edit::StitchAt { dict, stitch_at: 1 << 40 },
        Edit::Options(DictionaryInfo {
            id: dict,
            name: "d".into(),
            branch: String::new(),
            options: crate::DictionaryOptions { separate_at: 7, ..Default::default() },
            short_outside: false,
        }),
        Edit::Options(DictionaryInfo {
            id: dict,
            name: "d".into(),
            branch: String::new(),
            options: crate::DictionaryOptions::default(),
            short_outside: true,
        }),
        Edit::NextIds { dictionary: 1, run: 2, segment: 3 },
    ]
}

#[test]
fn edits_survive_the_way_there_and_back() {
    let record = Edit::encode_all(&all());
    let inside = zones::varint::get_bytes(&mut &record[..]).unwrap();
    assert_eq!(Edit::decode_all(&Bytes::copy_from_slice(inside)).unwrap(), all());
}

#[test]
fn damaged_edits_never_panic() {
    let record = Edit::encode_all(&all());
    let record = Bytes::copy_from_slice(zones::varint::get_bytes(&mut &record[..]).unwrap());
    for at in 0..record.len() {
        for value in [0, 3, 13, 14, 24, 25, 27, 28, 0x80, 0xff] {
            let mut bad = record.to_vec();
            bad[at] = value;
            let _ = Edit::decode_all(&Bytes::from(bad));
        }
        let _ = Edit::decode_all(&record.slice(..at));
    }
    assert!(Edit::decode_all(&Bytes::from_static(&[99])).is_err());
}
