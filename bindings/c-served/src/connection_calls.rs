//! The functions of the header that concern the connection, transactions and snapshots.

use std::cell::RefCell;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null_mut;
use std::time::Duration;

use libc::{c_char, c_int, c_uint};
use places::Credentials;

use crate::boundary::{self, CONNECTIONS, Handle, call, end, guarded, text};
use crate::failure::{Failure, OK, Outcome};
use crate::handles::lock;
use crate::store::{self, Store};

thread_local! {
    /// The words that the program has a pointer to: those of this thread's last question.
    static SHOWN: RefCell<CString> = RefCell::default();
}

/// `KVFS_SYNC` of `kvfs.h`.
const SYNC: c_uint = 4;

/// `kvfs_served_options` of the header.
#[repr(C)]
pub struct Options {
    token: *const c_char,
    token_file: *const c_char,
    ca: *const c_char,
    cert: *const c_char,
    cert_key: *const c_char,
    label: *const c_char,
    timeout: f64,
    memory: u64,
}

/// Returns the options, or the defaults for a null pointer.
///
/// # Safety
///
/// `given` is null or leads to options whose strings are null or end with a zero byte.
unsafe fn options(given: *const Options) -> Outcome<store::Options> {
    // SAFETY: the caller says so.
    unsafe {
        let Some(given) = given.as_ref() else { return Ok(store::Options::default()) };
        let word = |word: *const c_char| match word.is_null() {
            true => Ok(None),
            false => text(word).map(|word| Some(word.to_owned())),
        };
        let timeout = Duration::try_from_secs_f64(given.timeout);
        Ok(store::Options {
            credentials: Credentials {
                token: word(given.token)?,
                token_file: boundary::file(given.token_file)?,
                ca: boundary::file(given.ca)?,
                cert: boundary::file(given.cert)?,
                cert_key: boundary::file(given.cert_key)?,
            },
            label: word(given.label)?,
            timeout: timeout
                .map_err(|_| Failure::invalid("timeout is a number of seconds, from 0 on"))?,
            memory: given.memory,
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_open(
    address: *const c_char,
    given: *const Options,
    why: *mut c_char,
    why_size: usize,
) -> *mut Handle {
    let opened = guarded(|| {
        // SAFETY: the strings and the options are those that the header asks for.
        let (address, options) = unsafe { (boundary::file(address)?, options(given)?) };
        let address = address.ok_or_else(|| Failure::invalid("there is no address"))?;
        Store::open(Path::new(&address), options)
    });
    match opened {
        Ok(store) => CONNECTIONS.add(Handle::new(store)),
        Err(failure) => {
            if !why.is_null() && why_size > 0 {
                let what = boundary::c_string(failure.what);
                let bytes = what.as_bytes();
                let length = bytes.len().min(why_size - 1);
                // SAFETY: the header asks for room for `why_size` bytes.
                unsafe {
                    why.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), length);
                    why.add(length).write(0);
                }
            }
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_close(store: *mut Handle) {
    end(CONNECTIONS.remove(store));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_error(store: *const Handle) -> *const c_char {
    let words = match CONNECTIONS.get(store) {
        Some(open) => lock(&open).error().to_owned(),
        None => c"there is no such connection: it is closed, or was never opened".to_owned(),
    };
    // A thread that ends has no more use for the words.
    let shown = SHOWN.try_with(|shown| {
        let mut shown = shown.borrow_mut();
        *shown = words;
        shown.as_ptr()
    });
    shown.unwrap_or(c"the thread has ended".as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_errno(store: *const Handle) -> c_int {
    CONNECTIONS.get(store).map_or(libc::EINVAL, |open| lock(&open).errno())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_begin(
    store: *mut Handle,
    clone: *const c_char,
    txn: *mut u64,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            let clone = if clone.is_null() { "" } else { text(clone)? };
            boundary::set(txn, store.begin(clone)?);
            Ok(OK)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_commit(store: *mut Handle, txn: u64, flags: c_uint) -> c_int {
    call(store, |store| store.commit(txn, flags & SYNC != 0).map(|()| OK))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_abort(store: *mut Handle, txn: u64) -> c_int {
    call(store, |store| store.abort(txn).map(|()| OK))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_snapshot_use(
    store: *mut Handle,
    name: *const c_char,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            match name.is_null() {
                true => store.leave_snapshot()?,
                false => store.use_snapshot(text(name)?)?,
            }
            Ok(OK)
        })
    }
}
