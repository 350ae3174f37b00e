//! The memory that deferred values are copied into.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// The size of a buffer, bytes.
const BUFFER: usize = 1 << 20;

/// The buffers that values are copied into. A buffer is reused once nothing refers to it, since
/// memory from the system costs more than the copy.
#[derive(Default)]
pub(crate) struct ValueBuffers {
    filling: BytesMut,
    /// `true` once `filling` is a buffer.
    started: bool,
    /// Full buffers, held by their empty ends, through which they can be reclaimed.
    full: VecDeque<BytesMut>,
}

impl ValueBuffers {
    /// Returns a copy of `value`, which is no longer than a buffer.
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

    /// Returns the bytes of the full buffers that values refer to. The others are used next, as far
    /// as all of them take no more than `most` bytes; the rest is dropped.
    pub(crate) fn in_use(&mut self, most: usize) -> usize {
        let (mut free, mut used) = (VecDeque::new(), VecDeque::new());
        for mut buffer in self.full.drain(..) {
            match buffer.try_reclaim(BUFFER) {
                true => free.push_back(buffer),
                false => used.push_back(buffer),
            }
        }
        let bytes = used.len() * BUFFER;
        free.truncate((most / BUFFER).saturating_sub(used.len()));
        free.append(&mut used);
        self.full = free;
        bytes
    }

    /// Drops the full buffers beyond `bytes` bytes. Values that refer to a buffer keep its memory.
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

    #[test]
    fn a_buffer_is_in_use_as_long_as_one_of_its_values_is() {
        let mut buffers = ValueBuffers::default();
        let mut all: Vec<Bytes> = (0..1000).map(|_| buffers.copy(&[3; 5000])).collect();
        let full = buffers.full.len();
        assert_eq!(buffers.in_use(usize::MAX), full * BUFFER);
        all.drain(..900);
        let used = buffers.in_use(usize::MAX);
        assert!(used <= BUFFER, "{used}");
        assert_eq!(buffers.full.len(), full, "the others are kept");
        all.extend((0..700).map(|_| buffers.copy(&[4; 5000])));
        assert!(buffers.full.len() <= full + 1, "the free ones come first");
        assert!(all[..100].iter().all(|v| v == &[3; 5000][..]));
        drop(all);
        assert_eq!(buffers.in_use(2 * BUFFER), 0);
        assert_eq!(buffers.full.len(), 2, "no more memory is kept than is said");
    }
}
