//! A row of the table of commands. It has everything that the server must know about a command,
//! apart from the descriptions that Redis has for its commands (`specs`). A property that some
//! commands have is a field here, and never a list of names in another module.

use crate::failure::{Failure, Outcome};
use crate::files::Whose;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::seals::Confined;
use crate::session::Session;

/// A command. `table` builds the commands by the constructors and the methods below.
pub struct Command {
    /// The name of the command in lower case.
    pub name: &'static str,
    /// The arguments in the form that is shown to users.
    pub usage: &'static str,
    /// The number of arguments including the name. A negative number is a minimum.
    pub arity: i32,
    pub run: Handler,
    /// A success reply acknowledges a change of the store.
    pub writes: bool,
    /// The command is allowed before the client has authenticated.
    pub open: bool,
    /// The first and the last argument that is a key, and the step between keys. A negative last
    /// argument counts from the end. All three are 0 if there are no keys, or if only
    /// `other_keys` finds them.
    pub keys: (i32, i32, i32),
    pub other_keys: OtherKeys,
    /// Returns the flags of the keys of `COMMAND GETKEYSANDFLAGS`, if these depend on the
    /// arguments.
    pub key_flags: Option<KeyFlags>,
    /// Clients that track keys are notified of changes of the keys that the command reads.
    pub tracked: bool,
    pub types: Types,
    pub in_multi: InMulti,
    pub in_scripts: InScripts,
    pub on_snapshots: OnSnapshots,
    pub sealed: Sealed,
    /// Returns the files that the command changes, or `None` if the command continues an
    /// operation.
    pub files: Option<FilesOf>,
    /// The command sends messages instead of replies ([`pushes`]).
    pub pushes: bool,
    /// A RESP2 client may use the command while it receives messages, because the reply of the
    /// command can be distinguished from messages.
    pub among_messages: bool,
    /// The command waits while writes are paused (`CLIENT PAUSE`), because some or all of its
    /// forms change state that other clients see.
    pub paused_with_writes: bool,
    /// The command controls connections (`CLIENT`). It does not wait for the end of a pause, and
    /// `CLIENT CACHING` applies to the command that follows it.
    pub controls: bool,
    /// The command runs the commands that `MULTI` has queued (`EXEC`). They are checked one by
    /// one, and each slow one is added to the slow log.
    pub runs_queue: bool,
    /// The commands that follow this command in a queue work in another place, so their keys are
    /// not known beforehand.
    pub moves: bool,
    /// The command changes the place in which the connection works, or whether it queues
    /// commands. So it is refused after `SNAPSHOT USE name` and `CLONE USE name`, which run one
    /// command in another place.
    pub moves_connection: bool,
    /// The command needs a process that runs scripts.
    pub needs_worker: bool,
    pub shown: Shown,
    pub secret: Secret,
}

/// A handler writes exactly one reply, or writes none and returns the failure that becomes the
/// reply.
pub type Handler = fn(&mut Session, Arguments<'_>, &mut Output) -> Outcome;

/// Returns the flags of the keys of a request.
pub type KeyFlags = fn(Arguments<'_>) -> Option<&'static [&'static str]>;

type FilesOf = fn(&Session, &Arguments<'_>) -> Option<Result<Whose, Failure>>;

/// Finds the keys of a command that are not in one range of the arguments.
#[derive(Clone, Copy)]
pub enum OtherKeys {
    None,
    /// The argument at this index is the number of keys that follow it.
    Counted(usize),
    /// The first argument is a key, and the second one is the number of keys that follow it.
    StoredAndCounted,
    /// An option names a key in which the result is stored.
    Destination(for<'a> fn(Arguments<'a>) -> Option<&'a [u8]>),
    /// A function finds the keys.
    Found(for<'a> fn(Arguments<'a>) -> Vec<&'a [u8]>),
}

/// The need of a command for the types dictionary. A command has this need if it may set a
/// deadline on a key, or store a value that is not a string.
#[derive(Clone, Copy)]
pub enum Types {
    Unneeded,
    Needed,
    /// The types dictionary is needed unless the function returns `true`.
    NeededUnless(fn(Arguments<'_>) -> bool),
}

/// The treatment of a command between `MULTI` and `EXEC`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InMulti {
    /// `EXEC` runs the command.
    Queued,
    /// The command runs at once, and handles `MULTI` itself.
    AtOnce,
    Refused,
}

/// The treatment of a command that a script calls. Commands that `MULTI` does not queue are
/// refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InScripts {
    Allowed,
    /// The command is allowed in the forms that do not wait for entries of streams.
    AllowedWithoutBlock,
    /// The command is allowed if scripts may debug the server.
    Debugging,
    Refused,
}

/// The treatment of a command on a connection that reads a snapshot.
#[derive(Clone, Copy)]
pub enum OnSnapshots {
    /// The command is refused if it writes.
    AsItWrites,
    /// These subcommands are allowed although the command writes.
    Forms(&'static [&'static str]),
    Refused,
}

/// The rights of a client that a seal confines to its transactions (see `sealed`).
#[derive(Clone, Copy)]
pub enum Sealed {
    /// The command may read keys, and write in the transactions of the seal.
    AsItWrites,
    /// The command does not change anything that belongs to other clients.
    Harmless,
    /// Only these subcommands are allowed. If the command writes, they are treated as writes.
    Forms(&'static [&'static str]),
    /// Only these subcommands are allowed, and only if the function has no objections.
    Checked(&'static [&'static str], fn(&Session, Confined, Arguments<'_>) -> Outcome),
}

/// The time at which `MONITOR` shows a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    After,
    /// The command is shown before it runs, because it may wait for others, or the commands of a
    /// script follow it.
    Before,
    /// The command is never shown, because it concerns the server and may name its secrets.
    Never,
}

/// The arguments that `MONITOR` does not show. The slow log shows no arguments of a command that
/// has secret ones ([`Command::is_secret`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    None,
    All,
    /// All arguments after the word `AUTH` are secret.
    AfterAuth,
    /// All arguments after this word are secret, if the word is present.
    IfNamed(&'static str),
}

impl Command {
    /// Returns the keys among the command's arguments.
    pub fn keys_of<'a>(&self, args: Arguments<'a>) -> Vec<&'a [u8]> {
        let counted = |at: usize| {
            let count = integer(args.at(at)).and_then(|n| usize::try_from(n).ok());
            args.from(at + 1).take(count.unwrap_or(0))
        };
        match self.other_keys {
            OtherKeys::Found(find) => return find(args),
            OtherKeys::Counted(at) => return counted(at).collect(),
            OtherKeys::StoredAndCounted => {
                return args.from(1).take(1).chain(counted(2)).collect();
            }
            OtherKeys::Destination(find) => {
                return args.from(1).take(1).chain(find(args)).collect();
            }
            OtherKeys::None => {}
        }
        let (first, last, step) = self.keys;
        if first == 0 {
            return Vec::new();
        }
        let len = args.len() as i32;
        let last = if last < 0 { len + last + 1 } else { (last + 1).min(len) };
        let last = usize::try_from(last).unwrap_or(0);
        (first as usize..last).step_by(step as usize).map(|i| args.at(i)).collect()
    }

    /// Returns whether the command may need the types dictionary for reasons other than strings
    /// that are too long for one tuple.
    pub fn needs_types(&self, args: Arguments<'_>) -> bool {
        match self.types {
            Types::Unneeded => false,
            Types::Needed => true,
            Types::NeededUnless(plain) => !plain(args),
        }
    }

    /// Returns whether a script may call the command. `debugging` states whether the script may
    /// debug the server.
    pub fn is_for_scripts(&self, debugging: bool) -> bool {
        match self.in_scripts {
            InScripts::Allowed | InScripts::AllowedWithoutBlock => true,
            InScripts::Debugging => debugging,
            InScripts::Refused => false,
        }
    }

    /// Returns whether some of the arguments are secret.
    pub fn is_secret(&self, args: Arguments<'_>) -> bool {
        match self.secret {
            Secret::None => false,
            Secret::All | Secret::AfterAuth => true,
            Secret::IfNamed(name) => args.from(2).any(|word| super::is(word, name)),
        }
    }

    /// Returns whether the command may run on a connection that reads a snapshot.
    pub fn is_for_snapshots(&self, args: Arguments<'_>) -> bool {
        match self.on_snapshots {
            OnSnapshots::AsItWrites => !self.writes,
            OnSnapshots::Forms(forms) => forms.iter().any(|form| super::is(args.at(1), form)),
            OnSnapshots::Refused => false,
        }
    }
}

pub(super) const NONE: (i32, i32, i32) = (0, 0, 0);
pub(super) const FIRST: (i32, i32, i32) = (1, 1, 1);
pub(super) const SECOND: (i32, i32, i32) = (2, 2, 1);
pub(super) const EACH: (i32, i32, i32) = (1, -1, 1);
pub(super) const BUT_LAST: (i32, i32, i32) = (1, -2, 1);
pub(super) const PAIRS: (i32, i32, i32) = (1, -1, 2);
pub(super) const TWO: (i32, i32, i32) = (1, 2, 1);

/// Makes a command that reads keys.
pub(super) const fn reads(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command {
        name,
        usage,
        arity,
        run,
        writes: false,
        open: false,
        keys,
        other_keys: OtherKeys::None,
        key_flags: None,
        tracked: true,
        types: Types::Unneeded,
        in_multi: InMulti::Queued,
        in_scripts: InScripts::Allowed,
        on_snapshots: OnSnapshots::AsItWrites,
        sealed: Sealed::AsItWrites,
        files: None,
        pushes: false,
        among_messages: false,
        paused_with_writes: false,
        controls: false,
        runs_queue: false,
        moves: false,
        moves_connection: false,
        needs_worker: false,
        shown: Shown::After,
        secret: Secret::None,
    }
}

/// Makes a command without keys at a fixed position, which does not change anything of other
/// clients.
pub(super) const fn asks(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    run: Handler,
) -> Command {
    reads(name, usage, arity, NONE, run).sealed(Sealed::Harmless)
}

/// Makes a command that acts on things other than keys. The caller states to what extent a client
/// confined by a seal may use it.
pub(super) const fn acts(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    sealed: Sealed,
    run: Handler,
) -> Command {
    reads(name, usage, arity, NONE, run).sealed(sealed)
}

/// Makes a command that is allowed before the client has authenticated.
pub(super) const fn open(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    run: Handler,
) -> Command {
    Command { open: true, ..asks(name, usage, arity, run) }
}

/// Makes a command that writes strings, or removes keys.
pub(super) const fn writes(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command {
        writes: true,
        tracked: false,
        paused_with_writes: true,
        ..reads(name, usage, arity, keys, run)
    }
}

/// Makes a command that writes, and needs the types dictionary.
pub(super) const fn typed(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command { types: Types::Needed, ..writes(name, usage, arity, keys, run) }
}

/// Makes a command of subscriptions. It sends messages even if replies are suppressed, and is
/// allowed while a RESP2 client expects only messages.
pub(super) const fn pushes(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    run: Handler,
) -> Command {
    let command = asks(name, usage, arity, run).not_in_multi();
    Command { pushes: true, among_messages: true, ..command }
}

impl Command {
    pub(super) const fn other_keys(self, other_keys: OtherKeys) -> Command {
        Command { other_keys, ..self }
    }
    /// Returns the command with keys whose number is the argument at index `at`, and which follow
    /// this argument.
    pub(super) const fn counted(self, at: usize) -> Command {
        self.other_keys(OtherKeys::Counted(at))
    }
    pub(super) const fn key_flags(
        self,
        flags: fn(Arguments<'_>) -> Option<&'static [&'static str]>,
    ) -> Command {
        Command { key_flags: Some(flags), ..self }
    }
    pub(super) const fn untracked(self) -> Command {
        Command { tracked: false, ..self }
    }
    pub(super) const fn plain_if(self, plain: fn(Arguments<'_>) -> bool) -> Command {
        Command { types: Types::NeededUnless(plain), ..self }
    }
    pub(super) const fn not_in_multi(self) -> Command {
        Command { in_multi: InMulti::Refused, in_scripts: InScripts::Refused, ..self }
    }
    pub(super) const fn at_once_in_multi(self) -> Command {
        Command { in_multi: InMulti::AtOnce, in_scripts: InScripts::Refused, ..self }
    }
    pub(super) const fn in_scripts(self, in_scripts: InScripts) -> Command {
        Command { in_scripts, ..self }
    }
    pub(super) const fn not_in_scripts(self) -> Command {
        self.in_scripts(InScripts::Refused)
    }
    pub(super) const fn on_snapshots(self, on_snapshots: OnSnapshots) -> Command {
        Command { on_snapshots, ..self }
    }
    pub(super) const fn sealed(self, sealed: Sealed) -> Command {
        Command { sealed, ..self }
    }
    pub(super) const fn files(self, files: FilesOf) -> Command {
        Command { files: Some(files), ..self }
    }
    pub(super) const fn among_messages(self) -> Command {
        Command { among_messages: true, ..self }
    }
    pub(super) const fn paused_with_writes(self) -> Command {
        Command { paused_with_writes: true, ..self }
    }
    pub(super) const fn controls(self) -> Command {
        Command { controls: true, ..self }
    }
    pub(super) const fn runs_queue(self) -> Command {
        Command { runs_queue: true, ..self }
    }
    pub(super) const fn moves(self) -> Command {
        Command { moves: true, ..self }
    }
    pub(super) const fn moves_connection(self) -> Command {
        Command { moves_connection: true, ..self }
    }
    /// Returns the command as one that runs a script or a function. The second argument is the
    /// number of its keys.
    pub(super) const fn runs_script(self) -> Command {
        self.needs_worker().shown_before().counted(2)
    }
    pub(super) const fn needs_worker(self) -> Command {
        Command { needs_worker: true, ..self.not_in_scripts() }
    }
    pub(super) const fn shown_before(self) -> Command {
        Command { shown: Shown::Before, ..self }
    }
    pub(super) const fn hidden(self) -> Command {
        Command { shown: Shown::Never, ..self }
    }
    pub(super) const fn secret(self, secret: Secret) -> Command {
        Command { secret, ..self }
    }
}
