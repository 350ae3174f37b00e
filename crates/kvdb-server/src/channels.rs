//! Channels: the subscriptions of all connections, and the delivery of messages to their mailboxes.
//!
//! A message is put into the mailboxes of its subscribers under one lock, so all of them receive
//! the messages in the same order. The thread of a connection empties its own mailbox between two
//! commands and while it waits: no message interrupts a reply, and no publisher waits for a
//! subscriber. A mailbox is bounded; a connection whose mailbox overflows is closed, as in Redis.
//!
//! A message reaches every subscriber of its channel. An event of a key belongs to a branch. It
//! reaches only the connections that subscribed while they worked in that branch, because the
//! keys of a clone have the same names as the keys of the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use env::sync::Mutex;

use crate::clients::Connection;
use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::mailbox::{Delivery, Via};

/// Approximate size of a subscription in addition to its name, in bytes.
const OVERHEAD: usize = 128;

/// Limit on the bytes that a match of a pattern against one channel may compare, including
/// repeated comparisons, in addition to an allowance for each byte of both. A message is matched
/// against all patterns under the lock, so the cost of a match must not be the product of the two
/// lengths.
const COMPARED: usize = 1 << 16;

/// The kind of name to which a connection subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Channel,
    Pattern,
    /// A channel of a shard. There is only one shard; its channels are separate from the others,
    /// and no pattern matches them.
    Shard,
}

/// The kind of channel on which a message is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Channel,
    Shard,
}

/// The subscribers that a message may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among<'a> {
    All,
    /// Connections that have subscribed in a branch; `""` stands for the store itself.
    Branch(&'a str),
}

/// A connection, and the branch in which it worked when it subscribed.
struct Subscriber {
    connection: Arc<Connection>,
    branch: Arc<str>,
}

impl Subscriber {
    fn is(&self, among: Among<'_>) -> bool {
        match among {
            Among::All => true,
            Among::Branch(branch) => *self.branch == *branch,
        }
    }
}

/// The subscribers of each channel or pattern, by the numbers of their connections.
type Subscribers = BTreeMap<Bytes, BTreeMap<u64, Subscriber>>;

#[derive(Default)]
struct Subscriptions {
    channels: Subscribers,
    patterns: Subscribers,
    shards: Subscribers,
    /// Total size of all subscriptions, in bytes.
    bytes: usize,
}

impl Subscriptions {
    fn of(&mut self, by: By) -> &mut Subscribers {
        match by {
            By::Channel => &mut self.channels,
            By::Pattern => &mut self.patterns,
            By::Shard => &mut self.shards,
        }
    }

    /// Visits the connections that a message reaches, each with the channel or pattern that
    /// matches. The pattern is `None` for a connection whose pattern takes too long to match.
    fn each(
        &self,
        (to, among): (To, Among<'_>),
        channel: &[u8],
        mut visit: impl FnMut(Option<Via>, &Arc<Connection>),
    ) {
        let among = |one: &&Subscriber| one.is(among);
        let (all, via) = match to {
            To::Channel => (&self.channels, Via::Channel),
            To::Shard => (&self.shards, Via::Shard),
        };
        for one in all.get(channel).into_iter().flat_map(BTreeMap::values).filter(among) {
            visit(Some(via.clone()), &one.connection);
        }
        for (pattern, subscribers) in self.patterns.iter().filter(|_| to == To::Channel) {
            let mut most = COMPARED + 16 * (pattern.len() + channel.len());
            let via = match glob::matches_within(pattern, channel, &mut most) {
                Some(true) => Some(Via::Pattern(pattern.clone())),
                Some(false) => continue,
                None => None,
            };
            for one in subscribers.values().filter(among) {
                visit(via.clone(), &one.connection);
            }
        }
    }

    /// Visits the channels in `[start, end)` that have subscribers, and the patterns whose literal
    /// prefix may match a channel in that range.
    fn each_within(
        &self,
        among: Among<'_>,
        (start, end): (&Bytes, &Bytes),
        mut visit: impl FnMut(&Bytes, Via, &Arc<Connection>),
    ) {
        let among = |one: &&Subscriber| one.is(among);
        for (channel, subscribers) in self.channels.range(start.clone()..end.clone()) {
            for one in subscribers.values().filter(among) {
                visit(channel, Via::Channel, &one.connection);
            }
        }
        for (pattern, subscribers) in &self.patterns {
            let prefix = glob::literal_prefix(pattern).0;
            let behind = glob::prefix_end(&prefix);
            if prefix < *end && (behind.is_empty() || behind > *start) {
                for one in subscribers.values().filter(among) {
                    visit(start, Via::Pattern(pattern.clone()), &one.connection);
                }
            }
        }
    }
}

/// The channels of a server, for all of its connections.
pub struct Channels {
    state: Mutex<Subscriptions>,
    /// The number of subscriptions, so that a publisher takes no lock if there are none.
    subscriptions: AtomicUsize,
    /// Limit on the bytes of all subscriptions. `most_waiting` is the limit on the bytes that
    /// wait in one mailbox.
    most: usize,
    most_waiting: usize,
}

impl Channels {
    pub fn new(most: usize, most_waiting: usize) -> Self {
        let (state, subscriptions) = (Mutex::default(), AtomicUsize::new(0));
        Channels { state, subscriptions, most, most_waiting }
    }

    /// Adds a subscription of a connection that works in a branch. Messages that are published
    /// after this returns reach the connection. A second subscription to the same name replaces the
    /// first.
    pub fn subscribe(
        &self,
        by: By,
        name: &Bytes,
        connection: &Arc<Connection>,
        branch: &str,
    ) -> Outcome {
        let mut state = self.state.lock();
        let size = name.len() + OVERHEAD;
        let subscriber = Subscriber { connection: connection.clone(), branch: branch.into() };
        if state.bytes + size > self.most {
            return Err(Failure::Limit(format!(
                "the subscriptions of all connections take more than {} bytes: UNSUBSCRIBE from some",
                self.most
            )));
        }
        let subscribers = state.of(by).entry(name.clone()).or_default();
        if subscribers.insert(connection.id, subscriber).is_none() {
            state.bytes += size;
            self.subscriptions.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Ends a subscription. Messages that already wait in the mailbox are still delivered.
    pub fn unsubscribe(&self, by: By, name: &[u8], connection: u64) {
        let mut state = self.state.lock();
        let Some(subscribers) = state.of(by).get_mut(name) else { return };
        if subscribers.remove(&connection).is_none() {
            return;
        }
        if subscribers.is_empty() {
            state.of(by).remove(name);
        }
        state.bytes -= name.len() + OVERHEAD;
        self.subscriptions.fetch_sub(1, Relaxed);
    }

    /// Returns whether a message may reach a subscriber.
    pub fn are_used(&self) -> bool {
        self.subscriptions.load(Relaxed) > 0
    }

    /// Puts a message into the mailboxes of all subscribers, and returns their number. A
    /// subscriber whose pattern takes too long to match is disconnected, like a subscriber whose
    /// mailbox overflows, because it may have missed the message.
    pub fn publish(&self, to: To, channel: &Bytes, payload: &Bytes) -> usize {
        self.publish_among((to, Among::All), channel, payload)
    }

    /// Puts an event of a branch into the mailboxes of the connections that subscribed in that
    /// branch.
    pub fn publish_event(&self, branch: &str, channel: &Bytes, payload: &Bytes) {
        self.publish_among((To::Channel, Among::Branch(branch)), channel, payload);
    }

    fn publish_among(&self, to: (To, Among<'_>), channel: &Bytes, payload: &Bytes) -> usize {
        if !self.are_used() {
            return 0;
        }
        let mut receivers = 0;
        self.state.lock().each(to, channel, |via, connection| match via {
            Some(via) => {
                receivers += 1;
                self.put(channel, via, payload, connection);
            }
            None => connection.close(),
        });
        receivers
    }

    /// Publishes the same payload on every channel in `[start, end)`. A subscriber to one of the
    /// channels receives the payload on that channel; a subscriber whose pattern may match one of
    /// them receives it on channel `start`.
    pub fn publish_within(&self, branch: &str, (start, end): (&Bytes, &Bytes), payload: &Bytes) {
        if self.are_used() && start < end {
            let among = Among::Branch(branch);
            self.state.lock().each_within(among, (start, end), |channel, via, connection| {
                self.put(channel, via, payload, connection);
            });
        }
    }

    fn put(&self, channel: &Bytes, via: Via, payload: &Bytes, connection: &Arc<Connection>) {
        let delivery = Delivery { via, channel: channel.clone(), payload: payload.clone() };
        connection.send(delivery, self.most_waiting);
    }

    /// Returns the number of subscribers that a message would reach now.
    pub fn receivers(&self, to: To, channel: &[u8]) -> usize {
        let mut receivers = 0;
        if self.are_used() {
            let counted = |via: Option<Via>, _: &Arc<Connection>| {
                receivers += usize::from(via.is_some());
            };
            self.state.lock().each((to, Among::All), channel, counted);
        }
        receivers
    }

    /// Returns the channels that have subscribers, in order.
    pub fn names(&self, by: By) -> Vec<Bytes> {
        self.state.lock().of(by).keys().cloned().collect()
    }
    /// Returns the number of connections that have subscribed to a channel by its name.
    pub fn subscribers(&self, by: By, channel: &[u8]) -> usize {
        self.state.lock().of(by).get(channel).map_or(0, BTreeMap::len)
    }
    /// Returns the number of names that have subscribers.
    pub fn count(&self, by: By) -> usize {
        self.state.lock().of(by).len()
    }
}
