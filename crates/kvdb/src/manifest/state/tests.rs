//! Tests of the states that result from edits, and of edits that contradict a state.

use super::*;
use crate::dictionary::DictionaryOptions;
use std::time::Duration;
use zones::ZoneId;

fn info(id: u32, name: &str) -> DictionaryInfo {
    DictionaryInfo {
        id: DictionaryId(id),
        name: name.into(),
        branch: String::new(),
        options: DictionaryOptions::default(),
        short_outside: false,
    }
}

fn sample() -> ManifestState {
    let mut state = ManifestState::new();
    let add = |dict, id| Edit::AddRun {
        dict: DictionaryId(dict),
        level: 1,
        id: RunId(id),
        run: Bytes::from_static(b"run"),
    };
    let segment = |number| {
        Edit::Segment(Segment {
            number,
            zone: ZoneId(number as u32 + 5),
            epoch: number * 3,
            end: None,
        })
    };
    let edits = [
        Edit::Dictionary(info(1, "a")),
        Edit::Dictionary(info(2, "b")),
        add(1, 1),
        add(1, 2),
        add(2, 3),
        Edit::DropRun { dict: DictionaryId(1), id: RunId(1) },
        Edit::DropDictionary(DictionaryId(2)),
        Edit::StitchAt { dict: DictionaryId(1), stitch_at: 5 },
        Edit::Options(info(1, "a")),
        segment(1),
        segment(2),
        segment(3),
        Edit::DropSegments { before: 2 },
        Edit::SegmentEnds { number: 2, position: 99 },
        Edit::JournalStart(JournalStart { segment: 2, offset: 4096, position: 50, seq: 12 }),
        Edit::ForgetSegment { number: 3 },
        Edit::Streams(vec![(Purpose::Index, 77)]),
        Edit::Closed,
    ];
    for e in edits {
        state.apply(e).unwrap();
    }
    state
}

#[test]
fn a_checkpoint_builds_the_same_state() {
    let state = sample();
    assert_eq!((state.next_dictionary, state.next_run, state.next_segment), (3, 4, 4));
    let mut again = ManifestState::new();
    again.apply_all(state.checkpoint()).unwrap();
    assert_eq!(again, state);
}

fn label(name: &str, branch: &str) -> Label {
    Label {
        name: name.into(),
        branch: branch.into(),
        id: [1; 16],
        created: Duration::from_secs(9),
        seq: 12,
    }
}

/// Returns the state of `sample` with a branch, and with snapshots of the main branch and of that
/// branch.
fn branched() -> ManifestState {
    let mut state = sample();
    let (d, run) = (DictionaryId(1), Bytes::from(vec![7; 500]));
    let edits = [
        Edit::AddRun { dict: d, level: 0, id: RunId(8), run: run.clone() },
        Edit::Snapshot { label: label("a", ""), below: 2 },
        Edit::Clone { snapshot: "a".into(), branch: "try".into(), first: 5 },
        Edit::DropRun { dict: d, id: RunId(8) },
        Edit::Snapshot { label: label("b", ""), below: 9 },
        Edit::AddRun {
            dict: DictionaryId(5),
            level: 0,
            id: RunId(9),
            run: Bytes::from_static(b"more"),
        },
        Edit::Snapshot { label: label("c", "try"), below: 9 },
        Edit::Branch { name: "empty".into(), of: String::new() },
        Edit::RollBack { snapshot: "a".into(), seq: 40 },
    ];
    state.apply_all(edits).unwrap();
    state
}

fn runs(d: &DictionaryState) -> Vec<u64> {
    d.runs.keys().map(|id| id.0).collect()
}

#[test]
fn snapshots_have_what_was_there_and_branches_go_their_own_ways() {
    let mut state = branched();
    let of = |name: &str| {
        state.snapshots[name].dictionaries.values().map(|d| runs(d)).collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("b"), of("c")), (vec![vec![2, 8]], vec![vec![2]], vec![vec![2, 8, 9]]));
    let (main, branch) =
        (&state.dictionaries[&DictionaryId(1)], &state.dictionaries[&DictionaryId(5)]);
    assert_eq!((runs(main), runs(branch)), (vec![2, 8], vec![2, 8, 9]));
    assert_eq!(state.since, BTreeMap::from([(DictionaryId(1), 40)]));
    state.apply_all([Edit::Adopt { from: "try".into(), to: String::new() }]).unwrap();
    assert_eq!(state.dictionaries.values().map(|d| runs(d)).collect::<Vec<_>>(), [[2, 8, 9]]);
    assert_eq!(state.branches.keys().map(|name| &**name).collect::<Vec<_>>(), ["empty"]);
    state.apply_all([Edit::DropBranch("empty".into()), Edit::DropSnapshot("b".into())]).unwrap();
    assert!(state.branches.is_empty() && state.snapshots.len() == 2);
}

#[test]
fn a_checkpoint_writes_once_what_snapshots_share() {
    let mut state = branched();
    for i in 0..1000 {
        state
            .apply_all([Edit::Snapshot { label: label(&format!("snapshot {i}"), ""), below: 9 }])
            .unwrap();
    }
    let edits = state.checkpoint();
    let mut again = ManifestState::new();
    again.apply_all(edits.clone()).unwrap();
    assert_eq!(again, state);
    let bytes = Edit::encode_all(&edits).len();
    assert!(bytes < 1000 * 50 + 2000, "{bytes} bytes for 1000 snapshots");
    let one = again.snapshots["snapshot 1"].dictionaries[&DictionaryId(1)].clone();
    let same = again
        .snapshots
        .values()
        .filter_map(|s| s.dictionaries.get(&DictionaryId(1)))
        .filter(|d| Arc::ptr_eq(d, &one));
    assert_eq!(
        same.count(),
        1001,
        "and is kept in memory once, with the one that was rolled back to"
    );
}

#[test]
fn branches_share_what_is_equal_also_after_a_checkpoint() {
    let mut state = branched();
    let clone = |branch: &str, first: u32| Edit::Clone {
        snapshot: "a".into(),
        branch: branch.into(),
        first,
    };
    state.apply_all([clone("one", 20), clone("two", 30)]).unwrap();
    let check = |state: &ManifestState, when: &str| {
        let runs = |id: u32| &state.dictionaries[&DictionaryId(id)].runs;
        let kept = &state.snapshots["a"].dictionaries[&DictionaryId(1)].runs;
        assert!([20, 30].iter().all(|id| Arc::ptr_eq(runs(*id), kept)), "{when}");
        assert!(!Arc::ptr_eq(runs(5), kept), "{when}: this one has another run");
        let info = |id: u32| &state.dictionaries[&DictionaryId(id)].info;
        let kept = &state.snapshots["a"].dictionaries[&DictionaryId(1)].info;
        for (id, branch) in [(20, "one"), (30, "two"), (5, "try")] {
            let (name, of) = state.branches.get_key_value(branch).unwrap();
            assert!(Arc::ptr_eq(&info(id).branch, name), "{when}: the name of {branch}");
            assert!(Arc::ptr_eq(of, &state.branches["one"]), "{when}: the origin of {branch}");
            assert!(std::ptr::eq(&**info(id), &**kept), "{when}: the description in {branch}");
        }
    };
    let loaded = |state: &ManifestState| {
        let mut again = ManifestState::new();
        again.apply_record(&state.checkpoint_record().into()).unwrap();
        assert_eq!(again, *state);
        again
    };
    check(&state, "cloned");
    check(&loaded(&state), "loaded");
    state.apply_all([Edit::DropSnapshot("a".into())]).unwrap();
    let again = loaded(&state);
    let runs = |id: u32| &again.dictionaries[&DictionaryId(id)].runs;
    assert!(Arc::ptr_eq(runs(20), runs(30)), "without the snapshot");
}

/// Checks that each branch has exactly the dictionaries that name it as their branch, and finds
/// them by name.
fn check_branches(state: &ManifestState, when: &str) {
    let names = state.branches.keys().map(|name| &**name);
    for branch in names.chain([""]) {
        let of_branch = state.dictionaries.of_branch(branch);
        let all = state.dictionaries.iter().filter(|(_, d)| &*d.info.branch == branch);
        assert!(all.eq(of_branch.iter()), "{when}: {branch:?}");
        for (id, d) in &of_branch {
            let found = state.dictionaries.find(branch, &d.info.name);
            assert_eq!(found, Some(*id), "{when}: {} of {branch:?}", d.info.name);
        }
        assert_eq!(state.dictionaries.find(branch, "missing"), None);
    }
}

#[test]
fn the_dictionaries_of_a_clone_are_found_by_their_numbers_until_it_gets_others() {
    let mut state = ManifestState::new();
    let names = ["a", "b", "c", "d"];
    let dictionaries = (1..).zip(names).map(|(id, name)| Edit::Dictionary(info(id, name)));
    state.apply_all(dictionaries).unwrap();
    let clone =
        |branch: &str, first| Edit::Clone { snapshot: "s".into(), branch: branch.into(), first };
    let new = |id, name: &str, branch: &str| {
        Edit::Dictionary(DictionaryInfo { branch: branch.into(), ..info(id, name) })
    };
    let by_numbers =
        |state: &ManifestState, branch: &str| state.dictionaries.has_numbers_only(branch);
    let loaded = |state: &ManifestState, when: &str| {
        let mut again = ManifestState::new();
        again.apply_record(&state.checkpoint_record().into()).unwrap();
        assert_eq!(again, *state, "{when}");
        check_branches(&again, when);
    };
    let steps = [
        ("cloned", vec![Edit::Snapshot { label: label("s", ""), below: 5 }, clone("one", 5)]),
        ("changed", vec![Edit::StitchAt { dict: DictionaryId(6), stitch_at: 1 }]),
        ("one more", vec![new(9, "e", "one"), clone("two", 10), clone("three", 20)]),
        ("not the next", vec![new(14, "e", "two"), new(15, "f", "one")]),
        ("dropped", vec![Edit::DropDictionary(DictionaryId(21))]),
        ("in its place", vec![new(21, "g", "one")]),
        (
            "rolled back",
            vec![
                Edit::Snapshot { label: label("t", "two"), below: 13 },
                Edit::RollBack { snapshot: "t".into(), seq: 9 },
            ],
        ),
        ("adopted", vec![Edit::Adopt { from: "three".into(), to: "two".into() }]),
        ("gone", vec![Edit::DropBranch("two".into()), clone("two", 40)]),
        ("emptied", (40..44).map(|id| Edit::DropDictionary(DictionaryId(id))).collect()),
        ("filled", (50..80).map(|id| new(id, &format!("n{id}"), "two")).collect()),
    ];
    for (when, edits) in steps {
        state.apply_all(edits).unwrap();
        check_branches(&state, when);
        loaded(&state, when);
        match when {
            "cloned" | "changed" => assert!(by_numbers(&state, "one"), "{when}"),
            "one more" => assert!(["one", "two", "three"].iter().all(|b| by_numbers(&state, b))),
            "not the next" => assert!(!by_numbers(&state, "one") && by_numbers(&state, "two")),
            "dropped" => assert!(!by_numbers(&state, "three")),
            "filled" => assert!(!by_numbers(&state, "two"), "many have an index"),
            _ => {}
        }
    }
    assert!(!by_numbers(&state, ""), "snapshots of the main branch share its maps");
}

#[test]
fn a_checkpoint_has_one_edit_for_a_clone_that_nothing_was_written_to() {
    let mut state = ManifestState::new();
    let run = |dict, id| Edit::AddRun {
        dict: DictionaryId(dict),
        level: 0,
        id: RunId(id),
        run: Bytes::from(format!("a run of some length, number {id}")),
    };
    let dictionaries = (1..5).map(|id| Edit::Dictionary(info(id, &format!("d{id}"))));
    state.apply_all(dictionaries).unwrap();
    state
        .apply_all(
            (1..5).flat_map(|dict| {
                [run(dict, 10 + u64::from(dict)), run(dict, 20 + u64::from(dict))]
            }),
        )
        .unwrap();
    state.apply_all([Edit::Snapshot { label: label("s", ""), below: 5 }]).unwrap();
    let clone = |n: u32| Edit::Clone {
        snapshot: "s".into(),
        branch: format!("clone {n}"),
        first: 10 + 4 * n,
    };
    state.apply_all((0..1000).map(clone)).unwrap();
    let changed = [
        run(10, 100),
        Edit::DropRun { dict: DictionaryId(14), id: RunId(11) },
        Edit::StitchAt { dict: DictionaryId(18), stitch_at: 1 },
        Edit::DropDictionary(DictionaryId(22)),
        Edit::Dictionary(DictionaryInfo { branch: "clone 4".into(), ..info(9000, "more") }),
        Edit::Limit { branch: "clone 5".into(), bytes: 7 },
    ];
    let loaded = |state: &ManifestState, when: &str| {
        let record = state.checkpoint_record();
        let mut again = ManifestState::new();
        again.apply_record(&record.clone().into()).unwrap();
        assert_eq!(again, *state, "{when}");
        check_branches(&again, when);
        let idle = |edit: &&Edit| matches!(edit, Edit::Clone { .. });
        (record.len(), state.checkpoint().iter().filter(idle).count())
    };
    let (bytes, idle) = loaded(&state, "all are idle");
    assert_eq!(idle, 1000);
    assert!(bytes < 1000 * 20 + 1000, "{bytes} bytes for a thousand idle clones");
    state.apply_all(changed).unwrap();
    // The limit of a clone is a separate edit, and changes no dictionary.
    assert_eq!(loaded(&state, "five have changed").1, 995);
    state.apply_all([Edit::RenameSnapshot { from: "s".into(), to: "t".into() }]).unwrap();
    assert_eq!(loaded(&state, "the snapshot has another name").1, 995);
    state.apply_all([Edit::DropSnapshot("t".into())]).unwrap();
    assert_eq!(loaded(&state, "the snapshot is gone").1, 0);
}

#[test]
fn contradictions_are_errors() {
    let refused = |e: Edit| assert!(sample().apply(e.clone()).is_err(), "{e:?}");
    refused(Edit::DropRun { dict: DictionaryId(1), id: RunId(1) });
    refused(Edit::DropDictionary(DictionaryId(2)));
    refused(Edit::StitchAt { dict: DictionaryId(2), stitch_at: 0 });
    refused(Edit::Options(info(2, "b")));
    refused(Edit::Segment(Segment { number: 2, zone: ZoneId(1), epoch: 0, end: None }));
    refused(Edit::SegmentEnds { number: 1, position: 0 });
    refused(Edit::AddRun { dict: DictionaryId(1), level: 64, id: RunId(9), run: Bytes::new() });
    refused(Edit::AddRun {
        dict: DictionaryId(1),
        level: 0,
        id: RunId(u64::MAX),
        run: Bytes::new(),
    });
    refused(Edit::NextIds { dictionary: 0, run: u64::MAX, segment: 0 });
    refused(Edit::NextIds { dictionary: 0, run: 0, segment: u64::MAX });
    refused(Edit::JournalStart(JournalStart { seq: u64::MAX, ..JournalStart::default() }));
    refused(Edit::JournalStart(JournalStart { position: u64::MAX - 5, ..JournalStart::default() }));
    let refused = |e: Edit| assert!(branched().apply(e.clone()).is_err(), "{e:?}");
    refused(Edit::Snapshot { label: label("a", ""), below: 9 });
    refused(Edit::DropSnapshot("z".into()));
    refused(Edit::Clone { snapshot: "z".into(), branch: "y".into(), first: 20 });
    refused(Edit::Clone { snapshot: "a".into(), branch: "try".into(), first: 20 });
    refused(Edit::Clone { snapshot: "a".into(), branch: "y".into(), first: 5 });
    refused(Edit::Clone { snapshot: "a".into(), branch: "y".into(), first: u32::MAX });
    refused(Edit::Branch { name: String::new(), of: String::new() });
    refused(Edit::DropBranch("y".into()));
    refused(Edit::RollBack { snapshot: "z".into(), seq: 1 });
    refused(Edit::Adopt { from: "y".into(), to: String::new() });
    refused(Edit::KeptSnapshot(label("y", ""), vec![0]));
    refused(Edit::AddKeptRun(DictionaryId(1), (0, RunId(50), 0)));
}

#[test]
fn an_edit_after_the_close_voids_it() {
    let mut state = sample();
    state.apply(Edit::DropSegments { before: 0 }).unwrap();
    assert!(!state.closed);
}
