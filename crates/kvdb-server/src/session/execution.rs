//! The state of a session while several commands take effect together, in an `EXEC`, a script or a
//! function. They work in one transaction, see one time, and keep their effects and the lines for
//! `MONITOR` until it commits.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use bytes::Bytes;
use env::sync::{Mutex, MutexGuard};
use kvdb::{NestedBatch, Transaction};

use crate::effects::{Effect, Effects};
use crate::failure::Failure;
use crate::scripts::Slot;
use crate::waiters::Spot;

/// Approximate memory of a kept line in addition to its bytes.
const PER_LINE: usize = 128;

/// The transaction in which the commands work.
pub enum Executing {
    /// The transaction that the connection has joined. The changes of the commands are applied to
    /// it after all of them have run.
    Joined(Mutex<NestedBatch>),
    /// A transaction of its own.
    Own(Transaction),
}

/// The state of the commands that take effect together.
#[derive(Default)]
pub struct Execution {
    /// Set while they run, under the locks.
    executing: Option<Executing>,
    /// The commands belong to an `EXEC`.
    is_exec: bool,
    /// The locks of all keys are held. Under the locks of only some keys a types dictionary cannot
    /// be created.
    all_locked: bool,
    /// Taken for the scripts of an `EXEC`.
    slot: Option<Slot>,
    /// The time that all commands see, milliseconds since 1970.
    time: Option<u64>,
    /// The time that the commands have slept under the locks (`DEBUG SLEEP`).
    slept: Duration,
    /// A failure of the store, because of which nothing at all must be done.
    stopped: Option<Failure>,
    /// The command under way has applied a part of its changes, which is not undone alone.
    partly: Cell<bool>,
    /// Effects of the commands, carried out after the commit.
    effects: RefCell<Effects>,
    /// The commands as they will be shown by `MONITOR`, and their bytes.
    lines: (Vec<Bytes>, usize),
}

impl Execution {
    /// Notes that an `EXEC` begins, which has taken this slot for its scripts.
    pub fn begin_exec(&mut self, slot: Option<Slot>) {
        (self.slot, self.is_exec) = (slot, true);
    }
    pub fn end_exec(&mut self) {
        (self.slot, self.is_exec) = (None, false);
    }
    /// Returns whether the commands in progress belong to an `EXEC`.
    pub fn is_exec(&self) -> bool {
        self.is_exec
    }
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.slot.take()
    }
    /// Keeps the slot for the next script of the same execution. Without a next script the slot is
    /// released.
    pub fn keep_slot(&mut self, slot: Slot) {
        self.slot = self.is_running().then_some(slot);
    }

    /// Notes that an attempt begins, whose commands see this time.
    pub fn begin_attempt(&mut self, time: u64) {
        (self.time, self.slept) = (Some(time), Duration::ZERO);
    }
    /// Forgets all of an attempt. Effects that were not taken are dropped.
    pub fn end_attempt(&mut self) {
        (self.executing, self.stopped, self.time) = (None, None, None);
        self.all_locked = false;
        drop(self.effects.take());
    }
    pub fn time(&self) -> Option<u64> {
        self.time
    }
    /// Notes that a command sleeps for this time. Returns `false`, and notes nothing, if the
    /// commands of the attempt would sleep for more than `most` in all.
    pub fn may_sleep(&mut self, time: Duration, most: Duration) -> bool {
        let slept = self.slept.saturating_add(time);
        let may = slept <= most;
        if may {
            self.slept = slept;
        }
        may
    }
    pub fn set_all_locked(&mut self, all_locked: bool) {
        self.all_locked = all_locked;
    }
    pub fn are_all_locked(&self) -> bool {
        self.all_locked
    }

    pub fn begin(&mut self, executing: Executing) {
        self.executing = Some(executing);
    }
    /// Ends the execution, and returns where the commands have worked.
    pub fn end(&mut self) -> Option<Executing> {
        self.executing.take()
    }
    pub fn is_running(&self) -> bool {
        self.executing.is_some()
    }
    /// Returns the transaction if the commands work in one of their own.
    pub fn own(&self) -> Option<&Transaction> {
        match &self.executing {
            Some(Executing::Own(own)) => Some(own),
            Some(Executing::Joined(_)) | None => None,
        }
    }
    /// Returns the changes that will be applied to the joined transaction.
    pub fn nested(&self) -> Option<MutexGuard<'_, NestedBatch>> {
        match &self.executing {
            Some(Executing::Joined(nested)) => Some(nested.lock()),
            Some(Executing::Own(_)) | None => None,
        }
    }

    /// Notes that a command begins, which has applied none of its changes.
    pub fn begin_change(&self) {
        self.partly.set(false);
    }
    /// Notes that it has applied a part of them.
    pub fn note_part(&self) {
        self.partly.set(true);
    }
    /// Returns the failure of the command. After a part of its changes, none of the commands that
    /// take effect together may do so.
    pub fn undoing(&self, failure: Failure) -> Failure {
        match self.partly.get() && !failure.is_of_the_store() {
            true => Failure::Undone(format!(
                "a command had changed something when it failed, so nothing was done: {failure}"
            )),
            false => failure,
        }
    }

    /// Notes the failure of a command because of which nothing must be done, or that there is none.
    pub fn stop(&mut self, failure: Option<Failure>) {
        self.stopped = failure;
    }
    pub fn take_stopped(&mut self) -> Option<Failure> {
        self.stopped.take()
    }

    /// Keeps effects until the commit, up to `most` bytes. Returns the number of those that do not
    /// fit.
    pub fn keep_effects(&self, spot: Spot, effects: Vec<Effect>, most: usize) -> u64 {
        self.effects.borrow_mut().add(spot, effects, most)
    }
    pub fn take_effects(&self) -> Effects {
        self.effects.take()
    }
    /// Returns the bytes of the effects that are kept.
    pub fn effect_bytes(&self) -> usize {
        self.effects.borrow().bytes()
    }
    pub fn has_room_for_effect(&self, bytes: usize, most: usize) -> bool {
        self.effects.borrow().has_room(bytes, most)
    }

    /// Returns whether another line for `MONITOR` may be kept, where `most` bytes may be.
    pub fn has_room_for_line(&self, most: usize) -> bool {
        self.lines.1 <= most
    }
    pub fn keep_line(&mut self, line: Bytes) {
        self.lines.1 += line.len() + PER_LINE;
        self.lines.0.push(line);
    }
    pub fn take_lines(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.lines).0
    }
}
