//! `CLIENT PAUSE`: all commands of all connections, or only writes, wait until the pause is over.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use env::sync::{Condvar, Mutex};

/// Interval at which a waiting command checks that its client is still connected.
const LOOK: Duration = Duration::from_millis(200);

/// The pause that all connections of a server observe.
#[derive(Default)]
pub struct Pause {
    /// Set while there is a pause, so that a command checks only this flag if there is none.
    on: AtomicBool,
    state: Mutex<Option<Until>>,
    ended: Condvar,
}

#[derive(Clone, Copy)]
struct Until {
    end: Instant,
    /// Set if commands that do not write may continue.
    writes_only: bool,
}

impl Pause {
    /// Begins a pause, or prolongs the current one. The later end and the stricter mode apply.
    pub fn begin(&self, time: Duration, writes_only: bool) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let new = Until { end: now.checked_add(time).unwrap_or(now), writes_only };
        *state = Some(match state.filter(|old| old.end > now) {
            None => new,
            Some(old) => {
                Until { end: old.end.max(new.end), writes_only: old.writes_only && new.writes_only }
            }
        });
        self.on.store(true, Relaxed);
    }
    pub fn end(&self) {
        *self.state.lock() = None;
        self.on.store(false, Relaxed);
        self.ended.notify_all();
    }

    /// Returns whether there is a pause. Expired keys are not removed during a pause.
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed) && self.state.lock().is_some_and(|until| until.end > Instant::now())
    }

    /// Waits until a command may continue. Calls `before` first if it has to wait. Polls `gone`
    /// during the wait, and returns `false` if `gone` reports that the client has disconnected.
    pub fn wait(&self, writes: bool, before: impl Fn(), gone: impl Fn() -> bool) -> bool {
        if !self.on.load(Relaxed) {
            return true;
        }
        let mut state = self.state.lock();
        while let Some(until) = *state {
            let left = until.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *state = None;
                self.on.store(false, Relaxed);
            } else if until.writes_only && !writes {
                return true;
            } else if gone() {
                return false;
            } else {
                before();
                self.ended.wait_for(&mut state, left.min(LOOK));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_writes_lets_others_go_on_and_ends() {
        let pause = Pause::default();
        let wait = |writes, gone| pause.wait(writes, || (), || gone);
        assert!(wait(true, false));
        pause.begin(Duration::from_secs(3600), true);
        assert!(wait(false, true), "it need not wait");
        assert!(pause.is_on());
        std::thread::scope(|scope| {
            assert!(!wait(true, true), "its client is gone");
            let waiting = scope.spawn(|| wait(true, false));
            pause.end();
            assert!(waiting.join().expect("it goes on"));
        });
        pause.begin(Duration::from_millis(1), false);
        assert!(wait(true, false));
        assert!(!pause.is_on());
    }

    #[test]
    fn of_two_pauses_the_later_end_and_the_stricter_one_hold() {
        let pause = Pause::default();
        pause.begin(Duration::from_secs(3600), false);
        pause.begin(Duration::from_millis(1), true);
        let until = pause.state.lock().expect("a pause");
        assert!(!until.writes_only && until.end > Instant::now() + Duration::from_secs(60));
    }
}
