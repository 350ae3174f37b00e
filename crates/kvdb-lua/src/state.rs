//! An interpreter for one script: Lua's libraries but for those that reach the machine, Redis'
//! libraries, and the functions through which a script calls commands.

use std::cell::RefCell;
use std::ffi::{CStr, c_int};
use std::rc::Rc;

use mlua::{ChunkMode, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value, ffi};

use crate::numbers::general;
use crate::{bits, json, msgpack, name_of, replies, structs};

const PRELUDE: &str = include_str!("prelude.lua");
/// What scripts are told they run in: the version that the server says it is like.
const VERSION: (&str, u32) = ("7.0.15", 0x0007_000f);
/// The name of a script in messages, as Redis has it.
pub const SCRIPT: &str = "@user_script";

/// Whom a script asks.
pub trait Server {
    /// Runs a command, and gives its reply as RESP of this version.
    fn call(&mut self, arguments: &[Vec<u8>], version: u8) -> Vec<u8>;
    /// Writes into the log.
    fn log(&mut self, level: u8, text: &[u8]);
}

/// An interpreter that has run nothing yet.
pub struct State {
    lua: Lua,
    environment: Table,
    run: Function,
    version: Rc<RefCell<u8>>,
}

/// How a script ended.
pub enum End {
    /// It returned this, having chosen this version of RESP.
    Returned(Value, u8),
    /// It failed: an error with its code.
    Failed(Vec<u8>),
}

impl State {
    /// An interpreter with so much memory, in bytes.
    pub fn new(memory: usize, server: Rc<RefCell<dyn Server>>) -> mlua::Result<State> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        let version = Rc::new(RefCell::new(2));
        let raw = functions(&lua, &version, server)?;
        let prelude = lua.load(PRELUDE).set_name("=prelude").into_function()?;
        let (environment, run) = prelude.call((raw, lua.globals()))?;
        lua.set_memory_limit(memory)?;
        Ok(State { lua, environment, run, version })
    }

    /// Compiles a script; an error says why that cannot be.
    pub fn compile(&self, text: &[u8]) -> Result<Function, Vec<u8>> {
        let chunk = self.lua.load(text).set_name(SCRIPT).set_mode(ChunkMode::Text);
        let compiled = chunk.set_environment(self.environment.clone()).into_function();
        compiled.map_err(|error| {
            let text = format!("ERR Error compiling script (new function): {}", message(&error));
            text.into_bytes()
        })
    }

    /// Runs a script that was compiled here; `name` is for messages.
    pub fn run(&self, script: &Function, name: &[u8], keys: &[&[u8]], arguments: &[&[u8]]) -> End {
        let given =
            [("KEYS", keys), ("ARGV", arguments)].into_iter().try_for_each(|(name, all)| {
                let all = all.iter().map(|one| self.lua.create_string(one));
                let all = all.collect::<mlua::Result<Vec<_>>>()?;
                self.lua.globals().raw_set(name, self.lua.create_sequence_from(all)?)
            });
        let name = String::from_utf8_lossy(name);
        let failed = |error: &mlua::Error| {
            let why = message(error);
            End::Failed(format!("ERR Error running script {name}, {why}").into_bytes())
        };
        match given.and_then(|()| self.run.call::<(bool, Value)>(script)) {
            Ok((true, value)) => End::Returned(value, *self.version.borrow()),
            Ok((false, fault)) => match told(&fault, &name) {
                Ok(text) => End::Failed(text),
                Err(error) => failed(&error),
            },
            Err(error) => failed(&error),
        }
    }
}

/// What to tell the client of a fault that `locate` has seen.
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

/// A value as a message shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_string_lossy(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => general(*number, 14),
        Value::Error(error) => message(error),
        other => other.type_name().to_owned(),
    }
}

/// The first line of what went wrong in the interpreter.
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

/// The functions of the worker that the prelude makes libraries of.
fn functions(
    lua: &Lua,
    version: &Rc<RefCell<u8>>,
    server: Rc<RefCell<dyn Server>>,
) -> mlua::Result<Table> {
    let raw = lua.create_table()?;
    raw.set("bit", bits::library(lua)?)?;
    raw.set("cjson", json::library(lua)?)?;
    raw.set("cmsgpack", msgpack::library(lua)?)?;
    raw.set("struct", structs::library(lua)?)?;
    raw.set("version", VERSION.0)?;
    raw.set("version_number", VERSION.1)?;

    let (asked, chosen) = (server.clone(), version.clone());
    let call = lua.create_function(move |lua, given: MultiValue| {
        let words = match words(&given) {
            Ok(words) => words,
            Err(why) => {
                let table = lua.create_table()?;
                table.raw_set("err", why)?;
                return Ok((true, Value::Table(table)));
            }
        };
        drop(given);
        let reply = asked.borrow_mut().call(&words, *chosen.borrow());
        drop(words);
        replies::to_lua(lua, &reply)
    })?;
    lua.set_named_registry_value(CALL, call)?;
    // SAFETY: the functions are as Lua wants them, and keep nothing that a jump would pass over.
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
    let compile = lua.create_function(|lua, (text, name): (mlua::String, mlua::String)| {
        let bytes = text.as_bytes().to_vec();
        // The name is the text where none is given, and ends at a zero byte, as in C.
        let name = name.to_string_lossy();
        let name = name.split('\0').next().unwrap_or_default();
        let chunk = lua.load(bytes).set_name(name).set_mode(ChunkMode::Text);
        Ok(match chunk.into_function() {
            Ok(compiled) => (Some(compiled), None),
            Err(error) => (None, Some(message(&error))),
        })
    })?;
    raw.set("compile", compile)?;
    raw.set("locate", lua.create_function(locate)?)?;
    Ok(raw)
}

/// Where the interpreter keeps the function that calls a command: it returns whether that failed,
/// and the reply.
const CALL: &str = "kvdb_lua.call";
const CALL_C: &CStr = c"kvdb_lua.call";

/// Calls a command with the arguments that are on the stack.
///
/// # Safety
/// To be called by Lua.
unsafe fn call(state: *mut ffi::lua_State) {
    // SAFETY: two values are pushed where Lua has room for twenty, the function below its
    // arguments; an error passes over no value of Rust.
    unsafe {
        ffi::lua_getfield(state, ffi::LUA_REGISTRYINDEX, CALL_C.as_ptr());
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, 2);
    }
}

/// `redis.call`. A function of C, because one of Lua would take the place of the script in the
/// stack where the script returns what it calls, and the line were lost.
unsafe extern "C-unwind" fn call_or_raise(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: Lua calls this; the stack has whether the command failed, and the reply.
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

/// The arguments of a command.
fn words(given: &MultiValue) -> Result<Vec<Vec<u8>>, &'static str> {
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

/// Makes a table of a fault, and notes in which line of the script it happened.
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
    // The innermost function that is the script's own.
    for level in 1..32 {
        let place = lua.inspect_stack(level, |function| {
            let is_script = function.source().source.as_deref() == Some(SCRIPT);
            is_script.then(|| function.current_line()).flatten()
        });
        match place {
            None => break,
            Some(None) => {}
            Some(Some(line)) => {
                table.raw_set("source", SCRIPT)?;
                table.raw_set("line", line)?;
                break;
            }
        }
    }
    Ok(table)
}
