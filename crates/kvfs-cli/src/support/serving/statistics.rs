//! Statistics of an open store and its mount, as one JSON object.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kvdb::Kvdb;
use kvfs::Fs;
use kvfs_fuse::{Counters, KernelNotifier};
use places::following;
use places::publishing::Shared;

use crate::support::serving::figures;
use crate::support::stores::losses;

/// The sources of the statistics of a mount.
pub struct MountFigures {
    pub requests: Arc<Counters>,
    pub notifier: Arc<KernelNotifier>,
    pub uses_rings: bool,
    /// The number of restarts of the daemon by its keeper.
    pub begun_anew: Option<u64>,
    /// Set for a store that is published automatically.
    pub publishing: Option<Weak<Shared>>,
    /// Set for a store that is served to mounts elsewhere.
    pub served: Option<Weak<kvdb_wire::Server>>,
    /// Set for a store that follows published states.
    pub following: Option<Weak<following::Shared>>,
}

impl MountFigures {
    /// Returns the automatic publisher of the store.
    pub fn publishing(&self) -> Option<Arc<Shared>> {
        self.publishing.as_ref().and_then(Weak::upgrade)
    }
}

/// Returns the losses of a store, as `kvfs check` lists them.
pub fn lost(losses: Vec<kvfs::Loss>) -> serde_json::Value {
    losses.into_iter().map(|loss| losses::Loss::from(loss).to_json()).collect()
}

/// Returns the statistics of an open store, as a JSON object: for `kvfs stat`, and for clients of
/// the socket.
pub fn of_store(db: &Kvdb, fs: Option<&Fs>, mount: Option<&MountFigures>) -> String {
    let mut all = serde_json::Value::Object(figures::engine(&db.stats()));
    if let Some(fs) = fs {
        let s = fs.statistics();
        all["files"] = serde_json::json!({
            "inodes_in_memory": s.inodes, "dirty_bytes": s.dirty_bytes, "commits": s.commits, "pages_written": s.pages_written,
            "pages_patched": s.pages_patched, "bytes_written": s.bytes_written, "bytes_read": s.bytes_read, "next_inode": s.next_ino, "zone_size": s.zone_size,
            "files_read_ahead": s.files_read_ahead, "read_ahead_used": s.read_ahead_used, "read_ahead_wasted": s.read_ahead_wasted,
        });
    }
    if let Some(remote) = db.remote_stats() {
        all["remote"] = figures::remote(&remote);
    }
    let losses = fs.map_or_else(|| kvfs::losses(db), Fs::losses).unwrap_or_default();
    all["lost"] = lost(losses);
    if let Some(publishing) = mount.and_then(MountFigures::publishing) {
        all["publishing"] = publishing.figures();
    }
    let served = mount.and_then(|mount| mount.served.as_ref()).and_then(Weak::upgrade);
    if let Some(server) = served {
        all["served"] = figures::requests(&server.counts_by_request());
    }
    let following = mount.and_then(|mount| mount.following.as_ref()).and_then(Weak::upgrade);
    if let Some(following) = following {
        all["following"] = following.figures();
    }
    if let Some(MountFigures { requests, notifier, uses_rings, .. }) = mount {
        let round_trip = notifier.round_trip().map(|mean| mean.as_nanos() as f64 / 1000.0);
        let transport = if *uses_rings { "io_uring" } else { "/dev/fuse" };
        all["transport"] = serde_json::json!({"name": transport, "round_trip_micros": round_trip});
        let by_kind: serde_json::Map<_, _> =
            requests.seen().into_iter().map(|(name, n)| (name.to_string(), n.into())).collect();
        all["requests"] = by_kind.into();
        let micros = |(name, time): (&str, Duration)| {
            (name.to_string(), u64::try_from(time.as_micros()).unwrap_or(u64::MAX).into())
        };
        let times: serde_json::Map<_, _> = requests.times().into_iter().map(micros).collect();
        all["request_micros"] = times.into();
    }
    all.to_string()
}
