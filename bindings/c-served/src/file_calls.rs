//! The functions of the header that concern files.

use libc::{c_char, c_int, c_uint, c_void};

use kvfs::{Attr, FileKind, Fs, Timestamp};

use crate::boundary::{self, Handle, c_string, call, check_size, octets, path};
use crate::failure::{Failure, OK, Outcome};
use crate::files;

/// `KVFS_NOFOLLOW` of the header.
const NOFOLLOW: c_uint = 1;

/// `kvfs_attributes` of the header.
#[repr(C)]
pub struct Attributes {
    ino: u64,
    size: u64,
    blocks: u64,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime: i64,
    mtime: i64,
    ctime: i64,
    btime: i64,
}

/// `kvfs_entry` of the header.
#[repr(C)]
pub struct Entry {
    name: *mut c_char,
    attributes: Attributes,
}

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::Dir => libc::S_IFDIR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::File => libc::S_IFREG,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

impl From<Attr> for Attributes {
    fn from(attr: Attr) -> Attributes {
        let nanos = |time: Timestamp| {
            time.secs.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos))
        };
        Attributes {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            mode: type_bits(attr.kind) | u32::from(attr.perm),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: nanos(attr.atime),
            mtime: nanos(attr.mtime),
            ctime: nanos(attr.ctime),
            btime: nanos(attr.btime),
        }
    }
}

/// Makes a call on the files of a connection, at a path that a failure names.
///
/// # Safety
///
/// As of [`call`] and [`path`].
unsafe fn at<T>(
    store: *mut Handle,
    name: *const c_char,
    run: impl FnOnce(&Fs, &[u8]) -> kvfs::Result<T>,
    then: impl FnOnce(T) -> Outcome<()>,
) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        call(store, |store| {
            let name = path(name)?;
            let done = run(store.files()?, name).map_err(|e| Failure::from(e).at(name))?;
            then(done).map(|()| OK)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_read(
    store: *mut Handle,
    name: *const c_char,
    offset: u64,
    bytes: *mut c_void,
    size: usize,
    got: *mut usize,
) -> c_int {
    if bytes.is_null() && size > 0 {
        return call(store, |_| Err(Failure::invalid("there is no room for bytes")));
    }
    if let Err(failure) = check_size(size) {
        return call(store, |_| Err(failure));
    }
    let mut filled = 0;
    let take = |piece: &[u8]| {
        let piece = &piece[..piece.len().min(size - filled)];
        // SAFETY: the header asks for room for `size` bytes, and no more than that are copied.
        unsafe {
            bytes.cast::<u8>().add(filled).copy_from_nonoverlapping(piece.as_ptr(), piece.len());
        }
        filled += piece.len();
    };
    let read = |fs: &Fs, name: &[u8]| files::read(fs, name, offset, size, take);
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        at(store, name, read, |read| {
            boundary::set(got, read);
            Ok(())
        })
    }
}

fn whole(fs: &Fs, name: &[u8]) -> kvfs::Result<Vec<u8>> {
    let size = usize::try_from(files::size(fs, name)?).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    let too_large = "reading a file as a whole that is larger than the memory";
    all.try_reserve_exact(size).map_err(|_| kvfs::Error::Unsupported(too_large))?;
    files::read(fs, name, 0, size, |piece| all.extend_from_slice(piece))?;
    Ok(all)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_read_file(
    store: *mut Handle,
    name: *const c_char,
    bytes: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe { at(store, name, whole, |all| boundary::give(&all, bytes, size)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_write(
    store: *mut Handle,
    name: *const c_char,
    offset: u64,
    bytes: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            let (name, bytes) = (path(name)?, octets(bytes, size)?);
            let written = files::write(store.files()?, name, offset, bytes);
            written.map(|()| OK).map_err(|e| Failure::from(e).at(name))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_write_file(
    store: *mut Handle,
    name: *const c_char,
    bytes: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            let (name, bytes) = (path(name)?, octets(bytes, size)?);
            let written = files::write_whole(store.files()?, name, bytes);
            written.map(|()| OK).map_err(|e| Failure::from(e).at(name))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_truncate(
    store: *mut Handle,
    name: *const c_char,
    size: u64,
) -> c_int {
    let truncate = |fs: &Fs, name: &[u8]| files::truncate(fs, name, size);
    // SAFETY: the arguments are those that the header asks for.
    unsafe { at(store, name, truncate, Ok) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_stat(
    store: *mut Handle,
    name: *const c_char,
    flags: c_uint,
    attributes: *mut Attributes,
) -> c_int {
    let stat = |fs: &Fs, name: &[u8]| files::stat(fs, name, flags & NOFOLLOW == 0);
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        at(store, name, stat, |found| {
            boundary::set(attributes, found.into());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_list(
    store: *mut Handle,
    name: *const c_char,
    entries: *mut *mut Entry,
    count: *mut usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        at(store, name, files::list, |found| {
            if entries.is_null() || count.is_null() {
                return Err(Failure::invalid("there is no room for the entries and their number"));
            }
            let made = found.into_iter().map(|(name, attr)| Entry {
                name: c_string(name).into_raw(),
                attributes: attr.into(),
            });
            let made: Box<[Entry]> = made.collect();
            count.write(made.len());
            entries.write(Box::into_raw(made).cast());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_entries_free(entries: *mut Entry, count: usize) {
    if entries.is_null() {
        return;
    }
    // SAFETY: `kvfs_served_list` made the entries, as many as it has said, and their names.
    unsafe {
        let all = Box::from_raw(std::ptr::slice_from_raw_parts_mut(entries, count));
        all.iter().for_each(|entry| drop(std::ffi::CString::from_raw(entry.name)));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_mkdir(
    store: *mut Handle,
    name: *const c_char,
    mode: c_uint,
) -> c_int {
    let mkdir = |fs: &Fs, name: &[u8]| files::mkdir(fs, name, (mode & 0o7777) as u16);
    // SAFETY: the arguments are those that the header asks for.
    unsafe { at(store, name, mkdir, Ok) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_remove(store: *mut Handle, name: *const c_char) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe { at(store, name, files::remove, Ok) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_rename(
    store: *mut Handle,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            let (from, to) = (path(from)?, path(to)?);
            let renamed = files::rename(store.files()?, from, to);
            renamed.map(|()| OK).map_err(|e| Failure::from(e).at(from))
        })
    }
}
