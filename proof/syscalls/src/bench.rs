//! Runs one history on both sides, compares it call by call, and compares the resulting trees.

use std::cell::Cell;
use std::fmt;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::call::{Call, Step};
use crate::compare;
use crate::kernel::{path, sys};
use crate::marks::Marks;
use crate::mounted::{Mounted, Outcome};
use crate::side::{Side, Stopped};
use crate::tree;
use crate::worker::TIMED_OUT;

/// What surrounds the calls of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Plain,
    /// Its second half is in a transaction, which is committed.
    Commit,
    /// Its second half is in a transaction, which is aborted.
    Abort,
    /// The daemon is killed after a SAVE at each `kill` and at the end.
    Kill,
    /// The store is unmounted and mounted again at each `kill` and at the end.
    Remount,
    /// During the calls the daemon is replaced repeatedly by the same program.
    Upgrade,
    /// During the calls the daemon is killed repeatedly, and its keeper starts another one.
    Restart,
}

/// The first thing that the two sides did differently.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The step, or the number after the last one if the trees differ at the end.
    pub at: usize,
    pub what: String,
    pub subject: String,
    pub reference: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  subject:   {}\n  reference: {}", self.what, self.subject, self.reference)
    }
}

pub struct Bench {
    pub subject: PathBuf,
    pub reference: PathBuf,
    /// The user of each worker.
    pub users: Vec<u32>,
    pub mounted: Option<Mounted>,
    pub mode: Mode,
    pub isolation: String,
    rounds: u64,
    /// Histories that a program's time limit has ended.
    pub cut_off: Cell<u64>,
    /// The marks of the subject and of the reference.
    marks: [&'static Marks; 2],
}

/// The directory of a history, which its workers may leave by one `..`.
const HOME: &str = "home";

impl Bench {
    pub fn new(
        subject: PathBuf,
        reference: PathBuf,
        users: Vec<u32>,
        mode: Mode,
        mounted: Option<Mounted>,
    ) -> Outcome<Bench> {
        let marks = || Marks::new().map_err(|e| format!("no memory for marks: {}", e.name()));
        let marks = [marks()?, marks()?];
        Ok(Bench {
            subject,
            reference,
            users,
            mounted,
            mode,
            isolation: "si".to_owned(),
            rounds: 0,
            cut_off: Cell::new(0),
            marks,
        })
    }

    /// Returns whether the reference supports FALLOC_FL_ZERO_RANGE. tmpfs does not.
    pub fn reference_can_zero(&self) -> Outcome<bool> {
        std::fs::create_dir_all(&self.reference)
            .map_err(|e| format!("cannot make {}: {e}", self.reference.display()))?;
        let probe = self.reference.join("probe");
        let file = std::fs::File::create(&probe)
            .map_err(|e| format!("cannot make {}: {e}", probe.display()))?;
        let can =
            sys!(libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_ZERO_RANGE, 0, 4096)).is_ok();
        std::fs::remove_file(&probe)
            .map_err(|e| format!("cannot remove {}: {e}", probe.display()))?;
        Ok(can)
    }

    /// Runs a history in directories of its own, which it removes if both sides agree.
    pub fn run(&mut self, steps: &[Step]) -> Outcome<Option<Difference>> {
        self.rounds += 1;
        self.marks.iter().for_each(|marks| marks.clear());
        let directory = format!("round{}", self.rounds);
        for side in [&self.subject, &self.reference] {
            // Left by a run that was cut off.
            let _ = std::fs::remove_dir_all(side.join(&directory));
            let home = side.join(&directory).join(HOME);
            std::fs::create_dir_all(&home)
                .map_err(|e| format!("cannot make {}: {e}", home.display()))?;
            sys!(libc::chmod(path(&home.to_string_lossy()).as_ptr(), 0o777))
                .map_err(|e| format!("chmod: {}", e.name()))?;
        }
        let difference = self.run_in(&directory, steps)?;
        for side in [&self.subject, &self.reference] {
            let removed = std::fs::remove_dir_all(side.join(&directory));
            if difference.is_none() {
                removed.map_err(|e| {
                    format!("cannot remove {}: {e}", side.join(&directory).display())
                })?;
            }
        }
        Ok(difference)
    }

    fn run_in(&mut self, directory: &str, steps: &[Step]) -> Outcome<Option<Difference>> {
        if let (Mode::Commit | Mode::Abort, Some(mounted)) = (self.mode, &self.mounted) {
            let half = steps.len() / 2;
            match self.part(&self.subject, directory, steps, 0..half, |_, _| Ok(()))? {
                Ended::Alike => {}
                ended => return Ok(self.judged(ended)),
            }
            let before = whole(&self.reference.join(directory), self.marks[1]);
            let id = mounted.begin(&self.isolation)?;
            let end = if self.mode == Mode::Commit { "commit" } else { "abort" };
            match self.part(&mounted.view(), directory, steps, half..steps.len(), |_, _| {
                mounted.end(end, &id)
            }) {
                Ok(Ended::Alike) => {}
                ended => {
                    let _ = mounted.end("abort", &id);
                    return ended.map(|ended| self.judged(ended));
                }
            }
            let after = if self.mode == Mode::Commit {
                whole(&self.reference.join(directory), self.marks[1])
            } else {
                before
            };
            return Ok(trees(
                steps.len(),
                &format!("the trees behind the {end}"),
                &whole(&self.subject.join(directory), self.marks[0]),
                &after,
            ));
        }
        let mut from = 0;
        while from < steps.len() {
            let kill = steps[from..].iter().position(|step| step.call == Call::Kill {});
            let until = kill.map_or(steps.len(), |at| from + at);
            let restart = |subject: &Side, reference: &Side| {
                let Some(mounted) = &self.mounted else { return Ok(()) };
                match self.mode {
                    Mode::Kill => {
                        mounted.save()?;
                        mounted.kill()?;
                        subject.kill();
                        reference.kill();
                        mounted.mount_again()
                    }
                    _ => Ok(()),
                }
            };
            match self.part(&self.subject, directory, steps, from..until, restart)? {
                Ended::Alike => {}
                ended => return Ok(self.judged(ended)),
            }
            if let (Mode::Remount, Some(mounted)) = (self.mode, &self.mounted) {
                mounted.remount()?;
            }
            let (subject, reference) =
                both(&self.subject.join(directory), &self.reference.join(directory), self.marks);
            if let Some(difference) = trees(until, "the trees at the end", &subject, &reference) {
                return Ok(Some(difference));
            }
            from = until + usize::from(kill.is_some());
        }
        Ok(None)
    }

    /// Runs a part of a history with processes of its own. `last` runs while they still live.
    fn part(
        &self,
        root: &Path,
        directory: &str,
        steps: &[Step],
        part: std::ops::Range<usize>,
        last: impl FnOnce(&Side, &Side) -> Outcome<()>,
    ) -> Outcome<Ended> {
        let (base, steps) = (part.start, &steps[part]);
        let home = |side: &Path| side.join(directory).join(HOME).to_string_lossy().into_owned();
        let start = |side: &Path, marks| {
            Side::start(&home(side), &self.users, steps, marks)
                .map_err(|e| format!("cannot start: {}", e.name()))
        };
        let subject = start(root, self.marks[0])?;
        let reference = start(&self.reference, self.marks[1])?;
        let mode = self.mode;
        let replaced = matches!(mode, Mode::Upgrade | Mode::Restart);
        let running = AtomicBool::new(true);
        let mounted = self.mounted.as_ref().filter(|_| replaced);
        let upgrades = || -> Outcome<()> {
            while let Some(mounted) = mounted.filter(|_| running.load(Ordering::Relaxed)) {
                match mode {
                    Mode::Restart => mounted.restart()?,
                    _ => mounted.upgrade()?,
                }
            }
            Ok(())
        };
        let (on_subject, on_reference, upgraded) = std::thread::scope(|scope| {
            let other = scope.spawn(|| reference.run(steps));
            let upgrades = scope.spawn(upgrades);
            let this = subject.run(steps);
            running.store(false, Ordering::Relaxed);
            let upgraded = upgrades.join().unwrap_or_else(|_| Err("an upgrade panicked".into()));
            (this, other.join().unwrap_or_default(), upgraded)
        });
        upgraded?;
        let (on_subject, on_reference, cut) = until_cut_off(on_subject, on_reference);
        if let Some(difference) = results(base, steps, &on_subject, &on_reference) {
            return Ok(Ended::Different(difference));
        }
        if cut {
            return Ok(Ended::CutOff);
        }
        // Compares with everything still open and mapped, and again when all is closed.
        let (here, there) =
            both(&root.join(directory), &self.reference.join(directory), self.marks);
        if let Some(difference) =
            trees(base + steps.len(), "the trees with files open", &here, &there)
        {
            return Ok(Ended::Different(difference));
        }
        last(&subject, &reference)?;
        Ok(Ended::Alike)
    }

    fn judged(&self, ended: Ended) -> Option<Difference> {
        match ended {
            Ended::Alike => None,
            Ended::CutOff => {
                self.cut_off.set(self.cut_off.get() + 1);
                None
            }
            Ended::Different(difference) => Some(difference),
        }
    }
}

/// How a part of a history has ended.
enum Ended {
    Alike,
    /// A program reached its time limit, so its effect is a matter of chance, or the reference had
    /// no space.
    CutOff,
    Different(Difference),
}

/// The results before the first program that ran into its time limit on either side, or the first
/// call for which the reference has no room, and whether there is one.
fn until_cut_off(mut subject: Results, mut reference: Results) -> (Results, Results, bool) {
    let timed_out = |side: &Results| side.0.iter().position(|line| line == TIMED_OUT);
    let full = reference.0.iter().position(|line| line == "ENOSPC");
    let first = [timed_out(&subject), timed_out(&reference), full].into_iter().flatten().min();
    if let Some(at) = first {
        subject.0.truncate(at);
        reference.0.truncate(at);
        (subject.1, reference.1) = (None, None);
    }
    (subject, reference, first.is_some())
}

type Results = (Vec<String>, Option<Stopped>);

fn results(
    base: usize,
    steps: &[Step],
    subject: &Results,
    reference: &Results,
) -> Option<Difference> {
    for (at, step) in steps.iter().enumerate() {
        let answer = |side: &Results| match (side.0.get(at), &side.1) {
            (Some(line), _) => Some(line.clone()),
            (None, Some(stopped)) if stopped.at <= at => Some(format!("STOPPED: {}", stopped.why)),
            (None, _) => None,
        };
        let (Some(here), Some(there)) = (answer(subject), answer(reference)) else { continue };
        if !compare::allowed(step, &here, &there)
            || here.contains("WRONG")
            || here.starts_with("STOPPED")
        {
            return Some(Difference {
                at: base + at,
                what: step.to_string(),
                subject: here,
                reference: there,
            });
        }
    }
    let stopped = subject.1.as_ref().or(reference.1.as_ref())?;
    let what = steps.get(stopped.at).map(Step::to_string).unwrap_or_default();
    Some(Difference {
        at: base + stopped.at,
        what,
        subject: stopped.why.clone(),
        reference: String::new(),
    })
}

fn whole(directory: &Path, marks: &Marks) -> Vec<String> {
    tree::walk(libc::AT_FDCWD, &directory.to_string_lossy(), marks)
}

fn both(
    subject: &Path,
    reference: &Path,
    marks: [&'static Marks; 2],
) -> (Vec<String>, Vec<String>) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| whole(reference, marks[1]));
        (whole(subject, marks[0]), other.join().unwrap_or_default())
    })
}

fn trees(at: usize, what: &str, subject: &[String], reference: &[String]) -> Option<Difference> {
    if subject.len() == reference.len()
        && subject.iter().zip(reference).all(|(this, that)| compare::same(this, that))
    {
        return None;
    }
    let only = |these: &[String], those: &[String]| {
        let in_both = |line: &String| those.iter().any(|that| compare::same(line, that));
        let lines: Vec<&str> =
            these.iter().filter(|line| !in_both(line)).map(String::as_str).take(4).collect();
        lines.join("\n             ")
    };
    Some(Difference {
        at,
        what: what.to_owned(),
        subject: only(subject, reference),
        reference: only(reference, subject),
    })
}
