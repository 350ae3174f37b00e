//! Numbers of views that have ended. The adapter puts the view's number into the kernel's number of
//! an inode, and the kernel keeps that inode as long as a program has it open, long after the view
//! has ended. If another view got the number in that time, the program would read and write there.
//! So a number is given again only when the kernel has forgotten every inode of the view.
//!
//! The kernel's references are counted in the view's inode cache. After the view has ended no call
//! adds one; the cache then passes its counts to [`Retired`], so that an ended view costs no more
//! than the remaining references.

use std::collections::HashMap;
use std::sync::Arc;

use super::{OpenView, Views};
use crate::attr::Ino;
use crate::fs::Fs;

/// A view that has ended.
pub(crate) enum Retired {
    /// The watchers are being told of the end; the view's own cache still counts the references.
    Ending(Arc<OpenView>),
    /// The remaining references of the kernel, never empty.
    Left(HashMap<Ino, u64>),
}

impl Retired {
    /// Returns the references that the kernel holds.
    pub fn references(&self) -> Vec<(Ino, u64)> {
        match self {
            Retired::Ending(entry) => entry.fs.core.inode_cache.all_references(),
            Retired::Left(left) => left.iter().map(|(ino, count)| (*ino, *count)).collect(),
        }
    }
}

impl Fs {
    /// Takes back references from the kernel, even if the view has ended. Returns `false` if there
    /// are none, or if they are counted elsewhere by now.
    fn give_back(&self, ino: Ino, count: u64) -> bool {
        match self.enter() {
            Ok(_call) => self.release(ino, count),
            Err(_) => self.core.inode_cache.forget(ino, count).is_known(),
        }
    }
}

impl Views {
    /// Takes back `count` references from the kernel to an inode of the view with this number,
    /// which may have ended.
    pub fn forget(&self, number: u16, ino: Ino, count: u64) {
        let fs = {
            let open = self.shared.open.read();
            match (open.by_number.get(&number), open.retired.get(&number)) {
                (Some(entry), _) | (None, Some(Retired::Ending(entry))) => Some(entry.fs.clone()),
                _ => None,
            }
        };
        if fs.is_some_and(|fs| fs.give_back(ino, count)) {
            return;
        }
        let mut open = self.shared.open.write();
        let Some(Retired::Left(left)) = open.retired.get_mut(&number) else { return };
        if let Some(references) = left.get_mut(&ino) {
            *references = references.saturating_sub(count);
            if *references == 0 {
                left.remove(&ino);
            }
        }
        if left.is_empty() {
            open.retired.remove(&number);
        }
    }

    /// Returns the number of view numbers that are not free: those of open views, and of ended ones
    /// to which the kernel refers. It is at most [`Views::MAX_NUMBER`].
    pub fn numbers_taken(&self) -> usize {
        let open = self.shared.open.read();
        open.by_number.len() + open.retired.len()
    }

    /// Retires a view after all watchers were told of its end: only the kernel's references remain.
    pub(crate) fn retire(&self, entry: &OpenView) {
        entry.fs.core.space.release_promised_space();
        entry.fs.core.promises.give_back();
        let mut open = self.shared.open.write();
        if let Some(notes) = &self.shared.notes {
            notes.freed(entry.number);
        }
        let left = entry.fs.core.inode_cache.take_references();
        match left.is_empty() {
            true => drop(open.retired.remove(&entry.number)),
            false => drop(open.retired.insert(entry.number, Retired::Left(left))),
        }
    }
}
