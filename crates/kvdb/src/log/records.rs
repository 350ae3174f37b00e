//! Assembles the records of a stream from its pieces.

use bytes::Bytes;

use crate::error::{Error, Result};

/// The maximum size of the length in front of a record, in bytes.
const LONGEST_LENGTH: usize = 10;

/// Assembles the pieces of a stream into its records. A record is a length (varint), followed by
/// that many bytes.
#[derive(Default)]
pub(crate) struct Records {
    /// The bytes of the incomplete record.
    open: Vec<u8>,
    /// The position of the first byte of `open`.
    at: u64,
}

impl Records {
    pub(crate) fn new(position: u64) -> Self {
        Records { open: Vec::new(), at: position }
    }

    /// Returns the position after the last complete record.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Returns the size of the incomplete record, in bytes.
    pub(crate) fn unfinished(&self) -> u64 {
        self.open.len() as u64
    }

    /// Adds the next piece, and calls `each` with each record that is now complete and the position
    /// after the record. If `each` returns `false`, this stops and returns `false`, and the
    /// position stays before that record.
    pub(crate) fn push(
        &mut self,
        piece: &Bytes,
        mut each: impl FnMut(u64, Bytes) -> Result<bool>,
    ) -> Result<bool> {
        let mut all = if self.open.is_empty() {
            piece.clone()
        } else {
            self.open.extend_from_slice(piece);
            Bytes::from(std::mem::take(&mut self.open))
        };
        loop {
            let mut rest = &all[..];
            let len = match zones::varint::get_u64(&mut rest) {
                Ok(len) => len,
                Err(_) if all.len() < LONGEST_LENGTH => break,
                Err(_) => {
                    return Err(Error::Corrupt(format!(
                        "at position {} of a stream stands no length of a record",
                        self.at
                    )));
                }
            };
            if (rest.len() as u64) < len {
                break;
            }
            let head = all.len() - rest.len();
            let (record, next) = (head..head + len as usize, head + len as usize);
            let end = self.at + next as u64;
            if !each(end, all.slice(record))? {
                return Ok(false);
            }
            all = all.slice(next..);
            self.at = end;
        }
        // Convert a unique `Bytes` without a copy, so that a record that spans many chunks is not
        // copied once for each chunk.
        self.open = match all.try_into_mut() {
            Ok(unique) => unique.into(),
            Err(shared) => shared.to_vec(),
        };
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use env::Random;

    use super::*;

    #[test]
    fn records_come_whole_however_the_pieces_are_cut() {
        let mut random = Random::new(3);
        let mut stream = Vec::new();
        let mut all = Vec::new();
        for _ in 0..50 {
            let mut record = vec![0; random.below(300) as usize];
            random.fill(&mut record);
            zones::varint::put_u64(&mut stream, record.len() as u64);
            stream.extend_from_slice(&record);
            all.push(record);
        }
        let whole = stream.len() as u64;
        stream.extend_from_slice(&[200, 1, 0, 0, 1, 2, 3]);
        let (mut records, mut found) = (Records::new(5), Vec::new());
        let mut rest = Bytes::from(stream);
        while !rest.is_empty() {
            let piece = rest.split_to((1 + random.below(100) as usize).min(rest.len()));
            let each = |_, record: Bytes| {
                found.push(record.to_vec());
                Ok(true)
            };
            records.push(&piece, each).unwrap();
        }
        assert_eq!(found, all);
        assert_eq!((records.position(), records.unfinished()), (5 + whole, 7));
    }
}
