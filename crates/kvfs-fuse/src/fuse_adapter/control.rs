//! The answers to requests for the control directory.

use std::collections::HashSet;
use std::path::PathBuf;

use kvfs::{Fs, ViewId};

use super::{FsIn, FuseAdapter, In, STALE, errno};
use crate::handler::*;
use crate::name_parts::Part;
use crate::node_id::Numbering;
use crate::{control_directory, name_parts, node_id, view_names};

/// Returns attributes of an inode of the control directory or of the mainline, for the kernel.
fn of_view(view: u16, attr: Attr) -> NodeAttr {
    Numbering { view, shown_in: view }.attr(attr)
}

/// An entry of a control directory.
type Entry = (String, NodeId, FileKind);

/// Returns the node of a control directory.
fn here(ino: Ino) -> NodeId {
    node_id::of(node_id::CONTROL, ino)
}

fn directory(name: &str, node: NodeId) -> Entry {
    (name.to_string(), node, FileKind::Dir)
}

impl FuseAdapter {
    /// Returns the control directory in the root of a view.
    pub(super) fn control_in(&self, view: &In<'_>) -> Option<Ino> {
        let is_alone = || {
            let number = |alone: &String| self.views.number(&ViewId::Clone(alone.clone()));
            self.alone.as_ref().and_then(|alone| number(alone).ok()) == Some(view.number)
        };
        match (view.number, view.transactions().last()) {
            (0, _) => Some(control_directory::TOP),
            (_, Some(id)) => control_directory::top_of(*id),
            (_, None) => is_alone().then_some(control_directory::TOP_ALONE),
        }
    }

    /// Returns the control directory in which a kind of view lies.
    fn top_of_kind(&self, kind: Ino) -> Ino {
        match &self.alone {
            Some(_) if kind != control_directory::CLONES => control_directory::TOP_ALONE,
            _ => control_directory::TOP,
        }
    }

    /// Returns the kinds of views in a control directory.
    fn kinds_in(&self, top: Ino) -> impl Iterator<Item = (&'static str, Ino)> {
        let kinds = control_directory::KINDS.into_iter();
        let is_there = |kind: Ino| kind != control_directory::CLONES_ALONE || self.alone.is_some();
        kinds.filter(move |(_, kind)| is_there(*kind) && self.top_of_kind(*kind) == top)
    }

    /// Returns the clones of the clone that the mount shows alone, to any depth, which are visible
    /// there as well. The result is empty in a mount of the whole store.
    fn clones_below(&self) -> HashSet<String> {
        let Some(alone) = &self.alone else { return HashSet::new() };
        let clones = self.views.clones().into_iter();
        let parents = clones.map(|info| (info.name, info.parent)).collect();
        control_directory::clones_below(alone, &parents)
    }

    /// Returns whether a transaction is visible in this mount, which may show one clone alone.
    fn is_seen(&self, id: kvfs::TransactionId) -> bool {
        let Some(alone) = &self.alone else { return true };
        let Ok(transaction) = self.views.transaction(id) else { return false };
        let branch = transaction.branch();
        branch == alone || !branch.is_empty() && self.clones_below().contains(branch)
    }

    /// Returns the snapshots that are visible in this mount.
    fn snapshots_seen(&self) -> impl Iterator<Item = String> {
        let below = self.clones_below();
        let is_of = move |branch: &String| {
            self.alone.as_ref().is_none_or(|alone| branch == alone) || below.contains(branch)
        };
        let all = self.views.snapshot_labels().into_iter();
        all.filter(move |label| is_of(&label.branch)).map(|label| label.name)
    }

    /// Returns the path from the root of the file system to `path` in a view.
    pub(crate) fn path_in(&self, view: &ViewId, fs: &Fs, path: &[u8]) -> PathBuf {
        let (user, chain) = (fs.user(), fs.transactions());
        control_directory::path_in(view, user, &chain, path, self.alone.as_deref())
    }

    /// Returns the transactions that a transaction is within, the outermost first, and the
    /// transaction itself. The result is empty if the transaction does not exist.
    pub(crate) fn chain(&self, id: kvfs::TransactionId) -> Vec<kvfs::TransactionId> {
        self.views.and_around(id).unwrap_or_default()
    }

    pub(super) fn control_attr(&self, ino: Ino) -> Reply<NodeAttr> {
        let root = self.mainline.getattr(ROOT).map_err(errno)?;
        if name_parts::is_part(ino) {
            let part = self.parts.part(ino).ok_or(STALE)?;
            let attr = control_directory::attr(part.kind, &root, self.open_views).ok_or(STALE)?;
            let attr = match part.link {
                true => {
                    let size = part.target().len() as u64;
                    Attr { ino, kind: FileKind::Symlink, perm: 0o777, nlink: 1, size, ..attr }
                }
                false => Attr { ino, ..attr },
            };
            return Ok(of_view(node_id::CONTROL, attr));
        }
        let attr = control_directory::attr(ino, &root, self.open_views).ok_or(STALE)?;
        let attr = match (control_directory::linked(ino), control_directory::around(ino)) {
            (Some(id), _) => Attr { size: self.link_target(id)?.len() as u64, ..attr },
            (_, Some(id)) => Attr { uid: self.user_of(id).ok_or(STALE)?, ..attr },
            _ => attr,
        };
        Ok(of_view(node_id::CONTROL, attr))
    }

    /// Returns the target of the link that is the name of a transaction.
    pub(super) fn link_target(&self, id: kvfs::TransactionId) -> Reply<String> {
        let user = self.user_of(id).ok_or(STALE)?;
        Ok(control_directory::target(&self.chain(id), user))
    }

    /// Returns the names of the views of a kind that are visible in this mount.
    fn names_of(&self, kind: Ino) -> Vec<String> {
        match kind {
            control_directory::SNAPSHOTS => self.snapshots_seen().collect(),
            control_directory::CLONES => {
                self.views.clones().into_iter().map(|info| info.name).collect()
            }
            control_directory::CLONES_ALONE => self.clones_below().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the number of a part of the name of a view.
    fn part(&self, part: Part) -> Ino {
        self.parts.number(part, |part| self.leads(part))
    }

    fn leads(&self, part: &Part) -> bool {
        let leads = |name: &String| match part.link {
            true => *name == part.name,
            false => name.strip_prefix(&part.name).is_some_and(|rest| rest.starts_with('/')),
        };
        self.names_of(part.kind).iter().any(leads)
    }

    /// Looks up `name` in a directory that is a part of the names of views, or in the directory of
    /// a kind if `above` is `None`.
    fn find_part(&self, kind: Ino, above: Option<&Part>, name: &[u8]) -> Reply<NodeAttr> {
        let none = Errno(libc::ENOENT);
        let name = std::str::from_utf8(name).map_err(|_| none)?;
        let name = above.map_or(name.into(), |above| format!("{}/{name}", above.name));
        let parts = [true, false].map(|link| Part { kind, name: name.clone(), link });
        // In the directory of its kind, the name leads to the view itself.
        let mut parts = parts.into_iter().skip(usize::from(above.is_none()));
        let part = parts.find(|part| self.leads(part)).ok_or(none)?;
        self.control_attr(self.part(part))
    }

    /// Returns the directories that lead to a view and that the kernel may know.
    pub(crate) fn parts_above(&self, view: &ViewId) -> Vec<Ino> {
        match view {
            ViewId::Snapshot(name) => self.parts.above(control_directory::SNAPSHOTS, name),
            ViewId::Clone(name) => {
                let kinds = [control_directory::CLONES, control_directory::CLONES_ALONE];
                kinds.into_iter().flat_map(|kind| self.parts.above(kind, name)).collect()
            }
            ViewId::Mainline | ViewId::Transaction(_) => Vec::new(),
        }
    }

    /// Looks up `name` in the control directory.
    pub(super) fn find_control(&self, dir: Ino, name: &[u8]) -> Reply<NodeAttr> {
        let none = Errno(libc::ENOENT);
        match (dir, name) {
            (_, b".") => self.control_attr(dir),
            (dir, name) if name_parts::is_part(dir) => {
                let part = self.parts.part(dir).filter(|part| !part.link).ok_or(STALE)?;
                match (name, part.above()) {
                    (b"..", Some(above)) => self.control_attr(self.part(above)),
                    (b"..", None) => self.control_attr(part.kind),
                    (name, _) => self.find_part(part.kind, Some(&part), name),
                }
            }
            (control_directory::TOP_ALONE, b"..") => {
                self.root_of(&ViewId::Clone(self.alone.clone().ok_or(none)?))
            }
            (control_directory::TOP, b"..") => {
                let attr = self.mainline.lookup(ROOT, b".").map_err(errno)?;
                Ok(of_view(0, attr))
            }
            (dir, b"..") if control_directory::user_of(dir).is_some() => {
                self.control_attr(control_directory::USERS)
            }
            (dir, b"..") if control_directory::topped(dir).is_some() => {
                let id = control_directory::topped(dir).ok_or(none)?;
                self.root_of(&ViewId::Transaction(id))
            }
            (dir, b"..") if control_directory::around(dir).is_some() => {
                let id = control_directory::around(dir).ok_or(none)?;
                self.control_attr(control_directory::top_of(id).ok_or(none)?)
            }
            (kind, b"..") => self.control_attr(self.top_of_kind(kind)),
            (dir, b"txn") if control_directory::topped(dir).is_some() => {
                let id = control_directory::topped(dir).ok_or(none)?;
                self.control_attr(control_directory::within(id).ok_or(none)?).map_err(|_| none)
            }
            (dir, _) if control_directory::topped(dir).is_some() => Err(none),
            (top, _)
                if name == control_directory::BARRIER_NAME.as_bytes()
                    && top == self.top_of_kind(control_directory::BARRIER) =>
            {
                self.control_attr(control_directory::BARRIER)
            }
            (top, _)
                if name == control_directory::USERS_NAME.as_bytes()
                    && top == self.top_of_kind(control_directory::USERS) =>
            {
                self.control_attr(control_directory::USERS)
            }
            (control_directory::USERS, _) => self.control_attr(control_directory::home(
                control_directory::user_named(name).ok_or(none)?,
            )),
            (control_directory::TRANSACTIONS, _) => match control_directory::view(dir, name) {
                Some(ViewId::Transaction(id)) if self.is_seen(id) => {
                    self.control_attr(control_directory::link(id).ok_or(none)?).map_err(|_| none)
                }
                _ => Err(none),
            },
            (top @ (control_directory::TOP | control_directory::TOP_ALONE), _) => {
                let kind = self.kinds_in(top).find(|(kind, _)| kind.as_bytes() == name);
                self.control_attr(kind.ok_or(none)?.1)
            }
            _ => {
                let view = control_directory::view(dir, name).ok_or(none)?;
                let lies_here = match &view {
                    ViewId::Transaction(id) => self.is_seen(*id) && self.lies_in(*id, dir),
                    ViewId::Snapshot(name) if self.alone.is_some() => {
                        self.snapshots_seen().any(|seen| seen == *name)
                    }
                    ViewId::Clone(name) if dir == control_directory::CLONES_ALONE => {
                        self.clones_below().contains(name)
                    }
                    _ => true,
                };
                match if lies_here { self.root_of(&view) } else { Err(none) } {
                    Err(Errno(libc::ENOENT)) => self.find_part(dir, None, name),
                    found => found,
                }
            }
        }
    }

    /// Returns whether a directory contains the view of a transaction itself, rather than a link to
    /// the view.
    fn lies_in(&self, id: kvfs::TransactionId, dir: Ino) -> bool {
        match self.chain(id)[..] {
            [.., parent, _] => control_directory::around(dir) == Some(parent),
            [_] => {
                let user = control_directory::user_of(dir);
                user.is_some() && self.user_of(id) == user
            }
            [] => false,
        }
    }

    /// Returns the root of a view.
    fn root_of(&self, view: &ViewId) -> Reply<NodeAttr> {
        let number = self.views.number(view).map_err(errno)?;
        let fs = self.views.by_number(number).ok_or(Errno(libc::ENOENT))?;
        let root = fs.lookup(ROOT, b".");
        In { number, gathers: self.gathers_writes(), fs: FsIn::Other(fs) }.shown(root)
    }

    pub(super) fn list_control(
        &self,
        dir: Ino,
        cookie: u64,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Reply<()> {
        let above = self.above_control(dir)?;
        let mut entries = vec![directory(".", here(dir)), directory("..", above)];
        if dir == control_directory::TOP || dir == control_directory::TOP_ALONE {
            entries.extend(self.kinds_in(dir).map(|(name, ino)| directory(name, here(ino))));
        } else if let Some(id) = control_directory::topped(dir) {
            entries.extend(control_directory::within(id).map(|ino| directory("txn", here(ino))));
        } else if name_parts::is_part(dir)
            || matches!(
                dir,
                control_directory::SNAPSHOTS
                    | control_directory::CLONES
                    | control_directory::CLONES_ALONE
            )
        {
            self.list_parts(dir, &mut entries);
        } else {
            self.list_views(dir, &mut entries);
        }
        for (at, (name, node, kind)) in
            entries.iter().enumerate().skip(usize::try_from(cookie).unwrap_or(usize::MAX))
        {
            let entry = Listed {
                ino: node.0,
                kind: *kind,
                name: name.as_bytes(),
                cookie: at as u64 + 1,
                attr: None,
            };
            if !take(entry) {
                break;
            }
        }
        Ok(())
    }
    /// Returns the directory above a control directory.
    fn above_control(&self, dir: Ino) -> Reply<NodeId> {
        Ok(match dir {
            control_directory::TOP => NodeId::ROOT,
            control_directory::TOP_ALONE => self.find_control(dir, b"..")?.node,
            dir if control_directory::user_of(dir).is_some() => here(control_directory::USERS),
            dir if control_directory::around(dir).is_some() => {
                let id = control_directory::around(dir);
                here(id.and_then(control_directory::top_of).unwrap_or(dir))
            }
            dir if name_parts::is_part(dir) => self.find_control(dir, b"..")?.node,
            kind => here(self.top_of_kind(kind)),
        })
    }

    /// Lists the parts of the names of snapshots or clones in a directory.
    fn list_parts(&self, dir: Ino, entries: &mut Vec<Entry>) {
        let part = self.parts.part(dir);
        let (kind, above) = match &part {
            Some(part) => (part.kind, part.name.as_str()),
            None => (dir, ""),
        };
        let names = self.names_of(kind);
        for (name, is_dir) in name_parts::listed(above, names.iter().map(String::as_str)) {
            let full = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
            let part = |link| here(self.part(Part { kind, name: full.clone(), link }));
            entries.push(match (is_dir, above.is_empty()) {
                (true, _) => (name, part(false), FileKind::Dir),
                // A listing opens no view: only a lookup assigns a node id.
                (false, true) => directory(&view_names::directory_name(&full), here(ROOT)),
                (false, false) => (name, part(true), FileKind::Symlink),
            });
        }
    }

    /// Lists the views that lie in a directory, and the links to views.
    fn list_views(&self, dir: Ino, entries: &mut Vec<Entry>) {
        for view in self.views.all() {
            let Some((place, name)) = control_directory::place(&view) else { continue };
            match view {
                ViewId::Transaction(id) if !self.is_seen(id) => {}
                ViewId::Transaction(id) if dir == control_directory::TRANSACTIONS => {
                    let link = control_directory::link(id);
                    entries.extend(link.map(|link| (name, here(link), FileKind::Symlink)));
                }
                ViewId::Transaction(id) if !self.lies_in(id, dir) => {}
                ViewId::Transaction(_) => entries.push(directory(&name, here(ROOT))),
                _ if place == dir => entries.push(directory(&name, here(ROOT))),
                _ => {}
            }
        }
    }
}
