//! The memory that deferred values are copied into.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;

/// Buffers that values are copied into. They are used again once nothing refers to them: memory
/// from the system costs more than the copy.
#[derive(Default)]
pub(crate) struct ValueBuffers {
    filling: BytesMut,
    /// `filling` is a buffer.
    started: bool,
    /// Full ones: their empty ends, by which they can be had back.
    full: VecDeque<BytesMut>,
}

impl ValueBuffers {
    /// A copy of `value`, which is at most a buffer long.
    pub(crate) fn copy(&mut self, value: &[u8]) -> Bytes {
        if self.filling.capacity() < value.len() {
            let next = match self.full.front_mut().is_some_and(|oldest| oldest.try_reclaim(BUFFER))
            {
                true => self.full.pop_front().unwrap_or_default(),
                false => BytesMut::with_capacity(BUFFER),
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

    /// Gives up buffers beyond so many bytes; what is referred to stays.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.full.truncate(bytes / BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_when_nothing_refers_to_them() {
        let mut buffers = ValueBuffers::default();
        let mut last = Bytes::new();
        for i in 0..40_000u32 {
            let value = vec![i as u8; 1 + (i as usize * 37) % 5000];
            last = buffers.copy(&value);
            assert_eq!(last, value);
        }
        assert!(buffers.full.len() <= 2, "{} buffers for one value", buffers.full.len());
        drop(last);
        let all: Vec<Bytes> = (0..1000).map(|_| buffers.copy(&[3; 5000])).collect();
        assert!(buffers.full.len() >= 4);
        assert!(all.iter().all(|v| v == &[3; 5000][..]));
        buffers.keep(0);
        assert!(all.iter().all(|v| v == &[3; 5000][..]), "what is referred to stays");
    }
}
