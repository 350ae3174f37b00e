//! Zones in object storage: a store whose local file is a cache, or the beginning of a store of its
//! own. A zone that was published never changes, and lies at the same address everywhere, so
//! references to it are valid wherever the zone table is.
//!
//! - `table` maps each zone to the objects that hold its bytes.
//! - `publish` writes zones to objects, except those that are `known` to lie there; `writes`
//!   returns which of the zones read before were written since.
//! - `fetch` reads parts of zones into the local file; `parts` records which are there.
//! - `at_once` makes several requests at the same time.
//! - `in_line` finds sequential readers, to fetch ahead of them; `requests` limits the requests in
//!   flight; `second_get` repeats a request that takes long.
//! - `device` is the file as the store sees it, which fetches missing parts.
//! - `follow` lets another state take the place of the one that is read.
//! - `first_reads` are bytes that a published state includes, for the first answers.
//! - `record` is the record of all this in the file itself.
//!
//! Zones of the table are never freed, so that no zone is both remote and local: the store writes
//! to other zones. Zone numbers are plentiful, and a sparse file takes no space for zones that were
//! not read.

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
