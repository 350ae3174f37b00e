//! Tests many owners on many threads with random locks on few keys. The owners must exclude each
//! other, and all of them must complete.

use env::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::time::Duration;

use env::Random;

use super::*;

const THREADS: u64 = 8;
const EACH: u64 = 150;
const KEYS: u64 = 12;
const DICT: DictionaryId = DictionaryId(1);

/// A minimal transaction manager, which knows the running transactions and whether each was
/// aborted.
#[derive(Default)]
struct Running {
    aborted: Mutex<HashMap<u64, Arc<Mutex<bool>>>>,
}

impl Running {
    fn begin(&self, id: u64) -> Arc<Mutex<bool>> {
        self.aborted.lock().entry(id).or_default().clone()
    }
    fn abort(&self, id: u64, locks: &Locks) {
        let state = self.aborted.lock().get(&id).cloned();
        if let Some(state) = state {
            // Wait for the operation in progress.
            let mut aborted = state.lock();
            if !*aborted {
                *aborted = true;
                locks.release(id);
            }
        }
    }
    fn end(&self, id: u64, locks: &Locks) {
        self.abort(id, locks);
        self.aborted.lock().remove(&id);
    }
}

/// The number that a writer adds to the count of users of a key. A reader adds 1.
const WRITER: u32 = 1_000_000;

fn touch(cell: &AtomicU32, exclusive: bool) {
    let weight = if exclusive { WRITER } else { 1 };
    let before = cell.fetch_add(weight, Ordering::SeqCst);
    assert!(
        before < WRITER && (!exclusive || before == 0),
        "{before} are held with a lock that excludes them"
    );
    std::hint::spin_loop();
    cell.fetch_sub(weight, Ordering::SeqCst);
}

/// Runs one transaction. Returns `false` if it was wounded.
fn attempt(
    id: u64,
    age: u64,
    random: &mut Random,
    locks: &Locks,
    running: &Running,
    cells: &[AtomicU32],
) -> bool {
    let state = running.begin(id);
    locks.begin(Owner { id, age });
    let wound = |victim| running.abort(victim, locks);
    for _ in 0..1 + random.below(6) {
        let (a, exclusive) = (random.below(KEYS), random.one_in(2));
        let len = if random.one_in(3) { 1 + random.below(KEYS) } else { 1 };
        let b = (a + len).min(KEYS);
        let (start, end) = ([a as u8], [b as u8]);
        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
        match locks.lock(
            id,
            DICT,
            KeyRangeRef::between(&start, &end),
            mode,
            Duration::from_secs(120),
            &wound,
        ) {
            Ok(()) => {
                let aborted = state.lock();
                if *aborted {
                    return false;
                }
                cells[a as usize..b as usize].iter().for_each(|cell| touch(cell, exclusive));
            }
            Err(LockError::TimedOut { holder }) => {
                panic!("{id} waited for {holder} in vain: a deadlock")
            }
            Err(LockError::Full { .. }) => panic!("nothing limits these locks"),
            Err(LockError::Wounded { .. } | LockError::Ended) => return false,
        }
        if random.one_in(4) {
            env::thread::yield_now();
        }
    }
    true
}

#[test]
fn every_transaction_comes_to_its_end() {
    let (locks, running) = (Locks::new(usize::MAX), Running::default());
    let cells: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
    let (ids, clock, wounds) = (AtomicU64::new(1), AtomicU64::new(1), AtomicU64::new(0));
    let (locks, running, cells, ids, clock, wounds) =
        (&locks, &running, &cells, &ids, &clock, &wounds);
    env::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..EACH {
                    let age = clock.fetch_add(1, Ordering::Relaxed);
                    loop {
                        let id = ids.fetch_add(1, Ordering::Relaxed);
                        let done = attempt(id, age, &mut random, locks, running, cells);
                        running.end(id, locks);
                        if done {
                            break;
                        }
                        wounds.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Commits without locks run concurrently.
        for thread in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(100 + thread);
                for _ in 0..EACH {
                    let (a, b) = (random.below(KEYS) as usize, random.below(KEYS) as usize);
                    let (first, second) = ([a as u8], [b as u8]);
                    let changes =
                        [(DICT, KeyRangeRef::key(&first)), (DICT, KeyRangeRef::key(&second))];
                    loop {
                        if let Ok(_guard) = locks.try_guard(changes, None) {
                            touch(&cells[a], true);
                            touch(&cells[b], true);
                            break;
                        }
                        locks.wait_until_free(changes, None, Duration::from_secs(120)).unwrap();
                    }
                }
            });
        }
    });
    assert!(!locks.any());
    assert_eq!((locks.waiting(), locks.table.lock().size()), (0, (0, 0)));
    assert!(wounds.load(Ordering::Relaxed) > 0, "they met each other");
}
