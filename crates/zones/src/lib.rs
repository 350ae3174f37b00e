//! A log-structured device.
