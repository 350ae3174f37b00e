//! A position on the items of one run.

use std::sync::Arc;

use crate::Result;
use crate::block::Block;
use crate::item::Item;
use crate::node::Node;
use crate::run::Run;
use crate::source::Source;

/// Holds its run, so what it stands on is never freed; costs nothing when idle.
pub struct RunCursor {
    run: Arc<Run>,
    path: Vec<(Arc<Node>, usize)>,
    block: Option<Arc<Block>>,
    group: usize,
    items: Vec<Item>,
    at: usize,
}

impl RunCursor {
    pub fn new(run: Arc<Run>) -> Self {
        RunCursor { run, path: Vec::new(), block: None, group: 0, items: Vec::new(), at: 0 }
    }

    fn clear(&mut self) {
        self.path.clear();
        self.block = None;
        self.items.clear();
        self.at = 0;
    }

    /// Descends from the root, choosing an entry at every node; `false` when a node has none.
    fn descend(&mut self, choose: impl Fn(&Node) -> Option<usize>) -> Result<bool> {
        self.clear();
        let (root, mut level) = self.run.root();
        let mut at = root.at;
        while level > 0 {
            let node = self.run.store().node(at, level)?;
            let Some(i) = choose(&node).filter(|&i| i < node.entries.len()) else {
                self.clear();
                return Ok(false);
            };
            at = node.entries[i].at;
            self.path.push((node, i));
            level -= 1;
        }
        self.block = Some(self.run.store().block(at)?);
        Ok(true)
    }

    fn load(&mut self, group: usize) -> Result<()> {
        self.group = group;
        self.items = match &self.block {
            Some(b) => b.group(group)?,
            None => Vec::new(),
        };
        Ok(())
    }

    /// Opens the neighbouring block; `false` at the end of the run.
    fn turn(&mut self, forward: bool) -> Result<bool> {
        let mut up = self.path.len();
        loop {
            let Some(level) = up.checked_sub(1) else {
                self.clear();
                return Ok(false);
            };
            let (node, i) = &mut self.path[level];
            let moved = if forward { Some(*i + 1).filter(|&n| n < node.entries.len()) } else { i.checked_sub(1) };
            if let Some(n) = moved {
                *i = n;
                break;
            }
            up = level;
        }
        self.path.truncate(up);
        loop {
            let (node, i) = &self.path[self.path.len() - 1];
            let (at, level) = (node.entries[*i].at, node.level - 1);
            if level == 0 {
                self.block = Some(self.run.store().block(at)?);
                return Ok(true);
            }
            let child = self.run.store().node(at, level)?;
            let n = if forward { 0 } else { child.entries.len().saturating_sub(1) };
            if child.entries.is_empty() {
                return Err(crate::Error::corrupt("index node without entries", at.addr));
            }
            self.path.push((child, n));
        }
    }

    /// After a load: forward over ends of groups and blocks.
    fn settle_forward(&mut self) -> Result<()> {
        while self.at >= self.items.len() {
            let Some(block) = &self.block else { return Ok(()) };
            let next = if self.group + 1 < block.groups() {
                self.group + 1
            } else if self.turn(true)? {
                0
            } else {
                return Ok(());
            };
            self.load(next)?;
            self.at = 0;
        }
        Ok(())
    }

    /// To the item before the one at `at`, which need not exist.
    fn step_back(&mut self) -> Result<()> {
        if self.at > 0 {
            self.at -= 1;
            return Ok(());
        }
        loop {
            let Some(block) = &self.block else { return Ok(()) };
            let group = if self.group > 0 && block.groups() > 0 {
                self.group - 1
            } else if self.turn(false)? {
                match &self.block {
                    Some(b) => b.groups().saturating_sub(1),
                    None => 0,
                }
            } else {
                return Ok(());
            };
            self.load(group)?;
            if !self.items.is_empty() {
                self.at = self.items.len() - 1;
                return Ok(());
            }
        }
    }
}

impl Source for RunCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if !self.descend(|n| Some(n.position(key)))? {
            return Ok(());
        }
        let group = match &self.block {
            Some(b) => b.group_of(key)?,
            None => 0,
        };
        self.load(group)?;
        self.at = self.items.partition_point(|i| i.ends_before(key));
        self.settle_forward()
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        // The last entry that begins below the key.
        if !self.descend(|n| n.entries.partition_point(|e| e.low.as_ref() < key).checked_sub(1))? {
            return Ok(());
        }
        let group = match &self.block {
            Some(b) => b.group_of(key)?,
            None => 0,
        };
        self.load(group)?;
        self.at = self.items.partition_point(|i| i.key.as_ref() < key);
        self.step_back()
    }

    fn first(&mut self) -> Result<()> {
        self.seek(&[])
    }

    fn last(&mut self) -> Result<()> {
        if !self.descend(|n| n.entries.len().checked_sub(1))? {
            return Ok(());
        }
        let groups = self.block.as_ref().map_or(0, |b| b.groups());
        self.load(groups.saturating_sub(1))?;
        self.at = self.items.len();
        self.step_back()
    }

    fn item(&self) -> Option<&Item> {
        self.items.get(self.at)
    }

    fn next(&mut self) -> Result<()> {
        if self.at < self.items.len() {
            self.at += 1;
            self.settle_forward()?;
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if self.at < self.items.len() { self.step_back() } else { Ok(()) }
    }
}
