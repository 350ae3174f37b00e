//! Listings of directories, and what they must contain.

use crate::kernel::{Answer, sys};
use crate::marks::Marks;
use crate::tree::{Closing, entries, kind_of, names_of};

/// A listing in progress: the names that existed before, and the listed ones.
pub(super) struct Scan {
    pub dir: Closing,
    pub before: Vec<(String, u8, u64)>,
    pub seen: Vec<(String, u8, u64)>,
}

pub(super) fn show_names(names: &[(String, u8, u64)]) -> String {
    let shown: Vec<String> =
        names.iter().map(|(name, kind, _)| format!("{}{}", kind_of(*kind), name)).collect();
    shown.join(" ").replace(&"n".repeat(255), "%255")
}

/// Every name that existed from the beginning to the end must have been listed exactly once.
pub(super) fn end_scan(mut scan: Scan, marks: &Marks) -> Answer<String> {
    let mut buffer = [0u8; 4096];
    while entries(scan.dir.0, &mut buffer, &mut scan.seen)? {}
    sys!(libc::lseek(scan.dir.0, 0, libc::SEEK_SET))?;
    let after = names_of(scan.dir.0)?;
    let mut stayed: Vec<_> = scan.before.iter().filter(|entry| after.contains(entry)).collect();
    stayed.retain(|entry| {
        !marks.moved.has(entry.2) && scan.seen.iter().filter(|seen| seen.0 == entry.0).count() != 1
    });
    stayed.sort();
    let wrong: Vec<&str> = stayed.iter().map(|entry| entry.0.as_str()).collect();
    Ok(if wrong.is_empty() {
        "0".to_owned()
    } else {
        format!("WRONG: not listed once: {}", wrong.join(" "))
    })
}
