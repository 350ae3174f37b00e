//! Zones in object storage, for a store whose local file is a cache or a fork. A published zone
//! never changes, and lies at the same address everywhere, so references to it are valid wherever
//! the zone table is available.
//!
//! - `table` maps each zone to the objects that hold its bytes.
//! - `publish` writes zones to objects, except those that are `known` to lie there. `writes` tracks
//!   which zones were written after a publication has read them.
//! - `fetch` reads parts of zones into the local file; `parts` records which parts are in the file.
//! - `at_once` makes several requests at the same time.
//! - `in_line` finds sequential readers, to fetch ahead of them; `requests` limits the requests in
//!   flight; `second_get` repeats a request that takes long.
//! - `device` is the file as the store sees it, which fetches missing parts.
//! - `follow` replaces the state that is read by another state.
//! - `first_reads` are bytes that a published state includes, so that the first reads need no
//!   request.
//! - `record` keeps the records of all this in the local file.
//!
//! Zones of the table are never freed, and the store writes to other zones, so no zone is both
//! remote and local. Zone numbers are plentiful, and a sparse file takes no space for zones that
//! were not read.

mod at_once;
mod counters;
mod device;
mod fetch;
mod first_reads;
mod follow;
mod in_line;
mod known;
mod parts;
mod publish;
mod record;
mod requests;
mod second_get;
mod table;
mod writes;

pub use counters::RemoteStats;
pub use fetch::{FETCHED, OnWait, RemoteOptions};
pub use first_reads::FirstReads;
pub use follow::TableHold;
pub use known::{Fingerprint, Known, Marks};
pub use publish::{Progress, Publication, Published, Watch};
pub use record::{Home, read_claim, write_claim};
pub use table::{MAX_OBJECT, MAX_PIECES, MAX_ZONES, Piece, ZoneObject, ZoneTable};

pub(crate) use device::RemoteDevice;
pub(crate) use fetch::Remote;
pub(crate) use first_reads::MOST_FIRST;
pub(crate) use parts::Parts;
pub(crate) use publish::{Source, publish};
pub(crate) use record::{take_parts, write_parts};
pub(crate) use writes::Writes;
