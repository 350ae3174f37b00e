//! Courtesy: a thread that answers requests yields its CPU to the programs that it answers, while
//! that costs nothing.
//!
//! A program that waits for an answer sleeps on the CPU on which the thread that answers runs. When
//! the answer is sent, the kernel wakes the program on an idle CPU. On a quiet machine this is a
//! different CPU, which must be woken first; in a virtual machine, waking a CPU takes longer than
//! the answer. But a CPU that runs only threads with the policy SCHED_IDLE counts as idle. So if
//! the answering thread has this policy, the program continues at once on the same CPU.
//!
//! On a busy machine a thread with this policy would get no CPU time. The thread detects this from
//! the time that it waits for a CPU after it is woken, which the kernel counts for each thread, and
//! returns to the usual policy. The thread tries SCHED_IDLE again when no more threads are runnable
//! than the machine has CPUs, and doubles the pause after each failed try.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The interval at which a thread that is awake checks how long it waits for a CPU.
const LOOK: Duration = Duration::from_millis(5);
/// The longest acceptable wait for the CPU, on average since the last check.
const TOO_LONG: Duration = Duration::from_micros(200);
/// The number of checks in a row that must find the machine quiet.
const QUIET_LOOKS: u32 = 10;
/// The first and the longest pause after a failed try.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(64));
/// The time after which a try counts as successful.
const RIGHT: Duration = Duration::from_secs(10);

/// The state of one thread.
pub(crate) struct Courtesy {
    /// The kernel's files from which the state is read: the first has the time that the thread was
    /// on a CPU, the time that it waited for a CPU (both in ns), and how often it was on one; the
    /// second has the load of the machine. `None` if the policy is never changed.
    sources: Option<(File, File)>,
    cpus: u64,
    waited: Waited,
    next: Instant,
    state: CourtesyState,
    pause: Duration,
}

#[derive(Clone, Copy, Default)]
struct Waited {
    nanos: u64,
    times: u64,
}

#[derive(Clone, Copy)]
enum CourtesyState {
    Usual { until: Instant, quiet: u32 },
    Polite { since: Instant },
}

impl Courtesy {
    /// Creates the state of the calling thread, on a machine with `cpus` CPUs.
    pub fn of_this_thread(cpus: usize) -> Courtesy {
        let now = Instant::now();
        let sources = || -> io::Result<(File, File)> {
            may_come_back()?;
            Ok((File::open("/proc/thread-self/schedstat")?, File::open("/proc/loadavg")?))
        };
        let sources = sources()
            .inspect_err(|e| {
                tracing::debug!("threads that answer requests keep the usual policy: {e}")
            })
            .ok();
        let state = CourtesyState::Usual { until: now, quiet: 0 };
        Courtesy {
            sources,
            cpus: cpus as u64,
            waited: Waited::default(),
            next: now,
            state,
            pause: PAUSE.0,
        }
    }

    /// Checks how long the thread waits for a CPU, and changes its policy if necessary. Does
    /// nothing if the last check was less than [`LOOK`] ago. The thread itself must call this
    /// method often.
    pub fn look(&mut self) {
        if self.sources.is_none() {
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + LOOK;
        if let Err(e) = self.look_now(now) {
            tracing::debug!("a thread that answers requests keeps the usual policy: {e}");
            self.sources = None;
            let _ = set_policy(libc::SCHED_OTHER);
        }
    }

    fn look_now(&mut self, now: Instant) -> io::Result<()> {
        let Some((schedstat, loadavg)) = &self.sources else { return Ok(()) };
        let waited = waited(&read(schedstat)?)?;
        let times = (waited.times - self.waited.times).max(1);
        let mean = Duration::from_nanos((waited.nanos - self.waited.nanos) / times);
        self.waited = waited;
        self.state = match self.state {
            CourtesyState::Polite { since } if mean > TOO_LONG => {
                set_policy(libc::SCHED_OTHER)?;
                self.pause =
                    if now - since > RIGHT { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
                CourtesyState::Usual { until: now + self.pause, quiet: 0 }
            }
            CourtesyState::Usual { until, .. }
                if now < until || runnable(&read(loadavg)?)? > self.cpus =>
            {
                CourtesyState::Usual { until, quiet: 0 }
            }
            CourtesyState::Usual { quiet, .. } if quiet >= QUIET_LOOKS => {
                set_policy(libc::SCHED_IDLE)?;
                CourtesyState::Polite { since: now }
            }
            CourtesyState::Usual { until, quiet } => {
                CourtesyState::Usual { until, quiet: quiet + 1 }
            }
            polite => polite,
        };
        Ok(())
    }
}

/// Restores the usual policy. A new thread calls this function because it inherits the policy of
/// the thread that starts it.
pub(crate) fn be_usual() {
    let _ = set_policy(libc::SCHED_OTHER);
}

/// Checks that a thread can return to the usual policy. A thread cannot do so if it has neither
/// CAP_SYS_NICE nor a limit (RLIMIT_NICE) that allows the return.
fn may_come_back() -> io::Result<()> {
    let tried = std::thread::Builder::new().name("fuse-try".into()).spawn(|| {
        set_policy(libc::SCHED_IDLE)?;
        set_policy(libc::SCHED_OTHER)
    })?;
    tried.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn set_policy(policy: i32) -> io::Result<()> {
    let no_priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call takes numbers (0 means the calling thread), and the structure to which the
    // pointer refers lives until the call returns.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const no_priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a file of the kernel. The kernel generates the content of such a file at each read from
/// its start.
fn read(file: &File) -> io::Result<String> {
    let mut text = [0; 128];
    let length = file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn unreadable(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel says '{}'", text.trim()))
}

/// Returns how long a thread has waited for a CPU, and how often it was on one, from its
/// `schedstat`.
fn waited(schedstat: &str) -> io::Result<Waited> {
    let mut numbers = schedstat.split_whitespace().skip(1).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(nanos)), Some(Ok(times))) => Ok(Waited { nanos, times }),
        _ => Err(unreadable(schedstat)),
    }
}

/// Returns the number of runnable threads, from the text of `/proc/loadavg`.
fn runnable(loadavg: &str) -> io::Result<u64> {
    let running = loadavg
        .split_whitespace()
        .nth(3)
        .and_then(|threads| threads.split_once('/')?.0.parse().ok());
    running.ok_or_else(|| unreadable(loadavg))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let waited = waited("123 4567 89\n").expect("figures");
        assert_eq!((waited.nanos, waited.times), (4567, 89));
        assert!(super::waited("123").is_err() && super::waited("a b c").is_err());
        assert_eq!(runnable("0.10 0.20 0.30 3/456 789\n").expect("a figure"), 3);
        assert!(runnable("0.10 0.20").is_err() && runnable("").is_err());
    }

    fn policy() -> i32 {
        // SAFETY: the call takes a number, for the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// Returns a state whose sources are files of the test.
    fn courtesy(dir: &std::path::Path) -> Courtesy {
        let file = |name: &str, text: &str| {
            std::fs::write(dir.join(name), text).expect("write");
            File::open(dir.join(name)).expect("open")
        };
        let sources = Some((file("schedstat", "0 0 0"), file("loadavg", "0 0 0 1/9 9")));
        let now = Instant::now();
        let state = CourtesyState::Usual { until: now, quiet: 0 };
        Courtesy { sources, cpus: 2, waited: Waited::default(), next: now, state, pause: PAUSE.0 }
    }

    #[test]
    fn a_thread_is_polite_on_a_quiet_machine_and_not_where_it_starves() {
        if may_come_back().is_err() {
            eprintln!("SKIPPED: a thread cannot come back from SCHED_IDLE here");
            return;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut courtesy = courtesy(dir.path());
        let say =
            |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("write");
        let mut now = Instant::now();
        let mut look = |courtesy: &mut Courtesy, times: u32| {
            for _ in 0..times {
                now += LOOK;
                courtesy.look_now(now).expect("it may");
            }
            policy()
        };
        say("loadavg", "0 0 0 3/9 9");
        assert_eq!(look(&mut courtesy, 100), libc::SCHED_OTHER, "there are two CPUs");
        say("loadavg", "0 0 0 2/9 9");
        assert_eq!(look(&mut courtesy, QUIET_LOOKS), libc::SCHED_OTHER);
        assert_eq!(look(&mut courtesy, 1), libc::SCHED_IDLE);
        // The thread was on the CPU 1,000 times, and waited 20 µs for it each time.
        say("schedstat", "0 20000000 1000");
        assert_eq!(look(&mut courtesy, 1), libc::SCHED_IDLE);
        // The thread was on the CPU once more, and waited 5 ms for it.
        say("schedstat", "0 25000000 1001");
        assert_eq!(look(&mut courtesy, 1), libc::SCHED_OTHER);
        let first = look_until_polite(&mut courtesy, &mut look);
        say("schedstat", "0 30000000 1002");
        assert_eq!(look(&mut courtesy, 1), libc::SCHED_OTHER);
        let second = look_until_polite(&mut courtesy, &mut look);
        assert!(second > first, "{second} looks and not more than {first}");
        be_usual();
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    fn look_until_polite(
        courtesy: &mut Courtesy,
        look: &mut dyn FnMut(&mut Courtesy, u32) -> i32,
    ) -> u32 {
        (1..100_000).find(|_| look(courtesy, 1) == libc::SCHED_IDLE).expect("it tries again")
    }
}
