//! Channels: which connections have subscribed to which, and the messages that wait for them.
//!
//! A message is put into the mailboxes of its subscribers under one lock, so all of them get the
//! messages in the same order. The thread of a connection empties its own mailbox between two
//! commands and while it waits: no message comes into the middle of a reply, and no publisher waits
//! for a subscriber. A mailbox has a bound, beyond which the connection is closed, as in Redis.
//!
//! A message reaches all who have subscribed to its channel. An event of a key is one of a branch:
//! it reaches those who have subscribed while they worked in that branch, since the keys of a clone
//! have the names that the store's have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use env::sync::Mutex;

use crate::clients::Connection;
use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::mailbox::{Delivery, Put, Via};

/// Bytes that a subscription takes in addition to its name, about.
const OVERHEAD: usize = 128;

/// How a connection names what it subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Channel,
    Pattern,
    /// A channel of a shard. There is one shard; its channels are apart from the others, and no
    /// pattern matches them.
    Shard,
}

/// Which channels a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Channel,
    Shard,
}

/// Whom a message concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among<'a> {
    All,
    /// Connections that have subscribed in a branch; `""`: in the store itself.
    Branch(&'a str),
}

/// A connection, and the branch that it worked in when it subscribed.
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
    /// Bytes of all subscriptions.
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

    fn each(
        &self,
        (to, among): (To, Among<'_>),
        channel: &[u8],
        mut visit: impl FnMut(Via, &Arc<Connection>),
    ) {
        let among = |one: &&Subscriber| one.is(among);
        let (all, via) = match to {
            To::Channel => (&self.channels, Via::Channel),
            To::Shard => (&self.shards, Via::Shard),
        };
        for one in all.get(channel).into_iter().flat_map(BTreeMap::values).filter(among) {
            visit(via.clone(), &one.connection);
        }
        for (pattern, subscribers) in self.patterns.iter().filter(|_| to == To::Channel) {
            if glob::matches(pattern, channel) {
                for one in subscribers.values().filter(among) {
                    visit(Via::Pattern(pattern.clone()), &one.connection);
                }
            }
        }
    }

    /// Visits the channels of `[start, end)` that have subscribers, and the patterns that may match
    /// a channel there, which their literal start decides.
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

/// Of all connections of a server.
pub struct Channels {
    state: Mutex<Subscriptions>,
    /// Subscriptions that there are, so that a message without subscribers takes no lock.
    subscriptions: AtomicUsize,
    /// Bytes of subscriptions at most, and of one mailbox.
    most: usize,
    most_waiting: usize,
}

impl Channels {
    pub fn new(most: usize, most_waiting: usize) -> Self {
        let (state, subscriptions) = (Mutex::default(), AtomicUsize::new(0));
        Channels { state, subscriptions, most, most_waiting }
    }

    /// Notes a subscription of a connection that works in a branch. Messages that are published
    /// after this returns reach the connection. A second one to the same name takes the place of
    /// the first.
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

    /// Ends a subscription. What waits already is delivered all the same.
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

    /// Whether a message may reach a subscriber.
    pub fn are_used(&self) -> bool {
        self.subscriptions.load(Relaxed) > 0
    }

    /// Puts a message into the mailboxes of all subscribers; gives their number.
    pub fn publish(&self, to: To, channel: &Bytes, payload: &Bytes) -> usize {
        self.publish_among((to, Among::All), channel, payload)
    }

    /// Puts an event of a branch into the mailboxes of those whom it concerns.
    pub fn publish_event(&self, branch: &str, channel: &Bytes, payload: &Bytes) {
        self.publish_among((To::Channel, Among::Branch(branch)), channel, payload);
    }

    fn publish_among(&self, to: (To, Among<'_>), channel: &Bytes, payload: &Bytes) -> usize {
        if !self.are_used() {
            return 0;
        }
        let mut receivers = 0;
        self.state.lock().each(to, channel, |via, connection| {
            receivers += 1;
            self.put(channel, via, payload, connection);
        });
        receivers
    }

    /// Says the same of a branch on every channel of `[start, end)`: those who have subscribed to
    /// one of them hear it there, those whose pattern may match one on the channel `start`.
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
        match connection.mailbox.put(delivery, self.most_waiting) {
            Put::Waits => {}
            Put::First => connection.bell.ring(),
            Put::Overrun => connection.close(),
        }
    }

    /// How many a message would reach now.
    pub fn receivers(&self, to: To, channel: &[u8]) -> usize {
        let mut receivers = 0;
        if self.are_used() {
            self.state.lock().each((to, Among::All), channel, |_, _| receivers += 1);
        }
        receivers
    }

    /// The channels that have subscribers and match, in order.
    pub fn matching(&self, by: By, pattern: Option<&[u8]>) -> Vec<Bytes> {
        let mut state = self.state.lock();
        let all = state.of(by).keys();
        all.filter(|name| pattern.is_none_or(|p| glob::matches(p, name))).cloned().collect()
    }
    /// How many have subscribed to a channel by its name.
    pub fn subscribers(&self, by: By, channel: &[u8]) -> usize {
        self.state.lock().of(by).get(channel).map_or(0, BTreeMap::len)
    }
    /// How many names have subscribers.
    pub fn count(&self, by: By) -> usize {
        self.state.lock().of(by).len()
    }
}
