//! What is asked of a defragmentation, and how far it is: begin, stop, wait for its end.

use std::time::Duration;

use super::{DefragOptions, DefragProgress, Defragmenter};

#[derive(Default)]
pub(super) struct DefragState {
    /// The holes when it began by itself the last time: zones, and bytes alive in them.
    pub(super) seen: (u64, u64),
    /// Bytes of holes when a round had gained nothing the last time: they cannot be had.
    pub(super) in_vain: Option<u64>,
    pub(super) request: Option<DefragOptions>,
    /// Another one was asked for than its thread has begun with.
    superseded: bool,
    pub(super) progress: DefragProgress,
    /// The caller has asked it to end.
    pub(super) stop: bool,
    /// Its thread has ended: nothing that is asked for would be done.
    over: bool,
}

impl Defragmenter {
    pub(crate) fn progress(&self) -> DefragProgress {
        self.state.lock().progress
    }

    /// Asks for it; `false`: one is under way already. An automatic one ends after the part that it
    /// is at, and another one begins with these options.
    pub(super) fn request(&self, options: DefragOptions, automatic: bool) -> bool {
        let mut state = self.state.lock();
        if state.over {
            return false;
        }
        let new = state.request.is_none();
        if new {
            state.progress =
                DefragProgress { running: true, automatic, ..DefragProgress::default() };
            state.stop = false;
        } else if !automatic && state.progress.automatic {
            state.progress.automatic = false;
            state.superseded = true;
            state.stop = false;
        } else {
            return false;
        }
        state.request = Some(options);
        self.changed.notify_all();
        true
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.changed.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits until there is something to do. `None`: the store is being closed.
    pub(super) fn wait(&self, closing: impl Fn() -> bool) -> Option<DefragOptions> {
        let mut state = self.state.lock();
        loop {
            if closing() {
                return None;
            }
            if let Some(options) = state.request {
                state.superseded = false;
                return Some(options);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Another one was asked for than the one that is under way.
    pub(super) fn is_superseded(&self) -> bool {
        self.state.lock().superseded
    }

    /// Sleeps, unless it is to stop.
    pub(super) fn pause(&self, time: Duration, closing: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !state.stop && !closing() {
            self.changed.wait_for(&mut state, time);
        }
    }

    /// It is done; another one that was asked for during it is not.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        if !state.superseded || state.stop {
            state.request = None;
            state.superseded = false;
            state.stop = false;
            state.progress.running = false;
        }
        self.changed.notify_all();
    }

    /// Nothing is done any more, of what is asked for neither.
    pub(super) fn close(&self) {
        self.state.lock().over = true;
        self.stop();
        self.end();
    }

    /// Returns when none is under way.
    pub(crate) fn wait_for_end(&self) {
        let mut state = self.state.lock();
        while state.progress.running {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn wake(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use zones::MemoryDevice;

    use super::*;
    use crate::{CreateOptions, Kvdb, OpenOptions};

    const BY_ITSELF: DefragOptions =
        DefragOptions { bytes_per_second: None, fullest_percent: 75, objects: false };

    /// A caller is told that its own has begun: all of it is done, not the rest of another one.
    #[test]
    fn what_is_asked_for_during_an_automatic_one_is_done_as_it_was_asked_for() {
        let db = Kvdb::in_memory();
        let defragmenter = db.defragmenter();
        assert!(defragmenter.request(BY_ITSELF, true));
        // Its thread takes it.
        assert_eq!(defragmenter.wait(|| false), Some(BY_ITSELF));
        let asked = DefragOptions { bytes_per_second: Some(1), ..DefragOptions::default() };
        assert!(defragmenter.request(asked, false));
        assert!(!defragmenter.request(asked, false), "it is under way");
        defragmenter.end();
        assert!(defragmenter.progress().running, "what was asked for is to be done");
        assert_eq!(defragmenter.wait(|| false), Some(asked));
        defragmenter.end();
        assert!(!defragmenter.progress().running);
    }

    /// The store is closed when one has been asked for and not begun.
    #[test]
    fn nothing_waits_for_one_that_the_thread_does_not_begin() {
        let open = OpenOptions { memory: 32 << 20, ..OpenOptions::default() };
        let create = CreateOptions { open, ..CreateOptions::default() };
        let env = Arc::new(env::Machine::default());
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), env, create).unwrap();
        let defragmenter = db.defragmenter();
        defragmenter.signals.stop_soon();
        assert!(defragmenter.request(BY_ITSELF, false));
        let (done, ended) = mpsc::channel();
        let waits = db.clone();
        // Not joined: it may wait for ever.
        std::thread::spawn(move || {
            waits.wait_for_defragment();
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(std::time::Duration::from_secs(20));
        ended.expect("it waits for ever");
        assert!(!defragmenter.request(BY_ITSELF, false), "there is no thread for it any more");
    }
}
