//! Makes the kernel hand over the data that it holds back before a transaction begins or ends:
//! dirty pages of mappings, and, if the kernel gathers writes, of all files that are still open.
//!
//! The notifier calls syncfs(2) on the mount, which makes the kernel send all its dirty pages (of
//! every view); syncfs does not arrive as a request of its own. Since Linux 6.16 it does not wait
//! for the answers of a FUSE daemon, so all threads pass a barrier afterwards (`quiesce_barrier`):
//! after the barrier, the pages have been taken. Concurrent callers share one round (`coalescer`).
//! If a thread does not reach the barrier, the callers get an error, because a transaction that
//! began without those pages would not see the current state.

use std::io;
use std::time::{Duration, Instant};

use super::KernelNotifier;
use crate::handler::Handler;
use crate::{barrier, fault};

/// The result of a round that makes the kernel hand over pages.
#[derive(Clone)]
pub(super) enum HandedOver {
    All,
    /// The kernel has handed over all pages, except those that cannot be written while a
    /// transaction holds locks.
    ButForLocks,
    Failed(String),
}

/// The time that a caller waits for pages that a thread is writing. A write stops waiting for a
/// lock earlier.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// The time that a caller waits if the pages that a thread is writing may themselves wait for the
/// caller.
const PATIENCE_WITH_LOCKS: Duration = Duration::from_secs(1);
/// The time that a caller waits for all threads of the queues together.
pub(super) const SETTLING: Duration = Duration::from_millis(250);
/// The reason that a caller gets after the daemon has refused a page. A page waits for a lock for
/// ten seconds (`kvfs::locks`), less than `PATIENCE`, and is then answered with EDEADLK. The kernel
/// does not send the page again. It keeps the error for the file system until one syncfs has
/// returned it, even if the mount was opened for that syncfs later, so the first caller after the
/// refusal gets the error.
const REFUSED: &str = "a page of a file that was locked by a transaction has been refused";
/// The pause between two rounds, in which threads can serve the requests that have arrived.
const PAUSE: Duration = Duration::from_millis(5);

impl KernelNotifier {
    /// Makes the kernel send its dirty pages, and all threads pass the barrier.
    pub(super) fn hand_over(&self) -> HandedOver {
        let handed_over = self.ask_for_pages();
        fault::point("handed over", 0);
        handed_over
    }

    fn ask_for_pages(&self) -> HandedOver {
        let failed = |e: io::Error| {
            HandedOver::Failed(format!("the kernel did not hand over what it holds: {e}"))
        };
        let mount_root = self.mount_root.clone();
        let sent = self.syncfs_thread.ask(move || match mount_root.open() {
            Ok(root) => rustix::fs::syncfs(&root).map(|()| true).map_err(io::Error::from),
            // Something else is mounted there, or the mount was unmounted while programs use it.
            Err(_) => Ok(false),
        });
        match sent {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                self.drop_all();
                return HandedOver::All;
            }
            Ok(Err(e)) if e.raw_os_error() == Some(libc::EDEADLK) => {
                return HandedOver::Failed(REFUSED.into());
            }
            Ok(Err(e)) => return failed(e),
            // The mount has ended, and the kernel handed over all pages before that.
            Err(_) => return HandedOver::All,
        }
        let asked = Instant::now();
        loop {
            match self.pass_barrier() {
                Ok(true) => return HandedOver::All,
                Ok(false)
                    if asked.elapsed() > PATIENCE_WITH_LOCKS
                        && self.writes_back()
                        && self.adapter.stalls() =>
                {
                    return HandedOver::ButForLocks;
                }
                Ok(false) if asked.elapsed() > self.patience => {
                    return HandedOver::Failed(
                        "the thread that has them is busy for too long".into(),
                    );
                }
                Ok(false) => std::thread::sleep(PAUSE),
                Err(e) if e.kind() == io::ErrorKind::NotConnected => return HandedOver::All,
                Err(e) => return failed(e),
            }
        }
    }

    /// Returns whether a thread is writing pages that the kernel writes back.
    fn writes_back(&self) -> bool {
        self.pool.writes_back() || self.queues.as_ref().is_some_and(|queues| queues.writes_back())
    }

    /// Waits until every thread has served the request that it took before this call. Returns
    /// `false` if one of them did not finish in time.
    fn pass_barrier(&self) -> io::Result<bool> {
        if let Some(queues) = &self.queues {
            return Ok(queues.settle(SETTLING));
        }
        let round = self.adapter.quiesce_barrier().call();
        let (mount_root, pages) = (self.mount_root.clone(), self.pool.threads() + 1);
        let sent =
            self.syncfs_thread.begin(move || barrier::send_pages(&mount_root.open()?, pages))?;
        let met = round.has_all(|| self.pool.otherwise_busy());
        // The round ends first, because the answer to a page comes from a thread that waits at the
        // barrier.
        drop(round);
        sent.recv().map_err(|_| io::Error::from(io::ErrorKind::NotConnected))??;
        Ok(met)
    }
}
