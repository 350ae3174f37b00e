//! Zones in object storage: a store of which the local file is a cache, or the beginning of one of
//! its own. A zone that was published never changes, and lies at the same address everywhere, so
//! what refers to it is valid wherever the zone table is.
//!
//! - `table` says where the bytes of each zone lie.
//! - `publish` writes zones to objects, but for those that are `known` to lie there; of what was
//!   read before, `writes` tells whether it was written since.
//! - `fetch` reads parts of them into the local file, which `parts` keeps the record of.
//! - `in_line` are readers that are kept ahead of; `requests` limits what is under way; a request
//!   that takes long is made again by `second_get`.
//! - `device` is the file as the store sees it, which fetches what it lacks.
//! - `follow` has another state take the place of the one that is read.
//! - `first_reads` are bytes that a published state has with it, for the first answers.
//! - `record` is what the file itself says of all this.
//!
//! Zones of the table are never freed, so that no zone is both: what the store writes, it writes to
//! other zones. Numbers of zones are plenty, and a sparse file has nothing where nothing was read.

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
pub use fetch::{OnWait, RemoteOptions};
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
