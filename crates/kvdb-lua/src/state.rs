//! An interpreter for scripts: Lua's libraries except those that reach the machine, Redis'
//! libraries, and the functions through which a script calls commands.
//!
//! Making an interpreter takes much longer than most scripts take to run, so an interpreter that a
//! script has left unchanged runs the next script as well. Whether it is unchanged is determined
//! without trusting the script. The script's text names every global variable that it uses, and
//! cannot construct a name at run time without a function that is a global variable itself. If it
//! names none of the variables through which the libraries or the environment can be changed
//! unnoticed, and a check of the writable tables finds them unchanged, then the next script sees
//! the same as in a new interpreter. Its random numbers are seeded when it begins.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_int};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use mlua::{ChunkMode, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value, ffi};

use crate::library::{FLAGS, Function as Registered};
use crate::numbers::general;
use crate::{bits, json, msgpack, name_of, replies, structs};

const PRELUDE: &str = include_str!("prelude.lua");
/// The version that scripts see, which is the version of Redis that the server follows.
const VERSION: (&str, u32) = ("7.0.15", 0x0007_000f);
/// The name of a script in messages, as Redis has it.
pub const SCRIPT: &str = "@user_script";
/// The name of a library in messages.
const LIBRARY: &str = "@user_function";

/// The server of a script.
pub trait Server {
    /// Runs a command, and returns its reply as RESP of this version.
    fn call(&mut self, arguments: &[Vec<u8>], version: u8) -> Vec<u8>;
    /// Writes to the log.
    fn log(&mut self, level: u8, text: &[u8]);
}

/// Approximate limit on the memory of an interpreter that is used again, bytes.
const REUSED_BELOW: usize = 1 << 20;
/// Number of compiled scripts that an interpreter keeps, and the longest of their texts, bytes.
const COMPILED: usize = 64;
const LONGEST_COMPILED: usize = 16 << 10;

type Compiled = RefCell<HashMap<Vec<u8>, Function>>;

/// An interpreter that has run nothing yet, or only scripts that left no trace.
pub struct State {
    lua: Lua,
    environment: Table,
    run: Function,
    untouched: Function,
    /// The environment of libraries, the function that runs one, and the one that calls a function
    /// of it.
    library: Table,
    register: Function,
    invoke: Function,
    /// Names of global variables whose use prevents the interpreter from being used again.
    harmful: HashSet<Vec<u8>>,
    version: Rc<RefCell<u8>>,
    settings: Rc<RefCell<json::Settings>>,
    /// Compiled scripts by their texts.
    compiled: Compiled,
    /// Compiled libraries by their texts.
    libraries: Compiled,
    spoilt: Cell<bool>,
}

/// The end of a script.
pub enum End {
    /// The script returned this value, having chosen this version of RESP.
    Returned(Value, u8),
    /// The script failed with this error, which starts with its code.
    Failed(Vec<u8>),
}

impl State {
    /// Makes an interpreter with that much memory, bytes.
    pub fn new(memory: usize, server: Rc<RefCell<dyn Server>>) -> mlua::Result<State> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        let (version, settings) = (Rc::new(RefCell::new(2)), Rc::default());
        let raw = functions(&lua, &version, &settings, server)?;
        let prelude = lua.load(PRELUDE).set_name("=prelude").into_function()?;
        let (environment, run, untouched, harmful, library, register, invoke): (
            _,
            _,
            _,
            Vec<mlua::String>,
            _,
            _,
            _,
        ) = prelude.call((raw, lua.globals()))?;
        let harmful = harmful.iter().map(|name| name.as_bytes().to_vec()).collect();
        lua.set_memory_limit(memory)?;
        Ok(State {
            lua,
            environment,
            run,
            untouched,
            library,
            register,
            invoke,
            harmful,
            version,
            settings,
            compiled: Compiled::default(),
            libraries: Compiled::default(),
            spoilt: Cell::new(false),
        })
    }

    /// Returns whether the next script may use this interpreter, because it cannot detect that
    /// another script ran before.
    pub fn is_as_new(&self) -> bool {
        !self.spoilt.get()
            && self.lua.used_memory() < REUSED_BELOW
            && *self.settings.borrow() == json::Settings::default()
            && self.untouched.call::<bool>(()).unwrap_or(false)
    }

    /// Compiles a script that will run, or returns the reason of the failure. The compiled form may
    /// be kept.
    pub fn prepare(&self, text: &[u8]) -> Result<Function, Vec<u8>> {
        self.prepared(&self.compiled, text, || self.compile(text))
    }

    /// Does the same as [`State::prepare`] for the text of a library.
    pub fn prepare_library(&self, text: &[u8]) -> Result<Function, Vec<u8>> {
        self.prepared(&self.libraries, text, || {
            let compiled = self.chunk(text, LIBRARY, &self.library);
            compiled.map_err(|error| {
                format!("ERR Error compiling function: {}", message(&error)).into_bytes()
            })
        })
    }

    fn prepared(
        &self,
        all: &Compiled,
        text: &[u8],
        compile: impl FnOnce() -> Result<Function, Vec<u8>>,
    ) -> Result<Function, Vec<u8>> {
        if let Some(known) = all.borrow().get(text) {
            return Ok(known.clone());
        }
        let compiled = compile()?;
        if words(text).any(|word| self.harmful.contains(word)) {
            self.spoilt.set(true);
        } else if text.len() <= LONGEST_COMPILED {
            let mut all = all.borrow_mut();
            if all.len() == COMPILED {
                all.clear();
            }
            all.insert(text.to_vec(), compiled.clone());
        }
        Ok(compiled)
    }

    /// Compiles a script, or returns the reason of the failure.
    pub fn compile(&self, text: &[u8]) -> Result<Function, Vec<u8>> {
        let compiled = self.chunk(text, SCRIPT, &self.environment);
        compiled.map_err(|error| {
            let text = format!("ERR Error compiling script (new function): {}", message(&error));
            text.into_bytes()
        })
    }

    fn chunk(&self, text: &[u8], name: &str, environment: &Table) -> mlua::Result<Function> {
        let chunk = self.lua.load(text).set_name(name).set_mode(ChunkMode::Text);
        chunk.set_environment(environment.clone()).into_function()
    }

    /// Runs a library that was compiled by this interpreter, and returns the functions that it
    /// registers, or the reason of the failure.
    pub fn register(&self, library: &Function) -> Result<Vec<Registered>, Vec<u8>> {
        let failed = |why: &[u8]| [b"ERR Error registering functions: ", why].concat();
        let ended = self.register.call::<(bool, Table)>(library);
        let why = match ended.and_then(|(done, found)| match done {
            true => Ok(Ok(registered(&found)?)),
            false => Ok(Err(found.raw_get::<mlua::String>("err")?.as_bytes().to_vec())),
        }) {
            Ok(Ok(functions)) if functions.is_empty() => {
                return Err(b"ERR No functions registered".to_vec());
            }
            Ok(Ok(functions)) => return Ok(functions),
            Ok(Err(why)) => why,
            Err(error) => message(&error).into_bytes(),
        };
        self.spoilt.set(true);
        Err(failed(&why))
    }

    /// Runs a library that was compiled by this interpreter, and calls the function of this name
    /// that it registers.
    pub fn invoke(
        &self,
        library: &Function,
        name: &[u8],
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> End {
        self.begin();
        // Remove the ones of a script that ran before.
        let globals = self.lua.globals();
        let hidden = ["KEYS", "ARGV"].into_iter().try_for_each(|name| globals.raw_remove(name));
        let called = hidden.and_then(|()| {
            let words = (self.lua.create_string(name)?, self.words(keys)?, self.words(arguments)?);
            self.invoke.call::<(bool, Value)>((library, words.0, words.1, words.2))
        });
        self.ended(called, &String::from_utf8_lossy(name))
    }

    fn words(&self, words: &[&[u8]]) -> mlua::Result<Table> {
        let words = words.iter().map(|word| self.lua.create_string(word));
        self.lua.create_sequence_from(words.collect::<mlua::Result<Vec<_>>>()?)
    }

    fn begin(&self) {
        *self.version.borrow_mut() = 2;
        // SAFETY: no other thread of the worker draws numbers, or seeds them.
        unsafe { libc::srand(RandomState::new().hash_one(()) as u32) };
    }

    /// Runs a script that was compiled by this interpreter; `name` appears in messages.
    pub fn run(&self, script: &Function, name: &[u8], keys: &[&[u8]], arguments: &[&[u8]]) -> End {
        self.begin();
        let globals = self.lua.globals();
        let mut given = [("KEYS", keys), ("ARGV", arguments)].into_iter();
        let given = given.try_for_each(|(name, all)| globals.raw_set(name, self.words(all)?));
        let ended = given.and_then(|()| self.run.call::<(bool, Value)>(script));
        self.ended(ended, &String::from_utf8_lossy(name))
    }

    fn ended(&self, ended: mlua::Result<(bool, Value)>, name: &str) -> End {
        let failed = |error: &mlua::Error| {
            let why = message(error);
            End::Failed(format!("ERR Error running script {name}, {why}").into_bytes())
        };
        if !matches!(ended, Ok((true, _))) {
            self.spoilt.set(true);
        }
        match ended {
            Ok((true, value)) => End::Returned(value, *self.version.borrow()),
            Ok((false, fault)) => match told(&fault, name) {
                Ok(text) => End::Failed(text),
                Err(error) => failed(&error),
            },
            Err(error) => failed(&error),
        }
    }
}

/// Returns the functions that a library has registered.
fn registered(found: &Table) -> mlua::Result<Vec<Registered>> {
    let each = found.sequence_values::<Table>().map(|function| -> mlua::Result<Registered> {
        let function = function?;
        let description = function.raw_get::<Option<mlua::String>>("description")?;
        Ok(Registered {
            name: function.raw_get::<mlua::String>("name")?.to_string_lossy(),
            description: description.map(|text| text.as_bytes().to_vec()),
            flags: function.raw_get::<u8>("flags")? & ((1u8 << FLAGS.len()) - 1),
        })
    });
    each.collect()
}

/// Returns all words of a text that may be names, including those in comments and strings.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|c| !c.is_ascii_alphanumeric() && *c != b'_').filter(|word| !word.is_empty())
}

/// Returns the error for the client, from a fault that `locate` has annotated.
fn told(fault: &Value, name: &str) -> mlua::Result<Vec<u8>> {
    let Value::Table(fault) = fault else {
        return Ok(format!("ERR Error running script {name}, {}", shown(fault)).into_bytes());
    };
    let mut text = match fault.raw_get("err")? {
        Value::String(text) => text.as_bytes().to_vec(),
        _ => b"ERR unknown error".to_vec(),
    };
    if let (Value::String(source), Value::Integer(line)) =
        (fault.raw_get("source")?, fault.raw_get("line")?)
    {
        let place = format!(" script: {name}, on {}:{line}.", source.to_string_lossy());
        text.extend_from_slice(place.as_bytes());
    }
    Ok(text)
}

/// Formats a value for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_string_lossy(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => general(*number, 14),
        Value::Error(error) => message(error),
        other => other.type_name().to_owned(),
    }
}

/// Returns the first line of an error of the interpreter.
fn message(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } => return message(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => "not enough memory".into(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the functions of the worker from which the prelude makes the libraries.
fn functions(
    lua: &Lua,
    version: &Rc<RefCell<u8>>,
    settings: &Rc<RefCell<json::Settings>>,
    server: Rc<RefCell<dyn Server>>,
) -> mlua::Result<Table> {
    let raw = lua.create_table()?;
    raw.set("bit", bits::library(lua)?)?;
    raw.set("cjson", json::library(lua, settings)?)?;
    raw.set("cmsgpack", msgpack::library(lua)?)?;
    raw.set("struct", structs::library(lua)?)?;
    raw.set("version", VERSION.0)?;
    raw.set("version_number", VERSION.1)?;

    lua.set_named_registry_value(CALL, caller(lua, version.clone(), server.clone())?)?;
    // SAFETY: the functions have the signature that Lua requires, and a jump out of them skips no
    // destructor.
    unsafe {
        raw.set("call", lua.create_c_function(call_or_raise)?)?;
        raw.set("pcall", lua.create_c_function(call_or_return)?)?;
    }
    let log = lua.create_function(move |_, (level, text): (u8, mlua::String)| {
        server.borrow_mut().log(level, &text.as_bytes());
        Ok(())
    })?;
    raw.set("log", log)?;
    let chosen = version.clone();
    raw.set(
        "setresp",
        lua.create_function(move |_, to: u8| {
            *chosen.borrow_mut() = to;
            Ok(())
        })?,
    )?;
    let sum = |_: &Lua, text: mlua::String| Ok(name_of(&text.as_bytes()));
    raw.set("sha1hex", lua.create_function(sum)?)?;
    raw.set(
        "clock",
        lua.create_function(|_, ()| {
            let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Ok(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
        })?,
    )?;
    raw.set("compile", lua.create_function(compile)?)?;
    raw.set("locate", lua.create_function(locate)?)?;
    Ok(raw)
}

/// Makes the function that calls a command in the chosen version of the protocol. The Lua values
/// of the arguments are freed before the command runs, and its words before the reply is parsed.
fn caller(
    lua: &Lua,
    version: Rc<RefCell<u8>>,
    server: Rc<RefCell<dyn Server>>,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, given: MultiValue| {
        let words = match arguments(&given) {
            Ok(words) => words,
            Err(why) => {
                let table = lua.create_table()?;
                table.raw_set("err", why)?;
                return Ok((true, Value::Table(table)));
            }
        };
        drop(given);
        let reply = server.borrow_mut().call(&words, *version.borrow());
        drop(words);
        replies::to_lua(lua, &reply)
    })
}

/// Compiles a text, never bytecode, and returns the function or a message.
fn compile(
    lua: &Lua,
    (text, name): (mlua::String, mlua::String),
) -> mlua::Result<(Option<Function>, Option<String>)> {
    let bytes = text.as_bytes().to_vec();
    // Without a name the text is the name; it ends at a zero byte, as in C.
    let name = name.to_string_lossy();
    let name = name.split('\0').next().unwrap_or_default();
    let chunk = lua.load(bytes).set_name(name).set_mode(ChunkMode::Text);
    Ok(match chunk.into_function() {
        Ok(compiled) => (Some(compiled), None),
        Err(error) => (None, Some(message(&error))),
    })
}

/// The registry name of the function that calls a command. The function returns whether the command
/// failed, and the reply.
const CALL: &str = "kvdb_lua.call";
const CALL_C: &CStr = c"kvdb_lua.call";

/// Calls a command with the arguments that are on the stack.
///
/// # Safety
/// Only functions that Lua has called may call this one.
unsafe fn call(state: *mut ffi::lua_State) {
    // SAFETY: two values are pushed, and Lua has room for twenty; the function is put below its
    // arguments; an error unwinds past no value of Rust.
    unsafe {
        ffi::lua_getfield(state, ffi::LUA_REGISTRYINDEX, CALL_C.as_ptr());
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, 2);
    }
}

/// `redis.call`. It is a C function: if a script returns the result of the call, a Lua function
/// would replace the script in the stack (a tail call), and the line number would be lost.
unsafe extern "C-unwind" fn call_or_raise(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: Lua calls this; the stack holds whether the command failed, and the reply.
    unsafe {
        call(state);
        if ffi::lua_toboolean(state, -2) != 0 {
            ffi::lua_error(state);
        }
    }
    1
}

/// `redis.pcall`.
unsafe extern "C-unwind" fn call_or_return(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: Lua calls this.
    unsafe { call(state) };
    1
}

/// Returns the arguments of a command.
fn arguments(given: &MultiValue) -> Result<Vec<Vec<u8>>, &'static str> {
    if given.is_empty() {
        return Err("ERR Please specify at least one argument for this redis lib call");
    }
    let words = given.iter().map(|word| match word {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(general(*number, 17).into_bytes()),
        _ => None,
    });
    words
        .collect::<Option<_>>()
        .ok_or("ERR Lua redis lib command arguments must be strings or integers")
}

/// Converts a fault to a table, and records the line of the script where it occurred.
fn locate(lua: &Lua, fault: Value) -> mlua::Result<Table> {
    let table = match &fault {
        Value::Table(table) => table.clone(),
        other => {
            let table = lua.create_table()?;
            let text = match other {
                Value::String(text) => [b"ERR ", &*text.as_bytes()].concat(),
                other => format!("ERR {}", shown(other)).into_bytes(),
            };
            table.raw_set("err", lua.create_string(text)?)?;
            table
        }
    };
    // The innermost function that belongs to the script, or to the library.
    for level in 1..32 {
        let place = lua.inspect_stack(level, |function| {
            let source = function.source().source;
            let known = [SCRIPT, LIBRARY].into_iter().find(|name| source.as_deref() == Some(*name));
            known.zip(function.current_line())
        });
        match place {
            None => break,
            Some(None) => {}
            Some(Some((source, line))) => {
                table.raw_set("source", source)?;
                table.raw_set("line", line)?;
                break;
            }
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
