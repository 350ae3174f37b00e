//! The processes that serve a store: the daemon of a mount and its keeper, the server of clients,
//! their statistics.

pub mod daemon;
pub mod deaths;
pub mod figures;
pub mod guest;
pub mod handover;
pub mod http;
pub mod keeper;
pub mod metrics;
pub mod network;
pub mod publications;
pub mod scripts;
pub mod scrubbing;
pub mod served_files;
pub mod served_reviews;
pub mod service;
pub mod statistics;
pub mod told_kernel;
pub mod transactions;
pub mod upgrade;
pub mod wire_server;
