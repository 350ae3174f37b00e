//! Parts that several commands use, in rooms by theme.

pub mod archives;
pub mod layered_runs;
pub mod layers;
pub mod machine;
pub mod mounting;
pub mod mounts;
pub mod over;
pub mod review;
pub mod serving;
pub mod stores;
pub mod terminal;
