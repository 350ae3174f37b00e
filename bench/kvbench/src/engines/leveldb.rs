//! LevelDB 1.23 as Debian ships it, by its C interface.

use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::ptr::null_mut;

use anyhow::Result;

use super::library::{Library, fail_on, functions};
use super::{Engine, Settings};

type P = *mut c_void;
type Bytes = *const c_char;

functions! {
    Functions {
        fn leveldb_open(options: P, name: Bytes, error: *mut *mut c_char) -> P;
        fn leveldb_close(db: P);
        fn leveldb_put(db: P, options: P, key: Bytes, klen: usize, value: Bytes, vlen: usize, error: *mut *mut c_char);
        fn leveldb_delete(db: P, options: P, key: Bytes, klen: usize, error: *mut *mut c_char);
        fn leveldb_get(db: P, options: P, key: Bytes, klen: usize, vlen: *mut usize, error: *mut *mut c_char) -> *mut c_char;
        fn leveldb_create_iterator(db: P, options: P) -> P;
        fn leveldb_iter_destroy(i: P);
        fn leveldb_iter_valid(i: P) -> c_uchar;
        fn leveldb_iter_seek(i: P, key: Bytes, klen: usize);
        fn leveldb_iter_next(i: P);
        fn leveldb_iter_key(i: P, len: *mut usize) -> Bytes;
        fn leveldb_iter_value(i: P, len: *mut usize) -> Bytes;
        fn leveldb_iter_get_error(i: P, error: *mut *mut c_char);
        fn leveldb_options_create() -> P;
        fn leveldb_options_destroy(o: P);
        fn leveldb_options_set_create_if_missing(o: P, yes: c_uchar);
        fn leveldb_options_set_write_buffer_size(o: P, bytes: usize);
        fn leveldb_options_set_cache(o: P, cache: P);
        fn leveldb_options_set_filter_policy(o: P, policy: P);
        fn leveldb_options_set_compression(o: P, which: c_int);
        fn leveldb_cache_create_lru(bytes: usize) -> P;
        fn leveldb_cache_destroy(cache: P);
        fn leveldb_filterpolicy_create_bloom(bits: c_int) -> P;
        fn leveldb_readoptions_create() -> P;
        fn leveldb_writeoptions_create() -> P;
        fn leveldb_compact_range(db: P, start: Bytes, slen: usize, end: Bytes, elen: usize);
        fn leveldb_property_value(db: P, name: Bytes) -> *mut c_char;
        fn leveldb_free(p: P);
    }
}

pub struct Store {
    f: Functions,
    db: P,
    cache: P,
    read: P,
    write: P,
}

// SAFETY: LevelDB's database may be used from many threads at once; the option objects are only
// read.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    pub fn open(settings: &Settings) -> Result<Store> {
        let f = Functions::load(&Library::open(
            &["libleveldb.so.1d", "libleveldb.so.1", "libleveldb.so"],
            "libleveldb-dev",
        )?)?;
        let path = CString::new(settings.dir.to_string_lossy().as_bytes())?;
        let mut error = null_mut();
        // SAFETY: every object comes from the function that makes it, and strings end in a zero.
        // The filter policy lives as long as the process.
        unsafe {
            let options = (f.leveldb_options_create)();
            (f.leveldb_options_set_create_if_missing)(options, 1);
            (f.leveldb_options_set_write_buffer_size)(options, settings.write_buffer as usize);
            let cache = (f.leveldb_cache_create_lru)(settings.cache() as usize);
            (f.leveldb_options_set_cache)(options, cache);
            (f.leveldb_options_set_filter_policy)(
                options,
                (f.leveldb_filterpolicy_create_bloom)(10),
            );
            (f.leveldb_options_set_compression)(options, 0);
            let db = (f.leveldb_open)(options, path.as_ptr(), &mut error);
            (f.leveldb_options_destroy)(options);
            fail_on(error, f.leveldb_free)?;
            let (read, write) =
                ((f.leveldb_readoptions_create)(), (f.leveldb_writeoptions_create)());
            Ok(Store { f, db, cache, read, write })
        }
    }
}

impl Engine for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the database is open; lengths are those of the slices.
        unsafe {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            (self.f.leveldb_put)(self.db, self.write, k, key.len(), v, value.len(), &mut error);
            fail_on(error, self.f.leveldb_free)
        }
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the database is open; the length is that of the slice.
        unsafe {
            (self.f.leveldb_delete)(
                self.db,
                self.write,
                key.as_ptr().cast(),
                key.len(),
                &mut error,
            );
            fail_on(error, self.f.leveldb_free)
        }
    }

    fn delete_range(&self, _: &[u8], _: &[u8]) -> Result<bool> {
        Ok(false)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (mut error, mut len) = (null_mut(), 0);
        // SAFETY: the database is open; the value, if any, is `len` bytes that are ours to free.
        unsafe {
            let value = (self.f.leveldb_get)(
                self.db,
                self.read,
                key.as_ptr().cast(),
                key.len(),
                &mut len,
                &mut error,
            );
            fail_on(error, self.f.leveldb_free)?;
            if value.is_null() {
                return Ok(false);
            }
            seen(std::slice::from_raw_parts(value.cast(), len));
            (self.f.leveldb_free)(value.cast());
        }
        Ok(true)
    }

    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let (mut error, mut n) = (null_mut(), 0);
        // SAFETY: the database is open; key and value of a valid iterator may be read until it
        // moves.
        unsafe {
            let i = (self.f.leveldb_create_iterator)(self.db, self.read);
            (self.f.leveldb_iter_seek)(i, start.as_ptr().cast(), start.len());
            while n < limit && (self.f.leveldb_iter_valid)(i) != 0 {
                let (mut klen, mut vlen) = (0, 0);
                let key = (self.f.leveldb_iter_key)(i, &mut klen);
                let value = (self.f.leveldb_iter_value)(i, &mut vlen);
                seen(
                    std::slice::from_raw_parts(key.cast(), klen),
                    std::slice::from_raw_parts(value.cast(), vlen),
                );
                n += 1;
                (self.f.leveldb_iter_next)(i);
            }
            (self.f.leveldb_iter_get_error)(i, &mut error);
            (self.f.leveldb_iter_destroy)(i);
            fail_on(error, self.f.leveldb_free)?;
        }
        Ok(n)
    }

    /// LevelDB has no command for this, but a compaction of a range without tuples begins by
    /// writing the memtable out.
    fn flush(&self) -> Result<()> {
        let end = [0xffu8; 32];
        // SAFETY: the database is open; lengths are those of the slices.
        unsafe {
            let key = end.as_ptr().cast();
            (self.f.leveldb_compact_range)(self.db, key, end.len(), key, end.len());
        }
        Ok(())
    }

    fn figures(&self) -> serde_json::Value {
        // SAFETY: the database is open; the property is a string that is ours to free.
        unsafe {
            let text = (self.f.leveldb_property_value)(self.db, c"leveldb.stats".as_ptr());
            if text.is_null() {
                return serde_json::Value::Null;
            }
            let copy = std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.f.leveldb_free)(text.cast());
            copy.into()
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: nothing uses the database any more: the box was the last owner.
        unsafe {
            (self.f.leveldb_close)(self.db);
            (self.f.leveldb_cache_destroy)(self.cache);
        }
        Ok(())
    }
}
