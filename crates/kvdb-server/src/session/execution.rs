//! The state of a session while several commands take effect together, in an `EXEC`, a script or
//! a function. The commands work in one transaction, see one time, and keep their effects and the
//! lines for `MONITOR` until the transaction commits.

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
    /// A transaction that was begun for these commands.
    Own(Transaction),
}

/// The state of the commands that take effect together.
#[derive(Default)]
pub struct Execution {
    /// The transaction of the commands. It is set while they run under the locks.
    executing: Option<Executing>,
    /// Set if the commands belong to an `EXEC`.
    is_exec: bool,
    /// Set if the locks of all keys are held. While only some keys are locked, a types dictionary
    /// cannot be created.
    all_locked: bool,
    /// A slot that was taken for the scripts of an `EXEC`.
    slot: Option<Slot>,
    /// The time that all commands see, in milliseconds since 1970.
    time: Option<u64>,
    /// The time that the commands have slept under the locks (`DEBUG SLEEP`).
    slept: Duration,
    /// A failure of the store, because of which none of the commands may take effect.
    stopped: Option<Failure>,
    /// Set if the current command has applied a part of its changes, which cannot be undone
    /// alone.
    partly: Cell<bool>,
    /// The effects of the commands, which are carried out after the commit.
    effects: RefCell<Effects>,
    /// The commands in the form in which `MONITOR` will show them, and the number of their bytes.
    lines: (Vec<Bytes>, usize),
}

impl Execution {
    /// Records that an `EXEC` begins, which has taken this slot for its scripts.
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
    /// Keeps the slot for the next script of the same execution. If no script follows, the slot
    /// is released.
    pub fn keep_slot(&mut self, slot: Slot) {
        self.slot = self.is_running().then_some(slot);
    }

    /// Records that an attempt begins, whose commands see this time.
    pub fn begin_attempt(&mut self, time: u64) {
        (self.time, self.slept) = (Some(time), Duration::ZERO);
    }
    /// Discards all state of an attempt. Effects that were not taken are dropped.
    pub fn end_attempt(&mut self) {
        (self.executing, self.stopped, self.time) = (None, None, None);
        self.all_locked = false;
        drop(self.effects.take());
    }
    pub fn time(&self) -> Option<u64> {
        self.time
    }
    /// Records that a command sleeps for this time. Returns `false`, and records nothing, if the
    /// commands of the attempt would sleep for more than `most` in total.
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
    /// Ends the execution, and returns the transaction in which the commands have worked.
    pub fn end(&mut self) -> Option<Executing> {
        self.executing.take()
    }
    pub fn is_running(&self) -> bool {
        self.executing.is_some()
    }
    /// Returns the transaction if it was begun for these commands.
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

    /// Records that a command begins, which has not applied any of its changes.
    pub fn begin_change(&self) {
        self.partly.set(false);
    }
    /// Records that the current command has applied a part of its changes.
    pub fn note_part(&self) {
        self.partly.set(true);
    }
    /// Returns the failure of the command. If the command has applied a part of its changes, none
    /// of the commands that take effect together may take effect.
    pub fn undoing(&self, failure: Failure) -> Failure {
        match self.partly.get() && !failure.is_of_the_store() {
            true => Failure::Undone(format!(
                "a command had changed something when it failed, so nothing was done: {failure}"
            )),
            false => failure,
        }
    }

    /// Sets or clears the failure of a command that prevents all of the commands from taking
    /// effect.
    pub fn stop(&mut self, failure: Option<Failure>) {
        self.stopped = failure;
    }
    pub fn take_stopped(&mut self) -> Option<Failure> {
        self.stopped.take()
    }

    /// Keeps effects until the commit, up to `most` bytes. Returns the number of effects that do
    /// not fit.
    pub fn keep_effects(&self, spot: Spot, effects: Vec<Effect>, most: usize) -> u64 {
        self.effects.borrow_mut().add(spot, effects, most)
    }
    pub fn take_effects(&self) -> Effects {
        self.effects.take()
    }
    /// Returns the number of bytes of the effects that are kept.
    pub fn effect_bytes(&self) -> usize {
        self.effects.borrow().bytes()
    }
    pub fn has_room_for_effect(&self, bytes: usize, most: usize) -> bool {
        self.effects.borrow().has_room(bytes, most)
    }

    /// Returns whether another line for `MONITOR` may be kept if the limit is `most` bytes.
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
