//! Numbers of views that have ended. The adapter puts the view's number into the kernel's number of
//! an inode, and the kernel keeps that inode while a program has it open, even long after the view
//! has ended. If another view got the number in that time, the program would read and write that
//! view. So a number is reused only when the kernel has forgotten every inode of the view.
//!
//! The kernel's references are counted in the view's inode cache. After the view has ended, no call
//! adds a reference. The cache then passes its counts to [`Retired`], so that an ended view costs
//! no more than the remaining references.

use std::collections::HashMap;
use std::sync::Arc;

use super::{OpenView, OpenViews};
use crate::attr::Ino;
use crate::fs::Fs;

/// A view that has ended.
pub(super) enum Retired {
    /// The watchers are being notified of the end; the view's own cache still counts the
    /// references.
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
    /// Takes back references from the kernel, even if the view has ended. Returns `false` if no
    /// references remain, or if they are counted elsewhere by now.
    fn give_back(&self, ino: Ino, count: u64) -> bool {
        match self.enter() {
            Ok(_call) => self.release(ino, count),
            Err(_) => self.core.inode_cache.forget(ino, count).is_known(),
        }
    }
}

impl OpenViews {
    /// Takes back `count` references from the kernel to an inode of the view with this number,
    /// which may have ended.
    pub fn forget(&self, number: u16, ino: Ino, count: u64) {
        let fs = {
            let table = self.table.read();
            match (table.by_number.get(&number), table.retired.get(&number)) {
                (Some(entry), _) | (None, Some(Retired::Ending(entry))) => Some(entry.fs.clone()),
                _ => None,
            }
        };
        if fs.is_some_and(|fs| fs.give_back(ino, count)) {
            return;
        }
        let mut table = self.table.write();
        let Some(Retired::Left(left)) = table.retired.get_mut(&number) else { return };
        if let Some(references) = left.get_mut(&ino) {
            *references = references.saturating_sub(count);
            if *references == 0 {
                left.remove(&ino);
            }
        }
        if left.is_empty() {
            table.retired.remove(&number);
        }
    }

    /// Returns the number of view numbers that are not free: those of open views, and of ended ones
    /// to which the kernel refers.
    pub fn numbers_taken(&self) -> usize {
        let table = self.table.read();
        table.by_number.len() + table.retired.len()
    }

    /// Returns the inodes of an ended view to which the kernel refers.
    pub fn left_of(&self, number: u16) -> Vec<Ino> {
        let table = self.table.read();
        let left = table.retired.get(&number).map(Retired::references);
        left.into_iter().flatten().map(|(ino, _)| ino).collect()
    }

    /// Retires a view after all watchers were notified of its end: only the kernel's references
    /// remain.
    pub fn retire(&self, entry: &OpenView) {
        entry.fs.core.space.release_promised_space();
        entry.fs.core.promises.give_back();
        let mut table = self.table.write();
        self.notes.freed(entry.number);
        let left = entry.fs.core.inode_cache.take_references();
        match left.is_empty() {
            true => drop(table.retired.remove(&entry.number)),
            false => drop(table.retired.insert(entry.number, Retired::Left(left))),
        }
    }

    /// Keeps the number of a missing view to whose inodes the kernel has references.
    pub fn keep_number(&self, number: u16, references: &[(Ino, u64)]) {
        let left: HashMap<_, _> = references.iter().copied().collect();
        if !left.is_empty() {
            self.table.write().retired.insert(number, Retired::Left(left));
        }
    }

    /// Frees the numbers of all ended views, as if the kernel had forgotten their inodes.
    #[cfg(test)]
    pub fn free_retired(&self) {
        self.table.write().retired.clear();
    }
}
