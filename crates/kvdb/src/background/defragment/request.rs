//! Controls defragmentation, and passes while the store is quiet: start, stop, wait, progress.

use std::time::Duration;

use super::{DefragOptions, DefragProgress, Defragmenter};

/// The state of a pass that lays values while the store is quiet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Laying {
    #[default]
    Not,
    /// The thread is to begin one.
    Wanted,
    UnderWay,
}

/// The next work of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Defragmentation(DefragOptions),
    Laying,
}

#[derive(Default)]
pub(super) struct DefragState {
    /// The holes when it was last started automatically: zones, and live bytes in them.
    pub(super) seen: (u64, u64),
    /// Bytes of holes when a round last gained nothing: these cannot be gained.
    pub(super) in_vain: Option<u64>,
    pub(super) request: Option<DefragOptions>,
    /// A request has replaced the one that the thread is working on.
    superseded: bool,
    pub(super) progress: DefragProgress,
    /// The caller has asked it to stop.
    pub(super) stop: bool,
    /// A pass while the store is quiet.
    laying: Laying,
    /// The thread has ended, so no request would be served.
    over: bool,
}

impl Defragmenter {
    pub(crate) fn progress(&self) -> DefragProgress {
        self.state.lock().progress
    }

    /// Requests a defragmentation. Returns `false` if one is in progress already. A request by hand
    /// replaces an automatic one, which ends after its current part.
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

    /// Requests a pass that lays values. A defragmentation that is requested goes first.
    pub(super) fn request_laying(&self) {
        let mut state = self.state.lock();
        if !state.over && state.laying == Laying::Not {
            state.laying = Laying::Wanted;
            self.changed.notify_all();
        }
    }

    /// Returns whether a pass that lays values is requested or in progress, or due by `is_due`.
    /// None begins or ends during the call: one that begins is not due any more, and one that ends
    /// may be due again.
    pub(super) fn is_laying_or(&self, is_due: impl FnOnce() -> bool) -> bool {
        let state = self.state.lock();
        state.laying != Laying::Not || is_due()
    }

    /// Ends a pass that lays values.
    pub(super) fn end_laying(&self) {
        self.state.lock().laying = Laying::Not;
    }

    /// Returns whether a defragmentation is requested or in progress.
    pub(super) fn is_requested(&self) -> bool {
        self.state.lock().request.is_some()
    }

    /// Waits for a request. Returns `None` if the store is being closed.
    pub(super) fn wait(&self, closing: impl Fn() -> bool) -> Option<Wanted> {
        let mut state = self.state.lock();
        loop {
            if closing() {
                return None;
            }
            if let Some(options) = state.request {
                state.superseded = false;
                return Some(Wanted::Defragmentation(options));
            }
            if state.laying == Laying::Wanted {
                state.laying = Laying::UnderWay;
                // The request was made to a defragmentation that has ended.
                state.stop = false;
                return Some(Wanted::Laying);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Returns whether another request has replaced the current one.
    pub(super) fn is_superseded(&self) -> bool {
        self.state.lock().superseded
    }

    /// Sleeps for `time`, or until the request is stopped.
    pub(super) fn pause(&self, time: Duration, closing: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !state.stop && !closing() {
            self.changed.wait_for(&mut state, time);
        }
    }

    /// Ends the current request, but not one that has replaced it.
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

    /// Ends all requests, including those not yet begun.
    pub(super) fn close(&self) {
        self.state.lock().over = true;
        self.stop();
        self.end();
        self.end_laying();
    }

    /// Waits until no defragmentation is in progress.
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

    /// A caller whose request was accepted gets a whole defragmentation with its options, not the
    /// rest of an automatic one.
    #[test]
    fn what_is_asked_for_during_an_automatic_one_is_done_as_it_was_asked_for() {
        let db = Kvdb::in_memory();
        let defragmenter = db.defragmenter();
        assert!(defragmenter.request(BY_ITSELF, true));
        // The thread takes the request.
        let by_itself = Some(Wanted::Defragmentation(BY_ITSELF));
        assert_eq!(defragmenter.wait(|| false), by_itself);
        let asked = DefragOptions { bytes_per_second: Some(1), ..DefragOptions::default() };
        assert!(defragmenter.request(asked, false));
        assert!(!defragmenter.request(asked, false), "it is under way");
        defragmenter.end();
        assert!(defragmenter.progress().running, "what was asked for is to be done");
        assert_eq!(defragmenter.wait(|| false), Some(Wanted::Defragmentation(asked)));
        defragmenter.end();
        assert!(!defragmenter.progress().running);
    }

    #[test]
    fn a_defragmentation_goes_before_a_pass_that_was_requested_first() {
        let db = Kvdb::in_memory();
        let defragmenter = db.defragmenter();
        defragmenter.request_laying();
        let is_laying = || defragmenter.is_laying_or(|| false);
        assert!(is_laying() && !defragmenter.is_requested());
        assert!(defragmenter.request(BY_ITSELF, true));
        assert_eq!(defragmenter.wait(|| false), Some(Wanted::Defragmentation(BY_ITSELF)));
        defragmenter.end();
        assert_eq!(defragmenter.wait(|| false), Some(Wanted::Laying));
        assert!(is_laying());
        defragmenter.end_laying();
        assert!(!is_laying() && defragmenter.is_laying_or(|| true));
    }

    /// The store is closed when a defragmentation has been requested but not begun.
    #[test]
    fn nothing_waits_for_one_that_the_thread_does_not_begin() {
        let open = OpenOptions { memory: 32 << 20, ..OpenOptions::default() };
        let create = CreateOptions { open, ..CreateOptions::default() };
        let env = Arc::new(env::Machine::default());
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), env, create).unwrap();
        let defragmenter = db.defragmenter();
        defragmenter.engine.signals.stop_soon();
        assert!(defragmenter.request(BY_ITSELF, false));
        let (done, ended) = mpsc::channel();
        let waits = db.clone();
        // Do not join this thread: it may wait forever.
        std::thread::spawn(move || {
            waits.wait_for_defragment();
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(std::time::Duration::from_secs(20));
        ended.expect("it waits for ever");
        assert!(!defragmenter.request(BY_ITSELF, false), "there is no thread for it any more");
    }
}
