//! Writes the decisions as changes of a transaction.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kvdb::{Batch, DictionaryId, StoredValue, Transaction};

use super::{Content, Plan};
use crate::attr::{FileKind, Ino};
use crate::difference::StoredNode;
use crate::error::Result;
use crate::layout::{self, Attributes, Body, Layout, XattrValue};

/// The number of changes in one batch.
const STEP: usize = 1024;

/// The changes that are being written.
struct Changes<'a> {
    transaction: &'a Transaction,
    layout: Layout,
    batch: Batch,
}

impl Changes<'_> {
    fn step(&mut self) -> Result<()> {
        if self.batch.len() >= STEP { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.transaction.apply(std::mem::take(&mut self.batch))?)
    }

    fn delete_range(&mut self, dict: DictionaryId, start: &[u8], end: &[u8]) {
        self.batch.delete_range(dict, start.to_vec(), end.to_vec());
    }
}

fn is_stored(node: &StoredNode) -> bool {
    let external = |value: &XattrValue| matches!(value, XattrValue::External(_));
    matches!(node.attr.body, Body::Paged(1..))
        || node.xattrs.as_ref().is_some_and(|all| all.values().any(external))
}

fn plus(number: u64, by: i64) -> u64 {
    number.saturating_add_signed(by)
}

impl Plan<'_> {
    pub(super) fn write(&mut self, transaction: &Transaction) -> Result<()> {
        let layout = self.sides.into.layout;
        let mut changes = Changes { transaction, layout, batch: Batch::new() };
        let mut parents: HashMap<Ino, Ino> = HashMap::new();
        for ((dir, name), replaced) in self.entries.iter() {
            if replaced.before == replaced.after {
                continue;
            }
            let key = layout::name_key(*dir, name);
            match replaced.after {
                Some((ino, kind)) => {
                    parents.entry(ino).or_insert(*dir);
                    changes.batch.put(layout.nmap, key, layout::encode_name(ino, kind));
                }
                None => changes.batch.delete(layout.nmap, key),
            }
            changes.step()?;
        }
        // The directories of `from`, by their counterparts in `into`.
        let from_dirs: HashMap<Ino, Ino> =
            self.dirs.iter().filter_map(|(from, into)| Some(((*into)?, *from))).collect();
        let touched: BTreeSet<Ino> = (self.sums.names.keys())
            .chain(self.sums.entries.keys())
            .chain(self.content.keys())
            .chain(self.attributes.keys())
            .chain(self.times.keys())
            .chain(self.new_dirs.iter())
            .copied()
            .collect();
        for ino in touched {
            self.write_node(ino, &parents, &from_dirs, &mut changes)?;
            changes.step()?;
        }
        self.write_pages(&mut changes)?;
        changes.finish()
    }

    /// Writes the node of an inode, or removes it if it has no name any more.
    fn write_node(
        &mut self,
        ino: Ino,
        parents: &HashMap<Ino, Ino>,
        from_dirs: &HashMap<Ino, Ino>,
        changes: &mut Changes<'_>,
    ) -> Result<()> {
        let into = self.sides.into.node(ino)?;
        let layout = changes.layout;
        let added = self.names_added(ino);
        if into.is_none() && added > 0 {
            self.revive(ino, changes)?;
        }
        let from = &self.sides.from;
        let source = match self.content.get(&ino) {
            Some(Content::Changes(source) | Content::All(source)) => Some(*source),
            None if into.is_none() => Some(ino),
            None => None,
        };
        let taken = match (source, self.attributes.remove(&ino)) {
            (Some(source), _) => from.node(source)?.map(|node| (source, node)),
            (None, Some(node)) => Some((from_dirs.get(&ino).copied().unwrap_or(ino), node)),
            (None, None) => None,
        };
        let Some(node) = taken.as_ref().map(|(_, node)| node).or(into.as_ref()) else {
            return Ok(());
        };
        let dir = node.attr.kind == FileKind::Dir;
        let of_into = into.as_ref().map(|node| &node.attr);
        let names = match of_into {
            Some(attr) if !dir => i64::from(attr.nlink),
            Some(_) => 1,
            None => 0,
        };
        let named = names + added;
        if named <= 0 {
            self.content.remove(&ino);
            let Some(into) = into else { return Ok(()) };
            changes.batch.delete(layout.imap, layout::node_key(ino));
            if is_stored(&into) {
                changes.batch.put(layout.imap, layout::orphan_key(ino), b"".as_slice());
            }
            self.write_promise(ino, None, changes)?;
            return Ok(());
        }
        let is_taken = taken.is_some();
        let attr =
            self.attributes_of((ino, node, is_taken), of_into, named, (parents, from_dirs))?;
        if dir && parents.contains_key(&ino) && into.is_some() {
            let place = layout::name_key(attr.parent, &ino.to_be_bytes());
            changes.batch.put(layout.imap, layout::MOVES_KEY.as_slice(), place);
        }
        let value = layout::encode_node(&attr, node.xattrs.as_ref(), &node.content);
        changes.batch.put(layout.imap, layout::node_key(ino), value);
        if let Some((source, _)) = &taken {
            self.write_xattrs(*source, ino, changes)?;
        }
        if let Some(source) = source.filter(|_| !dir) {
            self.write_promise(ino, Some(source), changes)?;
        }
        Ok(())
    }

    /// Makes a nameless inode a file again, if `into` has removed that file and a program has it
    /// open.
    fn revive(&mut self, ino: Ino, changes: &mut Changes<'_>) -> Result<()> {
        let (imap, orphan) = (changes.layout.imap, layout::orphan_key(ino));
        if self.sides.into.state.get(imap, &orphan)?.is_none() {
            return Ok(());
        }
        changes.batch.delete(imap, orphan);
        if let Some(content) = self.content.get_mut(&ino)
            && let Content::Changes(source) = *content
        {
            *content = Content::All(source);
        }
        Ok(())
    }

    /// Returns the attributes of an inode that has `named` names. `node` is the node that it gets;
    /// `is_taken`: it comes from `from`. `before` has the attributes that `into` has.
    fn attributes_of(
        &self,
        (ino, node, is_taken): (Ino, &StoredNode, bool),
        before: Option<&Attributes>,
        named: i64,
        (parents, from_dirs): (&HashMap<Ino, Ino>, &HashMap<Ino, Ino>),
    ) -> Result<Attributes> {
        let dir = node.attr.kind == FileKind::Dir;
        let (entries, dirs) = self.sums.entries.get(&ino).copied().unwrap_or((0, 0));
        let mut attr = Attributes {
            nlink: match dir {
                true => plus(before.map_or(2, |attr| attr.nlink.into()), dirs) as u32,
                false => u32::try_from(named).unwrap_or(u32::MAX),
            },
            reserved: before.map(|attr| attr.reserved).unwrap_or_default(),
            parent: parents
                .get(&ino)
                .copied()
                .or(before.map(|attr| attr.parent))
                .unwrap_or(node.attr.parent),
            ..node.attr
        };
        if dir {
            attr.size = plus(before.map_or(0, |attr| attr.size), entries);
        }
        if let Some([atime, mtime, ctime]) = self.times.get(&ino).filter(|_| !is_taken) {
            (attr.atime, attr.mtime, attr.ctime) = (*atime, *mtime, attr.ctime.max(*ctime));
        }
        if let Some(before) = before {
            attr.btime = before.btime;
            attr.ctime = attr.ctime.max(before.ctime);
            if dir {
                attr.mtime = attr.mtime.max(before.mtime);
            }
        }
        if dir
            && entries != 0
            && let Some(there) = from_dirs.get(&ino)
            && let Some(there) = self.sides.from.node(*there)?
        {
            attr.mtime = attr.mtime.max(there.attr.mtime);
            attr.ctime = attr.ctime.max(there.attr.ctime);
        }
        Ok(attr)
    }

    /// Writes the attribute values that are stored outside of the node.
    fn write_xattrs(&self, source: Ino, ino: Ino, changes: &mut Changes<'_>) -> Result<()> {
        let (from, into) = (&self.sides.from, changes.layout.imap);
        let start = layout::xattr_key(ino, b"\0");
        changes.delete_range(into, &start, &layout::node_range(ino).1);
        let Some(source) = self.sides.from.numbers.stored(source) else { return Ok(()) };
        let (start, end) = (layout::xattr_key(source, b"\0"), layout::node_range(source).1);
        // There are few of them: the node has to hold their names.
        for (key, value) in from.state.scan_stored(from.layout.imap, &start, &end, usize::MAX)? {
            let key = [&ino.to_be_bytes()[..], &key[8..]].concat();
            changes.batch.put_stored(into, key, value);
        }
        Ok(())
    }

    /// Replaces the note of a file's promised space by that of `from`'s file.
    fn write_promise(
        &self,
        ino: Ino,
        source: Option<Ino>,
        changes: &mut Changes<'_>,
    ) -> Result<()> {
        let (from, into) = (&self.sides.from, &self.sides.into);
        let key = layout::promise_key(ino);
        let note = match source.and_then(|source| from.numbers.stored(source)) {
            Some(source) => from.state.get(from.layout.imap, &layout::promise_key(source))?,
            None => None,
        };
        match (note, into.state.get(into.layout.imap, &key)?) {
            (Some(note), there) if there.as_ref() != Some(&note) => {
                changes.batch.put(into.layout.imap, key, note);
            }
            (None, Some(_)) => changes.batch.delete(into.layout.imap, key),
            _ => {}
        }
        Ok(())
    }

    fn write_pages(&self, changes: &mut Changes<'_>) -> Result<()> {
        let (base, from, into) = (&self.sides.base, &self.sides.from, changes.layout.dmap);
        for (&ino, content) in &self.content {
            let Content::All(source) = content else { continue };
            changes.delete_range(into, &layout::page_key(ino, 0), &layout::pages_end(ino));
            let (mut start, end) = from.pages_of(*source);
            loop {
                let some = from.state.scan_stored(from.layout.dmap, &start, &end, STEP)?;
                let Some((last, _)) = some.last() else { break };
                start = [&last[..], &[0]].concat();
                for (key, value) in some {
                    let (_, block) = layout::decode_page_key(&key)?;
                    changes.batch.put_stored(into, layout::page_key(ino, block).to_vec(), value);
                }
                changes.step()?;
            }
        }
        let source = Arc::new(from.state.clone());
        for change in base.state.difference(base.layout.dmap, &from.state, from.layout.dmap)? {
            let change = change?;
            let (stored, block) = layout::decode_page_key(&change.key)?;
            let ino = from.numbers.shown(stored)?;
            if !matches!(self.content.get(&ino), Some(Content::Changes(_))) {
                continue;
            }
            let key = layout::page_key(ino, block).to_vec();
            match &change.after {
                Some(page) => {
                    let page = StoredValue::of(page, &source)?;
                    changes.batch.put_stored(into, key, page);
                }
                None => changes.batch.delete(into, key),
            }
            changes.step()?;
        }
        Ok(())
    }
}
