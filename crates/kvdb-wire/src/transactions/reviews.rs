//! Questions about the changes of a transaction. The host answers them, since it knows the files of
//! which the changes are; the client and the host agree on words and answers between them.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use env::sync::MutexGuard;
use kvdb::Error;

use super::{Answer, Held, State, Transactions};
use crate::body::ANSWER_BYTES;
use crate::reply::Reply;

/// Number of questions about one transaction for which the server distinguishes parts of the last
/// answer from those of earlier ones. A client may read the answers to several questions at a time.
const MARKS: usize = 16;

impl Transactions {
    /// Returns the part of the host's answer that begins at `offset`. The answer is made again for
    /// each part, so that nothing but a mark of it is kept for a client that does not ask for the
    /// rest. If it is another one than that of which the client has the beginning, the parts would
    /// not fit together, and this fails. Answers to the same question are read one after the other.
    pub fn review(&self, opened: &Held, words: &[Bytes], offset: u64) -> Answer<Reply> {
        // No batch changes the transaction while it is examined.
        let (_reviewing, mut state) = self.turn_to_review(opened)?;
        let one = &opened.transaction;
        // The client cannot renew the lease while the state is locked.
        let found = one.in_use(|| self.host.review(one, words));
        // Changes may have been taken out, by others that undo them.
        opened.measure();
        let found = Bytes::from(found.map_err(|e| self.failed(opened, e))?);
        let (question, answer) = (mark_of(words), mark_of(&found[..]));
        let begun = state.reviewed.iter().position(|(of, _)| *of == question);
        if offset == 0 {
            // An earlier answer may come again by chance, so none but the last one is known.
            if let Some(at) = begun {
                state.reviewed.remove(at);
            }
            state.reviewed.truncate(MARKS - 1);
            state.reviewed.push_front((question, answer));
        } else if begun.is_none_or(|at| state.reviewed[at].1 != answer) {
            let what = "the transaction was changed while its changes were read: try it again";
            return Err(self.failed(opened, Error::Invalid(what.into())));
        }
        let length = found.len() as u64;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(found.len());
        let to = found.len().min(from.saturating_add(ANSWER_BYTES));
        Ok(Reply::Part { length, bytes: found.slice(from..to) })
    }

    /// Waits until no other answer is made, and locks the state of the transaction. Neither is held
    /// while the other one is waited for, since both may take long: a question about a transaction
    /// that commits does not delay those about others, and a transaction whose turn has not come is
    /// used in the meantime.
    fn turn_to_review<'a>(
        &'a self,
        opened: &'a Held,
    ) -> Answer<(MutexGuard<'a, ()>, MutexGuard<'a, State>)> {
        loop {
            drop(self.lock(opened)?);
            let reviewing = self.reviewing.lock();
            if let Some(state) = opened.state.try_lock() {
                self.check_state(opened, &state)?;
                return Ok((reviewing, state));
            }
        }
    }
}

/// Returns a number that distinguishes a question, or an answer, from others in this process.
fn mark_of(of: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
