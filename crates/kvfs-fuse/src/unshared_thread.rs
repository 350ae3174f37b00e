//! A thread of the daemon that uses the mount like any program, and does not outlive a daemon that
//! is killed.
//!
//! A call on the mount ends when the daemon has answered, and nothing interrupts the call. When the
//! daemon is killed, the kernel closes the connection together with its last descriptor, and then
//! every waiting call fails. But a process keeps its descriptors until its last thread has ended: a
//! thread that waits in a call on the daemon's own mount would wait forever, and the store would
//! stay locked. So such a thread has a separate descriptor table (`CLOSE_RANGE_UNSHARE`) that
//! contains none of the daemon's descriptors.
//!
//! The thread takes no signals either ([`take_no_signals`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct UnsharedThread {
    /// The queue of work for the thread, or `None` once the thread has stopped.
    work: Mutex<Option<Sender<Work>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl UnsharedThread {
    /// Starts the thread. Returns once the thread has closed its copies of the shared descriptors,
    /// because closing files that this process has open in the mount needs answers.
    pub fn start(name: &str) -> io::Result<UnsharedThread> {
        let (work, given) = channel::<Work>();
        let (say, said) = channel();
        let run = move || {
            let highest = highest_descriptor();
            let left = leave_descriptors().and_then(|()| occupy(highest));
            if let Err(e) = &left {
                tracing::info!(
                    "a daemon that is killed may hang until its mount is ended with `umount -f`: {e}"
                );
            }
            let _ = say.send(());
            given.into_iter().for_each(|work| work());
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        said.recv().map_err(|_| io::Error::other("its thread has ended"))?;
        Ok(UnsharedThread { work: Mutex::new(Some(work)), thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` on this thread, where descriptors that other threads opened are not valid, and
    /// nothing can be printed or logged. Descriptors that `work` opens are not valid in other
    /// threads. So `work` must not use the store, and must not hold a handle of the store, because
    /// dropping the last handle would close the store. Fails with `NotConnected` if the thread has
    /// stopped.
    pub fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        self.begin(work)?.recv().map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// Runs `work` like `ask`, but does not wait: the returned receiver gets the result.
    pub fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Receiver<T>> {
        let (say, said) = channel();
        let work: Work = Box::new(move || drop(say.send(work())));
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        self.work.lock().as_ref().ok_or_else(gone)?.send(work).map_err(|_| gone())?;
        Ok(said)
    }

    /// Waits until all work that was handed over is done.
    pub fn stop(&self) {
        drop(self.work.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// Leaves the signals of the process to its other threads, except signals that a fault of this
/// thread raises. A signal handler notifies the threads that wait for signals by writing to a
/// descriptor. In the separate table of this thread, that descriptor is invalid or refers to
/// another file, and the signal would be lost.
fn take_no_signals() {
    // SAFETY: the set is initialized by the functions for that purpose, and lives until they
    // return.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
            libc::sigdelset(&mut set, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Makes this thread use a separate descriptor table and take no signals. A program that the thread
/// starts takes no signals, either. Standard input, output and error are not open in the table: the
/// program that started the daemon may wait until every copy of them is closed.
pub(crate) fn leave_descriptors() -> io::Result<()> {
    // Signals are blocked first, while a handler still finds its descriptor.
    take_no_signals();
    // SAFETY: the table is no longer shared when its descriptors are closed (CLOSE_RANGE_UNSHARE),
    // so no other thread loses a descriptor, and this thread has just started and owns none.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    env::thread::give_up_descriptors();
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}

/// The maximum number of descriptors that [`occupy`] takes.
const MOST_OCCUPIED: usize = 1 << 12;

/// Returns the highest descriptor that this thread can use.
pub(crate) fn highest_descriptor() -> RawFd {
    let open = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    numbers.max().unwrap_or(2)
}

/// Takes all free descriptors up to `highest`, for a thread that has left the descriptor table of
/// the process. A library in the process, such as a profiler, may write to its descriptor from any
/// thread, and the number of that descriptor must not refer to a file that this thread opens. A
/// write to one of the returned descriptors fails, as a write to a closed descriptor does.
pub(crate) fn occupy(highest: RawFd) -> io::Result<Vec<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut taken = Vec::new();
    while taken.len() < MOST_OCCUPIED {
        let file = rustix::fs::open("/dev/null", flags, Mode::empty())?;
        if file.as_raw_fd() > highest {
            break;
        }
        taken.push(file);
    }
    Ok(taken)
}

/// The end of a pipe that shows whether this process lives. See [`live`].
#[derive(Clone)]
pub struct Life(Sender<(Vec<u8>, Sender<io::Result<()>>)>);

impl Life {
    /// Writes a few bytes to the pipe.
    pub fn say(&self, what: &[u8]) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let (say, said) = channel();
        self.0.send((what.to_vec(), say)).map_err(|_| gone())?;
        said.recv().map_err(|_| gone())?
    }
}

/// Starts a thread that alone holds this end of a pipe until the process ends. When the process is
/// killed, the thread ends at once, even if other threads are blocked.
pub fn live(pipe: OwnedFd) -> io::Result<Life> {
    let (say, said) = channel();
    let (give, given) = channel::<(Vec<u8>, Sender<io::Result<()>>)>();
    let raw = pipe.as_raw_fd();
    let number = libc::c_uint::try_from(raw).map_err(io::Error::other)?;
    let work = move || {
        take_no_signals();
        // SAFETY: the first call unshares the table, as in `leave_descriptors`, so only this thread
        // uses the table that the second call changes.
        let result = unsafe {
            libc::syscall(libc::SYS_close_range, 0, number - 1, libc::CLOSE_RANGE_UNSHARE)
                | libc::syscall(libc::SYS_close_range, number + 1, libc::c_uint::MAX, 0)
        };
        let error = io::Error::last_os_error();
        let held = if result == 0 { Ok(()) } else { Err(error) };
        let fails = held.is_err();
        let _ = say.send(held);
        if fails {
            return;
        }
        // SAFETY: the descriptor is open until this thread ends, in a table that no other thread
        // uses.
        let pipe = unsafe { BorrowedFd::borrow_raw(raw) };
        for (what, done) in given {
            let written = rustix::io::write(pipe, &what);
            let _ = done.send(written.map(drop).map_err(io::Error::from));
        }
        loop {
            std::thread::park();
        }
    };
    std::thread::Builder::new().name("fuse-life".into()).spawn(work)?;
    let held = said.recv().map_err(|_| io::Error::other("its thread has ended"))?;
    drop(pipe);
    held.map(|()| Life(give))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zones::Device;

    #[test]
    fn a_descriptor_that_the_process_uses_has_no_other_meaning_where_they_are_occupied() {
        let files: Vec<File> = (0..9).map(|_| File::open("/dev/null").unwrap()).collect();
        let opened = std::thread::spawn(|| {
            let highest = highest_descriptor();
            leave_descriptors().unwrap();
            let taken = occupy(highest).unwrap();
            let next = File::open("/proc/self/status").unwrap().as_raw_fd();
            (taken.len(), next)
        });
        let (taken, next) = opened.join().unwrap();
        let used = files.iter().map(AsRawFd::as_raw_fd).max().unwrap();
        assert!(taken >= files.len() && next > used, "{taken} are taken, then comes {next}");
    }

    #[test]
    fn it_has_no_descriptor_of_others_and_takes_none_from_them() {
        let file = File::open("/proc/self/status").unwrap();
        let fd = file.as_raw_fd();
        let thread = UnsharedThread::start("thread").unwrap();
        let here = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        let there = thread
            .ask(move || std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok())
            .unwrap();
        assert_ne!(there, Some(here));
        let nothing = std::path::PathBuf::from("/dev/null");
        for fd in 0..3 {
            let standard = thread
                .ask(move || std::fs::read_link(format!("/proc/thread-self/fd/{fd}")))
                .unwrap();
            assert_eq!(standard.unwrap(), nothing);
        }
        assert!(file.metadata().is_ok());
        thread.stop();
        assert_eq!(thread.ask(|| ()).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }

    /// In the thread, the number of the store's descriptor may refer to another file.
    #[test]
    fn a_store_refuses_to_be_read_or_written_in_it() {
        let place = tempfile::tempdir().unwrap();
        let device = zones::FileDevice::create(place.path().join("store")).unwrap();
        device.grow(4096).unwrap();
        let device = std::sync::Arc::new(device);
        let thread = UnsharedThread::start("thread").unwrap();
        let theirs = device.clone();
        let refused = thread.ask(move || {
            let log = zones::Purpose::Journal;
            [
                theirs.read_at(log, 0, &mut [0; 512]).is_err(),
                theirs.write_at(log, 0, &[1; 512]).is_err(),
                theirs.sync().is_err(),
                theirs.grow(1 << 20).is_err(),
                theirs.discard(0, 4096).is_err(),
                theirs.len().is_err(),
            ]
        });
        assert_eq!(refused.unwrap(), [true; 6]);
        assert_eq!(device.len().unwrap(), 4096);
        thread.stop();
    }
}
