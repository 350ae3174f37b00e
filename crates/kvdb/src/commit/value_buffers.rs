//! The memory that deferred values are copied into.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;
/// Chunks of memory that values are copied into. They are used again once nothing refers to them:
/// memory from the system costs more than the copy.
#[derive(Default)]
pub(crate) struct ValueBuffers {
    filling: BytesMut,
    /// `filling` is a chunk.
    started: bool,
    /// Full ones: their empty ends, by which they can be had back.
    full: VecDeque<BytesMut>,
}

impl ValueBuffers {
    /// A copy of `value`, which is at most a chunk long.
    pub(crate) fn copy(&mut self, value: &[u8]) -> Bytes {
        if self.filling.capacity() < value.len() {
            let next = match self.full.front_mut().is_some_and(|oldest| oldest.try_reclaim(CHUNK)) {
                true => self.full.pop_front().unwrap_or_default(),
                false => BytesMut::with_capacity(CHUNK),
            };
            let full = std::mem::replace(&mut self.filling, next);
            if self.started {
                self.full.push_back(full);
            }
            self.started = true;
        }
        self.filling.extend_from_slice(value);
        self.filling.split().freeze()
    }

    /// Gives up chunks beyond so many bytes; what is referred to stays.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.full.truncate(bytes / CHUNK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_used_again_when_nothing_refers_to_them() {
        let mut chunks = ValueBuffers::default();
        let mut last = Bytes::new();
        for i in 0..40_000u32 {
            let value = vec![i as u8; 1 + (i as usize * 37) % 5000];
            last = chunks.copy(&value);
            assert_eq!(last, value);
        }
        assert!(chunks.full.len() <= 2, "{} chunks for one value", chunks.full.len());
        drop(last);
        let all: Vec<Bytes> = (0..1000).map(|_| chunks.copy(&[3; 5000])).collect();
        assert!(chunks.full.len() >= 4);
        assert!(all.iter().all(|v| v == &[3; 5000][..]));
        chunks.keep(0);
        assert!(all.iter().all(|v| v == &[3; 5000][..]), "what is referred to stays");
    }
}
