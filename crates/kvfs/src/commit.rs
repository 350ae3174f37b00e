//! Commits and their effect on the inodes in memory: changes that wait in memory are committed
//! (`dirty`, `sync`), files without a name are removed (`orphans`), promises of space follow what
//! was written (`promised_ranges`), and memory follows the commit of a transaction (`apply_commit`)
//! and a state that was replaced as a whole (`replaced_state`).

pub(crate) mod apply_commit;
mod dirty;
pub(crate) mod orphans;
mod promised_ranges;
mod replaced_state;
pub(crate) mod sync;
