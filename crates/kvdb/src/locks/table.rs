//! The table of all locks and waiting calls. The table decides on requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::Condvar;
use vt_tree::KeyRange;

use super::fragments::Fragments;
use super::range::KeyRangeRef;
use super::range_set::RangeSet;
use super::{LockError, Owner};
use crate::dictionary::DictionaryId;

pub(super) struct Table {
    /// The locks of each dictionary that has any.
    dictionaries: BTreeMap<DictionaryId, Fragments>,
    owners: BTreeMap<u64, Holdings>,
    /// The waiting calls by ticket, in the order of their arrival.
    queue: BTreeMap<u64, Waiting>,
    next_ticket: u64,
    /// The approximate memory of all locks, in bytes.
    bytes: usize,
    /// The limit of `bytes`.
    limit: usize,
}

/// The memory of one locked range, in bytes: its fragment, and its entry in the owner's set of
/// ranges.
const RANGE_BYTES: usize = 350;

/// The number of ranges that an owner may hold even if the memory is exhausted.
const FEW: usize = 64;

fn bytes_of(ranges: &RangeSet) -> usize {
    ranges.len() * RANGE_BYTES + 2 * ranges.key_bytes()
}

struct Holdings {
    age: u64,
    wounded: Option<u64>,
    held: BTreeMap<DictionaryId, RangeSet>,
}

/// A requested lock.
pub(super) struct Want<'a> {
    pub dict: DictionaryId,
    pub range: KeyRangeRef<'a>,
    pub exclusive: bool,
}

pub(super) enum Verdict {
    Granted,
    /// The caller must wait at least until owner `on` has ended, or has stopped waiting for its
    /// lock.
    Wait {
        on: u64,
    },
}

/// A waiting call.
struct Waiting {
    /// The lock that the call requests, or `None` if the call only waits.
    want: Option<LockRequest>,
    /// The owner for which the call waits. The call need not be checked again before this owner
    /// ends, or stops waiting without having got its lock.
    on: Option<u64>,
    bell: Arc<Condvar>,
}

struct LockRequest {
    owner: u64,
    dict: DictionaryId,
    range: KeyRange,
    exclusive: bool,
}

impl Holdings {
    fn ranges(&self) -> usize {
        self.held.values().map(RangeSet::len).sum()
    }
}

impl Table {
    /// Makes a table whose locks may take about `limit` bytes.
    pub(super) fn new(limit: usize) -> Table {
        Table {
            dictionaries: BTreeMap::new(),
            owners: BTreeMap::new(),
            queue: BTreeMap::new(),
            next_ticket: 0,
            bytes: 0,
            limit,
        }
    }

    /// Registers an owner. Returns `false` if the owner is already registered.
    pub(super) fn begin(&mut self, owner: Owner) -> bool {
        let fresh = !self.owners.contains_key(&owner.id);
        if fresh {
            self.owners.insert(
                owner.id,
                Holdings { age: owner.age, wounded: None, held: BTreeMap::new() },
            );
        }
        fresh
    }

    pub(super) fn wounded(&self, owner: u64) -> Option<u64> {
        self.owners.get(&owner)?.wounded
    }

    /// Grants the requested lock, or returns an owner for which `owner` must wait. The returned
    /// owner is younger than `owner` only if no older owner is in the way.
    pub(super) fn judge(&mut self, owner: u64, want: &Want) -> Result<Verdict, LockError> {
        let holdings = self.owners.get(&owner).ok_or(LockError::Ended)?;
        if let Some(by) = holdings.wounded {
            return Err(LockError::Wounded { by });
        }
        if want.range.is_empty() {
            return Ok(Verdict::Granted);
        }
        let mut younger = None;
        if let Some(fragments) = self.dictionaries.get(&want.dict) {
            if fragments.covers(owner, want.range, want.exclusive) {
                return Ok(Verdict::Granted);
            }
            for id in fragments.in_the_way(Some(owner), want.range, want.exclusive) {
                if younger == Some(id) {
                    continue;
                }
                if self.older(id, owner) {
                    return Ok(Verdict::Wait { on: id });
                }
                younger = Some(id);
            }
        }
        if let Some(id) = self.ahead(owner, want).or(younger) {
            return Ok(Verdict::Wait { on: id });
        }
        if self.bytes >= self.limit && !self.make_room(owner) {
            return Err(LockError::Full { limit: self.limit });
        }
        self.grant(owner, want.dict, want.range.to_range(), want.exclusive);
        Ok(Verdict::Granted)
    }

    fn grant(&mut self, owner: u64, dict: DictionaryId, range: KeyRange, exclusive: bool) {
        let Some(holdings) = self.owners.get_mut(&owner) else { return };
        self.dictionaries.entry(dict).or_default().grant(owner, &range, exclusive);
        let ranges = holdings.held.entry(dict).or_default();
        let before = bytes_of(ranges);
        ranges.insert(range);
        self.bytes = self.bytes - before + bytes_of(ranges);
    }

    /// Makes room when the locks have reached their memory limit, by coarsening the locks of the
    /// owners that hold the most. Returns `false` if no room is left for another lock of `owner`.
    fn make_room(&mut self, owner: u64) -> bool {
        let few = |holdings: &Holdings| holdings.ranges() < FEW;
        let mut by_size: Vec<(usize, u64)> =
            self.owners.iter().map(|(id, holdings)| (holdings.ranges(), *id)).collect();
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        for (_, id) in by_size {
            // Free a little more than needed, since this visits all owners.
            if self.bytes <= self.limit / 4 * 3 || self.owners.get(&id).is_none_or(few) {
                break;
            }
            self.escalate(id);
        }
        self.bytes < self.limit || self.owners.get(&owner).is_some_and(few)
    }

    /// Merges pairs of neighbouring ranges of an owner by also locking the keys in between, where
    /// no other owner is in the way. This leaves about half of the ranges.
    fn escalate(&mut self, owner: u64) {
        let Some(holdings) = self.owners.get(&owner) else { return };
        let pairs = holdings
            .held
            .iter()
            .flat_map(|(dict, ranges)| ranges.pairs().into_iter().map(move |pair| (*dict, pair)));
        for (dict, pair) in pairs.collect::<Vec<_>>() {
            let Some(fragments) = self.dictionaries.get(&dict) else { continue };
            let exclusive = fragments
                .overlapping((&pair).into())
                .any(|(_, fragment)| fragment.holders.held_by(owner, true));
            let want = Want { dict, range: (&pair).into(), exclusive };
            let free = fragments.in_the_way(Some(owner), want.range, exclusive).next().is_none();
            if free && self.ahead(owner, &want).is_none() {
                self.grant(owner, dict, pair, exclusive);
            }
        }
    }

    /// Wounds younger owners. This must be called when `owner` has to wait. If only younger owners
    /// are in the way, marks those among them that are not wounded yet, wakes them, and returns
    /// their numbers.
    pub(super) fn wound_for(&mut self, owner: u64, want: &Want) -> Vec<u64> {
        let Some(fragments) = self.dictionaries.get(&want.dict) else { return Vec::new() };
        let mut fresh = Vec::new();
        for id in fragments.in_the_way(Some(owner), want.range, want.exclusive) {
            if self.older(id, owner) {
                return Vec::new();
            }
            if self.wounded(id).is_none() && !fresh.contains(&id) {
                fresh.push(id);
            }
        }
        if self.ahead(owner, want).is_some() {
            return Vec::new();
        }
        for id in &fresh {
            if let Some(holdings) = self.owners.get_mut(id) {
                holdings.wounded = Some(owner);
            }
            self.wake(|waiting| waiting.want.as_ref().is_some_and(|want| want.owner == *id));
        }
        fresh
    }

    /// Returns an older owner that waits for a conflicting lock.
    fn ahead(&self, owner: u64, want: &Want) -> Option<u64> {
        let wanted = self.queue.values().filter_map(|waiting| waiting.want.as_ref());
        wanted
            .filter(|w| w.dict == want.dict && w.owner != owner && (w.exclusive || want.exclusive))
            .filter(|w| {
                self.owners.get(&w.owner).is_some_and(|o| o.wounded.is_none())
                    && self.older(w.owner, owner)
            })
            .find(|w| want.range.overlaps(&w.range.start, w.range.end.as_deref()))
            .map(|w| w.owner)
    }

    fn older(&self, a: u64, b: u64) -> bool {
        let rank = |id| self.owners.get(&id).map(|holdings| (holdings.age, id));
        rank(a) < rank(b)
    }

    pub(super) fn queue(&mut self, owner: u64, want: &Want) -> (u64, Arc<Condvar>) {
        self.enqueue(Some(LockRequest {
            owner,
            dict: want.dict,
            range: want.range.to_range(),
            exclusive: want.exclusive,
        }))
    }

    /// Queues a call that waits for other owners and requests no lock.
    pub(super) fn queue_without_want(&mut self) -> (u64, Arc<Condvar>) {
        self.enqueue(None)
    }

    fn enqueue(&mut self, want: Option<LockRequest>) -> (u64, Arc<Condvar>) {
        let (ticket, bell) = (self.next_ticket, Arc::new(Condvar::new()));
        self.next_ticket += 1;
        self.queue.insert(ticket, Waiting { want, on: None, bell: bell.clone() });
        (ticket, bell)
    }

    /// Returns the owner for which one of the calls of `owner` waits.
    pub(super) fn waited_for(&self, owner: u64) -> Option<u64> {
        let own =
            |waiting: &&Waiting| waiting.want.as_ref().is_some_and(|want| want.owner == owner);
        self.queue.values().filter(own).find_map(|waiting| waiting.on)
    }

    pub(super) fn waits_for(&mut self, ticket: u64, on: u64) {
        if let Some(waiting) = self.queue.get_mut(&ticket) {
            waiting.on = Some(on);
        }
    }

    /// Removes a call that no longer waits. If the call has got no lock, wakes the calls that
    /// waited for its owner.
    pub(super) fn leave(&mut self, ticket: u64, granted: bool) {
        let left = self.queue.remove(&ticket).and_then(|waiting| waiting.want);
        if let Some(want) = left.filter(|_| !granted) {
            self.wake(|waiting| waiting.on == Some(want.owner));
        }
    }

    /// Releases all locks of `owner`. Returns `false` if `owner` has already ended.
    pub(super) fn release(&mut self, owner: u64) -> bool {
        let Some(holdings) = self.owners.remove(&owner) else { return false };
        for (dict, ranges) in holdings.held {
            self.bytes -= bytes_of(&ranges);
            let Some(fragments) = self.dictionaries.get_mut(&dict) else { continue };
            for range in ranges {
                fragments.release(owner, &range);
            }
            if fragments.is_empty() {
                self.dictionaries.remove(&dict);
            }
        }
        self.wake(|waiting| {
            waiting.on == Some(owner)
                || waiting.want.as_ref().is_some_and(|want| want.owner == owner)
        });
        true
    }

    fn wake(&self, whom: impl Fn(&Waiting) -> bool) {
        for waiting in self.queue.values().filter(|waiting| whom(waiting)) {
            waiting.bell.notify_all();
        }
    }

    /// Returns an owner other than `except` whose lock conflicts with one of the changes.
    pub(super) fn blocker<'c>(
        &self,
        changes: impl IntoIterator<Item = (DictionaryId, KeyRangeRef<'c>)>,
        except: Option<u64>,
    ) -> Option<u64> {
        if self.dictionaries.is_empty() {
            return None;
        }
        changes.into_iter().find_map(|(dict, range)| {
            self.dictionaries.get(&dict)?.in_the_way(except, range, true).next()
        })
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.values().filter(|waiting| waiting.on.is_some()).count()
    }

    /// Returns the number of fragments, and the number of ranges of all owners.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        let fragments = self.dictionaries.values().map(|f| f.iter().count()).sum();
        (fragments, self.owners.values().flat_map(|o| o.held.values()).map(RangeSet::len).sum())
    }

    #[cfg(test)]
    pub(super) fn fragments(&self, dict: DictionaryId) -> Option<&Fragments> {
        self.dictionaries.get(&dict)
    }
}
