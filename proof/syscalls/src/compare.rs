//! What two file systems may do differently. Each entry stands in `differences.md` with its reason.

use crate::call::{Call, Step};

/// Whether a subject may answer so where the reference answers otherwise.
pub fn allowed(step: &Step, subject: &str, reference: &str) -> bool {
    if same(subject, reference) {
        return true;
    }
    match &step.call {
        // Programs that fail say why in words of their own; that they fail is compared.
        Call::Cp { .. } | Call::CpTree { .. } | Call::Tar { .. } | Call::Rsync { .. } => {
            (subject == "exit 0") == (reference == "exit 0")
        }
        _ => false,
    }
}

/// Whether two lines say the same; `?` on either side is what cannot be compared.
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
