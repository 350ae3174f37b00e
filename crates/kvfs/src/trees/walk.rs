//! Walks everything below a directory, by path, in one state of the store: directory after
//! directory in the order of the names. Only names and nodes are read, in pieces, so a tree of any
//! size takes little memory. No inodes are loaded into the cache, and nothing is locked.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use kvdb::{Cursor, StoredTuples, View};

use crate::attr::{Attr, FileKind, Ino};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{self, Attributes, Body, Layout, Xattrs};
use crate::pages::compress::{self, Compress};
use crate::views::{self, Views, Wait};

/// The number of names of a directory that are read together with their nodes.
const AT_ONCE: usize = 256;

/// An object that a walk has reached.
#[derive(Debug)]
pub struct Walked<'a> {
    /// The path from the top of the walk; empty for the top itself.
    pub path: &'a [u8],
    /// The inode's attributes. The blocks of a file that has a way of compression are those that
    /// its pages take as they are stored.
    pub attr: Attr,
}

/// A walk under way; see [`Fs::walk`].
pub struct Walk {
    fs: Fs,
    view: Arc<View>,
    layout: Layout,
    sizes: StoredSizes,
    /// The top, until it was returned.
    top: Option<Attr>,
    directories: Vec<Directory>,
    /// The path of the last object returned.
    path: Vec<u8>,
    /// Directories visited: in a damaged store a directory may contain itself.
    seen: HashSet<Ino>,
}

/// Finds out how much space the pages of files take.
struct StoredSizes {
    /// The way of compression of files without an attribute for it.
    default: Option<Compress>,
    /// The pages of all files, once those of one were looked up.
    pages: Option<StoredTuples>,
}

impl StoredSizes {
    /// Returns the attributes of an inode. If its pages may be compressed, their references are
    /// read, which have their lengths on the device. If these cannot be read, the file counts with
    /// all of its pages: a tree of which some pages are damaged still has all of its names.
    fn shown(
        &mut self,
        view: &View,
        layout: Layout,
        (ino, attr, xattrs): (Ino, &Attributes, Option<&Xattrs>),
    ) -> Attr {
        let mut shown = attr.public(ino);
        if matches!(attr.body, Body::Paged(1..)) && compress::may_apply(xattrs, self.default) {
            match self.bytes_of(view, layout, ino) {
                Ok(bytes) => shown.blocks = bytes.div_ceil(512),
                Err(e) => tracing::warn!(ino, "the stored size of a file is not known: {e}"),
            }
        }
        shown
    }

    /// Returns the bytes that the pages of a file take as they are stored.
    fn bytes_of(&mut self, view: &View, layout: Layout, ino: Ino) -> Result<u64> {
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => none.insert(view.stored_tuples(layout.dmap)?),
        };
        let (of_file, mut bytes) = (layout::pages_of(ino), 0u64);
        pages.seek(&of_file);
        while pages.advance()?
            && let Some(page) = pages.current().filter(|page| page.key.starts_with(&of_file))
        {
            bytes = bytes.saturating_add(page.stored_bytes() as u64);
        }
        Ok(bytes)
    }
}

struct Directory {
    ino: Ino,
    names: Cursor,
    /// The length of the directory's own path.
    path: usize,
    waiting: VecDeque<(Box<[u8]>, Attr)>,
}

impl Fs {
    /// Walks through the current state of `from` and everything below it, `from` first.
    pub fn walk(&self, from: Ino) -> Result<Walk> {
        let call = self.enter()?;
        // Commits sizes and times that wait in memory; locked files are skipped.
        self.commit_unlocked()?;
        let fs = self.clone();
        let (view, layout) = (Arc::new(self.core.scope.view()?), self.core.layout);
        // The pages of a large file are many: a snapshot, and all calls that come after it, must
        // not wait until they are examined.
        drop(call);
        let node = view.get(layout.imap, &layout::node_key(from))?.ok_or(Error::Stale(from))?;
        let (attr, xattrs, _) = layout::decode_node(from, &node)?;
        let mut sizes = StoredSizes { default: self.core.options.compress, pages: None };
        let top = sizes.shown(&view, layout, (from, &attr, xattrs.as_ref()));
        Ok(Walk {
            top: Some(fs.core.promises.shown(top)),
            fs,
            view,
            layout,
            sizes,
            directories: Vec::new(),
            path: Vec::new(),
            seen: HashSet::new(),
        })
    }
}

impl Views {
    /// Walks a tree of a view, by a path from its root. Asks the kernel for data that it holds
    /// back, but does not fail without it.
    pub fn walk(&self, view: &views::ViewId, path: &[u8]) -> Result<Walk> {
        if let Err(e) = self.shared.watchers.write_back(Wait::ButForLocks) {
            tracing::debug!("a walk does without what was written last: {e}");
        }
        let fs = self.fs(view)?;
        fs.walk(fs.resolve(path)?.ino)
    }
}

impl Walk {
    /// Returns the next object, or `None` at the end. After an error in a directory the walk
    /// continues after that directory.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Walked<'_>>> {
        if let Some(top) = self.top.take() {
            self.enter(top)?;
            return Ok(Some(Walked { path: b"", attr: top }));
        }
        loop {
            let Some(directory) = self.directories.last_mut() else { return Ok(None) };
            if directory.waiting.is_empty()
                && let Err(e) = directory.fill(&self.view, self.layout, &mut self.sizes)
            {
                self.directories.pop();
                return Err(e);
            }
            self.path.truncate(directory.path);
            let Some((name, attr)) = directory.waiting.pop_front() else {
                self.directories.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            let attr = self.fs.core.promises.shown(attr);
            self.enter(attr)?;
            return Ok(Some(Walked { path: &self.path, attr }));
        }
    }

    fn enter(&mut self, attr: Attr) -> Result<()> {
        if attr.kind != FileKind::Dir {
            return Ok(());
        }
        if !self.seen.insert(attr.ino) {
            return Err(Error::Corrupt {
                ino: attr.ino,
                what: "a directory with more than one name".into(),
            });
        }
        let (start, end) = (layout::name_key(attr.ino, b""), layout::names_end(attr.ino));
        let names = self.view.cursor(self.layout.nmap, &start, &end)?;
        self.directories.push(Directory {
            ino: attr.ino,
            names,
            path: self.path.len(),
            waiting: VecDeque::new(),
        });
        Ok(())
    }
}

impl Directory {
    /// Reads some more names, and their nodes.
    fn fill(&mut self, view: &View, layout: Layout, sizes: &mut StoredSizes) -> Result<()> {
        let (mut names, mut keys) = (Vec::new(), Vec::new());
        while names.len() < AT_ONCE
            && let Some(tuple) = self.names.next()?
        {
            let (_, name) = layout::decode_name_key(&tuple.key)?;
            let (ino, kind) = layout::decode_name(self.ino, &tuple.value()?)?;
            names.push((Box::from(name), ino, kind));
            keys.push(layout::node_key(ino));
        }
        let nodes = view.multi_get(layout.imap, &keys)?;
        for ((name, ino, kind), node) in names.into_iter().zip(nodes) {
            let corrupt = |what: &str| Error::Corrupt {
                ino,
                what: format!("an entry of directory {} {what}", self.ino),
            };
            let node = node.ok_or_else(|| corrupt("names it, and it does not exist"))?;
            let (attr, xattrs, _) = layout::decode_node(ino, &node)?;
            let attr = sizes.shown(view, layout, (ino, &attr, xattrs.as_ref()));
            if (attr.kind == FileKind::Dir) != (kind == FileKind::Dir) {
                return Err(corrupt("says that it is of another kind"));
            }
            self.waiting.push_back((name, attr));
        }
        Ok(())
    }
}
