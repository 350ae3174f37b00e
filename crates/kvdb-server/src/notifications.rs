//! Keyspace notifications: the events of keys that clients have requested, by the letters of
//! Redis (`CONFIG SET notify-keyspace-events`).

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::glob;

/// A set of classes of events, and of the channels on which they are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(u16);

impl Classes {
    /// Events are published on the channel of the key.
    const BY_KEY: Classes = Classes(1);
    /// Events are published on the channel of the event.
    const BY_EVENT: Classes = Classes(1 << 1);
    pub const GENERIC: Classes = Classes(1 << 2);
    pub const STRING: Classes = Classes(1 << 3);
    pub const LIST: Classes = Classes(1 << 4);
    pub const SET: Classes = Classes(1 << 5);
    pub const HASH: Classes = Classes(1 << 6);
    pub const SORTED_SET: Classes = Classes(1 << 7);
    pub const EXPIRED: Classes = Classes(1 << 8);
    pub const STREAM: Classes = Classes(1 << 10);
    /// The class of the event that a key was created.
    pub const NEW: Classes = Classes(1 << 12);
    /// Every class of events.
    pub const ANY: Classes = Classes(!0b11);

    /// The letters of the setting in the order in which Redis shows them. The letters of evicted
    /// keys, modules and misses are accepted, but no such events occur.
    const LETTERS: [(u8, u16); 14] = [
        (b'g', 1 << 2),
        (b'$', 1 << 3),
        (b'l', 1 << 4),
        (b's', 1 << 5),
        (b'h', 1 << 6),
        (b'z', 1 << 7),
        (b'x', 1 << 8),
        (b'e', 1 << 9),
        (b't', 1 << 10),
        (b'd', 1 << 11),
        (b'n', 1 << 12),
        (b'K', 1),
        (b'E', 1 << 1),
        (b'm', 1 << 13),
    ];
    /// The meaning of `A`: all classes except new keys and misses.
    const ALL: u16 = 0b1111_1111_1100;

    /// Parses a setting. Returns `None` if it has an unknown letter.
    pub fn parse(setting: &[u8]) -> Option<Classes> {
        let mut all = 0;
        for letter in setting {
            all |= match letter {
                b'A' => Classes::ALL,
                _ => Classes::LETTERS.iter().find(|(known, _)| known == letter)?.1,
            };
        }
        Some(Classes(all))
    }

    /// Returns the setting that represents this set.
    pub fn shown(self) -> String {
        let mut text = String::new();
        let mut rest = self.0;
        if rest & Classes::ALL == Classes::ALL {
            text.push('A');
            rest &= !Classes::ALL;
        }
        let letters = Classes::LETTERS.iter().filter(|(_, class)| rest & class != 0);
        text.extend(letters.map(|(letter, _)| char::from(*letter)));
        text
    }

    fn has(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }
}

/// A kind of event of a key: its class and its name.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub class: Classes,
    pub name: &'static str,
}

/// The notifications of an event of all keys from `start` up to `end`. An empty `end` means up to
/// the last key.
pub struct OfRange {
    /// The channels `[start, end)` of these keys. The name of the event is published on each of
    /// them.
    pub channels: Option<(Vec<u8>, Vec<u8>)>,
    /// The channel of the event, and the payload: the length of `start`, a space, `start`, a space,
    /// `end`.
    pub message: Option<(Vec<u8>, Vec<u8>)>,
}

/// The classes of events that clients want, for all dictionaries.
#[derive(Default)]
pub struct Notifications(AtomicU16);

impl Notifications {
    pub fn set(&self, wanted: Classes) {
        self.0.store(wanted.0, Relaxed);
    }
    pub fn wanted(&self) -> Classes {
        Classes(self.0.load(Relaxed))
    }
    /// Returns whether events of this class are published. This costs one load, and is usually
    /// `false`.
    pub fn are_on(&self, class: Classes) -> bool {
        let wanted = self.wanted();
        wanted.has(class) && wanted.has(Classes(Classes::BY_KEY.0 | Classes::BY_EVENT.0))
    }

    /// Returns the channels on which an event is published, each with its payload.
    pub fn messages(&self, dictionary: &str, event: Event, key: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let wanted = self.wanted();
        let mut messages = Vec::with_capacity(2);
        if !wanted.has(event.class) {
            return messages;
        }
        if wanted.has(Classes::BY_KEY) {
            let channel = [format!("__keyspace@{dictionary}__:").as_bytes(), key].concat();
            messages.push((channel, event.name.into()));
        }
        if wanted.has(Classes::BY_EVENT) {
            let channel = format!("__keyevent@{dictionary}__:{}", event.name);
            messages.push((channel.into(), key.to_vec()));
        }
        messages
    }

    /// Returns the notifications of an event of all keys in `[start, end)`.
    pub fn of_range(
        &self,
        dictionary: &str,
        event: Event,
        (start, end): (&[u8], &[u8]),
    ) -> OfRange {
        let wanted = self.wanted();
        let is_wanted = wanted.has(event.class);
        let channels = (is_wanted && wanted.has(Classes::BY_KEY)).then(|| {
            let channel =
                |key: &[u8]| [format!("__keyspace@{dictionary}__:").as_bytes(), key].concat();
            let end = if end.is_empty() { glob::prefix_end(&channel(b"")) } else { channel(end) };
            (channel(start), end)
        });
        let message = (is_wanted && wanted.has(Classes::BY_EVENT)).then(|| {
            let channel = format!("__keyevent@{dictionary}__:{}", event.name);
            let len = format!("{} ", start.len());
            (channel.into(), [len.as_bytes(), start, b" ", end].concat())
        });
        OfRange { channels, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_as_redis_shows_them() {
        for (setting, shown) in [
            ("", ""),
            ("KEA", "AKE"),
            ("gKE", "gKE"),
            ("EK$lshzxe", "$lshzxeKE"),
            ("g$lshzxetdE", "AE"),
            ("AKEnm", "AnKEm"),
            ("ggg", "g"),
        ] {
            assert_eq!(Classes::parse(setting.as_bytes()).map(Classes::shown), Some(shown.into()));
        }
        assert_eq!(Classes::parse(b"KEq"), None);
    }

    #[test]
    fn events_go_where_they_were_asked_for() {
        let notifications = Notifications::default();
        let event = Event { class: Classes::LIST, name: "lpush" };
        let said = |setting: &[u8]| {
            notifications.set(Classes::parse(setting).expect("a setting"));
            let on = notifications.are_on(event.class);
            let messages = notifications.messages("0", event, b"k");
            assert_eq!(on, !messages.is_empty());
            messages
                .into_iter()
                .map(|(channel, _)| String::from_utf8_lossy(&channel).into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(said(b"Kl"), ["__keyspace@0__:k"]);
        assert_eq!(said(b"EA"), ["__keyevent@0__:lpush"]);
        assert_eq!(said(b"KEA").len(), 2);
        assert!(said(b"KE$").is_empty() && said(b"l").is_empty() && said(b"").is_empty());
    }

    #[test]
    fn an_event_of_a_range_goes_to_the_channels_of_its_keys() {
        let notifications = Notifications::default();
        let said = |setting: &[u8], class, start: &[u8], end: &[u8]| {
            notifications.set(Classes::parse(setting).expect("a setting"));
            let event = Event { class, name: "delrange" };
            let said = notifications.of_range("0", event, (start, end));
            (said.channels, said.message)
        };
        let (channels, message) = said(b"KEg", Classes::GENERIC, b"a b", b"c");
        let pair = |a: &[u8], b: &[u8]| Some((a.to_vec(), b.to_vec()));
        assert_eq!(channels, pair(b"__keyspace@0__:a b", b"__keyspace@0__:c"));
        assert_eq!(message, pair(b"__keyevent@0__:delrange", b"3 a b c"));
        let (channels, message) = said(b"Kx", Classes::ANY, b"", b"");
        assert_eq!(channels, pair(b"__keyspace@0__:", b"__keyspace@0__;"));
        assert_eq!(message, None);
        assert_eq!(said(b"KEx", Classes::GENERIC, b"", b""), (None, None));
    }
}
