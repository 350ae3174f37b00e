//! Runs a case: a load and the reads after it. Each phase has a child process of its own, and
//! scratch data is deleted at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::memory_limit::MemoryLimit;
use crate::outcome::Outcome;
use crate::spec::{Kind, Read, Spec, name};

/// Warm gets for one cold get: so many that most blocks of a data set of some hundred MiB are asked
/// for more than once.
const WARM: u64 = 20;

/// Scratch data, deleted when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the load of `spec` and then `reads`; `spec.settings.dir` is emptied before and after. Each
/// outcome goes to `sink` as it comes.
pub fn run(
    spec: &Spec,
    reads: &[Read],
    get_ops: u64,
    sink: &mut dyn FnMut(Outcome) -> Result<()>,
) -> Result<()> {
    let dir = &spec.settings.dir;
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let _scratch = Scratch(dir.clone());
    drop_caches();
    sink(child(spec)?)?;
    for &read in reads {
        // A short range reads a hundred tuples. Warm gets are counted after everything was read
        // before, so half of these gets are not counted.
        let ops = if read.warm() { get_ops * WARM } else { get_ops };
        let ops = if read.kind() == Kind::Short { (ops / 100).max(100) } else { ops };
        let mut spec = Spec { read: Some(read), ops, series: None, ..spec.clone() };
        if !read.warm() {
            drop_caches();
        }
        let limit = match read.limited() {
            false => None,
            true => {
                let bytes = (spec.count() * spec.tuple_bytes() / 4).max(64 << 20);
                match MemoryLimit::new(bytes) {
                    Ok(limit) => {
                        // The engine's own budget has to fit, with room for the page cache.
                        spec.settings.memory = spec.settings.memory.min(bytes / 2);
                        spec.settings.write_buffer =
                            spec.settings.write_buffer.min(spec.settings.memory / 8);
                        spec.memory_limit = Some(bytes);
                        spec.group = Some(limit.group().to_path_buf());
                        Some(limit)
                    }
                    Err(e) => {
                        eprintln!("{} skipped: memory cannot be limited here: {e:#}", name(&read));
                        continue;
                    }
                }
            }
        };
        let outcome = child(&spec);
        drop(limit);
        sink(outcome?)?;
    }
    Ok(())
}

fn child(spec: &Spec) -> Result<Outcome> {
    let program = std::env::current_exe()?;
    let output = Command::new(program)
        .arg("phase")
        .arg(serde_json::to_string(spec)?)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the child process")?;
    if !output.status.success() {
        bail!("{} {}: the child process failed: {}", spec.engine, name(&spec.load), output.status);
    }
    serde_json::from_slice(&output.stdout).context("the child process did not print an outcome")
}

/// Writes out what is dirty and drops the page cache, so that a case starts as the one before did.
fn drop_caches() {
    // SAFETY: sync has no arguments and no failure.
    unsafe { libc::sync() };
    if fs::write(Path::new("/proc/sys/vm/drop_caches"), "3").is_err() {
        eprintln!("the page cache cannot be dropped (root can): cold figures are warm ones");
    }
}
