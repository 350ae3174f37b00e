//! The secrets of a mount's background process: the key of the transaction that it takes over, and
//! the token that it shows to a server of the network. The foreground process passes them through
//! its standard input: all users can list arguments, and the environment in which a process was
//! started can be read in `/proc` for as long as the process lives. A process that does not end at
//! once clears its initial environment ([`clear_environment`]).

use std::ffi::CString;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use kvdb_wire::TransactionKey;
use places::credentials::TOKEN;
use serde_json::{Value, json};

use crate::support::serving::guest;
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The variables with secrets, which no process inherits from the foreground process.
const VARIABLES: [&str; 2] = [TOKEN, "KVFS_KEY"];
/// Limit of the bytes that are passed.
const LONGEST: u64 = 64 << 10;

/// Removes the secrets from the environment of this process, and overwrites them in the memory from
/// which the kernel answers reads of `/proc/PID/environ`. This must be called by the main thread
/// before any other thread is started, and after the secrets were taken.
pub fn clear_environment() {
    for variable in VARIABLES {
        let Ok(name) = CString::new(variable) else { continue };
        // SAFETY: there is one thread, so that no other reads or changes the environment. The value
        // is a string that ends with a zero, in memory of this process that may be written; no
        // reference to it exists, since the standard library copies what it returns.
        unsafe {
            let value = libc::getenv(name.as_ptr());
            if !value.is_null() {
                value.write_bytes(0, libc::strlen(value));
            }
            std::env::remove_var(variable);
        }
    }
}

/// Secrets for the background process.
#[derive(Clone, Default)]
pub struct Secrets {
    pub key: Option<TransactionKey>,
    pub token: Option<String>,
}

impl Secrets {
    /// Prepares the command of the background process, to which they are then sent.
    pub fn prepare(&self, command: &mut Command) {
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        match (&self.key, &self.token) {
            (None, None) => command.stdin(Stdio::null()),
            _ => command.arg("--secrets").stdin(Stdio::piped()),
        };
    }

    /// Sends them to the background process.
    pub fn send(&self, process: &mut Child) {
        let Some(mut pipe) = process.stdin.take() else { return };
        let key = self.key.as_ref().map(guest::key_text);
        let all = json!({"key": key, "token": self.token});
        // A process that has ended already has said why, or its exit status does.
        let _ = pipe.write_all(all.to_string().as_bytes());
    }

    /// Receives them in the background process.
    pub fn receive() -> Outcome<Secrets> {
        let cannot = |e| Failure::io("cannot hear from the foreground process", &e);
        let mut text = String::new();
        std::io::stdin().take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
        // The message must not contain what was read.
        let odd = || Failure::new(Exit::Failed, "the foreground process has said something else");
        let all: Value = serde_json::from_str(&text).map_err(|_| odd())?;
        let key = match all["key"].as_str() {
            Some(word) => Some(guest::parse_key(word).map_err(|_| odd())?),
            None => None,
        };
        Ok(Secrets { key, token: all["token"].as_str().map(String::from) })
    }
}
