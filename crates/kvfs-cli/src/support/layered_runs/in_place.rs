//! Writes a copy of the upper layer into the lower file that it was copied from: the file keeps its
//! inode and its names, and only what differs is written. So a transaction takes a page for a
//! change of some bytes in a large file, although the overlay has copied all of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
    Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::support::archives::sources::data_from;
use crate::support::layered_runs::items;
use crate::support::layers::layer::{self, Attributes, Xattr};
use crate::support::layers::reader::Layers;
use crate::support::terminal::output::Outcome;

/// Bytes that are compared at a time, and the unit in which differences are written.
const PIECE: usize = 128 << 10;
const BLOCK: usize = 4096;

/// Writes the content and the attributes of the copy at `path` of the upper layer into a lower file
/// of its kind, which is open for its path alone. Returns the number of extended attributes that
/// the lower file does not take.
pub fn write(layers: &Layers, path: &[u8], copy: &Attributes, into: &OwnedFd) -> Outcome<u64> {
    let cannot = |e: io::Error| layers.lower.failure("cannot write what has changed in", path, &e);
    write_differences(layers, path, copy, into).map_err(cannot)
}

fn write_differences(
    layers: &Layers,
    path: &[u8],
    copy: &Attributes,
    into: &OwnedFd,
) -> io::Result<u64> {
    let place = format!("/proc/self/fd/{}", into.as_raw_fd());
    if copy.kind == FileType::RegularFile {
        let lower = open(&place)?;
        content(&items::open(layers, path)?, &lower, copy.size)?;
        close(lower)?;
    }
    // A change of owner clears bits of the mode and capabilities, and so comes first. The time
    // comes last, since all others change it.
    let stat = rustix::fs::fstat(into)?;
    if (stat.st_uid, stat.st_gid) != (copy.uid, copy.gid) {
        let (uid, gid) = (Uid::from_raw(copy.uid), Gid::from_raw(copy.gid));
        rustix::fs::chownat(into, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    let skipped = xattrs(layers, path, into, true)?;
    let stat = rustix::fs::fstat(into)?;
    if copy.kind != FileType::Symlink && stat.st_mode & 0o7777 != copy.mode {
        rustix::fs::chmod(&*place, Mode::from_raw_mode(copy.mode))?;
    }
    if time(&rustix::fs::fstat(into)?) != copy.mtime {
        let (tv_sec, nanos) = copy.mtime;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec, tv_nsec: nanos.into() },
        };
        rustix::fs::utimensat(into, "", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(skipped)
}

fn time(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, stat.st_mtime_nsec as u32)
}

/// Opens a lower file for reading and writing.
fn open(place: &str) -> io::Result<File> {
    let open = || rustix::fs::open(place, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let opened = match open() {
        // The program could write to it when it copied it up, or has made that possible. Its mode
        // is set afterwards.
        Err(Errno::ACCESS) => {
            rustix::fs::chmod(place, Mode::RUSR | Mode::WUSR)?;
            open()?
        }
        opened => opened?,
    };
    Ok(opened.into())
}

/// Closes a lower file. A mount with `cache=back` writes only now, and tells here of what failed.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is owned here, and not used afterwards.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes extended attributes of a lower file those of the upper one: removes others, and sets those
/// that differ if `set` is true. Returns the number of those that the lower file does not take.
pub fn xattrs(layers: &Layers, path: &[u8], into: &OwnedFd, set: bool) -> io::Result<u64> {
    let wanted = items::xattrs(layers, path)?;
    // The name in the store, and the attribute as the layer shows it. The notes of another overlay,
    // whose layer is in the store, are not shown, and they stay.
    let there: Vec<(Vec<u8>, Xattr)> = layer::xattrs_of(into)?
        .into_iter()
        .filter_map(|(name, value)| Some((layers.marks.seen(&name)?, name, value)))
        .filter(|(seen, ..)| items::is_kept(seen))
        .map(|(seen, name, value)| (name, (seen, value)))
        .collect();
    let place = format!("/proc/self/fd/{}", into.as_raw_fd());
    for (name, (seen, _)) in &there {
        if wanted.iter().any(|(wanted, _)| wanted == seen) {
            continue;
        }
        match rustix::fs::removexattr(&*place, name.as_slice()) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut skipped = 0;
    for one in wanted.iter().filter(|one| set && !there.iter().any(|(_, shown)| shown == *one)) {
        let known = there.iter().find(|(_, (seen, _))| *seen == one.0);
        let name = known.map_or(&one.0, |(name, _)| name);
        match rustix::fs::setxattr(&*place, name.as_slice(), &one.1, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOTSUP | Errno::PERM | Errno::INVAL | Errno::TOOBIG) => skipped += 1,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(skipped)
}

/// Makes the content of `lower` that of `upper`, which has `size` bytes.
fn content(upper: &File, lower: &File, size: u64) -> io::Result<()> {
    if lower.metadata()?.len() > size {
        lower.set_len(size)?;
    }
    let mut at = 0;
    while at < size {
        let (from, to) = data_from(upper, at, size);
        clear(lower, at, from)?;
        copy(upper, lower, from, to)?;
        at = to;
    }
    if lower.metadata()?.len() != size {
        lower.set_len(size)?;
    }
    Ok(())
}

/// Removes the data of a range.
fn clear(lower: &File, from: u64, to: u64) -> io::Result<()> {
    let to = to.min(lower.metadata()?.len());
    let mut at = from;
    while at < to {
        let (data, end) = data_from(lower, at, to);
        if data < end {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(lower, how, data, end - data)?;
        }
        at = end;
    }
    Ok(())
}

/// Copies the blocks of a range that differ.
fn copy(upper: &File, lower: &File, from: u64, to: u64) -> io::Result<()> {
    let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = from;
    while at < to {
        let most = PIECE.min(usize::try_from(to - at).unwrap_or(PIECE));
        let wanted = read(upper, &mut ours[..most], at)?;
        if wanted == 0 {
            break;
        }
        let there = read(lower, &mut theirs[..wanted], at)?;
        let mut done = 0;
        while done < wanted {
            let differs = |block: usize| {
                let end = (block + BLOCK).min(wanted);
                end > there || ours[block..end] != theirs[block..end]
            };
            // The next blocks that differ, or that do not, are taken together.
            let first = differs(done);
            let mut end = (done + BLOCK).min(wanted);
            while end < wanted && differs(end) == first {
                end = (end + BLOCK).min(wanted);
            }
            if first {
                lower.write_all_at(&ours[done..end], at + done as u64)?;
            }
            done = end;
        }
        at += wanted as u64;
    }
    Ok(())
}

/// Reads as many bytes as there are, up to the length of the buffer.
fn read(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::layers::layer::{Layer, Marks};

    fn files(upper: &[u8], lower: &[u8]) -> (File, File) {
        let make = |bytes: &[u8]| {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(bytes, 0).expect("written");
            file
        };
        (make(upper), make(lower))
    }

    #[test]
    fn any_content_becomes_that_of_the_copy() {
        let long: Vec<u8> = (0..300_000_u32).map(|n| (n / 7) as u8).collect();
        let mut changed = long.clone();
        changed[140_000] ^= 1;
        for (upper, lower) in [
            (&long[..], &b""[..]),
            (&b""[..], &long[..]),
            (&changed[..], &long[..]),
            (&long[..BLOCK + 1], &long[..]),
            (&long[..], &long[..BLOCK + 1]),
            (&long[..], &changed[..200_000]),
        ] {
            let (copy, file) = files(upper, lower);
            content(&copy, &file, upper.len() as u64).expect("written");
            let mut got = vec![0; upper.len() + 1];
            let count = read(&file, &mut got, 0).expect("read");
            assert!(got[..count] == *upper, "{} bytes over {}", upper.len(), lower.len());
        }
    }

    #[test]
    fn attributes_become_those_of_the_copy_but_notes_of_an_overlay_in_the_store_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let [lower, upper] = ["lower", "upper"].map(|name| {
            let path = directory.path().join(name);
            std::fs::create_dir(&path).expect("a layer");
            std::fs::write(path.join("file"), "1").expect("a file");
            Layer::open(&path).expect("it opens")
        });
        let set = |layer: &Layer, name: &str, value: &str| {
            layer.set_xattr(b"file", name.as_bytes(), Some(value.as_bytes())).expect("set");
        };
        let of_store = [("user.old", "1"), ("user.both", "1"), ("user.overlay.opaque", "y")];
        of_store.iter().for_each(|(name, value)| set(&lower, name, value));
        let of_copy = [("user.both", "2"), ("user.new", "2"), ("user.overlay.origin", "")];
        of_copy.iter().for_each(|(name, value)| set(&upper, name, value));
        let layers = Layers { lower, upper, marks: Marks::User };
        let file = layers.lower.file(b"file").expect("it opens");
        xattrs(&layers, b"file", &file.into(), true).expect("set");
        let mut has = layers.lower.xattrs(b"file").expect("attributes");
        has.retain(|(name, _)| name.starts_with(b"user."));
        let has: Vec<_> = has.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let wanted = [("user.both", "2"), ("user.new", "2"), ("user.overlay.opaque", "y")];
        assert_eq!(has, wanted.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    }

    #[test]
    fn a_hole_of_the_copy_is_one_of_the_file() {
        let (copy, file) = files(b"", &[7; 64 << 10]);
        copy.set_len(1 << 20).expect("a length");
        copy.write_all_at(b"end", (1 << 20) - 3).expect("written");
        content(&copy, &file, 1 << 20).expect("written");
        let mut got = vec![1; 1 << 20];
        assert_eq!(read(&file, &mut got, 0).expect("read"), 1 << 20);
        let (hole, end) = got.split_at((1 << 20) - 3);
        assert!(hole.iter().all(|byte| *byte == 0) && end == b"end");
        let (data, _) = data_from(&file, 0, 1 << 20);
        // A file system that knows of no holes has data everywhere.
        assert!(data == 0 || data >= 512 << 10, "{data}");
    }
}
