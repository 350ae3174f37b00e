//! The sending of a transaction's changes to the server. Gathered changes become numbered batches,
//! and one thread sends them for all that wait, in order.

use std::time::Duration;

use env::Instant;

use super::ServedTransaction;
use crate::client::Connection;
use crate::deadline::left;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::gathered::Gathered;
use crate::outgoing::{Numbered, REQUEST_BYTES};
use crate::reply::Reply;
use crate::request::Request;
use crate::unfinished::MAX_CHANGE;

/// Limit of the bytes of a durable transaction's batches that are kept because they may not be on
/// the server's disk.
const KEPT: usize = 16 << 20;
/// Number of deleted ranges up to which replaced changes are left out: each change is compared with
/// all of them.
const MAX_RANGES: usize = 64;

impl ServedTransaction {
    /// Sends all changes made before this call. If several threads call it, one of them sends for
    /// all.
    pub fn send(&self) -> kvdb::Result<()> {
        self.check()?;
        let made = self.state.lock().made;
        // The sending thread ends when the server has disappeared.
        let is_taken = |(): &()| self.state.lock().taken >= made;
        let sent = self.sends.get(None, is_taken, || self.send_gathered());
        sent.map_err(|e| self.told(e))
    }

    /// Sends the pending changes, as the only thread that sends.
    fn send_gathered(&self) -> Result<()> {
        self.take_back();
        // First send the batches that could not be sent before, under the numbers that they have.
        self.send_queue()?;
        let made = {
            let mut state = self.state.lock();
            state.under_way = std::mem::take(&mut state.gathered);
            let under_way = &state.under_way;
            let is_short = under_way.ranges() <= MAX_RANGES && under_way.memory() <= MAX_CHANGE;
            if is_short && under_way.bytes() <= REQUEST_BYTES {
                // A directory's node, for one, is put again with each name that is made in it. What
                // is left is one unit, and fits a request.
                state.under_way.compact();
            }
            let changes = std::mem::take(&mut state.under_way.changes);
            let ends = std::mem::take(&mut state.under_way.ends);
            self.outgoing.lock().queue(changes, &ends);
            state.made
        };
        self.send_queue()?;
        let mut state = self.state.lock();
        state.under_way = Gathered::default();
        state.taken = state.taken.max(made);
        if state.gathered.bytes() == 0 {
            state.waits_since = None;
        }
        Ok(())
    }

    /// Merges changes that were refused for lack of space with those made since, which may have
    /// removed some of the data. They become one unit, unless that would be longer than a unit may
    /// be: the server would refuse it each time.
    fn take_back(&self) {
        let mut state = self.state.lock();
        if state.refused.is_none() {
            return;
        }
        let back = self.outgoing.lock().take_back();
        if back.is_empty() {
            return;
        }
        let later = std::mem::take(&mut state.gathered);
        let mut all = std::mem::take(&mut state.under_way);
        for changes in back {
            all.changes.extend(changes.iter().cloned());
            all.end_unit();
        }
        all.follow(later);
        all.compact_within(MAX_CHANGE);
        state.gathered = all;
    }

    fn send_queue(&self) -> Result<()> {
        loop {
            let Some((number, next)) = self.outgoing.lock().next() else { break };
            self.send_one(number, next)?;
        }
        let is_much = self.outgoing.lock().kept_bytes() > KEPT;
        if self.durable && is_much {
            self.keep()?;
        }
        // The server has all batches that were in flight.
        self.state.lock().under_way = Gathered::default();
        Ok(())
    }

    fn send_one(&self, number: u64, one: Numbered) -> Result<()> {
        let is_rollback = matches!(one, Numbered::RollBack(_));
        let sent = self.ask_by(|there, transaction, deadline| {
            send(there, &one, transaction, number, deadline)
        });
        match sent {
            Ok(_) => {
                self.outgoing.lock().taken(number, self.durable);
                let mut state = self.state.lock();
                state.refused = None;
                if is_rollback {
                    // Reads may have followed an error of its first attempt.
                    state.pages.clear();
                    state.new.clear();
                    state.made += 1;
                }
                Ok(())
            }
            Err(e) => {
                if let Error::Failed(Failure { code: FailureCode::NoSpace, what }) = &e
                    && self.state.lock().refused.replace((what.clone(), Instant::now())).is_none()
                {
                    tracing::warn!("changes of transaction {} are refused: {what}", self.id);
                }
                if !e.is_of_connection() {
                    // The server has refused the batch, so it has no batch of this number.
                    let mut outgoing = self.outgoing.lock();
                    outgoing.refused(number);
                    let is_long =
                        matches!(&e, Error::Failed(why) if why.code == FailureCode::Limit);
                    // A lease's batches are commits, so these stay whole.
                    if is_long && !self.is_lease() && outgoing.split_first() {
                        return Ok(());
                    }
                }
                Err(e)
            }
        }
    }

    /// Makes the server sync the batches that it has.
    pub(crate) fn keep(&self) -> Result<()> {
        let Some(last) = self.outgoing.lock().to_be_synced() else { return Ok(()) };
        self.ask(|transaction| Request::Sync { transaction })?;
        self.outgoing.lock().synced(last);
        Ok(())
    }

    /// Sends the pending changes, and then this element.
    pub(super) fn numbered(&self, one: Numbered) -> kvdb::Result<u64> {
        self.check()?;
        let mut number = 0;
        // Be the only thread that sends: otherwise another thread would get the outcome of this
        // element.
        let sent = self.sends.get(
            None,
            |()| false,
            || {
                self.send_gathered()?;
                number = self.outgoing.lock().add(one);
                // Count a change, so that a failed attempt is repeated.
                self.state.lock().made += 1;
                let sent = self.send_queue();
                if sent.is_err() {
                    // Do not send it later if it was not sent.
                    self.outgoing.lock().withdraw(number);
                }
                sent
            },
        );
        sent.map_err(|e| self.told(e))?;
        Ok(number)
    }
}

/// Sends an element of the sequence, in as many requests as it takes. It starts again if the server
/// has no memory for a long change, or has dropped its parts.
pub(super) fn send(
    there: &Connection,
    one: &Numbered,
    transaction: u64,
    number: u64,
    deadline: Instant,
) -> Result<Reply> {
    let mut pause = Duration::from_millis(10);
    loop {
        let mut all = one.requests(transaction, number).into_iter();
        let sent = all.try_fold(Reply::Done, |_, request| there.call(&request, deadline));
        match &sent {
            Err(Error::Failed(Failure { code: FailureCode::Again, what })) => {
                tracing::debug!("batch {number} is sent again: {what}");
                // Fail when the time is over: a server without memory does answer, and would be
                // waited for without an end.
                let Ok(time) = left(deadline) else { return sent };
                env::thread::sleep(pause.min(time));
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            _ => return sent,
        }
    }
}
