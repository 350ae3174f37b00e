//! The part of a view's state that is in use and not in the store, for another process that
//! continues with the view. See `views/in_use`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::atomic::Ordering;
use kvdb::View;

use crate::attr::{Ino, Timestamp};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::{Identity, Inode, InodeState};
use crate::layout::{self, ImapKey, Layout, kind_code, kind_of, put_varint, take_varint};

/// The part of a view's state that is in use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewInUse {
    pub references: Vec<(Ino, u64)>,
    nameless: HashMap<Ino, Nameless>,
    stranded: Vec<(Ino, Identity)>,
    lost: Vec<Ino>,
}

/// An inode that the kernel refers to, and that has no name.
#[derive(Debug, PartialEq, Eq)]
struct Nameless {
    /// The node in its stored form.
    node: Bytes,
    /// The store has pages of the inode (`stored`), or an orphan record for it (`orphaned`).
    stored: bool,
    orphaned: bool,
    /// The inode was written to since it lost its name.
    written: bool,
}

impl ViewInUse {
    /// Returns the state for references to inodes that all have names.
    pub fn with_names(references: Vec<(Ino, u64)>) -> ViewInUse {
        ViewInUse { references, ..ViewInUse::default() }
    }

    /// Returns the state that a killed process in write-through mode had in use: the kernel has
    /// these references, and the orphan records contain the nodes.
    pub fn left_by_killed(
        view: &View,
        layout: Option<Layout>,
        references: Vec<(Ino, u64)>,
    ) -> Result<ViewInUse> {
        let mut in_use = ViewInUse::with_names(references);
        let Some(layout) = layout else { return Ok(in_use) };
        let known: HashSet<Ino> = in_use.references.iter().map(|(ino, _)| *ino).collect();
        let (start, end) = layout::orphan_range();
        let mut cursor = view.cursor(layout.imap, &start, &end)?;
        while let Some(tuple) = cursor.next()? {
            let ImapKey::Orphan(ino) = layout::decode_imap_key(&tuple.key)? else { continue };
            let node = tuple.value()?;
            if node.is_empty() || !known.contains(&ino) {
                continue;
            }
            let (first, last) = (layout::page_key(ino, 0), layout::pages_end(ino));
            let stored = !view.scan(layout.dmap, &first, &last, 1)?.is_empty();
            // The inode may have been written to.
            let written = true;
            in_use.nameless.insert(ino, Nameless { node, stored, orphaned: true, written });
        }
        Ok(in_use)
    }

    pub fn has_nameless(&self, ino: Ino) -> bool {
        self.nameless.contains_key(&ino)
    }
}

impl Fs {
    /// Commits everything, including inodes without a name, and returns the state that is not in
    /// the store.
    pub(crate) fn in_use(&self) -> Result<ViewInUse> {
        if !self.core.options.read_only {
            self.core.locks.retry(|| {
                let _call = self.enter()?;
                self.commit_older_than(Duration::MAX)
            })?;
        }
        let _call = self.enter()?;
        let mut in_use = ViewInUse {
            stranded: self.core.inode_cache.all_stranded(),
            lost: self.core.lost.all(),
            ..ViewInUse::default()
        };
        for inode in self.core.inode_cache.all() {
            let mut state = inode.state.write();
            if state.gone || state.attr.nlink > 0 || inode.references.load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.core.pages.count(inode.ino, &mut state)?;
            self.commit_dirty(&inode, &mut state)?;
            let content = self.core.pages.content(inode.ino, &state)?;
            let node = layout::encode_node(&state.attr, state.xattrs.as_deref(), &content);
            let nameless = Nameless {
                node,
                stored: state.stored,
                orphaned: state.orphaned,
                written: state.written_nameless,
            };
            in_use.nameless.insert(inode.ino, nameless);
        }
        in_use.references = self.core.inode_cache.all_references();
        Ok(in_use)
    }

    /// Takes over the state that another process had in use. Call before any other call.
    pub(crate) fn take_up(&self, in_use: &ViewInUse) -> Result<()> {
        let cache = &self.core.inode_cache;
        for &(ino, references) in &in_use.references {
            let Some(nameless) = in_use.nameless.get(&ino) else {
                cache.set_references(ino, references);
                continue;
            };
            let (attr, xattrs, content) = layout::decode_node(ino, &nameless.node)?;
            let state = InodeState {
                stored: nameless.stored,
                orphaned: nameless.orphaned,
                written_nameless: nameless.written,
                inline: Some(content).filter(|content| !content.is_empty()),
                ..InodeState::new(attr, xattrs)
            };
            cache.insert(Arc::new(Inode::new(ino, state, references)));
        }
        in_use.stranded.iter().for_each(|(ino, what)| cache.strand(*ino, *what));
        in_use.lost.iter().for_each(|ino| self.core.lost.add(*ino));
        Ok(())
    }
}

pub(crate) const MALFORMED: Error =
    Error::Invalid("what another process has handed over is malformed");

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_references(out: &mut Vec<u8>, references: &[(Ino, u64)]) {
    put_varint(out, references.len() as u64);
    for &(ino, count) in references {
        put_varint(out, ino);
        put_varint(out, count);
    }
}

/// Decodes a handed-over state. Every length is checked against the bytes that are left.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn number(&mut self) -> Result<u64> {
        take_varint(&mut self.0).ok_or(MALFORMED)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| MALFORMED)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn small(&mut self) -> Result<u16> {
        u16::try_from(self.number()?).map_err(|_| MALFORMED)
    }

    /// Reads a list. Memory grows with the elements that are present, and not with the length that
    /// the input claims.
    pub fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..self.number()?).map(|_| one(self)).collect()
    }

    pub fn references(&mut self) -> Result<Vec<(Ino, u64)>> {
        self.list(|r| Ok((r.number()?, r.number()?)))
    }
}

impl ViewInUse {
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_references(out, &self.references);
        put_varint(out, self.nameless.len() as u64);
        for (ino, nameless) in &self.nameless {
            put_varint(out, *ino);
            put_bytes(out, &nameless.node);
            let bits = [nameless.stored, nameless.orphaned, nameless.written];
            put_varint(out, bits.iter().rev().fold(0, |all, bit| all << 1 | u64::from(*bit)));
        }
        put_varint(out, self.stranded.len() as u64);
        for (ino, Identity { kind, birth }) in &self.stranded {
            put_varint(out, *ino);
            put_varint(out, u64::from(kind_code(*kind)));
            put_varint(out, birth.secs as u64);
            put_varint(out, u64::from(birth.nanos));
        }
        put_varint(out, self.lost.len() as u64);
        self.lost.iter().for_each(|ino| put_varint(out, *ino));
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<ViewInUse> {
        let references = reader.references()?;
        let nameless = reader.list(|r| {
            let (ino, node) = (r.number()?, Bytes::copy_from_slice(r.bytes()?));
            let flags = r.number()?;
            let [stored, orphaned, written] = [1, 2, 4].map(|bit| flags & bit != 0);
            Ok((ino, Nameless { node, stored, orphaned, written }))
        })?;
        let stranded = reader.list(|r| {
            let ino = r.number()?;
            let kind = u8::try_from(r.number()?).ok().and_then(kind_of).ok_or(MALFORMED)?;
            let secs = r.number()? as i64;
            let nanos = u32::try_from(r.number()?).map_err(|_| MALFORMED)?;
            Ok((ino, Identity { kind, birth: Timestamp { secs, nanos } }))
        })?;
        let lost = reader.list(Reader::number)?;
        Ok(ViewInUse { references, nameless: nameless.into_iter().collect(), stranded, lost })
    }
}
