//! Batches on their way to a server: those that wait, with the numbers that they will have, and
//! those that are kept in case they have to be sent again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kvdb::{DictionaryId, ServedChange};

use crate::changes::{MAX_CHANGES, memory_of_change, reference_of, size_of_change};
use crate::request::Request;
use crate::unfinished::MAX_CHANGE;

/// Limit of the bytes of changes in one request. A single change may be longer.
pub(crate) const REQUEST_BYTES: usize = 4 << 20;

/// An element in the numbered sequence of a transaction's batches.
#[derive(Clone, Debug)]
pub enum Numbered {
    Changes(Arc<Vec<ServedChange>>),
    Savepoint,
    RollBack(u64),
}

impl Numbered {
    /// Returns the requests that transmit it. They are sent on one connection, in order, and the
    /// last one makes the server apply it.
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

/// Splits changes into parts that fit a frame.
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

/// Returns the place at which to split changes in two batches that have about half of the
/// references each, or `None` if there is none. A reference puts the value from before its batch,
/// so no reference of the second batch may have a source that the first one changes.
fn middle_of_references(changes: &[ServedChange]) -> Option<usize> {
    // The first change of each key, and the deleted ranges, with their positions.
    let mut first: HashMap<(DictionaryId, &[u8]), usize> = HashMap::new();
    let mut ranges: Vec<(usize, DictionaryId, &[u8], &[u8])> = Vec::new();
    // At each place, how many more references a split would tear from the change of their source.
    let mut torn = vec![0i64; changes.len() + 1];
    let mut all = 0;
    for (at, change) in changes.iter().enumerate() {
        if let Some(one) = reference_of(change) {
            all += 1;
            let (dict, key) = (one.of.0, &one.of.1[..]);
            let point = first.get(&(dict, key)).copied();
            let range = ranges
                .iter()
                .find(|(_, of, start, end)| *of == dict && *start <= key && key < *end)
                .map(|range| range.0);
            if let Some(changed) = [point, range].into_iter().flatten().min() {
                torn[changed + 1] += 1;
                torn[at + 1] -= 1;
            }
        }
        let (dict, key) = match change {
            ServedChange::Put(dict, key, _)
            | ServedChange::Update(dict, key, _)
            | ServedChange::Delete(dict, key) => (*dict, key),
            ServedChange::Refer(one) => (one.dict, &one.key),
            ServedChange::DeleteRange(dict, start, end) => {
                ranges.push((at, *dict, &start[..], &end[..]));
                continue;
            }
        };
        first.entry((dict, &key[..])).or_insert(at);
    }
    let (mut before, mut tears) = (0usize, 0i64);
    let mut best: Option<(usize, usize)> = None;
    for (at, change) in changes.iter().enumerate() {
        tears += torn[at];
        let off = before.abs_diff(all - before);
        if tears == 0 && before > 0 && before < all && best.is_none_or(|(least, _)| off < least) {
            best = Some((off, at));
        }
        before += usize::from(reference_of(change).is_some());
    }
    best.map(|(_, at)| at)
}

/// The outgoing batches of a transaction.
pub struct Outgoing {
    /// The number of the last batch that the server has.
    last: u64,
    /// The batches after `last`. The first of them may be in flight.
    waiting: VecDeque<Numbered>,
    /// Set once the first waiting batch was sent, since the server may then have it.
    is_first_sent: bool,
    /// Batches that were sent and may not be on the server's disk. The last of them has the number
    /// `last`.
    kept: VecDeque<Numbered>,
    kept_bytes: usize,
    /// The number up to which all batches are on the server's disk.
    synced: u64,
}

impl Outgoing {
    /// Creates the queue of a transaction whose batches up to number `last` are on the server.
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

    /// Returns the number of the last batch that the server has.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Appends changes to the queue, in batches. `ends` contains, in ascending order, the number of
    /// changes up to the end of each unit that is applied as a whole. A batch consists of whole
    /// units; a unit that is longer than a request is a batch of its own.
    pub fn queue(&mut self, changes: Vec<ServedChange>, ends: &[usize]) {
        let (mut batch, mut bytes, mut memory) = (Vec::new(), 0, 0);
        let mut changes = changes.into_iter();
        let mut begin = 0;
        for &end in ends {
            let unit: Vec<ServedChange> = changes.by_ref().take(end - begin).collect();
            begin = end;
            let size = unit.iter().map(size_of_change).sum::<usize>();
            let more = unit.iter().map(memory_of_change).sum::<usize>();
            // References are short in a request, and count for more in memory.
            let is_full = bytes + size > REQUEST_BYTES
                || batch.len() + unit.len() > MAX_CHANGES
                || memory + more > MAX_CHANGE;
            if !batch.is_empty() && is_full {
                self.waiting.push_back(Numbered::Changes(Arc::new(std::mem::take(&mut batch))));
                (bytes, memory) = (0, 0);
            }
            bytes += size;
            memory += more;
            batch.extend(unit);
        }
        batch.extend(changes);
        if !batch.is_empty() {
            self.waiting.push_back(Numbered::Changes(Arc::new(batch)));
        }
    }

    /// Appends an element to the queue. Returns the number that it will have.
    pub fn add(&mut self, one: Numbered) -> u64 {
        self.waiting.push_back(one);
        self.last + self.waiting.len() as u64
    }

    /// Removes the element of this number if it is the last one and was not sent.
    pub fn withdraw(&mut self, number: u64) {
        let waits = self.last + self.waiting.len() as u64 == number;
        if waits && !(self.is_first_sent && self.waiting.len() == 1) {
            self.waiting.pop_back();
        }
    }

    /// Returns the next element to send, with its number, and marks it as sent.
    pub fn next(&mut self) -> Option<(u64, Numbered)> {
        let next = self.waiting.front().cloned()?;
        self.is_first_sent = true;
        Some((self.last + 1, next))
    }

    /// Records that the server has the element of this number. If `keeps` is set, it is kept until
    /// it is on disk.
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

    /// Records that the server has refused the element of this number, and so does not have it. A
    /// savepoint or rollback that was refused is dropped, and only changes are sent again.
    pub fn refused(&mut self, number: u64) {
        if number != self.last + 1 {
            return;
        }
        self.is_first_sent = false;
        if !matches!(self.waiting.front(), Some(Numbered::Changes(_))) {
            self.waiting.pop_front();
        }
    }

    /// Splits the first batch in two if it was refused because its references name values that take
    /// too much memory together, which the client cannot know. Returns whether it did. The numbers
    /// of all later elements change, so these must be changes, whose numbers are not given out.
    pub fn split_first(&mut self) -> bool {
        let is_changes = |one: &Numbered| matches!(one, Numbered::Changes(_));
        if self.is_first_sent || !self.waiting.iter().all(is_changes) {
            return false;
        }
        let Some(Numbered::Changes(changes)) = self.waiting.front() else { return false };
        let Some(middle) = middle_of_references(changes) else { return false };
        let (first, second) = changes.split_at(middle);
        let parts = [second, first].map(|part| Numbered::Changes(Arc::new(part.to_vec())));
        self.waiting.pop_front();
        parts.into_iter().for_each(|part| self.waiting.push_front(part));
        true
    }

    /// Takes back all waiting batches if the server has none of them and all of them are changes.
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

    /// Returns the number of the last batch, unless it is known to be on the server's disk.
    pub fn to_be_synced(&self) -> Option<u64> {
        (self.synced < self.last).then_some(self.last)
    }

    /// Records that all batches up to this one are on the server's disk, and drops them.
    pub fn synced(&mut self, number: u64) {
        self.synced = self.synced.max(number);
        while !self.kept.is_empty() && self.last - (self.kept.len() as u64) < number {
            let gone = self.kept.pop_front();
            self.kept_bytes -= gone.map_or(0, |one| one.bytes());
        }
    }

    /// Returns the batches that have to be sent again to a server that has only the first `batches`
    /// of them. Returns `None` if it lacks some that are no longer kept, or has some that were not
    /// sent.
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

    #[test]
    fn references_in_one_batch_take_no_more_memory_than_a_change_may() {
        let key = bytes::Bytes::from_static(b"key");
        let dict = kvdb::DictionaryId(1);
        let of = (dict, key.clone());
        let one = ServedChange::Refer(kvdb::Reference { dict, key, of });
        let most = MAX_CHANGE / memory_of_change(&one);
        let mut outgoing = Outgoing::after(0);
        outgoing.queue(vec![one; 2 * most], &(1..=2 * most).collect::<Vec<_>>());
        for number in [1, 2] {
            let Some((_, Numbered::Changes(changes))) = outgoing.next() else { panic!() };
            assert_eq!(changes.len(), most);
            outgoing.taken(number, false);
        }
        assert!(outgoing.next().is_none());
    }
    fn put(key: &'static [u8]) -> ServedChange {
        ServedChange::Put(DictionaryId(1), key.into(), "value".into())
    }

    fn refer(key: &'static [u8], of: &'static [u8]) -> ServedChange {
        let (dict, of) = (DictionaryId(1), (DictionaryId(1), of.into()));
        ServedChange::Refer(kvdb::Reference { dict, key: key.into(), of })
    }

    /// Returns the batches that wait after the first one was refused and split.
    fn split(changes: &[ServedChange]) -> Option<Vec<Vec<ServedChange>>> {
        let mut outgoing = Outgoing::after(0);
        outgoing.queue(changes.to_vec(), &[changes.len()]);
        outgoing.next();
        assert!(!outgoing.split_first(), "the server may have it");
        outgoing.refused(1);
        let was_split = outgoing.split_first();
        let parts = outgoing.take_back().into_iter().map(|part| part.to_vec()).collect();
        was_split.then_some(parts)
    }

    #[test]
    fn a_refused_batch_is_split_where_no_reference_gets_another_value() {
        let four = [refer(b"a", b"x"), refer(b"b", b"x"), refer(b"c", b"x"), refer(b"d", b"x")];
        assert_eq!(split(&four), Some(vec![four[..2].to_vec(), four[2..].to_vec()]));
        assert_eq!(split(&four[..1]), None, "of one reference there is no half");
        assert_eq!(split(&[put(b"a"), put(b"b")]), None, "it was not refused for references");
        // The value before the batch is referred to, and the batch changes it.
        let later = [&four[..], &[put(b"x")]].concat();
        assert_eq!(split(&later).map(|parts| parts[1].len()), Some(3));
        let earlier = [&[put(b"x")][..], &four[..]].concat();
        assert_eq!(split(&earlier), None);
        let range = ServedChange::DeleteRange(DictionaryId(1), "w".into(), "y".into());
        assert_eq!(split(&[&[range][..], &four[..]].concat()), None);
        let chain = [refer(b"a", b"x"), refer(b"b", b"a"), refer(b"c", b"x"), refer(b"d", b"c")];
        assert_eq!(split(&chain), Some(vec![chain[..2].to_vec(), chain[2..].to_vec()]));
        let crossed = [refer(b"a", b"x"), refer(b"b", b"x"), refer(b"c", b"a"), refer(b"d", b"x")];
        assert_eq!(split(&crossed), Some(vec![crossed[..3].to_vec(), crossed[3..].to_vec()]));
    }

    #[test]
    fn a_batch_before_a_numbered_savepoint_is_not_split() {
        let mut outgoing = Outgoing::after(0);
        outgoing.queue(vec![refer(b"a", b"x"), refer(b"b", b"x")], &[2]);
        assert_eq!(outgoing.add(Numbered::Savepoint), 2);
        assert!(!outgoing.split_first());
    }
}
