//! The subscriptions of a session, and the delivery of messages to its client.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Session;
use crate::channels::By;
use crate::failure::{Failure, Outcome};
use crate::mailbox::{Delivery, Via};
use crate::output::Output;

/// The names to which one connection has subscribed.
#[derive(Default)]
pub struct Subscriptions {
    pub channels: BTreeSet<Bytes>,
    pub patterns: BTreeSet<Bytes>,
    /// The shard channels.
    pub shards: BTreeSet<Bytes>,
}

impl Subscriptions {
    pub fn by(&mut self, by: By) -> &mut BTreeSet<Bytes> {
        match by {
            By::Channel => &mut self.channels,
            By::Pattern => &mut self.patterns,
            By::Shard => &mut self.shards,
        }
    }
    pub fn count(&self) -> usize {
        self.channels.len() + self.patterns.len() + self.shards.len()
    }
}

impl Session {
    /// Returns whether messages may arrive for this connection.
    pub fn listens(&self) -> bool {
        self.monitors || self.tracks.is_some() || self.is_subscribed()
    }
    /// Returns whether the connection has subscribed to anything.
    pub fn is_subscribed(&self) -> bool {
        self.subscriptions.count() > 0
    }

    /// Checks the length of the name of a channel or of a pattern. Each message is matched
    /// against all patterns, and a match takes longer if the name of the channel is long.
    pub fn check_channel(&self, name: &[u8]) -> Outcome {
        let most = self.shared.limits.key;
        match name.len() > most {
            true => Err(Failure::request(format!("a channel's name has up to {most} bytes"))),
            false => Ok(()),
        }
    }
    pub fn subscribe(&mut self, by: By, name: &[u8]) -> Outcome {
        self.check_channel(name)?;
        let name = Bytes::copy_from_slice(name);
        let branch = self.place.branch().unwrap_or_default();
        self.shared.channels.subscribe(by, &name, &self.connection, branch)?;
        self.subscriptions.by(by).insert(name);
        Ok(())
    }
    pub fn unsubscribe(&mut self, by: By, name: &[u8]) {
        self.shared.channels.unsubscribe(by, name, self.id);
        self.subscriptions.by(by).remove(name);
    }
    pub fn unsubscribe_all(&mut self) {
        for by in [By::Channel, By::Pattern, By::Shard] {
            for name in std::mem::take(self.subscriptions.by(by)) {
                self.shared.channels.unsubscribe(by, &name, self.id);
            }
        }
    }

    /// Writes the messages that have arrived. This must not be called while a reply is in
    /// progress.
    pub fn deliver(&self, out: &mut Output) {
        while let Some(delivery) = self.connection.mailbox.next() {
            match delivery.via {
                Via::Invalidated => self.tell_of_change(Some(&delivery.payload), out),
                Via::AllInvalidated => self.tell_of_change(None, out),
                // RESP2 has no message for this event.
                Via::RedirectionBroken(to) if out.resp3 => {
                    out.push(2);
                    out.bulk(b"tracking-redir-broken");
                    out.integer(i64::try_from(to).unwrap_or(i64::MAX));
                }
                _ => tell(&delivery, out),
            }
            out.send_if_large();
            if out.is_broken() {
                return;
            }
        }
    }

    /// Writes the message that a key was changed, or that every key may have been changed. A
    /// RESP2 client receives a message on a channel to which it has subscribed.
    fn tell_of_change(&self, key: Option<&Bytes>, out: &mut Output) {
        if out.resp3 {
            out.push(2);
            out.bulk(b"invalidate");
        } else if self.subscriptions.channels.contains(INVALIDATED) {
            out.push(3);
            out.bulk(b"message");
            out.bulk(INVALIDATED);
        } else {
            return;
        }
        match key {
            Some(key) => {
                out.array(1);
                out.bulk(key);
            }
            None => out.null_array(),
        }
    }
}

/// The channel on which RESP2 clients are notified of changes of the keys that they cache.
const INVALIDATED: &[u8] = b"__redis__:invalidate";

fn tell(delivery: &Delivery, out: &mut Output) {
    match &delivery.via {
        Via::Channel => {
            out.push(3);
            out.bulk(b"message");
        }
        Via::Shard => {
            out.push(3);
            out.bulk(b"smessage");
        }
        Via::Pattern(pattern) => {
            out.push(4);
            out.bulk(b"pmessage");
            out.bulk(pattern);
        }
        Via::Invalidated | Via::AllInvalidated | Via::RedirectionBroken(_) => return,
        Via::Monitor => return out.status(&String::from_utf8_lossy(&delivery.payload)),
    }
    out.bulk(&delivery.channel);
    out.bulk(&delivery.payload);
}
