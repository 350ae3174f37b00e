//! Scripts: the texts that are known by name, and the processes that run the scripts (see
//! `kvdb_lua`).

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::failure::Failure;
use crate::limits::Limits;

mod pool;
pub mod well_formed;
mod worker;

use pool::Pool;
pub use pool::{Call, Slot};
pub use worker::{Broken, Worker};

/// The scripts of all connections.
pub struct Scripts {
    known: Mutex<Known>,
    /// Limit on the total bytes of the known texts.
    most: usize,
    pool: Arc<Pool>,
    /// Time limit of a script, in milliseconds.
    time: AtomicU64,
    /// Set if scripts may call `DEBUG`.
    debug: AtomicBool,
}

/// The texts of scripts by name. If they take too much memory, the least recently used one is
/// evicted.
#[derive(Default)]
struct Known {
    texts: HashMap<String, (Bytes, u64)>,
    bytes: usize,
    uses: u64,
}

impl Scripts {
    /// Makes the set of scripts. `command` starts a worker; without it scripts cannot run.
    pub fn new(command: Option<Vec<OsString>>, limits: &Limits) -> Self {
        Scripts {
            known: Mutex::default(),
            most: limits.script_texts,
            pool: Arc::new(Pool::new(command, limits.scripts)),
            time: AtomicU64::new(limits.script_time.as_millis() as u64),
            debug: AtomicBool::new(false),
        }
    }

    /// Returns the time limit of a script, which includes its waits for locks.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.time.load(Relaxed))
    }
    pub fn set_time(&self, milliseconds: u64) {
        self.time.store(milliseconds, Relaxed);
    }

    /// Returns whether scripts may call `DEBUG`.
    pub fn may_debug(&self) -> bool {
        self.debug.load(Relaxed)
    }
    pub fn set_debug(&self, on: bool) {
        self.debug.store(on, Relaxed);
    }

    /// Returns the text of a script by its name; case is ignored.
    pub fn find(&self, name: &[u8]) -> Option<Bytes> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        let mut known = self.known.lock();
        known.uses += 1;
        let now = known.uses;
        let (text, used) = known.texts.get_mut(&name)?;
        *used = now;
        Some(text.clone())
    }
    pub fn keep(&self, name: &str, text: &Bytes) {
        let mut known = self.known.lock();
        known.uses += 1;
        let now = known.uses;
        if let Some((_, used)) = known.texts.get_mut(name) {
            *used = now;
            return;
        }
        known.bytes += text.len();
        known.texts.insert(name.into(), (text.clone(), now));
        while known.bytes > self.most {
            let oldest = known.texts.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
            if let Some((text, _)) = known.texts.remove(&oldest) {
                known.bytes -= text.len();
            }
        }
    }
    pub fn count(&self) -> usize {
        self.known.lock().texts.len()
    }
    pub fn forget(&self) {
        *self.known.lock() = Known::default();
    }

    /// Takes a worker for this session. The call waits while other sessions use all workers, so
    /// it must precede any lock of keys.
    pub fn slot(&self) -> Result<Slot, Failure> {
        self.pool.slot(self.time())
    }
    /// Kills the running scripts, or the running functions. Returns an error if none is running.
    pub fn kill(&self, functions: bool) -> Result<(), Failure> {
        self.pool.kill(functions)
    }
    /// Calls `show` with the function that has been running for the longest time, if one is
    /// running.
    pub fn show_call<T>(&self, show: impl FnOnce(&Call) -> T) -> Option<T> {
        self.pool.show_call(show)
    }
    /// Kills all running scripts and functions, and prevents others from starting.
    pub fn close(&self) {
        self.pool.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_unused_for_longest_gives_way() {
        let limits = Limits { script_texts: 25, ..Limits::default() };
        let scripts = Scripts::new(None, &limits);
        for name in ["a", "b"] {
            scripts.keep(name, &Bytes::from_static(b"ten bytes."));
        }
        assert!(scripts.find(b"A").is_some(), "names are known in any case");
        scripts.keep("c", &Bytes::from_static(b"ten bytes."));
        assert!(scripts.find(b"b").is_none());
        assert!(scripts.find(b"a").is_some() && scripts.find(b"c").is_some());
        scripts.keep("d", &Bytes::from_static(&[b'x'; 26]));
        assert!(scripts.find(b"d").is_none(), "too long to be kept");
        scripts.forget();
        assert!(scripts.find(b"a").is_none());
    }

    #[test]
    fn without_a_command_there_is_no_worker() {
        let scripts = Scripts::new(None, &Limits::default());
        let refused = scripts.slot().err().expect("refused").to_string();
        assert!(refused.starts_with("ERR no scripts are run here"), "{refused}");
    }
}
