//! What is asked of a defragmentation, and how far it is: begin, stop, wait for its end.

use std::time::Duration;

use super::{DefragOptions, DefragProgress, Defragmenter};

#[derive(Default)]
pub(super) struct DefragState {
    /// The holes when it began by itself the last time: zones, and bytes alive in them.
    pub(super) seen: (u64, u64),
    pub(super) request: Option<DefragOptions>,
    pub(super) progress: DefragProgress,
    /// The caller has asked it to end.
    pub(super) stop: bool,
}

impl Defragmenter {
    pub(crate) fn progress(&self) -> DefragProgress {
        self.state.lock().progress
    }

    /// Asks for it; `false`: one is under way already (an automatic one takes up the options).
    pub(super) fn request(&self, options: DefragOptions, automatic: bool) -> bool {
        let mut state = self.state.lock();
        let new = state.request.is_none();
        if new {
            state.progress =
                DefragProgress { running: true, automatic, ..DefragProgress::default() };
            state.stop = false;
        } else if !automatic && state.progress.automatic {
            state.progress.automatic = false;
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
                return Some(options);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Sleeps, unless it is to stop.
    pub(super) fn pause(&self, time: Duration, closing: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !state.stop && !closing() {
            self.changed.wait_for(&mut state, time);
        }
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.request = None;
        state.stop = false;
        state.progress.running = false;
        self.changed.notify_all();
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
