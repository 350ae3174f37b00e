//! Mirrors the commits that are not on the device yet, in a file that outlives this process, such
//! as a file in memory (memfd_create(2)) that another process holds open. A store that is opened
//! with the mirror of a killed process has every commit that had returned to its caller.
//!
//! A commit enters the mirror under the pipeline's lock, before it returns to its caller. The
//! commit leaves the mirror when its record has been written to the device ([`Mirror::cut`]), even
//! without a sync, because the kernel then has the record and the end of the process does not
//! affect it. After a power cut, the mirror is lost together with all other data that was not
//! synced.
//!
//! **Notes.** A commit may carry a [`Note`], which records that the commit completes a client's
//! request. The note enters the mirror atomically with the commit, and stays when the commit
//! leaves. Each note has a slot, and stays until the next note of this slot replaces it.
//!
//! The file has the following layout, in the machine's byte order:
//!
//! ```text
//!       0  u64 magic, u64 start of the log, u64 place of the earlier notes, u64 their number, the
//!          store's 16 bytes (zeros: of none yet), u64 how many processes have begun with it
//!    4096  slots, 32 bytes each: u64 request, u64 value, u64 request again (0: the slot is empty)
//!  256 Ki  earlier notes, 16 bytes each: u64 request, u64 value; a second place at 512 Ki
//!    1 Mi  the log: entries with an ENTRY head, then the commit's record
//! ```
//!
//! If only the process ends, and not the machine, a write to one page of a file in memory is
//! atomic. The heads therefore need no checksum. An entry may be longer than a page and has a
//! checksum. Zeros follow the last entry. If the process ended before it wrote these zeros, the log
//! ends before the first entry that does not continue the numbers of the previous entry, since that
//! entry is a remnant of older data.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::Seq;
use zones::crc32c;

use crate::error::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"KVMIRR01");
const HEAD: usize = 56;
const SLOT_AT: u64 = 4096;
const SLOT: u64 = 32;
/// The number of slots, and the maximum number of earlier notes that are kept.
const NOTES: usize = 4096;
const EARLIER_AT: [u64; 2] = [256 << 10, 512 << 10];
const LOG_AT: u64 = 1 << 20;
/// The number of bytes of an entry before its record. These are a u32 length of the record, a u32
/// checksum of the bytes after the checksum, a u64 number of the first change, a u32 number of
/// changes, a u32 slot, a u64 request, and a u64 value.
const ENTRY: usize = 40;
const NO_SLOT: u32 = u32::MAX;
/// The minimum number of unused bytes before the start of the log at which this space is reused.
const SLACK: u64 = 4 << 20;

/// A record that a commit completes a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The slot of the note, below [`Note::SLOTS`]. A slot holds one note at a time.
    pub slot: u32,
    /// The number of the completed request, which must not be 0.
    pub request: u64,
    /// A value for the client that inquires about the request.
    pub value: u64,
}

impl Note {
    /// The number of slots.
    pub const SLOTS: u32 = NOTES as u32;
}

/// A file with the commits that the device does not have yet. See
/// [`OpenOptions::mirror`](crate::OpenOptions::mirror).
pub struct Mirror {
    file: File,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The start of the log in the file.
    start: u64,
    /// The end of the log in the file.
    tail: u64,
    /// The position of the journal's stream after the record of each entry in the log, and the end
    /// of the entry in the file.
    ends: VecDeque<(u64, u64)>,
    buffer: Vec<u8>,
    /// The place of the earlier notes, as an index into `EARLIER_AT`, and their number.
    earlier: (usize, u64),
    store: [u8; 16],
    lives: u64,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").finish_non_exhaustive()
    }
}

/// A commit in the mirror.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mirrored {
    pub first: Seq,
    pub changes: u64,
    /// The record in the form of the journal's stream, without its length.
    pub record: Bytes,
    /// The end of the entry in the file.
    end: u64,
    note: Option<Note>,
}

impl Mirrored {
    /// Returns the number of the change that follows the commit.
    pub fn next(&self) -> Seq {
        self.first.saturating_add(self.changes)
    }
}

fn failed(e: io::Error) -> Error {
    Error::Invalid(format!("the mirror of the commits cannot be used: {e}"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| b.try_into().map_or(0, u64::from_ne_bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| b.try_into().map_or(0, u32::from_ne_bytes))
}

/// Reads a range of the file. The result is shorter if the file ends before the range does.
fn read(file: &File, at: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], at + done as u64).map_err(failed)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

impl Mirror {
    /// Opens the mirror in this file, or makes a new mirror if the file is empty.
    pub fn new(file: File) -> Result<Mirror> {
        let head = read(&file, 0, HEAD)?;
        let mut state = State { start: LOG_AT, tail: LOG_AT, ..State::default() };
        match u64_at(&head, 0) {
            MAGIC => {
                state.start = u64_at(&head, 8).max(LOG_AT);
                let place = EARLIER_AT.iter().position(|at| *at == u64_at(&head, 16));
                state.earlier = (place.unwrap_or(0), u64_at(&head, 24).min(NOTES as u64));
                state.lives = u64_at(&head, 48);
                if let Some(store) = head.get(32..48) {
                    state.store.copy_from_slice(store);
                }
            }
            0 => write_head(&file, &state)?,
            _ => return Err(Error::Invalid("the mirror is of another version".into())),
        }
        Ok(Mirror { file, state: Mutex::new(state) })
    }

    /// Returns the values of completed requests, by request. Only the last note of each slot and
    /// the kept notes of earlier processes are known.
    pub fn notes(&self) -> Result<HashMap<u64, u64>> {
        Ok(self.all_notes()?.into_iter().collect())
    }

    /// Returns all notes, the oldest first.
    fn all_notes(&self) -> Result<Vec<(u64, u64)>> {
        let (place, count) = self.state.lock().earlier;
        let earlier = read(&self.file, EARLIER_AT[place], count as usize * 16)?;
        let mut all: Vec<_> =
            earlier.chunks_exact(16).map(|n| (u64_at(n, 0), u64_at(n, 8))).collect();
        let slots = read(&self.file, SLOT_AT, NOTES * SLOT as usize)?;
        let mut by_slot: Vec<_> =
            slots.chunks_exact(SLOT as usize).map(|s| (u64_at(s, 0), u64_at(s, 8))).collect();
        by_slot.resize(NOTES, (0, 0));
        // The log may have notes that are not in their slots, since the process may have ended
        // between the two writes.
        for note in self.entries()?.into_iter().filter_map(|entry| entry.note) {
            if let Some(slot) = by_slot.get_mut(note.slot as usize) {
                *slot = (note.request, note.value);
            }
        }
        all.extend(by_slot.into_iter().filter(|(request, _)| *request != 0));
        Ok(all)
    }

    /// Returns a number above all numbers that earlier processes with this mirror have given to
    /// transactions, unless one of these processes has begun more than a million transactions.
    pub(crate) fn first_transaction(&self) -> u64 {
        // Numbers of transactions have 32 bits where they are part of names.
        (self.state.lock().lives.saturating_sub(1) % 2048) << 20
    }

    /// Returns `true` if the mirror belongs to this store or does not belong to a store yet.
    pub(crate) fn is_of(&self, store: &[u8; 16]) -> bool {
        let of = self.state.lock().store;
        of == [0; 16] || of == *store
    }

    /// Returns the commits in the log.
    pub(crate) fn entries(&self) -> Result<Vec<Mirrored>> {
        let start = self.state.lock().start;
        let length = self.file.metadata().map_err(failed)?.len();
        let log = Bytes::from(read(&self.file, start, length.saturating_sub(start) as usize)?);
        let (mut entries, mut at): (Vec<Mirrored>, usize) = (Vec::new(), 0);
        while let Some(head) = log.get(at..at + ENTRY) {
            let end = at + ENTRY + u32_at(head, 0) as usize;
            let Some(rest) = log.get(at + 8..end) else { break };
            let (first, changes) = (u64_at(head, 8), u64::from(u32_at(head, 16)));
            let continues = entries.last().is_none_or(|last| last.next() == first);
            if changes == 0 || !continues || crc32c(rest) != u32_at(head, 4) {
                break;
            }
            let note =
                Note { slot: u32_at(head, 20), request: u64_at(head, 24), value: u64_at(head, 32) };
            let framed = log.slice(at + ENTRY..end);
            let mut rest = &framed[..];
            let record = match zones::varint::get_u64(&mut rest) {
                Ok(len) if len == rest.len() as u64 => framed.slice(framed.len() - rest.len()..),
                _ => break,
            };
            let note = (note.slot != NO_SLOT).then_some(note);
            entries.push(Mirrored { first, changes, record, end: start + end as u64, note });
            at = end;
        }
        Ok(entries)
    }

    /// Starts an empty log, after all commits of the old log have reached the device. The notes are
    /// kept.
    pub(crate) fn begin(&self, store: [u8; 16]) -> Result<()> {
        let mut notes = self.all_notes()?;
        let last = self.entries()?.last().map(|entry| entry.end);
        let mut state = self.state.lock();
        state.store = store;
        state.lives += 1;
        // Keep only the newest note of each request, since the note of a slot may also be among the
        // earlier notes.
        let mut known = std::collections::HashSet::new();
        notes.reverse();
        notes.retain(|(request, _)| known.insert(*request));
        notes.truncate(NOTES);
        notes.reverse();
        let mut bytes = Vec::with_capacity(notes.len() * 16);
        for (request, value) in &notes {
            bytes.extend_from_slice(&request.to_ne_bytes());
            bytes.extend_from_slice(&value.to_ne_bytes());
        }
        let place = 1 - state.earlier.0;
        self.file.write_all_at(&bytes, EARLIER_AT[place]).map_err(failed)?;
        state.earlier = (place, notes.len() as u64);
        state.start = last.unwrap_or(state.start);
        state.tail = state.start;
        state.ends.clear();
        self.file.write_all_at(&[0; ENTRY], state.start).map_err(failed)?;
        write_head(&self.file, &state)
    }

    /// Adds a commit with its record, which includes the length. `position` is the position of the
    /// journal's stream after this record. This is called under the pipeline's lock.
    pub(crate) fn add(
        &self,
        (first, changes): (Seq, u64),
        record: &[u8],
        position: u64,
        note: Option<Note>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let entry = &mut state.buffer;
        entry.clear();
        entry.extend_from_slice(&(record.len() as u32).to_ne_bytes());
        entry.extend_from_slice(&[0; 4]);
        entry.extend_from_slice(&first.to_ne_bytes());
        entry.extend_from_slice(&(changes as u32).to_ne_bytes());
        let Note { slot, request, value } =
            note.unwrap_or(Note { slot: NO_SLOT, request: 0, value: 0 });
        entry.extend_from_slice(&slot.to_ne_bytes());
        entry.extend_from_slice(&request.to_ne_bytes());
        entry.extend_from_slice(&value.to_ne_bytes());
        entry.extend_from_slice(record);
        let sum = crc32c(&entry[8..]);
        entry[4..8].copy_from_slice(&sum.to_ne_bytes());
        let end = state.tail + entry.len() as u64;
        // End the log with zeros, so that no older entry seems to continue it.
        entry.extend_from_slice(&[0; ENTRY]);
        self.file.write_all_at(entry, state.tail).map_err(failed)?;
        state.tail = end;
        state.ends.push_back((position, state.tail));
        if slot < Note::SLOTS {
            let mut bytes = [0; 24];
            bytes[..8].copy_from_slice(&request.to_ne_bytes());
            bytes[8..16].copy_from_slice(&value.to_ne_bytes());
            bytes[16..].copy_from_slice(&request.to_ne_bytes());
            let at = SLOT_AT + u64::from(slot) * SLOT;
            self.file.write_all_at(&bytes, at).map_err(failed)?;
        }
        Ok(())
    }

    /// Drops the commits up to `position` of the journal's stream, which are on the device. This is
    /// called under the pipeline's lock.
    pub(crate) fn cut(&self, position: u64) -> Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut start = state.start;
        while let Some(&(at, end)) = state.ends.front()
            && at <= position
        {
            start = end;
            state.ends.pop_front();
        }
        if start == state.start {
            return Ok(());
        }
        state.start = start;
        // The head names the new start before the space ahead of it is written again: until the
        // last write the process may end, and the next one reads the log where the head says.
        for (at, bytes) in self.move_to_front(state)? {
            self.file.write_all_at(&bytes, at).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the writes, in their order, that publish the start of the log and move the log to
    /// [`LOG_AT`] if the space before it is large enough. After each of them the file has all
    /// commits of the log. `state` is that after the last write.
    fn move_to_front(&self, state: &mut State) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut writes = vec![(0, head_of(state).to_vec())];
        let (before, left) = (state.start - LOG_AT, state.tail - state.start);
        // The copy and the zeros after it must not reach the log that they are a copy of.
        if before >= (left + ENTRY as u64).max(SLACK) {
            let mut rest = read(&self.file, state.start, left as usize)?;
            rest.resize(left as usize + ENTRY, 0);
            writes.push((LOG_AT, rest));
            state.ends.iter_mut().for_each(|(_, end)| *end -= before);
            (state.start, state.tail) = (LOG_AT, LOG_AT + left);
            writes.push((0, head_of(state).to_vec()));
        }
        Ok(writes)
    }
}

fn head_of(state: &State) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let (place, count) = state.earlier;
    for (i, word) in [MAGIC, state.start, EARLIER_AT[place], count].into_iter().enumerate() {
        head[i * 8..i * 8 + 8].copy_from_slice(&word.to_ne_bytes());
    }
    head[32..48].copy_from_slice(&state.store);
    head[48..].copy_from_slice(&state.lives.to_ne_bytes());
    head
}

fn write_head(file: &File, state: &State) -> Result<()> {
    file.write_all_at(&head_of(state), 0).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = 1 << 20;

    fn record(first: Seq) -> Vec<u8> {
        let content = vec![first as u8; RECORD];
        let mut framed = Vec::new();
        zones::varint::put_u64(&mut framed, content.len() as u64);
        framed.extend_from_slice(&content);
        framed
    }

    fn copy_of(file: &File) -> File {
        let copy = tempfile::tempfile().expect("a file");
        let length = file.metadata().expect("attributes").len();
        let bytes = read(file, 0, length as usize).expect("the file is readable");
        copy.write_all_at(&bytes, 0).expect("the copy is written");
        copy
    }

    /// Returns the numbers of the commits that the next process finds in the file.
    fn firsts(file: &File) -> Vec<Seq> {
        let mirror = Mirror::new(copy_of(file)).expect("it is a mirror");
        mirror.entries().expect("the log is readable").iter().map(|e| e.first).collect()
    }

    /// Returns a mirror with `count` commits, of which the first `gone` are on the device. In the
    /// file, only the first is cut; the state is that before the other cuts are written.
    fn mirror_cut(gone: u64, count: u64) -> (File, Mirror, State) {
        let file = tempfile::tempfile().expect("a file");
        let mirror = Mirror::new(file.try_clone().expect("a descriptor")).expect("it is new");
        mirror.begin([1; 16]).expect("it begins");
        for n in 1..=count {
            mirror.add((n, 1), &record(n), n, None).expect("the commit is added");
        }
        mirror.cut(1).expect("the first commit is cut");
        let mut state = std::mem::take(&mut *mirror.state.lock());
        for _ in 1..gone {
            state.start = state.ends.pop_front().expect("a commit").1;
        }
        (file, mirror, state)
    }

    #[test]
    fn a_cut_that_a_kill_ends_after_any_write_keeps_all_commits() {
        // All commits have one length. Six before the start and six after it leave no space for
        // the zeros at the end of a copy.
        for (gone, count, moves) in [(3, 5, false), (6, 12, false), (7, 13, true), (8, 9, true)] {
            let (file, mirror, mut state) = mirror_cut(gone, count);
            let left: Vec<Seq> = (gone + 1..=count).collect();
            let writes = mirror.move_to_front(&mut state).expect("the log is readable");
            assert_eq!(state.start == LOG_AT, moves, "{gone} of {count}");
            let mut written = 0;
            for (at, bytes) in writes {
                // A write ends between any two pages.
                for end in (4096..bytes.len()).step_by(251 * 4096) {
                    let torn = copy_of(&file);
                    torn.write_all_at(&bytes[..end], at).expect("the pages are written");
                    assert_eq!(firsts(&torn), left, "{gone} of {count}, write {written} torn");
                }
                file.write_all_at(&bytes, at).expect("the file is written");
                assert_eq!(firsts(&file), left, "{gone} of {count}, after write {written}");
                written += 1;
            }
            assert_eq!(written, if moves { 3 } else { 1 });
        }
    }

    #[test]
    fn commits_after_a_cut_follow_those_that_it_left() {
        let (file, mirror, state) = mirror_cut(1, 12);
        *mirror.state.lock() = state;
        for cut in 2..=12 {
            mirror.cut(cut).expect("the commits are cut");
            let last = 11 + cut;
            mirror.add((last, 1), &record(last), last, None).expect("it is added");
            assert_eq!(firsts(&file), (cut + 1..=last).collect::<Vec<_>>());
        }
        assert!(file.metadata().expect("attributes").len() < 32 << 20);
    }
}
