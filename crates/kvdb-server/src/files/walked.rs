//! The entries of a walk in the form in which they cross the socket.

/// An entry that a walk has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkedEntry {
    /// The path from the top of the walk, which is empty for the top itself.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The low twelve bits of the mode.
    pub perm: u16,
    /// The number of names.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device.
    pub rdev: u32,
    /// The number of the inode.
    pub ino: u64,
    /// The size in bytes.
    pub size: u64,
    /// The number of stored units of 512 bytes.
    pub blocks: u64,
    /// The time of the last access.
    pub atime: EntryTime,
    /// The time of the last change of the content.
    pub mtime: EntryTime,
    /// The time of the last change of the content or the attributes.
    pub ctime: EntryTime,
    /// The time at which the entry was created.
    pub btime: EntryTime,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryTime {
    /// The whole seconds.
    pub secs: i64,
    /// The additional nanoseconds.
    pub nanos: u32,
}

impl EntryKind {
    /// All kinds. The encoding of a kind is its index in this list.
    pub const ALL: [EntryKind; 7] = [
        EntryKind::File,
        EntryKind::Directory,
        EntryKind::Symlink,
        EntryKind::Fifo,
        EntryKind::Socket,
        EntryKind::CharDevice,
        EntryKind::BlockDevice,
    ];
}

impl WalkedEntry {
    /// Appends the encoding of the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.path.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.path);
        out.push(EntryKind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u8);
        out.extend_from_slice(&self.perm.to_le_bytes());
        for n in [self.nlink, self.uid, self.gid, self.rdev] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for n in [self.ino, self.size, self.blocks] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            out.extend_from_slice(&time.secs.to_le_bytes());
            out.extend_from_slice(&time.nanos.to_le_bytes());
        }
    }

    /// Decodes the entry at the front of `from`. Returns `None` if it is incomplete.
    pub fn decode(from: &mut &[u8]) -> Option<WalkedEntry> {
        let int = |from: &mut &[u8]| take(from).map(u32::from_le_bytes);
        let long = |from: &mut &[u8]| take(from).map(u64::from_le_bytes);
        let time = |from: &mut &[u8]| {
            Some(EntryTime {
                secs: i64::from_le_bytes(take(from)?),
                nanos: u32::from_le_bytes(take(from)?),
            })
        };
        let len = int(from)? as usize;
        let (path, rest) = from.split_at_checked(len)?;
        *from = rest;
        Some(WalkedEntry {
            path: path.to_vec(),
            kind: *EntryKind::ALL.get(usize::from(take::<1>(from)?[0]))?,
            perm: u16::from_le_bytes(take(from)?),
            nlink: int(from)?,
            uid: int(from)?,
            gid: int(from)?,
            rdev: int(from)?,
            ino: long(from)?,
            size: long(from)?,
            blocks: long(from)?,
            atime: time(from)?,
            mtime: time(from)?,
            ctime: time(from)?,
            btime: time(from)?,
        })
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_as_they_were_sent() {
        let time = EntryTime { secs: -1, nanos: 7 };
        for kind in EntryKind::ALL {
            let entry = WalkedEntry {
                path: b"a/\xff".to_vec(),
                kind,
                perm: 0o4755,
                nlink: 2,
                uid: 3,
                gid: 4,
                rdev: 5,
                ino: 1 << 40,
                size: u64::MAX,
                blocks: 6,
                atime: time,
                mtime: EntryTime { secs: 1, nanos: 0 },
                ctime: time,
                btime: time,
            };
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            assert_eq!(WalkedEntry::decode(&mut &bytes[..]), Some(entry));
            assert!((0..bytes.len()).all(|len| WalkedEntry::decode(&mut &bytes[..len]).is_none()));
        }
        let unknown = [&[0, 0, 0, 0, 7][..], &[0; 100]].concat();
        assert_eq!(WalkedEntry::decode(&mut &unknown[..]), None);
    }
}
