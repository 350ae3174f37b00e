//! Plays scripts in which several actors take steps in turn. A step may have to wait for the end of
//! another actor.
//!
//! A script has one step a line, `who verb arguments -> outcome`; without an outcome the step must
//! succeed and say nothing. What a step means is the stage's business, except for
//!
//! - `begin T1 T2`: transactions begin; the first is the oldest
//! - `-> waits`: the step does not come to its end yet; `T1 goes on -> outcome`: now it has
//! - `-> conflict`: with whatever is said about it; `-> conflict k`: with just that
//! - `now x=1 y=2`: what is seen outside of transactions

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

/// The time after which a step counts as hung.
pub const LONG: Duration = Duration::from_secs(60);

/// A step that can run on any thread and returns its outcome.
pub type Step = Box<dyn FnOnce() -> String + Send>;

/// The subject of a script.
pub trait Stage {
    fn begin(&mut self, who: &str);
    fn step(&self, who: &str, verb: &str, args: &[String]) -> Step;
    /// Returns whether a step of `who` waits for another one.
    fn waits(&self, who: &str) -> bool;
    fn now(&self) -> String;
}

/// `title` names the variant of the script that is played.
pub fn play(stage: &mut dyn Stage, title: &str, script: &str) {
    let mut waiting = BTreeMap::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // Says which line it was.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            play_line(stage, &mut waiting, line)
        }));
        if let Err(panic) = result {
            eprintln!("{title}: at `{line}` of {script}");
            std::panic::resume_unwind(panic);
        }
    }
    assert!(waiting.is_empty(), "{title}: a step still waits at the end of {script}");
}

fn play_line(stage: &mut dyn Stage, waiting: &mut BTreeMap<String, Receiver<String>>, line: &str) {
    let (action, expected) = line.split_once("->").unwrap_or((line, ""));
    let expected = expected.trim();
    let words: Vec<String> = action.split_whitespace().map(str::to_owned).collect();
    let (who, rest) = words.split_first().unwrap();
    let found = match (who.as_str(), rest) {
        ("begin", all) => {
            all.iter().for_each(|who| stage.begin(who));
            String::new()
        }
        ("now", state) => {
            assert_eq!(stage.now(), state.join(" "));
            String::new()
        }
        (who, [goes, on]) if goes == "goes" && on == "on" => {
            waiting.remove(who).expect("it waits").recv_timeout(LONG).expect("it still waits")
        }
        (who, [verb, args @ ..]) if expected == "waits" => {
            let step = stage.step(who, verb, args);
            waiting.insert(who.into(), wait(stage, who, step));
            "waits".into()
        }
        (who, [verb, args @ ..]) => stage.step(who, verb, args)(),
        _ => panic!("no step"),
    };
    if expected == "conflict" && found.starts_with(expected) {
        return;
    }
    assert_eq!(found, expected);
}

/// Takes the step on another thread, and returns when it waits.
fn wait(stage: &dyn Stage, who: &str, step: Step) -> Receiver<String> {
    let (say, said) = channel();
    std::thread::spawn(move || say.send(step()));
    loop {
        match said.try_recv() {
            Ok(outcome) => panic!("it did not wait: {outcome:?}"),
            Err(TryRecvError::Disconnected) => panic!("its thread is gone"),
            Err(TryRecvError::Empty) => {}
        }
        if stage.waits(who) {
            return said;
        }
        std::thread::yield_now();
    }
}
