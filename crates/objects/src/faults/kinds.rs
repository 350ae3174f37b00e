//! The kinds of faults, their rates, and the entries of a trace of them.

use std::time::Duration;

/// The rate of each fault: it strikes once in this many requests that it can strike, at random; 0
/// is never. All are 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// [`Injected::LostRequest`], of all requests.
    pub lost_request: u64,
    /// [`Injected::LostAnswer`], of puts and deletions.
    pub lost_answer: u64,
    /// [`Injected::LateRequest`], of puts and deletions.
    pub late_request: u64,
    /// [`Injected::Conflict`], of puts with a condition.
    pub conflict: u64,
    /// [`Injected::TooMany`], of all requests.
    pub too_many: u64,
    /// [`Injected::SlowDown`], of all requests.
    pub slow_down: u64,
    /// [`Injected::LateList`], of lists.
    pub late_list: u64,
    /// [`Injected::RepeatedEntry`], of lists that continue after a page.
    pub repeated_entry: u64,
    /// [`Injected::Truncated`], of reads.
    pub truncated: u64,
    /// [`Injected::Flipped`], of reads.
    pub flipped: u64,
    /// [`Injected::Delay`], of all requests.
    pub delay: u64,
    /// The longest delay.
    pub longest_delay: Duration,
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Injected {
    /// The request was not applied, and its sender does not know that.
    LostRequest,
    /// The request was applied (or its condition failed), and its sender does not know which.
    LostAnswer,
    /// The sender has given up on the request, which will be applied during a later one.
    LateRequest,
    /// A late request has arrived, and was applied if its condition held.
    Arrived,
    /// The answer was 409, and the put was applied or not.
    Conflict,
    /// The answer was 429. Nothing was applied.
    TooMany,
    /// The answer was 503 with `SlowDown`. Nothing was applied.
    SlowDown,
    /// A list lacked new objects, or had deleted ones.
    LateList,
    /// A page began with the last entry of the page before.
    RepeatedEntry,
    /// A read returned fewer bytes than it should have; tag and length are right.
    Truncated,
    /// A read returned one wrong bit.
    Flipped,
    /// There was no connection, because of
    /// [`FaultyObjects::set_outage`](super::FaultyObjects::set_outage).
    Outage,
    /// The request was delayed.
    Delay,
}

/// An entry of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `get`, `put`, `delete` or `list`.
    pub operation: &'static str,
    /// The key, or the prefix of a list.
    pub key: String,
    /// The fault.
    pub injected: Injected,
}
