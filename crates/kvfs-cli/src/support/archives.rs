//! Trees of files on their way into a store and out of it: tar streams and directories.

pub mod export_tree;
pub mod import_items;
pub mod import_mounted;
pub mod importer;
pub mod made_by;
pub mod pax;
pub mod sources;
pub mod tar_stream;
pub mod waiting_files;
