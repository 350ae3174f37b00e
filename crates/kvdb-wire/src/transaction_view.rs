//! A served transaction as a view: the client's changes cover the server's values.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use kvdb::{DictionaryId, PageRequest, ServedChange, ServedView, Space, TuplePage};

use crate::ahead::{Asked, first_of_dense};
use crate::asking::{first_keys, with_missing};
use crate::changes::{gives_back, memory_of_change, reference_of};
use crate::error::Error;
use crate::gathered::Overlay;
use crate::prefetch::read_ahead;
use crate::reply::Reply;
use crate::request::Request;
use crate::served_transaction::ServedTransaction;
use crate::unfinished::MAX_CHANGE;

/// The changes are sent once they take more bytes than this.
const GATHERED: usize = 3 << 20;
/// Time for which changes of a transaction that ends with its client wait for more of them.
const GATHERING: Duration = Duration::from_secs(3);
/// Number of deleted ranges above which changes are sent, since each read checks all of them.
const RANGES: usize = 1024;
/// Bytes of changes that may wait if the server does not take them. Above that, further changes are
/// refused.
const WAITING: usize = 16 << 20;
/// Bytes of changes of a lease after which the client asks how much space there is.
const SPACE_KNOWN_FOR: u64 = 64 << 20;
/// The time for which changes that were refused for lack of space are not sent again, unless data
/// is removed.
const REFUSED: Duration = Duration::from_secs(1);

impl ServedTransaction {
    /// Returns the names of the dictionaries that the transaction may use, in order: those of the
    /// file system, and those of the user.
    pub fn dictionary_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.dictionaries.keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns the values of some of these keys, from the first one on. `made` is the number of
    /// changes when the keys were found to be unknown. A change since then may be newer than the
    /// server's answer, so the answer is not cached.
    fn values(
        &self,
        dict: DictionaryId,
        keys: &[Bytes],
        made: u64,
    ) -> kvdb::Result<Vec<Option<Bytes>>> {
        let asked = first_keys(keys);
        let request = |view| Request::GetMany { view, dict, keys: asked.clone() };
        match self.ask(request).map_err(|e| self.told(e))? {
            Reply::Values(values) if (1..=asked.len()).contains(&values.len()) => {
                let mut state = self.state.lock();
                // Otherwise the value may have changed in the meantime.
                if state.made == made {
                    for (key, value) in asked.iter().zip(&values) {
                        state.pages.keep_value(dict, key, value.as_ref());
                    }
                }
                Ok(values)
            }
            _ => Err(self.told(Error::Unexpected)),
        }
    }

    fn read_ahead(&self, dict: DictionaryId, key: &Bytes, asked: Asked) -> bool {
        self.reads_ahead
            && read_ahead(&self.state, dict, (key, asked), |page| self.page_there(dict, page))
    }

    /// Returns the page if it is kept. If it is not, the files and directories next to it are read
    /// ahead, which may have it, unless keys alone are read.
    fn kept_page(&self, dict: DictionaryId, page: &PageRequest<'_>) -> Option<TuplePage> {
        let kept = || self.state.lock().pages.answer(dict, page);
        kept().or_else(|| {
            let ahead = !page.backward
                && !page.keys_only
                && self.read_ahead(dict, &Bytes::copy_from_slice(page.start), Asked::Range);
            if ahead { kept() } else { None }
        })
    }

    /// Returns the client's changes in the range of a page, and the number of all of its changes.
    fn overlay(&self, dict: DictionaryId, page: &PageRequest<'_>) -> (Overlay, u64) {
        let state = self.state.lock();
        (state.overlay(dict, page), state.made)
    }

    /// Returns a page in the state that the server has.
    fn page_there(&self, dict: DictionaryId, page: &PageRequest<'_>) -> kvdb::Result<TuplePage> {
        let asked = self.ask(|view| Request::page(view, dict, page)).map_err(|e| self.told(e))?;
        match asked {
            Reply::Tuples { ended, tuples } => Ok(TuplePage { tuples, ended }),
            _ => Err(self.told(Error::Unexpected)),
        }
    }
}

impl ServedView for ServedTransaction {
    fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.dictionaries.get(name).copied()
    }

    fn space(&self) -> Space {
        // Changes made by this client take from the space that was free when the transaction began,
        // or when the client has last asked for it.
        let space = *self.space.lock();
        let free = space.free.saturating_sub(self.state.lock().bytes);
        Space { free, ..space }
    }

    fn get_many(&self, dict: DictionaryId, keys: &[&[u8]]) -> kvdb::Result<Vec<Option<Bytes>>> {
        self.check()?;
        let keys: Vec<Bytes> = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        let look = || {
            let mut state = self.state.lock();
            let found: Vec<_> = keys.iter().map(|key| state.known(dict, key)).collect();
            state.pages.looked_up(&found);
            let is_updated = keys.iter().any(|key| state.is_updated(dict, key));
            // The server may lack the update of such a key, so its answer is not kept.
            let made = if is_updated { u64::MAX } else { state.made };
            (found, is_updated, made)
        };
        let (mut found, is_updated, mut made) = look();
        if is_updated {
            self.send()?;
            (found, _, made) = look();
        }
        if let Some(first) = found.iter().position(Option::is_none)
            && self.read_ahead(dict, &keys[first], Asked::Keys)
        {
            (found, _, made) = look();
        }
        with_missing(&keys, found, |missing| self.values(dict, missing, made))
    }

    fn page(&self, dict: DictionaryId, page: &PageRequest<'_>) -> kvdb::Result<TuplePage> {
        self.check()?;
        if let Some(kept) = self.kept_page(dict, page) {
            return Ok(kept);
        }
        let (mut from, mut to) = (page.start.to_vec(), page.end.to_vec());
        let mut has_sent = false;
        loop {
            let request = PageRequest { start: &from, end: &to, ..*page };
            // Take the overlay first, so that it has all changes that the server may lack when it
            // answers.
            let (mut overlay, mut made) = self.overlay(dict, &request);
            if page.keys_only && overlay.has_referred() {
                if !has_sent {
                    has_sent = true;
                    match self.send() {
                        // The keys count as existing: files must be listed to remove some of them.
                        Err(kvdb::Error::NoSpace) => {}
                        sent => {
                            sent?;
                            continue;
                        }
                    }
                }
                made = u64::MAX;
            }
            if !page.keys_only && overlay.has_unknown() {
                if !has_sent {
                    self.send()?;
                    has_sent = true;
                    continue;
                }
                // Other threads have updated keys since this call began. It need not return that,
                // and would wait for them without an end. The page is not kept.
                overlay.forget_unknown();
                made = u64::MAX;
            }
            let there = self.page_there(dict, &request)?;
            if !there.ended && there.tuples.is_empty() {
                return Err(self.told(Error::Unexpected));
            }
            let (merged, last) = overlay.merge(&request, there);
            if merged.tuples.is_empty()
                && let Some(last) = last
            {
                // All keys of the page were deleted by this client: continue after it.
                match page.backward {
                    true => to = last.to_vec(),
                    false => from = [&last[..], &[0]].concat(),
                }
                continue;
            }
            let mut state = self.state.lock();
            if state.made == made {
                state.pages.keep_page(dict, &request, &merged);
            }
            return Ok(merged);
        }
    }

    fn announce(&self, dict: DictionaryId, keys: &[&[u8]]) {
        let unknown = || -> (Vec<Bytes>, u64) {
            let state = self.state.lock();
            let keys = keys.iter().map(|key| Bytes::copy_from_slice(key));
            let unknown =
                keys.filter(|key| state.known(dict, key).is_none() && !state.is_updated(dict, key));
            (unknown.collect(), state.made)
        };
        let (mut keys, mut made) = unknown();
        if let Some(first) = first_of_dense(&keys)
            && self.read_ahead(dict, first, Asked::Keys)
        {
            (keys, made) = unknown();
        }
        let mut rest = &keys[..];
        while !rest.is_empty() {
            match self.values(dict, rest, made) {
                Ok(values) => rest = &rest[values.len()..],
                // The read of the key will get the same error.
                Err(_) => break,
            }
        }
    }

    fn new_range(&self, dict: DictionaryId, start: &[u8], end: &[u8]) {
        self.state.lock().new.add(dict, start, end);
    }

    fn writable(&self) -> bool {
        !self.is_lease() || self.over().is_none()
    }

    fn is_main(&self) -> bool {
        self.is_lease()
    }

    fn is_durable(&self) -> bool {
        self.durable
    }

    fn apply(&self, changes: Vec<ServedChange>) -> kvdb::Result<()> {
        self.check()?;
        let more = changes.iter().map(memory_of_change).sum::<usize>();
        if more > MAX_CHANGE {
            let what = format!("changes of more than {MAX_CHANGE} bytes at once");
            return Err(kvdb::Error::Limit(what));
        }
        let gives_back = gives_back(&changes);
        // An eighth is left for what removes some of the others.
        let most = if gives_back { MAX_CHANGE } else { MAX_CHANGE - MAX_CHANGE / 8 };
        let (waiting, is_long, refused) = {
            let state = self.state.lock();
            let refused = state.refused.as_ref().map(|(_, at)| at.elapsed());
            let waiting = state.gathered.bytes() + state.under_way.bytes();
            // If the server refuses them, all that wait become one unit, with what removes some of
            // them.
            let memory = state.gathered.memory() + state.under_way.memory();
            (waiting, memory > 0 && memory + more > most, refused)
        };
        // Changes that the server does not take must not accumulate without limit. Those that
        // release space must reach the server, and others are not tried each time.
        let is_full = waiting > WAITING || is_long;
        if is_full && !gives_back && refused.is_some_and(|since| since < REFUSED) {
            return Err(kvdb::Error::NoSpace);
        }
        let may_exceed = gives_back && !is_long && waiting < WAITING + WAITING / 8;
        if is_full
            && let Err(e) = self.send()
            && !(matches!(e, kvdb::Error::NoSpace) && may_exceed)
        {
            return Err(e);
        }
        // The server takes a value by reference as it was before the batch, so it must have the
        // changes of that value.
        let sources: Vec<(DictionaryId, Bytes)> =
            changes.iter().filter_map(reference_of).map(|one| one.of.clone()).collect();
        let is_much = {
            let mut state = self.state.lock();
            while sources.iter().any(|(dict, key)| state.has_changed(*dict, key)) {
                drop(state);
                self.send()?;
                state = self.state.lock();
            }
            state.waits_since.get_or_insert_with(Instant::now);
            changes.into_iter().for_each(|change| state.change(change));
            state.gathered.end_unit();
            state.gathered.bytes() > GATHERED || state.gathered.ranges() > RANGES
        };
        if is_much && let Err(e) = self.send() {
            tracing::warn!("changes of transaction {} wait here, for now: {e}", self.id());
        }
        Ok(())
    }

    fn sync(&self) -> kvdb::Result<()> {
        self.send()?;
        match self.durable {
            true => self.keep().map_err(|e| self.told(e)),
            false => Ok(()),
        }
    }

    fn sync_at_interval(&self) -> kvdb::Result<()> {
        let waits_since = self.state.lock().waits_since;
        let is_due = waits_since.is_none_or(|since| since.elapsed() >= GATHERING);
        if self.durable || is_due {
            self.sync()?;
        }
        let (silent, bytes) = {
            let state = self.state.lock();
            (state.heard.elapsed(), state.bytes)
        };
        // The changes of a lease may have replaced existing data, so ask for the remaining space.
        let is_much = self.is_lease() && bytes > SPACE_KNOWN_FOR;
        match is_much || !self.lease.is_zero() && silent > self.lease / 4 {
            true => self.renew(),
            false => Ok(()),
        }
    }

    fn reserve_numbers(&self, count: u64) -> kvdb::Result<Range<u64>> {
        self.check()?;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        match self.ask(|transaction| Request::Reserve { transaction, count }) {
            Ok(Reply::Reserved { first, count }) if count > 0 => {
                Ok(first..first.saturating_add(u64::from(count)))
            }
            Ok(_) => Err(self.told(Error::Unexpected)),
            Err(e) => Err(self.told(e)),
        }
    }
}
