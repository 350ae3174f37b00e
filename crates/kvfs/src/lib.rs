//! KVFS: a POSIX file system on kvdb.
