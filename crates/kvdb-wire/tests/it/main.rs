//! The behaviour tests of `kvdb-wire` as one program: a module a theme. One link instead of one for
//! each file is most of the time that a build of the tests takes.

mod wire;

mod files;
mod hostile;
mod late_frames;
mod long_changes;
mod served_files;
mod served_transactions;
mod shares;
mod simulation;
mod waiting;
