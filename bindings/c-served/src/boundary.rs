//! The border to C: strings, bytes and memory that go over it, and panics, which do not.
//!
//! The functions here are as safe as their callers keep to the header: a pointer to data is null
//! where the header allows it, and otherwise leads to what the header says, for as long as the call
//! takes. Connections and cursors need no trust, see `handles`.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use libc::{c_char, c_int, c_void};

use crate::failure::{ERROR, Failure, Outcome};
use crate::handles::{Open, lock};
use crate::quiet::Quiet;
use crate::store::Store;

/// The connections that are open.
pub static CONNECTIONS: Open<Handle> = Open::new();

/// A connection as the program has it: `kvfs_served`.
pub struct Handle {
    /// `None` after a panic: what it left is not known.
    store: Option<Store>,
    error: CString,
    errno: c_int,
}

impl Handle {
    pub fn new(store: Store) -> Handle {
        Handle { store: Some(store), error: CString::default(), errno: 0 }
    }

    /// Returns the last failure in words.
    pub fn error(&self) -> &CStr {
        &self.error
    }

    /// Returns the errno of the last failure.
    pub fn errno(&self) -> c_int {
        self.errno
    }

    fn fail(&mut self, failure: Failure) -> c_int {
        self.error = c_string(failure.what);
        self.errno = failure.errno;
        failure.code
    }

    fn call(&mut self, run: impl FnOnce(&mut Store) -> Outcome<c_int>) -> c_int {
        let Some(store) = &mut self.store else { return self.fail(Failure::broken()) };
        let mut has_returned = false;
        let outcome = guarded(|| {
            let outcome = run(store);
            has_returned = true;
            outcome
        });
        if !has_returned {
            // It is not even dropped, which might wait for what the panic has left locked.
            std::mem::forget(self.store.take());
        }
        match outcome {
            Ok(code) => code,
            Err(failure) => self.fail(failure),
        }
    }
}

/// Makes a string for C. Zero bytes, which paths in messages cannot have, are left out.
pub fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

/// Runs a part of a call that may panic.
pub fn guarded<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _quiet = Quiet::begin();
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(Failure::broken()))
}

/// Makes a call on a connection. Returns its code, or that of the failure, which is noted if the
/// connection is open.
pub fn call(handle: *const Handle, run: impl FnOnce(&mut Store) -> Outcome<c_int>) -> c_int {
    let Some(open) = CONNECTIONS.get(handle) else { return ERROR };
    let code = lock(&open).call(run);
    end(open);
    code
}

/// Drops what another thread may have closed during a call, so that it is the last to have it.
pub fn end<T>(open: T) {
    // There is no one to tell of a failure.
    let _ = guarded(|| {
        drop(open);
        Ok(())
    });
}

/// Reads a string that must be there and be UTF-8.
///
/// # Safety
///
/// `text` is null or a string that ends with a zero byte.
pub unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    // SAFETY: the caller says so.
    let bytes = unsafe { path(text) }?;
    std::str::from_utf8(bytes).map_err(|_| Failure::invalid("a name is UTF-8"))
}

/// Reads the bytes of a string that must be there.
///
/// # Safety
///
/// `text` is null or a string that ends with a zero byte.
pub unsafe fn path<'a>(text: *const c_char) -> Outcome<&'a [u8]> {
    if text.is_null() {
        return Err(Failure::invalid("a string is missing"));
    }
    // SAFETY: the caller says so.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Reads the path of a file of this machine, or `None` for a null pointer.
///
/// # Safety
///
/// `text` is null or a string that ends with a zero byte.
pub unsafe fn file(text: *const c_char) -> Outcome<Option<PathBuf>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller says so.
    let bytes = unsafe { path(text) }?;
    Ok(Some(PathBuf::from(OsStr::from_bytes(bytes))))
}

/// Reads bytes that the program has; a size of 0 needs no pointer.
///
/// # Safety
///
/// `bytes` leads to `size` bytes, if that is not 0.
pub unsafe fn octets<'a>(bytes: *const c_void, size: usize) -> Outcome<&'a [u8]> {
    if size == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() {
        return Err(Failure::invalid("the bytes are missing"));
    }
    check_size(size)?;
    // SAFETY: the caller says so.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), size) })
}

/// Fails for a size that no memory has, as of a negative number that became one.
pub fn check_size(size: usize) -> Outcome<()> {
    match isize::try_from(size) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::invalid(format!("there are no {size} bytes in memory"))),
    }
}

/// Writes a result to where the program wants it.
///
/// # Safety
///
/// `to` is null, if the program does not want it, or leads to room for it.
pub unsafe fn set<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller says so.
        unsafe { to.write(value) };
    }
}

/// Copies bytes into memory that the program frees by `free`. A zero byte follows them.
///
/// # Safety
///
/// `to` and `size` are null or lead to room for a pointer and a size.
pub unsafe fn give(bytes: &[u8], to: *mut *mut c_void, size: *mut usize) -> Outcome<()> {
    if to.is_null() {
        return Err(Failure::invalid("there is no room for the pointer to the bytes"));
    }
    // SAFETY: the memory has room for the bytes and a zero, and the caller says that the others
    // have it for a pointer and a size.
    unsafe {
        let room = libc::malloc(bytes.len() + 1).cast::<u8>();
        if room.is_null() {
            let what = format!("there is no memory for {} bytes", bytes.len());
            return Err(Failure { code: ERROR, errno: libc::ENOMEM, what });
        }
        room.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        room.add(bytes.len()).write(0);
        to.write(room.cast());
        set(size, bytes.len());
    }
    Ok(())
}
