//! Decodes the arguments of the requests with the most complex structures: changes of attributes,
//! and the flags of renames and allocations.

use crate::handler::*;
use crate::wire::{Fields, valid};

pub(super) fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

pub(super) fn setattr_in(f: &mut Fields<'_>, caller: Caller) -> Reply<SetAttr> {
    let (bits, _, _fh, size, _lock_owner) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?);
    let secs = [f.i64()?, f.i64()?, f.i64()?];
    let nanos = [f.u32()?, f.u32()?, f.u32()?];
    let (mode, _, uid, gid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let has = |bit: u32| bits & bit != 0;
    let time = |i: usize| Timestamp { secs: secs[i], nanos: nanos[i].min(999_999_999) };
    let set = |i: usize, bit, now| {
        has(bit).then(|| if has(now) { TimeSet::Now } else { TimeSet::At(time(i)) })
    };
    Ok(SetAttr {
        mode: has(valid::MODE).then(|| perm(mode)),
        uid: has(valid::UID).then_some(uid),
        gid: has(valid::GID).then_some(gid),
        size: has(valid::SIZE).then_some(size),
        atime: set(0, valid::ATIME, valid::ATIME_NOW),
        mtime: set(1, valid::MTIME, valid::MTIME_NOW),
        ctime: has(valid::CTIME).then(|| time(2)),
        unprivileged_group: has(valid::KILL_SUIDGID).then_some(caller.gid),
    })
}

pub(super) fn rename_flags(flags: u32) -> Reply<RenameFlags> {
    if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

pub(super) fn allocate(mode: i32) -> Reply<Allocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let mode = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => AllocateMode::Allocate,
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => AllocateMode::Punch,
        libc::FALLOC_FL_ZERO_RANGE => AllocateMode::Zero,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    Ok(Allocate { mode, keep_size })
}
