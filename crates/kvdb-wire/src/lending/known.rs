//! The last leases by their keys, and how each of them stands. The requests that end a transaction
//! look for their key here first. They must not wait for the lock of the lease: a client that asks
//! for the lease waits for it until all commits to the main branch are done, and all who come after
//! that client wait with it.

use std::collections::VecDeque;

use env::sync::Mutex;

use crate::body::TransactionKey;
use crate::lease_record::{LeaseRecord, Stands};

/// Limit of the former leases that are remembered: their requests may arrive late, but not very
/// late.
const MAX_FORMER: usize = 64;

/// The last leases, the oldest first. They change while the state of the lease is locked for
/// writing.
pub(super) struct Known(Mutex<VecDeque<(TransactionKey, Stands)>>);

impl Known {
    pub fn of(record: Option<&LeaseRecord>) -> Known {
        Known(Mutex::new(record.map(|record| (record.key, record.stands)).into_iter().collect()))
    }

    /// Notes how a lease stands, which may be a new one.
    pub fn note(&self, key: &TransactionKey, stands: Stands) {
        let mut leases = self.0.lock();
        match leases.iter_mut().find(|(of, _)| of == key) {
            Some((_, known)) => *known = stands,
            None => {
                if leases.len() > MAX_FORMER {
                    leases.pop_front();
                }
                leases.push_back((*key, stands));
            }
        }
    }

    /// Returns how the lease of this key stands, if it is known.
    pub fn stands(&self, key: &TransactionKey) -> Option<Stands> {
        self.0.lock().iter().find(|(of, _)| of == key).map(|(_, stands)| *stands)
    }

    pub fn is_former(&self, key: &TransactionKey) -> bool {
        self.stands(key).is_some_and(|stands| stands != Stands::Held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lease_and_as_many_former_ones_are_known() {
        let known = Known::of(None);
        let key = |number: usize| -> TransactionKey {
            std::array::from_fn(|i| (number >> (8 * (i % 4))) as u8)
        };
        for number in 0..=MAX_FORMER + 1 {
            assert_eq!(known.stands(&key(number)), None);
            known.note(&key(number), Stands::Held);
            assert!(!known.is_former(&key(number)));
            known.note(&key(number), Stands::Lost);
            assert!(known.is_former(&key(number)));
        }
        assert_eq!(known.stands(&key(0)), None);
        assert_eq!(known.stands(&key(1)), Some(Stands::Lost));
    }
}
