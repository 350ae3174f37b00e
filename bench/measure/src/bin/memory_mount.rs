//! Mounts a file system in memory that does as little as the kernel needs: what it takes for an
//! operation is the price of the way through the kernel, below which no file system in user space
//! can get on this transport. For `scripts/bench_files.py`.
//!
//! `memory_mount DIR`: prints "mounted", and serves until it is unmounted. `KVFS_TRANSPORT=uring`:
//! over io_uring. `KVFS_PERMISSIONS=none`: for root alone, without the kernel's checks.

#[path = "../../../../crates/kvfs-fuse/tests/it/memory/mod.rs"]
mod memory;
#[path = "../../../../crates/kvfs-fuse/tests/it/way/mod.rs"]
mod way;

use std::path::Path;
use std::sync::Arc;

use kvfs_fuse::{MountOptions, mount};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: memory_mount DIR")?;
    let default_permissions = std::env::var_os("KVFS_PERMISSIONS").is_none_or(|v| v != "none");
    let options =
        MountOptions { source: "memory".into(), default_permissions, ..MountOptions::default() };
    let mut mounted =
        mount(Arc::new(memory::Memory::default()), Path::new(&dir), &options, &way::policy(false))?;
    println!("mounted");
    mounted.wait()?;
    Ok(())
}
