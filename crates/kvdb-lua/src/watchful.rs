//! Reads from a socket whose other end is likely to answer at once.
//!
//! A script and the server take turns: each message is answered by the other process within a few
//! microseconds. Sleeping until then costs more than the answer, most of all on a virtual machine,
//! where waking a sleeping processor takes tens of microseconds. So both ends poll for a message
//! for a while before they sleep.

use std::io;
use std::os::fd::AsFd;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Time for which an end polls before it sleeps: a few times the duration of a command.
const WATCH: Duration = Duration::from_micros(50);
/// Logarithm of the maximal number of messages for which polling is skipped after a message did not
/// arrive in time.
const MOST_SKIPPED: u32 = 6;

/// A reader that polls for messages as long as that pays. If they do not arrive in time, because
/// scripts take long or the other end gets no processor, the processor time is left to other work.
#[derive(Debug)]
pub struct Watchful {
    /// The machine has one processor, on which the other end cannot run while this one polls.
    alone: bool,
    /// Number of consecutive messages that did not arrive in time.
    missed: u32,
    /// Number of messages for which polling is still skipped.
    skips: u32,
}

impl Watchful {
    /// Makes a reader, which asks the system for the number of processors.
    pub fn new() -> Self {
        let alone = available_parallelism().is_ok_and(|processors| processors.get() == 1);
        Watchful { alone, missed: 0, skips: 0 }
    }

    /// Receives bytes that have arrived, or arrive within a few microseconds; 0 bytes are the end.
    /// Returns `None` if none have arrived, and the caller should sleep.
    pub fn receive(&mut self, socket: impl AsFd, into: &mut [u8]) -> io::Result<Option<usize>> {
        if self.alone {
            return Ok(None);
        }
        if self.skips > 0 {
            self.skips -= 1;
            return Ok(None);
        }
        let begun = Instant::now();
        loop {
            match rustix::net::recv(&socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, got)) => {
                    self.missed = 0;
                    return Ok(Some(got));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if begun.elapsed() < WATCH => std::hint::spin_loop(),
                Err(Errno::AGAIN) => {
                    self.missed = (self.missed + 1).min(MOST_SKIPPED);
                    self.skips = (1 << self.missed) - 1;
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Default for Watchful {
    fn default() -> Self {
        Watchful::new()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_has_come_is_received_and_then_the_end() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut watchful = Watchful { alone: false, missed: 0, skips: 0 };
        theirs.write_all(b"four").expect("room");
        let mut into = [0; 8];
        assert_eq!(watchful.receive(&ours, &mut into).expect("open"), Some(4));
        assert_eq!(&into[..4], b"four");
        drop(theirs);
        assert_eq!(watchful.receive(&ours, &mut into).expect("closed"), Some(0));
    }

    #[test]
    fn messages_that_do_not_come_are_looked_for_ever_more_seldom() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut watchful = Watchful { alone: false, missed: 0, skips: 0 };
        let mut looked = Vec::new();
        for message in 0..200 {
            looked.extend((watchful.skips == 0).then_some(message));
            assert_eq!(watchful.receive(&ours, &mut [0; 8]).expect("open"), None);
        }
        assert_eq!(looked, [0, 2, 6, 14, 30, 62, 126, 190]);
        watchful.skips = 0;
        theirs.write_all(b"four").expect("room");
        assert_eq!(watchful.receive(&ours, &mut [0; 8]).expect("open"), Some(4));
        assert_eq!(watchful.receive(&ours, &mut [0; 8]).expect("open"), None);
        assert_eq!(watchful.skips, 1, "one has come, so it counts from the beginning");
    }
}
