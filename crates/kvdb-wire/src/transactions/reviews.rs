//! Questions about the changes of a transaction. The host answers them, since it knows the files of
//! which the changes are; the client and the host agree on words and answers between them.

use bytes::Bytes;

use super::{Answer, Held, Transactions};
use crate::body::ANSWER_BYTES;
use crate::reply::Reply;

impl Transactions {
    /// Returns the part of the host's answer that begins at `offset`. The answer is made again for
    /// each part, so that nothing is kept for a client that does not ask for the rest.
    pub fn review(&self, opened: &Held, words: &[Bytes], offset: u64) -> Answer<Reply> {
        let _reviewing = self.reviewing.lock();
        // No batch changes the transaction while it is looked at.
        let _state = self.lock(opened)?;
        let found = self.host.review(&opened.transaction, words);
        // Changes may have been taken out, by others that undo them.
        opened.measure();
        let found = Bytes::from(found.map_err(|e| self.failed(opened, e))?);
        let length = found.len() as u64;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(found.len());
        let to = found.len().min(from.saturating_add(ANSWER_BYTES));
        Ok(Reply::Part { length, bytes: found.slice(from..to) })
    }
}
