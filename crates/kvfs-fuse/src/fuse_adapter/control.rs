//! The answers about the control directory.

use kvfs::ViewId;

use super::{FsIn, FuseAdapter, In, STALE, errno};
use crate::handler::*;
use crate::node_id::Numbering;
use crate::{control_directory, node_id};

/// Attributes of the control directory, or of the mainline.
fn of_view(view: u16, attr: Attr) -> NodeAttr {
    Numbering { view, shown_in: view }.attr(attr)
}

impl In<'_> {
    /// The control directory in its root.
    pub(super) fn control_directory(&self) -> Option<Ino> {
        match self.number {
            0 => Some(control_directory::TOP),
            _ => self.transactions().last().and_then(|id| control_directory::top_of(*id)),
        }
    }
}

impl FuseAdapter {
    /// The transactions that one is within, the outermost first, and itself; none: there is none.
    pub(crate) fn chain(&self, id: kvfs::TransactionId) -> Vec<kvfs::TransactionId> {
        self.views.and_around(id).unwrap_or_default()
    }

    pub(super) fn control_attr(&self, ino: Ino) -> Reply<NodeAttr> {
        let root = self.mainline.getattr(ROOT).map_err(errno)?;
        let attr = control_directory::attr(ino, &root, self.open_views).ok_or(STALE)?;
        let attr = match (control_directory::linked(ino), control_directory::around(ino)) {
            (Some(id), _) => Attr { size: self.link_target(id)?.len() as u64, ..attr },
            (_, Some(id)) => Attr { uid: self.user_of(id).ok_or(STALE)?, ..attr },
            _ => attr,
        };
        Ok(of_view(node_id::CONTROL, attr))
    }

    /// Where the name of a transaction leads.
    pub(super) fn link_target(&self, id: kvfs::TransactionId) -> Reply<String> {
        let user = self.user_of(id).ok_or(STALE)?;
        Ok(control_directory::target(&self.chain(id), user))
    }

    /// What `name` stands for in the control directory.
    pub(super) fn find_control(&self, dir: Ino, name: &[u8]) -> Reply<NodeAttr> {
        let none = Errno(libc::ENOENT);
        match (dir, name) {
            (_, b".") => self.control_attr(dir),
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
            (_, b"..") => self.control_attr(control_directory::TOP),
            (dir, b"txn") if control_directory::topped(dir).is_some() => {
                let id = control_directory::topped(dir).ok_or(none)?;
                self.control_attr(control_directory::within(id).ok_or(none)?).map_err(|_| none)
            }
            (dir, _) if control_directory::topped(dir).is_some() => Err(none),
            (control_directory::TOP, _) if name == control_directory::BARRIER_NAME.as_bytes() => {
                self.control_attr(control_directory::BARRIER)
            }
            (control_directory::TOP, _) if name == control_directory::USERS_NAME.as_bytes() => {
                self.control_attr(control_directory::USERS)
            }
            (control_directory::USERS, _) => self.control_attr(control_directory::home(
                control_directory::user_named(name).ok_or(none)?,
            )),
            (control_directory::TRANSACTIONS, _) => match control_directory::view(dir, name) {
                Some(ViewId::Transaction(id)) => {
                    self.control_attr(control_directory::link(id).ok_or(none)?).map_err(|_| none)
                }
                _ => Err(none),
            },
            (control_directory::TOP, _) => {
                let kind =
                    control_directory::KINDS.iter().find(|(kind, _)| kind.as_bytes() == name);
                self.control_attr(kind.ok_or(none)?.1)
            }
            _ => {
                let view = control_directory::view(dir, name).ok_or(none)?;
                if let ViewId::Transaction(id) = view
                    && !self.lies_in(id, dir)
                {
                    return Err(none);
                }
                self.root_of(&view)
            }
        }
    }

    /// Returns whether the view of a transaction lies in a directory, and not a link to it.
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

    /// The root of a view.
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
        let here = |ino| node_id::of(node_id::CONTROL, ino);
        let above = match dir {
            control_directory::TOP => NodeId::ROOT,
            dir if control_directory::user_of(dir).is_some() => here(control_directory::USERS),
            dir if control_directory::around(dir).is_some() => {
                let id = control_directory::around(dir);
                here(id.and_then(control_directory::top_of).unwrap_or(dir))
            }
            _ => here(control_directory::TOP),
        };
        let directory = |name: &str, node| (name.to_string(), node, FileKind::Dir);
        let mut entries = vec![directory(".", here(dir)), directory("..", above)];
        if dir == control_directory::TOP {
            entries.extend(
                control_directory::KINDS.iter().map(|(name, ino)| directory(name, here(*ino))),
            );
        } else if let Some(id) = control_directory::topped(dir) {
            entries.extend(control_directory::within(id).map(|ino| directory("txn", here(ino))));
        } else {
            for view in self.views.all() {
                let Some((place, name)) = control_directory::place(&view) else { continue };
                match view {
                    ViewId::Transaction(id) if dir == control_directory::TRANSACTIONS => {
                        entries.extend(
                            control_directory::link(id)
                                .map(|link| (name, here(link), FileKind::Symlink)),
                        );
                    }
                    ViewId::Transaction(id) if !self.lies_in(id, dir) => {}
                    // Listing opens nothing: a number on the wire is given to what is looked up.
                    ViewId::Transaction(_) => entries.push(directory(&name, here(ROOT))),
                    _ if place == dir => entries.push(directory(&name, here(ROOT))),
                    _ => {}
                }
            }
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
}
