//! Periodic scrubs of a mounted store, at an interval that continues across unmounts.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvdb::{Kvdb, ScrubOptions};
use kvfs::Fs;

/// The longest sleep before the time is checked again, since the clock of a sleeping thread stands
/// still while the machine is suspended.
const LOOK: Duration = Duration::from_secs(600);

/// The interval and rate of `-o scrub=DAYS,scrub_rate=MIB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub every: Duration,
    pub bytes_per_second: u64,
}

impl Default for Interval {
    fn default() -> Self {
        Interval { every: Duration::from_secs(30 * 86400), bytes_per_second: 16 << 20 }
    }
}

/// The thread that scrubs. Dropping this ends it, together with a scrub that it has started.
pub struct Scrubbing {
    /// Nothing is ever sent: the thread ends when this is dropped.
    end: Option<Sender<()>>,
    db: Kvdb,
    thread: Option<JoinHandle<()>>,
}

impl Scrubbing {
    pub fn start(
        db: &Kvdb,
        fs: &Fs,
        interval: Interval,
        writable: bool,
    ) -> std::io::Result<Scrubbing> {
        let (end, ended) = mpsc::channel::<()>();
        let (own, fs) = (db.clone(), fs.clone());
        let run = move || {
            // If no scrub can be recorded, the interval starts at the mount.
            let mut last = match fs.last_scrub() {
                Ok(Some((time, _))) => Duration::from_secs(time),
                _ => now(),
            };
            if writable && !matches!(fs.last_scrub(), Ok(Some(_))) {
                // Record a start, so that a store that is mounted for an hour a day is scrubbed,
                // too. (The zero faults are of no scrub yet.)
                note(&fs, 0);
            }
            loop {
                let left = (last + interval.every).saturating_sub(now());
                if left.is_zero() {
                    scrub(&own, &ended, interval.bytes_per_second);
                    last = now();
                    let progress = own.scrub_progress();
                    if progress.complete {
                        tracing::info!(
                            "scrub done: {} bytes read, {} faults",
                            progress.bytes,
                            progress.faults
                        );
                        if writable {
                            note(&fs, progress.faults);
                        }
                    }
                }
                match ended.recv_timeout(left.clamp(Duration::from_millis(10), LOOK)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("kvfs-scrub".into()).spawn(run)?;
        Ok(Scrubbing { end: Some(end), db: db.clone(), thread: Some(thread) })
    }
}

impl Drop for Scrubbing {
    fn drop(&mut self) {
        drop(self.end.take());
        self.db.stop_scrub();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Scrubs the store; returns when the scrub has ended.
fn scrub(db: &Kvdb, ended: &Receiver<()>, bytes_per_second: u64) {
    if let Err(e) = db.scrub(ScrubOptions { bytes_per_second: Some(bytes_per_second) }) {
        tracing::warn!("the scrub could not begin: {e}");
    }
    // The mount may have ended before the scrub began, when there was nothing to stop yet.
    if ended.try_recv() == Err(TryRecvError::Disconnected) {
        db.stop_scrub();
    }
    db.wait_for_scrub();
}

fn note(fs: &Fs, faults: u64) {
    if let Err(e) = fs.note_scrub(faults) {
        tracing::warn!("the scrub could not be noted: {e}");
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::{Machine, Random};
    use kvdb::CreateOptions;
    use zones::MemoryDevice;

    use super::*;

    #[test]
    fn a_mount_that_ends_before_its_scrub_begins_does_not_wait_for_it() {
        let (device, machine) = (Arc::new(MemoryDevice::new()), Arc::new(Machine::default()));
        let db = Kvdb::create(device, machine, CreateOptions::default()).expect("memory");
        let (mut random, mut value) = (Random::new(1), vec![0; 1 << 20]);
        random.fill(&mut value);
        let dictionary = db.open_dictionary("d").expect("memory");
        for key in 0..4u8 {
            dictionary.insert(vec![key], value.clone()).expect("memory");
        }
        db.flush().expect("memory");
        let (end, ended) = mpsc::channel::<()>();
        drop(end);
        db.stop_scrub();
        let (done, waiting) = mpsc::channel();
        let own = db.clone();
        // At this rate the scrub would take weeks.
        std::thread::spawn(move || {
            scrub(&own, &ended, 1);
            let _ = done.send(());
        });
        assert_eq!(waiting.recv_timeout(Duration::from_secs(30)), Ok(()));
        assert!(!db.scrub_progress().complete, "it was stopped");
        db.close().expect("closed");
    }
}
