//! System calls as they are: a number or an errno, and the errnos' names.

use std::ffi::CString;

/// The error with which the kernel refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

pub type Answer<T> = Result<T, Errno>;

impl Errno {
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    pub fn name(self) -> String {
        let known = NAMES.iter().find(|n| n.0 == self.0).map(|n| n.1);
        known.map_or_else(|| format!("E{}", self.0), str::to_owned)
    }
}

/// Calls a function of libc and returns its answer.
macro_rules! sys {
    ($call:expr) => {{
        // SAFETY: every pointer in these calls is to memory of the caller that outlives the call
        // and is as long as the call is told; everything else is checked by the kernel, which
        // answers with an error.
        #[allow(clippy::macro_metavars_in_unsafe, reason = "the argument is the call itself")]
        let answer = unsafe { $call } as i64;
        if answer < 0 { Err($crate::kernel::Errno::last()) } else { Ok(answer) }
    }};
}
pub(crate) use sys;

/// A path for the kernel.
pub fn path(text: &str) -> CString {
    CString::new(text.as_bytes().iter().copied().filter(|&b| b != 0).collect::<Vec<u8>>())
        .unwrap_or_default()
}

pub fn stat_at(dir: i32, name: &str, flags: i32) -> Answer<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    sys!(libc::fstatat(dir, path(name).as_ptr(), stat.as_mut_ptr(), flags))?;
    // SAFETY: the kernel has filled it, and it was all zeros before.
    Ok(unsafe { stat.assume_init() })
}

pub fn stat_of(fd: i32) -> Answer<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    sys!(libc::fstat(fd, stat.as_mut_ptr()))?;
    // SAFETY: the kernel has filled it, and it was all zeros before.
    Ok(unsafe { stat.assume_init() })
}

/// A hash of bytes that were read.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0x9E37_79B9_7F4A_7C15u64 ^ bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut mix =
        |word: u64| hash = (hash ^ word).wrapping_mul(0xFF51_AFD7_ED55_8CCD).rotate_left(29);
    words.iter().for_each(|&word| mix(u64::from_le_bytes(word)));
    rest.iter().for_each(|&byte| mix(u64::from(byte) + 1));
    hash ^ (hash >> 32)
}

const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::EXDEV, "EXDEV"),
    (libc::ENODEV, "ENODEV"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EISDIR, "EISDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::EMFILE, "EMFILE"),
    (libc::ETXTBSY, "ETXTBSY"),
    (libc::EFBIG, "EFBIG"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ESPIPE, "ESPIPE"),
    (libc::EROFS, "EROFS"),
    (libc::EMLINK, "EMLINK"),
    (libc::EPIPE, "EPIPE"),
    (libc::ERANGE, "ERANGE"),
    (libc::EDEADLK, "EDEADLK"),
    (libc::ENAMETOOLONG, "ENAMETOOLONG"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENOTEMPTY, "ENOTEMPTY"),
    (libc::ELOOP, "ELOOP"),
    (libc::ENODATA, "ENODATA"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ENOTCONN, "ENOTCONN"),
    (libc::ESTALE, "ESTALE"),
    (libc::EDQUOT, "EDQUOT"),
];
