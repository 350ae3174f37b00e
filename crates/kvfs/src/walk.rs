//! Everything below a directory, by path, from one state of the store: directory after directory in
//! the order of the names. What it reads is the names and the nodes, in pieces, so a tree of any
//! size takes little memory; nothing is loaded as for a call, and nothing is locked.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use kvdb::{Cursor, View};

use crate::attr::{Attr, FileKind, Ino};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{self, Layout};
use crate::views::{self, Views, Wait};

/// Names of a directory that are read together with what they name.
const AT_ONCE: usize = 256;

/// What a walk has come to.
#[derive(Debug)]
pub struct Walked<'a> {
    /// From the top of the walk; of the top itself empty.
    pub path: &'a [u8],
    /// The inode's attributes.
    pub attr: Attr,
}

/// A walk under way; see [`Fs::walk`].
pub struct Walk {
    fs: Fs,
    view: Arc<View>,
    layout: Layout,
    /// Until it was given.
    top: Option<Attr>,
    directories: Vec<Directory>,
    /// The path of what was given last.
    path: Vec<u8>,
    /// In a damaged store a directory may lie in itself.
    seen: HashSet<Ino>,
}

struct Directory {
    ino: Ino,
    names: Cursor,
    /// Where its own path ends.
    path: usize,
    waiting: VecDeque<(Box<[u8]>, Attr)>,
}

impl Fs {
    /// Walks through everything below `from`, itself first, as it is now.
    pub fn walk(&self, from: Ino) -> Result<Walk> {
        let _call = self.enter()?;
        // Sizes and times that wait in memory; what is locked stays where it is.
        self.commit_unlocked()?;
        let fs = self.clone();
        let (view, layout) = (Arc::new(self.core.scope.view()?), self.core.layout);
        let node = view.get(layout.imap, &layout::node_key(from))?.ok_or(Error::Stale(from))?;
        let top = layout::decode_node(from, &node)?.0.public(from);
        Ok(Walk {
            top: Some(fs.with_promise(top)),
            fs,
            view,
            layout,
            directories: Vec::new(),
            path: Vec::new(),
            seen: HashSet::new(),
        })
    }
}

impl Views {
    /// Walks a tree of a view, by a path from its root. What a kernel holds back is asked for, but
    /// not waited for if it does not come.
    pub fn walk(&self, view: &views::ViewId, path: &[u8]) -> Result<Walk> {
        if let Err(e) = self.write_back(Wait::ButForLocks) {
            tracing::debug!("a walk does without what was written last: {e}");
        }
        let fs = self.fs(view)?;
        fs.walk(fs.resolve(path)?.ino)
    }
}

impl Walk {
    /// The next one. `None`: that was all. After an error in a directory it goes on behind that
    /// directory.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Walked<'_>>> {
        if let Some(top) = self.top.take() {
            self.enter(top)?;
            return Ok(Some(Walked { path: b"", attr: top }));
        }
        loop {
            let Some(directory) = self.directories.last_mut() else { return Ok(None) };
            if directory.waiting.is_empty()
                && let Err(e) = directory.fill(&self.view, self.layout)
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
            let attr = self.fs.with_promise(attr);
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
    /// Reads some names more, and what they name.
    fn fill(&mut self, view: &View, layout: Layout) -> Result<()> {
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
            let attr = layout::decode_node(
                ino,
                &node.ok_or_else(|| corrupt("names it, and it does not exist"))?,
            )?
            .0
            .public(ino);
            if (attr.kind == FileKind::Dir) != (kind == FileKind::Dir) {
                return Err(corrupt("says that it is of another kind"));
            }
            self.waiting.push_back((name, attr));
        }
        Ok(())
    }
}
