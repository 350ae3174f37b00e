//! The behaviour tests of `kvfs` as one program, with a module for each theme. Linking one program
//! instead of one for each file saves most of the time of building the tests.

mod forked;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "../../../kvdb/tests/it/held/mod.rs"]
mod held;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "../../../kvdb/tests/it/history/mod.rs"]
mod history;
mod random_tree;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "../../../kvdb/tests/it/script/mod.rs"]
mod script;
mod world;

mod aged_tree;
mod allocate;
mod anomalies;
mod beneath_clones;
mod branch_histories;
mod clone_tree;
mod cold_reads;
mod compress;
mod data;
mod difference;
mod difference_oracle;
mod directory_locks;
mod drops_follow_writes;
mod durable_views;
mod everything;
mod failed_store;
mod first_byte;
mod flips;
mod following;
mod fsync_beside_bulk;
mod fsync_cost;
mod full;
mod histories;
mod inode_numbers;
mod interleavings;
mod laid_by_name;
mod laid_when_quiet;
mod limits;
mod limits_of_files;
mod listing;
mod lost_blocks;
mod merge;
mod merge_forks;
mod merge_power_cut;
mod merge_random;
mod model;
mod name_space_zones;
mod names;
mod nested_views;
mod no_space;
mod numbers_of_branches;
mod older_stores;
mod orphans;
mod partial_writes;
mod power_cut;
mod promised_space;
mod read_by_place;
mod reading_around;
mod rebase;
mod remove_tree;
mod rename;
mod repair;
mod schedule;
mod short_lived_files;
mod snapshots;
mod stale_pages;
mod threads;
mod transaction_power_cut;
mod undo;
mod views;
mod xattr;
