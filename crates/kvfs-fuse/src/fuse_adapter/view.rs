//! The object that a node id of the kernel stands for: an inode of a view, or a part of the control
//! directory.

use std::ops::Deref;

use kvfs::Fs;

use super::errno;
use crate::handler::*;
use crate::node_id::Numbering;

/// The object that a node id of the kernel stands for.
pub(super) enum At<'a> {
    View(In<'a>, Ino),
    /// A directory or file of the control directory.
    Control(Ino),
}

/// A view, by its number.
pub(super) struct In<'a> {
    pub(super) number: u16,
    /// The kernel gathers writes.
    pub(super) gathers: bool,
    pub(super) fs: FsIn<'a>,
}

pub(super) enum FsIn<'a> {
    Mainline(&'a Fs),
    Other(Fs),
}

impl Deref for In<'_> {
    type Target = Fs;
    fn deref(&self) -> &Fs {
        match &self.fs {
            FsIn::Mainline(fs) => fs,
            FsIn::Other(fs) => fs,
        }
    }
}

impl In<'_> {
    /// Returns attributes as the kernel should see them.
    pub(super) fn shown(&self, attr: kvfs::Result<Attr>) -> Reply<NodeAttr> {
        attr.map(|attr| self.numbering().attr(with_space(attr, self.gathers))).map_err(errno)
    }

    pub(super) fn numbering(&self) -> Numbering {
        let place = (self.number != 0).then(|| self.in_place_of()).flatten();
        Numbering { view: self.number, shown_in: place.unwrap_or(self.number) }
    }
}

/// Ensures that a file takes space. Programs like tar treat a file without space as one hole and do
/// not even read it. But the kernel may hold data of the file, and requests its space only from
/// time to time. So a nonempty file is always shown with some space, and so is every file if the
/// kernel gathers writes.
pub(super) fn with_space(attr: Attr, gathers: bool) -> Attr {
    match attr.kind {
        FileKind::File if attr.size > 0 || gathers => Attr { blocks: attr.blocks.max(1), ..attr },
        _ => attr,
    }
}
