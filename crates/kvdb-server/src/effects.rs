//! The effects of commands outside of the store: messages, notifications of events, and the
//! waking of connections that wait for a key. An effect takes place after its commit has become
//! visible. If the commit fails, the effect does not take place.
//!
//! If more events occur than can be kept, one event of all keys replaces the events that are not
//! sent one by one, so that a cache that follows events never keeps a stale value.

use std::collections::HashMap;

use bytes::Bytes;
use kvdb::TransactionId;

use crate::channels::{Channels, To};
use crate::keyspace::Kind;
use crate::notifications::{Classes, Event, Notifications};
use crate::waiters::{Awaited, Spot, Waiters};

/// An effect of a command.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A message to the subscribers of a channel.
    Message { to: To, channel: Bytes, payload: Bytes },
    /// An event of one key.
    Event { event: Event, key: Bytes },
    /// An event of every key in `[start, end)`, because each may have changed. An empty `end`
    /// means up to the last key.
    Range { event: Event, start: Bytes, end: Bytes },
    /// A collection of this kind may have gained elements. `new` is set if it did not exist before.
    Filled { kind: Kind, key: Bytes, new: bool },
}

impl Effect {
    /// Returns an event of all keys of a dictionary, for every class of events that clients may
    /// have requested.
    pub fn of_all(name: &'static str) -> Effect {
        let event = Event { class: Classes::ANY, name };
        Effect::Range { event, start: Bytes::new(), end: Bytes::new() }
    }

    fn is_event(&self) -> bool {
        matches!(self, Effect::Event { .. } | Effect::Range { .. })
    }

    fn size(&self) -> usize {
        let bytes = match self {
            Effect::Message { channel, payload, .. } => channel.len() + payload.len(),
            Effect::Event { key, .. } | Effect::Filled { key, .. } => key.len(),
            Effect::Range { start, end, .. } => start.len() + end.len(),
        };
        bytes + size_of::<Effect>()
    }
}

/// The effects of several commands in their order, limited to a number of bytes.
#[derive(Debug, Default)]
pub struct Effects {
    of_spots: Vec<(Spot, Vec<Effect>)>,
    bytes: usize,
    /// Set if some effects did not fit, so that every waiting connection must check its keys.
    overfull: bool,
    /// Spots whose events did not fit, each with the number of effects before the first loss.
    lost: HashMap<Spot, usize>,
}

impl Effects {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a message of this size fits.
    pub fn has_room(&self, bytes: usize, most: usize) -> bool {
        self.bytes + bytes + size_of::<Effect>() <= most
    }

    /// Adds the effects at one spot. Returns the number of effects that did not fit.
    pub fn add(&mut self, spot: Spot, effects: Vec<Effect>, most: usize) -> u64 {
        let bytes: usize = effects.iter().map(Effect::size).sum();
        if self.bytes + bytes > most {
            self.overfull = true;
            if effects.iter().any(Effect::is_event) {
                let len = self.len();
                self.lost.entry(spot).or_insert(len);
            }
            return effects.len() as u64;
        }
        self.bytes += bytes;
        match self.of_spots.last_mut().filter(|(last, _)| *last == spot) {
            Some((_, others)) => others.extend(effects),
            None => self.of_spots.push((spot, effects)),
        }
        0
    }

    /// Adds the effects of another list. Returns the number of effects that did not fit.
    pub fn append(&mut self, other: Effects, most: usize) -> u64 {
        self.overfull |= other.overfull;
        let len = self.len();
        for spot in other.lost.into_keys() {
            self.lost.entry(spot).or_insert(len);
        }
        other.of_spots.into_iter().map(|(spot, effects)| self.add(spot, effects, most)).sum()
    }

    /// Returns the number of effects. `cut` accepts it as a position.
    pub fn len(&self) -> usize {
        self.of_spots.iter().map(|(_, effects)| effects.len()).sum()
    }
    /// Removes all effects except the first `len`.
    pub fn cut(&mut self, mut len: usize) {
        // A loss at the same number may have occurred before or after the cut, so it is kept.
        self.lost.retain(|_, at| *at <= len);
        for (_, effects) in &mut self.of_spots {
            effects.truncate(len);
            len -= effects.len();
        }
        self.of_spots.retain(|(_, effects)| !effects.is_empty());
        self.bytes = self.of_spots.iter().flat_map(|(_, e)| e).map(Effect::size).sum();
    }
}

/// The parts of the server on which effects act.
pub struct Reached<'a> {
    pub channels: &'a Channels,
    pub notifications: &'a Notifications,
    pub waiters: &'a Waiters,
}

impl Reached<'_> {
    /// Carries out all effects of a list.
    pub fn carry_out(&self, effects: Effects) {
        for (spot, effects) in &effects.of_spots {
            self.carry_out_at(spot, effects);
        }
        for spot in effects.lost.keys() {
            self.carry_out_at(spot, &[Effect::of_all("lost")]);
        }
        if effects.overfull {
            self.waiters.wake_all();
        }
    }

    /// Carries out the effects at one spot. Messages are published first, so that a client that is
    /// woken has received them.
    pub fn carry_out_at(&self, spot: &Spot, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Message { to, channel, payload } => {
                    self.channels.publish(*to, channel, payload);
                }
                Effect::Event { event, key } if self.channels.are_used() => {
                    let all = self.notifications.messages(&spot.dictionary, *event, key);
                    for (channel, payload) in all {
                        let (channel, payload) = (channel.into(), payload.into());
                        self.channels.publish_event(spot.branch(), &channel, &payload);
                    }
                }
                Effect::Range { event, start, end } if self.channels.are_used() => {
                    self.tell_of_range(spot, *event, (start, end));
                }
                Effect::Event { .. } | Effect::Range { .. } | Effect::Filled { .. } => {}
            }
        }
        self.wake(spot, effects);
    }

    fn tell_of_range(&self, spot: &Spot, event: Event, keys: (&[u8], &[u8])) {
        let said = self.notifications.of_range(&spot.dictionary, event, keys);
        if let Some((start, end)) = said.channels {
            let name = Bytes::from_static(event.name.as_bytes());
            self.channels.publish_within(spot.branch(), (&start.into(), &end.into()), &name);
        }
        if let Some((channel, payload)) = said.message {
            self.channels.publish_event(spot.branch(), &channel.into(), &payload.into());
        }
    }

    /// Wakes the connections that wait, in this transaction, for keys that were filled in it.
    pub fn wake_inside(&self, transaction: TransactionId, effects: &Effects) {
        for (spot, effects) in &effects.of_spots {
            self.wake(&Spot { transaction: Some(transaction), ..spot.clone() }, effects);
        }
    }

    /// Wakes the connections that wait for keys that were filled.
    pub fn wake(&self, spot: &Spot, effects: &[Effect]) {
        if self.waiters.count() == 0 {
            return;
        }
        let filled = effects.iter().filter_map(|effect| match effect {
            Effect::Filled { kind, key, new } => {
                let (spot, kind, key) = (spot.clone(), *kind, key.clone());
                Some((Awaited { spot, kind, key }, *new))
            }
            _ => None,
        });
        self.waiters.wake(filled);
    }
}
