//! Changes that are longer than a frame, collected on the server until all of their parts have
//! arrived, so that a transaction gets all of a change or nothing of it.
//!
//! The parts of a change arrive on one connection, in order, and the server drops them with the
//! connection. A client that was disconnected sends all parts again, so no part of a change
//! outlives a client that was lost while sending it. All unfinished changes share a memory limit; a
//! stalled change is dropped if others need its memory. The clients of one token have a share of
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use env::Instant;
use env::sync::Mutex;
use kvdb::ServedChange;

use crate::changes::memory_of_change;
use crate::failure::{Failure, FailureCode};
use crate::tenants::Tenant;

/// Limit of the bytes that one change takes in memory.
pub(crate) const MAX_CHANGE: usize = 64 << 20;
/// The time without a further part after which a change counts as stalled.
const STALLED: Duration = Duration::from_secs(10);

/// Identifies a change on a connection: the number of the transaction there, and the number of the
/// batch.
pub(crate) type Of = (u64, u64);

/// The unfinished changes of all connections.
pub(crate) struct Unfinished {
    /// Limit of the bytes of all changes together.
    most: usize,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    /// The number that was last assigned to a connection.
    last: u64,
    /// The unfinished change of each connection.
    parts: HashMap<u64, Parts>,
    /// The tenants of the connections that have one.
    tenants: HashMap<u64, Arc<Tenant>>,
}

struct Parts {
    of: Of,
    changes: Vec<ServedChange>,
    /// Number of parts that have arrived.
    count: u32,
    bytes: usize,
    came: Instant,
}

fn again(what: &str) -> Failure {
    Failure { code: FailureCode::Again, what: what.into() }
}

impl Unfinished {
    pub fn new(most: usize) -> Unfinished {
        Unfinished { most: most.max(MAX_CHANGE), all: Mutex::default() }
    }

    /// Assigns a number to a connection, under which its parts are kept.
    pub fn connection(&self) -> u64 {
        let mut all = self.all.lock();
        all.last += 1;
        all.last
    }

    /// Adds a part of a change. The first part begins the change, even if it arrived before.
    pub fn add(
        &self,
        connection: u64,
        of: Of,
        part: u32,
        changes: Vec<ServedChange>,
    ) -> Result<(), Failure> {
        let mut all = self.all.lock();
        if part == 0 {
            let (changes, came) = (Vec::new(), Instant::now());
            all.parts.insert(connection, Parts { of, changes, count: 0, bytes: 0, came });
        }
        let Some(parts) = all.parts.get_mut(&connection).filter(|parts| parts.of == of) else {
            return Err(again("the parts before this one are not here: send all of them"));
        };
        if part < parts.count {
            // The part has arrived twice.
            return Ok(());
        }
        if part > parts.count {
            return Err(again("a part is missing before this one: send all of them"));
        }
        let bytes = changes.iter().map(memory_of_change).sum::<usize>();
        if parts.bytes + bytes > MAX_CHANGE {
            all.parts.remove(&connection);
            let what = format!("a change of more than {MAX_CHANGE} bytes");
            return Err(Failure { code: FailureCode::Limit, what });
        }
        all.make_room(self.most, connection, bytes);
        let Some(parts) = all.parts.get_mut(&connection) else {
            return Err(again("the server takes in long changes of others: send it again"));
        };
        parts.changes.extend(changes);
        parts.bytes += bytes;
        parts.count += 1;
        parts.came = Instant::now();
        Ok(())
    }

    /// Returns a whole change, of which this is the last part. Its memory remains counted until
    /// `forget`.
    pub fn finish(
        &self,
        connection: u64,
        of: Of,
        part: u32,
        changes: Vec<ServedChange>,
    ) -> Result<Vec<ServedChange>, Failure> {
        let mut all = self.all.lock();
        let is_next = |parts: &&mut Parts| parts.of == of && parts.count == part;
        let mut whole = match all.parts.get_mut(&connection).filter(is_next) {
            Some(parts) => {
                // Prevents it from being finished twice.
                parts.count = u32::MAX;
                std::mem::take(&mut parts.changes)
            }
            None if part == 0 => Vec::new(),
            None => {
                return Err(again("the parts before the last one are not here: send all of them"));
            }
        };
        whole.extend(changes);
        Ok(whole)
    }

    /// Counts the parts of a connection as those of its tenant.
    pub fn join(&self, connection: u64, tenant: &Arc<Tenant>) {
        self.all.lock().tenants.insert(connection, tenant.clone());
    }

    /// Drops the parts of a connection that has ended.
    pub fn leave(&self, connection: u64) {
        let mut all = self.all.lock();
        all.parts.remove(&connection);
        all.tenants.remove(&connection);
    }

    /// Drops the parts of a connection whose change was applied or refused.
    pub fn forget(&self, connection: u64) {
        self.all.lock().parts.remove(&connection);
    }
}

impl All {
    /// Makes room for `bytes` of a connection by dropping stalled changes. If that does not
    /// suffice, drops the connection's own change, which frees its memory for others.
    fn make_room(&mut self, most: usize, connection: u64, bytes: usize) {
        if !self.has_room(most, connection, bytes) {
            let taken: usize = self.parts.values().map(|parts| parts.bytes).sum();
            let for_all = taken + bytes > most;
            // Changes of others stay if only the share of this connection's clients is full.
            let (parts, tenants) = (&mut self.parts, &self.tenants);
            let own = tenants.get(&connection);
            let shares = |other: &u64| {
                tenants.get(other).zip(own).is_some_and(|(other, own)| Arc::ptr_eq(other, own))
            };
            parts.retain(|other, parts| {
                let stays = *other == connection || !(for_all || shares(other));
                stays || parts.came.elapsed() < STALLED
            });
        }
        if !self.has_room(most, connection, bytes) {
            self.parts.remove(&connection);
        }
    }

    fn has_room(&self, most: usize, connection: u64, bytes: usize) -> bool {
        let taken: usize = self.parts.values().map(|parts| parts.bytes).sum();
        let own = self.tenants.get(&connection).is_none_or(|tenant| {
            let is_own = |other: &u64| {
                self.tenants.get(other).is_some_and(|other| Arc::ptr_eq(other, tenant))
            };
            let own = self.parts.iter().filter(|(other, _)| is_own(other));
            let taken: usize = own.map(|(_, parts)| parts.bytes).sum();
            // One change of the greatest length fits the share.
            taken + bytes <= (tenant.share(most as u64) as usize).max(MAX_CHANGE)
        });
        own && taken + bytes <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use kvdb::DictionaryId;

    fn put(key: u8, bytes: usize) -> Vec<ServedChange> {
        let value = Bytes::from(vec![7; bytes]);
        vec![ServedChange::Put(DictionaryId(1), Bytes::from(vec![key]), value)]
    }

    #[test]
    fn a_change_is_whole_with_all_of_its_parts_in_their_order() {
        let unfinished = Unfinished::new(0);
        let (one, other) = (unfinished.connection(), unfinished.connection());
        unfinished.add(one, (1, 1), 0, put(0, 9)).unwrap();
        unfinished.add(one, (1, 1), 1, put(1, 9)).unwrap();
        unfinished.add(one, (1, 1), 1, put(1, 9)).unwrap();
        let missing = |done: Result<_, Failure>| done.is_err_and(|e| e.code == FailureCode::Again);
        assert!(missing(unfinished.add(one, (1, 1), 3, put(3, 9))), "a part is missing");
        assert!(missing(unfinished.add(other, (1, 1), 1, put(1, 9))), "they came elsewhere");
        assert!(missing(unfinished.add(one, (1, 2), 1, put(1, 9))), "of another change");
        let whole = unfinished.finish(one, (1, 1), 2, put(2, 9)).unwrap();
        assert_eq!(whole, [put(0, 9), put(1, 9), put(2, 9)].concat());
        let gone = unfinished.finish(one, (1, 1), 2, put(2, 9));
        unfinished.forget(one);
        assert!(gone.is_err_and(|e| e.code == FailureCode::Again));
        unfinished.add(one, (1, 2), 0, put(7, 9)).unwrap();
        unfinished.add(one, (1, 2), 0, put(0, 9)).unwrap();
        let whole = unfinished.finish(one, (1, 2), 1, put(1, 9)).unwrap();
        assert_eq!(whole, [put(0, 9), put(1, 9)].concat(), "the first one begins it again");
        unfinished.add(one, (1, 2), 0, put(0, 9)).unwrap();
        unfinished.forget(one);
        assert!(missing(unfinished.add(one, (1, 2), 1, put(1, 9))), "it has ended");
    }

    #[test]
    fn unfinished_changes_are_bounded_by_themselves_and_together() {
        let unfinished = Unfinished::new(0);
        let connections: Vec<u64> = (0..3).map(|_| unfinished.connection()).collect();
        let part = 20 << 20;
        for i in 0..3 {
            unfinished.add(connections[0], (1, 1), i, put(i as u8, part)).unwrap();
        }
        let refused = unfinished.add(connections[1], (1, 1), 0, put(0, part)).unwrap_err();
        assert_eq!(refused.code, FailureCode::Again, "there is no room");
        let taken = || unfinished.all.lock().parts.values().map(|parts| parts.bytes).sum::<usize>();
        assert!(taken() <= MAX_CHANGE);
        let refused = unfinished.add(connections[0], (1, 1), 3, put(3, part)).unwrap_err();
        assert_eq!(refused.code, FailureCode::Limit, "it is too long");
        assert_eq!(taken(), 0);
        unfinished.add(connections[1], (1, 1), 0, put(0, part)).unwrap();
    }

    #[test]
    fn a_change_that_has_stalled_gives_way() {
        let unfinished = Unfinished::new(0);
        let (one, other) = (unfinished.connection(), unfinished.connection());
        unfinished.add(one, (1, 1), 0, put(0, 60 << 20)).unwrap();
        let Some(long_ago) = Instant::now().checked_sub(STALLED) else { return };
        unfinished.all.lock().parts.values_mut().for_each(|parts| parts.came = long_ago);
        unfinished.add(other, (1, 1), 0, put(0, 60 << 20)).unwrap();
        assert!(unfinished.finish(one, (1, 1), 1, put(1, 9)).is_err());
    }

    #[test]
    fn the_changes_of_one_tenant_leave_room_for_those_of_others() {
        let unfinished = Unfinished::new(2 * MAX_CHANGE);
        let connections: Vec<u64> = (0..3).map(|_| unfinished.connection()).collect();
        let tenant = Tenant::new(None, false, 0);
        for connection in &connections[..2] {
            unfinished.join(*connection, &tenant);
        }
        unfinished.add(connections[0], (1, 1), 0, put(0, 60 << 20)).unwrap();
        let refused = unfinished.add(connections[1], (1, 1), 0, put(0, 60 << 20)).unwrap_err();
        assert_eq!(refused.code, FailureCode::Again, "it is more than the share");
        unfinished.add(connections[2], (1, 1), 0, put(0, 60 << 20)).unwrap();
        unfinished.leave(connections[0]);
        unfinished.add(connections[1], (1, 1), 0, put(0, 60 << 20)).unwrap();
    }
}
