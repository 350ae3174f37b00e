//! The messages that wait for one subscriber.

use std::collections::VecDeque;

use bytes::Bytes;
use env::sync::Mutex;

/// Approximate size of a message in a mailbox in addition to its own bytes.
const OVERHEAD: usize = 128;

/// The kind of subscription by which a message reaches the subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// The channel itself.
    Channel,
    /// A pattern that matches the channel.
    Pattern(Bytes),
    /// The channel of a shard.
    Shard,
    /// No channel. The connection has cached the key in the payload, and the key was changed.
    Invalidated,
    /// No channel. Every key that the connection has cached may have been changed.
    AllInvalidated,
    /// No channel. The connection with this number, to which such notifications were redirected,
    /// has ended.
    RedirectionBroken(u64),
    /// No channel. The connection monitors all commands, and the payload is the line of one
    /// command.
    Monitor,
}

/// A message for one subscriber.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub via: Via,
    pub channel: Bytes,
    pub payload: Bytes,
}

impl Delivery {
    fn size(&self) -> usize {
        let pattern = if let Via::Pattern(pattern) = &self.via { pattern.len() } else { 0 };
        pattern + self.channel.len() + self.payload.len() + OVERHEAD
    }
}

/// The result of putting a message into a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Waits,
    /// The mailbox was empty before, so the connection must be woken.
    First,
    /// There was no room. The mailbox was emptied, and does not accept messages any more.
    Overrun,
}

/// The mailbox of a connection. Messages are in the order of their arrival.
#[derive(Default)]
pub struct Mailbox(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    deliveries: VecDeque<Delivery>,
    bytes: usize,
    overrun: bool,
}

impl Mailbox {
    /// Adds a message if the mailbox then holds at most `most` bytes.
    pub fn put(&self, delivery: Delivery, most: usize) -> Put {
        let mut waiting = self.0.lock();
        if waiting.overrun || waiting.bytes + delivery.size() > most {
            *waiting = Waiting { overrun: true, ..Waiting::default() };
            return Put::Overrun;
        }
        waiting.bytes += delivery.size();
        waiting.deliveries.push_back(delivery);
        if waiting.deliveries.len() == 1 { Put::First } else { Put::Waits }
    }

    /// Takes the oldest message.
    pub fn next(&self) -> Option<Delivery> {
        let mut waiting = self.0.lock();
        let delivery = waiting.deliveries.pop_front()?;
        waiting.bytes -= delivery.size();
        Some(delivery)
    }

    /// Returns the number of messages that wait, and the number of their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let waiting = self.0.lock();
        (waiting.deliveries.len(), waiting.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_that_is_too_full_is_closed_for_good() {
        let mailbox = Mailbox::default();
        let message = || {
            let (channel, payload) = (Bytes::from_static(b"c"), Bytes::from_static(b"m"));
            Delivery { via: Via::Channel, channel, payload }
        };
        let most = 2 * message().size();
        let put = || mailbox.put(message(), most);
        assert_eq!((put(), put()), (Put::First, Put::Waits));
        assert!(mailbox.next().is_some(), "what was taken makes room");
        assert_eq!((put(), put()), (Put::Waits, Put::Overrun));
        assert!(mailbox.next().is_none() && mailbox.waiting() == (0, 0));
        assert_eq!(put(), Put::Overrun);
    }
}
