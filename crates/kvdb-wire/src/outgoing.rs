//! Batches on their way to a server: those that wait, with the numbers that they are going to have,
//! and those that are kept to be sent again.

use std::collections::VecDeque;
use std::sync::Arc;

use kvdb::ServedChange;

use crate::changes::{MAX_CHANGES, size_of_change};
use crate::request::Request;

/// Bytes of changes of one request. One change alone may have more.
pub(crate) const REQUEST_BYTES: usize = 4 << 20;

/// Something that has a number among the batches of a transaction.
#[derive(Clone, Debug)]
pub enum Numbered {
    Changes(Arc<Vec<ServedChange>>),
    Savepoint,
    RollBack(u64),
}

impl Numbered {
    /// The requests that bring it, which are sent on one connection, one after the other. The last
    /// one has it done.
    pub fn requests(&self, transaction: u64, batch: u64) -> Vec<Request> {
        let changes = match self {
            Numbered::Changes(changes) => changes,
            Numbered::Savepoint => return vec![Request::Savepoint { transaction, batch }],
            Numbered::RollBack(to) => {
                return vec![Request::RollBack { transaction, batch, to: *to }];
            }
        };
        let parts = parts_of(changes);
        if parts.len() < 2 {
            return vec![Request::Apply { transaction, batch, changes: changes.to_vec() }];
        }
        let last = parts.len() - 1;
        let request = |(i, part): (usize, &[ServedChange])| Request::ApplyPart {
            transaction,
            batch,
            part: i as u32,
            last: i == last,
            changes: part.to_vec(),
        };
        parts.into_iter().enumerate().map(request).collect()
    }

    fn bytes(&self) -> usize {
        match self {
            Numbered::Changes(changes) => changes.iter().map(size_of_change).sum(),
            Numbered::Savepoint | Numbered::RollBack(_) => 0,
        }
    }
}

/// Changes in pieces that fit a frame.
fn parts_of(mut changes: &[ServedChange]) -> Vec<&[ServedChange]> {
    let mut parts = Vec::new();
    while !changes.is_empty() {
        let mut bytes = 0;
        let fits = |change: &&ServedChange| {
            bytes += size_of_change(change);
            bytes <= REQUEST_BYTES
        };
        let fitting = changes.iter().take(MAX_CHANGES).take_while(fits).count().max(1);
        let (part, rest) = changes.split_at(fitting);
        parts.push(part);
        changes = rest;
    }
    parts
}

/// The batches of a transaction.
pub struct Outgoing {
    /// The number of the last batch that the server has.
    last: u64,
    /// After that one; the first may be under way.
    waiting: VecDeque<Numbered>,
    /// The first one may have arrived.
    is_first_sent: bool,
    /// Sent before, and not known to be on disk there: the last of them has the number `last`.
    kept: VecDeque<Numbered>,
    kept_bytes: usize,
    /// All up to this one are on disk there.
    synced: u64,
}

impl Outgoing {
    /// Of a transaction that has so many.
    pub fn after(last: u64) -> Outgoing {
        Outgoing {
            last,
            waiting: VecDeque::new(),
            is_first_sent: false,
            kept: VecDeque::new(),
            kept_bytes: 0,
            synced: 0,
        }
    }

    /// The number of the last batch that the server has.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Adds changes to what waits, in batches. `ends`: how many changes there are with each unit of
    /// them that is applied as a whole, in rising order. A batch has whole units, and one alone if
    /// that is longer than a request.
    pub fn queue(&mut self, changes: Vec<ServedChange>, ends: &[usize]) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut changes = changes.into_iter();
        let mut begin = 0;
        for &end in ends {
            let unit: Vec<ServedChange> = changes.by_ref().take(end - begin).collect();
            begin = end;
            let size = unit.iter().map(size_of_change).sum::<usize>();
            let is_full = bytes + size > REQUEST_BYTES || batch.len() + unit.len() > MAX_CHANGES;
            if !batch.is_empty() && is_full {
                self.waiting.push_back(Numbered::Changes(Arc::new(std::mem::take(&mut batch))));
                bytes = 0;
            }
            bytes += size;
            batch.extend(unit);
        }
        batch.extend(changes);
        if !batch.is_empty() {
            self.waiting.push_back(Numbered::Changes(Arc::new(batch)));
        }
    }

    /// Adds one to what waits. Returns the number that it is going to have.
    pub fn add(&mut self, one: Numbered) -> u64 {
        self.waiting.push_back(one);
        self.last + self.waiting.len() as u64
    }

    /// Takes the last one back, if it still waits.
    pub fn withdraw(&mut self, number: u64) {
        let waits = self.last + self.waiting.len() as u64 == number;
        if waits && !(self.is_first_sent && self.waiting.len() == 1) {
            self.waiting.pop_back();
        }
    }

    /// The next one to be sent.
    pub fn next(&mut self) -> Option<(u64, Numbered)> {
        let next = self.waiting.front().cloned()?;
        self.is_first_sent = true;
        Some((self.last + 1, next))
    }

    /// The server has the one of this number.
    pub fn taken(&mut self, number: u64, keeps: bool) {
        if number != self.last + 1 {
            return;
        }
        self.is_first_sent = false;
        if let Some(one) = self.waiting.pop_front() {
            self.last = number;
            if keeps {
                self.kept_bytes += one.bytes();
                self.kept.push_back(one);
            }
        }
    }

    /// The server has refused it, and has not got it. What is none of changes is not asked for
    /// again.
    pub fn refused(&mut self, number: u64) {
        if number != self.last + 1 {
            return;
        }
        self.is_first_sent = false;
        if !matches!(self.waiting.front(), Some(Numbered::Changes(_))) {
            self.waiting.pop_front();
        }
    }

    /// Takes all back that waits, if the server has nothing of it and it is changes alone.
    pub fn take_back(&mut self) -> Vec<Arc<Vec<ServedChange>>> {
        let is_changes = |one: &Numbered| matches!(one, Numbered::Changes(_));
        if self.is_first_sent || !self.waiting.iter().all(is_changes) {
            return Vec::new();
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let changes = |one| match one {
            Numbered::Changes(changes) => Some(changes),
            Numbered::Savepoint | Numbered::RollBack(_) => None,
        };
        waiting.filter_map(changes).collect()
    }

    /// The number of the last one, if it is not known to be on disk there.
    pub fn to_be_synced(&self) -> Option<u64> {
        (self.synced < self.last).then_some(self.last)
    }

    /// All up to this one are on disk there.
    pub fn synced(&mut self, number: u64) {
        self.synced = self.synced.max(number);
        while !self.kept.is_empty() && self.last - (self.kept.len() as u64) < number {
            let gone = self.kept.pop_front();
            self.kept_bytes -= gone.map_or(0, |one| one.bytes());
        }
    }

    /// Returns the batches that a server lacks which has those up to this one, as far as they were
    /// sent before. `None`: it lacks some that are not here any more, or has other ones.
    pub fn again_after(&self, batches: u64) -> Option<Vec<(u64, Numbered)>> {
        let first_kept = self.last - self.kept.len() as u64;
        if batches < first_kept || batches > self.last + u64::from(self.is_first_sent) {
            return None;
        }
        let skipped = (batches - first_kept) as usize;
        let numbers = batches + 1..;
        Some(numbers.zip(self.kept.iter().skip(skipped).cloned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_lacks_is_sent_again_and_nothing_else() {
        let mut outgoing = Outgoing::after(3);
        for _ in 0..4 {
            outgoing.add(Numbered::Savepoint);
        }
        for number in 4..7 {
            assert_eq!(outgoing.next().map(|(number, _)| number), Some(number));
            outgoing.taken(number, true);
        }
        let numbers = |outgoing: &Outgoing, has| {
            let again = outgoing.again_after(has)?;
            Some(again.into_iter().map(|(number, _)| number).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&outgoing, 3), Some(vec![4, 5, 6]));
        assert_eq!(numbers(&outgoing, 6), Some(vec![]));
        assert_eq!(numbers(&outgoing, 2), None, "it had more");
        assert_eq!(numbers(&outgoing, 7), None, "the seventh was not sent");
        outgoing.next();
        assert_eq!(numbers(&outgoing, 7), Some(vec![]), "its answer was lost");
        outgoing.synced(5);
        assert_eq!(numbers(&outgoing, 5), Some(vec![6]));
        assert_eq!(numbers(&outgoing, 4), None, "it was on disk");
        outgoing.refused(7);
        assert_eq!(numbers(&outgoing, 7), None);
        assert!(outgoing.next().is_none(), "a savepoint that was refused is not asked for again");
        assert_eq!(outgoing.to_be_synced(), Some(6));
        outgoing.synced(6);
        assert_eq!(outgoing.to_be_synced(), None);
    }

    #[test]
    fn units_are_sent_whole_in_requests_that_fit_a_frame() {
        let mut outgoing = Outgoing::after(0);
        let large = bytes::Bytes::from(vec![7; 3 << 20]);
        let put = |value: &bytes::Bytes| {
            ServedChange::Put(kvdb::DictionaryId(1), "key".into(), value.clone())
        };
        let empty = put(&bytes::Bytes::new());
        let units = [
            vec![empty.clone(); MAX_CHANGES - 1],
            vec![empty.clone(); 2],
            vec![put(&large)],
            vec![put(&large), empty.clone(), put(&large)],
            vec![empty.clone(); MAX_CHANGES + 1],
        ];
        let mut ends = Vec::new();
        units.iter().for_each(|unit| ends.push(ends.last().unwrap_or(&0) + unit.len()));
        outgoing.queue(units.concat(), &ends);
        let (mut batches, mut requests) = (Vec::new(), Vec::new());
        while let Some((number, one)) = outgoing.next() {
            let Numbered::Changes(changes) = &one else { panic!("{one:?}") };
            batches.push(changes.len());
            let all = one.requests(9, number);
            requests.push(all.len());
            for request in all {
                let (kind, body) = request.encode();
                assert!(crate::frame::encode(1, kind, &body).is_ok());
            }
            outgoing.taken(number, false);
        }
        assert_eq!(batches, [MAX_CHANGES - 1, 3, 3, MAX_CHANGES + 1]);
        assert_eq!(requests, [1, 1, 2, 2]);
        assert_eq!(outgoing.last(), 4);
    }
}
