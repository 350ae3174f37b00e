//! The bytes that writes write.

use std::sync::OnceLock;

use super::LONGEST;

/// Bytes of which each write takes a range that its tag chooses: none is zero, so a hole is never
/// taken for data.
pub struct Pattern(Vec<u8>);

impl Pattern {
    /// The one of this process and those that it forks.
    pub fn shared() -> &'static Pattern {
        static PATTERN: OnceLock<Pattern> = OnceLock::new();
        PATTERN.get_or_init(Pattern::new)
    }

    fn new() -> Pattern {
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        let mut bytes = Vec::with_capacity(LONGEST + (1 << 20));
        while bytes.len() < LONGEST + (1 << 20) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_le_bytes().map(|b| b.max(1)));
        }
        Pattern(bytes)
    }

    pub(super) fn of(&self, tag: u32, len: u32) -> &[u8] {
        let at = (tag as usize).wrapping_mul(7919) % (1 << 20);
        &self.0[at..at + (len as usize).min(LONGEST)]
    }
}
