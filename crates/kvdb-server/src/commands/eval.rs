//! Scripts: `EVAL`, `EVALSHA`, their read-only forms, and `SCRIPT`; and the execution of
//! functions (`functions` has their commands). A function differs from a script in the code with
//! which its run begins.
//!
//! A script runs in a worker, which is a separate process (see `kvdb_lua`) and sends the server a
//! request for each command. The server executes a script as `EXEC` executes its commands: in one
//! transaction of the store, isolated from other commands, and with a retry if other commits
//! conflict. So a script that fails, exceeds its time limit or kills its process has no effect.
//! Inside `EXEC` and in a joined transaction a script is a part of that transaction. If a script
//! that has changed something fails in `EXEC`, `EXEC` fails, because a part of it cannot be
//! undone.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvdb_lua::wire::{self, Kind};
use kvdb_lua::{library, name_of, shebang};

use super::multi::{Locks, atomically};
use super::row::InScripts;
use super::{COMMANDS, find, is, may_need_types, run_one, streams, unknown_subcommand};
use crate::dictionaries::Place;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, Request, integer};
use crate::scripts::{Broken, Call, Slot, Worker, well_formed};
use crate::session::Session;

pub const SCRIPT_USAGE: &str = "LOAD script | EXISTS sha1 ... | FLUSH [ASYNC|SYNC] | KILL";
/// Time that a script has to end after it was stopped, before its process is killed.
const GRACE: Duration = Duration::from_millis(100);
/// Limit on the lines that a script may write to the log; further lines are dropped.
const LINES: usize = 100;
/// Number of bytes of a worker's message in addition to the bytes of a whole command, for the
/// lengths in the message.
const FRAMING: usize = 1 << 20;

pub fn eval(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    start(s, args, Bytes::copy_from_slice(args.at(1)), false, out)
}
pub fn eval_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    start(s, args, Bytes::copy_from_slice(args.at(1)), true, out)
}
pub fn evalsha(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let text = known(s, args)?;
    start(s, args, text, false, out)
}
pub fn evalsha_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let text = known(s, args)?;
    start(s, args, text, true, out)
}

fn known(s: &Session, args: Arguments<'_>) -> Result<Bytes, Failure> {
    let none = Failure::coded(ErrorCode::NoScript, "No matching script. Please use EVAL.");
    s.shared.scripts.find(args.at(1)).ok_or(none)
}

pub fn script(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let scripts = &s.shared.scripts;
    match (args.at(1), args.len()) {
        (c, 3) if is(c, "load") => return load(s, args.at(2), out),
        (c, 3..) if is(c, "exists") => {
            out.array(args.len() - 2);
            args.from(2).for_each(|name| out.integer(i64::from(scripts.find(name).is_some())));
            return Ok(());
        }
        (c, 2) if is(c, "flush") => scripts.forget(),
        (c, 3) if is(c, "flush") => match args.at(2) {
            how if is(how, "async") || is(how, "sync") => scripts.forget(),
            _ => return Err(Failure::request("SCRIPT FLUSH only support SYNC|ASYNC option")),
        },
        (c, 2) if is(c, "kill") => scripts.kill(false)?,
        // There is no debugger, so it is always off.
        (c, 3) if is(c, "debug") && is(args.at(2), "no") => {}
        _ => return Err(unknown_subcommand(args, "SCRIPT")),
    }
    out.ok();
    Ok(())
}

/// Executes `SCRIPT LOAD`.
fn load(s: &mut Session, text: &[u8], out: &mut Output) -> Outcome {
    let said = shebang::read(text).map_err(Failure::request)?;
    let until = Instant::now() + s.shared.scripts.time();
    let mut slot = take_slot(s)?;
    let done = slot.with(None, |worker| {
        worker.by(until);
        let answer = worker
            .send(Kind::Load, &text[said.length..])
            .and_then(|()| worker.receive(FRAMING))
            .and_then(|frame| match frame.kind {
                Kind::Loaded => Ok(None),
                Kind::Uncompiled => Ok(Some(frame.payload)),
                _ => Err(Broken::Gone),
            });
        let at_rest = answer.is_ok();
        (answer, at_rest)
    });
    give_back(s, slot);
    match done? {
        (Ok(None), _) => {
            let name = name_of(text);
            s.shared.scripts.keep(&name, &Bytes::copy_from_slice(text));
            out.bulk(name.as_bytes());
            Ok(())
        }
        (Ok(Some(why)), _) => Err(Failure::Foreign(String::from_utf8_lossy(&why).into_owned())),
        (Err(broken), killed) => Err(gone(s, "", &broken, killed)),
    }
}

/// Runs a library in a worker, and returns the functions that the library registers. `text` does
/// not include the first line.
pub fn register(
    s: &mut Session,
    name: &str,
    text: &[u8],
) -> Result<Vec<library::Function>, Failure> {
    let until = Instant::now() + s.shared.scripts.time();
    let mut slot = take_slot(s)?;
    let done = slot.with(None, |worker| {
        let answer = register_by(worker, until, name, text);
        let at_rest = answer.is_ok();
        (answer, at_rest)
    });
    give_back(s, slot);
    let why = match done? {
        (Ok(Ok(functions)), _) => return Ok(functions),
        (Ok(Err(why)), _) => String::from_utf8_lossy(&why).into_owned(),
        (Err(Broken::TooLong), false) => {
            "ERR Error registering functions: ERR FUNCTION LOAD timeout".into()
        }
        (Err(broken), killed) => return Err(gone(s, name, &broken, killed)),
    };
    Err(Failure::Foreign(why))
}

fn register_by(
    worker: &mut Worker,
    until: Instant,
    name: &str,
    text: &[u8],
) -> Result<Result<Vec<library::Function>, Vec<u8>>, Broken> {
    worker.by(until);
    let (keys, arguments) = (Vec::new(), Vec::new());
    let run = wire::Run {
        resp3: false,
        seconds: seconds_until(until),
        name: name.as_bytes(),
        text,
        keys,
        arguments,
    };
    worker.send(Kind::Register, &run.encode())?;
    let mut logged = 0;
    loop {
        let frame = worker.receive(FRAMING)?;
        match frame.kind {
            Kind::Log => note_line(name, &frame.payload, &mut logged),
            Kind::Registered => {
                return library::decode(&frame.payload).map(Ok).ok_or(Broken::Gone);
            }
            Kind::Uncompiled => return Ok(Err(frame.payload)),
            _ => return Err(Broken::Gone),
        }
    }
}

/// Returns the time after which a worker ends by itself. By then the server has ended the script,
/// if the server still exists.
fn seconds_until(until: Instant) -> u32 {
    let left = until.saturating_duration_since(Instant::now());
    u32::try_from(left.as_secs()).unwrap_or(u32::MAX).saturating_add(2)
}

/// Writes a line of a script to the log.
fn note_line(name: &str, payload: &[u8], logged: &mut usize) {
    *logged += 1;
    if *logged <= LINES {
        let text = payload.get(1..).unwrap_or_default().escape_ascii();
        tracing::info!("script {name}: {text}");
    }
}

fn take_slot(s: &mut Session) -> Result<Slot, Failure> {
    match s.exec.take_slot() {
        Some(slot) => Ok(slot),
        None => s.shared.scripts.slot(),
    }
}
/// Keeps the worker for the next script of the same `EXEC`, or returns it to the pool.
fn give_back(s: &mut Session, slot: Slot) {
    s.exec.keep_slot(slot);
}

/// A function of a library, found by its name.
pub struct Found {
    pub name: String,
    /// The text of the library, and the start of the code in it, after the first line.
    pub text: Bytes,
    pub begin: usize,
    pub only_reads: bool,
}

/// Calls a function. `find` finds the function in the state that its commands will see.
pub fn call(
    s: &mut Session,
    args: Arguments<'_>,
    only_reads: bool,
    out: &mut Output,
    find: impl Fn(&Session) -> Result<Found, Failure>,
) -> Outcome {
    find(s)?;
    let keys = match integer(args.at(2)).ok_or(Failure::request("Bad number of keys provided"))? {
        n if n > args.len() as i64 - 3 => return Err(TOO_MANY_KEYS),
        n if n < 0 => return Err(NEGATIVE_KEYS),
        n => n as usize,
    };
    let mut slot = take_slot(s)?;
    let until = Instant::now() + s.shared.scripts.time();
    let named: Vec<&[u8]> = args.from(3).take(keys).collect();
    let mut work = |s: &mut Session, out: &mut Output| -> Outcome {
        let found = find(s)?;
        if only_reads && !found.only_reads {
            return Err(WRITES);
        }
        let script = Script {
            name: found.name,
            text: found.text,
            begin: found.begin,
            function: Some(args),
            keys: named.clone(),
            arguments: args.from(3 + keys).collect(),
            only_reads: only_reads || found.only_reads,
            until,
        };
        run(s, &mut slot, &script, out)
    };
    let done = if s.exec.is_running() || matches!(s.place, Place::Snapshot(..)) {
        work(s, out)
    } else {
        atomically(s, &[], Locks::Keys(&named), out, work)
    };
    give_back(s, slot);
    done
}

const TOO_MANY_KEYS: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "Number of keys can't be greater than number of args",
));
const NEGATIVE_KEYS: Failure =
    Failure::Request(std::borrow::Cow::Borrowed("Number of keys can't be negative"));
const WRITES: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "Can not execute a script with write flag using *_ro command.",
));

/// A script or a function, and its arguments.
struct Script<'a> {
    name: String,
    text: Bytes,
    /// Start of the code in the text, after the shebang line.
    begin: usize,
    /// The command that calls the function, or `None` for a script.
    function: Option<Arguments<'a>>,
    keys: Vec<&'a [u8]>,
    arguments: Vec<&'a [u8]>,
    only_reads: bool,
    until: Instant,
}

fn start(
    s: &mut Session,
    args: Arguments<'_>,
    text: Bytes,
    only_reads: bool,
    out: &mut Output,
) -> Outcome {
    let keys = match integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)? {
        n if n < 0 => return Err(NEGATIVE_KEYS),
        n if n > args.len() as i64 - 3 => return Err(TOO_MANY_KEYS),
        n => n as usize,
    };
    let said = shebang::read(&text).map_err(Failure::request)?;
    if only_reads && said.given && !said.no_writes {
        return Err(WRITES);
    }
    let mut slot = take_slot(s)?;
    let script = Script {
        name: name_of(&text),
        text,
        begin: said.length,
        function: None,
        keys: args.from(3).take(keys).collect(),
        arguments: args.from(3 + keys).collect(),
        only_reads: only_reads || said.no_writes,
        until: Instant::now() + s.shared.scripts.time(),
    };
    let done = if s.exec.is_running() || matches!(s.place, Place::Snapshot(..)) {
        run(s, &mut slot, &script, out)
    } else {
        let locks = Locks::Keys(&script.keys);
        atomically(s, &[], locks, out, |s, out| run(s, &mut slot, &script, out))
    };
    give_back(s, slot);
    done
}

/// The outcome of a script.
enum End {
    Done(Vec<u8>),
    Failed(Vec<u8>),
    Uncompiled(Vec<u8>),
    /// The store failed while it executed a command of the script.
    Stopped(Failure),
    Broken(Broken),
}

fn run(s: &mut Session, slot: &mut Slot, script: &Script<'_>, out: &mut Output) -> Outcome {
    let (dictionary, resp3) = (s.dictionary.clone(), out.resp3);
    let (shared, in_exec) = (s.shared.clone(), s.exec.is_exec());
    let budget = shared.memory.whole_replies().clone();
    let scratch = Output::scratch(shared.db.clone(), shared.limits.reply, budget);
    let mut asking = Asking { session: s, out: scratch, script, wrote: false };
    let call = script.function.map(|command| Call {
        name: script.name.clone(),
        command: command.to_request(),
        begun: Instant::now(),
    });
    let ended = slot.with(call, |worker| {
        let end = converse(worker, &mut asking, resp3);
        let at_rest = !matches!(end, End::Broken(_));
        (end, at_rest)
    });
    let wrote = asking.wrote;
    drop(asking);
    s.dictionary = dictionary;
    let (end, killed) = ended?;
    if script.function.is_none() && !matches!(end, End::Uncompiled(_)) {
        shared.scripts.keep(&script.name, &script.text);
    }
    let failure = match end {
        End::Done(reply) if well_formed::is_one_reply(&reply, resp3) => {
            if let Some(error) = reply.strip_prefix(b"-") {
                shared.metrics.count_error(&String::from_utf8_lossy(error));
            }
            return out.whole(|out| {
                out.reply(&reply);
                out.send_if_large();
                let too_long = || Failure::Limit("the reply of the script is too long".into());
                if out.is_overfull() { Err(too_long()) } else { Ok(()) }
            });
        }
        End::Done(_) => gone(s, &script.name, &Broken::Gone, killed),
        End::Failed(why) | End::Uncompiled(why) => {
            Failure::Foreign(String::from_utf8_lossy(&why).into_owned())
        }
        End::Stopped(failure) if failure.is_of_the_store() => return Err(failure),
        End::Stopped(failure) => failure,
        End::Broken(broken) => gone(s, &script.name, &broken, killed),
    };
    match wrote && in_exec {
        true => Err(Failure::Undone(format!(
            "a script had changed something when it failed, so nothing of this EXEC was \
             done: {failure}"
        ))),
        false => Err(failure),
    }
}

fn gone(s: &Session, name: &str, broken: &Broken, killed: bool) -> Failure {
    let why = match broken {
        _ if killed && s.check_stopping().is_err() => return Failure::STOPPING,
        _ if killed => "Script killed by user with SCRIPT KILL.".to_owned(),
        Broken::TooLong => {
            format!(
                "it took longer than lua-time-limit ({} ms)",
                s.shared.scripts.time().as_millis()
            )
        }
        Broken::Gone => "its process has ended: out of memory, or a fault".to_owned(),
    };
    Failure::request(format!("Error running script {name}: {why}; nothing of it was done"))
}

/// Lets the worker run a script, and executes the commands that the script requests.
fn converse(worker: &mut Worker, asking: &mut Asking<'_>, resp3: bool) -> End {
    let script = asking.script;
    worker.by(script.until);
    let run = wire::Run {
        resp3,
        seconds: seconds_until(script.until),
        name: script.name.as_bytes(),
        text: &script.text[script.begin..],
        keys: script.keys.clone(),
        arguments: script.arguments.clone(),
    };
    let limits = asking.session.shared.limits.clone();
    let longest = limits.request.max(limits.whole_replies) + FRAMING;
    let kind = if script.function.is_some() { Kind::Invoke } else { Kind::Run };
    if let Err(broken) = worker.send(kind, &run.encode()) {
        return End::Broken(broken);
    }
    let (mut stopped, mut logged) = (None, 0);
    loop {
        let frame = match worker.receive(longest) {
            Ok(frame) => frame,
            Err(broken) => return stopped_or(stopped, End::Broken(broken)),
        };
        match frame.kind {
            Kind::Call if stopped.is_none() => {
                let answer = match asking.call(&frame.payload) {
                    Ok(Some(reply)) => reply,
                    Ok(None) => return End::Broken(Broken::Gone),
                    Err(failure) => {
                        stopped = Some(failure);
                        worker.by(script.until.min(Instant::now() + GRACE));
                        b"-ERR the script was stopped\r\n".to_vec()
                    }
                };
                if let Err(broken) = worker.send(Kind::Answer, &answer) {
                    return stopped_or(stopped, End::Broken(broken));
                }
            }
            Kind::Log if frame.payload.len() <= FRAMING => {
                note_line(&script.name, &frame.payload, &mut logged);
            }
            Kind::Done => return stopped_or(stopped, End::Done(frame.payload)),
            Kind::Failed => return stopped_or(stopped, End::Failed(frame.payload)),
            Kind::Uncompiled => return stopped_or(stopped, End::Uncompiled(frame.payload)),
            // The script continues after it was stopped, or the message is invalid.
            _ => return stopped_or(stopped, End::Broken(Broken::Gone)),
        }
    }
}

fn stopped_or(stopped: Option<Failure>, end: End) -> End {
    stopped.map_or(end, End::Stopped)
}

/// The state with which the commands of a script are executed.
struct Asking<'a> {
    session: &'a mut Session,
    out: Output,
    script: &'a Script<'a>,
    /// Set if the script may have changed data.
    wrote: bool,
}

impl Asking<'_> {
    /// Runs a command and returns its reply. Returns an error if the script cannot continue, and
    /// `None` if the payload is not a command.
    fn call(&mut self, payload: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let Some((&version, list)) = payload.split_first() else { return Ok(None) };
        let Some(words) = wire::read_list(list) else { return Ok(None) };
        self.out.resp3 = version == 3;
        let refused = match self.find(&words) {
            Ok(index) => return self.run(index, &words).map(Some),
            Err(why) => why,
        };
        self.out.error(&format!("ERR {refused}"));
        Ok(Some(self.out.take()))
    }

    /// Returns the index of the command named by these words, if a script may call it.
    fn find(&self, words: &[&[u8]]) -> Result<usize, Cow<'static, str>> {
        let name = words.first().copied().unwrap_or_default();
        let index = find(name).ok_or("Unknown Redis command called from script")?;
        let command = &COMMANDS[index];
        let wanted = command.arity.unsigned_abs() as usize;
        if words.len() < wanted || command.arity > 0 && words.len() != wanted {
            return Err("Wrong number of args calling Redis command from script".into());
        }
        if !command.is_for_scripts(self.session.shared.scripts.may_debug()) {
            return Err("This Redis command is not allowed from script".into());
        }
        if command.in_scripts == InScripts::AllowedWithoutBlock && streams::waits(words) {
            let why = "command is not allowed with BLOCK option from scripts";
            return Err(format!("{} {why}", command.name).into());
        }
        if self.script.only_reads && command.writes {
            return Err("Write commands are not allowed from read-only scripts.".into());
        }
        let limits = &self.session.shared.limits;
        let bytes: usize = words.iter().map(|word| word.len()).sum();
        let longest = words.iter().map(|word| word.len()).max().unwrap_or(0);
        if words.len() > limits.arguments || longest > limits.argument || bytes > limits.request {
            return Err("string exceeds maximum allowed size (proto-max-bulk-len)".into());
        }
        Ok(index)
    }

    fn run(&mut self, index: usize, words: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        let s = &mut *self.session;
        s.check_stopping()?;
        let request = Request::of(words);
        let alone = s.exec.own().is_some();
        if alone
            && !s.exec.are_all_locked()
            && may_need_types(request.arguments(), s.shared.limits.tuple)
        {
            // The types dictionary is created under all locks, in the next attempt.
            if s.existing()?.is_none_or(|space| space.types.is_none()) {
                return Err(Failure::Conflict("deadlines and collections come into use".into()));
            }
        }
        let outer = std::mem::replace(&mut s.in_script, true);
        let done = run_one(s, index, request.arguments(), &mut self.out);
        s.in_script = outer;
        self.out.send_if_large();
        self.wrote |= done && COMMANDS[index].writes;
        let stopped = s.exec.take_stopped();
        if let Some(failure) = stopped {
            self.out.take();
            return Err(failure);
        }
        if self.out.is_overfull() {
            self.out.take();
            return Err(Failure::Limit("a script has read too much at once".into()));
        }
        Ok(self.out.take())
    }
}
