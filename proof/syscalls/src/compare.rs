//! The permitted differences between two file systems. `differences.md` has each entry with its
//! reason.

use crate::call::{Call, Step};

/// Returns whether a subject may give this answer if that of the reference differs.
pub fn allowed(step: &Step, subject: &str, reference: &str) -> bool {
    if same(subject, reference) {
        return true;
    }
    match &step.call {
        // Failing programs print messages of their own, so only the failure is compared.
        Call::Cp { .. } | Call::CpTree { .. } | Call::Tar { .. } | Call::Rsync { .. } => {
            (subject == "exit 0") == (reference == "exit 0")
        }
        _ => false,
    }
}

/// Returns whether two lines are equal. `?` on either side stands for something that cannot be
/// compared.
pub fn same(subject: &str, reference: &str) -> bool {
    let (mut these, mut those) = (subject.split(' '), reference.split(' '));
    subject == reference
        || loop {
            match (these.next(), those.next()) {
                (None, None) => break true,
                (Some(this), Some(that)) if this == that || this == "?" || that == "?" => {}
                _ => break false,
            }
        }
}
