//! Calls that change nothing: a thread of the daemon's own makes them on the mount, so that the
//! kernel raises the events of what a commit has changed already (`watch_events`).
//!
//! The kernel raises `IN_CREATE` and `IN_DELETE` for its own calls alone. So for a name that a
//! commit has made the thread calls mknod(2) or the like: it is told that there is no such name,
//! and then that its call has made what the name stands for. For a name that a commit has removed
//! it calls unlink(2) or rmdir(2): it is told that there is such a name, of a number that nothing
//! else has, and then that the call has removed it. All of this is answered to this thread alone,
//! and the kernel is to remember none of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kvfs::{Caller, FileKind, Ino};
use parking_lot::Mutex;

use crate::handler::NodeId;

/// A change that is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownChange {
    Made,
    /// What it was.
    Removed(FileKind),
}

/// The numbers of what was removed, in the control directory.
const GONE: Ino = 6 << 40;
const GONE_END: Ino = 7 << 40;
/// A number says of what kind it was.
const KINDS: [FileKind; 7] = [
    FileKind::File,
    FileKind::Dir,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

/// A change of a name in a directory.
type Named = (NodeId, Box<[u8]>, ShownChange);

#[derive(Default)]
pub(crate) struct ShownChanges {
    /// The thread that shows them; 0: none does.
    thread: AtomicU32,
    /// What it is at.
    current: Mutex<Option<Named>>,
    /// How many have been removed.
    gone: AtomicU64,
}

impl ShownChanges {
    /// From now on calls of the thread with this number change nothing.
    pub fn set_thread(&self, thread: u32) {
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// Whether a call changes nothing.
    pub fn is_by(&self, caller: Caller) -> bool {
        caller.pid != 0 && self.thread.load(Ordering::Relaxed) == caller.pid
    }

    /// Shows a change by `call`, which this thread makes.
    pub fn show<T>(
        &self,
        parent: NodeId,
        name: &[u8],
        change: ShownChange,
        call: impl FnOnce() -> T,
    ) -> T {
        self.gone.fetch_add(1, Ordering::Relaxed);
        *self.current.lock() = Some((parent, name.into(), change));
        let done = call();
        *self.current.lock() = None;
        done
    }

    /// What a call on a name is to show; `None`: it is any other call.
    pub fn current(&self, parent: NodeId, name: &[u8], caller: Caller) -> Option<ShownChange> {
        if !self.is_by(caller) {
            return None;
        }
        let current = self.current.lock();
        let (of, its_name, change) = current.as_ref()?;
        (*of == parent && **its_name == *name).then_some(*change)
    }

    /// The number of what is shown as removed now.
    pub fn gone(&self, kind: FileKind) -> Ino {
        let kinds = KINDS.len() as u64;
        let of_kind = KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u64;
        let count = self.gone.load(Ordering::Relaxed) % ((GONE_END - GONE) / kinds);
        GONE + count * kinds + of_kind
    }
}

/// What a number of the control directory stood for; `None`: it is not that of something removed.
pub(crate) fn gone_kind(ino: Ino) -> Option<FileKind> {
    let at = (GONE..GONE_END).contains(&ino).then(|| ino - GONE)?;
    KINDS.get((at % KINDS.len() as u64) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_shows_a_change_sees_it() {
        let changes = ShownChanges::default();
        let caller = |pid| Caller { uid: 0, gid: 0, pid };
        changes.set_thread(7);
        assert_eq!(changes.current(NodeId(1), b"f", caller(7)), None, "nothing is shown");
        changes.show(NodeId(1), b"f", ShownChange::Made, || {
            assert_eq!(changes.current(NodeId(1), b"f", caller(7)), Some(ShownChange::Made));
            for (parent, name, pid) in [(1, &b"f"[..], 8), (1, b"g", 7), (2, b"f", 7)] {
                assert_eq!(changes.current(NodeId(parent), name, caller(pid)), None);
            }
        });
        assert_eq!(changes.current(NodeId(1), b"f", caller(7)), None);
        for kind in KINDS {
            assert_eq!(gone_kind(changes.gone(kind)), Some(kind));
        }
        assert_eq!((gone_kind(GONE - 1), gone_kind(GONE_END)), (None, None));
    }

    #[test]
    fn no_call_is_by_a_thread_before_there_is_one() {
        let changes = ShownChanges::default();
        assert!(!changes.is_by(Caller { uid: 0, gid: 0, pid: 0 }));
    }
}
