//! Passes a mount from one serving process to the next. This module stops the threads between two
//! requests, and encodes the state that the next process needs.
//!
//! The kernel keeps the connection while a descriptor of it is open, and keeps every request that
//! was not taken. So the serving process stops reading and answers the requests that it has taken,
//! and the next one continues to read from the same descriptor: a program waits a little longer for
//! its answer and sees nothing else.
//!
//! **Stopping.** The threads wait in read(2), and a signal ends the call (`interrupt`). A thread
//! checks before each read whether it should stop. A signal that arrives between the check and the
//! read has no effect, so signals are sent until all threads have ended.
//!
//! The first thread, which has the connection itself and no clone of it, ends last. Requests of
//! other threads may wait for pages that only another request brings (`recall`), so the first
//! thread answers as long as any other thread exists. During that time, the first thread keeps the
//! requests that it would have to hand to another thread, because serving them could delay the end
//! forever. The next process begins with these requests. They arrived on the connection itself, so
//! the next process can answer them.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::handler::Reply;
use crate::interrupt;
use crate::mounts::MountEntry;
use crate::wire::{Answer, Fields};
use crate::worker_pool::WorkerPool;

/// The version of the encoding.
const VERSION: u32 = 1;
/// The time between two signals to threads that have not stopped.
const PAUSE: Duration = Duration::from_millis(1);

/// Signals the threads of a session to stop, and keeps the requests that they have taken and not
/// served.
#[derive(Default)]
pub(crate) struct Stop {
    wanted: AtomicBool,
    /// The first thread itself serves a request that may need an answer of another thread.
    first_waits: AtomicBool,
    held: Mutex<Vec<Vec<u8>>>,
}

impl Stop {
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Returns whether the first thread may need an answer of another thread. If so, the other
    /// threads must not stop.
    pub fn first_waits(&self) -> bool {
        self.first_waits.load(Ordering::SeqCst)
    }

    /// Records that the first thread begins or ends a request that may need an answer of another
    /// thread. After this call, the first thread checks [`Stop::is_wanted`]: either it sees that
    /// the other threads stop, or they see that the first thread waits.
    pub fn set_first_waits(&self, waits: bool) {
        self.first_waits.store(waits, Ordering::SeqCst);
    }

    /// Keeps a request for the next process that serves the mount.
    pub fn hold(&self, request: &[u8]) {
        self.held.lock().push(request.to_vec());
    }

    pub fn take_held(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.held.lock())
    }
}

/// Stops the threads that serve a mount; the mount itself continues.
#[derive(Clone)]
pub struct Stopper {
    pub(crate) stop: Arc<Stop>,
    pub(crate) pool: Arc<WorkerPool>,
}

impl Stopper {
    /// Returns when every request that was taken is answered or kept, and no more are taken. Then
    /// [`crate::Mounted::wait`] returns, too.
    pub fn stop(&self) {
        interrupt::prepare();
        self.stop.wanted.store(true, Ordering::SeqCst);
        while self.pool.threads() > 0 {
            self.pool.interrupt_idle();
            std::thread::sleep(PAUSE);
        }
    }
}

/// The INIT exchange between the kernel and the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The kernel's INIT, without its head.
    pub offer: Vec<u8>,
    /// The answer, without its head.
    pub answer: Vec<u8>,
}

/// The state of a mount that its next session needs in addition to the file system's own.
#[derive(Debug)]
pub struct Handover {
    pub(crate) connection: Arc<OwnedFd>,
    pub(crate) entry: MountEntry,
    pub(crate) greeting: Greeting,
    /// The requests that were taken and not answered.
    pub(crate) held: Vec<Vec<u8>>,
}

impl AsFd for Handover {
    /// Returns the connection.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Handover {
    /// Returns the mount point.
    pub fn mount_point(&self) -> &Path {
        &self.entry.mount_point
    }

    /// Encodes everything except the connection.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Answer::default();
        out.u32(VERSION);
        let entry = &self.entry;
        let user = entry.user.map(|user| user.to_string()).unwrap_or_default();
        for bytes in [
            entry.device.as_bytes(),
            entry.root.as_os_str().as_bytes(),
            entry.mount_point.as_os_str().as_bytes(),
            entry.fs_type.as_bytes(),
            entry.source.as_bytes(),
            user.as_bytes(),
            &self.greeting.offer,
            &self.greeting.answer,
        ]
        .into_iter()
        .chain(self.held.iter().map(Vec::as_slice))
        {
            out.u32(bytes.len() as u32).0.extend_from_slice(bytes);
        }
        out.0
    }

    /// Decodes the bytes of [`Handover::encode`], from this process or another one of the same
    /// version, and adds the connection.
    pub fn decode(bytes: &[u8], connection: OwnedFd) -> io::Result<Handover> {
        let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let parse = || -> Reply<(Vec<Vec<u8>>, u32)> {
            let mut fields = Fields::of(bytes);
            let (version, mut parts, mut left) = (fields.u32()?, Vec::new(), bytes.len() - 4);
            while version == VERSION && left > 0 {
                let length = fields.u32()? as usize;
                parts.push(fields.bytes(length)?.to_vec());
                left -= 4 + length;
            }
            Ok((parts, version))
        };
        let (parts, version) =
            parse().map_err(|_| malformed("what was handed over is malformed"))?;
        if version != VERSION {
            return Err(malformed("it was handed over by another version"));
        }
        let mut parts = parts.into_iter();
        let mut next = || parts.next().ok_or_else(|| malformed("what was handed over is short"));
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes).map_err(|_| malformed("a text that is none was handed over"))
        };
        let entry = MountEntry {
            device: text(next()?)?,
            root: PathBuf::from(OsString::from_vec(next()?)),
            mount_point: PathBuf::from(OsString::from_vec(next()?)),
            fs_type: text(next()?)?,
            source: OsString::from_vec(next()?),
            user: text(next()?)?.parse().ok(),
        };
        let greeting = Greeting { offer: next()?, answer: next()? };
        let connection = Arc::new(connection);
        Ok(Handover { connection, entry, greeting, held: parts.collect() })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn some() -> Handover {
        Handover {
            connection: Arc::new(File::open("/dev/null").expect("it is there").into()),
            entry: MountEntry {
                device: "0:45".into(),
                root: "/".into(),
                mount_point: "/a b".into(),
                fs_type: "fuse.kvfs".into(),
                source: OsString::from_vec(b"/\xff".to_vec()),
                user: Some(17),
            },
            greeting: Greeting { offer: vec![1; 64], answer: vec![2; 64] },
            held: vec![vec![3; 40], vec![]],
        }
    }

    fn decoded(bytes: &[u8]) -> io::Result<Handover> {
        Handover::decode(bytes, File::open("/dev/null").expect("it is there").into())
    }

    #[test]
    fn what_is_handed_over_comes_as_it_went() {
        let (before, after) = (some(), decoded(&some().encode()).expect("it is whole"));
        assert_eq!(
            (after.entry, after.greeting, after.held),
            (before.entry, before.greeting, before.held)
        );
    }

    #[test]
    fn what_is_cut_short_or_of_another_version_is_refused() {
        let whole = some().encode();
        // The held requests come last and may be cut off; all bytes before them are required.
        let least = Handover { held: vec![], ..some() }.encode().len();
        for length in 0..least {
            assert!(decoded(&whole[..length]).is_err(), "{length} bytes");
        }
        let mut other = whole;
        other[0] += 1;
        assert!(decoded(&other).is_err());
    }
}
