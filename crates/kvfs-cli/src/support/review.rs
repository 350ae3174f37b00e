//! Changes that are shown and decided on: differences, proposals, questions about them.

pub mod changes;
pub mod merge_requests;
pub mod proposed;
pub mod question;
pub mod reviewed;
