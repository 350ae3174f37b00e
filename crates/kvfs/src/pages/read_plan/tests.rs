//! Readers of a tree of folders, and what is planned for them.

use super::*;

const FOLDERS: Ino = 40;
const TOP: Ino = 1;

fn folder(n: Ino) -> Ino {
    10 + n
}

fn file(folder: Ino, n: Ino) -> Ino {
    1000 * (folder + 1) + n
}

/// The files of folder `n`, of which each has a hundred.
fn entries(n: Ino) -> Vec<Entry> {
    (0..100).map(|i| Entry::new(file(n, i), false)).collect()
}

fn list_top(plans: &ReadPlans) {
    let folders: Vec<Entry> = (0..FOLDERS).map(|n| Entry::new(folder(n), true)).collect();
    plans.listed(TOP, (0, 9), &folders);
}

fn list(plans: &ReadPlans, n: Ino) {
    plans.listed(folder(n), (0, 9), &entries(n));
}

/// Reads a file, which has to wait unless it was announced, and announces what is planned.
/// Returns the number of files that were announced.
fn read(plans: &ReadPlans, ino: Ino) -> usize {
    let step = plans.begins(ino);
    if let Some(dir) = step.dir {
        plans.waited(dir);
    }
    let Some(mut extension) = step.extension else { return 0 };
    let mut files = Vec::new();
    while files.len() < extension.files {
        match extension.frontier.advance() {
            Next::File(ino) => files.push((ino, 4096)),
            Next::Names(dir, _) => {
                extension.frontier.enter(dir, entries(dir - folder(0)), None);
            }
            Next::End => break,
        }
    }
    let announced = files.len();
    plans.extended(extension, files);
    announced
}

#[test]
fn a_walk_begins_after_a_few_files_that_had_to_wait_and_covers_the_folder() {
    let plans = ReadPlans::default();
    list_top(&plans);
    list(&plans, 0);
    let announced: Vec<usize> = (0..100).map(|i| read(&plans, file(0, i))).collect();
    assert_eq!(announced[..3], [0, 0, 64]);
    assert_eq!(announced.iter().sum::<usize>(), 97);
    let counts = PlanCounts { announced: 97, used: 97, wasted: 0 };
    assert_eq!(plans.counts(), counts);
    // A program that did not list the folder reads by other means.
    assert_eq!((0..100).map(|i| read(&plans, file(1, i))).sum::<usize>(), 0);
    assert_eq!(plans.counts(), counts);
}

#[test]
fn a_reader_that_goes_from_folder_to_folder_waits_in_the_first_two_only() {
    let plans = ReadPlans::default();
    list_top(&plans);
    let mut announced = Vec::new();
    for n in 0..FOLDERS {
        list(&plans, n);
        announced.extend((0..100).map(|i| read(&plans, file(n, i))));
    }
    assert_eq!(plans.counts(), PlanCounts { announced: 3994, used: 3994, wasted: 0 });
    let batches: Vec<usize> = announced.into_iter().filter(|files| *files > 0).collect();
    assert_eq!(batches[..4], [64, 33, 256, 896], "few, and large");
    assert!(batches.len() <= 7, "{batches:?}");
}

#[test]
fn a_reader_of_one_file_or_two_in_each_folder_pays_nothing() {
    let plans = ReadPlans::default();
    list_top(&plans);
    for n in 0..FOLDERS {
        list(&plans, n);
        assert_eq!((0..1 + n % 2).map(|i| read(&plans, file(n, i))).sum::<usize>(), 0);
    }
    assert_eq!(plans.counts(), PlanCounts::default());
}

#[test]
fn plans_end_for_a_while_when_less_than_half_of_them_is_used() {
    let plans = ReadPlans::default();
    list_top(&plans);
    for n in 0..FOLDERS {
        list(&plans, n);
        for i in 0..4 {
            read(&plans, file(n, i));
        }
    }
    let counts = plans.counts();
    assert!(counts.announced <= 3 * WINDOW_MIN as u64, "{counts:?}");
    assert_eq!(counts.used + counts.wasted, counts.announced, "{counts:?}");
    let pause: usize = (0..PAUSE_MIN).map(|_| read(&plans, file(0, 0))).sum();
    assert_eq!(pause, 0);
    list(&plans, 3);
    assert!((0..100).map(|i| read(&plans, file(3, i))).sum::<usize>() > 0, "a new attempt");
}

#[test]
fn a_reader_that_leaves_out_some_files_wastes_those_and_no_others() {
    let plans = ReadPlans::default();
    list_top(&plans);
    for n in 0..10 {
        list(&plans, n);
        for i in (0..100).filter(|i| i % 4 > 0) {
            read(&plans, file(n, i));
        }
    }
    let counts = plans.counts();
    assert!(counts.used > 700 && counts.wasted < counts.used / 2, "{counts:?}");
}

#[test]
fn what_was_not_announced_is_planned_again_and_less_at_a_time() {
    let plans = ReadPlans::default();
    list(&plans, 0);
    for i in 0..2 {
        read(&plans, file(0, i));
    }
    let mut extension = plans.begins(file(0, 2)).extension.unwrap();
    let mut first = || match extension.frontier.advance() {
        Next::File(ino) => ino,
        _ => panic!("the folder has more files"),
    };
    let (taken, beyond) = (first(), [first(), first()]);
    extension.frontier.put_back(beyond.into_iter());
    extension.is_cut = true;
    plans.extended(extension, vec![(taken, 4096)]);
    let next = plans.begins(taken).extension.unwrap();
    assert_eq!(next.files, WINDOW_MIN, "the window does not grow");
    plans.extended(next, Vec::new());
    assert_eq!(plans.counts(), PlanCounts { announced: 1, used: 1, wasted: 0 });
}

#[test]
fn a_file_of_several_names_is_announced_once() {
    let plans = ReadPlans::default();
    let links: Vec<Entry> = (0..100).map(|i| Entry::new(file(0, i % 50), false)).collect();
    plans.listed(folder(0), (0, 9), &links);
    for i in 0..50 {
        read(&plans, file(0, i));
    }
    let counts = plans.counts();
    assert_eq!(counts.announced - counts.used, plans.0.lock().ahead.len() as u64, "{counts:?}");
    assert!((50..=100).contains(&counts.announced) && counts.wasted == 0, "{counts:?}");
}

#[test]
fn the_walks_have_a_bound() {
    let plans = ReadPlans::default();
    for n in 0..FOLDERS {
        list(&plans, n);
    }
    // Each reader reads a little further than a proof needs.
    for n in 0..FOLDERS {
        list(&plans, n);
        for i in 0..40 {
            read(&plans, file(n, i));
        }
    }
    let inner = plans.0.lock();
    assert!(inner.walks.len() <= WALKS);
    let ahead: usize = inner.walks.iter().map(|walk| walk.ahead.len()).sum();
    assert_eq!(ahead, inner.ahead.len());
    let counts = inner.counts;
    assert_eq!(counts.used + counts.wasted + ahead as u64, counts.announced, "{counts:?}");
}
