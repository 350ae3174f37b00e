//! The resources that a process has used, as the kernel counts them: bytes to and from storage,
//! processor time, memory and space.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Bytes that this process sent to storage.
    pub written: u64,
    /// Bytes that this process fetched from storage.
    pub read: u64,
    pub cpu_s: f64,
    /// Requests read and bytes written by the device, for all processes; `None`: the file system
    /// has no device of its own.
    pub device: Option<(u64, u64)>,
}

/// Parses `name: value` lines. A unit after the value is dropped.
fn table(path: &str) -> HashMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_string(), value.split_whitespace().next()?.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn cpu_s() -> f64 {
    // SAFETY: an all-zero rusage is a valid value, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Processor time of this process's threads whose names pass `wanted`, of those that live.
pub fn threads_cpu_s(wanted: fn(&str) -> bool) -> f64 {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0.0 };
    // SAFETY: sysconf has no memory to get wrong.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let of = |task: fs::DirEntry| {
        let name =
            fs::read_to_string(task.path().join("comm")).ok().filter(|n| wanted(n.trim_end()))?;
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // After the name, which may contain anything, the state is the first field, and user and
        // system time are the twelfth and thirteenth.
        let fields = stat.get(stat.rfind(')')? + 1..).filter(|_| !name.is_empty())?;
        let number = |i: usize| fields.split_whitespace().nth(i)?.parse::<u64>().ok();
        Some((number(11)? + number(12)?) as f64 / ticks)
    };
    tasks.flatten().filter_map(of).sum()
}

/// Completed read requests and bytes written of the device that holds `dir`.
fn device(dir: &Path) -> Option<(u64, u64)> {
    let dev = fs::metadata(dir).ok()?.dev();
    let path = format!("/sys/dev/block/{}:{}/stat", libc::major(dev), libc::minor(dev));
    let text = fs::read_to_string(path).ok()?;
    let fields: Vec<u64> = text.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    Some((*fields.first()?, fields.get(6)? * 512))
}

impl Reading {
    pub fn now(dir: &Path) -> Reading {
        let io = table("/proc/self/io");
        let of = |name: &str| io.get(name).copied().unwrap_or(0);
        Reading {
            written: of("write_bytes"),
            read: of("read_bytes"),
            cpu_s: cpu_s(),
            device: device(dir),
        }
    }
}

/// Blocks of all files under `dir`, bytes.
pub fn space(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let of = |e: fs::DirEntry| match e.metadata() {
        Ok(m) if m.is_dir() => space(&e.path()),
        Ok(m) => m.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// Peak resident memory of this process, bytes.
pub fn peak_rss() -> u64 {
    table("/proc/self/status").get("VmHWM").map_or(0, |kib| kib << 10)
}

/// The samples.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Since the start, and operations done by then.
    pub progress: Vec<(f64, u64)>,
    pub space_peak: u64,
    pub anon_peak: u64,
}

/// A thread that samples every 100 ms, and measures the space less often if that takes long.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    samples: Arc<Mutex<Samples>>,
    thread: Option<JoinHandle<()>>,
}

const EVERY: Duration = Duration::from_millis(100);

impl Sampler {
    /// Watches `dir`, and `done`: operations so far.
    pub fn start(dir: PathBuf, done: Arc<AtomicU64>) -> Sampler {
        let (stop, samples) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Samples::default())));
        let thread = {
            let (stop, samples) = (stop.clone(), samples.clone());
            std::thread::spawn(move || watch(&dir, &done, &stop, &samples))
        };
        Sampler { stop, samples, thread: Some(thread) }
    }

    pub fn stop(mut self) -> Samples {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        self.samples.lock().map(|s| s.clone()).unwrap_or_default()
    }
}

fn watch(dir: &Path, done: &AtomicU64, stop: &AtomicBool, samples: &Mutex<Samples>) {
    let begun = Instant::now();
    let mut next_space = begun;
    loop {
        let last = stop.load(Ordering::Relaxed);
        let at = Instant::now();
        let mut taken = 0;
        if at >= next_space || last {
            taken = space(dir);
            // Measuring takes at most a hundredth of the time.
            next_space = at + EVERY.max(at.elapsed() * 100);
        }
        let anon = table("/proc/self/status").get("RssAnon").map_or(0, |kib| kib << 10);
        let Ok(mut s) = samples.lock() else { return };
        s.space_peak = s.space_peak.max(taken);
        s.anon_peak = s.anon_peak.max(anon);
        s.progress.push((begun.elapsed().as_secs_f64(), done.load(Ordering::Relaxed)));
        drop(s);
        if last {
            return;
        }
        std::thread::park_timeout(EVERY);
    }
}

/// `points` thinned out to about `n`, both ends kept.
pub fn thin(points: &[(f64, u64)], n: usize) -> Vec<(f64, u64)> {
    let step = points.len().div_ceil(n).max(1);
    let mut out: Vec<(f64, u64)> =
        points.iter().step_by(step).map(|&(s, ops)| ((s * 1e3).round() / 1e3, ops)).collect();
    if let Some(&(s, ops)) = points.last().filter(|_| !(points.len() - 1).is_multiple_of(step)) {
        out.push(((s * 1e3).round() / 1e3, ops));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_both_ends() {
        let points: Vec<(f64, u64)> = (0..1000).map(|i| (i as f64, i)).collect();
        for n in [1, 7, 100, 999, 5000] {
            let thinned = thin(&points, n);
            assert_eq!((thinned[0].1, thinned.last().map(|p| p.1)), (0, Some(999)));
            assert!(thinned.len() <= n + 1);
        }
        assert!(thin(&[], 10).is_empty());
    }

    #[test]
    fn what_is_written_is_counted() {
        let dir = std::env::temp_dir().join(format!("kvbench-meter-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("a"), vec![1; 1 << 20]).unwrap();
        fs::File::open(dir.join("a")).unwrap().sync_all().unwrap();
        assert!(space(&dir) >= 1 << 20);
        assert!(peak_rss() > 1 << 20);
        fs::remove_dir_all(&dir).unwrap();
    }
}
