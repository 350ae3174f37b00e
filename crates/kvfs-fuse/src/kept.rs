//! The state that outlives a killed daemon, so that another daemon continues its mount while
//! programs use the mount. Another process holds the connection ([`crate::kept_connection`]), the
//! mirror of the store's commits (`kvdb::Mirror`), and a file with the kernel's references.
//!
//! **Requests.** On `NOTIFY_RESEND` the kernel resends requests that the killed daemon had read and
//! not answered, with a bit in the request's number. Some of these requests are already executed:
//! the commit that completed such a request carries the number of the request ([`kvfs::Note`]) in
//! the mirror. Such a request is answered from the state. Requests that may be executed twice have
//! no note.
//!
//! **References.** The references that an answer hands to the kernel are noted, with the request's
//! number, before the answer is sent; the references that the kernel releases are noted when the
//! release arrives. If the request is sent again, the kernel did not get the answer, and the
//! references noted with the request are withdrawn. References that the kernel released just before
//! the daemon was killed may remain; then their file is deleted when the mount ends.
//!
//! The file of references, in the machine's byte order: u64 magic, u64 start of the log; from 4096
//! on the log, 32 bytes each: u64 node, i64 references, u64 request (0: none), u64 0. The log is
//! rewritten, with the sums, when it has grown a lot.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kvfs::{Ino, Note};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};

use crate::handler::NodeId;
use crate::node_id;

const MAGIC: u64 = u64::from_le_bytes(*b"KVREFS01");
const LOG_AT: u64 = 4096;
const ENTRY: u64 = 32;
/// The log is rewritten when at least this many bytes were added since it was last rewritten, and
/// at least as many bytes as it began with.
const GROWN: u64 = 8 << 20;
/// The number of entries whose requests are remembered: many more than requests can be in flight.
const RECENT: usize = 1 << 14;

/// The state that outlives the daemon of a mount: see the module.
pub struct Kept {
    references: Mutex<Log>,
    /// References that the killed daemon had noted for an answer, keyed by the request.
    given: Mutex<HashMap<u64, Vec<NodeId>>>,
    /// The requests that the killed daemon had executed, each with its value.
    done: HashMap<u64, u64>,
    slots: Mutex<Slots>,
}

struct Log {
    file: File,
    start: u64,
    tail: u64,
    /// The bytes of the sums with which the log began.
    begun_with: u64,
    /// The last entries with a request. The answers to these requests may not have arrived.
    recent: VecDeque<(NodeId, u64)>,
}

#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    taken: u32,
}

/// A place in the mirror for the notes of one thread. The place is free again when this value is
/// dropped.
pub(crate) struct Slot {
    kept: Arc<Kept>,
    pub number: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.kept.slots.lock().free.push(self.number);
    }
}

fn entry(node: NodeId, count: i64, request: u64) -> [u8; ENTRY as usize] {
    let mut bytes = [0; ENTRY as usize];
    bytes[..8].copy_from_slice(&node.0.to_ne_bytes());
    bytes[8..16].copy_from_slice(&count.to_ne_bytes());
    bytes[16..24].copy_from_slice(&request.to_ne_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| b.try_into().map_or(0, u64::from_ne_bytes))
}

/// Calls `each` with the entries of a log from `start` on, up to the end of the file. Returns the
/// position of the end.
fn entries(file: &File, start: u64, mut each: impl FnMut(NodeId, i64, u64)) -> io::Result<u64> {
    let mut at = start;
    let mut bytes = vec![0; 1 << 20];
    loop {
        let read = file.read_at(&mut bytes, at)? as u64 / ENTRY * ENTRY;
        if read == 0 {
            return Ok(at);
        }
        for entry in bytes[..read as usize].chunks_exact(ENTRY as usize) {
            each(NodeId(word(entry, 0)), word(entry, 8) as i64, word(entry, 16));
        }
        at += read;
    }
}

impl Kept {
    /// Reads the state from this file, which is empty when a mount begins. `done` has the notes of
    /// the store's mirror (`kvdb::Mirror::notes`).
    pub fn new(file: File, done: HashMap<u64, u64>) -> io::Result<Kept> {
        let mut head = [0; 16];
        let read = file.read_at(&mut head, 0)?;
        let start = match (read, word(&head, 0)) {
            (0, _) => LOG_AT,
            (16, MAGIC) => word(&head, 8).max(LOG_AT),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no references")),
        };
        let mut recent = VecDeque::new();
        let tail = entries(&file, start, |node, count, request| {
            if request != 0 && count > 0 {
                recent.push_back((node, request));
            }
            if recent.len() > RECENT {
                recent.pop_front();
            }
        })?;
        let mut given: HashMap<u64, Vec<NodeId>> = HashMap::new();
        for (node, request) in &recent {
            given.entry(*request).or_default().push(*node);
        }
        let log = Log { file, start, tail: tail.max(LOG_AT), begun_with: 0, recent };
        log.write_head()?;
        Ok(Kept {
            references: Mutex::new(log),
            given: Mutex::new(given),
            done,
            slots: Mutex::default(),
        })
    }

    /// Returns the references that the kernel has or may have, as the view, the number of the inode
    /// in the view, and the count.
    pub fn references(&self) -> io::Result<Vec<(u16, Ino, u64)>> {
        let sums = self.references.lock().sums()?;
        let of_views = sums.into_iter().filter_map(|(node, count)| {
            let (view, ino) = node_id::split(node);
            let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
            (view != node_id::CONTROL).then_some((view, ino, count))
        });
        Ok(of_views.collect())
    }

    /// Returns the value of a request if the killed daemon had executed it.
    pub(crate) fn done(&self, request: u64) -> Option<u64> {
        self.done.get(&request).copied()
    }

    /// Returns the references that were noted for the answer to a request which did not arrive. The
    /// kernel does not have them any more.
    pub(crate) fn take_given(&self, request: u64) -> Vec<NodeId> {
        let nodes = self.given.lock().remove(&request).unwrap_or_default();
        self.took_back(nodes.iter().map(|node| (*node, 1)));
        nodes
    }

    /// Notes that an answer hands these references to the kernel.
    pub(crate) fn give(&self, request: u64, nodes: &[NodeId]) {
        self.add(nodes.iter().map(|node| (*node, 1, request)));
    }

    /// Notes that the kernel does not have these references any more.
    pub(crate) fn took_back(&self, nodes: impl IntoIterator<Item = (NodeId, u64)>) {
        self.add(nodes.into_iter().map(|(node, count)| (node, -(count as i64), 0)));
    }

    fn add(&self, added: impl IntoIterator<Item = (NodeId, i64, u64)>) {
        if let Err(e) = self.references.lock().add(added) {
            tracing::error!("what the kernel refers to cannot be noted: {e}");
        }
    }

    /// Returns a slot for notes, or `None` if all are taken.
    pub(crate) fn slot(self: &Arc<Kept>) -> Option<Slot> {
        let mut slots = self.slots.lock();
        let number = slots.free.pop().or_else(|| {
            let next = slots.taken;
            (next < Note::SLOTS).then(|| {
                slots.taken += 1;
                next
            })
        })?;
        Some(Slot { kept: self.clone(), number })
    }
}

impl Log {
    fn write_head(&self) -> io::Result<()> {
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        head[8..].copy_from_slice(&self.start.to_ne_bytes());
        self.file.write_all_at(&head, 0)
    }

    fn sums(&self) -> io::Result<HashMap<NodeId, i64>> {
        let mut sums: HashMap<NodeId, i64> = HashMap::new();
        entries(&self.file, self.start, |node, count, _| *sums.entry(node).or_default() += count)?;
        sums.retain(|node, count| node.0 != 0 && *count != 0);
        Ok(sums)
    }

    fn add(&mut self, added: impl IntoIterator<Item = (NodeId, i64, u64)>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (node, count, request) in added {
            bytes.extend_from_slice(&entry(node, count, request));
            if request != 0 {
                self.recent.push_back((node, request));
            }
        }
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.file.write_all_at(&bytes, self.tail)?;
        self.tail += bytes.len() as u64;
        if self.tail - self.start > GROWN.max(self.begun_with) + self.begun_with {
            self.begin_anew()?;
        }
        Ok(())
    }

    /// Writes the sums after the end of the log, and makes the log begin there. The last entries
    /// keep their requests.
    fn begin_anew(&mut self) -> io::Result<()> {
        let mut sums = self.sums()?;
        let mut bytes = Vec::with_capacity(sums.len() * ENTRY as usize);
        for (node, request) in &self.recent {
            *sums.entry(*node).or_default() -= 1;
            bytes.extend_from_slice(&entry(*node, 1, *request));
        }
        for (node, count) in sums.into_iter().filter(|(_, count)| *count != 0) {
            bytes.extend_from_slice(&entry(node, count, 0));
        }
        self.file.write_all_at(&bytes, self.tail)?;
        (self.start, self.begun_with) = (self.tail, bytes.len() as u64);
        self.tail += bytes.len() as u64;
        self.write_head()?;
        let before = self.start / LOG_AT * LOG_AT - LOG_AT;
        if before > 0 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, punch, LOG_AT, before)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(file: &File) -> File {
        file.try_clone().expect("a descriptor")
    }

    fn sorted(kept: &Kept) -> Vec<(u16, Ino, u64)> {
        let mut all = kept.references().expect("read");
        all.sort_unstable();
        all
    }

    #[test]
    fn what_the_kernel_has_is_the_sum_of_what_it_got_and_gave_back() {
        let file = tempfile::tempfile().expect("a file");
        let kept = Kept::new(copy(&file), HashMap::new()).expect("new");
        let other = node_id::of(3, 8);
        kept.give(2, &[NodeId(5), NodeId(6), other]);
        kept.give(4, &[NodeId(5)]);
        kept.took_back([(NodeId(6), 1)]);
        kept.give(6, &[NodeId(7)]);
        let kept = Kept::new(copy(&file), HashMap::new()).expect("again");
        assert_eq!(sorted(&kept), [(0, 5, 2), (0, 7, 1), (3, 8, 1)]);
        // The answer to 2 has not arrived.
        assert_eq!(kept.take_given(2), [NodeId(5), NodeId(6), other]);
        assert_eq!(kept.take_given(2), []);
        // The count of released references stays below zero until they are granted again.
        kept.give(2, &[NodeId(5), NodeId(6), other]);
        assert_eq!(sorted(&kept), [(0, 5, 2), (0, 7, 1), (3, 8, 1)]);
    }

    #[test]
    fn a_log_that_has_grown_begins_anew_with_the_same_sums_and_requests() {
        let file = tempfile::tempfile().expect("a file");
        let kept = Kept::new(copy(&file), HashMap::new()).expect("new");
        kept.give(1, &[NodeId(1_000_000)]);
        for n in 0..600_000 {
            kept.give(2 + n, &[NodeId(1 + n % 1000)]);
            if n >= 1000 {
                kept.took_back([(NodeId(1 + n % 1000), 1)]);
            }
        }
        assert!(kept.references.lock().start > LOG_AT);
        let kept = Kept::new(copy(&file), HashMap::new()).expect("again");
        let all = sorted(&kept);
        assert_eq!((all.len(), all[0], all[1000]), (1001, (0, 1, 1), (0, 1_000_000, 1)));
        assert_eq!(kept.take_given(600_001), [NodeId(1000)]);
        use std::os::unix::fs::MetadataExt;
        assert!(file.metadata().expect("attributes").blocks() * 512 < 4 * GROWN);
    }

    #[test]
    fn each_thread_has_a_slot_of_its_own() {
        let file = tempfile::tempfile().expect("a file");
        let kept = Arc::new(Kept::new(file, HashMap::new()).expect("new"));
        let number = |slot: &Option<Slot>| slot.as_ref().map(|slot| slot.number);
        let (a, b) = (kept.slot(), kept.slot());
        assert_ne!(number(&a), number(&b));
        let before = number(&a);
        drop(a);
        assert_eq!(number(&kept.slot()), before);
    }
}
