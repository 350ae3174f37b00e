//! Programs that use a mount while its daemon is disturbed: git, SQLite, a compiler, and the usual
//! commands for files. Each of them verifies its own results, and ends with an error when anything
//! fails.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Ends a program when the test ends, in whatever way.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The programs that run.
pub struct Programs(Vec<(&'static str, Ended)>);

impl Programs {
    /// Starts the installed programs, each in a directory of its own below `at`. They end when a
    /// file `over` exists.
    pub fn start(at: &Path, over: &Path) -> Programs {
        let scripts = [("git", GIT), ("sqlite3", SQLITE), ("cc", BUILD), ("sh", FILES)];
        let runs = scripts.into_iter().filter(|(program, _)| {
            let there = Command::new("which").arg(program).stdout(Stdio::null()).status();
            let there = there.is_ok_and(|status| status.success());
            if !there {
                eprintln!("SKIPPED: there is no {program} here");
            }
            there
        });
        let workers = runs.map(|(program, script)| {
            let dir = at.join(program);
            fs::create_dir(&dir).expect("made");
            let worker = Command::new("sh")
                .args(["-ec", script, program])
                .env("OVER", over)
                .current_dir(dir)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("sh");
            (program, Ended(worker))
        });
        Programs(workers.collect())
    }

    /// Each of them ends on command, and not before.
    #[track_caller]
    pub fn none_has_ended(&mut self, context: &str) {
        for (program, worker) in &mut self.0 {
            if let Some(status) = worker.0.try_wait().expect("it can be asked") {
                let mut said = String::new();
                if let Some(stderr) = &mut worker.0.stderr {
                    let _ = stderr.read_to_string(&mut said);
                }
                panic!("{context}, {program}: {status}: {said}");
            }
        }
    }

    /// Ends the programs. Fails if one of them has seen an error or done no work.
    #[track_caller]
    pub fn end(self, over: &Path, context: &str) {
        fs::write(over, b"").expect("written");
        for (program, mut worker) in self.0 {
            let (mut out, mut said) = (String::new(), String::new());
            worker.0.stdout.take().expect("piped").read_to_string(&mut out).expect("UTF-8");
            worker.0.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
            let status = worker.0.wait().expect("it ends");
            assert!(status.success(), "{context}, {program}: {status}: {said}");
            let rounds: usize = out.lines().last().and_then(|l| l.parse().ok()).unwrap_or(0);
            assert!(rounds > 0, "{context}, {program}: {out}");
        }
    }
}

/// Commits, packs, and verifies the repository.
const GIT: &str = r#"
git init -q .; git config user.email a@b; git config user.name a; git config gc.auto 0
n=0
while [ ! -e "$OVER" ]; do
    n=$((n + 1)); echo $n > f; mkdir -p d$((n % 7)); echo $n > d$((n % 7))/f
    git add -A; git commit -q -m $n
    [ "$(git status --porcelain)" = "" ]
    [ $((n % 10)) != 0 ] || git gc -q
done
git fsck --strict 2>/dev/null
[ "$(git rev-list --count HEAD)" = $n ]
echo $n
"#;

/// The databases are one with a journal, and one with a log whose index lies in shared memory.
const SQLITE: &str = r#"
for db in journal log; do sqlite3 $db 'create table t(n integer)'; done
[ "$(sqlite3 log 'pragma journal_mode = wal')" = wal ]
n=0
while [ ! -e "$OVER" ]; do
    n=$((n + 1))
    for db in journal log; do sqlite3 $db "insert into t values($n)"; done
done
for db in journal log; do
    [ "$(sqlite3 $db 'pragma integrity_check')" = ok ]
    [ "$(sqlite3 $db 'select count(*) from t')" = $n ]
done
echo $n
"#;

const BUILD: &str = r#"
n=0
while [ ! -e "$OVER" ]; do
    n=$((n + 1))
    printf 'int f(void) { return %d; }' $n > f.c
    printf 'int f(void); int main(void) { return f() != %d; }' $n > main.c
    cc -c f.c; cc -c main.c; cc -o main f.o main.o; ./main
done
echo $n
"#;

const FILES: &str = r#"
exec 3>> log
n=0
while [ ! -e "$OVER" ]; do
    n=$((n + 1)); echo $n >&3
    mkdir d; for i in 1 2 3 4 5; do echo $n > d/$i; done
    [ "$(cat d/*)" = "$(for i in 1 2 3 4 5; do echo $n; done)" ]
    cp -r d e; mv e/1 e/6; rm -r d e
done
[ "$(wc -l < log)" = $n ]
echo $n
"#;
