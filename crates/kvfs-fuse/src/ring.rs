//! One io_uring that carries requests of the kernel: its slots, their registration, and the
//! submission of an answer together with the fetch of the next request.
//!
//! The kernel's side is `fs/fuse/dev_uring.c` (Linux 6.14). A slot consists of two buffers: one for
//! headers, and one for everything else. The command REGISTER gives a slot to the kernel, and
//! completes when the slot contains a request. Then the daemon owns the slot until the command
//! COMMIT_AND_FETCH, which says that the slot contains the answer, returns it to the kernel.
//! Commands carry 80 bytes of arguments, so entries of the ring have 128.
//!
//! **The owner of a slot** follows from the types: a [`Slot`] is owned by the daemon, and consumed
//! when it is committed. The kernel writes the buffers only while it owns the slot, only through
//! the page tables of this process, and only in system calls of the thread that made the ring. So
//! the memory may be freed when that thread has ended; the owner of the thread keeps the memory
//! until then ([`Memory`]).
//!
//! **A daemon that is killed** must release the connection; otherwise, a thread of the daemon that
//! uses the mount would wait forever. The commands hold the connection, and end with the ring. The
//! ring ends with its last mapping, and so with the memory of the process, which the waiting thread
//! keeps. But a thread that ends cancels all its commands if one of them refers to an io_uring
//! (`io_uring_cancel_generic` in the kernel). So each ring has one such command, which polls an
//! [`Anchor`]. For the same reason the ring is not created with `IORING_SETUP_DEFER_TASKRUN`, whose
//! requests wait for the end of the ring.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::handler::{Errno, Reply};
use crate::wire::{self, Fields, Head};

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The size of `struct fuse_uring_req_header`: the heads of request and answer, the first argument
/// of the request, and the fields of the slot.
const HEADERS: usize = 288;
const FIRST_ARGUMENT: usize = 128;
const ABOUT: usize = 256;
/// The offset of the commit id, which follows the flags in the fields of the slot.
const COMMIT_ID: usize = ABOUT + 8;
const PAYLOAD_LENGTH: usize = ABOUT + 16;
/// The distance between the headers of two slots, so that headers of different slots share no cache
/// line.
const HEADERS_APART: usize = 320;

/// The user data of commands that do not belong to a slot.
const WAKE: u64 = u64::MAX;
const ANCHOR: u64 = u64::MAX - 1;

/// The buffers of all slots of a ring, one after the other, in pages that are allocated when they
/// are touched.
pub(crate) struct Memory {
    at: NonNull<u8>,
    length: usize,
    slots: usize,
    payload: usize,
}

// SAFETY: this is raw memory, and `Slot` ensures that each part of it has one owner.
unsafe impl Send for Memory {}
// SAFETY: the reason for `Send` holds here, too.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(slots: usize, payload: usize) -> io::Result<Memory> {
        let headers = (slots * HEADERS_APART).next_multiple_of(4096);
        let payload = payload.next_multiple_of(4096);
        let length = headers + slots * payload;
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: the mapping is new, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, access, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { at, length, slots, payload })
    }

    fn headers(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.slots);
        // SAFETY: the header lies in the mapping.
        unsafe { self.at.add(slot * HEADERS_APART) }
    }

    fn payload(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.slots);
        // SAFETY: the payload lies in the mapping, which ends with the payloads.
        unsafe { self.at.add(self.length - (self.slots - slot) * self.payload) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: every slot keeps the memory alive, and the kernel owns no slot any more (see the
        // module).
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.length) };
    }
}

/// A slot with a request, or with its answer.
pub(crate) struct Slot {
    number: usize,
    memory: Arc<Memory>,
    commit_id: u64,
    unique: u64,
    length: usize,
}

impl Slot {
    /// Takes a slot that the kernel has released.
    ///
    /// # Safety
    ///
    /// The kernel must not own the slot, and no other `Slot` may exist for it.
    unsafe fn take(number: usize, memory: &Arc<Memory>) -> Slot {
        let mut slot = Slot { number, memory: memory.clone(), commit_id: 0, unique: 0, length: 0 };
        let word = |at: usize| {
            u64::from_ne_bytes(slot.headers()[at..at + 8].try_into().unwrap_or_default())
        };
        let (commit_id, unique, length) =
            (word(COMMIT_ID), word(8), word(PAYLOAD_LENGTH) as u32 as usize);
        (slot.commit_id, slot.unique, slot.length) = (commit_id, unique, length);
        slot
    }

    fn headers(&self) -> &[u8] {
        // SAFETY: the memory belongs to the slot, and is not written while the slot is borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.headers(self.number).as_ptr(), HEADERS) }
    }

    fn headers_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory belongs to the slot, which is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.headers(self.number).as_ptr(), HEADERS)
        }
    }

    fn payload(&self) -> &[u8] {
        // SAFETY: the same holds as for the headers.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.payload(self.number).as_ptr(),
                self.memory.payload,
            )
        }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same holds as for the headers.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.memory.payload(self.number).as_ptr(),
                self.memory.payload,
            )
        }
    }

    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the request in the slot.
    pub fn request(&self) -> Reply<(Head, Fields<'_>)> {
        // If the payload is room for an answer, no field of the request lies in it.
        let others = if self.length == 0 {
            &[]
        } else {
            self.payload().get(..self.length).ok_or(Errno(libc::EIO))?
        };
        wire::head_in_slot(self.headers(), &self.headers()[FIRST_ARGUMENT..ABOUT], others)
    }

    /// Returns the request in the slot, and the room for the data of a read, which is empty if the
    /// request occupies it.
    pub fn request_and_room(&mut self) -> Reply<(Head, Fields<'_>, &mut [u8])> {
        let at = self.memory.payload(self.number).as_ptr();
        let room = if self.length == 0 { self.memory.payload } else { 0 };
        let (head, fields) = self.request()?;
        // SAFETY: the memory belongs to the slot, which is borrowed exclusively. If the room is not
        // empty, the request lies only in the headers.
        let room = unsafe { std::slice::from_raw_parts_mut(at, room) };
        Ok((head, fields, room))
    }

    /// Puts the answer into the slot. `error` is 0 or a negative error number.
    pub fn answer(&mut self, error: i32, body: &[u8]) {
        let (error, body) =
            if body.len() <= self.memory.payload { (error, body) } else { (-libc::EIO, &[][..]) };
        self.payload_mut()[..body.len()].copy_from_slice(body);
        self.finish(error, body.len());
    }

    /// Answers with the first `length` bytes that were put into the room.
    pub fn answer_filled(&mut self, length: usize) {
        self.finish(0, length.min(self.memory.payload));
    }

    fn finish(&mut self, error: i32, length: usize) {
        let (unique, length) = (self.unique, length as u32);
        let headers = self.headers_mut();
        headers[..4].copy_from_slice(&(wire::OUT_HEADER as u32 + length).to_ne_bytes());
        headers[4..8].copy_from_slice(&error.to_ne_bytes());
        headers[8..16].copy_from_slice(&unique.to_ne_bytes());
        headers[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_ne_bytes());
    }
}

/// An event of a ring.
pub(crate) enum Event {
    /// The slot contains a request.
    Request(Slot),
    /// The watched descriptor can be read.
    Woken,
    /// The kernel will not use the slot again: the connection has ended, or the kernel rejected it.
    Lost(io::Error),
}

/// An io_uring on which no event ever occurs, for other rings to poll.
pub(crate) struct Anchor(IoUring);

impl Anchor {
    pub fn new() -> io::Result<Anchor> {
        Ok(Anchor(IoUring::builder().dontfork().build(1)?))
    }
}

/// An io_uring of one thread, for one queue of the kernel.
pub(crate) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    connection: RawFd,
    queue: u16,
    memory: Arc<Memory>,
    anchor: Arc<Anchor>,
    /// The buffers to which REGISTER refers, two for each slot. The kernel reads this list when the
    /// command is submitted.
    buffers: Box<[libc::iovec]>,
}

impl Ring {
    /// Creates a ring for the queue of `connection` with this number. The connection must stay open
    /// while the ring exists. Only the thread that creates the ring may use it.
    pub fn new(
        connection: BorrowedFd<'_>,
        queue: u16,
        memory: &Arc<Memory>,
        anchor: &Arc<Anchor>,
    ) -> io::Result<Ring> {
        // The ring has one entry for every slot, one for the watch and one for the anchor.
        let entries = memory.slots as u32 + 2;
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_submit_all()
            .dontfork()
            .build(entries)?;
        let buffers = (0..memory.slots).flat_map(|slot| {
            [(memory.headers(slot), HEADERS), (memory.payload(slot), memory.payload)]
                .map(|(at, length)| libc::iovec { iov_base: at.as_ptr().cast(), iov_len: length })
        });
        let (connection, memory, anchor) = (connection.as_raw_fd(), memory.clone(), anchor.clone());
        Ok(Ring { ring, connection, queue, buffers: buffers.collect(), memory, anchor })
    }

    pub fn slots(&self) -> usize {
        self.memory.slots
    }

    fn command(
        &self,
        operation: u32,
        slot: usize,
        commit_id: u64,
        addr: Option<u64>,
    ) -> squeue::Entry128 {
        // The fields of `struct fuse_uring_cmd_req` are the flags, the request that is answered,
        // and the queue.
        let mut arguments = [0; 80];
        arguments[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        arguments[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let command = opcode::UringCmd80::new(types::Fd(self.connection), operation)
            .cmd(arguments)
            .addr(addr);
        command.build().user_data(slot as u64)
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the slot's buffers, their list and the descriptors, to which the entry refers,
        // live as long as the ring.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // The queue has an entry for each slot, the watch and the anchor, so it is never full.
        pushed.map_err(|_| io::Error::other("the ring is full"))
    }

    /// Offers every slot to the kernel, with the next `enter`.
    pub fn register(&mut self) -> io::Result<()> {
        let anchor = types::Fd(self.anchor.0.as_raw_fd());
        self.push(
            &opcode::PollAdd::new(anchor, libc::POLLIN as u32).build().user_data(ANCHOR).into(),
        )?;
        for slot in 0..self.slots() {
            let buffers = &raw const self.buffers[2 * slot];
            let mut entry = self.command(REGISTER, slot, 0, Some(buffers as u64));
            set_length(&mut entry, 2);
            self.push(&entry)?;
        }
        Ok(())
    }

    /// Gives a slot with its answer to the kernel, with the next `enter`.
    pub fn commit(&mut self, slot: Slot) -> io::Result<()> {
        let entry = self.command(COMMIT_AND_FETCH, slot.number, slot.commit_id, None);
        self.push(&entry)
    }

    /// Makes the ring report once when this descriptor can be read. The descriptor must stay open
    /// until this report or until the ring ends.
    pub fn watch(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32)
            .build()
            .user_data(WAKE);
        self.push(&poll.into())
    }

    /// Submits all entries and, with `wait`, waits for an event.
    pub fn enter(&mut self, wait: bool) -> io::Result<()> {
        match self.ring.submit_and_wait(usize::from(wait)) {
            Ok(_) => Ok(()),
            // Entries that could not be submitted yet, or were interrupted, are submitted by the
            // next call.
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Makes the kernel do the work that it has queued for this thread. Afterwards the ring
    /// contains all requests that the kernel has assigned to a slot.
    pub fn catch_up(&mut self) -> io::Result<()> {
        // The wrapper `enter` makes no system call if nothing is to be submitted, so the call is
        // made here.
        const GETEVENTS: u32 = 1;
        // SAFETY: the call submits nothing, and refers to no memory.
        match unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, GETEVENTS, None) } {
            Ok(_) => Ok(()),
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Returns the next event of the ring, if there is one.
    pub fn next(&mut self) -> Option<Event> {
        let said = self.ring.completion().find(|said| said.user_data() != ANCHOR)?;
        let (slot, result) = (said.user_data(), said.result());
        Some(match result {
            _ if slot == WAKE => Event::Woken,
            // SAFETY: the slot's command has completed, so the kernel has returned the slot, and no
            // `Slot` existed for it while the kernel owned it.
            0 => Event::Request(unsafe { Slot::take(slot as usize, &self.memory) }),
            error => Event::Lost(io::Error::from_raw_os_error(error.wrapping_neg())),
        })
    }
}

/// Sets the length of an entry. The crate `io_uring` does not support this for commands of 80
/// bytes.
fn set_length(entry: &mut squeue::Entry128, length: u32) {
    /// The offset of `len` in `struct io_uring_sqe`.
    const AT: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: an entry is the kernel's structure of 128 bytes, with the layout of C, for which all
    // bytes are valid.
    unsafe { (&raw mut *entry).cast::<u8>().add(AT).cast::<u32>().write(length) };
}
