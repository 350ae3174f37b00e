//! The behaviour tests of `kvdb-server` as one program, with a module for each theme. Linking one
//! program instead of one for each file saves most of the time of building the tests.

#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "../../../kvdb/tests/it/history/mod.rs"]
mod history;
mod served;

mod admission;
mod beside_redis;
mod blocking;
mod channels;
mod clients;
mod commands;
mod draws;
mod dump;
mod error_codes;
mod expired_fields;
mod expiring_fields;
mod expiry;
mod feed;
mod feed_model;
mod geo;
mod histories;
mod hyperloglog;
mod introspection;
mod lock_waits;
mod long_members;
mod long_members_order;
mod long_string_edges;
mod long_strings;
mod long_strings_model;
mod model;
mod monitor;
mod parsers;
mod peers;
mod pipelines;
mod queues;
mod range_events;
mod ranks;
mod reviews;
mod small_changes;
mod snapshots;
mod sort;
mod streams;
mod tls;
mod tracking;
mod transactions;
mod types;
mod types_model;
mod undo;
