//! A counting allocator. It records the bytes that are allocated and not freed, their maximum, and
//! the total that each thread has allocated.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static CHUNKS: Cell<i64> = const { Cell::new(0) };
}

/// Returns what an allocation of that many bytes takes of a heap such as that of glibc: eight bytes
/// more, in units of 16, and at least 32.
fn chunk(bytes: usize) -> i64 {
    (bytes + 8).next_multiple_of(16).max(32) as i64
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The allocations of a thread that is ending are not counted.
        _ = ALLOCATED.try_with(|of_thread| of_thread.set(of_thread.get() + layout.size() as u64));
        _ = CHUNKS.try_with(|of_thread| of_thread.set(of_thread.get() + chunk(layout.size())));
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as required of the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        _ = CHUNKS.try_with(|of_thread| of_thread.set(of_thread.get() - chunk(layout.size())));
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as required of the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that are allocated and not freed.
pub fn held() -> usize {
    NOW.load(Ordering::Relaxed)
}

/// Returns the bytes that this thread has allocated, freed or not.
pub fn allocated() -> u64 {
    ALLOCATED.get()
}

/// Returns the memory that this thread has allocated less what it has freed, as the heap rounds it.
pub fn chunks_of_thread() -> i64 {
    CHUNKS.get()
}

/// Runs something. Returns the most that the heap held during that, bytes, and its result.
pub fn most_during<T>(run: impl FnOnce() -> T) -> (usize, T) {
    MOST.store(held(), Ordering::Relaxed);
    let outcome = run();
    (MOST.load(Ordering::Relaxed), outcome)
}

/// Runs the step of a table that has these operations, which must succeed, and prints its cost.
/// Returns the most that the heap held, bytes.
pub fn most_of_step<E: Display>(names: &[&str], step: impl FnOnce() -> Result<(), E>) -> usize {
    let begun = Instant::now();
    let (most, outcome) = most_during(step);
    let took = begun.elapsed();
    outcome.unwrap_or_else(|e| panic!("{names:?}: {e}"));
    println!("{:7.1} MiB {:6.2} s  {names:?}", most as f64 / 1048576.0, took.as_secs_f64());
    most
}
