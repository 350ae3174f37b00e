//! Hosts of keys whose operations a test watches, delays or replaces.

/// Writes the named acts of a host (`begin`, `commit`, `abort`) as those of the store in its field
/// `db`. The test writes the others itself.
macro_rules! acts_of_the_store {
    (begin) => {
        fn begin(&self, options: kvdb::TransactionOptions) -> kvdb::Result<kvdb::Transaction> {
            kvdb_wire::Host::begin(&self.db, options)
        }
    };
    (commit) => {
        fn commit(&self, transaction: &kvdb::Transaction, synced: bool) -> kvdb::Result<()> {
            kvdb_wire::Host::commit(&self.db, transaction, synced)
        }
    };
    (abort) => {
        fn abort(&self, transaction: &kvdb::Transaction) -> kvdb::Result<()> {
            kvdb_wire::Host::abort(&self.db, transaction)
        }
    };
    ($($act:ident),+) => {
        $(crate::hosts::acts_of_the_store! { $act })+
    };
}

pub(crate) use acts_of_the_store;
