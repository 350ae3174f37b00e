//! Answers reads in rounds, to count how many reads had to wait for one another.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::sync::{Condvar, Mutex};

use crate::Objects;
use crate::error::Result;
use crate::key::Key;
use crate::object::{Condition, Object, Page, Part, Tag};
use crate::secret_id::SecretId;

/// Objects whose reads are answered in rounds, for tests. A read waits until no other read has
/// arrived for some time. Then all waiting reads are answered together. So reads that were sent
/// together take one round, and a read that depends on the answer of another one takes a further
/// round. Over a network, a round takes the time of one request, however many reads it has.
///
/// Other requests are answered at once and do not count as rounds.
pub struct RoundObjects {
    inner: Arc<dyn Objects>,
    quiet: Duration,
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    /// The number of rounds that have ended.
    rounds: u64,
    /// The time at which the last read arrived.
    last: Instant,
}

impl RoundObjects {
    /// Creates a place that answers the reads of `inner` in rounds. A round ends when no read has
    /// arrived for the time `quiet`. `quiet` must be much longer than the time that a caller needs
    /// to send reads together, otherwise they are counted as several rounds.
    pub fn new(inner: Arc<dyn Objects>, quiet: Duration) -> Self {
        let state = Mutex::new(State { rounds: 0, last: Instant::now() });
        RoundObjects { inner, quiet, state, ended: Condvar::new() }
    }

    /// Returns the number of rounds that have ended.
    pub fn rounds(&self) -> u64 {
        self.state.lock().rounds
    }

    /// Waits for the end of the round to which a read that arrives now belongs.
    fn wait(&self) {
        let mut state = self.state.lock();
        let own = state.rounds;
        state.last = Instant::now();
        while state.rounds == own {
            let left = self.quiet.saturating_sub(state.last.elapsed());
            if left.is_zero() {
                state.rounds += 1;
                self.ended.notify_all();
            } else {
                self.ended.wait_for(&mut state, left);
            }
        }
    }
}

impl fmt::Debug for RoundObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundObjects").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Objects for RoundObjects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        self.wait();
        self.inner.get(key, part)
    }

    fn get_other(&self, key: &Key, part: Part, tag: &Tag) -> Result<Option<Object>> {
        self.wait();
        self.inner.get_other(key, part, tag)
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        self.inner.put(key, bytes, condition)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        self.inner.list(prefix, after)
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn secret(&self) -> Option<SecretId> {
        self.inner.secret()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryObjects;

    #[test]
    fn reads_together_are_one_round_and_a_read_after_an_answer_is_another() -> Result<()> {
        let memory = Arc::new(MemoryObjects::new());
        let objects = RoundObjects::new(memory, Duration::from_millis(200));
        let key = Key::new("a")?;
        objects.put(&key, Bytes::from("1"), Condition::Absent)?;
        assert_eq!(objects.rounds(), 0, "a put is answered at once");
        env::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| objects.get(&key, Part::Whole).expect("it is there"));
            }
        });
        assert_eq!(objects.rounds(), 1);
        objects.get(&key, Part::Whole)?;
        objects.get(&key, Part::Whole)?;
        assert_eq!(objects.rounds(), 3);
        Ok(())
    }
}
