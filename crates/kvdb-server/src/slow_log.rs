//! The newest slow commands, which `SLOWLOG` shows.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use env::sync::Mutex;

use crate::request::Arguments;

/// Limit on the number of words of a command that are kept.
const WORDS: usize = 32;
/// Limit on the number of bytes of a word that are kept.
const BYTES: usize = 128;

/// A slow command.
#[derive(Clone, Debug)]
pub struct Entry {
    pub number: u64,
    /// The time of the command, in seconds since 1970.
    pub at: u64,
    pub micros: u64,
    /// The words of the command, shortened.
    pub words: Vec<Vec<u8>>,
    pub address: String,
    /// The name that the client has given itself.
    pub name: String,
}

/// The slow commands of all connections.
pub struct SlowLog {
    /// The threshold in microseconds; slower commands are kept. If it is negative, none are kept.
    slower_than: AtomicI64,
    most: AtomicUsize,
    state: Mutex<SlowEntries>,
}

#[derive(Default)]
struct SlowEntries {
    /// The entries, newest first.
    entries: VecDeque<Entry>,
    next: u64,
}

impl Default for SlowLog {
    fn default() -> Self {
        let (slower_than, most) = (AtomicI64::new(10_000), AtomicUsize::new(128));
        SlowLog { slower_than, most, state: Mutex::default() }
    }
}

impl SlowLog {
    pub fn slower_than(&self) -> i64 {
        self.slower_than.load(Relaxed)
    }
    pub fn set_slower_than(&self, micros: i64) {
        self.slower_than.store(micros, Relaxed);
    }
    /// Returns the limit on the number of entries.
    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
        self.state.lock().entries.truncate(most);
    }

    /// Returns whether a command with this duration is kept.
    pub fn wants(&self, took: Duration) -> bool {
        u64::try_from(self.slower_than())
            .is_ok_and(|micros| took > Duration::from_micros(micros) || micros == 0)
    }
    /// Adds a command to the log, and assigns its number.
    pub fn keep(&self, entry: Entry) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.entries.push_front(Entry { number, ..entry });
        let most = self.most();
        state.entries.truncate(most);
    }

    /// Returns the newest entries, newest first.
    pub fn newest(&self, count: usize) -> Vec<Entry> {
        self.state.lock().entries.iter().take(count).cloned().collect()
    }
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }
    pub fn forget(&self) {
        self.state.lock().entries.clear();
    }
}

/// Returns the words of a command in the form in which they are kept. With `secret` the arguments
/// are redacted.
pub fn shortened(args: Arguments<'_>, secret: bool) -> Vec<Vec<u8>> {
    let kept = if args.len() > WORDS { WORDS - 1 } else { args.len() };
    let mut words: Vec<Vec<u8>> = args.from(0).take(kept).map(short).collect();
    if secret {
        words.iter_mut().skip(1).for_each(|word| *word = b"(redacted)".to_vec());
    }
    if kept < args.len() {
        words.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    words
}

fn short(word: &[u8]) -> Vec<u8> {
    let mut kept = word[..word.len().min(BYTES)].to_vec();
    if word.len() > BYTES {
        kept.extend_from_slice(format!("... ({} more bytes)", word.len() - BYTES).as_bytes());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    #[test]
    fn long_commands_are_cut_short_and_secrets_left_out() {
        let words: Vec<Vec<u8>> = (0..40).map(|i| vec![b'x'; i * 10]).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let kept = shortened(Request::of(&words).arguments(), false);
        assert_eq!(kept.len(), WORDS);
        assert_eq!(kept[31], b"... (9 more arguments)");
        assert_eq!(kept[12].len(), 120);
        assert!(kept[13].ends_with(b"x... (2 more bytes)"));
        let request = Request::of(&[b"AUTH", b"password"]);
        assert_eq!(shortened(request.arguments(), true), [&b"AUTH"[..], b"(redacted)"]);
    }

    #[test]
    fn the_newest_are_kept() {
        let log = SlowLog::default();
        assert!(!log.wants(Duration::from_millis(10)) && log.wants(Duration::from_millis(11)));
        log.set_most(2);
        for _ in 0..3 {
            let (words, address, name) = (Vec::new(), String::new(), String::new());
            log.keep(Entry { number: 0, at: 0, micros: 1, words, address, name });
        }
        let numbers: Vec<u64> = log.newest(10).iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [2, 1]);
        log.set_slower_than(-1);
        assert!(!log.wants(Duration::from_secs(1)));
        log.set_slower_than(0);
        assert!(log.wants(Duration::ZERO));
    }
}
