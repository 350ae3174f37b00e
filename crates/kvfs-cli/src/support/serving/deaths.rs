//! Tracks how a keeper's daemons have died, and decides whether to start another one.

use std::collections::VecDeque;
use std::fmt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use std::os::unix::process::ExitStatusExt;

/// The period over which deaths are counted.
const IN: Duration = Duration::from_secs(60);
/// The limit for daemons that were killed. An example is the OOM killer, whose cause passes.
const MOST_KILLS: usize = 1000;
/// The limit for daemons that crash. The request that crashed one is resent to the next, too.
const MOST_CRASHES: usize = 10;
/// The limit for daemons that fail to start, for example for lack of space or memory, which may be
/// temporary.
const MOST_FAILURES: usize = 30;
/// The number of crashed daemons that are replaced at once. After that, the pause doubles each
/// time.
const AT_ONCE: usize = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The way in which a daemon died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    Signal(i32),
    /// The daemon exited because it could not continue.
    Code(i32),
    /// The daemon could not be started.
    NotStarted(String),
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Death::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Death::Code(code) => write!(f, "could not go on, and ended with {code}"),
            Death::NotStarted(why) => write!(f, "could not be started: {why}"),
        }
    }
}

impl Death {
    /// Classifies an exit status. It is `None` if the daemon was killed and one of its threads has
    /// not ended yet.
    pub fn of(status: Option<ExitStatus>) -> Death {
        match status.and_then(|status| status.code()) {
            Some(code) => Death::Code(code),
            None => Death::Signal(status.and_then(|s| s.signal()).unwrap_or(libc::SIGKILL)),
        }
    }

    fn most(&self) -> usize {
        match self {
            Death::Signal(libc::SIGKILL) => MOST_KILLS,
            Death::Signal(_) => MOST_CRASHES,
            Death::Code(_) | Death::NotStarted(_) => MOST_FAILURES,
        }
    }
}

/// The reaction to a death.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Start another daemon after this time.
    Begin(Duration),
    /// Give up: there were this many deaths in a minute.
    GiveUp(usize),
}

/// The deaths of a keeper's daemons.
#[derive(Default)]
pub struct Deaths {
    /// The deaths of the last minute: killed, crashed, failed to start.
    recent: [VecDeque<Instant>; 3],
    /// The number of times that another daemon was started, or was to be.
    count: u64,
    last: Option<Death>,
}

impl Deaths {
    /// Counts a death, and returns the reaction.
    pub fn add(&mut self, death: Death, now: Instant) -> Next {
        let [kills, crashes, failures] = &mut self.recent;
        let recent = match &death {
            Death::Signal(libc::SIGKILL) => kills,
            Death::Signal(_) => crashes,
            Death::Code(_) | Death::NotStarted(_) => failures,
        };
        recent.push_back(now);
        while recent.front().is_some_and(|at| now.saturating_duration_since(*at) > IN) {
            recent.pop_front();
        }
        let (many, most) = (recent.len(), death.most());
        let pause = match &death {
            Death::Signal(libc::SIGKILL) => Duration::ZERO,
            Death::Signal(_) if many <= AT_ONCE => Duration::ZERO,
            Death::Signal(_) => {
                let doubled = u32::try_from(many - AT_ONCE - 1).unwrap_or(u32::MAX).min(16);
                (FIRST_PAUSE * 2_u32.pow(doubled)).min(LONGEST_PAUSE)
            }
            Death::Code(_) | Death::NotStarted(_) => LONGEST_PAUSE,
        };
        self.last = Some(death);
        if many > most {
            return Next::GiveUp(many);
        }
        self.count += 1;
        Next::Begin(pause)
    }

    /// Returns the history that is passed to the next daemon.
    pub fn told(&self) -> BegunAnew {
        BegunAnew { count: self.count, last: self.last.as_ref().map(Death::to_string) }
    }
}

/// The number of times that a daemon was restarted under its mount, and the last death.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BegunAnew {
    pub count: u64,
    pub last: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(deaths: &mut Deaths, death: &Death, at: Instant) -> Next {
        deaths.add(death.clone(), at)
    }

    #[test]
    fn daemons_that_crash_are_followed_at_once_then_later_and_then_not() {
        let (mut deaths, begun) = (Deaths::default(), Instant::now());
        let crash = Death::Signal(libc::SIGSEGV);
        let pauses: Vec<_> = (0..MOST_CRASHES).map(|_| add(&mut deaths, &crash, begun)).collect();
        let expected = [0, 0, 0, 10, 20, 40, 80, 160, 320, 640];
        assert_eq!(pauses, expected.map(|ms| Next::Begin(Duration::from_millis(ms))));
        assert_eq!(add(&mut deaths, &crash, begun), Next::GiveUp(MOST_CRASHES + 1));
        let last = Some("was ended by signal 11".to_string());
        assert_eq!(deaths.told(), BegunAnew { count: 10, last });
    }

    #[test]
    fn deaths_that_are_long_past_do_not_count() {
        let (mut deaths, mut now) = (Deaths::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(add(&mut deaths, &Death::Signal(6), now), Next::Begin(Duration::ZERO));
            now += IN / 2;
        }
        assert_eq!(deaths.told().count, 100);
    }

    #[test]
    fn those_that_are_killed_are_followed_at_once_and_those_that_cannot_begin_after_a_second() {
        let (mut deaths, now) = (Deaths::default(), Instant::now());
        for _ in 0..MOST_KILLS {
            assert_eq!(add(&mut deaths, &Death::Signal(9), now), Next::Begin(Duration::ZERO));
        }
        assert!(matches!(add(&mut deaths, &Death::Signal(9), now), Next::GiveUp(_)));
        let second = Next::Begin(Duration::from_secs(1));
        assert_eq!(add(&mut deaths, &Death::Code(4), now), second);
        assert_eq!(add(&mut deaths, &Death::NotStarted("no memory".into()), now), second);
    }
}
