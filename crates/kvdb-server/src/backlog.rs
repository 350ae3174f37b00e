//! Bytes that wait for a client or for a command, in the order of their arrival.
//!
//! A client may send a whole pipeline before it reads the first reply, as most libraries do. Then
//! replies wait here for the client, and requests that were read ahead wait for their turn. Each
//! backlog is bounded, and its bytes are charged to a budget that all connections share, except for
//! the first [`FREE`] bytes: a short pipeline makes progress even if other connections have
//! exhausted the budget.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::output::Budget;

/// Size of one allocation, in bytes.
const PIECE: usize = 16 << 10;
/// Number of bytes that a connection may hold without charging the budget.
const FREE: usize = PIECE;

/// A queue of bytes.
pub struct Backlog {
    pieces: VecDeque<Vec<u8>>,
    /// Number of bytes of the first piece that have been consumed.
    gone: usize,
    len: usize,
    /// Limit on the number of pieces.
    most: usize,
    budget: Arc<Budget>,
    charged: usize,
}

impl Backlog {
    /// Makes a backlog for at most `most` bytes, rounded up to 16 KiB.
    pub fn new(most: usize, budget: Arc<Budget>) -> Self {
        let most = most.div_ceil(PIECE).max(1);
        Backlog { pieces: VecDeque::new(), gone: 0, len: 0, most, budget, charged: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends as many of the bytes as there is room for, and returns their number.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let left = &bytes[taken..];
            let more = self.fill(|piece| {
                let more = left.len().min(piece.capacity() - piece.len());
                piece.extend_from_slice(&left[..more]);
            });
            match more {
                None => break,
                Some(more) => taken += more,
            }
        }
        taken
    }

    /// Returns whether there is room for at least one more byte.
    pub fn has_room(&mut self) -> bool {
        let full = self.pieces.back().is_none_or(|piece| piece.len() == piece.capacity());
        !full || self.add_piece().is_some()
    }

    /// Lets `append` add bytes to a buffer, up to its capacity, and returns the number of added
    /// bytes. Returns `None` if there is no room for another byte.
    pub fn fill(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> Option<usize> {
        if !self.has_room() {
            return None;
        }
        let piece = self.pieces.back_mut()?;
        let before = piece.len();
        append(piece);
        let more = piece.len() - before;
        self.len += more;
        Some(more)
    }

    fn add_piece(&mut self) -> Option<()> {
        if self.pieces.len() >= self.most {
            return None;
        }
        let more = (self.pieces.len() * PIECE + PIECE - FREE).saturating_sub(self.charged);
        if more > 0 && !self.budget.take(more) {
            return None;
        }
        self.charged += more;
        self.pieces.push_back(Vec::with_capacity(PIECE));
        Some(())
    }

    /// Returns the oldest bytes that are contiguous in memory, or an empty slice if there are
    /// none.
    pub fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece[self.gone..])
    }

    /// Drops the oldest `bytes` bytes; at most the length of [`Backlog::front`] may be dropped.
    pub fn consume(&mut self, bytes: usize) {
        self.gone += bytes;
        self.len -= bytes;
        if self.pieces.front().is_some_and(|piece| self.gone >= piece.len()) {
            self.pieces.pop_front();
            self.gone = 0;
            let still = (self.pieces.len() * PIECE).saturating_sub(FREE);
            self.budget.give_back(self.charged.saturating_sub(still));
            self.charged = self.charged.min(still);
        }
    }

    pub fn clear(&mut self) {
        while !self.is_empty() {
            self.consume(self.front().len());
        }
    }

    /// Moves the oldest bytes to the end of `into`, up to its capacity, and returns their
    /// number.
    pub fn take_into(&mut self, into: &mut Vec<u8>) -> usize {
        let before = into.len();
        while into.len() < into.capacity() && !self.is_empty() {
            let front = self.front();
            let taken = front.len().min(into.capacity() - into.len());
            into.extend_from_slice(&front[..taken]);
            self.consume(taken);
        }
        into.len() - before
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.budget.give_back(self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_and_the_budget_is_given_back() {
        let budget = Arc::new(Budget::new(1 << 20));
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let mut backlog = Backlog::new(1 << 20, budget.clone());
        let (mut put, mut got) = (0, Vec::new());
        let mut random = env::Random::new(1);
        while got.len() < bytes.len() {
            let some = (1 + random.below(40_000) as usize).min(bytes.len() - put);
            assert_eq!(backlog.push(&bytes[put..put + some]), some);
            put += some;
            let mut taken = Vec::with_capacity(1 + random.below(30_000) as usize);
            backlog.take_into(&mut taken);
            got.extend(taken);
            assert_eq!(backlog.is_empty(), put == got.len());
            assert!(budget.used() <= put - got.len() + PIECE);
        }
        assert!(got == bytes && backlog.is_empty() && budget.used() == 0);
    }

    #[test]
    fn what_is_free_is_had_where_the_budget_is_exhausted() {
        let budget = Arc::new(Budget::new(3 * PIECE));
        let mut one = Backlog::new(1 << 20, budget.clone());
        assert_eq!(one.push(&[1; 1 << 20]), FREE + 3 * PIECE);
        let mut other = Backlog::new(1 << 20, budget.clone());
        assert_eq!(other.push(&[1; 1 << 20]), FREE);
        one.consume(PIECE);
        assert_eq!(other.push(&[1; 1 << 20]), PIECE, "what one gives back another has");
        drop(one);
        drop(other);
        assert_eq!(budget.used(), 0);
        let mut short = Backlog::new(2 * PIECE, budget);
        assert_eq!((short.push(&[1; 3 * PIECE]), short.fill(|_| ())), (2 * PIECE, None));
    }
}
