//! Mounts that publish: reads how far they are from `kvfs stat`, and unmounts them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{kvfs, succeeds};

pub fn umount(root: &Path) {
    succeeds(kvfs(&["umount"]).arg(root));
}

pub fn publishing(root: &Path) -> Value {
    let stat = succeeds(kvfs(&["stat", "--json"]).arg(root));
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    stat["publishing"].clone()
}

/// Waits until a mount says so of what it publishes.
#[track_caller]
pub fn awaited(root: &Path, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let now = publishing(root);
        if holds(&now) {
            return now;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {now}");
        std::thread::yield_now();
    }
}
