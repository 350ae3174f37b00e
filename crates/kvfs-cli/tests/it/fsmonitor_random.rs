//! Changes a work tree at random in every possible way. With the hook of `kvfs fsmonitor`, git
//! reports the same as when it examines everything. `KVFS_SEED=n` runs one seed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::place::{Place, kvfs, succeeds};
use crate::work_tree::{WorkTree, has_git, name};
use env::Random;

/// The command that shows a failure again, with the seed.
const SHOW: &str = "cargo test -p kvfs-cli --test it fsmonitor_random::";
const STEPS: u32 = 100;
const NAMES: [&[u8]; 9] =
    [b"a", b"b", b"c", b"a-b", b"a.b", b"new\nline", b"\xff", b"sp ace", b"ignored"];

struct World<'a> {
    tree: WorkTree<'a>,
    random: Random,
    /// The actions so far, for the report of a failure.
    done: Vec<String>,
}

/// The error of a change does not matter: the name exists, or does not, or is not a directory.
fn attempt<T>(result: std::io::Result<T>) -> &'static str {
    if result.is_ok() { "done" } else { "not possible" }
}

impl World<'_> {
    fn place(&self) -> &Place {
        self.tree.place
    }

    fn name(&mut self) -> OsString {
        name(self.random.pick(&NAMES).expect("some")).to_owned()
    }

    /// Every path below the work tree except those of git, with whether it is a directory.
    fn there(&self) -> BTreeMap<PathBuf, bool> {
        let (mut found, mut todo) = (BTreeMap::new(), vec![self.tree.root.clone()]);
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(&directory).expect("a directory") {
                let entry = entry.expect("an entry");
                if entry.file_name() == ".git" {
                    continue;
                }
                let is_directory = entry.file_type().expect("a type").is_dir();
                if is_directory {
                    todo.push(entry.path());
                }
                found.insert(entry.path(), is_directory);
            }
        }
        found
    }

    fn some(&mut self, directory: bool) -> PathBuf {
        let mut all: Vec<PathBuf> = self
            .there()
            .into_iter()
            .filter(|(_, is_directory)| *is_directory == directory)
            .map(|(path, _)| path)
            .collect();
        if directory {
            all.push(self.tree.root.clone());
        }
        self.random.pick(&all).cloned().unwrap_or_else(|| self.tree.path("none"))
    }

    /// A name in some directory, which may be taken.
    fn new_path(&mut self) -> PathBuf {
        self.some(true).join(self.name())
    }

    fn content(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.random.below(9000) as usize];
        self.random.fill(&mut bytes);
        bytes
    }

    /// A script that changes some files, for a transaction.
    fn script(&mut self) -> String {
        let directory = self.tree.root.strip_prefix(self.place().mnt()).expect("below");
        let mut script = format!("cd \"$KVFS_MOUNT/{}\"", directory.display());
        let names = ["a", "b", "c", "a-b", "a.b"];
        for _ in 0..1 + self.random.below(4) {
            let mut pick = || *self.random.pick(&names).expect("some");
            let (one, two) = (pick(), pick());
            let number = self.random.below(6);
            script.push_str(&match number {
                0 => format!("; echo {number} >> {one} || :"),
                1 => format!("; rm -rf {one}"),
                2 => format!("; mkdir -p {one}/{two} || :"),
                3 => format!("; mv -T {one} {two} || :"),
                4 => format!("; echo {two} > {one}/{two} || :"),
                _ => format!("; chmod +x {one} || :"),
            });
        }
        script
    }

    fn run(&mut self, options: &[&str]) -> String {
        let script = self.script();
        let mnt = self.place().mnt();
        let mut run = kvfs(&["run"]);
        run.args(options).arg(mnt).args(["--", "sh", "-c", &script]);
        format!("run {options:?} {script}: {}", run.output().expect("it runs").status)
    }

    fn import(&mut self) -> String {
        let from = tempfile::tempdir().expect("a directory");
        let (one, two) = (self.name(), self.name());
        fs::create_dir(from.path().join(&one)).expect("a directory");
        let content = self.content();
        fs::write(from.path().join(&one).join(&two), content).expect("a file");
        let to = self.some(true);
        let to = to.strip_prefix(self.place().mnt()).expect("below").as_os_str().to_owned();
        let mut import = kvfs(&["import"]);
        import.arg(self.place().mnt()).arg(from.path()).arg("--to").arg(&to);
        format!("import {one:?}/{two:?} to {to:?}: {}", import.output().expect("it runs").status)
    }

    fn merge(&mut self) -> String {
        let (mnt, path) = (self.place().mnt(), self.new_path());
        let tried = |command: &mut Command| command.output().expect("it runs").status.success();
        succeeds(kvfs(&["snapshot", "create"]).arg(&mnt).arg("base"));
        succeeds(kvfs(&["clone", "create"]).arg(&mnt).args(["base", "trial"]));
        let clone = mnt.join(".kvfs/clone/trial");
        let content = self.content();
        let there = clone.join(path.strip_prefix(&mnt).expect("below"));
        let written = attempt(fs::write(there, content));
        let _ = attempt(fs::write(self.new_path(), "beside"));
        let merged = tried(kvfs(&["merge"]).arg(&clone));
        succeeds(kvfs(&["clone", "drop"]).arg(&mnt).arg("trial"));
        succeeds(kvfs(&["snapshot", "drop"]).arg(&mnt).arg("base"));
        format!("merge of a clone with {path:?} {written}: {merged}")
    }

    fn step(&mut self) -> String {
        match self.random.below(24) {
            0 | 1 => {
                let (path, content) = (self.new_path(), self.content());
                format!("write {path:?}: {}", attempt(fs::write(&path, content)))
            }
            2 => {
                let (path, at) = (self.some(false), self.random.below(5000));
                let open = OpenOptions::new().write(true).open(&path);
                let written = open.and_then(|mut file| {
                    file.seek(SeekFrom::Start(at))?;
                    file.write_all(b"in place")
                });
                format!("write into {path:?} at {at}: {}", attempt(written))
            }
            3 => {
                let path = self.some(false);
                let open = OpenOptions::new().append(true).open(&path);
                format!("append {path:?}: {}", attempt(open.and_then(|mut f| f.write_all(b"more"))))
            }
            4 => {
                let (path, size) = (self.some(false), self.random.below(9000));
                let open = OpenOptions::new().write(true).open(&path);
                format!("truncate {path:?}: {}", attempt(open.and_then(|f| f.set_len(size))))
            }
            5 => {
                let (path, mode) =
                    (self.some(false), 0o644 | (self.random.below(2) * 0o111) as u32);
                let set = fs::set_permissions(&path, Permissions::from_mode(mode));
                format!("chmod {path:?}: {}", attempt(set))
            }
            6 => {
                let (from, to) = (self.some(false), self.new_path());
                format!("rename {from:?} {to:?}: {}", attempt(fs::rename(&from, &to)))
            }
            7 | 8 => {
                let (from, to) = (self.some(true), self.new_path());
                if from == self.tree.root {
                    return "nothing".into();
                }
                format!("rename directory {from:?} {to:?}: {}", attempt(fs::rename(&from, &to)))
            }
            9 => {
                let (from, to) = (self.some(false), self.new_path());
                format!("link {from:?} {to:?}: {}", attempt(fs::hard_link(&from, &to)))
            }
            10 => {
                let (from, to) = (self.name(), self.new_path());
                format!("symlink {from:?} {to:?}: {}", attempt(symlink(&from, &to)))
            }
            11 => {
                let path = self.some(false);
                format!("unlink {path:?}: {}", attempt(fs::remove_file(&path)))
            }
            12 | 13 => {
                let path = self.new_path();
                format!("mkdir {path:?}: {}", attempt(fs::create_dir(&path)))
            }
            14 => {
                let path = self.some(true);
                if path == self.tree.root {
                    return "nothing".into();
                }
                match self.random.one_in(2) {
                    true => format!("rm -r {path:?}: {}", attempt(fs::remove_dir_all(&path))),
                    false => {
                        let ended = kvfs(&["rm", "-r"]).arg(&path).output().expect("it runs");
                        format!("kvfs rm -r {path:?}: {}", ended.status)
                    }
                }
            }
            15 => self.import(),
            16 => self.run(&[]),
            17 => self.run(&["--abort"]),
            18 => {
                let ended = kvfs(&["undo"]).arg(self.place().mnt()).output().expect("it runs");
                format!("undo: {}", ended.status)
            }
            19 => self.merge(),
            20 | 21 => {
                let (one, two, aside) = (self.some(true), self.some(true), self.tree.path("aside"));
                let swapped = fs::rename(&one, &aside)
                    .and_then(|()| fs::rename(&two, &one))
                    .and_then(|()| fs::rename(&aside, &two));
                format!("change places {one:?} {two:?}: {}", attempt(swapped))
            }
            22 => {
                self.tree.add_all();
                "commit".into()
            }
            _ => {
                let stashed = self.tree.command(&["checkout", "--quiet", "--", "."]).output();
                format!("checkout: {}", stashed.expect("git runs").status)
            }
        }
    }
}

fn history(seed: u64) {
    let Some(place) = Place::new() else { return };
    let options = if seed.is_multiple_of(3) { "writeback" } else { "nowriteback" };
    succeeds(place.mount(&["-o", options]).stdin(std::process::Stdio::null()));
    let tree = WorkTree::new(&place, if seed.is_multiple_of(2) { "" } else { "in/project" });
    tree.write(".gitignore", "ignored\n");
    if !seed.is_multiple_of(4) {
        tree.git(&["config", "core.untrackedCache", "true"]);
    }
    tree.add_all();
    let mut world = World { tree, random: Random::new(seed), done: Vec::new() };
    let (mut token, mut lists) = (world.tree.token(), 0);
    for _ in 0..STEPS {
        let step = world.step();
        world.done.push(step);
        let done = || format!("{SHOW}, KVFS_SEED={seed}:\n{}", world.done.join("\n"));
        world.tree.agrees(&done());
        if world.random.one_in(10) {
            let answer = world.tree.hook(&token);
            lists += u32::from(answer.paths.is_some());
            token = answer.token;
        }
    }
    assert!(lists > 0, "{SHOW}, KVFS_SEED={seed}: everything, always");
}

#[test]
fn git_sees_with_the_hook_what_it_sees_without() {
    if !has_git() {
        return;
    }
    let seed = std::env::var("KVFS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = seed.map_or_else(|| (1..=8).collect(), |seed| vec![seed]);
    std::thread::scope(|scope| {
        let all: Vec<_> = seeds.iter().map(|&seed| scope.spawn(move || history(seed))).collect();
        for one in all {
            if let Err(panic) = one.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
