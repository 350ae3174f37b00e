//! The part that begins transactions with the changes of others: those of a clone or a fork that is
//! merged, of a transaction that is rebased, or of a commit that is undone.

use std::sync::Arc;

use kvdb::Kvdb;

use super::opener::Opener;
use super::transactions::Transactions;
use super::watchers::Watchers;
use crate::fs::Fs;

pub(crate) struct Merger {
    pub(super) db: Kvdb,
    pub(super) mainline: Fs,
    pub(super) opener: Arc<Opener>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) transactions: Arc<Transactions>,
}
