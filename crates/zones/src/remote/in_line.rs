//! Sequential reads of large values. For a reader that continues at its position, such as a reader
//! of one large file, as many bytes are fetched ahead as it has read, in several concurrent
//! requests. So the bytes that are fetched in vain never exceed the bytes that were read.

use env::sync::Mutex;

/// The number of readers at different positions that are distinguished.
const READERS: usize = 16;
/// The largest distance in bytes, before or after the end of an earlier read, at which a read still
/// continues it. Several requests of one reader may overtake each other.
const SLACK: u64 = 256 << 10;
/// The number of bytes that a reader must have read before anything is fetched ahead of it.
const LEAST: u64 = 512 << 10;
/// The largest number of bytes that are fetched ahead of one reader.
const MOST: u64 = 32 << 20;

#[derive(Clone, Copy, Default)]
struct Reader {
    start: u64,
    /// The end of the bytes that were read.
    at: u64,
    /// The end of the bytes that were announced.
    ahead: u64,
    used: u64,
}

/// The sequential readers of a store.
pub(super) struct InLine {
    /// The largest number of bytes that are fetched ahead of one reader.
    most: u64,
    state: Mutex<(u64, [Reader; READERS])>,
}

impl InLine {
    /// Creates the list of readers. `memory` is the number of bytes that requests in flight may
    /// fetch.
    pub fn new(memory: u64) -> InLine {
        InLine { most: MOST.min(memory / 2), state: Mutex::default() }
    }

    /// Records a read, and returns the range to fetch now, if there is one.
    pub fn read(&self, addr: u64, len: u64) -> Option<(u64, u64)> {
        let end = addr.saturating_add(len);
        let mut guard = self.state.lock();
        let (clock, readers) = &mut *guard;
        *clock += 1;
        let goes_on = |reader: &Reader| reader.used > 0 && reader.at.abs_diff(addr) <= SLACK;
        let Some(reader) = readers.iter_mut().find(|reader| goes_on(reader)) else {
            let new = Reader { start: addr, at: end, ahead: end, used: *clock };
            readers.iter_mut().min_by_key(|reader| reader.used).into_iter().for_each(|r| *r = new);
            return None;
        };
        reader.used = *clock;
        reader.at = reader.at.max(end);
        let read = reader.at - reader.start;
        let window = read.min(self.most);
        if read < LEAST || reader.ahead >= reader.at.saturating_add(window / 2) {
            return None;
        }
        let from = reader.ahead.max(reader.at);
        reader.ahead = reader.at.saturating_add(window);
        (from < reader.ahead).then_some((from, reader.ahead - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 128 << 10;

    #[test]
    fn a_reader_is_kept_ahead_of_by_as_much_as_it_has_read() {
        let readers = InLine::new(64 << 20);
        let (mut ahead, mut most) = (0, 0);
        for n in 0..1000 {
            if let Some((from, len)) = readers.read(n * STEP, STEP) {
                assert!(from >= ahead && from >= (n + 1) * STEP, "nothing twice");
                ahead = from + len;
            }
            let read = (n + 1) * STEP;
            assert!(ahead <= 2 * read && ahead <= read + MOST);
            if read >= LEAST {
                assert!(ahead >= read + read.min(MOST) / 2, "{read} {ahead}");
            }
            most = most.max(ahead.saturating_sub(read));
        }
        assert_eq!(most, MOST);
    }

    #[test]
    fn reads_in_no_order_and_of_little_are_no_readers_in_line() {
        let readers = InLine::new(64 << 20);
        for n in 0..10_000u64 {
            assert_eq!(readers.read((n * 7919 % 10_007) << 21, STEP), None);
        }
        assert_eq!((0..3).find_map(|n| readers.read((9 << 40) + n * STEP, STEP)), None);
        assert_eq!(readers.read(u64::MAX - 1, 9), None);
    }

    #[test]
    fn several_readers_are_told_apart_and_their_reads_may_overtake_each_other() {
        let readers = InLine::new(8 << 20);
        let mut asked = [0; 4];
        for n in 0..100u64 {
            for (reader, asked) in asked.iter_mut().enumerate() {
                let at = (n ^ 1) * STEP + ((reader as u64) << 40);
                *asked += readers.read(at, STEP).map_or(0, |(_, len)| len);
            }
        }
        let read = 100 * STEP;
        assert!(asked.iter().all(|&bytes| bytes >= read && bytes <= read + (4 << 20)), "{asked:?}");
    }
}
