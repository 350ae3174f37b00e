//! The effects of commands outside of the store: messages, notifications of events, and the waking
//! of connections that wait for a key. An effect happens after its commit is visible; if the commit
//! fails, it does not happen.

use bytes::Bytes;
use kvdb::TransactionId;

use crate::channels::{Channels, To};
use crate::keyspace::Kind;
use crate::notifications::{Event, Notifications};
use crate::waiters::{Awaited, Spot, Waiters};

/// One effect.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A message to the subscribers of a channel.
    Message { to: To, channel: Bytes, payload: Bytes },
    /// Something has happened to a key.
    Event { event: Event, key: Bytes },
    /// A collection of this kind may have elements that it had not.
    Filled { kind: Kind, key: Bytes },
}

impl Effect {
    fn size(&self) -> usize {
        let bytes = match self {
            Effect::Message { channel, payload, .. } => channel.len() + payload.len(),
            Effect::Event { key, .. } | Effect::Filled { key, .. } => key.len(),
        };
        bytes + size_of::<Effect>()
    }
}

/// The effects of several commands in their order, up to a number of bytes.
#[derive(Debug, Default)]
pub struct Effects {
    of_spots: Vec<(Spot, Vec<Effect>)>,
    bytes: usize,
    /// Some effects found no room, so every waiting connection must look at its keys.
    overfull: bool,
}

impl Effects {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a message of this size fits.
    pub fn has_room(&self, bytes: usize, most: usize) -> bool {
        self.bytes + bytes + size_of::<Effect>() <= most
    }

    /// Adds the effects at one spot. Gives the number of effects that found no room.
    pub fn add(&mut self, spot: Spot, effects: Vec<Effect>, most: usize) -> u64 {
        let bytes: usize = effects.iter().map(Effect::size).sum();
        if self.bytes + bytes > most {
            self.overfull = true;
            return effects.len() as u64;
        }
        self.bytes += bytes;
        match self.of_spots.last_mut().filter(|(last, _)| *last == spot) {
            Some((_, others)) => others.extend(effects),
            None => self.of_spots.push((spot, effects)),
        }
        0
    }

    /// Adds the effects of another list. Gives the number of effects that found no room.
    pub fn append(&mut self, other: Effects, most: usize) -> u64 {
        self.overfull |= other.overfull;
        other.of_spots.into_iter().map(|(spot, effects)| self.add(spot, effects, most)).sum()
    }

    /// The number of effects, a place for `cut`.
    pub fn len(&self) -> usize {
        self.of_spots.iter().map(|(_, effects)| effects.len()).sum()
    }
    /// Removes all effects but the first `len`.
    pub fn cut(&mut self, mut len: usize) {
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
        if effects.overfull {
            self.waiters.wake_all();
        }
    }

    /// Carries out the effects at one spot. Messages are published first, so a client that is woken
    /// has received them.
    pub fn carry_out_at(&self, spot: &Spot, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Message { to, channel, payload } => {
                    self.channels.publish(*to, channel, payload);
                }
                // Clones send no notifications: their keys have the names of the store's keys.
                Effect::Event { event, key } if spot.clone.is_none() => {
                    if self.channels.are_used() {
                        let all = self.notifications.messages(&spot.dictionary, *event, key);
                        for (channel, payload) in all {
                            self.channels.publish(To::Channel, &channel.into(), &payload.into());
                        }
                    }
                }
                Effect::Event { .. } | Effect::Filled { .. } => {}
            }
        }
        self.wake(spot, effects);
    }

    /// Wakes the connections that wait in a transaction for keys that were filled in it.
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
        for effect in effects {
            if let Effect::Filled { kind, key } = effect {
                let (spot, kind, key) = (spot.clone(), *kind, key.clone());
                self.waiters.wake(&Awaited { spot, kind, key });
            }
        }
    }
}
