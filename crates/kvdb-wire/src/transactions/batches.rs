//! The numbered batches of a transaction (`sequence`). A savepoint and a rollback have numbers of
//! the same sequence.

use std::collections::HashMap;
use std::sync::Arc;

use env::sync::MutexGuard;
use env::sync::atomic::Ordering;
use kvdb::{Batch, ServedChange};

use super::{Answer, Held, Opened, State, Transactions, no_dictionary};
use crate::body::TransactionKey;
use crate::changes::{add_changes, dictionary_of, gives_back, only_deletes, size_of_change};
use crate::failure::{Failure, FailureCode};
use crate::records::Noted;
use crate::sequence::{Refused, is_next};
use crate::tenants::Tenant;

impl Transactions {
    /// Locks the state for the batch of this number if it is the next one. Returns `None` if the
    /// batch was already applied.
    fn next<'a>(&self, opened: &'a Held, number: u64) -> Answer<Option<MutexGuard<'a, State>>> {
        let state = self.lock(opened)?;
        if is_next(number, opened.connection, state.noted.batches, state.refused)? {
            return Ok(Some(state));
        }
        // The client is alive, so renew the lease.
        let renewed = opened.transaction.revision();
        renewed.map(|_| None).map_err(|e| self.failed(opened, e))
    }

    /// Returns whether the batch of this number was already applied. Fails if it is not the next
    /// one either.
    pub fn has(&self, opened: &Held, number: u64) -> Answer<bool> {
        self.next(opened, number).map(|next| next.is_none())
    }

    /// Fails with `why`, after noting that a part of this batch was refused: its client may send
    /// another batch of the same number, which none that comes late on an earlier connection may
    /// take. Succeeds if the batch was applied in the meantime.
    pub fn refuse(&self, opened: &Held, number: u64, why: Failure) -> Answer<()> {
        match self.next(opened, number)? {
            Some(mut state) => state.end(opened, number, Err(why)),
            None => Ok(()),
        }
    }

    /// Applies a batch, at most once.
    pub fn apply(&self, opened: &Held, number: u64, changes: Vec<ServedChange>) -> Answer<()> {
        let Some(mut state) = self.next(opened, number)? else { return Ok(()) };
        let applied = self.apply_next(opened, number, changes);
        state.end(opened, number, applied)
    }

    /// Applies the next batch. The caller holds the lock of the state, so no other batch takes this
    /// number.
    fn apply_next(&self, opened: &Held, number: u64, changes: Vec<ServedChange>) -> Answer<()> {
        if let Some(change) = changes.iter().find(|change| !opened.may(dictionary_of(change))) {
            return Err(no_dictionary(dictionary_of(change)));
        }
        self.host.note_changes(&changes);
        let referred = self.referred(opened, &changes)?;
        let mut batch = Batch::new();
        if self.admit(opened, &changes, referred.bytes)? {
            batch.releases_space();
        }
        add_changes(&mut batch, changes, referred.values);
        self.note(opened, &mut batch, number);
        opened.transaction.apply(batch).map_err(|e| self.failed(opened, e))?;
        opened.measure();
        Ok(())
    }

    /// Fails if the transactions of all clients would exceed their common limit, or those of one
    /// tenant its share of it. Returns whether the batch releases space and may exceed its
    /// transaction's limit. A batch that releases space may exceed all limits by an eighth, since
    /// otherwise a client at a limit could not remove anything. `referred` is the number of bytes
    /// that the batch puts by reference.
    fn admit(&self, opened: &Opened, changes: &[ServedChange], referred: u64) -> Answer<bool> {
        let sent = changes.iter().map(size_of_change).sum::<usize>() as u64;
        let more = sent.saturating_add(referred);
        let with_eighth = |most: u64| most.saturating_add(most / 8);
        let gives_back = gives_back(changes);
        let own = opened.taken.load(Ordering::Relaxed).saturating_add(more);
        let releases = gives_back && own <= with_eighth(self.most_bytes);
        let share = opened.tenant.get().map(|of| (Some(of), of.share(self.most_together)));
        // Returns the limit that would be exceeded, and the bytes that count towards it.
        let exceeded = |open: &HashMap<TransactionKey, Arc<Opened>>| {
            let limits = [(None, self.most_together)].into_iter().chain(share);
            let mut limits = limits.map(|(of, most): (Option<&Arc<Tenant>>, u64)| {
                let counted = open.values().filter(|one| of.is_none_or(|of| one.is_of(of)));
                let taken = counted.map(|one| one.taken.load(Ordering::Relaxed));
                (of, most, taken.fold(0, u64::saturating_add))
            });
            limits.find(|(_, most, taken)| {
                let most = if gives_back { with_eighth(*most) } else { *most };
                taken.saturating_add(more) > most
            })
        };
        let mut open = self.open.lock();
        if exceeded(&open).is_some() {
            // Transactions that have ended by themselves no longer count, and merges may have
            // shrunk others.
            self.forget_ended(&mut open);
            open.values().for_each(|one| one.measure());
        }
        let Some((of, most, taken)) = exceeded(&open) else { return Ok(releases) };
        if only_deletes(changes) {
            return Ok(releases);
        }
        let whose = if of.is_some() { "of this token or certificate" } else { "of clients" };
        let what = format!(
            "the transactions {whose} take {taken} bytes of the store, and may take {most} \
             together: commit or abort some of them, or remove something"
        );
        Err(Failure { code: FailureCode::NoSpace, what })
    }

    /// Notes the number and the holder in the batch of a durable transaction, which is found by
    /// this note.
    fn note(&self, opened: &Held, batch: &mut Batch, number: u64) {
        if opened.transaction.is_durable() {
            let noted = Noted { batches: number, holder: Some(opened.holder) };
            self.records.note_batches(batch, &opened.key, noted);
        }
    }

    fn apply_note(&self, opened: &Held, number: u64) -> Answer<()> {
        let mut batch = Batch::new();
        self.note(opened, &mut batch, number);
        opened.transaction.apply(batch).map_err(|e| self.failed(opened, e))
    }

    /// Marks a state, at most once.
    pub fn savepoint(&self, opened: &Held, number: u64) -> Answer<()> {
        let Some(mut state) = self.next(opened, number)? else { return Ok(()) };
        let savepoint = opened.transaction.savepoint().map_err(|e| self.failed(opened, e));
        let done = savepoint.and_then(|savepoint| {
            self.apply_note(opened, number)?;
            state.savepoints.insert(number, savepoint);
            Ok(())
        });
        state.end(opened, number, done)
    }

    /// Rolls back to a savepoint, at most once.
    pub fn roll_back(&self, opened: &Held, number: u64, to: u64) -> Answer<()> {
        let Some(mut state) = self.next(opened, number)? else { return Ok(()) };
        let done = self.roll_back_next(opened, &mut state, number, to);
        state.end(opened, number, done)
    }

    fn roll_back_next(&self, opened: &Held, state: &mut State, number: u64, to: u64) -> Answer<()> {
        let Some(savepoint) = state.savepoints.get(&to) else {
            let what = "there is no such savepoint: it is gone with a later one, or a restart";
            return Err(Failure { code: FailureCode::Invalid, what: what.into() });
        };
        // The rollback undoes the notes of later batches, so it must be noted in the same step: a
        // crash in between would leave a transaction that lacks batches which its client has seen
        // synced and no longer keeps.
        let mut batch = Batch::new();
        self.note(opened, &mut batch, number);
        let done = opened.transaction.rollback_and_apply(savepoint, batch);
        done.map_err(|e| self.failed(opened, e))?;
        state.savepoints.split_off(&(to + 1));
        // The store has the note, whether or not the sync below succeeds.
        state.noted.batches = number;
        if opened.transaction.is_durable() {
            // The rollback could not be repeated after a crash, which ends all savepoints.
            opened.transaction.sync().map_err(|e| self.failed(opened, e))?;
        }
        Ok(())
    }

    /// Syncs all applied batches if the transaction is durable.
    pub fn sync(&self, opened: &Held) -> Answer<()> {
        drop(self.lock(opened)?);
        opened.transaction.sync().map_err(|e| self.failed(opened, e))
    }
}

impl State {
    /// Notes the outcome of the element of this number.
    fn end(&mut self, of: &Held, number: u64, done: Answer<()>) -> Answer<()> {
        match &done {
            Ok(()) => self.noted.batches = number,
            Err(_) => self.refused = Some(Refused { number, connection: of.connection }),
        }
        done
    }
}
