//! Questions about the changes of a transaction, to the host of the files on the server.

use bytes::Bytes;
use kvdb::MAX_KEY;

use super::ServedTransaction;
use crate::body::{ANSWER_BYTES, MAX_KEYS};
use crate::error::Error;
use crate::reply::Reply;
use crate::request::Request;

/// Limit of the bytes of an answer.
const MOST: u64 = 512 << 20;

impl ServedTransaction {
    /// Asks the host of the files on the server about the changes of the transaction, all of which
    /// are sent first. The words and the answer are those of the host.
    pub fn review(&self, words: &[Bytes]) -> kvdb::Result<Vec<u8>> {
        self.check()?;
        let bytes = words.iter().map(Bytes::len).sum::<usize>();
        let is_long = words.iter().any(|word| word.len() > MAX_KEY);
        if words.len() > MAX_KEYS || bytes > ANSWER_BYTES || is_long {
            let what = format!("{} words of {bytes} bytes in one question", words.len());
            return Err(kvdb::Error::Limit(what));
        }
        let _alone = self.reviewing.lock();
        self.send()?;
        let mut found = Vec::new();
        let mut whole = None;
        loop {
            let offset = found.len() as u64;
            let request =
                |transaction| Request::Review { transaction, offset, words: words.to_vec() };
            let reply = self.ask(request).map_err(|e| self.told(e))?;
            let Reply::Part { length, bytes } = reply else {
                return Err(self.told(Error::Unexpected));
            };
            found.extend_from_slice(&bytes);
            if *whole.get_or_insert(length) != length {
                let what = "the transaction was changed while its changes were read: try it again";
                return Err(kvdb::Error::Invalid(what.into()));
            }
            match found.len() as u64 {
                all if all == length => return Ok(found),
                all if all < length && !bytes.is_empty() && length <= MOST => {}
                _ => return Err(self.told(Error::Unexpected)),
            }
        }
    }
}
