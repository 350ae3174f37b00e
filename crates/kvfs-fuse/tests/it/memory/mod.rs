//! A file system in memory, for tests of the adapter alone. It has as little as the kernel needs to
//! create, read, write, list and remove files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use kvfs_fuse::handler::*;
use parking_lot::Mutex;

struct Node {
    attr: Attr,
    parent: NodeId,
    data: Vec<u8>,
    entries: BTreeMap<Vec<u8>, NodeId>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn shown(&self) -> NodeAttr {
        NodeAttr { node: NodeId(self.attr.ino), attr: self.attr }
    }
}

pub struct Memory {
    nodes: Mutex<BTreeMap<NodeId, Node>>,
    pub syncs: AtomicU32,
    /// The name of a directory whose creation never ends, and the channel that is notified of the
    /// request.
    never: Mutex<Option<(Vec<u8>, Sender<()>)>>,
}

fn attr(ino: NodeId, kind: FileKind, perm: u16, caller: Caller) -> Attr {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let now = Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 };
    let (uid, gid) = (caller.uid, caller.gid);
    let nlink = if kind == FileKind::Dir { 2 } else { 1 };
    Attr {
        ino: ino.0,
        kind,
        perm,
        nlink,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

impl Default for Memory {
    fn default() -> Memory {
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        let root = Node {
            attr: attr(NodeId::ROOT, FileKind::Dir, 0o755, caller),
            parent: NodeId::ROOT,
            data: Vec::new(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
        };
        Memory {
            nodes: Mutex::new(BTreeMap::from([(NodeId::ROOT, root)])),
            syncs: AtomicU32::new(0),
            never: Mutex::default(),
        }
    }
}

impl Memory {
    /// From now on a program that makes a directory of this name gets no answer.
    #[allow(dead_code, reason = "not all tests want it")]
    pub fn never_make(&self, name: &str) -> Receiver<()> {
        let (say, asked) = channel();
        *self.never.lock() = Some((name.into(), say));
        asked
    }

    fn with<T>(&self, ino: NodeId, f: impl FnOnce(&mut Node) -> Reply<T>) -> Reply<T> {
        f(self.nodes.lock().get_mut(&ino).ok_or(Errno(libc::ENOENT))?)
    }

    fn add(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        data: &[u8],
        caller: Caller,
    ) -> Reply<NodeAttr> {
        let mut nodes = self.nodes.lock();
        let ino = NodeId(nodes.last_key_value().map_or(1, |(ino, _)| ino.0) + 1);
        let directory = nodes.get_mut(&parent).ok_or(Errno(libc::ENOENT))?;
        if directory.entries.contains_key(name) {
            return Err(Errno(libc::EEXIST));
        }
        directory.entries.insert(name.to_vec(), ino);
        let attr = Attr { size: data.len() as u64, ..attr(ino, kind, perm, caller) };
        nodes.insert(
            ino,
            Node {
                attr,
                parent,
                data: data.to_vec(),
                entries: BTreeMap::new(),
                xattrs: BTreeMap::new(),
            },
        );
        Ok(NodeAttr { node: ino, attr })
    }

    fn take(&self, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.with(parent, |n| n.entries.remove(name).map(|_| ()).ok_or(Errno(libc::ENOENT)))
    }
}

impl Handler for Memory {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Reply<Option<NodeAttr>> {
        assert_ne!(name, b"a defect", "as a defect of the file system would");
        let nodes = self.nodes.lock();
        let directory = nodes.get(&parent).ok_or(Errno(libc::ENOENT))?;
        Ok(directory.entries.get(name).and_then(|ino| nodes.get(ino)).map(Node::shown))
    }
    fn forget(&self, _ino: NodeId, _references: u64) {}
    fn getattr(&self, ino: NodeId) -> Reply<NodeAttr> {
        self.with(ino, |n| Ok(n.shown()))
    }
    fn setattr(&self, ino: NodeId, changes: &SetAttr, _caller: Caller) -> Reply<NodeAttr> {
        self.with(ino, |n| {
            n.attr.perm = changes.mode.unwrap_or(n.attr.perm);
            if let Some(size) = changes.size {
                n.data.resize(size as usize, 0);
                n.attr.size = size;
            }
            if let Some(TimeSet::At(t)) = changes.mtime {
                n.attr.mtime = t;
            }
            if let Some(TimeSet::At(t)) = changes.atime {
                n.attr.atime = t;
            }
            Ok(n.shown())
        })
    }
    fn readlink(&self, ino: NodeId) -> Reply<Bytes> {
        self.with(ino, |n| Ok(Bytes::copy_from_slice(&n.data)))
    }
    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        _rdev: u32,
        caller: Caller,
    ) -> Reply<NodeAttr> {
        self.add(parent, name, kind, perm, b"", caller)
    }
    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u16, caller: Caller) -> Reply<NodeAttr> {
        let never = self.never.lock().take_if(|(never, _)| never == name);
        if let Some((_, say)) = never {
            let _ = say.send(());
            loop {
                std::thread::park();
            }
        }
        self.add(parent, name, FileKind::Dir, perm, b"", caller)
    }
    fn tmpfile(&self, _parent: NodeId, _perm: u16, _caller: Caller) -> Reply<NodeAttr> {
        Err(Errno(libc::ENOSYS))
    }
    fn symlink(
        &self,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Reply<NodeAttr> {
        self.add(parent, name, FileKind::Symlink, 0o777, target, caller)
    }
    fn link(
        &self,
        _ino: NodeId,
        _parent: NodeId,
        _name: &[u8],
        _caller: Caller,
    ) -> Reply<NodeAttr> {
        Err(Errno(libc::EPERM))
    }
    fn unlink(&self, parent: NodeId, name: &[u8], _caller: Caller) -> Reply<()> {
        self.take(parent, name)
    }
    fn rmdir(&self, parent: NodeId, name: &[u8], _caller: Caller) -> Reply<()> {
        self.take(parent, name)
    }
    fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        _flags: RenameFlags,
        _caller: Caller,
    ) -> Reply<()> {
        let ino = self.lookup(from.0, from.1)?.ok_or(Errno(libc::ENOENT))?.node;
        self.take(from.0, from.1)?;
        self.with(to.0, |n| Ok(n.entries.insert(to.1.to_vec(), ino)))?;
        Ok(())
    }
    fn read(&self, ino: NodeId, offset: u64, length: u32, _: ReadHints) -> Reply<Bytes> {
        self.with(ino, |n| {
            let start = n.data.len().min(offset as usize);
            let end = n.data.len().min(start + length as usize);
            Ok(Bytes::copy_from_slice(&n.data[start..end]))
        })
    }
    fn write(&self, ino: NodeId, offset: u64, data: &[u8], _hints: WriteHints) -> Reply<Written> {
        self.with(ino, |n| {
            let end = offset as usize + data.len();
            if n.data.len() < end {
                n.data.resize(end, 0);
            }
            n.data[offset as usize..end].copy_from_slice(data);
            n.attr.size = n.data.len() as u64;
            n.attr.blocks = n.attr.size.div_ceil(512);
            Ok(Written { bytes: data.len() as u64, lost_privileges: false })
        })
    }
    fn fsync(&self, _ino: NodeId, _data_only: bool) -> Reply<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn fsyncdir(&self, _ino: NodeId, _data_only: bool) -> Reply<()> {
        Ok(())
    }
    fn readdir(
        &self,
        ino: NodeId,
        cookie: u64,
        attributes: bool,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Reply<()> {
        let nodes = self.nodes.lock();
        let directory = nodes.get(&ino).ok_or(Errno(libc::ENOENT))?;
        let dots = [(&b"."[..], ino, None), (b"..", directory.parent, None)];
        let names = directory
            .entries
            .iter()
            .map(|(name, ino)| (&name[..], *ino, nodes.get(ino).map(Node::shown)));
        for (at, (name, ino, attr)) in
            dots.into_iter().chain(names).enumerate().skip(cookie as usize)
        {
            let kind = attr.map_or(FileKind::Dir, |a| a.attr.kind);
            let attr = attr.filter(|_| attributes);
            if !take(Listed { ino: ino.0, cookie: at as u64 + 1, kind, name, attr }) {
                break;
            }
        }
        Ok(())
    }
    fn getxattr(&self, ino: NodeId, name: &[u8]) -> Reply<Bytes> {
        self.with(ino, |n| {
            n.xattrs.get(name).map(|v| Bytes::copy_from_slice(v)).ok_or(Errno(libc::ENODATA))
        })
    }
    fn listxattr(&self, ino: NodeId, _caller: Caller) -> Reply<Bytes> {
        self.with(ino, |n| Ok(n.xattrs.keys().flat_map(|k| k.iter().copied().chain([0])).collect()))
    }
    fn setxattr(
        &self,
        ino: NodeId,
        name: &[u8],
        value: &[u8],
        _mode: XattrFlags,
        _caller: Caller,
    ) -> Reply<()> {
        self.with(ino, |n| {
            n.xattrs.insert(name.to_vec(), value.to_vec());
            Ok(())
        })
    }
    fn removexattr(&self, ino: NodeId, name: &[u8], _caller: Caller) -> Reply<()> {
        self.with(ino, |n| n.xattrs.remove(name).map(|_| ()).ok_or(Errno(libc::ENODATA)))
    }
    fn statfs(&self, _: NodeId) -> Reply<StatFs> {
        Ok(StatFs {
            block_size: 4096,
            blocks: 1000,
            free: 500,
            files: 100,
            files_free: 50,
            name_max: 255,
        })
    }
    fn fallocate(
        &self,
        _ino: NodeId,
        _offset: u64,
        _length: u64,
        _how: Allocate,
        _caller: Caller,
    ) -> Reply<Written> {
        Err(Errno(libc::EOPNOTSUPP))
    }
    fn seek(&self, _ino: NodeId, _offset: u64, _what: Whence) -> Reply<u64> {
        Err(Errno(libc::EOPNOTSUPP))
    }
    fn copy_file_range(
        &self,
        _from: (NodeId, u64),
        _to: (NodeId, u64),
        _length: u64,
        _caller: Caller,
    ) -> Reply<Written> {
        Err(Errno(libc::EOPNOTSUPP))
    }
}
