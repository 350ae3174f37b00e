//! The worker: a process that runs one script after the other. No script can detect traces of an
//! earlier one.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::rc::Rc;

use crate::confine;
use crate::library;
use crate::replies::{self, Unwritable, Versions};
use crate::state::{End, Server, State};
use crate::watchful::Watchful;
use crate::wire::{self, Frame, Kind, Run};

/// Memory limit of an interpreter, bytes.
const MEMORY: usize = 64 << 20;
/// Limit on a message of the server, bytes: a script with its arguments, or a reply.
const LONGEST: usize = 80 << 20;

/// The socket to the server, which usually answers at once.
struct Socket {
    file: File,
    watchful: Watchful,
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.watchful.receive(&self.file, into)? {
            Some(got) => Ok(got),
            None => self.file.read(into),
        }
    }
}

/// The connection to the server. If it fails, the server no longer exists, and the worker has
/// nothing left to do.
struct Channel {
    from: BufReader<Socket>,
    to: File,
}

impl Channel {
    fn over(socket: impl AsFd) -> io::Result<Channel> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        let to = File::from(socket.try_clone()?);
        let from = BufReader::with_capacity(
            16 << 10,
            Socket { file: socket.into(), watchful: Watchful::new() },
        );
        Ok(Channel { from, to })
    }
    fn send(&mut self, kind: Kind, payload: &[u8]) {
        if wire::write(&mut self.to, kind, payload).is_err() {
            std::process::exit(0);
        }
    }
    fn receive(&mut self) -> Frame {
        Frame::read(&mut self.from, LONGEST).unwrap_or_else(|_| std::process::exit(0))
    }
}

impl Server for Channel {
    fn call(&mut self, arguments: &[Vec<u8>], version: u8) -> Vec<u8> {
        let mut payload = vec![version];
        wire::write_list(arguments.iter().map(Vec::as_slice), &mut payload);
        self.send(Kind::Call, &payload);
        match self.receive() {
            Frame { kind: Kind::Answer, payload } => payload,
            _ => std::process::exit(1),
        }
    }
    fn log(&mut self, level: u8, text: &[u8]) {
        self.send(Kind::Log, &[&[level], &text[..text.len().min(1024)]].concat());
    }
}

/// Runs the scripts that arrive on the socket that is its standard input, until the socket is
/// closed. The process can do nothing else from then on.
pub fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("no scripts can be run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    confine::close_inherited()?;
    let channel = Rc::new(RefCell::new(Channel::over(io::stdin())?));
    confine::confine(MEMORY)?;
    let new = || {
        let state = State::new(MEMORY, channel.clone());
        state.map_err(|error| io::Error::other(error.to_string()))
    };
    let mut state = new()?;
    loop {
        let frame = channel.borrow_mut().receive();
        let (kind, payload) = match frame.kind {
            Kind::Load => match state.compile(&frame.payload) {
                Ok(_) => (Kind::Loaded, Vec::new()),
                Err(why) => (Kind::Uncompiled, replies::one_line(&why)),
            },
            kind @ (Kind::Register | Kind::Run | Kind::Invoke) => match Run::decode(&frame.payload)
            {
                Some(script) => run_script(&state, kind, &script),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        channel.borrow_mut().send(kind, &payload);
        let again = state.is_as_new();
        if !again {
            // The drop counts towards the time of the script.
            drop(state);
            confine::end_after(0);
            // Made in advance, so that the next script does not wait for it.
            state = new()?;
        } else {
            confine::end_after(0);
        }
    }
}

fn run_script(state: &State, kind: Kind, script: &Run<'_>) -> (Kind, Vec<u8>) {
    confine::end_after(script.seconds);
    let compiled = match kind {
        Kind::Run => state.prepare(script.text),
        _ => state.prepare_library(script.text),
    };
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(why) => return (Kind::Uncompiled, replies::one_line(&why)),
    };
    let end = match kind {
        Kind::Register => {
            return match state.register(&compiled) {
                Ok(functions) => (Kind::Registered, library::encode(&functions)),
                Err(why) => (Kind::Uncompiled, replies::one_line(&why)),
            };
        }
        Kind::Invoke => state.invoke(&compiled, script.name, &script.keys, &script.arguments),
        _ => state.run(&compiled, script.name, &script.keys, &script.arguments),
    };
    match end {
        End::Failed(why) => (Kind::Failed, replies::one_line(&why)),
        End::Returned(value, version) => {
            let versions = Versions { client: script.resp3, script: version == 3 };
            match replies::reply(&value, versions) {
                Ok(reply) => (Kind::Done, reply),
                Err(Unwritable::TooLong) => {
                    (Kind::Failed, b"ERR the reply of the script is too long".to_vec())
                }
                Err(Unwritable::Lua(error)) => {
                    let why = format!("ERR the reply of the script cannot be written: {error}");
                    (Kind::Failed, replies::one_line(why.as_bytes()))
                }
            }
        }
    }
}
