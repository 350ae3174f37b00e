//! The scheduler finds errors that depend on the order of threads, and reproduces them.
#![cfg(debug_assertions)]

use std::sync::Arc;
use std::time::Duration;

use env::schedule::{self, Failure, run};
use env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use env::sync::{Condvar, Mutex, RwLock};
use env::thread;

/// Two threads add one, each with a load and a store of its own.
fn lost_update(seed: u64) -> u64 {
    let counter = || {
        let n = Arc::new(AtomicU64::new(0));
        let adding: Vec<_> = (0..2)
            .map(|_| {
                let n = n.clone();
                thread::spawn(move || n.store(n.load(SeqCst) + 1, SeqCst))
            })
            .collect();
        adding.into_iter().for_each(|t| t.join().unwrap());
        n.load(SeqCst)
    };
    run(seed, counter).unwrap().value
}

#[test]
fn a_lost_update_is_found_within_a_few_seeds_and_not_in_all() {
    let lost = (0..50).filter(|&seed| lost_update(seed) == 1).count();
    assert!((5..50).contains(&lost), "{lost} of 50");
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    let body = || {
        let list = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let list = list.clone();
                thread::spawn(move || (0..5).for_each(|_| list.lock().push(i)))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        list.lock().clone()
    };
    let mut all = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (first, second) = (run(seed, body).unwrap(), run(seed, body).unwrap());
        assert_eq!(
            (&first.value, first.trace, first.points),
            (&second.value, second.trace, second.points)
        );
        assert_eq!(first.value.len(), 20);
        all.insert(first.value);
    }
    assert!(all.len() > 10, "other seeds, other schedules: {}", all.len());
}

#[test]
fn a_mutex_and_a_read_write_lock_exclude() {
    for seed in 0..100 {
        let body = || {
            let (mutex, lock) = (Arc::new(Mutex::new(0)), Arc::new(RwLock::new(0)));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let mut n = mutex.lock();
                        let seen = *n;
                        schedule::point();
                        *n = seen + 1;
                        drop(n);
                        let seen = *lock.read();
                        assert!(seen <= 3);
                        let mut n = lock.write();
                        let seen = *n;
                        schedule::point();
                        *n = seen + 1;
                    });
                }
            });
            (*mutex.lock(), *lock.read())
        };
        assert_eq!(run(seed, body).unwrap().value, (3, 3), "seed {seed}");
    }
}

#[test]
fn locks_taken_in_two_orders_are_found_as_a_deadlock() {
    let body = || {
        let (a, b) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        let (a2, b2) = (a.clone(), b.clone());
        let other = thread::spawn(move || {
            let _first = b2.lock();
            let _second = a2.lock();
        });
        let first = a.lock();
        let second = b.lock();
        drop((first, second));
        other.join().unwrap();
    };
    let found: Vec<Failure> = (0..100).filter_map(|seed| run(seed, body).err()).collect();
    assert!(!found.is_empty() && found.len() < 100, "{} of 100", found.len());
    assert!(
        matches!(&found[0], Failure::Deadlock(who) if who.matches("waits for a mutex").count() == 2),
        "{}",
        found[0]
    );
}

#[test]
fn a_signal_wakes_and_a_forgotten_one_is_a_deadlock() {
    let body = |signal: bool| {
        let both = Arc::new((Mutex::new(false), Condvar::new()));
        let waiting = both.clone();
        let waits = thread::spawn(move || {
            let mut ready = waiting.0.lock();
            while !*ready {
                waiting.1.wait(&mut ready);
            }
        });
        *both.0.lock() = true;
        if signal {
            both.1.notify_one();
        }
        waits.join().unwrap();
    };
    (0..50).for_each(|seed| run(seed, move || body(true)).unwrap().value);
    let stuck = (0..50)
        .filter(|&seed| matches!(run(seed, move || body(false)), Err(Failure::Deadlock(_))))
        .count();
    assert!(stuck > 0);
}

#[test]
fn a_run_whose_first_thread_waits_when_the_last_other_one_ends_is_a_deadlock() {
    let body = || {
        let both = Arc::new((Mutex::new(()), Condvar::new()));
        let other = both.clone();
        // Nothing signals: the other thread only takes the lock.
        let _ = thread::spawn(move || drop(other.0.lock()));
        both.1.wait(&mut both.0.lock());
    };
    for seed in 0..20 {
        let failure = run(seed, body).unwrap_err();
        assert!(
            matches!(&failure, Failure::Deadlock(who)
                if who.contains("waits for a signal") && who.contains("has ended")),
            "seed {seed}: {failure}"
        );
    }
}

#[test]
fn time_is_virtual_and_jumps_when_all_wait() {
    let body = || {
        let both = (Mutex::new(()), Condvar::new());
        let before = schedule::now();
        let timed_out = both.1.wait_for(&mut both.0.lock(), Duration::from_secs(3600)).timed_out();
        thread::sleep(Duration::from_secs(3600));
        (timed_out, schedule::now() - before)
    };
    let real = std::time::Instant::now();
    assert_eq!(run(1, body).unwrap().value, (true, Duration::from_secs(7200)));
    assert!(real.elapsed() < Duration::from_secs(600));
}

#[test]
fn a_panic_in_any_thread_ends_the_run_and_is_told() {
    let body = || {
        let lock = Arc::new(Mutex::new(()));
        let held = lock.clone();
        let fails = thread::spawn(move || {
            let _guard = held.lock();
            panic!("on purpose");
        });
        let _ = fails.join();
    };
    let failure = run(3, body).unwrap_err();
    assert!(
        matches!(&failure, Failure::Panicked { message, .. } if message == "on purpose"),
        "{failure}"
    );
}

#[test]
fn a_panic_in_the_body_of_a_scope_ends_the_run_and_is_told() {
    for seed in 0..20 {
        let body = || {
            let lock = Mutex::new(());
            thread::scope(|scope| {
                scope.spawn(|| drop(lock.lock()));
                // The other thread cannot end while the lock is held.
                let _guard = lock.lock();
                if schedule::simulated() {
                    panic!("on purpose");
                }
            });
        };
        let failure = run(seed, body).unwrap_err();
        assert!(
            matches!(&failure, Failure::Panicked { message, .. } if message == "on purpose"),
            "seed {seed}: {failure}"
        );
    }
}

#[test]
fn a_panic_in_a_scope_whose_threads_have_ended_can_be_caught() {
    let body = || {
        let caught = std::panic::catch_unwind(|| {
            thread::scope(|scope| {
                scope.spawn(|| ()).join().unwrap();
                panic!("on purpose");
            })
        });
        caught.is_err()
    };
    assert!(run(1, body).unwrap().value);
    assert!(body(), "outside of a run");
}

#[test]
fn outside_of_a_run_all_of_it_is_plain() {
    let both = Arc::new((Mutex::new(0), Condvar::new()));
    let other = both.clone();
    let adds = thread::spawn(move || {
        *other.0.lock() += 1;
        other.1.notify_one();
    });
    let mut n = both.0.lock();
    while *n == 0 {
        both.1.wait(&mut n);
    }
    drop(n);
    adds.join().unwrap();
    assert!(both.1.wait_for(&mut both.0.lock(), Duration::from_millis(1)).timed_out());
}
