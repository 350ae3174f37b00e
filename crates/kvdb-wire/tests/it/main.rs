//! The behaviour tests of `kvdb-wire` as one program, with a module for each theme. Linking one
//! program instead of one for each file saves most of the time of building the tests.

mod wire;

mod files;
mod hostile;
mod hosts;
mod late_frames;
mod lease_waits;
mod leases;
mod long_changes;
mod once;
mod references;
mod reviews;
mod served_files;
mod served_transactions;
mod served_trees;
mod shares;
mod simulation;
mod snapshots;
mod tenants;
mod vsocks;
mod waiting;
