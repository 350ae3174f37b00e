//! Publications by the process that has the store open.

use std::path::Path;
use std::sync::Arc;

use indicatif::ProgressBar;
use kvdb::{Kvdb, Publisher, PushStats, RemoteStore};
use places::Address;
use places::publishing::{self, Shared};
use serde_json::{Value, json};

use crate::support::terminal::failures;
use crate::support::terminal::output::Outcome;

pub fn publish(
    db: &Kvdb,
    to: &RemoteStore,
    take: bool,
    bar: &ProgressBar,
) -> kvdb::Result<(Publisher, PushStats)> {
    publishing::push(db, to, take, &mut |now| {
        bar.set_length(now.zones_total);
        bar.set_position(now.zones);
        Ok(())
    })
}

/// Returns the statistics of a publication as JSON.
pub fn value(stats: PushStats) -> Value {
    json!({
        "generation": stats.generation, "zones": stats.zones, "objects": stats.objects,
        "bytes": stats.bytes, "live_bytes": stats.live_bytes,
    })
}

/// Publishes a served store to the address, for `KVFS.PUSH`. `by_itself` is the publisher of the
/// mount; a second publisher for its address would overtake it.
pub fn of_served(db: &Kvdb, address: &str, by_itself: Option<Arc<Shared>>) -> Outcome<String> {
    let to = Address::required(Path::new(address))?;
    let stats = match by_itself.filter(|own| own.is_to(&to)) {
        Some(own) => own.publish_by_hand(),
        None => {
            publish(db, &to.store(true)?, false, &ProgressBar::hidden()).map(|(_, stats)| stats)
        }
    };
    stats
        .map(|stats| value(stats).to_string())
        .map_err(|e| failures::of_database("cannot publish", e))
}
