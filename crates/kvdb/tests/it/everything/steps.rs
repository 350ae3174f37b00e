//! Chooses the steps of a history to run, each with random numbers of its own, and finds the
//! shortest history that fails in the same way as a long one.
//!
//! `KVFS_SEED=n KVFS_STEPS=1-124,187-248` runs only these steps of seed n. `KVFS_SHRINK=s` looks
//! for at most s seconds for a shorter history that fails (30 unless told, 0: not at all).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use env::Random;

/// The numbers of one step, which are the same whether those before it are run or not. Lives count
/// from the other end.
pub fn random_of(seed: u64, step: u64) -> Random {
    let mut mixed =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ step.wrapping_mul(0xD1B5_4A32_D192_ED03);
    mixed = (mixed ^ mixed >> 31).wrapping_mul(0x94D0_49BB_1331_11EB);
    Random::new(mixed ^ mixed >> 29)
}

/// The random numbers that shape a life: its length, the moment of the power cut, and the options
/// of the next opening.
pub fn random_of_life(seed: u64, life: u64) -> Random {
    random_of(seed, u64::MAX - life)
}

/// The steps of a history that are run.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// The chosen steps in order, or `None` for all.
    only: Option<Vec<u64>>,
    reached: Cell<u64>,
}

impl Steps {
    pub fn all() -> Steps {
        Steps { only: None, reached: Cell::new(0) }
    }

    pub fn only(steps: &[u64]) -> Steps {
        Steps { only: Some(steps.to_vec()), reached: Cell::new(0) }
    }

    /// Parses the steps in the form of `KVFS_STEPS`: numbers and ranges, both ends included.
    pub fn parse(text: &str) -> Option<Steps> {
        let mut steps = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            steps.extend(from.trim().parse::<u64>().ok()?..=to.trim().parse::<u64>().ok()?);
        }
        steps.sort_unstable();
        steps.dedup();
        Some(Steps::only(&steps))
    }

    fn of_environment() -> Steps {
        match std::env::var("KVFS_STEPS") {
            Ok(text) => Steps::parse(&text)
                .unwrap_or_else(|| panic!("KVFS_STEPS={text}: not like 1-124,187-248")),
            Err(_) => Steps::all(),
        }
    }

    /// Returns whether this step is to be run. Must be called once for each step, in order.
    pub fn take(&self, step: u64) -> bool {
        self.reached.set(step);
        self.only.as_ref().is_none_or(|only| only.binary_search(&step).is_ok())
    }

    /// Returns the steps up to the one that the history has reached.
    fn taken(&self) -> Vec<u64> {
        let upto = self.reached.get();
        match &self.only {
            Some(only) => only.iter().copied().filter(|step| *step <= upto).collect(),
            None => (1..=upto).collect(),
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Some(only) = &self.only else { return write!(f, "all") };
        // An empty list would be meaningless to a reader.
        if only.is_empty() {
            return write!(f, "0");
        }
        let ranges = only.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
            [one] => one.to_string(),
            range => format!("{}-{}", range[0], range[range.len() - 1]),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

thread_local! {
    /// Panics of this thread are caught and not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns whether failures are expected attempts, which print nothing.
pub fn is_quiet() -> bool {
    QUIET.get()
}

/// Returns the place where `work` panics, or `None` if it does not.
fn place_of_panic(work: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match QUIET.get() {
            true => PLACE.set(info.location().map(ToString::to_string)),
            false => shown(info),
        }));
    });
    PLACE.set(None);
    QUIET.set(true);
    let failed = catch_unwind(AssertUnwindSafe(work)).is_err();
    QUIET.set(false);
    failed.then(|| PLACE.take().unwrap_or_else(|| "an unknown place".into()))
}

/// Returns the shortest history found within `time` that panics where this one did, or `None` if
/// this one does not panic. Removes ever smaller pieces, from half of the steps down to single
/// steps, until every remaining step is needed (delta debugging).
pub fn shortest(steps: &Steps, time: Duration, run: impl Fn(&Steps)) -> Option<Steps> {
    let started = Instant::now();
    let place = place_of_panic(|| run(steps))?;
    let mut shortest = steps.taken();
    let fails = |only: &[u64]| {
        let steps = Steps::only(only);
        (place_of_panic(|| run(&steps)).as_ref() == Some(&place)).then(|| steps.taken())
    };
    let mut piece = shortest.len().div_ceil(2).max(1);
    loop {
        let (mut at, before) = (0, shortest.len());
        while at < shortest.len() {
            if started.elapsed() > time {
                return Some(Steps::only(&shortest));
            }
            let mut fewer = shortest.clone();
            fewer.drain(at..(at + piece).min(shortest.len()));
            match fails(&fewer) {
                Some(taken) => shortest = taken,
                None => at += piece,
            }
        }
        if piece == 1 && shortest.len() == before {
            return Some(Steps::only(&shortest));
        }
        piece = piece.div_ceil(2);
    }
}

/// Runs a history. If it fails, shortens it and prints how to repeat it. `command` is the command
/// that runs the test.
pub fn run<T>(seed: u64, command: &str, run: impl Fn(&Steps) -> T) -> T {
    let steps = Steps::of_environment();
    let time = std::env::var("KVFS_SHRINK").ok().and_then(|v| v.parse().ok()).unwrap_or(30);
    if time == 0 {
        return run(&steps);
    }
    let done = RefCell::new(None);
    let found =
        shortest(&steps, Duration::from_secs(time), |steps| drop(done.replace(Some(run(steps)))));
    let Some(found) = found else { return done.take().expect("it was run to its end") };
    eprintln!("again: KVFS_SEED={seed} KVFS_STEPS={found} KVFS_SHRINK=0 {command}");
    run(&found);
    panic!(
        "seed {seed} failed, and fails no more with steps {found}: is anything random that the seed does not decide?"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_written_as_they_are_read() {
        for text in ["1-124,187-248", "7", "1,3,5-6"] {
            assert_eq!(Steps::parse(text).expect("they are steps").to_string(), text);
        }
        assert_eq!(Steps::parse("5,1-3,2").expect("they are steps"), Steps::only(&[1, 2, 3, 5]));
        assert_eq!(Steps::parse("1-x"), None);
        assert_eq!(Steps::parse(&Steps::only(&[]).to_string()).map(|s| s.take(1)), Some(false));
    }

    #[test]
    fn a_step_has_the_same_numbers_whatever_came_before() {
        let first = |seed, step| random_of(seed, step).below(u64::MAX);
        assert_eq!(first(1, 5), first(1, 5));
        let mut all: Vec<u64> =
            (0..50).flat_map(|seed| (0..50).map(move |step| first(seed, step))).collect();
        all.extend((0..50).map(|seed| random_of_life(seed, 1).below(u64::MAX)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 50 * 51);
    }

    /// Fails at step 170 when 20, 30 and 31 were run, and elsewhere when 3 was not.
    fn history(steps: &Steps) {
        let run: Vec<u64> = (1..=250).filter(|step| steps.take(*step) && *step <= 170).collect();
        let has = |step| run.contains(&step);
        if has(20) && has(30) && has(31) && has(170) {
            steps.take(170);
            assert!(has(3), "another failure, which is not looked for");
            panic!("the failure");
        }
    }

    #[test]
    fn the_shortest_history_has_only_the_steps_that_the_same_failure_needs() {
        let time = Duration::from_secs(60);
        assert_eq!(
            shortest(&Steps::all(), time, history),
            Some(Steps { reached: Cell::new(0), ..Steps::only(&[3, 20, 30, 31, 170]) })
        );
        assert_eq!(shortest(&Steps::only(&[3, 20, 30, 170]), time, history), None);
        assert!(!is_quiet());
    }

    #[test]
    fn without_time_the_history_ends_where_it_failed() {
        let all: Vec<u64> = (1..=170).collect();
        assert_eq!(shortest(&Steps::all(), Duration::ZERO, history), Some(Steps::only(&all)));
    }
}
