//! RocksDB by its C interface: Debian's version, and a newer one, the shared library that
//! `KVBENCH_ROCKSDB_NEW` names (scripts/bench_kv.sh fetches the one that RocksDB's makers publish
//! for Java; the C interface is in it). Each leveled, universal, and with large values in blob
//! files (BlobDB).

use std::ffi::{CStr, CString, c_char, c_uchar, c_void};
use std::ptr::null_mut;

use anyhow::{Context, Result};

use super::library::{Library, fail_on, functions};
use super::{Engine, Settings};

type P = *mut c_void;
type Bytes = *const c_char;

#[allow(non_snake_case)]
mod c {
    use super::*;

    functions! {
        Functions {
            fn rocksdb_open(options: P, name: Bytes, error: *mut *mut c_char) -> P;
            fn rocksdb_close(db: P);
            fn rocksdb_put(db: P, options: P, key: Bytes, klen: usize, value: Bytes, vlen: usize, error: *mut *mut c_char);
            fn rocksdb_delete(db: P, options: P, key: Bytes, klen: usize, error: *mut *mut c_char);
            fn rocksdb_write(db: P, options: P, batch: P, error: *mut *mut c_char);
            fn rocksdb_writebatch_create() -> P;
            fn rocksdb_writebatch_destroy(batch: P);
            fn rocksdb_writebatch_delete_range(batch: P, start: Bytes, slen: usize, end: Bytes, elen: usize);
            fn rocksdb_get_pinned(db: P, options: P, key: Bytes, klen: usize, error: *mut *mut c_char) -> P;
            fn rocksdb_pinnableslice_value(slice: P, len: *mut usize) -> Bytes;
            fn rocksdb_pinnableslice_destroy(slice: P);
            fn rocksdb_create_iterator(db: P, options: P) -> P;
            fn rocksdb_iter_destroy(i: P);
            fn rocksdb_iter_valid(i: P) -> c_uchar;
            fn rocksdb_iter_seek(i: P, key: Bytes, klen: usize);
            fn rocksdb_iter_next(i: P);
            fn rocksdb_iter_key(i: P, len: *mut usize) -> Bytes;
            fn rocksdb_iter_value(i: P, len: *mut usize) -> Bytes;
            fn rocksdb_iter_get_error(i: P, error: *mut *mut c_char);
            fn rocksdb_options_create() -> P;
            fn rocksdb_get_options_from_string(base: P, text: Bytes, into: P, error: *mut *mut c_char);
            fn rocksdb_readoptions_create() -> P;
            fn rocksdb_writeoptions_create() -> P;
            fn rocksdb_writeoptions_disable_WAL(options: P, yes: i32);
            fn rocksdb_flushoptions_create() -> P;
            fn rocksdb_flush(db: P, options: P, error: *mut *mut c_char);
            fn rocksdb_property_int(db: P, name: Bytes, out: *mut u64) -> i32;
            fn rocksdb_property_value(db: P, name: Bytes) -> *mut c_char;
            fn rocksdb_free(p: P);
        }
    }
}
use c::Functions;

/// The environment variable with the path of the newer RocksDB's shared library.
pub const NEW: &str = "KVBENCH_ROCKSDB_NEW";

pub struct Store {
    f: Functions,
    db: P,
    read: P,
    write: P,
    flush: P,
}

// SAFETY: RocksDB's database may be used from many threads at once; the option objects are only
// read.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

fn functions(name: &str) -> Result<Functions> {
    if name.starts_with("rocksdb-new") {
        let path = std::env::var(NEW).with_context(|| format!("{NEW} names no shared library"))?;
        return Functions::load(&Library::open(&[&path], "librocksdb-dev")?);
    }
    Functions::load(&Library::open(&["librocksdb.so", "librocksdb.so.7.8"], "librocksdb-dev")?)
}

/// Everything that is not RocksDB's default.
fn option_string(settings: &Settings, name: &str) -> String {
    let mut text = format!(
        "create_if_missing=true;write_buffer_size={};max_write_buffer_number=2;compression=kNoCompression;\
         bottommost_compression=kNoCompression;block_based_table_factory={{block_cache={};filter_policy=bloomfilter:10:false}};",
        settings.write_buffer,
        settings.cache()
    );
    if name.ends_with("-universal") {
        text += "compaction_style=kCompactionStyleUniversal;";
    }
    if name.ends_with("-blob") {
        text += "enable_blob_files=true;min_blob_size=1024;blob_compression_type=kNoCompression;\
                 enable_blob_garbage_collection=true;";
    }
    text
}

impl Store {
    pub fn open(settings: &Settings, name: &str) -> Result<Store> {
        let f = functions(name)?;
        let path = CString::new(settings.dir.to_string_lossy().as_bytes())?;
        let text = CString::new(option_string(settings, name))?;
        let mut error = null_mut();
        // SAFETY: every object comes from the function that makes it, and strings end in a zero.
        // Options live as long as the process.
        unsafe {
            let (base, options) = ((f.rocksdb_options_create)(), (f.rocksdb_options_create)());
            (f.rocksdb_get_options_from_string)(base, text.as_ptr(), options, &mut error);
            fail_on(error, f.rocksdb_free)?;
            let db = (f.rocksdb_open)(options, path.as_ptr(), &mut error);
            fail_on(error, f.rocksdb_free)?;
            let write = (f.rocksdb_writeoptions_create)();
            (f.rocksdb_writeoptions_disable_WAL)(write, i32::from(!settings.journal));
            let (read, flush) =
                ((f.rocksdb_readoptions_create)(), (f.rocksdb_flushoptions_create)());
            Ok(Store { f, db, read, write, flush })
        }
    }

    fn figure(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: the database is open and the name ends in a zero.
        unsafe { (self.f.rocksdb_property_int)(self.db, name.as_ptr(), &mut value) };
        value
    }
}

impl Engine for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the database is open; lengths are those of the slices.
        unsafe {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            (self.f.rocksdb_put)(self.db, self.write, k, key.len(), v, value.len(), &mut error);
            fail_on(error, self.f.rocksdb_free)
        }
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the database is open; the length is that of the slice.
        unsafe {
            (self.f.rocksdb_delete)(
                self.db,
                self.write,
                key.as_ptr().cast(),
                key.len(),
                &mut error,
            );
            fail_on(error, self.f.rocksdb_free)
        }
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<bool> {
        let mut error = null_mut();
        // SAFETY: the database is open; lengths are those of the slices; the batch is freed after
        // its one use.
        unsafe {
            let batch = (self.f.rocksdb_writebatch_create)();
            let (s, e) = (start.as_ptr().cast(), end.as_ptr().cast());
            (self.f.rocksdb_writebatch_delete_range)(batch, s, start.len(), e, end.len());
            (self.f.rocksdb_write)(self.db, self.write, batch, &mut error);
            (self.f.rocksdb_writebatch_destroy)(batch);
            fail_on(error, self.f.rocksdb_free)?;
        }
        Ok(true)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (mut error, mut len) = (null_mut(), 0);
        // SAFETY: the database is open; a pinned value stays where it is until it is destroyed.
        unsafe {
            let slice = (self.f.rocksdb_get_pinned)(
                self.db,
                self.read,
                key.as_ptr().cast(),
                key.len(),
                &mut error,
            );
            fail_on(error, self.f.rocksdb_free)?;
            if slice.is_null() {
                return Ok(false);
            }
            let value = (self.f.rocksdb_pinnableslice_value)(slice, &mut len);
            seen(std::slice::from_raw_parts(value.cast(), len));
            (self.f.rocksdb_pinnableslice_destroy)(slice);
        }
        Ok(true)
    }

    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let (mut error, mut n) = (null_mut(), 0);
        // SAFETY: the database is open; key and value of a valid iterator may be read until it
        // moves.
        unsafe {
            let i = (self.f.rocksdb_create_iterator)(self.db, self.read);
            (self.f.rocksdb_iter_seek)(i, start.as_ptr().cast(), start.len());
            while n < limit && (self.f.rocksdb_iter_valid)(i) != 0 {
                let (mut klen, mut vlen) = (0, 0);
                let key = (self.f.rocksdb_iter_key)(i, &mut klen);
                let value = (self.f.rocksdb_iter_value)(i, &mut vlen);
                seen(
                    std::slice::from_raw_parts(key.cast(), klen),
                    std::slice::from_raw_parts(value.cast(), vlen),
                );
                n += 1;
                (self.f.rocksdb_iter_next)(i);
            }
            (self.f.rocksdb_iter_get_error)(i, &mut error);
            (self.f.rocksdb_iter_destroy)(i);
            fail_on(error, self.f.rocksdb_free)?;
        }
        Ok(n)
    }

    fn flush(&self) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the database is open.
        unsafe {
            (self.f.rocksdb_flush)(self.db, self.flush, &mut error);
            fail_on(error, self.f.rocksdb_free)
        }
    }

    fn busy(&self) -> bool {
        // "rocksdb.compaction-pending" is not usable: with universal compaction it can stay set
        // although no work will ever be done.
        [
            c"rocksdb.num-running-flushes",
            c"rocksdb.num-running-compactions",
            c"rocksdb.mem-table-flush-pending",
        ]
        .iter()
        .any(|name| self.figure(name) > 0)
    }

    fn figures(&self) -> serde_json::Value {
        // SAFETY: the database is open; the property is a string that is ours to free.
        unsafe {
            let text = (self.f.rocksdb_property_value)(self.db, c"rocksdb.levelstats".as_ptr());
            if text.is_null() {
                return serde_json::Value::Null;
            }
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.f.rocksdb_free)(text.cast());
            copy.into()
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: nothing uses the database any more: the box was the last owner.
        unsafe { (self.f.rocksdb_close)(self.db) };
        Ok(())
    }
}
