//! Long strings in the state of a command. Parts of them are read, and they are changed page by
//! page.
//!
//! An operation on a part touches only the pages of that part. A small write becomes an update of
//! its page, which is not read. A page that cannot have been stored is not read either.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Update};

use super::Seen;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Head, Kind, Live, PAGE, WRONGTYPE, head_key, page_key, page_number};
use crate::limits::Limits;
use crate::notifications::Classes;

/// Length of a tuple, in bytes, below which it is read and rewritten when it changes. Such a
/// tuple lies in its block, which has to be read for the length of the tuple anyway, unless the
/// dictionary has another `separate_at`. A longer tuple has a separate place, and a small change
/// neither reads nor writes it.
const IN_ITS_BLOCK: u64 = 2 << 10;

/// Length of a change, in bytes, above which the tuple is read and rewritten, because this makes
/// later reads cheaper.
const CHANGE_UP_TO: usize = 4 << 10;

/// Length of a write, in bytes, up to which it becomes an update of its page. A longer write
/// reads the page.
const UPDATE_UP_TO: usize = PAGE / 4;

/// A string whose bytes have not been read yet.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    Absent,
    /// A string in one tuple of this length.
    Tuple(usize),
    Pages(Head),
}

impl Text {
    pub fn exists(&self) -> bool {
        !matches!(self, Text::Absent)
    }
    pub fn len(&self) -> u64 {
        match self {
            Text::Absent => 0,
            Text::Tuple(len) => *len as u64,
            Text::Pages(head) => head.len,
        }
    }
}

/// Divides `bytes`, written at `at`, into pieces that lie within one page. Each piece has the
/// number of its page and its offset in the page.
fn pieces(at: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let (mut at, mut rest) = (at, bytes);
    std::iter::from_fn(move || {
        let (number, offset) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let (piece, behind) = rest.split_at(rest.len().min(PAGE - offset));
        (at, rest) = (at + piece.len() as u64, behind);
        (!piece.is_empty()).then_some((number, offset, piece))
    })
}

/// Passes the zeros of a range to `take`, one page at a time, until `take` returns `false`.
fn zeros(
    range: Range<u64>,
    take: &mut impl FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    const ZEROS: [u8; PAGE] = [0; PAGE];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(PAGE as u64);
        at += len;
        if !take(&ZEROS[..len as usize])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes a piece into a page, which is extended with zeros if necessary.
fn overwrite(page: &mut Vec<u8>, offset: usize, piece: &[u8]) {
    let end = offset + piece.len();
    if page.len() < end {
        page.resize(end, 0);
    }
    page[offset..end].copy_from_slice(piece);
}

impl Seen<'_> {
    pub fn limits(&self) -> &Limits {
        &self.session.shared.limits
    }
    /// Returns the string of a key without reading its bytes. Returns an error if the key is of
    /// another type.
    pub fn text(&self, key: &[u8]) -> Result<(Live, Text), Failure> {
        let head = self.head(key)?;
        let live = match self.by_head(head)?.0 {
            Some(live) => live,
            None => {
                let len = self.string_len(key)?;
                let live = Live { kind: len.map(|_| Kind::String), head, count: 0 };
                return Ok((live, len.map_or(Text::Absent, Text::Tuple)));
            }
        };
        match live.pages() {
            Some(head) => Ok((live, Text::Pages(head))),
            None if live.exists() => Err(WRONGTYPE),
            None => Ok((live, Text::Absent)),
        }
    }
    /// Returns the bytes of a range of a string that [`Seen::text`] has found. The range is cut
    /// off at the end of the string. Returns an error if there are more bytes than a command may
    /// buffer.
    pub fn part(&self, key: &[u8], text: &Text, range: Range<u64>) -> Result<Bytes, Failure> {
        let range = range.start.min(text.len())..range.end.min(text.len());
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match text {
            Text::Absent => Ok(Bytes::new()),
            Text::Tuple(_) => {
                let value = self.string(key)?.1.unwrap_or_default();
                let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(value.len());
                Ok(value.slice(place(range.start)..place(range.end)))
            }
            Text::Pages(head) => self.gathered(head, range),
        }
    }
    pub(super) fn gathered(&self, head: &Head, range: Range<u64>) -> Result<Bytes, Failure> {
        let (len, most) = (range.end - range.start, self.limits().request);
        if len > most as u64 {
            return Err(Failure::Limit(format!(
                "{len} bytes of a string are more than a command takes at once, which is {most}: read it in parts, GETRANGE"
            )));
        }
        let mut gathered = Vec::with_capacity(len as usize);
        self.visit_part(head, range, |bytes| {
            gathered.extend_from_slice(bytes);
            Ok(true)
        })?;
        Ok(gathered.into())
    }
    /// Passes the bytes of a range below the length to `take` in pieces, until `take` returns
    /// `false`.
    pub fn visit_part(
        &self,
        head: &Head,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Outcome {
        let mut at = range.start;
        let goes_on = self.visit_stored(head, range.clone(), |place, bytes| {
            let goes_on = zeros(at..place, &mut take)? && take(bytes)?;
            at = place + bytes.len() as u64;
            Ok(goes_on)
        })?;
        if goes_on {
            zeros(at..range.end, &mut take)?;
        }
        Ok(())
    }
    /// Passes the stored pieces of a range below the length to `take`, each with its offset,
    /// until `take` returns `false`; in this case the result is also `false`. Between the pieces
    /// the string has zeros.
    pub fn visit_stored(
        &self,
        head: &Head,
        range: Range<u64>,
        mut take: impl FnMut(u64, &[u8]) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let (Some(types), false) = (self.types, range.is_empty()) else { return Ok(true) };
        let mut page = |number: u64, value: &[u8]| {
            let start = number.saturating_mul(PAGE as u64);
            let from = range.start.saturating_sub(start).min(value.len() as u64);
            let to = range.end.saturating_sub(start).min(value.len() as u64);
            match value.get(from as usize..to as usize) {
                Some(bytes) if !bytes.is_empty() => take(start + from, bytes),
                _ => Ok(true),
            }
        };
        let (first, last) = (range.start / PAGE as u64, (range.end - 1) / PAGE as u64);
        if first == last {
            let value = self.get(types, &page_key(head.id, first))?.unwrap_or_default();
            return page(first, &value);
        }
        let (first, behind) = (page_key(head.id, first), page_key(head.id, last + 1));
        let Some(mut cursor) = self.cursor(types, &first, &behind)? else { return Ok(true) };
        let mut steps = 0u32;
        while let Some(tuple) = cursor.next()? {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(256) {
                self.session.check_stopping()?;
            }
            let number = page_number(&tuple.key).ok_or_else(|| {
                Failure::Corrupt(format!("a page of the string {:x} has no number", head.id))
            })?;
            if !page(number, &tuple.value()?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a head with a new id, under which no pages exist yet.
    fn begin_pages(&self, types: DictionaryId, deadline: Option<u64>) -> Result<Head, Failure> {
        loop {
            let head = Head::new(Kind::Pages, deadline, self.session.random());
            let Some((start, end)) = head.beneath() else { return Ok(head) };
            let taken = match self.cursor(types, &start, &end)? {
                Some(mut cursor) => cursor.next()?.is_some(),
                None => false,
            };
            if !taken {
                return Ok(head);
            }
        }
    }
    /// Stores a string in pages under a key that the batch has cleared.
    pub(super) fn put_pages(
        &self,
        types: DictionaryId,
        key: &[u8],
        value: &[u8],
        batch: &mut Batch,
    ) -> Result<Live, Failure> {
        let mut head = self.begin_pages(types, None)?;
        head.len = value.len() as u64;
        for (number, _, piece) in pieces(0, value) {
            batch.put(types, page_key(head.id, number), Bytes::copy_from_slice(piece));
        }
        self.put_head_of_pages(types, key, &head, batch);
        Ok(Live { kind: Some(Kind::Pages), head: Some(head), count: head.len as i64 })
    }
    fn put_head_of_pages(&self, types: DictionaryId, key: &[u8], head: &Head, batch: &mut Batch) {
        batch.put(types, head_key(key), head.encode());
    }

    /// Writes bytes into a string at `at`, and creates the string if necessary. A gap between the
    /// end of the string and `at` is filled with zeros. Returns the new length, or `None` if the
    /// string would need pages and thus the types dictionary, which does not exist yet.
    pub fn write_part(
        &self,
        key: &[u8],
        live: &Live,
        text: &Text,
        at: u64,
        bytes: &[u8],
        batch: &mut Batch,
    ) -> Result<Option<u64>, Failure> {
        let len = text.len();
        let end = at.checked_add(bytes.len() as u64);
        let end = end.filter(|end| *end <= self.limits().value);
        let grown = len.max(end.ok_or(Failure::TOO_LONG)?);
        match (text, self.types) {
            (Text::Pages(head), Some(types)) => {
                self.write_pages(types, head, at, bytes, batch)?;
                let mark = self.session.random();
                let head = Head { len: grown, mark, ..*head };
                self.put_head_of_pages(types, key, &head, batch);
            }
            _ if self.moves_to_pages(len, grown, bytes.len() as u64) => {
                let Some(types) = self.types else { return Ok(None) };
                self.move_to_pages(types, key, live, grown, (at, bytes), batch)?;
            }
            _ => self.write_tuple(key, live, text, (at, bytes), batch)?,
        }
        Ok(Some(grown))
    }
    /// Returns whether a write of `written` bytes into a string of `len` bytes, which makes it
    /// `grown` bytes long, moves the string from its tuple to pages. A write that replaces most of
    /// the string leaves one tuple, unless the string becomes too long for that.
    fn moves_to_pages(&self, len: u64, grown: u64, written: u64) -> bool {
        let limits = self.limits();
        let becomes_too_long = grown > limits.tuple as u64 && grown > len;
        let is_small_part = (1..=grown / 2).contains(&written);
        becomes_too_long || grown >= limits.patched as u64 && is_small_part
    }
    fn write_pages(
        &self,
        types: DictionaryId,
        head: &Head,
        at: u64,
        bytes: &[u8],
        batch: &mut Batch,
    ) -> Outcome {
        for (number, offset, piece) in pieces(at, bytes) {
            let start = number * PAGE as u64;
            let key = page_key(head.id, number);
            // `stored` is the number of bytes of this page that may be stored.
            let stored = head.len.saturating_sub(start).min(PAGE as u64) as usize;
            if offset == 0 && piece.len() >= stored {
                batch.put(types, key, Bytes::copy_from_slice(piece));
            } else if stored > 0 && piece.len() <= UPDATE_UP_TO {
                let update = Update::patch(offset, piece).ok_or(Failure::TOO_LONG)?;
                batch.update(types, key, update);
            } else {
                let mut page = match stored {
                    0 => Vec::new(),
                    _ => self.get(types, &key)?.unwrap_or_default().to_vec(),
                };
                overwrite(&mut page, offset, piece);
                batch.put(types, key, page);
            }
        }
        Ok(())
    }
    /// Converts a string that was one tuple, or did not exist, into a string in pages.
    fn move_to_pages(
        &self,
        types: DictionaryId,
        key: &[u8],
        live: &Live,
        len: u64,
        (at, bytes): (u64, &[u8]),
        batch: &mut Batch,
    ) -> Outcome {
        let old = self.string(key)?.1.unwrap_or_default();
        if !live.exists() {
            self.clear(key, live, batch);
            self.event(Classes::NEW, "new", key);
        }
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (number, offset, piece) in pieces(0, &old).chain(pieces(at, bytes)) {
            overwrite(pages.entry(number).or_default(), offset, piece);
        }
        let head = Head { len, ..self.begin_pages(types, live.deadline())? };
        for (number, page) in pages {
            batch.put(types, page_key(head.id, number), page);
        }
        // Two transactions that change the string both change this tuple, so that they conflict.
        if let Some(strings) = self.strings {
            self.exclude_others(self.strings, key)?;
            batch.delete(strings, Bytes::copy_from_slice(key));
        }
        self.put_head_of_pages(types, key, &head, batch);
        Ok(())
    }
    fn write_tuple(
        &self,
        key: &[u8],
        live: &Live,
        text: &Text,
        (at, bytes): (u64, &[u8]),
        batch: &mut Batch,
    ) -> Outcome {
        let Some(strings) = self.strings else { return Ok(()) };
        let update = match usize::try_from(at) {
            Ok(_) if at == text.len() => Update::append(bytes),
            Ok(offset) => Update::patch(offset, bytes),
            Err(_) => None,
        };
        let update = update.ok_or(Failure::TOO_LONG)?;
        // A change that is as long as the tuple would not save anything.
        let most = CHANGE_UP_TO.min(usize::try_from(text.len()).unwrap_or(usize::MAX) / 2);
        if text.len() < IN_ITS_BLOCK || update.bytes().len() > most {
            let value = update.apply(self.string(key)?.1.as_deref());
            self.change_string(key, live, value, batch)?;
        } else {
            self.exclude_others(self.types, &head_key(key))?;
            batch.update(strings, Bytes::copy_from_slice(key), update);
        }
        Ok(())
    }

    /// Copies the pages of a string by reference to another key, which the batch has cleared.
    pub fn copy_pages(&self, of: &Head, to: &[u8], batch: &mut Batch) -> Outcome {
        let (Some(types), Some((start, end))) = (self.types, of.beneath()) else { return Ok(()) };
        self.exclude_others(self.strings, to)?;
        let head = Head { id: self.begin_pages(types, None)?.id, ..*of };
        // `TAKES` is the number of bytes that one page takes in the batch.
        const TAKES: usize = 128;
        let most = self.limits().request / TAKES;
        let pages = self.range(types, &start, &end)?.scan_stored(types, &start, &end, most + 1)?;
        if pages.len() > most {
            return Err(Failure::Limit(format!(
                "more than {most} pages of {PAGE} bytes are to be copied at once"
            )));
        }
        for (key, page) in pages {
            let number = page_number(&key).ok_or_else(|| {
                Failure::Corrupt(format!("a page of the string {:x} has no number", of.id))
            })?;
            batch.put_stored(types, page_key(head.id, number), page);
        }
        self.put_head_of_pages(types, to, &head, batch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_pages_do() {
        let bytes = vec![7; 2 * PAGE];
        let lens = |at: u64, len: usize| -> Vec<(u64, usize, usize)> {
            pieces(at, &bytes[..len]).map(|(n, offset, piece)| (n, offset, piece.len())).collect()
        };
        assert_eq!(lens(0, PAGE), [(0, 0, PAGE)]);
        assert_eq!(lens(1, PAGE), [(0, 1, PAGE - 1), (1, 0, 1)]);
        assert_eq!(lens((1 << 40) - 1, 2), [((1 << 28) - 1, PAGE - 1, 1), (1 << 28, 0, 1)]);
        assert_eq!(lens(5, 0), []);
    }
}
