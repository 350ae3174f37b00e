//! The negotiation with the kernel when a mount begins: it decides which of the features that INIT
//! offers are accepted, and with which limits.

use super::ReplyBuffer;
use crate::handler::{Errno, Policy, Reply};
use crate::wire::{self, Fields, init};

/// Answers INIT: reads the kernel's offer and returns it, and writes the part of it that is
/// accepted. `rings` says whether io_uring is offered. The same offer under the same policy must
/// get the same answer in each version of this program that can take a mount over from another one.
pub(crate) fn init(
    policy: &Policy,
    mut f: Fields<'_>,
    reply: &mut ReplyBuffer,
    rings: bool,
) -> Reply<u64> {
    let (major, _minor, max_readahead, flags) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let offered = u64::from(flags)
        | if u64::from(flags) & init::INIT_EXT != 0 { u64::from(f.u32()?) << 32 } else { 0 };
    if major != wire::MAJOR {
        return Err(Errno(libc::EPROTO));
    }
    let wanted = [
        (init::ASYNC_READ, "asynchronous reads"),
        (init::BIG_WRITES, "big writes"),
        (init::MAX_PAGES, "requests of more than 128 KiB"),
        (init::PARALLEL_DIROPS, "parallel directory operations"),
        (init::EXPORT_SUPPORT, "files that are opened by handle after it has forgotten them"),
        (init::NO_OPEN_SUPPORT, "opening without a request"),
        (init::NO_OPENDIR_SUPPORT, "opening directories without a request"),
        (init::HANDLE_KILLPRIV_V2, "set-user-ID bits dropped by the file system"),
        (init::DO_READDIRPLUS, "directories with attributes"),
        (init::READDIRPLUS_AUTO, "directories with attributes when it pays"),
        (init::CACHE_SYMLINKS, "cached symbolic links"),
        // The kernel caches attributes for a long time and sets times itself, so it must not drop
        // pages only because a time looks new.
        (init::EXPLICIT_INVAL_DATA, "pages dropped only when told to"),
    ];
    for (_, what) in wanted.iter().filter(|(bit, _)| offered & bit == 0) {
        tracing::warn!("this kernel's FUSE has no {what}: works, but slower");
    }
    // Asynchronous direct I/O is not requested: when an asynchronous direct write ends, the kernel
    // does not drop the pages that were read since the write began, and so would show old bytes.
    let take = wanted.iter().fold(init::INIT_EXT, |all, (bit, _)| all | bit);
    let take = (if policy.write_back { take | init::WRITEBACK_CACHE } else { take }) & offered;
    let max_write = policy.max_write.max(4096);
    let max_pages = max_write.div_ceil(4096).min(u32::from(u16::MAX)) as u16;
    let a = &mut reply.answer;
    let rings = if rings { init::OVER_IO_URING & offered } else { 0 };
    let take = take | rings;
    a.u32(wire::MAJOR)
        .u32(wire::MINOR)
        .u32(max_readahead.min(policy.max_readahead))
        .u32(take as u32);
    // Over io_uring, the number of other requests must not hold a request back; otherwise a later
    // request could overtake it (`queues`).
    let background = if rings != 0 { u16::MAX } else { policy.max_background };
    a.u16(background.max(1)).u16((policy.max_background / 4 * 3).max(1));
    // Times have a granularity of one nanosecond.
    a.u32(max_write).u32(1).u16(max_pages).u16(0).u32((take >> 32) as u32);
    a.0.resize(64, 0);
    Ok(offered)
}
