//! The kinds of faults, their rates, and the entries of a trace of them.

use std::time::Duration;

/// The rate of each fault. A fault with the rate n affects each request of its kind with a
/// probability of 1 to n; with the rate 0 it never occurs. All rates are 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// The rate of [`Injected::LostRequest`] among all requests.
    pub lost_request: u64,
    /// The rate of [`Injected::LostAnswer`] among puts and deletions.
    pub lost_answer: u64,
    /// The rate of [`Injected::LateRequest`] among puts and deletions.
    pub late_request: u64,
    /// The rate of [`Injected::Conflict`] among puts with a condition.
    pub conflict: u64,
    /// The rate of [`Injected::TooMany`] among all requests.
    pub too_many: u64,
    /// The rate of [`Injected::SlowDown`] among all requests.
    pub slow_down: u64,
    /// The rate of [`Injected::LateList`] among lists.
    pub late_list: u64,
    /// The rate of [`Injected::RepeatedEntry`] among lists that continue after a page.
    pub repeated_entry: u64,
    /// The rate of [`Injected::Truncated`] among reads.
    pub truncated: u64,
    /// The rate of [`Injected::Flipped`] among reads.
    pub flipped: u64,
    /// The rate of [`Injected::Delay`] among all requests.
    pub delay: u64,
    /// The longest delay.
    pub longest_delay: Duration,
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Injected {
    /// The request was not applied, but its sender does not know this.
    LostRequest,
    /// The request was applied, or its condition failed, but its sender does not know the outcome.
    LostAnswer,
    /// The sender has given up on the request, which will be applied during a later request.
    LateRequest,
    /// A late request has arrived, and was applied if its condition held.
    Arrived,
    /// The answer was 409, and the put was applied or not.
    Conflict,
    /// The answer was 429. The request was not applied.
    TooMany,
    /// The answer was 503 with `SlowDown`. The request was not applied.
    SlowDown,
    /// A list lacked new objects, or still had deleted ones.
    LateList,
    /// A page began with the last entry of the previous page.
    RepeatedEntry,
    /// A read returned fewer bytes than it should have; the tag and the length are right.
    Truncated,
    /// A read returned one wrong bit.
    Flipped,
    /// There was no connection, because of
    /// [`FaultyObjects::set_outage`](super::FaultyObjects::set_outage).
    Outage,
    /// The request was delayed.
    Delay,
}

/// An entry of the trace of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The operation: `get`, `put`, `delete` or `list`.
    pub operation: &'static str,
    /// The key, or the prefix of a list.
    pub key: String,
    /// The fault.
    pub injected: Injected,
}
