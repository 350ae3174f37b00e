//! Detects whether a stream that is relayed is complete. A truncated stream ends like any file, so
//! a program that relays it without parsing it would not notice.

use super::stream::{END, HEAD, MAGIC, TAIL};

/// Tracks the bytes of a [`crate::Kvdb::send`] stream as they are relayed.
///
/// ```
/// # let db = kvdb::Kvdb::in_memory();
/// db.snapshot("monday")?;
/// let mut stream = Vec::new();
/// db.send("monday", None, &mut stream, None)?;
/// let mut end = kvdb::StreamEnd::default();
/// end.pass(&stream[..stream.len() - 1]);
/// assert!(!end.has_come());
/// end.pass(&stream[stream.len() - 1..]);
/// assert!(end.has_come());
/// # Ok::<(), kvdb::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamEnd {
    /// Bytes before the next frame's head.
    left: u64,
    /// The bytes of the next frame's head that have arrived.
    head: Vec<u8>,
    /// The kind of the current frame, or of the last one.
    kind: u8,
}

impl Default for StreamEnd {
    fn default() -> Self {
        StreamEnd { left: MAGIC.len() as u64, head: Vec::with_capacity(HEAD), kind: 0 }
    }
}

impl StreamEnd {
    /// Processes the next bytes of the stream.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            self.left -= skipped as u64;
            bytes = &bytes[skipped..];
            let taken = (HEAD - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [kind, a, b, c, d] = self.head[..] {
                self.kind = kind;
                self.left = u64::from(u32::from_le_bytes([a, b, c, d])) + TAIL as u64;
                self.head.clear();
            }
        }
    }

    /// Returns whether the last frame is the one that ends a stream, and is complete. Damage is
    /// detected only by the receiver.
    pub fn has_come(&self) -> bool {
        self.kind == END && self.left == 0 && self.head.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Kvdb};

    #[test]
    fn every_part_of_a_stream_but_all_of_it_lacks_the_end() {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").expect("made").id();
        for n in 0..40u8 {
            db.put(dict, &[n], &[n; 300], Durability::Buffered).expect("put");
        }
        db.snapshot("s").expect("made");
        let mut stream = Vec::new();
        db.send("s", None, &mut stream, None).expect("sent");
        for piece in [1, 7, 4096, usize::MAX] {
            let mut end = StreamEnd::default();
            let (mut passed, mut at) = (Vec::new(), 0);
            while at < stream.len() {
                let next = &stream[at..stream.len().min(at.saturating_add(piece))];
                end.pass(next);
                at += next.len();
                passed.push(end.has_come());
            }
            assert_eq!(passed.pop(), Some(true), "in pieces of {piece}");
            assert!(!passed.contains(&true), "in pieces of {piece}");
        }
        assert!(!StreamEnd::default().has_come());
    }
}
