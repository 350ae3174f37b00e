//! `kvfs export` of a mounted store: the daemon makes the tar stream from one state, and this
//! process writes it out.

use kvdb_server::Reply;

use super::*;
use crate::support::mounts::sockets;

/// Returns the directory to export if the store is mounted: a directory on a mount or in one of its
/// views, or the mount point of a store's file.
pub(super) fn source(store: &Path) -> Outcome<Option<PathBuf>> {
    if store.is_dir() {
        return Ok(Some(store.to_path_buf()));
    }
    match sockets::socket_of(store)? {
        Some(_) => Ok(Some(Mounted::find(store)?.mount_point)),
        None => Ok(None),
    }
}

/// Writes the tar stream that a daemon has begun. Returns the number of bytes.
pub(super) fn write(
    mut mounted: Mounted,
    out: &mut dyn Write,
    cannot: impl Fn(io::Error) -> Failure,
    bar: &ProgressBar,
) -> Outcome<u64> {
    let mut written = 0;
    loop {
        let Reply::Bulk(piece) = mounted.receive()? else {
            return Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply"));
        };
        if piece.is_empty() {
            out.flush().map_err(cannot)?;
            return Ok(written);
        }
        // Request the next piece before this one is written, so that both overlap.
        mounted.send(&[b"EXPORT", b"NEXT"])?;
        out.write_all(&piece).map_err(&cannot)?;
        written += piece.len() as u64;
        bar.inc(piece.len() as u64);
    }
}
