//! The state under the pipeline's lock: the pending part of the journal's stream, committed and not
//! written yet, and the room for the next commits.

use vt_tree::Seq;

use super::deferred::{self, Pending, PendingEnd};
use crate::journal::{Writer, record};
use crate::mirror::Note;

/// The state that the pipeline's lock guards.
pub(crate) struct Pipeline {
    pub next_seq: Seq,
    /// The position after the newest record whose changes are in memtables, or in runs that the
    /// manifest does not list yet.
    pub unflushed_end: u64,
    /// The part of the stream that the journal's writer has not taken yet.
    pub pending: Pending,
    /// The stream's position of the first pending byte.
    pub position: u64,
    /// Bytes of stream that may be pending: the segments at hand have room for them.
    pub room: usize,
    /// The cost of deferred values that the reserved zones have room for. See [`deferred::room`].
    pub place_room: u64,
    /// A buffer that was written out, for reuse.
    pub(super) spare: Vec<u8>,
    /// The offset, in the pending stream, of the record of the commit that is not visible yet.
    pub record_at: Option<usize>,
    /// The note of the request that this commit completes.
    pub note: Option<Note>,
}

impl Pipeline {
    pub(crate) fn new(next_seq: Seq, position: u64) -> Pipeline {
        let pending = Pending::new(Vec::new());
        Pipeline {
            next_seq,
            unflushed_end: position,
            pending,
            position,
            room: 0,
            place_room: 0,
            spare: Vec::new(),
            record_at: None,
            note: None,
        }
    }

    /// Returns the position after the newest commit.
    pub(crate) fn end(&self) -> u64 {
        self.position + self.pending.len() as u64
    }

    /// Returns the stream, to append a commit to.
    pub(crate) fn stream(&mut self) -> &mut Vec<u8> {
        let stream = &mut self.pending.stream;
        if stream.len() == crate::log::chunk::HEADER {
            stream.extend_from_slice(&record::number(self.next_seq));
        }
        self.record_at = Some(stream.len());
        stream
    }

    /// Takes the pending data, to be written by `writer`. Until it is written, `room` is the room
    /// that the write is sure to leave.
    pub(in crate::commit) fn take(&mut self, writer: &Writer) -> Pending {
        let empty = Pending::new(std::mem::take(&mut self.spare));
        let mut taken = std::mem::replace(&mut self.pending, empty);
        self.position += taken.len() as u64;
        taken.end = PendingEnd { position: self.position, seq: self.next_seq - 1 };
        self.leave_room([&taken], writer);
        taken
    }

    /// Sets the room for commits to that which the writes of `taken`, one after the other, are sure
    /// to leave.
    pub(super) fn leave_room<'a>(
        &mut self,
        taken: impl IntoIterator<Item = &'a Pending>,
        writer: &Writer,
    ) {
        let (mut stream, mut zones) = (0, 0);
        for part in taken {
            stream += crate::journal::cost(part.room());
            zones += deferred::zones_for(part.cost);
        }
        self.room = writer.room().saturating_sub(stream);
        self.place_room = deferred::room(writer.reserved.len().saturating_sub(zones));
    }

    /// Appends a record to the data that was just taken, before any other commit. There is room for
    /// it.
    pub(in crate::commit) fn end_taken(
        &mut self,
        taken: &mut Pending,
        record: &[u8],
        writer: &Writer,
    ) {
        let before = taken.len();
        if before == 0 && !record.is_empty() {
            taken.stream.extend_from_slice(&record::number(self.next_seq));
        }
        taken.stream.extend_from_slice(record);
        self.position += (taken.len() - before) as u64;
        self.leave_room([&*taken], writer);
    }

    /// Undoes [`Pipeline::take`].
    pub(in crate::commit) fn put_back(&mut self, mut taken: Pending, writer: &Writer) {
        self.position -= taken.len() as u64;
        taken.append(std::mem::replace(&mut self.pending, Pending::new(Vec::new())));
        self.pending = taken;
        self.update_room(writer);
    }

    /// Sets the room for commits to the room of the writer.
    pub(super) fn update_room(&mut self, writer: &Writer) {
        self.room = writer.room();
        self.place_room = deferred::room(writer.reserved.len());
    }
}
