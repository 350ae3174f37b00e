//! The functions of the header that concern keys.

use std::ptr::{null, without_provenance};

use bytes::Bytes;
use libc::{c_char, c_int, c_uint, c_void};

use crate::boundary::{self, Handle, call, end, octets, text};
use crate::failure::{ABSENT, ERROR, Failure, OK};
use crate::handles::{Open, lock};
use crate::keys::{self, Walk};

/// `KVFS_REVERSE` of `kvfs.h`.
const REVERSE: c_uint = 1;
/// `KVFS_KEYS` of `kvfs.h`.
const KEYS: c_uint = 2;

/// The cursors that are open.
static CURSORS: Open<Cursor> = Open::new();

/// `kvfs_served_cursor` of the header.
pub struct Cursor {
    /// The number of its connection, which may be closed by now.
    store: usize,
    walk: Walk,
    /// The tuple that the program has pointers to.
    shown: (Bytes, Bytes),
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_use(store: *mut Handle, dictionary: *const c_char) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe { call(store, |store| store.use_dictionary(text(dictionary)?).map(|()| OK)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_put(
    store: *mut Handle,
    key: *const c_void,
    key_size: usize,
    value: *const c_void,
    value_size: usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            keys::put(store, octets(key, key_size)?, octets(value, value_size)?).map(|()| OK)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_get(
    store: *mut Handle,
    key: *const c_void,
    key_size: usize,
    value: *mut *mut c_void,
    value_size: *mut usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| match keys::get(store, octets(key, key_size)?)? {
            Some(found) => boundary::give(&found, value, value_size).map(|()| OK),
            None => Ok(ABSENT),
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_delete(
    store: *mut Handle,
    key: *const c_void,
    key_size: usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            let was_there = keys::delete(store, octets(key, key_size)?)?;
            Ok(if was_there { OK } else { ABSENT })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_delete_range(
    store: *mut Handle,
    from: *const c_void,
    from_size: usize,
    to: *const c_void,
    to_size: usize,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(store, |store| {
            let (from, to) = (octets(from, from_size)?, octets(to, to_size)?);
            keys::delete_range(store, from, to).map(|()| OK)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_range(
    handle: *mut Handle,
    from: *const c_void,
    from_size: usize,
    to: *const c_void,
    to_size: usize,
    flags: c_uint,
    cursor: *mut *mut Cursor,
) -> c_int {
    // SAFETY: the arguments are those that the header asks for.
    unsafe {
        call(handle, |store| {
            if cursor.is_null() {
                return Err(Failure::invalid("there is no room for the cursor"));
            }
            let range = (octets(from, from_size)?, octets(to, to_size)?);
            let walk = Walk::begin(store, range, flags & REVERSE != 0, flags & KEYS == 0)?;
            let shown = (Bytes::new(), Bytes::new());
            cursor.write(CURSORS.add(Cursor { store: handle.addr(), walk, shown }));
            Ok(OK)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_next(
    cursor: *mut Cursor,
    key: *mut *const c_void,
    key_size: *mut usize,
    value: *mut *const c_void,
    value_size: *mut usize,
) -> c_int {
    let Some(open) = CURSORS.get(cursor) else { return ERROR };
    let code = {
        let cursor = &mut *lock(&open);
        call(without_provenance(cursor.store), |_| {
            let Some(tuple) = cursor.walk.step()? else { return Ok(ABSENT) };
            cursor.shown = tuple;
            let (of_key, of_value) = &cursor.shown;
            let has_value = cursor.walk.values;
            // SAFETY: the pointers lead to room for their values or are null.
            unsafe {
                boundary::set(key, of_key.as_ptr().cast());
                boundary::set(key_size, of_key.len());
                boundary::set(value, if has_value { of_value.as_ptr().cast() } else { null() });
                boundary::set(value_size, if has_value { of_value.len() } else { 0 });
            }
            Ok(OK)
        })
    };
    end(open);
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfs_served_cursor_close(cursor: *mut Cursor) {
    end(CURSORS.remove(cursor));
}
