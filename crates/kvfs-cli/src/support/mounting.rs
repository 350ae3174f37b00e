//! The options of a mount: the table of them, the words of `-o`, the configuration file.

pub mod mount_config;
pub mod mount_options;
pub mod mount_settings;
pub mod mount_table;
pub mod mount_words;
